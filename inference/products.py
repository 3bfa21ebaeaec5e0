"""The two matrix products that closed-form updates of sparse GPs are made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

__all__ = ["row_sums_of_squares", "weighted_gram"]

# Rows of a block: small enough to stay in a core's cache between its two uses.
_ROWS = 700


def weighted_gram(matrix: Float[Array, "N M"], weights: Float[Array, " N"]) -> Float[Array, "M M"]:
    """VᵀΘV = Σ_n θ_n V_n V_nᵀ, in blocks of rows so that ΘV is never held whole.

    Parameters
    ----------
    matrix : array (N, M)
        V.
    weights : array (N,)
        The diagonal of Θ.

    Returns
    -------
    array (M, M)
    """
    arrays, half = (matrix, weights), matrix.shape[1] // 2
    length = min(_ROWS, matrix.shape[0])
    whole = matrix.shape[0] // length

    def lower_panels(rows: Array, theta: Array) -> tuple[Array, Array]:
        # A quarter of the work is saved: the upper right is the lower left, transposed.
        weighted = theta[:, None] * rows
        return rows[:, :half].T @ weighted[:, :half], rows[:, half:].T @ weighted

    def add_block(block: Array, panels: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, theta = (jax.lax.dynamic_slice_in_dim(a, block * length, length) for a in arrays)
        return jax.tree.map(jnp.add, panels, lower_panels(rows, theta))

    rest = lower_panels(*(a[whole * length :] for a in arrays))
    top, bottom = jax.lax.fori_loop(0, whole, add_block, rest)
    return jnp.vstack([jnp.hstack([top, bottom[:, :half].T]), bottom])


def row_sums_of_squares(
    matrix: Float[Array, "N M"], cholesky: Float[Array, "M M"]
) -> Float[Array, " N"]:
    """diag(V P⁻¹ Vᵀ) = ‖R⁻¹V_nᵀ‖² with P = RRᵀ.

    Parameters
    ----------
    matrix : array (N, M)
        V.
    cholesky : array (M, M)
        R, lower triangular.

    Returns
    -------
    array (N,)
    """
    # R⁻ᵀ once: a product is faster than a triangular solve, and XLA squares and sums it as it goes.
    identity = jnp.eye(cholesky.shape[0], dtype=cholesky.dtype)
    whitener = solve_triangular(cholesky, identity, lower=True).T
    return jnp.sum((matrix @ whitener) ** 2, axis=1)
