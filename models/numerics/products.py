"""The matrix products that closed-form updates of sparse GPs are made of."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

__all__ = [
    "ROWS_OF_ALL_CORES",
    "Panels",
    "block_length",
    "cholesky_with_inverse",
    "gram_from_panels",
    "gram_panels",
    "in_row_blocks",
    "inverse_transposed",
    "panels_of",
    "squared_norms",
    "times_triangle",
    "weighted_gram",
    "weighted_sum",
    "whole_blocks",
]

# Rows of a block, at most: as many as stay in a core's cache between their uses.
_ROWS = 512
# Where all cores work on one block. In shorter ones they wait for each other twice as often: a step
# of VGPMIL took a fifth longer.
ROWS_OF_ALL_CORES = 1024
# Numbers that a core takes at once; rows of blocks and columns of panels are multiples of it.
_AT_ONCE = 8


type Panels = list[Float[Array, "_ _"]]


def weighted_gram(matrix: Float[Array, "N M"], weights: Float[Array, " N"]) -> Float[Array, "M M"]:
    """VᵀΘV = Σ_n θ_n V_n V_nᵀ, in blocks of rows so that ΘV is never stored whole.

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
    panels, _ = in_row_blocks(lambda rows, theta: (gram_panels(rows, theta), ()), matrix, weights)
    return gram_from_panels(panels)


def weighted_sum(matrix: Float[Array, "N M"], weights: Float[Array, " N"]) -> Float[Array, " M"]:
    """Vᵀw = Σ_n w_n V_n, in blocks of rows, each summed in the type of V and all in that of w.

    Parameters
    ----------
    matrix : array (N, M)
        V.
    weights : array (N,)
        w.

    Returns
    -------
    array (M,)
    """
    length = block_length(len(weights))
    whole = length * (len(weights) // length)
    narrow = weights.astype(matrix.dtype)
    # One product of a batch: XLA gives its blocks to all cores, a vector times V to one.
    blocks = jnp.einsum(
        "bn,bnm->bm",
        narrow[:whole].reshape(-1, length),
        matrix[:whole].reshape(-1, length, matrix.shape[1]),
    )
    total = jnp.sum(blocks.astype(weights.dtype), axis=0)
    if whole == len(weights):
        return total
    return total + (narrow[whole:] @ matrix[whole:]).astype(weights.dtype)


def gram_panels(rows: Float[Array, "R M"], weights: Float[Array, " R"]) -> Panels:
    """Contribution of rows to VᵀΘV: its lower triangle in panels, for a third less work."""
    # Transposed in memory: XLA's product is slower with a left side that it has to transpose.
    weighted = jax.lax.optimization_barrier((weights[:, None] * rows).T)
    return [weighted[start:end] @ rows[:, :end] for start, end in panels_of(rows.shape[1])]


def gram_from_panels(panels: Panels) -> Float[Array, "M M"]:
    """VᵀΘV from the panels of its lower triangle, by symmetry."""
    size = panels[-1].shape[1]
    lower = jnp.vstack([jnp.pad(p, ((0, 0), (0, size - p.shape[1]))) for p in panels])
    return jnp.tril(lower) + jnp.tril(lower, -1).T


def in_row_blocks[Total, Rows](
    function: Callable[..., tuple[Total, Rows]],
    *arrays: Float[Array, "N ..."],
    at_most: int | None = None,
) -> tuple[Total, Rows]:
    """Apply a function of rows to blocks that fit into a core's cache.

    Parameters
    ----------
    function : callable
        Rows of each array → a pytree that is summed over the blocks, and one of rows.
    *arrays : array (N, …)
    at_most : int or None
        Rows of a block; None for as many as one core can hold in its cache.

    Returns
    -------
    pytree
        The sums.
    pytree
        The rows, N of them.
    """
    num_rows = len(arrays[0])
    length = block_length(num_rows, at_most)
    whole = num_rows // length

    def add_block(total: Total, block: Array) -> tuple[Total, Rows]:
        rows = (jax.lax.dynamic_slice_in_dim(a, block * length, length) for a in arrays)
        added, kept = function(*rows)
        return jax.tree.map(jnp.add, total, added), kept

    total, rest = function(*(a[whole * length :] for a in arrays))
    total, kept = jax.lax.scan(add_block, total, jnp.arange(whole))
    kept = jax.tree.map(lambda blocks: blocks.reshape(whole * length, *blocks.shape[2:]), kept)
    if whole * length == num_rows:  # saves a copy of all rows
        return total, kept
    return total, jax.tree.map(lambda *parts: jnp.concatenate(parts), kept, rest)


def whole_blocks(num_rows: int) -> int:
    """Smallest number of rows, at least the given one, that is a whole number of blocks.

    `in_row_blocks` copies all rows where a shorter block remains.
    """
    length = block_length(num_rows)
    return length * -(-num_rows // length)


def inverse_transposed(cholesky: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """R⁻ᵀ, upper triangular: a product with it is faster than a triangular solve."""
    identity = jnp.eye(cholesky.shape[0], dtype=cholesky.dtype)
    return solve_triangular(cholesky, identity, trans=1, lower=True)


@jax.custom_jvp
def cholesky_with_inverse(
    matrix: Float[Array, "M M"],
) -> tuple[Float[Array, "M M"], Float[Array, "M M"]]:
    """L with K = LLᵀ, and W = L⁻ᵀ, whose derivatives are products alone.

    With Φ(A) the lower triangle of A, its diagonal halved,

    dL = L Φ(Wᵀ dK W),  dW = −W Φ(Wᵀ dK W)ᵀ,

    where JAX's own derivatives solve four triangular systems more.

    Parameters
    ----------
    matrix : array (M, M)
        K, symmetric and positive definite.

    Returns
    -------
    array (M, M)
        Lower triangular.
    array (M, M)
        Upper triangular.

    References
    ----------
    Murray (2016), Differentiation of the Cholesky decomposition, arXiv 1602.07527.
    """
    cholesky = jnp.linalg.cholesky(matrix)
    return cholesky, inverse_transposed(cholesky)


@cholesky_with_inverse.defjvp
def _cholesky_with_inverse_jvp(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    (matrix,), (change,) = primals, tangents
    cholesky, whitener = cholesky_with_inverse(matrix)
    symmetric = (change + change.T) / 2
    lower = jnp.tril(whitener.T @ symmetric @ whitener)
    halved = lower - jnp.diag(jnp.diag(lower)) / 2  # Φ
    return (cholesky, whitener), (cholesky @ halved, -whitener @ halved.T)


def squared_norms(rows: Float[Array, "R M"], upper: Float[Array, "M M"]) -> Float[Array, " R"]:
    """‖V_n U‖², of an upper triangular U."""
    panels = times_triangle(rows, upper)
    return jnp.sum(jnp.stack([jnp.sum(panel**2, axis=1) for panel in panels]), axis=0)


def times_triangle(
    rows: Float[Array, "R M"], upper: Float[Array, "M M"]
) -> list[Float[Array, "R _"]]:
    """Columns of a product with an upper triangular matrix, in panels."""
    return [rows[:, :end] @ upper[:end, start:end] for start, end in panels_of(len(upper))]


def panels_of(size: int) -> list[tuple[int, int]]:
    """Start and end of column panels that save a third of a triangular or symmetric product.

    More and narrower panels are slower, and so are widths that are no multiples of 8, the numbers
    that a core takes at once.
    """
    wide = 3 * _AT_ONCE
    ends = sorted({min(_AT_ONCE * ceil(size * part / wide), size) for part in (1, 2, 3)})
    return list(zip([0, *ends[:-1]], ends, strict=True))


def block_length(num_rows: int, at_most: int | None = None) -> int:
    """Rows of blocks that fit into a cache, equal where that is possible.

    A shorter last block is slow, and costs a copy of all that is kept of the rows.
    """
    fewest = ceil(num_rows / (at_most or _ROWS))
    for num_blocks in range(fewest, 2 * fewest):
        if num_rows % (_AT_ONCE * num_blocks) == 0:
            return num_rows // num_blocks
    return min(num_rows, _AT_ONCE * ceil(num_rows / (_AT_ONCE * fewest)))
