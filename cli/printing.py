"""Output of the commands: tables by rich for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from inspect import getdoc
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..diagnostics import Comparison
from ..diagnostics.measures.columns import MEASURES, formatted

__all__ = ["Display", "print_json", "print_names"]


class Display:
    """A terminal, or nothing at all.

    Parameters
    ----------
    quiet : bool
        Whether a program reads standard output.
    """

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(quiet=quiet)
        self.progress = not quiet and sys.stdout.isatty()

    def say(self, sentence: str) -> None:
        """Show a sentence."""
        self.console.print(escape(sentence), style="dim", highlight=False)

    def comparison(self, comparison: Comparison) -> None:
        """Show the table and the verdicts."""
        self.console.print(_table(comparison))
        for text in (comparison.reference_sentence, *comparison.sentences.values()):
            self.console.print(f"\n{escape(text)}", highlight=False)

    def report(self, page: Path) -> None:
        """Show where the report is."""
        self.console.print(f"\nReport: {escape(str(page))}", highlight=False, soft_wrap=True)


def _table(comparison: Comparison) -> Table:
    """Engines as columns, measures as rows under the question that they answer."""
    table = Table(title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("")
    for name in comparison.table.index:
        table.add_column(_broken(str(name)), justify="right", overflow="fold", max_width=11)
    group = ""
    for measure in MEASURES:
        if measure.column not in comparison.table:
            continue
        cells = [formatted(measure, value) for value in comparison.table[measure.column]]
        if set(cells) <= {"–", ""}:
            continue
        if measure.group != group:
            if group:
                table.add_section()
            group = measure.group
            table.add_row(f"[bold]{escape(group)}")
        table.add_row(f"  {escape(measure.label)}", *map(escape, cells))
    return table


def _broken(name: str) -> str:
    """A long name on two lines: ``coordinate_ascent`` in eleven columns."""
    ends = [index + 1 for index, letter in enumerate(name) if letter == "_"]
    if not ends:
        return escape(name.replace(" (", "\n("))
    end = min(ends, key=lambda length: abs(2 * length - len(name)))
    return escape(f"{name[:end]}\n{name[end:]}".replace(" (", "\n("))


def print_names(kind: str, known: Mapping[str, Any]) -> None:
    """List names, each with one line about it."""
    table = Table(header_style="bold")
    table.add_column(kind, no_wrap=True)
    table.add_column("what it is")
    for name, entry in known.items():
        about = entry if isinstance(entry, str) else (getdoc(entry) or "").partition("\n")[0]
        table.add_row(escape(name), escape(about))
    Console().print(table)


def print_json(content: dict[str, Any]) -> None:
    """Print JSON and nothing else."""
    print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
