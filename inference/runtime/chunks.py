"""Chunks of bags in arrays of set lengths, so that programs are compiled once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Self

import numpy as np

from ...datasets.bags import Bags
from ...datasets.on_disk import NewBuffer
from ...datasets.padding import bucket, padded_size_of_edges, padded_to
from ...datasets.streaming import BagStream

__all__ = [
    "AlternatingBuffers",
    "ChunkBuffers",
    "PiecesInMemory",
    "in_parts",
    "in_pieces",
    "new_buffer",
    "padded_chunks",
]

# Bytes: arrays that begin at a multiple of them need no copy on a CPU.
_ALIGNMENT = 64


def new_buffer(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an array to be filled, which a CPU device of JAX uses without a copy."""
    size = prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


class AlternatingBuffers:
    """Buffers that are reused some turns later: new memory costs as much as filling it.

    By then all computations on them must have ended.

    Parameters
    ----------
    num_turns : int
        Turns after which a buffer is reused.
    """

    def __init__(self, num_turns: int = 2) -> None:
        self._turns: list[list[np.ndarray]] = [[] for _ in range(num_turns)]
        self._turn = self._num_given = 0

    def next_turn(self) -> Self:
        """Begin the next turn, which reuses the buffers of ``num_turns`` turns ago."""
        self._turn, self._num_given = (self._turn + 1) % len(self._turns), 0
        return self

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """A buffer, as from `new_buffer`, that no other call of this turn returns."""
        given, number, size = self._turns[self._turn], self._num_given, prod(shape) * dtype.itemsize
        if number == len(given):
            given.append(_bytes(size))
        if given[number].size < size:
            given[number] = _bytes(size)
        self._num_given += 1
        return given[number][:size].view(dtype).reshape(shape)


class ChunkBuffers(AlternatingBuffers):
    """Buffers that chunks are read into, a chunk a turn, each long enough to be padded in place.

    Parameters
    ----------
    num_instances : int
        Chunks are padded to a multiple of it.
    num_turns : int
        As of `AlternatingBuffers`.
    """

    def __init__(self, num_instances: int, num_turns: int) -> None:
        super().__init__(num_turns)
        self._num_instances = num_instances

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The first rows of a buffer that is as long as the padded chunk."""
        length = _filled_up(shape[0], self._num_instances)
        self.next_turn()
        return super().__call__((length, *shape[1:]), dtype)[: shape[0]]

    def lengthened(self, values: np.ndarray, num_rows: int) -> np.ndarray | None:
        """``num_rows`` rows whose first are ``values``; None if their buffer is shorter."""
        shape = num_rows, *values.shape[1:]
        size = prod(shape) * values.itemsize
        for memory in chain(*self._turns):
            if memory.ctypes.data == values.ctypes.data and memory.size >= size:
                return memory[:size].view(values.dtype).reshape(shape)
        return None


def _bytes(size: int) -> np.ndarray:
    return new_buffer((size,), np.dtype(np.uint8))


def padded_chunks(
    chunks: Sequence[Bags],
    *,
    num_instances: int,
    num_parts: int,
    buffer: NewBuffer = new_buffer,
    read_to: ChunkBuffers | None = None,
) -> list[Bags]:
    """Pad chunks to one shape, and their number to ``num_parts``.

    Parameters
    ----------
    chunks : sequence of Bags
        At least one.
    num_instances : int
        Chunks are padded to a multiple of it.
    num_parts : int
        Number of chunks that are returned; the missing ones have no bag.
    buffer : callable
        Shape and type → the array to fill.
    read_to : ChunkBuffers or None
        Buffers that may already hold the instances, which are then padded in place.

    Returns
    -------
    list of Bags
        All with the same number of bags, at least one of them absent: it has the padding instances.
        The number is one of a grid, so that few shapes are compiled.
    """
    length = _filled_up(max(bags.num_instances for bags in chunks), num_instances)
    num_bags = bucket(1 + max(bags.num_bags for bags in chunks))
    num_edges = padded_size_of_edges(*chunks)
    whole = []
    for bags in chunks:
        read = read_to.lengthened(np.asarray(bags.instances), length) if read_to else None
        whole.append(padded_to(bags, length, num_bags, buffer, read, num_edges))
    nothing = replace(whole[0], present=np.zeros(num_bags, bool))
    return [*whole, *[nothing] * (num_parts - len(whole))]


def _filled_up(number: int, unit: int) -> int:
    """Round up to a multiple of the unit."""
    return unit * -(-number // unit)


def in_pieces(bags: Bags | BagStream, num_instances: int) -> Iterator[Bags]:
    """Split bags into pieces of whole bags, each of at most ``num_instances`` or a single bag.

    Parameters
    ----------
    bags : Bags or BagStream
    num_instances : int

    Yields
    ------
    Bags
    """
    for chunk in (bags,) if isinstance(bags, Bags) else bags:
        ends, first = np.cumsum(chunk.bag_sizes), 0
        while first < chunk.num_bags:
            most = ends[first] - chunk.bag_sizes[first] + num_instances
            last = max(first + 1, int(np.searchsorted(ends, most, "right")))
            yield chunk.select(np.arange(first, last))
            first = last


@dataclass(frozen=True)
class PiecesInMemory:
    """Bags in memory that are read like a stream: in chunks that are not kept.

    Attributes
    ----------
    bags : Bags
    chunk_instances : int
        Instances of a chunk, at most; a bag that is larger is a chunk by itself.
    """

    bags: Bags
    chunk_instances: int = 2**14

    @property
    def num_instances(self) -> int:
        """Number N of instances."""
        return self.bags.num_instances

    def __iter__(self) -> Iterator[Bags]:
        """Iterate over the chunks."""
        return in_pieces(self.bags, self.chunk_instances)

    def read_to(self, new_buffer: NewBuffer) -> Iterator[Bags]:
        """Iterate once; the buffers are not used."""
        return iter(self)


def in_parts(bags: Bags, num_parts: int) -> list[Bags]:
    """Split bags in memory into at most ``num_parts`` chunks of about as many instances each."""
    ends = np.cumsum(bags.bag_sizes)
    part = np.minimum((ends - 1) * num_parts // ends[-1], num_parts - 1)
    return [bags.select(part == number) for number in np.unique(part)]
