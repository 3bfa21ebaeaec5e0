"""The sparse Gaussian process (FITC) that every GP model of the zoo shares."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from .kernels import RBF
from .tracing import evaluated_now_unless_traced

__all__ = ["SparseConditional", "sparse_conditional"]


class SparseConditional(NamedTuple):
    """What the instances need to know of the inducing values, in whitened coordinates.

    With K_ZZ = LLᵀ and u = Lε, ε ~ N(0, I), the evidence of instance n given u is
    f_n | u ~ N(V_n ε, k̃_n), independently over n (FITC).

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
        """ε = L⁻¹u."""
        return solve_triangular(self.cholesky, inducing_value, lower=True)

    def mean(self, inducing_value: Float[Array, " M"]) -> Float[Array, " N"]:
        """Au, the conditional mean of the (centred) evidence."""
        return self.projection @ self.whiten(inducing_value)


def sparse_conditional(
    kernel: RBF,
    inducing_points: Float[Array, "M D"] | Float[np.ndarray, "M D"],
    instances: Float[Array, "N D"] | Float[np.ndarray, "N D"],
    jitter: float,
) -> SparseConditional:
    """Condition the evidence of the instances on the inducing values.

    Parameters
    ----------
    kernel : RBF
        With numbers (or traced values) as parameters.
    inducing_points : array (M, D)
        Z.
    instances : array (N, D)
        X.
    jitter : float
        Added to the diagonal of K_ZZ, as a share of the kernel variance.

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
    kernel: RBF,
    inducing_points: Float[Array, "M D"],
    instances: Float[Array, "N D"],
    jitter: Float[Array, ""],
) -> SparseConditional:
    covariance = kernel.covariance(inducing_points, inducing_points)
    floor = kernel.variance * jnp.maximum(jitter, 8 * jnp.finfo(covariance.dtype).eps)
    diagonal = floor * jnp.eye(covariance.shape[0], dtype=covariance.dtype)
    cholesky = jnp.linalg.cholesky(covariance + diagonal)  # K_ZZ = LLᵀ
    cross = kernel.covariance(inducing_points, instances)
    projection = solve_triangular(cholesky, cross, lower=True).T  # V = K_XZ L⁻ᵀ
    explained = jnp.sum(projection**2, axis=1)
    # Rounding can push k̃ below 0 where an instance is an inducing point.
    residual_variance = jnp.maximum(kernel.variance - explained, floor)
    return SparseConditional(cholesky, projection, residual_variance, jnp.sqrt(residual_variance))
