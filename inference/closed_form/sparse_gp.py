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

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import sigmoid, softplus
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from ...datasets.bags import Bags
from ...datasets.padding import bucket, padded
from ...models.cardinality_gp import CardinalityGP
from ...models.model import Program, part_of_bags
from ...models.numerics.products import (
    ROWS_OF_ALL_CORES,
    Panels,
    gram_from_panels,
    gram_panels,
    in_row_blocks,
    inverse_transposed,
    squared_norms,
    weighted_gram,
    weighted_sum,
)
from ...models.numerics.tracing import as_pytree
from ...models.parts.bag_evidence import BagEvidenceModel, FloatType
from ...models.parts.bag_labels import InstanceLabels
from ...models.parts.likelihoods import LatentMoments
from ...models.parts.sparse_gp import Projector, SparseConditional
from ...models.vgpmil import VGPMIL
from .algorithm import (
    ClosedForm,
    Options,
    Subsample,
    closed_form,
    label_update_of,
    refuse_starts,
)
from .inducing import InducingApproximation, LabelledApproximation, unwhitened

__all__ = [
    "LABEL_UPDATES",
    "BagRows",
    "InducingFactor",
    "InducingStatistics",
    "InstanceRows",
    "divergence_from_prior",
    "largest_of_others",
]

type LabelUpdate = Literal["exact", "mean_field", "plug_in_max"]
LABEL_UPDATES: tuple[LabelUpdate, ...] = ("exact", "mean_field", "plug_in_max")

_ROUNDING = {"float64": 1e-9, "float32": 1e-7}  # entries of the kernel are rounded by 6e-8
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

    @property
    def num_bags(self) -> int:
        """B."""
        return self.bag_label.shape[0]

    def sum_over_bags(self, values: Float[Array, " N"]) -> Float[Array, " B"]:
        """Σ_{n∈b}."""
        return jax.ops.segment_sum(
            values, self.bag_index, num_segments=self.num_bags, indices_are_sorted=True
        )


class BagRows(NamedTuple):
    """Bags by what their instances sum up to."""

    projection: Float[Array, "B M"]  # Σ V_n
    residual_variance: Float[Array, " B"]  # k̄
    observed: Float[Array, " B"] | Int[Array, " B"]  # T, or Y
    weight: Float[Array, " B"]  # 1, or 0 of an absent bag


class _Labels(NamedTuple):
    """What q(y) adds."""

    probability: Float[Array, " N"]  # π
    log_likelihood: Float[Array, ""]  # E log p(T, y | f) − E log q(y), but for terms of f alone
    logits: Float[Array, " N"] | None  # η, where they are kept


def divergence_from_prior(q: InducingFactor) -> Float[Array, ""]:
    """KL(q(ε) ‖ N(0, I)) = ½ [tr S + mᵀm − M − log|S|]."""
    log_determinant = 2.0 * jnp.sum(jnp.log(jnp.diagonal(q.precision_cholesky)))
    trace = jnp.sum(q.covariance_root**2)
    return 0.5 * (trace + q.mean @ q.mean - q.mean.shape[0] + log_determinant)


# ------------------------------------------------------------------ what both forms share


@dataclass(frozen=True)
class _InducingForm(ClosedForm):
    """q(u) is the one global factor; a subclass says what rows add to its statistics."""

    dtype: FloatType

    @property
    def rounding(self) -> float:
        """Of sums over kernels in this type."""
        return _ROUNDING[self.dtype]

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
        """The prior."""
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
        return InducingFactor(cho_solve((root, True), linear_term), root, inverse_transposed(root))

    def elbo(self, q: InducingFactor, statistics: InducingStatistics) -> Float[Array, ""]:
        """Expected log likelihood of the rows, less KL(q(u) ‖ p(u))."""
        return jnp.asarray(statistics.log_likelihood) - divergence_from_prior(q)

    def no_statistics(self) -> InducingStatistics:
        """Zeros."""
        size = self.model.num_inducing
        return InducingStatistics(np.zeros((size, size)), np.zeros(size), np.zeros(()))

    def approximation(
        self, q: InducingFactor, local: Any, bags: Bags | None, elbo: Any
    ) -> InducingApproximation:
        """q(u), from which all other factors follow."""
        return InducingApproximation(**unwhitened(self.model, q.mean, q.precision_cholesky))

    def draw(self, q: InducingFactor, key: Array, num_draws: int) -> dict[str, Array]:
        """Draws of u = L(m + R⁻ᵀz), z ~ N(0, I)."""
        noise = jax.random.normal(key, (len(q.mean), num_draws), q.mean.dtype)
        whitened = q.mean[:, None] + q.covariance_root @ noise
        return {"inducing_value": (self.model.inducing_cholesky() @ whitened).T}


# ------------------------------------------------------------------ rows are bags


@as_pytree("dtype")
@dataclass(frozen=True)
class BagForm(_InducingForm):
    """VWSGP and CardinalityGP: one row for each bag, made in one pass over its instances.

    References
    ----------
    Kandemir et al. (2016), section 3.
    """

    model: BagEvidenceModel
    dtype: FloatType = "float64"

    @property
    def is_compact(self) -> bool:
        """Whether rows of bags are much smaller than the bags: yes."""
        return True

    def check_chunks(self) -> None:
        """Refuse a process whose kernel is between bags.

        Raises
        ------
        NotImplementedError
            If it is.
        """
        if isinstance(self.model, CardinalityGP):
            raise NotImplementedError(
                "CardinalityGP has no closed form for streams or meshes, as its kernel is between "
                "all bags; read them into memory"
            )

    def chunk(self, bags: Bags) -> Any:
        """In arrays of sizes of the grid, with what no hyper-parameter changes."""
        return self.model.without_hyperparameters(padded(bags))

    def prepare(self, chunk: Any) -> BagRows:
        """Σ V_n and k̄ of each bag."""
        _, projection, residual_variance, _ = self.model.accumulated(chunk, self.dtype)
        bags = chunk if isinstance(chunk, Bags) else chunk.bags
        return BagRows(
            projection,
            residual_variance,
            jnp.asarray(getattr(bags, part_of_bags(self.model))),
            _weight_of(bags, residual_variance.dtype),
        )

    def guide(self, approximation: InducingApproximation) -> Program:
        """q(u) with the auxiliary factors of the likelihood, which follow from it."""
        model = self.model

        def guide(bags: Bags) -> None:
            rows = model.accumulated(bags)
            inducing_value = numpyro.sample("inducing_value", approximation.inducing_distribution())
            moments = LatentMoments(*_moments_under(approximation, rows), rows.residual_variance)
            observed = jnp.asarray(getattr(bags, part_of_bags(model)))
            with numpyro.plate("bag", bags.num_bags):
                model.likelihood.sample_guide(
                    rows.mean(inducing_value),
                    rows.residual_scale,
                    moments,
                    observed,
                    latent_site="bag_evidence",
                )

        return guide

    def e_step(
        self, prepared: BagRows, q: InducingFactor, local: None
    ) -> tuple[InducingStatistics, None]:
        """Precisions, linear terms and bounds of the likelihood, summed over bags."""
        projection, residual_variance, observed, weight = prepared
        mean = projection @ q.mean  # a_bᵀm
        explained = squared_norms(projection, jnp.asarray(q.covariance_root))  # a_bᵀS a_b
        of_rows = self.model.likelihood.expected_statistics(
            observed, mean, explained, residual_variance
        )
        statistics = InducingStatistics(
            weighted_gram(projection, weight * of_rows.precision),
            (weight * of_rows.linear_term) @ projection,
            weight @ of_rows.log_likelihood,
        )
        return statistics, None


@closed_form.register
def _(model: BagEvidenceModel, options: Options) -> BagForm:
    label_update_of(model, options.label_update, ())
    refuse_starts(model, options.num_starts)
    if options.dtype != "float64" and isinstance(model, CardinalityGP):
        raise NotImplementedError(
            "CardinalityGP has no closed form in 32 bit: kernels between bags are few, and there "
            "is nothing to gain; use dtype='float64'"
        )
    return BagForm(model, options.dtype)


# ------------------------------------------------------------------ rows are instances


@as_pytree("dtype", "label_update", "keeps_projection", "longest_bag")
@dataclass(frozen=True)
class InstanceForm(_InducingForm):
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

    References
    ----------
    Castro-Macías et al. (2024), Algorithm 1 and equations 25 to 28.
    """

    model: VGPMIL
    dtype: FloatType = "float64"
    label_update: LabelUpdate = "exact"
    keeps_projection: bool = False
    longest_bag: int = 0

    @property
    def is_ascent(self) -> bool:
        """All updates but the published codes' own."""
        return self.label_update != "plug_in_max"

    def check_chunks(self) -> None:
        """Refuse labels that do not follow from q(u).

        Raises
        ------
        NotImplementedError
            If there are any.
        """
        if self.label_update != "exact":
            raise NotImplementedError(
                f"label_update={self.label_update!r} needs what the last step said of each "
                "instance, which is not kept on a stream or on a mesh; leave it out for the exact "
                "distribution of the labels"
            )

    def in_memory(self, bags: Bags) -> Self:
        """With V kept."""
        sweeps = self.label_update == "mean_field"
        longest = bucket(int(bags.bag_sizes.max())) if sweeps else 0
        return replace(self, keeps_projection=True, longest_bag=longest)

    def check_learnable(self) -> None:
        """Refuse a ψ whose normalising constant depends on the hyper-parameters.

        Raises
        ------
        ValueError
            If the model is not the logistic one.
        """
        if not self.model.is_logistic:
            raise ValueError(
                f"learn_hyperparameters=True with mixing={self.model.mixing}: the normalising "
                "constant of that prior depends on the hyper-parameters and is not in the bound, "
                "which would grow without end; use PolyaGammaMixing() to learn them"
            )

    def prepare(self, chunk: Bags) -> InstanceRows:
        """V and k̃ where they are kept, and what is known of the bags."""
        instances, residual_variance = jnp.asarray(chunk.instances), None
        if self.keeps_projection:
            project = self._projection()
            _, (instances, residual_variance) = in_row_blocks(
                lambda rows: ((), project(rows)), instances
            )
        return InstanceRows(
            instances,
            residual_variance,
            jnp.asarray(chunk.bag_index),
            jnp.asarray(chunk.labels),
            _weight_of(chunk, jnp.result_type(float)),
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
        return self.given_labels(prepared, q, logits)

    def e_step(
        self, prepared: InstanceRows, q: InducingFactor, local: Float[Array, " N"] | None
    ) -> tuple[InducingStatistics, Float[Array, " N"] | None]:
        """Tilts and labels at their optimum under q(u), and the sums under them.

        ELBO of the rows = Σ_b label terms − B log(H + 1) + Σ_n [log ψ(c_n) − ½ μ_n].
        """
        return self._statistics(prepared, q, local, is_updated=False)

    def given_labels(
        self, prepared: InstanceRows, q: InducingFactor, logits: Float[Array, " N"]
    ) -> tuple[InducingStatistics, Float[Array, " N"] | None]:
        """Statistics under q(u) and independent labels of these log odds, tilts at their optimum.

        Parameters
        ----------
        prepared : InstanceRows
        q : InducingFactor
        logits : array (N,)
            η of q(y_n), as ``"mean_field"`` and ``"plug_in_max"`` keep them.

        Returns
        -------
        InducingStatistics
        array (N,)
            The log odds, as they were.
        """
        return self._statistics(prepared, q, logits, is_updated=True)

    def _statistics(
        self,
        prepared: InstanceRows,
        q: InducingFactor,
        local: Float[Array, " N"] | None,
        *,
        is_updated: bool,
    ) -> tuple[InducingStatistics, Float[Array, " N"] | None]:
        """``is_updated``: whether the labels stay as they are."""
        weight = prepared.bag_weight[prepared.bag_index]
        panels, projection, mean, tilt = self._moments(prepared, q, weight)
        labels = self._labels(prepared, mean, local, is_updated=is_updated)
        mixing = self.model.mixing
        linear = labels.probability - 0.5 - mixing.expected_precision(tilt) * self.model.mean
        log_likelihood = weight @ (mixing.log_density(tilt) - 0.5 * mean)
        log_likelihood += labels.log_likelihood
        statistics = InducingStatistics(
            gram_from_panels(panels), weighted_sum(projection, weight * linear), log_likelihood
        )
        return statistics, labels.logits

    def _projection(self) -> Callable[[Array], tuple[Array, Array]]:
        """Features of a block of instances → V and k̃, worked out in the form's type."""
        projector = Projector.of(self.model.kernel, self.model.inducing_points, self.model.jitter)
        wide, narrow = projector.cholesky.dtype, jax.dtypes.canonicalize_dtype(self.dtype)
        narrowed = jax.tree.map(lambda leaf: jnp.asarray(leaf, narrow), projector)

        def of_rows(instances: Array) -> tuple[Array, Array]:
            projection = narrowed.projection(narrowed.cross(instances))
            return projection, narrowed.residual_variance(projection).astype(wide)

        return of_rows

    def _moments(
        self, prepared: InstanceRows, q: InducingFactor, weight: Float[Array, " N"]
    ) -> tuple[Panels, Array, Array, Array]:
        """Panels of VᵀΘV, V, E f_n = μ0 + V_n m and c_n = √E f_n², block by block."""
        narrow = jax.dtypes.canonicalize_dtype(self.dtype)
        of_projected = _of_projected(self.model, q, narrow)
        rows, residual_variance = jnp.asarray(prepared.rows), prepared.residual_variance
        if residual_variance is not None:
            given = (rows, residual_variance, weight)
            panels, (mean, tilt) = in_row_blocks(of_projected, *given, at_most=ROWS_OF_ALL_CORES)
            return panels, rows, mean, tilt
        project = self._projection()

        def of_features(instances: Array, weight: Array) -> tuple[Panels, tuple[Array, ...]]:
            projection, residual_variance = project(instances)
            panels, moments = of_projected(projection, residual_variance, weight)
            return panels, (projection, *moments)

        panels, (projection, mean, tilt) = in_row_blocks(of_features, rows, weight)
        # Else XLA makes all of V in the order that the linear term would like best.
        return panels, jax.lax.optimization_barrier(projection), mean, tilt

    # -------------------------------------------------------------- q(y)

    def _labels(
        self,
        prepared: InstanceRows,
        mean: Float[Array, " N"],
        logits: Float[Array, " N"] | None,
        *,
        is_updated: bool,
    ) -> _Labels:
        sharpness = jnp.asarray(self.model.sharpness, mean.dtype)
        constant = jnp.log1p(sharpness)  # log(H + 1)
        if self.label_update == "exact":
            joint = InstanceLabels(
                mean, prepared.bag_index, prepared.bag_label, sharpness, prepared.num_bags
            )
            by_bag = joint.log_normaliser() - constant
            return _Labels(joint.mean, prepared.bag_weight @ by_bag, None)
        assert logits is not None
        if not is_updated and self.label_update == "mean_field":
            logits = _mean_field_sweep(prepared, mean, logits, sharpness, self.longest_bag)
        elif not is_updated:
            logits = _plug_in_max(prepared, mean, logits, sharpness)
        probability = sigmoid(logits)
        entropy = prepared.sum_over_bags(softplus(logits) + probability * (mean - logits))
        none = jnp.exp(prepared.sum_over_bags(-softplus(logits)))  # Π(1 − π_n)
        match = jnp.where(prepared.bag_label == 1, 1.0 - none, none)
        by_bag = entropy + jnp.log(sharpness) * match - constant
        return _Labels(probability, prepared.bag_weight @ by_bag, logits)

    def guide(self, approximation: InducingApproximation) -> Program:
        """q(u) p(f | u) q(ω) q(y)."""
        model = self.model

        def guide(bags: Bags) -> None:
            rows = model.conditional(bags)
            inducing_value = numpyro.sample("inducing_value", approximation.inducing_distribution())
            mean, explained = _moments_under(approximation, rows)
            mean = model.mean + mean
            tilt = jnp.sqrt(mean**2 + explained + rows.residual_variance)
            with numpyro.plate("instance", bags.num_instances):
                location = model.mean + rows.mean(inducing_value)
                numpyro.sample("evidence", dist.Normal(location, rows.residual_scale))
                numpyro.sample("augmentation", model.mixing.conditional(tilt))
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


@closed_form.register
def _(model: VGPMIL, options: Options) -> InstanceForm:
    update = label_update_of(model, options.label_update, LABEL_UPDATES)
    refuse_starts(model, options.num_starts)
    return InstanceForm(model, options.dtype, update)


def _moments_under(
    approximation: InducingApproximation, rows: SparseConditional
) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    """V m and diag(V S Vᵀ) of rows, under q(u)."""
    root = solve_triangular(rows.cholesky, jnp.asarray(approximation.scale_tril), lower=True)
    explained = jnp.sum((rows.projection @ root) ** 2, axis=1)
    return rows.mean(jnp.asarray(approximation.mean)), explained


def _of_projected(
    model: VGPMIL, q: InducingFactor, narrow: DTypeLike
) -> Callable[[Array, Array, Array], tuple[Panels, tuple[Array, Array]]]:
    """V, k̃ and weights of a block of instances → panels of VᵀΘV, and E f and c."""
    mean, covariance_root = jnp.asarray(q.mean), jnp.asarray(q.covariance_root)
    wide = mean.dtype
    narrow_mean, narrow_root = mean.astype(narrow), covariance_root.astype(narrow)

    def of_rows(
        projection: Array, residual_variance: Array, weight: Array
    ) -> tuple[Panels, tuple[Array, Array]]:
        location = model.mean + (projection @ narrow_mean).astype(wide)
        variance = squared_norms(projection, narrow_root) + residual_variance
        tilt = jnp.sqrt(location**2 + variance)
        theta = weight * model.mixing.expected_precision(tilt)
        # Else XLA works θ_n out anew for each entry of its row of ΘV. With c_n behind the barrier,
        # too, it orders a block's work otherwise: measured, a step took an eighth less.
        theta, tilt = jax.lax.optimization_barrier((theta, tilt))
        panels = gram_panels(projection, theta.astype(narrow))
        return jax.tree.map(lambda leaf: leaf.astype(wide), panels), (location, tilt)

    return of_rows


def _weight_of(bags: Bags, dtype: DTypeLike) -> Float[Array, " B"]:
    if bags.present is None:
        return jnp.ones(bags.num_bags, dtype)
    return jnp.asarray(bags.present).astype(dtype)


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
    largest = largest_of_others(sigmoid(logits), prepared.bag_index, prepared.num_bags)
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
