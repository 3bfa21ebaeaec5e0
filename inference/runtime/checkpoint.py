"""Checkpoints of long runs, from which a killed run resumes.

Each file is complete or absent, even if the process dies. A header identifies the run: checkpoints
of other arguments are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from jax import Array
from numpyro.distributions import Distribution

from ...datasets.bags import Bags
from ...datasets.streaming import BagStream
from ...datasets.writing import (
    UNFINISHED,
    check_folder,
    check_writable,
    refusals_named,
    synced,
    written_whole,
)

__all__ = ["BlockFolder", "Entry", "Journal", "Run", "block_folder", "described", "identity"]

type Entry = dict[str, Any]
type Run = dict[str, str]

# The beginning of a header.
_BEGIN = b'{"milzoo": '
# Attributes that identify a distribution beside its parameters.
_OF_DISTRIBUTIONS = ("batch_shape", "event_shape", "base_dist", "transforms")


def identity(model: Any, bags: Bags | BagStream, **others: Any) -> Run:
    """Describe a run by its model, bags and options, as text that can be compared.

    Parameters
    ----------
    model : Model
    bags : Bags or BagStream
        Of a stream the names, sizes and times of change of its files.
    **others
        Engine, options, seed.

    Returns
    -------
    dict of str
    """
    if isinstance(bags, BagStream):
        parts, size = [f"{bags.chunk_instances} {bags.source.fingerprint()}"], "a stream"
    else:
        parts = [described(getattr(bags, field.name)) for field in fields(bags)]
        size = f"{bags.num_bags} bags"
    digest = _digest(" ".join(parts).encode())
    of_bags = f"{size}, {bags.num_instances} instances, {digest}"
    known = {name: described(value) for name, value in others.items()}
    return {"model": described(model), "bags": of_bags} | known


class Journal:
    """A file of JSON lines: a header with the run, then an entry for each simulation.

    A line that is damaged, or that a dying process left unfinished, is dropped when the file is
    opened again. Another
    process on the same run does no harm: it writes the same lines.

    Parameters
    ----------
    path : path
    run : dict of str
        As from `identity`.

    Raises
    ------
    ValueError
        If the file is of another run, or no journal.
    """

    def __init__(self, path: str | os.PathLike, run: Run) -> None:
        self._path, self._run = check_writable(path), run
        self.entries: list[Entry] = self._read() if self._path.exists() else []

    def append(self, entry: Entry) -> None:
        """Write one entry; the first one creates the file."""
        lines = [] if self._path.exists() and self._path.stat().st_size else [{"milzoo": self._run}]
        with refusals_named(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                for line in (*lines, _signed({"number": len(self.entries)} | entry)):
                    file.write(json.dumps(line) + "\n")
            synced(self._path)
        self.entries.append(entry)

    def _read(self) -> list[Entry]:
        whole, newline, unfinished = self._path.read_bytes().rpartition(b"\n")
        header, *lines = whole.decode(errors="replace").split("\n")
        if newline or not unfinished.startswith(_BEGIN[: len(unfinished)]):
            _check_run(self._path, header, self._run)
        with self._path.open("rb+") as file:
            file.truncate(len(whole) + len(newline))
        return _up_to_a_gap(lines)


class BlockFolder:
    """A folder with a file for each finished block of a Markov chain: its draws, and the state.

    Parameters
    ----------
    path : path
    run : dict of str
        As from `identity`.

    Raises
    ------
    ValueError
        If the folder is of another run, or holds something else.
    """

    def __init__(self, path: str | os.PathLike, run: Run) -> None:
        self._path, self._run = Path(path), run
        if self._header.exists():
            _check_run(self._path, self._header.read_text(errors="replace"), run)
        elif self._path.exists() and self._holds_something():
            raise ValueError(
                f"{self._path} is there already and holds no run of milzoo; give the path of a new "
                "folder, or of one that an earlier run has begun"
            )
        check_folder(self._path)

    @property
    def _header(self) -> Path:
        return self._path / "run.json"

    def _holds_something(self) -> bool:
        if not self._path.is_dir():
            return True
        return any(path.suffix != UNFINISHED for path in self._path.iterdir())

    @property
    def num_blocks(self) -> int:
        """The number of finished blocks."""
        return next(n for n in count() if not self._block(n).exists())

    def cut(self, num_blocks: int) -> None:
        """Delete the blocks after the first ``num_blocks``."""
        for number in reversed(range(num_blocks, self.num_blocks)):
            self._block(number).unlink()

    def write(self, number: int, state: Any, rows: Any, seconds: float) -> None:
        """Write a block; the first one creates the folder.

        Parameters
        ----------
        number : int
            Of the block, from 0 on.
        state : pytree
            After the block.
        rows : pytree
            Its stored draws.
        seconds : float
            Its duration.
        """
        arrays = {
            f"{what} {n}": _as_numpy(leaf)
            for what, tree in (("state", state), ("row", rows), ("second", seconds))
            for n, leaf in enumerate(jax.tree.leaves(tree))
        }
        if not self._header.exists():
            with written_whole(self._header) as unfinished:
                unfinished.write_text(json.dumps({"milzoo": self._run}))
        with written_whole(self._block(number)) as unfinished, unfinished.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def blocks(self, like: Any) -> list[tuple[Any, float]]:
        """Read the stored draws of each block, in the structure of ``like``, and its seconds."""
        return [
            (self._read(number, "row", like), float(self._read(number, "second", 0.0)))
            for number in range(self.num_blocks)
        ]

    def state(self, like: Any) -> Any:
        """Read the state after the last block, in the structure and on the devices of ``like``."""
        leaves = self._read(self.num_blocks - 1, "state", like)
        return jax.tree.map(_as_there, leaves, like)

    def _block(self, number: int) -> Path:
        return self._path / f"block_{number:06d}.npz"

    def _read(self, block: int, what: str, like: Any) -> Any:
        structure = jax.tree.structure(like)
        file = self._block(block)
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
                leaves = [arrays[f"{what} {n}"] for n in range(structure.num_leaves)]
        except Exception as error:  # a damaged archive makes NumPy and zipfile raise any kind
            raise ValueError(
                f"{file} is damaged ({error}); delete it and the blocks after it, from where the "
                "run then goes on, or give the path of a new folder"
            ) from error
        return jax.tree.unflatten(structure, leaves)


def block_folder(
    path: str | os.PathLike | None, model: Any, bags: Bags | BagStream, **others: Any
) -> BlockFolder | None:
    """A folder for blocks of the run that `identity` describes; None where no path is given."""
    return None if path is None else BlockFolder(path, identity(model, bags, **others))


def _up_to_a_gap(lines: list[str]) -> list[Entry]:
    """Entries from number 0 on; two processes at once may have torn each other's lines."""
    numbered: dict[int, Entry] = {}
    for line in lines:
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict) and entry.pop("digest", None) == _signed(entry)["digest"]:
                numbered[entry.pop("number")] = entry
    return [numbered[n] for n in takewhile(numbered.__contains__, count())]


def _signed(entry: Entry) -> Entry:
    """Add a digest to an entry, so that a damaged line is dropped like an unfinished one."""
    return entry | {"digest": _digest(json.dumps(entry, sort_keys=True).encode())}


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _as_there(found: np.ndarray, like: Array | np.ndarray) -> Array | np.ndarray:
    if isinstance(like, np.ndarray):
        return found
    leaf = jax.numpy.asarray(found)
    if _is_key(like):
        leaf = jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))
    return jax.device_put(leaf, like.sharding)


def _check_run(path: Path, header: str, run: Run) -> None:
    try:
        found = dict(json.loads(header)["milzoo"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} holds no run of milzoo; give a new path, or that of a run that was begun"
        ) from error
    differ = sorted(name for name in run | found if run.get(name) != found.get(name))
    if differ:
        name = differ[0]
        raise ValueError(
            f"{path} is of another run, in its {', '.join(differ)} ({name} was {found.get(name)}, "
            f"is {run.get(name)}); give another path, or the same arguments"
        )


def described(value: Any) -> str:
    """Describe a value by text that is the same in every process.

    Arrays are described by a digest; functions by their name, code and closure, but not by the code
    of functions that they call.
    """
    return _described(value, ())


def _described(value: Any, parents: tuple[int, ...]) -> str:
    if id(value) in parents:
        return "itself"

    def part(other: Any) -> str:
        return _described(other, (*parents, id(value)))

    def parts(others: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}={part(other)}" for name, other in sorted(others.items()))

    match value:
        case np.generic():
            return repr(value.item())
        case np.ndarray() | jax.Array():
            array = _as_numpy(value)
            digest = _digest(np.ascontiguousarray(array).tobytes())
            return f"{array.dtype}{list(array.shape)} {digest}"
        case dict():
            return "{" + parts({str(name): other for name, other in value.items()}) + "}"
        case list() | tuple():
            return f"{type(value).__name__}({', '.join(map(part, value))})"
        case partial():
            return f"{part(value.func)}({part(value.args)}, {parts(value.keywords)})"
        case MethodType():
            return f"{part(value.__self__)}.{value.__name__}"
        case FunctionType():
            around = [cell.cell_contents for cell in value.__closure__ or ()]
            code = _digest(_code(value.__code__).encode())
            return f"{_name(value)} {code}({part([*around, value.__defaults__])})"
        case Distribution():
            # Not all attributes: some are computed and cached on first use.
            names = (*value.arg_constraints, *_OF_DISTRIBUTIONS)
            known = {name: getattr(value, name) for name in names if hasattr(value, name)}
            return f"{_name(type(value))}({parts(known)})"
        case type():
            return _name(value)
        case ModuleType():
            return value.__name__
        case _ if is_dataclass(value):
            known = {field.name: getattr(value, field.name) for field in fields(value)}
            return f"{type(value).__name__}({parts(known)})"
        case _ if hasattr(value, "__wrapped__"):  # by jax.jit, for one
            return part(value.__wrapped__)
        case _ if hasattr(value, "__dict__"):
            return f"{_name(type(value))}({parts(vars(value))})"
        case _:
            return _without_addresses(repr(value))


def _name(of: Any) -> str:
    return f"{of.__module__}.{of.__qualname__}"


def _code(code: CodeType) -> str:
    """Describe the code of a function, without its file and line."""
    constants = [_code(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)
