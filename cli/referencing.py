"""What ``milzoo reference`` does: the list of entries, and new draws of some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..references import ENTRIES, entry_named, make_reference, save_reference
from ..references.stored import DATABASE, is_kept

__all__ = ["list_entries", "make"]


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
