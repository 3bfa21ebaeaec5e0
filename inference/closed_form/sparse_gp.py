"""Closed forms of the sparse GP models: VGPMIL, VWSGP and CardinalityGP, in coordinates u = Lε.

Each row r of the likelihood has a latent function value f_r | u ~ N(μ0 + V_r ε, k̃_r): an instance
(VGPMIL), or a bag, whose V and k̃ are sums over its instances. Given the auxiliary factors a row
adds to q(ε) = N(m, S) as a Gaussian observation does:

.. code-block:: text

    S = (I + Vᵀ Θ V)⁻¹,    m = S Vᵀ (g − Θ μ0)

with precisions θ_r and linear terms g_r that follow from E f_r and Var f_r under q. Labels of
instances are a local factor of their own.

======================  =========================  ==============================================
code                    symbol                     equation
======================  =========================  ==============================================
``projection``          V, A u = V ε               Castro-Macías et al. (2024), 3
``tilt``                c_n                        28
``expected_precision``  θ(c_n), Θ                  28
``precision_cholesky``  R, RRᵀ = S⁻¹               27
``mean``                m                          26
``label_logits``        η, q(y_n = 1) = π_n        25
======================  =========================  ==============================================

Labels ``"exact"`` have their joint distribution q(y_b) ∝ Π e^{y_n μ_n} H^{[T_b = max y_b]} in place
of the paper's mean field: a tighter bound, without an inner sweep, and monotone. ``"plug_in_max"``
is what the published codes run: E max of the other labels ≈ the maximum of their means, all
instances at once. It ascends no bound; its ELBO is the mean-field one of the q it arrives at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.linalg
from jax.nn import sigmoid, softplus
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, UInt32
from scipy.stats import norm

from ...datasets.bags import Bags
from ...datasets.padding import bag_weight, bucket, padded
from ...models.cardinality_gp import CardinalityGP
from ...models.model import Draws, Model, Program, part_of_bags
from ...models.numerics import products
from ...models.numerics.tracing import as_pytree
from ...models.parts.bag_labels import InstanceLabels
from ...models.parts.bag_latent import BagLatentModel, FloatType
from ...models.parts.likelihoods import LatentMoments
from ...models.parts.sparse_gp import InducingModel, Projector, SparseConditional
from ...models.vgpmil import VGPMIL, log_weights_of_prior
from .. import serialization
from .algorithm import ClosedForm, GaussianForm, Options, Subsample, closed_form

__all__ = [
    "LABEL_UPDATES",
    "BagRows",
    "InducingApproximation",
    "InducingFactor",
    "InducingForm",
    "InducingStatistics",
    "InstanceRows",
    "LabelledApproximation",
    "divergence_from_prior",
    "largest_of_others",
    "moments_under",
]

type LabelUpdate = Literal["exact", "mean_field", "plug_in_max"]
LABEL_UPDATES: tuple[LabelUpdate, ...] = ("exact", "mean_field", "plug_in_max")

_ROUNDING = {"float64": 1e-9, "float32": 1e-7}  # entries of the kernel are rounded by 6e-8
# Draws of N(f) that estimate log Z: each costs as much as a product of all V with a vector.
_DRAWS_OF_PRIOR, _FEWEST_DRAWS_OF_PRIOR = 100, 10
# The published codes start with π near 0.
_FIRST_LOGIT_OF_PLUG_IN = -10.0


class InducingFactor(NamedTuple):
    """q(ε) = N(m, S)."""

    mean: Float[np.ndarray | Array, " M"]
    precision_cholesky: Float[np.ndarray | Array, "M M"]  # R, RRᵀ = S⁻¹
    covariance_root: Float[np.ndarray | Array, "M M"]  # R⁻ᵀ, upper triangular; S = R⁻ᵀR⁻¹


class InducingStatistics(NamedTuple):
    """Sums over rows: all that the next q(ε) and the ELBO need of them."""

    gram: Float[np.ndarray | Array, "M M"]  # VᵀΘV
    linear_term: Float[np.ndarray | Array, " M"]  # Vᵀ(g − Θμ0)
    log_likelihood: Float[np.ndarray | Array, ""]  # the ELBO but for KL(q(ε) ‖ p(ε))


class InstanceRows(NamedTuple):
    """Instances with the labels of their bags."""

    rows: Float[Array, "N K"]  # V, or the instances themselves where V is not kept
    residual_variance: Float[Array, " N"] | None  # k̃; None where V is not kept
    bag_index: Int[Array, " N"]
    bag_label: Int[Array, " B"]  # T
    bag_weight: Float[Array, " B"]  # 1, or 0 of an absent bag

    def sum_over_bags(self, values: Float[Array, " N"]) -> Float[Array, " B"]:
        """Sum the values of the instances of each bag, Σ_{n∈b}."""
        return jax.ops.segment_sum(
            values, self.bag_index, num_segments=len(self.bag_label), indices_are_sorted=True
        )


class BagRows(NamedTuple):
    """Sums over the instances of each bag."""

    projection: Float[Array, "B M"]  # Σ V_n
    residual_variance: Float[Array, " B"]  # k̄
    observed: Float[Array, " B"] | Int[Array, " B"]  # T, or Y
    weight: Float[Array, " B"]  # 1, or 0 of an absent bag


@jax.jit
def _projector(model: InducingModel) -> Projector | None:
    return model.projector()


def divergence_from_prior(q: InducingFactor) -> Float[Array, ""]:
    """KL(q(ε) ‖ N(0, I)) = ½ [tr S + mᵀm − M − log|S|]."""
    log_determinant = 2.0 * jnp.sum(jnp.log(jnp.diagonal(q.precision_cholesky)))
    trace = jnp.sum(q.covariance_root**2)
    return 0.5 * (trace + q.mean @ q.mean - q.mean.shape[0] + log_determinant)


# ------------------------------------------------------------------ the approximation: q(u)


def unwhitened(
    model: Any,
    mean: Float[np.ndarray | Array, " M"],
    precision_cholesky: Float[np.ndarray | Array, "M M"],
) -> dict[str, Float[np.ndarray, "..."]]:
    """``mean`` and ``scale_tril`` of u = Lε: L m, and the lower factor of (L R⁻ᵀ)(L R⁻ᵀ)ᵀ.

    Parameters
    ----------
    model : Model
        Of u ~ N(0, LLᵀ).
    mean : array (M,)
        m, of ε.
    precision_cholesky : array (M, M)
        R.

    Returns
    -------
    dict of arrays
    """
    # By NumPy: JAX would compile a program for it.
    cholesky = np.asarray(model.inducing_cholesky())
    precision_root = np.asarray(precision_cholesky)
    root = scipy.linalg.solve_triangular(
        precision_root, cholesky.T, lower=True, check_finite=False
    ).T  # L R⁻ᵀ
    return {"mean": cholesky @ np.asarray(mean), "scale_tril": _lower_factor(root)}


def _lower_factor(root: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "M M"]:
    """Lower triangular factor of root rootᵀ, without forming the product."""
    upper = np.linalg.qr(root.T, mode="r")
    return (upper * np.sign(np.diagonal(upper))[:, None]).T


@serialization.register
@dataclass(frozen=True, eq=False)
class InducingApproximation:
    """q(u) = N(m, S), by itself where the other factors follow from it.

    Attributes
    ----------
    mean : array (M,)
        m, of u.
    scale_tril : array (M, M)
        Lower factor of S: the covariance of u is S = scale_tril scale_trilᵀ.
    """

    mean: Float[np.ndarray, " M"]
    scale_tril: Float[np.ndarray, "M M"]

    def inducing_distribution(self) -> dist.MultivariateNormal:
        """q(u) = N(m, S)."""
        return dist.MultivariateNormal(
            jnp.asarray(self.mean), scale_tril=jnp.asarray(self.scale_tril)
        )

    def guide(self, model: Any) -> Program:
        """q(u) and all factors that follow from it, the guide of ``model.augmented()``."""
        return closed_form(model, Options()).guide(self)

    def draws(self, model: Model, bags: Bags | None, key: Array, num_draws: int) -> Draws:
        """Draws of ``inducing_value`` from q(u)."""
        # By NumPy: JAX would compile a program for each number of draws.
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        noise = random.standard_normal((num_draws, len(self.mean)))
        return {"inducing_value": self.mean + noise @ self.scale_tril.T}

    def log_density(self, model: Model, bags: Bags | None, draws: Draws) -> Float[np.ndarray, " S"]:
        """log q(u) of each draw."""
        centred = np.asarray(draws["inducing_value"]) - self.mean
        whitened = scipy.linalg.solve_triangular(
            self.scale_tril, centred.T, lower=True, check_finite=False
        )
        log_scale = np.sum(np.log(np.diagonal(self.scale_tril)))
        return norm.logpdf(whitened).sum(axis=0) - log_scale


@serialization.register
@dataclass(frozen=True, eq=False)
class LabelledApproximation(InducingApproximation):
    """q(u) Π q(y_n): independent instance labels, which an update keeps between steps.

    Attributes
    ----------
    label_logits : array (N,)
        η, log odds of q(y_n = 1).
    """

    label_logits: Float[np.ndarray, " N"]


# ------------------------------------------------------------------ what both forms share


@dataclass(frozen=True)
class InducingForm(GaussianForm):
    """q(u) is the one global factor; a subclass computes the statistics of its rows.

    Attributes
    ----------
    dtype : {"float64", "float32"}
    projector : Projector or None
        Known for the hyper-parameters of the model, or to be computed.
    """

    dtype: FloatType
    projector: Projector | None = field(default=None, kw_only=True)

    @property
    def allowed_fall(self) -> float:
        """The rounding of sums over kernels in the form's float type."""
        return _ROUNDING[self.dtype]

    def evaluated(self) -> Self:
        """The form with its projector, which holds for these hyper-parameters alone."""
        return replace(self, projector=_projector(self.model))

    def with_hyperparameters(self, values: dict) -> Self:
        """The form of the model with other hyper-parameters, under which no projector is known."""
        return replace(super().with_hyperparameters(values), projector=None)

    def check(self, bags: Bags) -> None:
        """Refuse chunks without labels (targets), or of other features.

        Raises
        ------
        ValueError
            If there are none, or another number.
        """
        super().check(bags)
        self.model.check_width(bags)

    def start(self, subsample: Subsample, key: Array) -> tuple[InducingFactor, Array]:
        """Start from the prior, q(ε) = N(0, I)."""
        size = self.model.num_inducing
        # By NumPy: JAX would compile a program for each of these.
        identity = np.eye(size)
        return InducingFactor(np.zeros(size), identity, identity), jax.random.key_data(key)

    def initial(self, prepared: Any, start: tuple[InducingFactor, Array]) -> tuple[Any, Any]:
        """Statistics under the prior."""
        return self.e_step(prepared, start[0], None)

    def m_step(self, statistics: InducingStatistics) -> InducingFactor:
        """S = (I + gram)⁻¹, m = S linear."""
        gram, linear_term, _ = statistics
        precision = jnp.eye(gram.shape[0], dtype=gram.dtype) + gram
        root = jnp.linalg.cholesky(precision)
        mean = cho_solve((root, True), linear_term)
        return InducingFactor(mean, root, products.inverse_transposed(root))

    def elbo(self, q: InducingFactor, statistics: InducingStatistics) -> Float[Array, ""]:
        """Expected log likelihood of the rows, less KL(q(u) ‖ p(u))."""
        return jnp.asarray(statistics.log_likelihood) - divergence_from_prior(q)

    def no_statistics(self) -> InducingStatistics:
        """Statistics of no rows: zeros."""
        size = self.model.num_inducing
        return InducingStatistics(np.zeros((size, size)), np.zeros(size), np.zeros(()))

    def approximation(
        self, q: InducingFactor, local: Any, bags: Bags | None, elbo: Any
    ) -> InducingApproximation:
        """q(u), from which all other factors follow."""
        return InducingApproximation(**unwhitened(self.model, q.mean, q.precision_cholesky))

    def factor(self, approximation: Any) -> InducingFactor:
        """q(ε) of ε = L⁻¹u.

        Raises
        ------
        ValueError
            If the approximation is of another engine, or has independent labels beside q(u).
        """
        if type(approximation) is not InducingApproximation:
            raise ValueError(
                f"approximation is a {type(approximation).__name__}; expected q(u) by itself, as "
                "coordinate_ascent returns it if label_update is left out"
            )
        cholesky = np.asarray(self.model.inducing_cholesky())
        # By SciPy: JAX would compile a program for each.
        mean = scipy.linalg.solve_triangular(cholesky, approximation.mean, lower=True)
        root = scipy.linalg.solve_triangular(cholesky, approximation.scale_tril, lower=True)
        upper = _lower_factor(root[::-1])[::-1, ::-1]  # R⁻ᵀ
        identity = np.eye(len(mean))
        precision_cholesky = scipy.linalg.solve_triangular(upper, identity, trans=1, lower=False)
        return InducingFactor(mean, precision_cholesky, upper)

    def location(self, q: InducingFactor) -> Float[Array, " M"]:
        """The mean m of q(ε)."""
        return jnp.asarray(q.mean)

    def covariance_root(self, q: InducingFactor) -> Float[Array, "M M"]:
        """U = R⁻ᵀ, a root of the covariance: UUᵀ = S."""
        return jnp.asarray(q.covariance_root)

    def with_moments(
        self, q: InducingFactor, mean: Float[Array, " M"], covariance: Float[Array, "M M"]
    ) -> InducingFactor:
        """N(m, S), with S = UUᵀ of an upper triangular U."""
        upper = jnp.linalg.cholesky(covariance[::-1, ::-1])[::-1, ::-1]
        identity = jnp.eye(len(upper), dtype=upper.dtype)
        precision_cholesky = solve_triangular(upper, identity, trans=1, lower=False)
        return InducingFactor(mean, precision_cholesky, upper)

    def added_natural_parameters(
        self, statistics: InducingStatistics
    ) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
        """Vᵀ(g − Θμ0) and VᵀΘV."""
        return jnp.asarray(statistics.linear_term), jnp.asarray(statistics.gram)

    def instance_projection(self) -> Callable[[Array], tuple[Array, Array]]:
        """Features of a block of instances → V and k̃, worked out in the form's type."""
        projector = self.projector or self.model.projector()
        wide, narrow = projector.cholesky.dtype, jax.dtypes.canonicalize_dtype(self.dtype)
        narrowed = jax.tree.map(lambda leaf: jnp.asarray(leaf, narrow), projector)

        def of_rows(instances: Array) -> tuple[Array, Array]:
            projection = narrowed.projection(narrowed.cross(instances))
            return projection, narrowed.residual_variance(instances, projection).astype(wide)

        return of_rows

    def draw(self, q: InducingFactor, key: Array, num_draws: int) -> dict[str, Array]:
        """Draws of u = L(m + R⁻ᵀz), z ~ N(0, I)."""
        noise = jax.random.normal(key, (len(q.mean), num_draws), q.mean.dtype)
        whitened = q.mean[:, None] + q.covariance_root @ noise
        return {"inducing_value": (self.model.inducing_cholesky() @ whitened).T}


# ------------------------------------------------------------------ rows are bags


@as_pytree("dtype")
@dataclass(frozen=True)
class BagForm(InducingForm):
    """VWSGP and CardinalityGP: one row for each bag, made in one pass over its instances.

    References
    ----------
    Kandemir et al. (2016), section 3.
    """

    model: BagLatentModel
    dtype: FloatType = "float64"

    @property
    def is_compact(self) -> bool:
        """Whether rows of bags are much smaller than the bags: yes."""
        return True

    def chunk(self, bags: Bags) -> Any:
        """Padded bags, with the quantities that no hyper-parameter changes."""
        return self.model.without_hyperparameters(padded(bags))

    def prepare(self, chunk: Any) -> BagRows:
        """Σ V_n and k̄ of each bag."""
        _, projection, residual_variance, _ = self.model.accumulated(
            chunk, self.dtype, self.projector
        )
        bags = chunk if isinstance(chunk, Bags) else chunk.bags
        observed = jnp.asarray(getattr(bags, part_of_bags(self.model)))
        weight = jnp.asarray(bag_weight(bags), residual_variance.dtype)
        return BagRows(projection, residual_variance, observed, weight)

    def guide(self, approximation: InducingApproximation) -> Program:
        """q(u) with the auxiliary factors of the likelihood, which follow from it."""
        model = self.model

        def guide(bags: Bags) -> None:
            rows = model.accumulated(bags)
            inducing_value = numpyro.sample("inducing_value", approximation.inducing_distribution())
            moments = LatentMoments(*moments_under(approximation, rows), rows.residual_variance)
            observed = jnp.asarray(getattr(bags, part_of_bags(model)))
            with numpyro.plate("bag", bags.num_bags):
                model.likelihood.sample_guide(
                    rows.mean(inducing_value),
                    rows.residual_scale,
                    moments,
                    observed,
                    latent_site="bag_latent",
                )

        return guide

    def e_step(
        self, prepared: BagRows, q: InducingFactor, local: None
    ) -> tuple[InducingStatistics, None]:
        """Precisions, linear terms and bounds of the likelihood, summed over bags."""
        projection, residual_variance, observed, weight = prepared
        mean = projection @ q.mean  # a_bᵀm
        explained = products.squared_norms(projection, jnp.asarray(q.covariance_root))  # a_bᵀS a_b
        of_rows = self.model.likelihood.expected_statistics(
            observed, mean, explained, residual_variance
        )
        gram = products.weighted_gram(projection, weight * of_rows.precision)
        linear_term = (weight * of_rows.linear_term) @ projection
        return InducingStatistics(gram, linear_term, weight @ of_rows.log_likelihood), None


@closed_form.register
def _of_bags(model: BagLatentModel, options: Options) -> BagForm:
    options.label_update_of(model, ())
    options.refuse_starts(model)
    return BagForm(model, options.dtype)


@closed_form.register
def _(model: CardinalityGP, options: Options) -> ClosedForm:
    if options.in_chunks:
        raise NotImplementedError(
            "CardinalityGP has no closed form for streams or meshes, as its kernel is between all "
            "bags; read them into memory"
        )
    if options.dtype != "float64":
        raise NotImplementedError(
            "CardinalityGP has no closed form in 32 bit: kernels between bags are few, and there "
            "is nothing to gain; use dtype='float64'"
        )
    return _of_bags(model, options)


# ------------------------------------------------------------------ rows are instances


@as_pytree("dtype", "label_update", "keeps_projection", "longest_bag")
@dataclass(frozen=True)
class InstanceForm(InducingForm):
    """VGPMIL: one row for each instance, and q(y) over the labels of each bag.

    Attributes
    ----------
    model : VGPMIL
    dtype : {"float64", "float32"}
    label_update : {"exact", "mean_field", "plug_in_max"}
    keeps_projection : bool
        Whether V is kept between steps; else each step goes from the features to the statistics.
    longest_bag : int
        Length of a mean-field sweep.
    draws_of_prior : keys or None
        Of draws that estimate log Z of p(f) for another ψ than the logistic one; None where it is
        left out, as it is of a model with fixed hyper-parameters.

    References
    ----------
    Castro-Macías et al. (2024), Algorithm 1 and equations 25 to 28.
    """

    model: VGPMIL
    dtype: FloatType = "float64"
    label_update: LabelUpdate = "exact"
    keeps_projection: bool = False
    longest_bag: int = 0
    draws_of_prior: UInt32[np.ndarray | Array, "S 2"] | None = None

    @property
    def allowed_fall(self) -> float:
        """Infinite for the published codes' own updates, which ascend no bound."""
        return math.inf if self.label_update == "plug_in_max" else super().allowed_fall

    @property
    def keeps_local(self) -> bool:
        """Whether the instance labels have factors of their own."""
        return self.label_update != "exact"

    def numbers_kept(self, bags: Bags) -> int:
        """The entries of V."""
        return bags.num_instances * self.model.num_inducing

    def in_memory(self, bags: Bags) -> Self:
        """The form that keeps V between steps."""
        sweeps = self.label_update == "mean_field"
        longest = bucket(int(bags.bag_sizes.max())) if sweeps else 0
        return replace(self, keeps_projection=True, longest_bag=longest)

    def with_normaliser(self, key: Array) -> Self:
        """The form with log Z in its ELBO, by draws that are the same for all hyper-parameters."""
        if self.model.is_logistic:
            return self
        keys = jax.random.split(key, _DRAWS_OF_PRIOR)
        return replace(self, draws_of_prior=jax.random.key_data(keys))

    def doubt(self, chunk: Bags) -> str:
        """A warning where log Z rests on few of its draws, and so do the hyper-parameters."""
        if self.draws_of_prior is None:
            return ""
        effective = float(_effective_draws(self, chunk))
        if effective >= _FEWEST_DRAWS_OF_PRIOR:
            return ""
        return (
            f"log Z of the prior rests on {effective:.1f} of {_DRAWS_OF_PRIOR} draws, and the "
            "learned hyper-parameters on chance: see VGPMIL.log_normaliser"
        )

    def prepare(self, chunk: Bags) -> InstanceRows:
        """V and k̃ where they are kept, and the labels of the bags."""
        instances, residual_variance = jnp.asarray(chunk.instances), None
        if self.keeps_projection:
            project = self.instance_projection()
            _, (instances, residual_variance) = products.in_row_blocks(
                lambda rows: ((), project(rows)), instances
            )
        return InstanceRows(
            instances,
            residual_variance,
            jnp.asarray(chunk.bag_index),
            jnp.asarray(chunk.labels),
            jnp.asarray(bag_weight(chunk)),
        )

    def initial(
        self, prepared: InstanceRows, start: tuple[InducingFactor, Array]
    ) -> tuple[InducingStatistics, Float[Array, " N"] | None]:
        """Statistics under the prior, with labels as each update wants them to start."""
        q, key = start
        if self.label_update == "exact":
            return self.e_step(prepared, q, None)
        shape, dtype = prepared.bag_index.shape, prepared.bag_weight.dtype
        logits = jnp.full(shape, _FIRST_LOGIT_OF_PLUG_IN, dtype)
        if self.label_update == "mean_field":
            logits = jax.random.logistic(jax.random.wrap_key_data(key), shape, dtype)
        return self.e_step(prepared, q, logits, updates_labels=False)

    def e_step(
        self,
        prepared: InstanceRows,
        q: InducingFactor,
        local: Float[Array, " N"] | None,
        *,
        updates_labels: bool = True,
    ) -> tuple[InducingStatistics, Float[Array, " N"] | None]:
        """Tilts and labels at their optimum under q(u), and expected sufficient statistics.

        ELBO of the rows = Σ_b label terms − B log(H + 1) + Σ_n [log ψ(c_n) − ½ μ_n] − log Z, the
        last where it is asked for.

        Parameters
        ----------
        prepared : InstanceRows
        q : InducingFactor
        local : array (N,) or None
            η of q(y_n), as ``"mean_field"`` and ``"plug_in_max"`` keep them.
        updates_labels : bool
            Else η stays as it is.

        Returns
        -------
        InducingStatistics
        array (N,) or None
            η.
        """
        weight = prepared.bag_weight[prepared.bag_index]
        panels, projection, mean, tilt = self._moments(prepared, q, weight)
        if updates_labels and local is not None:
            sweep = partial(_mean_field_sweep, longest_bag=self.longest_bag)
            update = sweep if self.label_update == "mean_field" else _plug_in_max
            local = update(prepared, mean, local, jnp.asarray(self.model.sharpness, mean.dtype))
        probability, log_likelihood = self._labels(prepared, mean, local)
        scale_mixture = self.model.scale_mixture
        linear = probability - 0.5 - scale_mixture.expected_precision(tilt) * self.model.mean
        log_likelihood += weight @ (scale_mixture.log_density(tilt) - 0.5 * mean)
        log_likelihood -= self._log_normaliser(prepared, weight)
        gram = products.gram_from_panels(panels)
        linear_term = products.weighted_sum(projection, weight * linear)
        return InducingStatistics(gram, linear_term, log_likelihood), local

    def _moments(
        self, prepared: InstanceRows, q: InducingFactor, weight: Float[Array, " N"]
    ) -> tuple[products.Panels, Array, Array, Array]:
        """Panels of VᵀΘV, V, E f_n = μ0 + V_n m and c_n = √E f_n², block by block."""
        model, narrow = self.model, jax.dtypes.canonicalize_dtype(self.dtype)
        wide, narrow_mean = jnp.asarray(q.mean).dtype, jnp.asarray(q.mean, narrow)
        narrow_root = jnp.asarray(q.covariance_root, narrow)
        rows, residual_variance = jnp.asarray(prepared.rows), prepared.residual_variance
        is_kept, project = residual_variance is not None, self.instance_projection()

        def of_block(weight: Array, *given: Array) -> tuple[products.Panels, tuple[Array, ...]]:
            projection, own_variance = given if is_kept else project(*given)
            location = model.mean + (projection @ narrow_mean).astype(wide)
            variance = products.squared_norms(projection, narrow_root) + own_variance
            tilt = jnp.sqrt(location**2 + variance)
            theta = weight * model.scale_mixture.expected_precision(tilt)
            # Else XLA works θ_n out anew for each entry of its row of ΘV. With c_n behind the
            # barrier, too, it orders a block's work otherwise: measured, steps took an eighth less.
            theta, tilt = jax.lax.optimization_barrier((theta, tilt))
            panels = products.gram_panels(projection, theta.astype(narrow))
            panels = jax.tree.map(lambda leaf: leaf.astype(wide), panels)
            return panels, (location, tilt, *(() if is_kept else (projection,)))

        if residual_variance is not None:
            given, length = (weight, rows, residual_variance), products.ROWS_OF_ALL_CORES
            panels, (mean, tilt) = products.in_row_blocks(of_block, *given, at_most=length)
            return panels, rows, mean, tilt
        panels, (mean, tilt, projection) = products.in_row_blocks(of_block, weight, rows)
        # Else XLA makes all of V in the order that the linear term would like best.
        return panels, jax.lax.optimization_barrier(projection), mean, tilt

    def _log_normaliser(
        self, prepared: InstanceRows, weight: Float[Array, " N"]
    ) -> Float[Array, ""]:
        """log Z of p(f) (equation 29); 0 where it is left out."""
        if self.draws_of_prior is None:
            return jnp.zeros(())
        return logsumexp(self.log_weights_of_prior(prepared, weight)) - math.log(_DRAWS_OF_PRIOR)

    def log_weights_of_prior(
        self, prepared: InstanceRows, weight: Float[Array, " N"]
    ) -> Float[Array, " S"]:
        """Log weights of the prior draws; the mean of the weights estimates Z."""
        assert prepared.residual_variance is not None  # bags are in memory
        keys = jax.random.wrap_key_data(jnp.asarray(self.draws_of_prior))
        projection = jnp.asarray(prepared.rows).astype(weight.dtype)
        return log_weights_of_prior(
            self.model, projection, prepared.residual_variance, weight, keys
        )

    # -------------------------------------------------------------- q(y)

    def _labels(
        self, prepared: InstanceRows, mean: Float[Array, " N"], logits: Float[Array, " N"] | None
    ) -> tuple[Float[Array, " N"], Float[Array, ""]]:
        """π, and E log p(T, y | f) − E log q(y) but for terms of f alone."""
        sharpness = jnp.asarray(self.model.sharpness, mean.dtype)
        if logits is None:
            joint = InstanceLabels(
                mean, prepared.bag_index, prepared.bag_label, sharpness, len(prepared.bag_label)
            )
            probability, by_bag = joint.mean, joint.log_normaliser()
        else:
            probability = sigmoid(logits)
            entropy = prepared.sum_over_bags(softplus(logits) + probability * (mean - logits))
            none = jnp.exp(prepared.sum_over_bags(-softplus(logits)))  # Π(1 − π_n)
            match = jnp.where(prepared.bag_label == 1, 1.0 - none, none)
            by_bag = entropy + jnp.log(sharpness) * match
        return probability, prepared.bag_weight @ (by_bag - jnp.log1p(sharpness))

    def guide(self, approximation: InducingApproximation) -> Program:
        """q(u) p(f | u) q(ω) q(y)."""
        model = self.model

        def guide(bags: Bags) -> None:
            rows = model.conditional(bags)
            inducing_value = numpyro.sample("inducing_value", approximation.inducing_distribution())
            mean, explained = moments_under(approximation, rows)
            mean = model.mean + mean
            tilt = jnp.sqrt(mean**2 + explained + rows.residual_variance)
            with numpyro.plate("instance", bags.num_instances):
                location = model.mean + rows.mean(inducing_value)
                numpyro.sample("latent", dist.Normal(location, rows.residual_scale))
                numpyro.sample("augmentation", model.scale_mixture.conditional(tilt))
            numpyro.sample("instance_label", self._label_factor(approximation, bags, mean))

        return guide

    def _label_factor(
        self, approximation: InducingApproximation, bags: Bags, mean: Float[Array, " N"]
    ) -> dist.Distribution:
        """q(y): the exact joint distribution, or independent labels where these were kept."""
        if isinstance(approximation, LabelledApproximation):
            logits = jnp.asarray(approximation.label_logits)
            return dist.Bernoulli(logits=logits).to_event(1)
        index, labels = jnp.asarray(bags.bag_index), jnp.asarray(bags.labels)
        return InstanceLabels(mean, index, labels, self.model.sharpness, bags.num_bags)

    def approximation(
        self,
        q: InducingFactor,
        local: Float[Array, " N"] | None,
        bags: Bags | None,
        elbo: Any,
    ) -> InducingApproximation:
        """q(u), with the labels where they do not follow from it."""
        given = unwhitened(self.model, q.mean, q.precision_cholesky)
        if local is None or bags is None:
            return InducingApproximation(**given)
        return LabelledApproximation(**given, label_logits=np.asarray(local)[: bags.num_instances])


@jax.jit
def _effective_draws(form: InstanceForm, chunk: Bags) -> Float[Array, ""]:
    """(Σ w)²/Σ w² of the draws that estimate Z."""
    prepared = form.prepare(chunk)
    logs = form.log_weights_of_prior(prepared, prepared.bag_weight[prepared.bag_index])
    return jnp.exp(2.0 * logsumexp(logs) - logsumexp(2.0 * logs))


@closed_form.register
def _(model: VGPMIL, options: Options) -> InstanceForm:
    update = options.label_update_of(model, LABEL_UPDATES)
    options.refuse_starts(model)
    return InstanceForm(model, options.dtype, update)


def moments_under(
    approximation: InducingApproximation, rows: SparseConditional
) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    """V m and diag(V S Vᵀ) of rows, under q(u)."""
    root = solve_triangular(rows.cholesky, jnp.asarray(approximation.scale_tril), lower=True)
    explained = jnp.sum((rows.projection @ root) ** 2, axis=1)
    return rows.mean(jnp.asarray(approximation.mean)), explained


def _mean_field_sweep(
    prepared: InstanceRows,
    mean: Float[Array, " N"],
    logits: Float[Array, " N"],
    sharpness: Float[Array, ""],
    longest_bag: int,
) -> Float[Array, " N"]:
    """η_n = μ_n + (2T_b − 1) log H Π_{j≠n}(1 − π_j), one instance of each bag after another.

    All at once would be no coordinate ascent: the ELBO was seen to fall. The sweep runs over
    positions within the bags, all bags together.
    """
    sizes = prepared.sum_over_bags(jnp.ones_like(mean)).astype(prepared.bag_index.dtype)
    first = jnp.cumsum(sizes) - sizes
    linear = (2.0 * prepared.bag_label - 1.0) * jnp.log(sharpness)
    log_none = prepared.sum_over_bags(-softplus(logits))  # log Π(1 − π_n)

    def update(position: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        logits, log_none = carry
        is_there = position < sizes
        index = jnp.where(is_there, first + position, 0)
        log_none_other = log_none + softplus(logits[index])
        new = mean[index] + linear * jnp.exp(jnp.minimum(log_none_other, 0.0))
        log_none = jnp.where(is_there, log_none_other - softplus(new), log_none)
        # Bags that are already through write beyond the end, which drops the value.
        target = jnp.where(is_there, index, logits.shape[0])
        return logits.at[target].set(new, mode="drop"), log_none

    return jax.lax.fori_loop(0, longest_bag, update, (logits, log_none))[0]


def _plug_in_max(
    prepared: InstanceRows,
    mean: Float[Array, " N"],
    logits: Float[Array, " N"],
    sharpness: Float[Array, ""],
) -> Float[Array, " N"]:
    """η_n = μ_n + (2T_b − 1) log H (1 − max_{j≠n} π_j), all instances at once."""
    largest = largest_of_others(sigmoid(logits), prepared.bag_index, len(prepared.bag_label))
    linear = (2.0 * prepared.bag_label - 1.0) * jnp.log(sharpness)
    return mean + linear[prepared.bag_index] * (1.0 - largest)


def largest_of_others(
    probability: Float[Array, " N"], bag_index: Int[Array, " N"], num_bags: int
) -> Float[Array, " N"]:
    """max_{j≠n} π_j within the bag, 0 for a bag of one.

    Parameters
    ----------
    probability : array (N,)
    bag_index : array (N,)
        Non-decreasing.
    num_bags : int

    Returns
    -------
    array (N,)
    """

    def largest_in_bag(values: Float[Array, " N"]) -> Float[Array, " N"]:
        by_bag = jax.ops.segment_max(values, bag_index, num_bags, indices_are_sorted=True)
        return by_bag[bag_index]

    is_largest = probability == largest_in_bag(probability)
    count = jax.ops.segment_sum(
        is_largest.astype(probability.dtype), bag_index, num_bags, indices_are_sorted=True
    )
    second = largest_in_bag(jnp.where(is_largest, 0.0, probability))
    is_tied = count[bag_index] > 1
    return jnp.where(is_largest & ~is_tied, second, largest_in_bag(probability))
