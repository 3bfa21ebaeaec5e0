"""What long runs write down on the way, so that a killed one goes on where it was.

Each thing written is whole or not there, and on the disk before the next is begun. Beside it stands
of which run it is: what is found under other arguments is refused, not mixed in.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from jax import Array

from ..datasets.bags import Bags

__all__ = ["BlockFolder", "Entry", "Journal", "Run", "block_folder", "described", "identity"]

type Entry = dict[str, Any]
type Run = dict[str, str]

# A header begins with it.
_BEGIN = b'{"milzoo": '


def identity(model: Any, bags: Bags, **others: Any) -> Run:
    """What a run is about, in a form that can be written down and compared.

    Parameters
    ----------
    model : Model
    bags : Bags
    **others
        Engine, options, seed. Of functions only the name is known.

    Returns
    -------
    dict of str
    """
    parts = [described(getattr(bags, field.name)) for field in fields(bags)]
    digest = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
    of_bags = f"{bags.num_bags} bags, {bags.num_instances} instances, {digest}"
    known = {name: described(value) for name, value in others.items()}
    return {"model": described(model), "bags": of_bags} | known


class Journal:
    """A file of one JSON object a line: of which run it is, then an entry for each simulation.

    A line that a dying process left unfinished is dropped when the file is opened again.

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
        self._path = Path(path)
        self.entries: list[Entry] = []
        if self._path.exists():
            self._read(run)
        else:
            self._path.touch()
        if self._path.stat().st_size == 0:
            self._append_line({"milzoo": run})

    def append(self, entry: Entry) -> None:
        """Write one entry."""
        self._append_line(entry)
        self.entries.append(entry)

    def _append_line(self, entry: Entry) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            _force(file)

    def _read(self, run: Run) -> None:
        whole, newline, unfinished = self._path.read_bytes().rpartition(b"\n")
        if newline:
            header, *lines = whole.decode(errors="replace").split("\n")
            _check_run(self._path, header, run)
            self.entries = [json.loads(line) for line in lines]
        elif not unfinished.startswith(_BEGIN[: len(unfinished)]):
            _check_run(self._path, "", run)  # a file of something else, without a line
        with self._path.open("rb+") as file:
            file.truncate(len(whole) + len(newline))


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
        self._path = Path(path)
        header = self._path / "run.json"
        if header.exists():
            _check_run(self._path, header.read_text(), run)
            return
        if self._path.exists() and not (self._path.is_dir() and not any(self._path.iterdir())):
            raise ValueError(
                f"{self._path} is there already and holds no run of milzoo; give the path of a new "
                "folder, or of one that an earlier run has begun"
            )
        self._path.mkdir(parents=True, exist_ok=True)
        self._write("run.json", lambda file: file.write(json.dumps({"milzoo": run}).encode()))

    @property
    def num_blocks(self) -> int:
        """How many are finished."""
        return next(n for n in count() if not self._block(n).exists())

    def write(self, state: Any, rows: Any, seconds: float) -> None:
        """Write the block after those that are there.

        Parameters
        ----------
        state : pytree
            After the block.
        rows : pytree
            What is kept of it.
        seconds : float
            That it took.
        """
        arrays = {
            f"{what} {n}": _as_numpy(leaf)
            for what, tree in (("state", state), ("row", rows), ("second", seconds))
            for n, leaf in enumerate(jax.tree.leaves(tree))
        }
        self._write(
            self._block(self.num_blocks).name,
            lambda file: np.savez(file, allow_pickle=False, **arrays),
        )

    def blocks(self, like: Any) -> list[tuple[Any, float]]:
        """What was kept of each, in the structure of another's, and how long it took."""
        return [
            (self._read(number, "row", like), float(self._read(number, "second", 0.0)))
            for number in range(self.num_blocks)
        ]

    def state(self, like: Any) -> Any:
        """The state after the last block, in the structure and on the devices of another."""
        leaves = self._read(self.num_blocks - 1, "state", like)
        return jax.tree.map(_as_there, leaves, like)

    def _block(self, number: int) -> Path:
        return self._path / f"block_{number:06d}.npz"

    def _read(self, block: int, what: str, like: Any) -> Any:
        structure = jax.tree.structure(like)
        with np.load(self._block(block)) as arrays:
            leaves = [arrays[f"{what} {n}"] for n in range(structure.num_leaves)]
        return jax.tree.unflatten(structure, leaves)

    def _write(self, name: str, write: Callable[[Any], Any]) -> None:
        unfinished = self._path / f"{name}.unfinished"
        with unfinished.open("wb") as file:
            write(file)
            _force(file)
        unfinished.replace(self._path / name)


def block_folder(
    path: str | os.PathLike | None, model: Any, bags: Bags, **others: Any
) -> BlockFolder | None:
    """A folder for blocks of the run that `identity` describes; None where no path is given."""
    return None if path is None else BlockFolder(path, identity(model, bags, **others))


def _force(file: IO) -> None:
    """On the disk, not in a buffer."""
    file.flush()
    os.fsync(file.fileno())


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _as_there(found: np.ndarray, like: Array) -> Array:
    leaf = jax.numpy.asarray(found)
    if _is_key(like):
        leaf = jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))
    return jax.device_put(leaf, like.sharding)


def _check_run(path: Path, header: str, run: Run) -> None:
    try:
        found = dict(json.loads(header)["milzoo"])
    except (ValueError, KeyError, TypeError) as error:
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
    """What a value is, the same in every process: functions by name, arrays by a digest."""
    match value:
        case partial():
            options = ", ".join(f"{k}={described(v)}" for k, v in sorted(value.keywords.items()))
            return f"{described(value.func)}({options})"
        case np.ndarray() | jax.Array():
            array = _as_numpy(value)
            digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
            return f"{array.dtype}{list(array.shape)} {digest}"
        case _ if is_dataclass(value) and not isinstance(value, type):
            parts = ", ".join(
                f"{field.name}={described(getattr(value, field.name))}" for field in fields(value)
            )
            return f"{type(value).__name__}({parts})"
        case _ if isinstance(value, type | Callable):
            return getattr(value, "__qualname__", type(value).__qualname__)
        case _:
            return repr(value)
