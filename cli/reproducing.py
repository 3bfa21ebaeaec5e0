"""What ``milzoo reproduce`` does: the list, the runs with their tables, the pages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..datasets.arguments import look_up
from ..papers import (
    PAPERS,
    Comparison,
    Exhibit,
    Paper,
    compared,
    exhibits_named,
    outcomes_of,
    reproduce,
    scores_by_setting,
)
from ..papers.exhibits import SCORES
from ..papers.pages import write_pages
from ..papers.results import reasons

__all__ = ["Wanted", "list_outcomes", "print_settings", "run", "write"]

_PROTOCOLS = {"as-published": ("as published",), "honest": ("honest",)}


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; the fields are the options of the command."""

    name: str | None
    folder: Path
    protocol: str | None = None
    methods: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    seed: int = 0
    jobs: int | None = None
    toy: bool = False
    again: bool = False

    def exhibits(self) -> Iterator[tuple[Paper, Exhibit]]:
        """Tables and figures of the given name; all of them where no name is given."""
        for name in [self.name] if self.name else [paper.name for paper in PAPERS]:
            yield from exhibits_named(name)

    @property
    def protocols(self) -> tuple[str, ...]:
        """Names of the protocols."""
        if self.protocol is None:
            return "as published", "honest"
        return look_up("protocol", self.protocol, _PROTOCOLS)


def list_outcomes(wanted: Wanted) -> None:
    """Print each table and figure with its outcome by the results that are kept."""
    console, shown, outcomes = Console(), None, {}
    for paper, exhibit in wanted.exhibits():
        if paper is not shown:
            shown, outcomes = paper, outcomes_of(paper, wanted.folder)
            console.print(f"\n[bold]{escape(paper.citation)}[/bold]", highlight=False)
        outcome = outcomes[exhibit.name]
        name = f"{paper.name}/{exhibit.name}"
        console.print(
            f"{escape(name)}: {escape(exhibit.title)}. [bold]{outcome.state.capitalize()}[/bold]: "
            f"{escape(outcome.sentence)}",
            highlight=False,
        )


def run(wanted: Wanted) -> None:
    """Run what is not known of each table, and print it beside the published numbers."""
    console = Console()
    for paper, exhibit in wanted.exhibits():
        if wanted.toy and not exhibit.cells:
            continue
        console.print(f"\n[bold]{paper.name}/{exhibit.name}[/bold]: {escape(exhibit.title)}")
        results = reproduce(
            paper,
            exhibit,
            None if wanted.toy else wanted.folder,
            protocols=wanted.protocols,
            methods=wanted.methods or None,
            data=wanted.data or None,
            seed=wanted.seed,
            jobs=wanted.jobs,
            toy=wanted.toy,
            again=wanted.again,
            report=lambda sentence: console.print(escape(sentence), style="dim", highlight=False),
        )
        every = [one for one in compared(exhibit, results) if one.ours]
        if every:
            console.print(_table(every))
        for why, names in reasons(every).items():
            console.print(f"[bold]{escape('; '.join(names))}[/bold]: {escape(why)}.")
        if not wanted.toy:
            outcome = outcomes_of(paper, wanted.folder)[exhibit.name]
            console.print(escape(f"{outcome.state}: {outcome.sentence}"), highlight=False)


def print_settings(wanted: Wanted) -> None:
    """Print the scores of every setting that attempts choose from."""
    console = Console()
    for paper, exhibit in wanted.exhibits():
        found = scores_by_setting(
            exhibit,
            protocols=wanted.protocols,
            methods=wanted.methods or None,
            data=wanted.data or None,
            seed=wanted.seed,
            jobs=wanted.jobs,
        )
        for cell, attempt, scores in found:
            name = f"{cell.method} on {cell.data}, {attempt.protocol.name}"
            console.print(f"\n[bold]{paper.name}/{exhibit.name}[/bold]: {escape(name)}")
            # Two tables, as eleven columns of numbers are cut in a narrow window.
            is_of_instances = scores.columns.str.startswith("instance")
            for some in (scores.loc[:, ~is_of_instances], scores.loc[:, is_of_instances]):
                if len(some.columns):
                    console.print(_table_of_settings(some))


def _table_of_settings(scores: pd.DataFrame) -> Table:
    table = Table(header_style="bold")
    table.add_column("setting", overflow="fold")
    for score in scores.columns:
        name = SCORES.get(str(score), str(score)).replace("_", " ")
        table.add_column(name, justify="right")
    for setting, values in scores.iterrows():
        table.add_row(escape(str(setting)), *(f"{value:.3f}" for value in values))
    return table


def write(wanted: Wanted) -> None:
    """Write the pages of all papers from the results that are kept."""
    for page in write_pages(PAPERS, wanted.folder):
        print(page)


def _table(every: list[Comparison]) -> Table:
    table = Table(header_style="bold")
    for heading in ("method", "data", "score", "published", "as published", "honest", "difference"):
        table.add_column(heading, justify="left" if heading in ("method", "data") else "right")
    for one in every:
        ours = [
            f"{one.ours[name].value:.3f}" if name in one.ours else ""
            for name in ("as published", "honest")
        ]
        difference = "" if math.isnan(one.difference) else f"{one.difference:+.1f}"
        names = (one.cell.method, one.cell.data, SCORES[one.score])
        published = "" if one.published.value is None else f"{one.published.value:.3f}"
        table.add_row(*map(escape, names), published, *ours, difference)
    return table
