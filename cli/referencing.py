"""What ``milzoo reference`` and ``milzoo engines`` do: entries, new draws, measurements."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from ..datasets.arguments import look_up
from ..inference import ENGINES
from ..references import (
    ENTRIES,
    LEAGUE,
    Entry,
    Reference,
    entry_named,
    load_reference,
    make_reference,
    save_reference,
    stan_program,
)
from ..references.league import (
    in_order,
    lines_of_table,
    lines_of_tags,
    picture,
    rows_as_they_come,
)
from ..references.stored import DATABASE, is_kept, largest_difference, save_entry

__all__ = ["benchmark", "check", "list_entries", "make", "write_stan"]

# Between two makings of one reference.
_MOST_ERRORS = 4.0

# Measure → its heading and format: short, as a terminal may have 80 columns.
_COLUMNS = {
    "wall_seconds": ("wall s", ".1f"),
    "mean_error": ("mean error", ".3f"),
    "sd_ratio": ("sd ratio", ".2f"),
    "coverage_90": ("90 %", ".2f"),
    "kl": ("KL", ".2f"),
    "classifier_accuracy": ("C2ST", ".2f"),
}


def list_entries() -> None:
    """Print a table of all entries."""
    table = Table("reference", "about", "tags", "kept")
    for entry in ENTRIES.values():
        kept = entry.reason and f"no: {entry.reason}"
        kept = kept or ("yes" if is_kept(entry.name) else "no")
        table.add_row(entry.name, escape(entry.about), ", ".join(entry.tags), kept)
    Console().print(table)


def make(names: Sequence[str], seed: int, folder: Path | None) -> list[str]:
    """Make references, and keep those that pass all gates; or the reason why there are no draws.

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
    refused, kept_in = [], DATABASE if folder is None else folder
    for entry in [entry_named(name) for name in names]:
        if entry.reason:
            save_entry(entry, folder=kept_in)
            Console().print(f"no draws of {entry.name} are kept: {entry.reason}")
        elif (made := _made(entry, seed)).passed:
            save_reference(made, kept_in)
        else:
            refused.append(entry.name)
    return refused


def check(names: Sequence[str], seed: int) -> list[str]:
    """Make references once more, and compare their moments with those that are kept.

    Parameters
    ----------
    names : sequence of str
    seed : int
        Another than that of the kept ones: from the same seed come the same draws.

    Returns
    -------
    list of str
        Names of those that fail a gate, or differ by more than four Monte-Carlo standard errors.
    """
    different = []
    for reference in [load_reference(name) for name in names]:
        made = _made(reference.entry, seed)
        found = largest_difference(made.moments, reference.moments)
        Console().print(
            f"{reference.name}: moments differ by at most {found:.2f} standard errors from those "
            f"of {reference.made['date']}"
        )
        if not (made.passed and found < _MOST_ERRORS):
            different.append(reference.name)
    return different


def write_stan(names: Sequence[str], folder: Path) -> None:
    """Write entries as Stan programs, each with its data as JSON.

    Parameters
    ----------
    names : sequence of str
    folder : Path
        Of ``NAME.stan`` and ``NAME.json``.

    Raises
    ------
    NotImplementedError
        If no program is written of an entry's model.
    """
    written = {name: stan_program(*entry_named(name).problem()) for name in names}
    folder.mkdir(parents=True, exist_ok=True)
    for name, (program, data) in written.items():
        (folder / f"{name}.stan").write_text(program, "utf-8")
        (folder / f"{name}.json").write_text(f"{json.dumps(data)}\n", "utf-8")


def _made(entry: Entry, seed: int) -> Reference:
    """A reference, whose gates are printed."""
    made = make_reference(entry, seed=seed)
    table = Table("gate", "value", "limit", "", title=entry.name)
    for gate in made.gates:
        limit = f"{gate.must_be} {gate.limit:g}"
        word = "passed" if gate.passed else "failed"
        table.add_row(gate.name, f"{gate.value:.4g}", limit, word)
    Console().print(table)
    return made


def benchmark(
    names: Sequence[str],
    tags: Sequence[str],
    seed: int,
    jobs: int | None,
    folder: Path | None = None,
) -> None:
    """Print what engines do on the kept references, a table for each engine.

    Parameters
    ----------
    names : sequence of str
        Those of the league if empty.
    tags : sequence of str
    seed : int
    jobs : int or None
        References at a time; as many as there are cores if None.
    folder : Path or None
        Where all rows go, as ``league.csv``, those of a reference as it finishes; at the end
        seconds to an error of 0.1 sds by tag and by reference, as ``league.md``, and a picture,
        ``league.png``; None for nowhere.
    """
    known = {**LEAGUE, **ENGINES}
    chosen = {name: look_up("engine", name, known) for name in names} or LEAGUE
    started, rows = time.perf_counter(), []
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for of_one in rows_as_they_come(chosen, seed=seed, tags=tags, jobs=jobs):
        rows.append(of_one)
        if folder is not None:  # now, as the run may be killed
            in_order(rows).to_csv(folder / "league.csv", index=False, float_format="%.6g")
        seconds = time.perf_counter() - started
        Console(stderr=True).print(f"{of_one['reference'].iloc[0]} done at {seconds:.0f} s")
    found = in_order(rows)
    for name, of_engine in found.groupby("engine", sort=False):
        Console().print(_table(str(name), of_engine))
    if folder is not None:
        told = "\n".join([*lines_of_tags(found), "", *lines_of_table(found)])
        (folder / "league.md").write_text(f"{told}\n", "utf-8")
        picture(found).savefig(folder / "league.png")


def _table(name: str, rows: pd.DataFrame) -> Table:
    """One engine on all references, in 80 columns."""
    table = Table(
        Column("reference", no_wrap=True),
        Column("status", overflow="fold"),
        *(Column(heading, justify="right") for heading, _ in _COLUMNS.values()),
        title=name,
        box=SIMPLE_HEAD,
        padding=0,
    )
    for _, row in rows.iterrows():
        cells = (
            f"{row[measure]:{form}}" if np.isfinite(row[measure]) else "–"
            for measure, (_, form) in _COLUMNS.items()
        )
        table.add_row(str(row["reference"]), escape(str(row["status"])), *cells)
    return table
