"""Reading and writing files of bags part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from .checks import NO_FEATURES, check_column, check_features, check_once
from .writing import written_whole

__all__ = [
    "ArrayFolder",
    "NewBuffer",
    "ParquetFiles",
    "Piece",
    "Source",
    "parquet_writer",
]

# Shape and type → an array to read into.
type NewBuffer = Callable[[tuple[int, ...], np.dtype], np.ndarray]


class Piece(NamedTuple):
    """Successive rows as they are on disk.

    Attributes
    ----------
    first_row : int
        Its number in the stream.
    instances : array (R, D)
    names, lengths : list of str, array (runs,)
        Runs of rows that name the same bag.
    label, target, instance_label : array (R,) or None
        By row; NaN where empty.
    """

    first_row: int
    instances: Float[np.ndarray, "R D"]
    names: list[str]
    lengths: Int[np.ndarray, " runs"]
    label: Float[np.ndarray, " R"] | None
    target: Float[np.ndarray, " R"] | None
    instance_label: Float[np.ndarray, " R"] | None

    def joined(self, other: Piece) -> Piece:
        """Join this piece and the one after it; a bag that continues there is one bag."""
        goes_on = self.names[-1] == other.names[0]
        lengths = np.concatenate([self.lengths, other.lengths])
        if goes_on:
            last = len(self.lengths) - 1
            lengths[last] += lengths[last + 1]
            lengths = np.delete(lengths, last + 1)
        return Piece(
            self.first_row,
            np.concatenate([self.instances, other.instances]),
            [*self.names, *other.names[goes_on:]],
            lengths,
            *(_joined(mine, theirs) for mine, theirs in zip(self[4:], other[4:], strict=True)),
        )

    def cut(self, num_bags: int) -> tuple[Piece, Piece]:
        """Split into the first ``num_bags`` bags and the others."""
        row = int(self.lengths[:num_bags].sum())

        def part(rows: slice, bags: slice) -> Piece:
            arrays = (None if one is None else one[rows] for one in self[4:])
            start = self.first_row + (rows.start or 0)
            return Piece(start, self.instances[rows], self.names[bags], self.lengths[bags], *arrays)

        return (
            part(slice(None, row), slice(None, num_bags)),
            part(slice(row, None), slice(num_bags, None)),
        )


def _joined(mine: np.ndarray | None, theirs: np.ndarray | None) -> np.ndarray | None:
    return None if mine is None or theirs is None else np.concatenate([mine, theirs])


def _runs(first: Int[np.ndarray, " runs"], num_rows: int) -> Int[np.ndarray, " runs"]:
    """Lengths of runs that begin at these rows."""
    return np.diff(np.append(first, num_rows))


def _changes(values: np.ndarray) -> Int[np.ndarray, " runs"]:
    """The rows where another value begins."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1]))


def _fingerprint(files: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    found = [(file.name, file.stat()) for file in files]
    return tuple((name, now.st_size, now.st_mtime_ns) for name, now in found)


# ------------------------------------------------------------------------ Parquet


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files with one row for each instance, read one after another.

    Attributes
    ----------
    files : tuple of Path
    starts : array (files + 1,)
        The first row of each, then the number of rows.
    roles : dict of str
        Columns by their role: bag, label, target, instance_label.
    features : tuple of str
    """

    files: tuple[Path, ...]
    starts: Int[np.ndarray, " _"]
    roles: Mapping[str, str]
    features: tuple[str, ...]

    @classmethod
    def opened(
        cls, path: Path, roles: Mapping[str, str | None], features: Sequence[str] | None
    ) -> Self:
        """Open one file or those of a folder; None takes all other numeric columns as features."""
        files = tuple(sorted(path.glob("*.parquet"))) if path.is_dir() else (path,)
        if not files:
            raise FileNotFoundError(
                f"{path} holds neither *.parquet nor instances.npy; expected one of the two"
            )
        parts = [_opened(file) for file in files]
        schema = parts[0].schema_arrow
        known = _known_roles(files[0], schema, roles)
        if features is not None:
            check_features(features, known.values(), str(files[0]))
        chosen = tuple(features) if features else _numeric(schema, {*known.values(), *NO_FEATURES})
        if not chosen:
            raise ValueError(f"{files[0]}: no numeric column besides {known}; expected features")
        for column in chosen:
            check_column(schema.names, column, str(files[0]), optional=False)
            if not _is_numeric(kind := schema.field(column).type):
                raise TypeError(
                    f"{files[0]}: column {column!r} has type {kind}; expected numbers as features"
                )
        for file, part in zip(files, parts, strict=True):
            _check_columns(file, part.schema_arrow, [*known.values(), *chosen], schema)
        counts = [part.metadata.num_rows for part in parts]
        if not sum(counts):
            raise ValueError(f"{path} has no rows; expected one for each instance")
        return cls(files, np.cumsum([0, *counts]), known, chosen)

    @property
    def num_rows(self) -> int:
        """Number N of instances."""
        return int(self.starts[-1])

    @property
    def num_bags(self) -> None:
        """Unknown (None) before all rows are read."""

    @property
    def num_features(self) -> int:
        """Number D of features."""
        return len(self.features)

    def locate(self, row: int) -> str:
        """The row number within its file, and the file, for messages."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"{row - self.starts[number]} of {self.files[number].name}"

    def fingerprint(self) -> tuple[tuple[str, int, int], ...]:
        """Name, size and time of change of each file."""
        return _fingerprint(self.files)

    def pieces(self, num_rows: int, new_buffer: NewBuffer) -> Iterator[Piece]:
        """Pieces of as many whole bags as fit into ``num_rows``; Arrow allocates by itself."""
        return _in_whole_bags(self._batches(num_rows), num_rows)

    def _batches(self, num_rows: int) -> Iterator[Piece]:
        """Pieces of at most ``num_rows`` rows."""
        columns = [*self.roles.values(), *self.features]
        for number, file in enumerate(self.files):
            row, end = int(self.starts[number]), int(self.starts[number + 1])
            part = _opened(file)
            if part.metadata.num_rows != end - row:
                raise ValueError(
                    f"{file} has {part.metadata.num_rows} rows and had {end - row} when it was "
                    "opened; expected files that nobody writes to"
                )
            batches = part.iter_batches(num_rows, columns=columns)
            while row < end:
                try:
                    batch = next(batches)
                except (pa.ArrowException, OSError, StopIteration) as error:
                    raise ValueError(
                        f"{file} cannot be read after row {row - self.starts[number]}: {error}; "
                        "write it again"
                    ) from error
                yield self._piece(batch, row)
                row += batch.num_rows

    def _piece(self, batch: pa.RecordBatch, row: int) -> Piece:
        bag = batch[self.roles["bag"]]
        if bag.null_count:
            empty = int(np.argmax(bag.is_null().to_numpy(zero_copy_only=False)))
            raise ValueError(f"row {self.locate(row + empty)} has no bag; give it an id")
        coded = bag if isinstance(bag, pa.DictionaryArray) else bag.dictionary_encode()
        first = _changes(coded.indices.to_numpy())
        ids = coded.take(pa.array(first)).to_pylist()
        by_row = {
            role: None if role not in self.roles else _as_numbers(batch[self.roles[role]])
            for role in ("label", "target", "instance_label")
        }
        return Piece(
            row,
            _as_table(batch.select(self.features)),
            [str(i) for i in ids],
            _runs(first, batch.num_rows),
            **by_row,
        )


def _in_whole_bags(pieces: Iterator[Piece], num_rows: int) -> Iterator[Piece]:
    """Pieces cut where bags end, of at most ``num_rows`` rows but at least one bag."""
    pending: Piece | None = None
    for piece in pieces:
        if pending is not None and _is_whole(pending, piece, num_rows):
            yield pending
            pending = None
        pending = piece if pending is None else pending.joined(piece)
        # The last bag may continue. Chunks do not depend on the batches.
        while len(pending.instances) > num_rows and len(pending.names) > 1:
            chunk, pending = pending.cut(_num_that_fit(np.cumsum(pending.lengths), num_rows))
            yield chunk
    while pending is not None and pending.names:
        chunk, pending = pending.cut(_num_that_fit(np.cumsum(pending.lengths), num_rows))
        yield chunk


def _is_whole(pending: Piece, following: Piece, num_rows: int) -> bool:
    """Whether no bag continues and no other fits: then no copy is needed to join them."""
    goes_on = pending.names[-1] == following.names[0]
    return not goes_on and len(pending.instances) + int(following.lengths[0]) > num_rows


def _num_that_fit(ends: np.ndarray, num_rows: int) -> int:
    return max(1, int(np.searchsorted(ends, num_rows, side="right")))


@contextmanager
def parquet_writer(path: Path) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """Write a Parquet file part by part, as `written_whole`.

    Parameters
    ----------
    path : Path

    Yields
    ------
    callable
        Writes the columns of a part, the same ones each time; call it at least once.
    """
    with written_whole(path) as unfinished, ExitStack() as stack:
        writers: list[pq.ParquetWriter] = []

        def write(columns: Mapping[str, np.ndarray]) -> None:
            table = pa.table(dict(columns))
            if not writers:
                writers.append(stack.enter_context(pq.ParquetWriter(unfinished, table.schema)))
            writers[0].write_table(table)

        yield write


def _opened(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{file} is not a whole Parquet file: {error}; write it again, or leave it out"
        ) from error


def _known_roles(file: Path, schema: pa.Schema, roles: Mapping[str, str | None]) -> dict[str, str]:
    """The columns by role that exist; an error for required ones that do not."""
    may_lack = {"instance_label": "instance_label", "target": "bag_target"}
    asked = {
        role: column
        for role, column in roles.items()
        if column is not None and not (may_lack.get(role) == column and column not in schema.names)
    }
    if asked.get("label") == "bag_label" and "bag_label" not in schema.names and "target" in asked:
        del asked["label"]
    for role, column in asked.items():
        check_column(schema.names, column, str(file), optional=role == "label")
    return asked


def _numeric(schema: pa.Schema, taken: set[str]) -> tuple[str, ...]:
    return tuple(
        column.name for column in schema if column.name not in taken and _is_numeric(column.type)
    )


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _as_table(batch: pa.RecordBatch) -> np.ndarray:
    """Columns of numbers as (R, D); True and False are 1 and 0."""
    numbers = pa.schema(
        [
            (column.name, pa.uint8() if pa.types.is_boolean(column.type) else column.type)
            for column in batch.schema
        ]
    )
    return batch.cast(numbers).to_tensor(null_to_nan=True).to_numpy()


def _check_columns(
    file: Path, schema: pa.Schema, columns: Sequence[str], expected: pa.Schema
) -> None:
    for column in columns:
        check_column(schema.names, column, str(file), optional=False)
        if schema.names.count(column) > 1:
            check_once(schema.names, str(file))
        if schema.field(column).type != expected.field(column).type:
            raise ValueError(
                f"{file}: column {column!r} is of type {schema.field(column).type} and of type "
                f"{expected.field(column).type} in the first file; expected one type"
            )


def _as_numbers(column: pa.Array) -> Float[np.ndarray, " R"]:
    return pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)


# ------------------------------------------------------------------------ arrays


@dataclass(frozen=True)
class ArrayFolder:
    """Arrays in a folder, one file each, read in parts.

    They are not memory-mapped: pages of a map stay in memory and count.

    Attributes
    ----------
    folder : Path
    arrays : dict of str
        The arrays by name.
    """

    folder: Path
    arrays: Mapping[str, _ArrayOnDisk]

    @classmethod
    def opened(cls, folder: Path) -> Self:
        """Open the arrays that exist; instances and bag_index are required."""
        names = ("instances", "bag_index", "labels", "targets", "instance_labels")
        files = {name: folder / f"{name}.npy" for name in names}
        if not files["bag_index"].exists():
            raise FileNotFoundError(
                f"{files['bag_index']} does not exist; expected a bag for each row"
            )
        found = cls(folder, {n: _ArrayOnDisk.opened(f) for n, f in files.items() if f.exists()})
        found._check()
        return found

    def _check(self) -> None:
        instances, index = self.arrays["instances"], self.arrays["bag_index"]
        if len(instances.shape) != 2 or 0 in instances.shape:
            raise ValueError(
                f"{instances.file} has shape {instances.shape}; expected (instances, features)"
            )
        if index.dtype.kind not in "iu":
            raise TypeError(f"{index.file} has type {index.dtype}; expected integers")
        index.check_length(self.num_rows, "instance")
        num_bags = self.num_bags
        if num_bags < 1:
            raise ValueError(
                f"{index.file} ends with bag {num_bags - 1}; expected bags 0, 1, 2, … one after "
                "another"
            )
        for name, length, each in (
            ("labels", num_bags, "bag"),
            ("targets", num_bags, "bag"),
            ("instance_labels", self.num_rows, "instance"),
        ):
            if name in self.arrays:
                self.arrays[name].check_length(length, each)

    @property
    def num_rows(self) -> int:
        """Number N of instances."""
        return self.arrays["instances"].shape[0]

    @property
    def num_bags(self) -> int:
        """Number B of bags."""
        return int(self.arrays["bag_index"].rows(self.num_rows - 1, self.num_rows)[0]) + 1

    @property
    def num_features(self) -> int:
        """Number D of features."""
        return self.arrays["instances"].shape[1]

    def locate(self, row: int) -> str:
        """The row number and the file, for messages."""
        return f"{row} of {self.arrays['instances'].file.name}"

    def fingerprint(self) -> tuple[tuple[str, int, int], ...]:
        """Name, size and time of change of each file."""
        return _fingerprint([array.file for array in self.arrays.values()])

    def pieces(self, num_rows: int, new_buffer: NewBuffer) -> Iterator[Piece]:
        """Pieces of as many whole bags as fit into ``num_rows``; ``new_buffer`` allocates."""
        row, last = 0, -1
        while row < self.num_rows:
            index = self._index_of_whole_bags(row, num_rows)
            self._check_index(index, row, last)
            first, end, last = _changes(index), row + len(index), int(index[-1])
            yield Piece(
                row,
                self.arrays["instances"].rows(row, end, new_buffer),
                [str(bag) for bag in index[first]],
                _runs(first, len(index)),
                self._of_bags("labels", index),
                self._of_bags("targets", index),
                self._of_rows("instance_labels", row, end),
            )
            row = end

    def _index_of_whole_bags(self, row: int, num_rows: int) -> Int[np.ndarray, " R"]:
        """Bag index from a row on, of as many bags as fit or of one larger bag."""
        length = num_rows
        while True:
            # With one more row, to see whether the last bag continues.
            index = self.arrays["bag_index"].rows(row, min(row + length + 1, self.num_rows))
            ends = _changes(index)[1:]
            if row + len(index) == self.num_rows:
                ends = np.append(ends, len(index))
            if ends.size:
                return index[: ends[_num_that_fit(ends, num_rows) - 1]]
            length *= 2

    def _check_index(self, index: Int[np.ndarray, " R"], row: int, before: int) -> None:
        step = np.diff(index.astype(np.int64), prepend=before)
        wrong = np.flatnonzero((step < 0) | (step > 1))
        if wrong.size:
            n = int(wrong[0])
            raise ValueError(
                f"{self.arrays['bag_index'].file}: row {row + n} is of bag {index[n]} after bag "
                f"{index[n] - step[n]}; expected bags 0, 1, 2, … one after another"
            )

    def _of_bags(self, name: str, index: Int[np.ndarray, " R"]) -> Float[np.ndarray, " R"] | None:
        if name not in self.arrays:
            return None
        first = int(index[0])
        return self.arrays[name].rows(first, int(index[-1]) + 1).astype(float)[index - first]

    def _of_rows(self, name: str, row: int, end: int) -> Float[np.ndarray, " R"] | None:
        return self.arrays[name].rows(row, end).astype(float) if name in self.arrays else None


@dataclass(frozen=True)
class _ArrayOnDisk:
    """A ``.npy`` file with shape, type and the offset of its numbers."""

    file: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int

    @classmethod
    def opened(cls, file: Path) -> Self:
        try:
            whole = np.load(file, mmap_mode="r")
        except ValueError as error:
            raise ValueError(f"{file} is not a whole array: {error}; write it again") from error
        if not isinstance(whole, np.memmap) or whole.dtype.kind not in "biuf":
            raise TypeError(f"{file} has type {whole.dtype}; expected numbers")
        if not whole.flags.c_contiguous:
            raise ValueError(f"{file} is stored column by column; expected row by row (order='C')")
        return cls(file, whole.shape, whole.dtype, whole.offset)

    def check_length(self, length: int, each: str) -> None:
        """Raise an error unless the shape is ``(length,)``."""
        if self.shape != (length,):
            raise ValueError(
                f"{self.file} has shape {self.shape}; expected ({length},), one for each {each}"
            )

    def rows(self, first: int, end: int, new_buffer: NewBuffer = np.empty) -> np.ndarray:
        """Read rows ``first`` to ``end``."""
        values = new_buffer((end - first, *self.shape[1:]), self.dtype)
        size = values.nbytes // len(values)
        with self.file.open("rb") as file:
            file.seek(self.offset + first * size)
            num_read = file.readinto(values) // size
        if num_read < len(values):
            raise ValueError(
                f"{self.file} ends in row {first + num_read} of {self.shape[0]}; write it again"
            )
        return values


type Source = ParquetFiles | ArrayFolder
