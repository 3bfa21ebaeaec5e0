"""Bags padded to sizes of a geometric grid, so that data sets share compiled programs.

A program of JAX is compiled for the shapes of its arguments. Two folds of a cross-validation differ
by a few bags and instances: padded to the next size of a grid they have one shape.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from .bags import Bags
from .edges import Edges
from .on_disk import NewBuffer

__all__ = ["bag_weight", "bucket", "padded", "padded_size_of_edges", "padded_to"]

# Up to the first number sizes are eighths of the next power of two: at most a quarter is added. Up
# to the second they are 16ths: an eighth.
_SMALL, _MEDIUM = 1024, 4096
# Above, 128ths of it in blocks of as many rows: at most 2 per cent from 25,000 rows on.
_ROWS_OF_A_BLOCK = 512
# Few instances are padded to one of these: it costs little, and small folds share programs.
_FEW_INSTANCES, _FEWEST_BAGS = (256, 512), 32
_FEW_EDGES = 1024


def bucket(number: int) -> int:
    """The next size of the grid: at least ``number``, and at most a quarter more.

    Parameters
    ----------
    number : int
        At least 1.

    Returns
    -------
    int

    Examples
    --------
    >>> from milzoo.datasets.padding import bucket
    >>> [bucket(number) for number in (7, 100, 1025, 70_000)]
    [7, 112, 1152, 70656]
    """
    power = 1 << number.bit_length()
    if number <= _MEDIUM:
        unit = max(1, power >> (3 if number <= _SMALL else 4))
    else:
        unit = max(_ROWS_OF_A_BLOCK, power >> 7)
    return unit * -(-number // unit)


def padded(bags: Bags) -> Bags:
    """Pad bags to the next sizes of the grid; ``present`` marks the original bags.

    Parameters
    ----------
    bags : Bags

    Returns
    -------
    Bags
        Without names; 256, 512 or more instances and at least 32 bags, so that small folds share
        programs. At least one bag is absent; it has the padding instances, all zero. Edges are
        padded to 1,024 or the next size of the grid by edges of weight 0 from the last instance to
        itself. Bags that JAX traces are returned unchanged.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(bags)):
        return bags
    few = [size for size in _FEW_INSTANCES if bags.num_instances <= size]
    num_instances = few[0] if few else bucket(bags.num_instances)
    return padded_to(bags, num_instances, bucket(max(bags.num_bags + 1, _FEWEST_BAGS)))


def bag_weight(bags: Bags) -> Float[np.ndarray | jax.Array, " B"]:
    """Weight of each bag: 1, or 0 where it is absent."""
    present = bags.present
    return np.ones(bags.num_bags) if present is None else present.astype(float)


def padded_size_of_edges(*several: Bags) -> int:
    """The size that edges of bags are padded to: one of the grid, the same for all of them.

    Parameters
    ----------
    *several : Bags

    Returns
    -------
    int
        1,024 or more.
    """
    most = max((bags.edges.num_edges for bags in several if bags.edges is not None), default=0)
    return bucket(max(most, _FEW_EDGES))


def padded_to(
    bags: Bags,
    num_instances: int,
    num_bags: int,
    new_buffer: NewBuffer = np.empty,
    instances: np.ndarray | None = None,
    num_edges: int | None = None,
) -> Bags:
    """Pad bags to given sizes.

    Parameters
    ----------
    bags : Bags
    num_instances, num_bags : int
        At least one more bag than there are.
    new_buffer : callable
        Shape and type → the array to fill.
    instances : array (num_instances, D) or None
        An array whose first rows are the instances of the bags; it is padded in place.
    num_edges : int or None
        None for the next size of the grid.

    Returns
    -------
    Bags
        As from `padded`.
    """

    def longer(values: np.ndarray | jax.Array, size: int, value: float) -> np.ndarray:
        values = np.asarray(values)
        whole = new_buffer((size, *values.shape[1:]), values.dtype)
        whole[: len(values)], whole[len(values) :] = values, value
        return whole

    def filled(values: np.ndarray | jax.Array | None, size: int, value: float) -> np.ndarray | None:
        return None if values is None else longer(values, size, value)

    if instances is None:
        instances = longer(bags.instances, num_instances, 0.0)
    else:
        instances[bags.num_instances :] = 0.0
    present = np.ones(bags.num_bags, bool) if bags.present is None else bags.present
    edges = bags.edges
    if edges is not None:
        size = padded_size_of_edges(bags) if num_edges is None else num_edges
        last = num_instances - 1  # edges stay sorted by row
        ends = longer(edges.row, size, last), longer(edges.column, size, last)
        edges = Edges(*ends, longer(edges.weight, size, 0.0))
    return replace(
        bags,
        instances=instances,
        bag_index=longer(bags.bag_index, num_instances, num_bags - 1),
        labels=filled(bags.labels, num_bags, 0),
        instance_labels=filled(bags.instance_labels, num_instances, -1),
        names=(),
        num_bags=num_bags,
        targets=filled(bags.targets, num_bags, 0.0),
        present=longer(present, num_bags, False),
        edges=edges,
    )
