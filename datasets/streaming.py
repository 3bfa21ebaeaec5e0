"""Bags larger than memory, read from disk in chunks of whole bags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from os import PathLike
from pathlib import Path

import numpy as np

from .arguments import check_counts
from .bags import Bags
from .checks import as_bag_labels, one_for_each_bag
from .on_disk import ArrayFolder, NewBuffer, ParquetFiles, Piece, Source

__all__ = ["BagStream", "stream"]

# Instances of a chunk: enough for products at full speed, and few enough that their projections
# (26 MB with 200 inducing points) reuse memory: new pages cost more than products.
_CHUNK = 2**14
# The number of chunks is a multiple of this, or a smaller power of two, so that devices have equal
# work.
_CHUNK_MULTIPLE = 8
# Bags do not end where equal chunks would. Chunks are longer by this many mean bags, so that their
# number stays; or by this fraction, if that is less or the number of bags is unknown.
_SLACK_IN_BAGS, _SLACK = 2, 0.02


@dataclass(frozen=True, eq=False)
class BagStream:
    """An iterable over bags on disk, which yields chunks of whole bags.

    Each pass checks its input by the rules of `Bags`, and reads a chunk while the previous one is
    used.

    Attributes
    ----------
    path : Path
    num_instances : int
        N.
    num_features : int
        D.
    chunk_instances : int
        Instances of a chunk, at most; a bag that is larger is a chunk by itself.

    Examples
    --------
    >>> from milzoo.datasets import BagStream, load, stream
    >>> def num_positive(bags: BagStream) -> int:
    ...     return sum(int(chunk.labels.sum()) for chunk in bags)
    >>> load("digits").to_parquet("on_disk.parquet")
    >>> num_positive(stream("on_disk.parquet"))
    82
    """

    path: Path
    chunk_instances: int
    source: Source = field(repr=False)

    @property
    def num_instances(self) -> int:
        """Number N of instances."""
        return self.source.num_rows

    @property
    def num_features(self) -> int:
        """Number D of features."""
        return self.source.num_features

    def __iter__(self) -> Iterator[Bags]:
        """Iterate once, in new memory."""
        return self.read_to(np.empty)

    def read_to(self, new_buffer: NewBuffer) -> Iterator[Bags]:
        """Iterate once, with instances read into given buffers.

        Parameters
        ----------
        new_buffer : callable
            Shape and type → the array for the instances of a chunk. The thread that reads ahead
            calls it once for each chunk, in order. Parquet files do not use it.

        Yields
        ------
        Bags
            A chunk, in the order of the rows.

        Raises
        ------
        ValueError
            If a file is truncated or has changed, the rows of a bag are not together, or a bag is
            invalid; with the file and the row.
        """
        return _one_ahead(self._chunks(new_buffer))

    def _chunks(self, new_buffer: NewBuffer) -> Iterator[Bags]:
        codings, repetitions = _Codings(self.source), _Repetitions(self.source)
        for piece in self.source.pieces(self.chunk_instances, new_buffer):
            codings.check(piece)
            repetitions.note(piece)
            yield self._bags(piece)
        repetitions.check()

    def _bags(self, piece: Piece) -> Bags:
        index = np.repeat(np.arange(len(piece.names)), piece.lengths)
        names = tuple(piece.names)

        def row_of(row: int) -> str:
            return self.source.locate(piece.first_row + row)

        labels = targets = None
        if piece.label is not None:
            labels = as_bag_labels(piece.label, index, names, row_of)
        if piece.target is not None:
            targets = one_for_each_bag(piece.target, index, names, "target", row_of)
        bags = Bags.checked(
            instances=piece.instances,
            bag_index=index,
            labels=labels,
            instance_labels=piece.instance_label,
            names=names,
            row_of=row_of,
            is_part=True,
        )
        return bags if targets is None else bags.with_targets(targets)


def stream(
    path: str | PathLike,
    *,
    chunk_instances: int | None = None,
    bag: str = "bag",
    bag_label: str | None = "bag_label",
    instance_label: str | None = "instance_label",
    bag_target: str | None = "bag_target",
    features: Sequence[str] | None = None,
) -> BagStream:
    """Bags from a Parquet data set or from arrays on disk, in chunks, for data larger than memory.

    Parameters
    ----------
    path : path
        A Parquet file, a folder of them (read in the order of their names), or a folder with
        ``instances.npy`` (N, D), ``bag_index.npy`` (N,) and, as far as they are known,
        ``labels.npy`` (B,), ``targets.npy`` (B,) and ``instance_labels.npy`` (N,). The rows of a
        bag are together; a bag may continue in the next file.
    chunk_instances : int or None
        Instances of a chunk, at most; None for 16,384 or fewer, so that chunks are about
        equal and devices have equally many.
    bag, bag_label, instance_label, bag_target, features
        Columns of Parquet files, as in `Bags.from_frame`; the defaults are those of
        `Bags.to_parquet`.

    Returns
    -------
    BagStream

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    KeyError
        If a file has no such column.
    ValueError
        If a file is truncated, or of other columns or lengths than the others; with its name.
    TypeError
        If a column of features is not of numbers.

    Examples
    --------
    >>> from milzoo.datasets import load, stream
    >>> load("digits").to_parquet("digits.parquet")
    >>> [chunk.num_bags for chunk in stream("digits.parquet", chunk_instances=500)]
    [50, 50, 50, 14]
    """
    folder = Path(path)
    if chunk_instances is not None:
        check_counts(chunk_instances=chunk_instances)
    if not folder.exists():
        raise FileNotFoundError(f"{folder} does not exist; expected Parquet files, or arrays")
    if (folder / "instances.npy").exists():
        return _stream_of(folder, chunk_instances, ArrayFolder.opened(folder))
    roles = {
        "bag": bag,
        "label": bag_label,
        "instance_label": instance_label,
        "target": bag_target,
    }
    return _stream_of(folder, chunk_instances, ParquetFiles.opened(folder, roles, features))


def _stream_of(folder: Path, chunk_instances: int | None, source: Source) -> BagStream:
    if chunk_instances is None:
        num_chunks = ceil(source.num_rows / _CHUNK)
        multiple = min(_CHUNK_MULTIPLE, 1 << (num_chunks - 1).bit_length())
        num_chunks = multiple * ceil(num_chunks / multiple)
        length = source.num_rows / num_chunks
        slack = _SLACK * length
        if source.num_bags is not None:
            slack = min(slack, _SLACK_IN_BAGS * source.num_rows / source.num_bags)
        chunk_instances = min(_CHUNK, ceil(length + slack))
    return BagStream(folder, chunk_instances, source)


# ------------------------------------------------------------------------ chunk after chunk


def _one_ahead(chunks: Iterator[Bags]) -> Iterator[Bags]:
    """The same chunks, each read by a thread while the one before it is used."""
    with ThreadPoolExecutor(1, thread_name_prefix="read ahead") as reader:
        following = reader.submit(next, chunks, None)
        while (chunk := following.result()) is not None:
            following = reader.submit(next, chunks, None)
            yield chunk


class _Codings:
    """Check that labels have one coding in all chunks; `Bags` checks it within one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._first_row_with: dict[int, int] = {}

    def check(self, piece: Piece) -> None:
        """Raise an error for label 0 in one row and −1 in another."""
        if piece.label is None:
            return
        for code in (0, -1):
            rows = np.flatnonzero(piece.label == code)
            if rows.size:
                self._first_row_with.setdefault(code, piece.first_row + int(rows[0]))
        if len(self._first_row_with) == 2:
            zero, minus = (self._source.locate(self._first_row_with[code]) for code in (0, -1))
            raise ValueError(
                f"labels: row {zero} has label 0 and row {minus} has label -1; expected "
                "{0, 1} or {-1, 1}"
            )


class _Repetitions:
    """Check that no bag appears again after others; it stores 16 bytes for each bag."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._hashes: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []

    def note(self, piece: Piece) -> None:
        """Record the bags of a piece."""
        self._hashes.append(np.array([hash(name) for name in piece.names]))
        self._rows.append(piece.first_row + np.cumsum(piece.lengths) - piece.lengths)

    def check(self) -> None:
        """Raise an error for a bag that appeared twice."""
        hashes, rows = np.concatenate(self._hashes), np.concatenate(self._rows)
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(np.diff(hashes[order]) == 0)
        if again.size:
            earliest = again[rows[order[again + 1]].argmin()]
            first, second = (int(rows[order[at]]) for at in (earliest, earliest + 1))
            raise ValueError(
                f"the bag of row {self._source.locate(first)} appears again in row "
                f"{self._source.locate(second)}, after others; expected the rows of a bag to be "
                "together: sort them by bag"
            )
