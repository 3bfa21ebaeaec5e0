"""Edges between the instances of a bag, with weights: a graph in flat arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from jaxtyping import Array, Float, Int

from .checks import check_list, read_only

if TYPE_CHECKING:
    import scipy.sparse

__all__ = ["Edges", "checked_edges", "refuse_edges"]

# Weights that are computed for both directions may differ by rounding.
_ROUNDING = 1e-9

type Locate = Callable[[int], str]


class Edges(NamedTuple):
    """Weighted edges between instances, each in both directions, in flat arrays.

    Attributes
    ----------
    row, column : int array (E,)
        Instances n and j of each edge, sorted by n and then by j.
    weight : float array (E,)
        w_nj = w_jn > 0; 0 of edges that pad arrays.
    """

    row: Int[np.ndarray | Array, " E"]
    column: Int[np.ndarray | Array, " E"]
    weight: Float[np.ndarray | Array, " E"]

    @property
    def num_edges(self) -> int:
        """Number E of edges, two for each pair of neighbours."""
        return self.row.shape[0]

    def select(self, starts: Int[np.ndarray, " K"], sizes: Int[np.ndarray, " K"]) -> Edges:
        """Edges of chosen bags, whose instances are numbered anew one bag after another.

        Parameters
        ----------
        starts, sizes : int array (K,)
            Row of the first instance of each chosen bag, and its number of instances.

        Returns
        -------
        Edges
        """
        row = np.asarray(self.row)
        first, end = np.searchsorted(row, starts), np.searchsorted(row, starts + sizes)
        lengths = end - first
        shift = np.repeat(np.cumsum(sizes) - sizes - starts, lengths)
        behind = np.cumsum(lengths) - lengths
        chosen = np.arange(lengths.sum()) + np.repeat(first - behind, lengths)
        return Edges(
            read_only(row[chosen] + shift),
            read_only(np.asarray(self.column)[chosen] + shift),
            read_only(np.asarray(self.weight)[chosen]),
        )

    def among(self, rows: Int[np.ndarray, " K"]) -> Edges:
        """Edges between some of the instances, numbered anew in the order of ``rows``.

        Parameters
        ----------
        rows : int array (K,)
            Different instances, in increasing order.

        Returns
        -------
        Edges
        """
        row, column = np.asarray(self.row), np.asarray(self.column)
        kept = np.isin(row, rows) & np.isin(column, rows)
        return Edges(
            read_only(np.searchsorted(rows, row[kept])),
            read_only(np.searchsorted(rows, column[kept])),
            read_only(np.asarray(self.weight)[kept]),
        )

    def as_matrix(self, num_instances: int) -> scipy.sparse.csr_array:
        """The adjacency matrix, as `Bags.with_edges` takes it.

        Parameters
        ----------
        num_instances : int
            N.

        Returns
        -------
        scipy.sparse.csr_array (N, N)
        """
        import scipy.sparse

        coordinates = (np.asarray(self.row), np.asarray(self.column))
        shape = (num_instances, num_instances)
        return scipy.sparse.csr_array((np.asarray(self.weight), coordinates), shape)

    @classmethod
    def of_matrix(cls, matrix: scipy.sparse.csr_array) -> Self:
        """Edges from a checked adjacency matrix without stored zeros."""
        matrix.sort_indices()
        found = matrix.tocoo()
        return cls(
            read_only(found.row.astype(np.int64)),
            read_only(found.col.astype(np.int64)),
            read_only(found.data.astype(np.float64)),
        )


def checked_edges(adjacency: Any, sizes: Int[np.ndarray, " B"], names: tuple[str, ...]) -> Edges:
    """Edges from an adjacency matrix of all instances, or from one for each bag.

    Parameters
    ----------
    adjacency : scipy.sparse array or matrix (N, N), or sequence of (N_b, N_b)
    sizes : int array (B,)
        Number of instances of each bag.
    names : tuple of str
        Names of the bags, for messages; empty where they have none.

    Returns
    -------
    Edges

    Raises
    ------
    TypeError
        If it is neither of these, or has values that are not numbers.
    ValueError
        If a shape is wrong, a weight is negative or not finite, the matrix is not symmetric, an
        instance has an edge to itself, or an edge leads from one bag to another.
    """
    import scipy.sparse

    ends = np.cumsum(sizes)
    shown = [f"bag {name!r}" for name in names or range(len(sizes))]

    def locate(row: int) -> str:
        bag = int(np.searchsorted(ends, row, "right"))
        return f"{shown[bag]}, row {row - (ends[bag] - sizes[bag])}"

    if scipy.sparse.issparse(adjacency):
        matrix = _as_csr(adjacency, int(ends[-1]), "adjacency", "all instances")
    else:
        matrix = _of_each_bag(adjacency, sizes, shown)
    _check_weights(matrix, locate)
    _check_symmetric(matrix, locate)
    edges = Edges.of_matrix(matrix)
    bag_of_row, bag_of_column = (
        np.searchsorted(ends, instance, "right") for instance in (edges.row, edges.column)
    )
    if (bag_of_row != bag_of_column).any():
        first = int(np.argmax(bag_of_row != bag_of_column))
        raise ValueError(
            f"adjacency has an edge from {locate(int(edges.row[first]))} to "
            f"{locate(int(edges.column[first]))}; expected edges inside bags: leave it out"
        )
    return edges


def refuse_edges(edges: Edges | None, kind: str) -> None:
    """Raise an error for edges of bags where they would be lost.

    Raises
    ------
    ValueError
        If there are edges.
    """
    if edges is not None:
        raise ValueError(
            f"bags have edges, which {kind} cannot have; expected bags without: "
            "bags.with_edges(None) leaves them out"
        )


def _of_each_bag(
    adjacency: Any, sizes: Int[np.ndarray, " B"], shown: list[str]
) -> scipy.sparse.csr_array:
    """One block-diagonal matrix from the matrices of all bags."""
    import scipy.sparse

    if isinstance(adjacency, np.ndarray):
        raise TypeError(
            "adjacency is a dense array; expected a scipy.sparse array: "
            "scipy.sparse.csr_array(adjacency)"
        )
    check_list(adjacency, "adjacency", "with one scipy.sparse array for each bag, or one of these")
    if len(adjacency) != len(sizes):
        raise ValueError(
            f"adjacency has {len(adjacency)} entries; expected {len(sizes)}, one for each bag"
        )
    blocks = [
        _as_csr(one, int(size), f"adjacency of {name}", "its instances")
        for one, size, name in zip(adjacency, sizes, shown, strict=True)
    ]
    return scipy.sparse.csr_array(scipy.sparse.block_diag(blocks, format="csr"))


def _as_csr(given: Any, size: int, argument: str, of: str) -> scipy.sparse.csr_array:
    """A new matrix of numbers, entries of one place added up and zeros left out."""
    import scipy.sparse

    if not scipy.sparse.issparse(given):
        raise TypeError(
            f"{argument} is a {type(given).__name__}; expected a scipy.sparse array, such as "
            "scipy.sparse.csr_array"
        )
    if given.shape != (size, size):
        raise ValueError(
            f"{argument} has shape {given.shape}; expected ({size}, {size}), a row and a column "
            f"for each of {of}"
        )
    if given.dtype.kind not in "biuf":
        raise TypeError(f"{argument} has type {given.dtype}; expected real numbers")
    matrix = scipy.sparse.csr_array(given, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _check_weights(matrix: scipy.sparse.csr_array, locate: Locate) -> None:
    """Raise an error for negative or infinite weights, NaN, and edges to the instance itself."""
    found = matrix.tocoo()
    wrong = ~(np.isfinite(found.data) & (found.data >= 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"adjacency has weight {found.data[first]:g} from {locate(int(found.row[first]))} to "
            f"{locate(int(found.col[first]))}; expected finite numbers of at least 0"
        )
    to_itself = found.row == found.col
    if to_itself.any():
        first = int(np.argmax(to_itself))
        raise ValueError(
            f"adjacency has weight {found.data[first]:g} from {locate(int(found.row[first]))} to "
            "itself; expected 0 on the diagonal: adjacency.setdiag(0)"
        )


def _check_symmetric(matrix: scipy.sparse.csr_array, locate: Locate) -> None:
    """Raise an error for weights that differ in the two directions."""
    difference = abs(matrix - matrix.T).tocoo()
    limit = _ROUNDING * matrix.data.max(initial=0.0)
    wrong = difference.data > limit
    if wrong.any():
        first = int(np.argmax(wrong))
        row, column = int(difference.row[first]), int(difference.col[first])
        raise ValueError(
            f"adjacency has weight {matrix[row, column]:g} from {locate(row)} to {locate(column)} "
            f"and {matrix[column, row]:g} back; expected the same: (adjacency + adjacency.T) / 2"
        )
