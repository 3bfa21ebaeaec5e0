"""A Gaussian process on the cardinality kernel: labels of bags with their uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.linalg import solve_triangular

from ..datasets.arguments import AT_LEAST_ZERO, instance_of
from ..datasets.bags import Bags
from ..datasets.padding import padded
from .model import Draws
from .numerics.tracing import as_pytree, evaluated_apart_from_traces, evaluated_now_unless_traced
from .parts.bag_latent import BagLatentModel, FloatType
from .parts.cardinality_kernel import BagKernel
from .parts.hyperpriors import Parameter, largest_value, positive_or_prior
from .parts.likelihoods import Likelihood, Logistic
from .parts.sparse_gp import SparseConditional

__all__ = ["CardinalityGP"]

_LOGISTIC = Logistic()
# The bag of rows that fill the arrays, to a size that folds share.
_NO_BAG = -1


class UnitRows(NamedTuple):
    """Bags with L, V and k̄ for v = 1, which no hyper-parameter changes.

    Attributes
    ----------
    bags : Bags
    cholesky : array (M, M)
    projection : array (B, M)
    residual_variance : array (B,)
    """

    bags: Bags
    cholesky: Float[np.ndarray | Array, "M M"]
    projection: Float[np.ndarray | Array, "B M"]
    residual_variance: Float[np.ndarray | Array, " B"]


@as_pytree()
@dataclass(frozen=True, eq=False)
class CardinalityGP(BagLatentModel):
    """A Gaussian process classifier of bags on the cardinality kernel.

    .. code-block:: text

        u               ~ N(0, v (k(Z, Z) + jitter))               inducing_value (inducing_point)
        s_b | u         ~ N(a_bᵀu, k̄_b)                            bag_latent   (bag)
        T_b | s_b       ~ Bernoulli(σ(s_b))                        bag_label      (bag)

    with the bags that it was made at as Z, a_b = k(Z, Z)⁻¹ k(Z, X_b) and
    k̄_b = v − a_bᵀ v k(Z, X_b). It is the exact process where Z are the training bags. Other
    likelihoods are those of `VWSGP`. Make it by `at_bags`.

    ================  ======  =====================================================
    field             symbol  meaning
    ================  ======  =====================================================
    kernel            k       `CardinalityKernel` or `MeanCardinalityKernel`
    instances                 of the bags Z
    bag_index                 the bag of each
    process_variance  v       number or prior; the site ``variance``
    ================  ======  =====================================================

    Parameters
    ----------
    kernel : CardinalityKernel or MeanCardinalityKernel
        Or another `BagKernel`: 1 between a bag and itself.
    instances : array (N, D)
    bag_index : array (N,)
        Non-decreasing; every bag has an instance. −1 of rows that fill the arrays, to a size that
        folds share.
    process_variance : float or Distribution
    jitter : float
        Added to the diagonal of k(Z, Z).
    likelihood : Likelihood
        As in `VWSGP`.

    Raises
    ------
    ValueError
        If a field is out of range.

    References
    ----------
    The kernel is that of Hajimirsadeghi and Mori (2017), who train a support vector machine on it;
    this process is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import RBF, CardinalityGP, CardinalityKernel, CardinalityModel
    >>> train, test = load("kandemir2014").standardize().split(0.7, seed=0)
    >>> kernel = CardinalityKernel(CardinalityModel(), np.zeros(2), RBF(1.0, 0.5))
    >>> model = CardinalityGP.at_bags(kernel, train, variance=4.0)
    >>> coordinate_ascent(model, train, seed=0).predict(test).bag_probability[:3].round(1)
    array([0.8, 0.7, 0.5])
    """

    kernel: Annotated[
        BagKernel, instance_of(BagKernel, expected="a kernel such as CardinalityKernel")
    ]
    instances: Float[np.ndarray | Array, "N D"] = field(repr=False)
    bag_index: Int[np.ndarray | Array, " N"] = field(repr=False)
    process_variance: Annotated[Parameter, positive_or_prior("LogNormal")] = 1.0
    jitter: Annotated[float | Float[Array, ""], AT_LEAST_ZERO] = field(default=1e-6, kw_only=True)

    name: ClassVar[str] = "cardinality_gp"
    instance_note: ClassVar[str] = (
        "an instance's probability is that of a bag that holds it alone; the process has no "
        "instance labels"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kernel.check_width(self.made_at)

    @classmethod
    def at_bags(
        cls,
        kernel: BagKernel,
        bags: Bags,
        variance: Parameter = 1.0,
        *,
        likelihood: Likelihood = _LOGISTIC,
        jitter: float = 1e-6,
    ) -> Self:
        """The process at the bags to learn from.

        Parameters
        ----------
        kernel : CardinalityKernel or MeanCardinalityKernel
        bags : Bags
            Their labels are not used.
        variance : float or Distribution
            v; a NumPyro distribution makes it the site ``variance``, to be inferred.
        likelihood : Likelihood
        jitter : float

        Returns
        -------
        CardinalityGP
        """
        filled = padded(bags.without_labels())
        there = np.arange(filled.num_instances) < bags.num_instances
        return cls(
            kernel,
            np.asarray(filled.instances),
            np.where(there, filled.bag_index, _NO_BAG),
            variance,
            jitter=jitter,
            likelihood=likelihood,
        )

    # ------------------------------------------------------------------ hyper-parameters

    def largest_variance(self, bags: Bags | None, draws: Draws) -> float:
        """Largest prior variance v of s_b."""
        return largest_value(draws.get("variance", self.process_variance))

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """The variance, and those of the likelihood."""
        return {"variance": self.process_variance} | super().hyperparameters

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters (``variance``, those of the likelihood) by given values."""
        variance = values.get("variance", self.process_variance)
        return replace(super().with_hyperparameters(values), process_variance=variance)

    @property
    def learned_from_labels(self) -> str:
        """The kernel, if it may be learned from the labels of the bags Z."""
        return self.kernel.learned_from_labels_of(self.made_at)

    # ------------------------------------------------------------------ the process

    def most_terms(self, bags: Bags) -> int:
        """One: s_b has the prior variance v."""
        return 1

    def check_width(self, bags: Bags) -> None:
        """Refuse bags that this model was not made for.

        Raises
        ------
        ValueError
            If the bags have another number of features.
        """
        expected, found = self.instances.shape[1], bags.num_features
        if expected != found:
            raise ValueError(
                f"bags have {found} features, but this process was made at bags with {expected}; "
                f"pass bags with the {expected} features that the model was made for"
            )

    @property
    def num_inducing(self) -> int:
        """M, the number of bags Z."""
        return self.made_at.num_bags

    def inducing_cholesky(self) -> Float[np.ndarray, "M M"]:
        """L, with K_ZZ = LLᵀ."""
        made_at = self.made_at
        return np.sqrt(float(self.process_variance)) * self._unit_cholesky(made_at)

    def without_hyperparameters(self, bags: Bags | UnitRows) -> UnitRows:
        """The kernel between bags for v = 1, computed on the host.

        Raises
        ------
        ValueError
            If the bags have another number of features.
        """
        if isinstance(bags, UnitRows):
            return bags
        self.check_width(bags)
        present = bags
        if bags.present is not None:
            present = bags.select(np.flatnonzero(np.asarray(bags.present)))
        made_at = self.made_at
        cholesky = self._unit_cholesky(made_at)
        with evaluated_apart_from_traces():
            cross = self.kernel(present, made_at)
        projection = np.zeros((bags.num_bags, made_at.num_bags))
        # V = K_bZ L⁻ᵀ
        projection[: len(cross)] = solve_triangular(cholesky, cross.T, lower=True).T
        residual = np.maximum(1.0 - np.sum(projection**2, axis=1), self._floor)
        return UnitRows(bags, cholesky, projection, residual)

    def singles_without_hyperparameters(self, bags: Bags) -> UnitRows:
        """The kernel between Z and bags of one instance each, for v = 1."""
        singles = Bags.from_arrays(bags.instances, np.arange(bags.num_instances))
        return self.without_hyperparameters(singles)

    def accumulated(
        self, bags: Bags | UnitRows, dtype: FloatType = "float64", projector: None = None
    ) -> SparseConditional:
        """a_b and k̄_b in whitened coordinates.

        Parameters
        ----------
        bags : Bags
            Or the result of `without_hyperparameters`.
        dtype : {"float64"}
            Kernels between bags are small: another type would save nothing.
        projector : None
            There are no chunks to share one.

        Returns
        -------
        SparseConditional

        Raises
        ------
        ValueError
            If the bags have another number of features, or another type is asked for.
        """
        if dtype != "float64":
            raise ValueError(f"dtype is {dtype!r}; expected 'float64' of a CardinalityGP")
        _, cholesky, projection, residual = self.without_hyperparameters(bags)
        variance = self.process_variance
        with evaluated_now_unless_traced(variance, projection):
            # With numbers NumPy computes it, without compilation.
            is_number = not isinstance(variance, jax.Array)
            scale = np.sqrt(float(variance)) if is_number else jnp.sqrt(variance)
            deviation = jnp.sqrt(residual) if isinstance(residual, jax.Array) else np.sqrt(residual)
            parts = scale * cholesky, scale * projection, variance * residual, scale * deviation
            return SparseConditional(*map(jnp.asarray, parts))

    def conditional(self, bags: Bags | UnitRows) -> SparseConditional:
        """a and k̄ of bags of one instance each, in whitened coordinates."""
        if isinstance(bags, UnitRows):
            return self.accumulated(bags)
        return self.accumulated(self.singles_without_hyperparameters(bags))

    @property
    def _floor(self) -> float:
        return max(float(self.jitter), 8 * float(np.finfo(np.float64).eps))

    def _unit_cholesky(self, made_at: Bags) -> Float[np.ndarray, "M M"]:
        with evaluated_apart_from_traces():
            between = self.kernel(made_at, made_at)
        return np.linalg.cholesky(between + self._floor * np.eye(made_at.num_bags))

    @property
    def made_at(self) -> Bags:
        """The bags Z, without labels."""
        there = np.asarray(self.bag_index) != _NO_BAG
        return Bags.from_arrays(self.instances[there], self.bag_index[there])
