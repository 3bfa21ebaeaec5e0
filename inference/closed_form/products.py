"""The two matrix products that closed-form updates of sparse GPs are made of."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

__all__ = ["row_sums_of_squares", "weighted_gram"]

# Rows whose block of a 200-column matrix stays in a core's cache between its two uses.
_ROWS = 2048


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
    whole, rest = _blocks(matrix, weights)
    total = rest[0].T @ (rest[1][:, None] * rest[0])

    def add(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        rows, theta = block
        return total + rows.T @ (theta[:, None] * rows), None

    return jax.lax.scan(add, total, whole)[0]


def row_sums_of_squares(
    matrix: Float[Array, "N M"], cholesky: Float[Array, "M M"]
) -> Float[Array, " N"]:
    """diag(V P⁻¹ Vᵀ) = ‖R⁻¹V_nᵀ‖² with P = RRᵀ, in blocks of rows.

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
    # R⁻ᵀ once, so that each block is one matrix product and not a triangular solve.
    identity = jnp.eye(cholesky.shape[0], dtype=cholesky.dtype)
    whitener = solve_triangular(cholesky, identity, lower=True).T
    whole, rest = _blocks(matrix)

    def squares(rows: Array) -> Array:
        return jnp.sum((rows @ whitener) ** 2, axis=1)

    blocks = jax.lax.map(lambda block: squares(block[0]), whole)
    return jnp.concatenate([blocks.reshape(-1), squares(rest[0])])


def _blocks(*arrays: Array) -> tuple[Any, Any]:
    """Whole blocks of rows (K, _ROWS, …) and the rows that are left."""
    whole = arrays[0].shape[0] // _ROWS
    head = tuple(a[: whole * _ROWS].reshape(whole, _ROWS, *a.shape[1:]) for a in arrays)
    return head, tuple(a[whole * _ROWS :] for a in arrays)
