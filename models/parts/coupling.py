"""Latent values averaged over the neighbours of an instance, along the edges of a graph."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...datasets.edges import Edges
from ..numerics.tracing import evaluated_now_unless_traced
from .sparse_gp import SparseConditional

__all__ = ["averaged", "averaged_rows"]


def averaged(
    conditional: SparseConditional, edges: Edges, coupling: float | Float[Array, ""]
) -> SparseConditional:
    """The conditional of latent values averaged over neighbours, f = S g, from that of g.

    Parameters
    ----------
    conditional : SparseConditional
        Of g.
    edges : Edges
    coupling : float
        γ.

    Returns
    -------
    SparseConditional
        Of f, with V' = S V and k̃' = (S∘S) k̃.
    """
    with evaluated_now_unless_traced(conditional, edges, coupling):
        rows = (conditional.projection, conditional.residual_variance)
        projection, variance = _averaged_rows(*rows, edges, coupling)
        return SparseConditional(conditional.cholesky, projection, variance, jnp.sqrt(variance))


def averaged_rows(
    projection: Float[Array, "N M"],
    residual_variance: Float[Array, " N"],
    edges: Edges,
    coupling: float | Float[Array, ""],
) -> tuple[Float[Array, "N M"], Float[Array, " N"]]:
    """S V and (S∘S) k̃ for the averages over neighbours S = (1 − γ) I + γ W.

    W_nj = w_nj / Σ_j w_nj. The row of an instance without neighbours is that of I.

    Parameters
    ----------
    projection : array (N, M)
        V.
    residual_variance : array (N,)
        k̃.
    edges : Edges
        Edges of weight 0 have no effect.
    coupling : float
        γ.

    Returns
    -------
    array (N, M)
        V' in the type of V.
    array (N,)
        k̃', the variances of S r for independent residuals r.
    """
    wide, narrow = residual_variance.dtype, projection.dtype
    row, column = jnp.asarray(edges.row), jnp.asarray(edges.column)
    weight = jnp.asarray(edges.weight, wide)

    def sum_over_neighbours(values: Float[Array, "E ..."]) -> Float[Array, "N ..."]:
        size = residual_variance.shape[0]
        return jax.ops.segment_sum(values, row, num_segments=size, indices_are_sorted=True)

    total = sum_over_neighbours(weight)
    has_neighbours = total > 0
    own = jnp.where(has_neighbours, 1.0 - coupling, 1.0)
    of_edge = coupling * weight / jnp.where(has_neighbours, total, 1.0)[row]
    of_others = sum_over_neighbours(of_edge.astype(narrow)[:, None] * projection[column])
    variance_of_others = sum_over_neighbours(of_edge**2 * residual_variance[column])
    return (
        own.astype(narrow)[:, None] * projection + of_others,
        own**2 * residual_variance + variance_of_others,
    )


_averaged_rows = jax.jit(averaged_rows)
