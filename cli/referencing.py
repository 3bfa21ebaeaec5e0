"""What ``milzoo reference`` and ``milzoo engines`` do: entries, new draws, measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from ..datasets.arguments import look_up
from ..inference import ENGINES
from ..references import (
    ENTRIES,
    benchmark_engine,
    entry_named,
    make_reference,
    save_reference,
)
from ..references.stored import DATABASE, is_kept

__all__ = ["benchmark", "list_entries", "make"]

_FORMATS = {
    "wall_seconds": ".1f",
    "mean_error": ".3f",
    "worst_error": ".3f",
    "sd_ratio": ".2f",
    "coverage_90": ".2f",
    "kl": ".2f",
    "classifier_accuracy": ".2f",
}


def list_entries() -> None:
    """Print a table of all entries."""
    table = Table("reference", "about", "tags", "kept")
    for entry in ENTRIES.values():
        kept = "yes" if is_kept(entry.name) else "no"
        table.add_row(entry.name, escape(entry.about), ", ".join(entry.tags), kept)
    Console().print(table)


def make(names: Sequence[str], seed: int, folder: Path | None) -> list[str]:
    """Make references, and keep those that pass all gates.

    Parameters
    ----------
    names : sequence of str
    seed : int
    folder : Path or None
        The package's if None.

    Returns
    -------
    list of str
        Names of those that do not pass.
    """
    console, refused = Console(), []
    for entry in [entry_named(name) for name in names]:
        made = make_reference(entry, seed=seed)
        table = Table("gate", "value", "limit", "", title=entry.name)
        for gate in made.gates:
            limit = f"{gate.must_be} {gate.limit:g}"
            word = "passed" if gate.passed else "failed"
            table.add_row(gate.name, f"{gate.value:.4g}", limit, word)
        console.print(table)
        if made.passed:
            save_reference(made, DATABASE if folder is None else folder)
        else:
            refused.append(entry.name)
    return refused


def benchmark(names: Sequence[str], tags: Sequence[str], seed: int) -> None:
    """Print what engines do on the kept references, a table for each engine.

    Parameters
    ----------
    names, tags : sequence of str
    seed : int
    """
    console = Console()
    for engine in [look_up("engine", name, ENGINES) for name in names]:
        found = benchmark_engine(engine, seed=seed, tags=tags)
        first = Column("reference", no_wrap=True)
        table = Table(first, "status", *_FORMATS, title=engine.__name__)
        for reference, row in found.iterrows():
            cells = (
                f"{row[name]:{form}}" if np.isfinite(row[name]) else "–"
                for name, form in _FORMATS.items()
            )
            table.add_row(str(reference), escape(str(row["status"])), *cells)
        console.print(table)
