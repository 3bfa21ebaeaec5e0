"""The sparse Gaussian process (FITC) of all GP models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints
from numpyro.distributions.transforms import LowerCholeskyAffine
from sklearn.cluster import KMeans

from ...datasets.arguments import AT_LEAST_ZERO, check_counts, checked_seed, instance_of
from ...datasets.bags import Bags
from ...datasets.checks import as_numbers, check_squares, num_distinct_rows
from ...datasets.padding import padded
from ..model import CLOSED_FORM_ENGINES, Draws, ModelDefaults, observations, random_key
from ..numerics.fields import check_fields
from ..numerics.memory import check_memory
from ..numerics.products import block_length, cholesky_with_inverse, times_triangle
from ..numerics.quadrature import on_grid
from ..numerics.threads import one_thread
from ..numerics.tracing import evaluated_now_unless_traced
from .hyperpriors import Parameter, Parameters
from .kernels import RBF, Cosine, Kernel, Linear, Matern32, Matern52
from .settings import Choice, Setting

__all__ = [
    "USUAL_VARIANCE",
    "InducingModel",
    "PreparedBags",
    "Projector",
    "SparseConditional",
    "SparseGPModel",
    "accumulated_conditional",
    "draw_inducing_value",
    "largest_scale",
    "sparse_conditional",
]

# Prior variance of a latent value in `for_bags`: an sd of 2.2 logits.
USUAL_VARIANCE = 5.0
# Prior variance below which no feature matters: odds of labels differ by a tenth.
_NO_VARIANCE = 0.01
# By their names, which are theirs in small letters.
_KERNELS = (RBF, Matern32, Matern52, Cosine, Linear)
# Up to this residual sd of a sum one quadrature rule serves all predictions.
_SMALL_SCALE = 4.0
# Numbers of K_XZ, 4 MiB of them, up to which sums over bags are made without a loop. Gradients then
# compute nothing twice, and the compiler takes distances, which no hyper-parameter changes, out of
# a sampler's loop.
_WITHOUT_LOOP = 2**19
# Most instances for k-means.
_MOST_CLUSTERED = 2**14


class SparseConditional(NamedTuple):
    """Latent values of instances given the inducing values, in whitened coordinates.

    With K_ZZ = LLᵀ and u = Lε, ε ~ N(0, I), the latent value of instance n given u is
    f_n | u ~ N(V_n ε, k̃_n), independently over n (FITC). Where latent values are summed over
    bags the rows are bags: Σ V_n and Σ k̃_n.

    Attributes
    ----------
    cholesky : array (M, M)
        L, lower triangular.
    projection : array (N, M)
        V = K_XZ L⁻ᵀ, so that Au = Vε with the paper's A = K_XZ K_ZZ⁻¹.
    residual_variance : array (N,)
        k̃_n = k(x_n, x_n) − ‖V_n‖² ≥ 0.
    residual_scale : array (N,)
        √k̃_n.
    """

    cholesky: Float[Array, "M M"]
    projection: Float[Array, "N M"]
    residual_variance: Float[Array, " N"]
    residual_scale: Float[Array, " N"]

    def whiten(self, inducing_value: Float[Array, " M"]) -> Float[Array, " M"]:
        """Whitened inducing values ε = L⁻¹u."""
        return solve_triangular(self.cholesky, inducing_value, lower=True)

    def mean(self, inducing_value: Float[Array, " M"]) -> Float[Array, " N"]:
        """Au, the conditional mean of the (centred) latent values."""
        return self.projection @ self.whiten(inducing_value)


class PreparedBags(NamedTuple):
    """Bags with quantities that the programs of a sparse GP model need, evaluated once.

    Attributes
    ----------
    bags : Bags
    conditional : SparseConditional or None
        Of the instances, or of the bags where latent values are summed over them; None where a
        hyper-parameter has a prior, as the program then computes it.
    rule : pytree
        Quadrature rule of the model, for all residual scales.
    rows : pytree or None
        Inputs of the conditional where these are not the bags themselves.
    """

    bags: Bags
    conditional: SparseConditional | None
    rule: Any
    rows: Any = None

    @property
    def conditioned_on(self) -> Any:
        """Inputs of the conditional under other hyper-parameters."""
        return self.bags if self.rows is None else self.rows


def sparse_conditional(
    kernel: Kernel,
    inducing_points: Float[Array, "M D"] | Float[np.ndarray, "M D"],
    instances: Float[Array, "N D"] | Float[np.ndarray, "N D"],
    jitter: float | Float[Array, ""],
) -> SparseConditional:
    """Condition the latent values of the instances on the inducing values.

    Parameters
    ----------
    kernel : Kernel
        With numbers (or traced values) as parameters.
    inducing_points : array (M, D)
        Z.
    instances : array (N, D)
        X.
    jitter : float
        Added to the diagonal of K_ZZ, as a fraction of the average number there.

    Returns
    -------
    SparseConditional

    Notes
    -----
    Where nothing is traced the result is computed at once, even while an outer function is being
    compiled: a sampler with a fixed kernel then never evaluates it again.

    References
    ----------
    Castro-Macías et al. (2024), equations 2 and 3; Snelson and Ghahramani (2006).
    """
    with evaluated_now_unless_traced(kernel, inducing_points, instances):
        return _sparse_conditional(kernel, inducing_points, instances, jitter)


@jax.jit
def _sparse_conditional(
    kernel: Kernel,
    inducing_points: Float[Array, "M D"],
    instances: Float[Array, "N D"],
    jitter: Float[Array, ""],
) -> SparseConditional:
    cholesky, whitener, floor = _whitening(kernel, inducing_points, jitter)
    # A product, as of a `Projector`: where hyper-parameters are drawn, it comes at each gradient.
    projection = kernel.covariance(instances, inducing_points) @ whitener  # V
    explained = jnp.sum(projection**2, axis=1)
    residual_variance = _residual_variance(kernel.variance_at(instances), explained, floor)
    return SparseConditional(cholesky, projection, residual_variance, jnp.sqrt(residual_variance))


@jax.jit
def _whitening(
    kernel: Kernel, inducing_points: Float[Array, "M D"], jitter: Float[Array, ""]
) -> tuple[Float[Array, "M M"], Float[Array, "M M"], Float[Array, ""]]:
    """The whitening transform: L with K_ZZ + jitter = LLᵀ, L⁻ᵀ, and the jitter."""
    covariance = kernel.covariance(inducing_points, inducing_points)
    average = kernel.variance_at(inducing_points).mean()
    floor = average * jnp.maximum(jitter, 8 * jnp.finfo(covariance.dtype).eps)
    diagonal = floor * jnp.eye(covariance.shape[0], dtype=covariance.dtype)
    return *cholesky_with_inverse(covariance + diagonal), floor


def _residual_variance(
    variance: Float[Array, " N"], explained: Float[Array, " N"], floor: Float[Array, ""]
) -> Float[Array, " N"]:
    """k̃ = k(x_n, x_n) − ‖V_n‖²; rounding can push it below 0 where x_n is an inducing point."""
    return jnp.maximum(variance - explained, floor)


def accumulated_conditional(
    projector: Projector, bags: Bags, dtype: Literal["float64", "float32"] = "float64"
) -> SparseConditional:
    """Condition the sums of latent values of bags, s_b = Σ_{n∈b} f_n, on the inducing values.

    Given u the f_n are independent, so s_b | u ~ N(a_bᵀu, k̄_b) with a_b = Σ A_n and
    k̄_b = Σ k̃_n, computed in one pass over the instances.

    Parameters
    ----------
    projector : Projector
        Of the kernel and the inducing points.
    bags : Bags
    dtype : {"float64", "float32"}
        Of the kernel between instances and inducing points; under 64 bit, sums over instances and
        all that is M × M are 64-bit in any case.

    Returns
    -------
    SparseConditional
        With a row for each bag: Σ V_n and k̄_b. Instances are taken in chunks, so that no N × M
        matrix is ever stored.

    References
    ----------
    Kandemir et al. (2016), section 3.
    """
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype is {dtype!r}; expected 'float64' or 'float32'")
    with evaluated_now_unless_traced(projector, bags.instances):
        # Without the labels, which may be traced where the instances are not.
        return _accumulated_conditional(projector, bags.without_labels(), dtype)


@partial(jax.jit, static_argnames="dtype")
def _accumulated_conditional(projector: Projector, bags: Bags, dtype: str) -> SparseConditional:
    cholesky = projector.cholesky
    narrow = jax.dtypes.canonicalize_dtype(dtype)  # without 64 bit there is 32 bit only
    narrowed = jax.tree.map(lambda leaf: jnp.asarray(leaf, narrow), projector)
    cross_sums = _CrossSums(narrowed, num_bags=bags.num_bags, total_dtype=cholesky.dtype)
    cross, variance = cross_sums.over(jnp.asarray(bags.instances), jnp.asarray(bags.bag_index))
    projection = projector.projection(cross)  # Σ V_n = (Σ K_nZ) L⁻ᵀ
    if bags.present is not None:
        # One absent bag holds all the instances that fill: its variance would set the quadrature.
        variance = jnp.where(bags.present, variance, projector.floor)
    return SparseConditional(cholesky, projection, variance, jnp.sqrt(variance))


class Projector(NamedTuple):
    """Kernel, inducing points and L⁻ᵀ, from which V_n and k̃_n of blocks of instances follow.

    A product with L⁻ᵀ replaces the triangular solve, which is several times slower. Its rounding
    error is far below the jitter.
    """

    kernel: Kernel
    inducing_points: Float[Array, "M D"]  # Z
    cholesky: Float[Array, "M M"]  # L
    whitener: Float[Array, "M M"]  # L⁻ᵀ
    floor: Float[Array, ""]  # of k̃

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        inducing_points: Float[Array, "M D"] | Float[np.ndarray, "M D"],
        jitter: float | Float[Array, ""],
    ) -> Self:
        """Projector of a kernel and inducing points, computed before chunk programs compile."""
        with evaluated_now_unless_traced(kernel, inducing_points, jitter):
            points = jnp.asarray(inducing_points)
            return cls(kernel, points, *_whitening(kernel, points, jnp.asarray(jitter)))

    def cross(self, instances: Float[Array, "R D"]) -> Float[Array, "R M"]:
        """Kernel K_nZ between instances and inducing points."""
        return self.kernel.covariance(instances.astype(self.whitener.dtype), self.inducing_points)

    def projection(self, cross: Float[Array, "R M"]) -> Float[Array, "R M"]:
        """Projection V = K_XZ L⁻ᵀ of instances."""
        return jnp.concatenate(self.panels(cross), axis=1)

    def panels(self, cross: Float[Array, "R M"]) -> list[Float[Array, "R _"]]:
        """The columns of V, in panels."""
        return times_triangle(cross, self.whitener)

    def residual_variance(
        self, instances: Float[Array, "R D"], *columns: Float[Array, "R _"]
    ) -> Float[Array, " R"]:
        """k̃ of instances, with their V or its panels."""
        explained = jnp.sum(jnp.stack([jnp.sum(part**2, axis=1) for part in columns]), axis=0)
        variance = self.kernel.variance_at(instances.astype(self.whitener.dtype))
        return _residual_variance(variance, explained, self.floor)


type _Totals = tuple[Float[Array, "B M"], Float[Array, " B"]]


class _CrossSums(NamedTuple):
    """Σ_{n∈b} K_nZ and Σ_{n∈b} k̃_n, in blocks of instances; totals have their own dtype."""

    projector: Projector
    num_bags: int
    total_dtype: Any

    def over(self, instances: Float[Array, "N D"], bag_index: Int[Array, " N"]) -> _Totals:
        """Totals over all instances: whole blocks in a loop, then the rest."""
        size = instances.shape[0]
        if size * len(self.projector.whitener) <= _WITHOUT_LOOP:
            return self._add_block(self._nothing(), instances, bag_index)
        length = block_length(size)
        whole = size // length

        @jax.checkpoint  # a gradient recomputes each block and stores none
        def add(totals: _Totals, rows: Array, bag: Array) -> _Totals:
            return self._add_block(totals, rows, bag)

        def add_whole(totals: _Totals, number: Array) -> tuple[_Totals, None]:
            rows, bag = (
                jax.lax.dynamic_slice_in_dim(array, number * length, length)
                for array in (instances, bag_index)
            )
            return add(totals, rows, bag), None

        totals, _ = jax.lax.scan(add_whole, self._nothing(), jnp.arange(whole))
        rest = slice(whole * length, size)
        return add(totals, instances[rest], bag_index[rest]) if whole * length < size else totals

    def _nothing(self) -> _Totals:
        size = len(self.projector.whitener)
        return (
            jnp.zeros((self.num_bags, size), self.total_dtype),
            jnp.zeros(self.num_bags, self.total_dtype),
        )

    def _add_block(
        self, totals: _Totals, rows: Float[Array, "R D"], bag: Int[Array, " R"]
    ) -> _Totals:
        cross = self.projector.cross(rows)
        variance = self.projector.residual_variance(rows, *self.projector.panels(cross))

        def by_bag(total: Float[Array, "B ..."], values: Float[Array, "R ..."]) -> Array:
            wide = values.astype(self.total_dtype)
            return total.at[bag].add(wide, indices_are_sorted=True, mode="promise_in_bounds")

        return by_bag(totals[0], cross), by_bag(totals[1], variance)


class InducingModel(ModelDefaults):
    """Base of all models with values at inducing points, for any kernel."""

    name: ClassVar[str]
    usual_engines: ClassVar[tuple[str, ...]] = CLOSED_FORM_ENGINES

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def hyperparameters(self) -> dict[str, Parameters]:
        """All hyper-parameters, numbers or distributions, by site name."""
        return {}

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters by given values; other names are ignored."""
        return self

    def support_of(self, name: str) -> constraints.Constraint:
        """Values that a hyper-parameter may have."""
        return constraints.real if name == "mean" else constraints.positive

    def largest_variance(self, bags: Bags | None, draws: Draws) -> float:
        """Largest prior variance of a latent value, under any of the draws or under the priors.

        Of the instances of bags; of what the model was made at where ``bags`` is None.
        """
        raise NotImplementedError

    @property
    def ignores_features(self) -> bool:
        """Whether the prior sd of the latent function is below 0.1, a tenth of a logit."""
        return not self.priors and self.largest_variance(None, {}) < _NO_VARIANCE

    @property
    def latent_sites(self) -> tuple[str, ...]:
        """The inducing values, and the hyper-parameters that have a prior."""
        return ("inducing_value", *self.priors)

    def prepare(self, bags: Bags) -> PreparedBags:
        """Bags padded to sizes that programs are compiled for, with fixed quantities evaluated.

        Parameters
        ----------
        bags : Bags

        Returns
        -------
        PreparedBags
            Programs take it in place of the bags, with the same density.
        """
        return self.unpadded(padded(bags))

    def unpadded(self, bags: Bags | PreparedBags) -> PreparedBags:
        """Fixed quantities of bags without padding; prepared bags are returned."""
        if isinstance(bags, PreparedBags):
            return bags
        rows = self.without_hyperparameters(bags)
        conditional = None if self.priors else self.conditional_of_rows(rows)
        rule = self.rule_for(conditional, bags)
        return PreparedBags(bags, conditional, rule, None if rows is bags else rows)

    def without_hyperparameters(self, bags: Bags) -> Any:
        """Quantities of the bags that no hyper-parameter changes: a pytree in their place."""
        return bags

    def projector(self) -> Any:
        """Quantities that rows of all chunks have in common; None if there are none."""
        return None

    def conditional_of_rows(self, bags: Any) -> SparseConditional:
        """Conditional distribution of the likelihood's rows given the inducing values."""
        raise NotImplementedError

    def rule_for(self, conditional: SparseConditional | None, bags: Bags) -> Any:
        """A quadrature rule for all residual scales, known or to be inferred."""
        raise NotImplementedError

    def given_inducing_values(self, given: PreparedBags) -> SparseConditional:
        """The conditional of prepared bags, under hyper-parameters that may have been drawn."""
        return given.conditional or self.conditional_of_rows(given.conditioned_on)

    def completed(self, draws: Draws, bags: Bags, seed: int | Array) -> tuple[np.ndarray, ...]:
        """Draw the sites that ``marginal()`` integrated out, for each draw of the latent sites.

        Raises
        ------
        ValueError
            If the bags have no labels (or targets).
        """
        observations(self, bags, "complete()")
        sites = {name: np.asarray(draws[name]) for name in self.latent_sites}
        with jax.enable_x64(True):
            keys = jax.random.split(random_key(seed), len(sites["inducing_value"]))
            found = _completed(self, self.prepare(bags), keys, sites)
            return tuple(np.asarray(one) for one in found)

    def complete_one(
        self, given: PreparedBags, key: Array, site: dict[str, Float[Array, "..."]]
    ) -> tuple[Array, ...]:
        """Draw the sites that ``marginal()`` integrated out, for one draw of the latent sites."""
        raise NotImplementedError

    def draw_hyperparameters(self) -> Self:
        """Sample a site for each prior; return the model with the drawn values."""
        drawn = {name: numpyro.sample(name, prior) for name, prior in self.priors.items()}
        return self.with_hyperparameters(drawn)


@dataclass(frozen=True, eq=False)
class SparseGPModel(InducingModel):
    """Base of sparse Gaussian process models: u ~ N(0, K_ZZ) and its kernel.

    Parameters
    ----------
    kernel : Kernel
    inducing_points : array (M, D)
        Z.
    jitter : float
        Added to the diagonal of K_ZZ, as a fraction of the average number there.

    Raises
    ------
    ValueError
        If a field is out of range.
    """

    kernel: Annotated[Kernel, instance_of(Kernel, expected="a kernel such as RBF(2.0, 1.0)")]
    inducing_points: Float[np.ndarray | Array, "M D"] = field(repr=False)
    jitter: Annotated[float | Float[Array, ""], AT_LEAST_ZERO] = field(default=1e-6, kw_only=True)

    fields_for_bags: ClassVar[tuple[str, ...]] = ("kernel", "inducing_points")
    settings: ClassVar[Mapping[str, Setting]] = {
        "kernel": Choice({kind.__name__.lower(): kind for kind in _KERNELS})
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        points = as_numbers(self.inducing_points, f"{name} inducing_points")
        if points.ndim != 2 or points.size == 0:
            raise ValueError(
                f"{name} inducing_points have shape {points.shape}; expected (M, D), one row for "
                "each inducing point"
            )
        if not np.isfinite(points).all():
            row = int(np.flatnonzero(~np.isfinite(points).all(axis=1))[0])
            raise ValueError(
                f"{name} inducing_points row {row} has a NaN or an infinity; expected numbers"
            )
        self.kernel.check_width(points.shape[1])
        points.setflags(write=False)
        object.__setattr__(self, "inducing_points", points)

    @classmethod
    def for_bags(
        cls,
        bags: Bags,
        num_inducing: int | None = 50,
        variance: Parameter = USUAL_VARIANCE,
        length_scale: Parameters | None = None,
        seed: int = 0,
        *,
        kernel: type[Kernel] | Kernel = RBF,
        **fields: Any,
    ) -> Self:
        """A model with defaults from the data: k-means centres as Z, ℓ the median distance.

        The default variance, an sd of 2.2 logits, lets features change the odds of an instance
        tenfold. Of more than 16,384 instances k-means takes every second, third, ….

        Parameters
        ----------
        bags : Bags
            Training bags, features on comparable scales (``bags.standardize()``).
        num_inducing : int or None
            M, the number of inducing points; None for one at each distinct instance, which makes
            the process of the training instances exact.
        variance, length_scale : float or Distribution
            Of the kernel; ``length_scale=None`` means the median distance between instances. An
            array is a length scale for each feature (automatic relevance determination). Of
            ``Linear`` the variance is that of an average instance.
        seed : int
            Seed of k-means.
        kernel : type of Kernel, or Kernel
            ``RBF``, ``Matern32``, ``Matern52``, ``Cosine`` or ``Linear``, or a kernel with
            parameters of its own such as ``RBF(2.0, 5.0) + Linear(0.1)``.
        **fields
            The other fields of the model.

        Returns
        -------
        Self

        Raises
        ------
        ValueError
            If there are fewer distinct instances than inducing points, an argument is out of
            range, or the variance or the length scale is given of a kernel that has its own.
        TypeError
            If the seed is not an integer.
        """
        seed = checked_seed(seed)
        check_squares(bags.instances)
        instances = np.asarray(bags.instances)
        points = _points(instances, num_inducing, seed)
        made = _kernel(kernel, variance, length_scale, instances)
        return cls(kernel=made, inducing_points=points, **fields)

    @classmethod
    def as_published(
        cls, bags: Bags, num_inducing: int | None = 50, seed: int = 0, **fields: Any
    ) -> Self:
        """A model with the papers' kernel, ℓ = √D and v = 0.5, in the place of the defaults.

        Parameters
        ----------
        bags, num_inducing, seed
            As in `for_bags`.
        **fields
            Arguments of `for_bags` that differ from the papers.

        Returns
        -------
        Self

        References
        ----------
        Castro-Macías et al. (2024), section 5: (v, l) = (0.5, D), where our ℓ² is their l.
        Kandemir et al. (2016), section 4.4: ℓ = √D; they do not tell v.
        """
        published = {"variance": 0.5, "length_scale": bags.num_features**0.5}
        return cls.for_bags(bags, num_inducing, seed=seed, **(published | fields))

    @property
    def hyperparameters(self) -> dict[str, Parameters]:
        """All hyper-parameters, numbers or distributions, by site name."""
        return super().hyperparameters | self.kernel.parameters

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters by given values; other names are ignored."""
        return replace(super().with_hyperparameters(values), kernel=self.kernel.with_values(values))

    @property
    def num_inducing(self) -> int:
        """Number M of inducing points."""
        return self.inducing_points.shape[0]

    def largest_variance(self, bags: Bags | None, draws: Draws) -> float:
        """Largest k(x, x) of the instances, or of the inducing points."""
        points = self.inducing_points if bags is None else bags.instances
        return self.kernel.largest_variance(points, draws)

    def projector(self) -> Projector:
        """Projector from instances to V and k̃."""
        return Projector.of(self.kernel, self.inducing_points, self.jitter)

    def inducing_cholesky(self) -> Float[Array, "M M"]:
        """L, with K_ZZ = LLᵀ."""
        with jax.enable_x64(True):
            return _cholesky(self)

    def check_width(self, bags: Bags) -> None:
        """Raise an error for bags that this model was not made for.

        Raises
        ------
        ValueError
            If the bags have another number of features than the inducing points.
        """
        expected, found = self.inducing_points.shape[1], bags.instances.shape[1]
        if expected != found:
            raise ValueError(
                f"bags have {found} features, but the inducing points of this model have "
                f"{expected}; pass bags with the {expected} features that the model was made for"
            )

    def conditional(self, bags: Bags) -> SparseConditional:
        """Conditional distribution of the instances of bags given the inducing values.

        Raises
        ------
        ValueError
            If the bags have another number of features than the inducing points.
        MemoryError
            If there is not enough memory for K_NZ.
        """
        self.check_width(bags)
        check_memory(
            bags.num_instances * self.num_inducing,
            f"the kernel between {bags.num_instances:,} instances and {self.num_inducing:,} "
            "inducing points",
            "take fewer of these, or fit by coordinate_ascent, which does not keep it",
        )
        return sparse_conditional(self.kernel, self.inducing_points, bags.instances, self.jitter)


def _kernel(
    given: type[Kernel] | Kernel,
    variance: Parameter,
    length_scale: Parameters | None,
    instances: Float[np.ndarray, "N D"],
) -> Kernel:
    """The kernel given, or one of its class with parameters for the instances."""
    if isinstance(given, type) and issubclass(given, Kernel):
        return given.for_instances(instances, variance, length_scale)
    if not isinstance(given, Kernel):
        raise ValueError(
            f"kernel is {given!r}; expected a class such as RBF or Cosine, or a kernel such as "
            "RBF(2.0, 5.0)"
        )
    if length_scale is not None or not (isinstance(variance, float) and variance == USUAL_VARIANCE):
        raise ValueError(
            f"variance is {variance} and length_scale is {length_scale}, but kernel is {given}, "
            "which has its own; leave them out, or give the class of the kernel"
        )
    return given


def _points(
    instances: Float[np.ndarray, "N D"], num_inducing: int | None, seed: int
) -> Float[np.ndarray, "M D"]:
    """Centres of k-means, or all distinct instances."""
    if num_inducing is None:
        return np.unique(instances, axis=0)
    check_counts(num_inducing=num_inducing)
    num_distinct = num_distinct_rows(instances)
    if num_inducing > num_distinct:
        raise ValueError(
            f"num_inducing is {num_inducing}; expected between 1 and {num_distinct}, the number "
            "of distinct instances in these bags"
        )
    stride = ceil(len(instances) / _MOST_CLUSTERED)
    sample = instances[::stride]
    if stride > 1 and num_distinct_rows(sample) < num_inducing:
        sample = np.unique(instances, axis=0)
    with one_thread():
        return KMeans(num_inducing, n_init=1, random_state=seed).fit(sample).cluster_centers_


@jax.jit
def _cholesky(model: SparseGPModel) -> Float[Array, "M M"]:
    points = jnp.asarray(model.inducing_points)
    return _whitening(model.kernel, points, jnp.asarray(model.jitter))[0]


@jax.jit
def _completed(
    model: Any, given: PreparedBags, keys: Array, sites: dict[str, Array]
) -> tuple[Array, ...]:
    return jax.lax.map(lambda one: model.complete_one(given, *one), (keys, sites))


def draw_inducing_value(cholesky: Float[Array, "M M"]) -> Float[Array, " M"]:
    """The site ``inducing_value``, u ~ N(0, LLᵀ), in a form that `TransformReparam` whitens."""
    whitened = dist.Normal(jnp.zeros(cholesky.shape[0]), 1.0).to_event(1)
    unwhiten = LowerCholeskyAffine(jnp.zeros_like(whitened.mean), cholesky)
    return numpyro.sample("inducing_value", dist.TransformedDistribution(whitened, unwhiten))


def largest_scale(largest_variance: float, num_terms: int = 1) -> float:
    """Largest residual sd of a sum of ``num_terms`` terms in predictions.

    A program is compiled for each quadrature rule. So variances, which may be learned or drawn, are
    rounded up to a coarse grid.
    """
    smallest = 1.0 if num_terms == 1 else _SMALL_SCALE
    return on_grid(max(float(np.sqrt(num_terms * largest_variance)), smallest), ratio=2.0)
