"""A journal of finished simulations: what is written stays, whatever happens to the process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

__all__ = ["Journal", "described"]

type Entry = dict[str, Any]


class Journal:
    """A file of one JSON object a line: of which run it is, then an entry for each simulation.

    An entry is on the disk before the next is begun. A line that a dying process left unfinished
    is dropped when the file is opened again.

    Parameters
    ----------
    path : path
    run : dict
        What the run is about, as JSON's types; a file of another run is refused.

    Raises
    ------
    ValueError
        If the file is of another run, or no journal.
    """

    def __init__(self, path: str | os.PathLike, run: Entry) -> None:
        self._path = Path(path)
        self.entries = self._read(run) if self._path.exists() else []
        if not self._path.exists():
            self._path.write_text("")
        if self._path.stat().st_size == 0:
            self._append_line({"milzoo": run})

    def append(self, entry: Entry) -> None:
        """Write one entry."""
        self._append_line(entry)
        self.entries.append(entry)

    def _append_line(self, entry: Entry) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, run: Entry) -> list[Entry]:
        whole, newline, unfinished = self._path.read_bytes().rpartition(b"\n")
        if unfinished:
            with self._path.open("rb+") as file:
                file.truncate(len(whole) + len(newline))
        if not whole:
            return []
        try:
            header, *entries = [json.loads(line) for line in whole.decode().split("\n")]
            found = header["milzoo"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self._path} is no journal of milzoo; give the path of a new file, or of one "
                "that an earlier run has begun"
            ) from error
        differ = sorted(name for name in run | found if run.get(name) != found.get(name))
        if differ:
            name = differ[0]
            raise ValueError(
                f"{self._path} is of another run: its {', '.join(differ)} differ ({name} was "
                f"{found.get(name)}, is {run.get(name)}); give another path, or the same arguments"
            )
        return entries


def described(value: Any) -> str:
    """What a value is, the same in every process: functions by name, arrays by a digest."""
    match value:
        case partial():
            options = ", ".join(f"{k}={described(v)}" for k, v in sorted(value.keywords.items()))
            return f"{described(value.func)}({options})"
        case jax.Array() if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            return described(jax.random.key_data(value))
        case np.ndarray() | jax.Array():
            array = np.asarray(value)
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
