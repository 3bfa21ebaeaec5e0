"""A Gaussian process on the cardinality kernel: labels of bags with their uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from ..datasets.bags import Bags
from .bag_evidence import BagEvidenceModel, FloatType
from .cardinality import check_width
from .cardinality_kernel import CardinalityKernel
from .kernels import Parameter, may_be_positive
from .likelihoods import Likelihood, Logistic
from .sparse_gp import SparseConditional
from .tracing import evaluated_now_unless_traced

__all__ = ["CardinalityGP"]

_LOGISTIC = Logistic()


@dataclass(frozen=True, eq=False)
class CardinalityGP(BagEvidenceModel):
    """A Gaussian process classifier of bags on the cardinality kernel, in place of a machine on it.

    .. code-block:: text

        u               ~ N(0, v (k(Z, Z) + jitter))               inducing_value (inducing_point)
        s_b | u         ~ N(a_bᵀu, k̄_b)                            bag_evidence   (bag)
        T_b | s_b       ~ Bernoulli(σ(s_b))                        bag_label      (bag)

    with the bags that it was made at as Z, a_b = k(Z, Z)⁻¹ k(Z, X_b) and
    k̄_b = v − a_bᵀ v k(Z, X_b): the whole process where these are the bags learned from. Other
    likelihoods are those of `VWSGP`. Make it by `at_bags`.

    ================  ======  =====================================================
    field             symbol  meaning
    ================  ======  =====================================================
    kernel            k       `CardinalityKernel`, 1 for a bag with itself
    instances                 of the bags Z
    bag_index                 the bag of each
    process_variance  v       number or prior; the site ``variance``
    ================  ======  =====================================================

    Parameters
    ----------
    kernel : CardinalityKernel
    instances : array (N, D)
    bag_index : array (N,)
        Non-decreasing, no bag left out.
    process_variance : float or Distribution
    jitter : float
        Added to the diagonal of k(Z, Z).
    likelihood : Likelihood
        As of `VWSGP`.

    Raises
    ------
    ValueError
        If a field is out of range.

    References
    ----------
    The kernel is that of Hajimirsadeghi and Mori (2017), who train a support vector machine on it;
    this process is ours.
    """

    kernel: CardinalityKernel
    instances: Float[np.ndarray, "N D"] = field(repr=False)
    bag_index: Int[np.ndarray, " N"] = field(repr=False)
    process_variance: Parameter = 1.0
    jitter: float = field(default=1e-6, kw_only=True)

    name: ClassVar[str] = "cardinality_gp"
    instance_note: ClassVar[str] = (
        "an instance's probability is that of a bag that holds it alone; the process has no "
        "instance labels"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not may_be_positive(self.process_variance):
            raise ValueError(
                f"CardinalityGP process_variance is {self.process_variance}; expected a positive "
                "finite number or a NumPyro distribution of one, such as LogNormal"
            )
        if not (np.isfinite(self.jitter) and self.jitter >= 0):
            raise ValueError(f"CardinalityGP jitter is {self.jitter}; expected at least 0")
        check_width(len(self.kernel.weights), self.made_at)

    @classmethod
    def at_bags(
        cls,
        kernel: CardinalityKernel,
        bags: Bags,
        variance: Parameter = 1.0,
        *,
        likelihood: Likelihood = _LOGISTIC,
        jitter: float = 1e-6,
    ) -> Self:
        """The process at the bags to learn from.

        Parameters
        ----------
        kernel : CardinalityKernel
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
        return cls(
            kernel,
            np.asarray(bags.instances),
            np.asarray(bags.bag_index),
            variance,
            jitter=jitter,
            likelihood=likelihood,
        )

    # ------------------------------------------------------------------ hyper-parameters

    @property
    def variance(self) -> Parameter:
        """v."""
        return self.process_variance

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """The variance, and those of the likelihood."""
        return {"variance": self.process_variance} | super().hyperparameters

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters (``variance``, those of the likelihood) by given values."""
        variance = values.get("variance", self.process_variance)
        return replace(super().with_hyperparameters(values), process_variance=variance)

    # ------------------------------------------------------------------ the process

    def most_terms(self, bags: Bags) -> int:
        """One: the evidence of a bag has the variance v."""
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

    def accumulated(self, bags: Bags, dtype: FloatType = "float64") -> SparseConditional:
        """a_b and k̄_b in whitened coordinates.

        Parameters
        ----------
        bags : Bags
        dtype : {"float64"}
            Kernels between bags are few: there is nothing to gain by another.

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
        self.check_width(bags)
        # The kernel has no part that could be traced.
        with jax.ensure_compile_time_eval():
            cholesky, projection = self._of_unit_variance(bags)
        with evaluated_now_unless_traced(self.process_variance):
            explained = jnp.sum(projection**2, axis=1)
            floor = jnp.maximum(self.jitter, 8 * jnp.finfo(projection.dtype).eps)
            variance = self.process_variance * jnp.maximum(1.0 - explained, floor)
            scale = jnp.sqrt(jnp.asarray(self.process_variance, projection.dtype))
            return SparseConditional(
                scale * cholesky, scale * projection, variance, jnp.sqrt(variance)
            )

    def conditional(self, bags: Bags) -> SparseConditional:
        """The same of bags that hold one instance each."""
        return self.accumulated(Bags.from_arrays(bags.instances, np.arange(bags.num_instances)))

    def _of_unit_variance(self, bags: Bags) -> tuple[Float[Array, "M M"], Float[Array, "B M"]]:
        """L and V for v = 1."""
        made_at = self.made_at
        between = jnp.asarray(self.kernel(made_at, made_at))
        floor = jnp.maximum(self.jitter, 8 * jnp.finfo(between.dtype).eps)
        cholesky = jnp.linalg.cholesky(between + floor * jnp.eye(made_at.num_bags))
        cross = jnp.asarray(self.kernel(bags, made_at))
        return cholesky, solve_triangular(cholesky, cross.T, lower=True).T  # V = K_bZ L⁻ᵀ

    @property
    def made_at(self) -> Bags:
        """The bags Z, without labels."""
        return Bags.from_arrays(self.instances, self.bag_index)
