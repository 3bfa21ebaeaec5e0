"""Bags in arrays of set lengths, so that programs are compiled once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Self

import numpy as np
from jaxtyping import Array

from ...datasets.bags import Bags
from ...datasets.on_disk import NewBuffer
from ...datasets.padding import bucket
from ...datasets.streaming import BagStream

__all__ = [
    "RoomForChunks",
    "RoomInTurn",
    "in_parts",
    "in_pieces",
    "new_room",
    "padded_chunks",
]

# Bytes: arrays that begin at a multiple of them need no copy on a CPU.
_ALIGNMENT = 64


def new_room(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array to be filled, which JAX takes as it is where its device is a CPU."""
    size = prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


class RoomInTurn:
    """Arrays that are filled again some turns later: new memory costs as much as filling it.

    By then what is made of them must be done.

    Parameters
    ----------
    num_turns : int
        After so many they are.
    """

    def __init__(self, num_turns: int = 2) -> None:
        self._turns: list[list[np.ndarray]] = [[] for _ in range(num_turns)]
        self._turn = self._num_given = 0

    def next_turn(self) -> Self:
        """Itself, giving what it gave so many turns ago."""
        self._turn, self._num_given = (self._turn + 1) % len(self._turns), 0
        return self

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array, as from `new_room`, that no other call of this turn gives."""
        given, place, size = self._turns[self._turn], self._num_given, prod(shape) * dtype.itemsize
        if place == len(given):
            given.append(_bytes(size))
        if given[place].size < size:
            given[place] = _bytes(size)
        self._num_given += 1
        return given[place][:size].view(dtype).reshape(shape)


class RoomForChunks(RoomInTurn):
    """Where chunks are read to, a chunk a turn, each with room behind it to be filled up in.

    Parameters
    ----------
    num_instances : int
        That chunks are filled up to, or to a multiple of it.
    num_turns : int
        As of `RoomInTurn`.
    """

    def __init__(self, num_instances: int, num_turns: int) -> None:
        super().__init__(num_turns)
        self._num_instances = num_instances

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The first rows of an array that is as long as the chunk is to be."""
        length = _filled_up(shape[0], self._num_instances)
        self.next_turn()
        return super().__call__((length, *shape[1:]), dtype)[: shape[0]]

    def lengthened(self, values: np.ndarray, num_rows: int) -> np.ndarray | None:
        """So many rows of which ``values`` are the first; None if there is no room behind them."""
        shape = num_rows, *values.shape[1:]
        size = prod(shape) * values.itemsize
        for memory in chain(*self._turns):
            if memory.ctypes.data == values.ctypes.data and memory.size >= size:
                return memory[:size].view(values.dtype).reshape(shape)
        return None


def _bytes(size: int) -> np.ndarray:
    return new_room((size,), np.dtype(np.uint8))


def padded_chunks(
    chunks: Sequence[Bags],
    *,
    num_instances: int,
    num_parts: int,
    room: NewBuffer = new_room,
    read_to: RoomForChunks | None = None,
) -> list[Bags]:
    """Fill chunks up to one shape, and their number.

    Parameters
    ----------
    chunks : sequence of Bags
        At least one.
    num_instances : int
        Of each, or a multiple of it where one has more.
    num_parts : int
        How many there are to be; those that are missing have no bag.
    room : callable
        Shape and type → the array to fill.
    read_to : RoomForChunks or None
        Where instances may stand already: there they stay, if there is room for so many.

    Returns
    -------
    list of Bags
        Each with as many bags, at least one of them absent, which holds the instances that fill;
        their number is one of the grid, so that few shapes are compiled for.
    """
    length = _filled_up(max(bags.num_instances for bags in chunks), num_instances)
    num_bags = bucket(1 + max(bags.num_bags for bags in chunks))
    whole = [_padded(bags, length, num_bags, room, read_to) for bags in chunks]
    nothing = replace(whole[0], present=np.zeros(num_bags, bool))
    return [*whole, *[nothing] * (num_parts - len(whole))]


def _filled_up(number: int, unit: int) -> int:
    """To a multiple of the unit."""
    return unit * -(-number // unit)


def _padded(
    bags: Bags, length: int, num_bags: int, room: NewBuffer, read_to: RoomForChunks | None
) -> Bags:
    def filled(values: np.ndarray | Array, size: int, value: float) -> np.ndarray:
        values = np.asarray(values)
        whole = room((size, *values.shape[1:]), values.dtype)
        whole[: len(values)], whole[len(values) :] = values, value
        return whole

    instances = read_to.lengthened(np.asarray(bags.instances), length) if read_to else None
    if instances is None:
        instances = filled(bags.instances, length, 0.0)
    else:
        instances[bags.num_instances :] = 0.0
    labels, targets, known = bags.labels, bags.targets, bags.instance_labels
    return Bags(
        instances=instances,
        bag_index=filled(bags.bag_index, length, num_bags - 1),
        labels=None if labels is None else filled(labels, num_bags, 0),
        instance_labels=None if known is None else filled(known, length, -1),
        names=(),
        num_bags=num_bags,
        targets=None if targets is None else filled(targets, num_bags, 0.0),
        present=filled(np.ones(bags.num_bags, bool), num_bags, False),
    )


def in_pieces(bags: Bags | BagStream, num_instances: int) -> Iterator[Bags]:
    """Whole bags of at most so many instances together, or one that is larger.

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
            last = np.searchsorted(
                ends, ends[first] - chunk.bag_sizes[first] + num_instances, "right"
            )
            last = max(first + 1, int(last))
            yield chunk.select(np.arange(first, last))
            first = last


def in_parts(bags: Bags, num_parts: int) -> list[Bags]:
    """Bags in memory as chunks, of about as many instances each; fewer if there are fewer bags."""
    ends = np.cumsum(bags.bag_sizes)
    part = np.minimum((ends - 1) * num_parts // ends[-1], num_parts - 1)
    return [bags.select(part == number) for number in np.unique(part)]
