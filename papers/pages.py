"""Pages of the documentation: one for each paper, from the results that are kept."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from .exhibits import SCORES, Exhibit, Paper, Published
from .figures import draw_all
from .results import Comparison, Outcome, Result, compared, outcomes_of, path_of, read, reasons

__all__ = ["page_of", "write_pages"]


def write_pages(papers: Iterable[Paper], folder: Path) -> list[Path]:
    """Write a page for each paper beside its folder of results.

    Parameters
    ----------
    papers : iterable of Paper
    folder : Path
        ``docs/results``.

    Returns
    -------
    list of Path
    """
    pages = []
    for paper in papers:
        results = {one.name: read(path_of(folder, paper, one)) for one in paper.exhibits}
        draw_all(paper, results, folder)
        page = folder / f"{paper.name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        text = page_of(paper, results, outcomes_of(paper, folder))
        page.write_text(text, encoding="utf-8")
        pages.append(page)
    return pages


def page_of(paper: Paper, results: dict[str, list[Result]], outcomes: dict[str, Outcome]) -> str:
    """The page of a paper in Markdown.

    Parameters
    ----------
    paper : Paper
    results : dict of lists
        By the name of the exhibit.
    outcomes : dict of Outcome
        By the name of the exhibit.

    Returns
    -------
    str
    """
    lines = [
        f"# {paper.citation.partition(')')[0]})",
        "",
        f"{paper.citation}",
        "",
        f"{paper.remarks}",
        "",
        "| | | outcome | |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_heading(one)} | {one.title} | {outcomes[one.name].state} "
        f"| {outcomes[one.name].sentence} |"
        for one in paper.exhibits
    ]
    for exhibit in paper.exhibits:
        if exhibit.cells and results.get(exhibit.name):
            lines += ["", *_section(paper, exhibit, results[exhibit.name])]
        elif exhibit.command:
            lines += ["", f"## {_heading(exhibit)}: {exhibit.title}", "", f"`{exhibit.command}`"]
            if exhibit.picture:
                lines += ["", f"![{exhibit.title}: {exhibit.finding}](../{exhibit.picture})"]
        elif any(results.get(name) for name in exhibit.of):
            tables = " and ".join(_named(name) for name in exhibit.of)
            picture = f"![{exhibit.title}, by {tables}]({paper.name}/{exhibit.name}.png)"
            lines += ["", f"## {_heading(exhibit)}: {exhibit.title}", "", picture]
    return "\n".join(lines) + "\n"


def _heading(exhibit: Exhibit) -> str:
    return _named(exhibit.name).capitalize()


def _named(name: str) -> str:
    return name.replace("-", " ")


def _section(paper: Paper, exhibit: Exhibit, results: list[Result]) -> list[str]:
    """The table of one exhibit, its protocols, and where the results come from."""
    every = [one for one in compared(exhibit, results) if one.ours]
    lines = [
        f"## {_heading(exhibit)}: {exhibit.title}",
        "",
        f"`milzoo reproduce {paper.name}/{exhibit.name}`",
        "",
    ]
    protocols = {
        (attempt.protocol.name, attempt.protocol.sentence, attempt.protocol.peeks)
        for cell in exhibit.cells
        for attempt in cell.attempts
    }
    for name, sentence, peeks in sorted(protocols):
        lines.append(f"- *{name}*: {sentence}" + (f" Peeking: {peeks}." if peeks else ""))
    lines += [
        "",
        "| method | data | score | published | as published | honest | difference |",
        "|---|---|---|---|---|---|---|",
        *map(_row, every),
        "",
        *_reasons(every),
        *_between_protocols(every),
        "Differences are in standard errors: of both numbers together where one is printed; else "
        "of an accuracy on as many bags, √(p(1 − p)/B); else of our mean over splits. They are of "
        "the protocol as published where it was run.",
        "",
        _origin(results),
    ]
    return lines


def _row(one: Comparison) -> str:
    difference = "" if math.isnan(one.difference) else f"{one.difference:+.1f}"
    cells = [
        one.cell.method,
        one.cell.data,
        SCORES[one.score],
        _published(one.published),
        *(_ours(one.ours.get(name)) for name in ("as published", "honest")),
        difference,
    ]
    return "| " + " | ".join(cells) + " |"


def _reasons(every: list[Comparison]) -> list[str]:
    """Why numbers differ, each reason once."""
    lines = [f"- *{'; '.join(names)}*: {why}." for why, names in reasons(every).items()]
    return [*lines, ""] if lines else []


def _between_protocols(every: list[Comparison]) -> list[str]:
    """How much more accurate methods are by the protocol as published than by the honest one."""
    more = [
        one.ours["as published"].value - one.ours["honest"].value
        for one in every
        if one.score == "accuracy" and {"as published", "honest"} <= set(one.ours)
    ]
    if len(more) < 2:  # then the row says it
        return []
    return [
        "Accuracy by the protocol as published, less that by the honest one: "
        f"{math.fsum(more) / len(more):+.3f} in the mean over {len(more)} rows "
        f"({min(more):+.3f} to {max(more):+.3f}).",
        "",
    ]


def _published(published: Published) -> str:
    if published.value is None:
        return ""
    error = "" if published.error is None else f" ± {published.error:.3f}"
    return f"{published.value:.3f}{error}"


def _ours(result: Result | None) -> str:
    if result is None:
        return ""
    error = f" ± {result.error:.3f}" if result.error > 0 else ""
    setting = f" ({result.setting})" if result.setting else ""
    return f"{result.value:.3f}{error}{setting}"


def _origin(results: list[Result]) -> str:
    """Seconds, seeds, dates, commits and machines of results."""
    seconds = sum({one.attempt: one.seconds for one in results}.values())
    dates = sorted({one.date for one in results})
    between = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    parts = {
        name: ", ".join(sorted({str(getattr(one, name)) for one in results}))
        for name in ("seed", "commit", "machine", "versions")
    }
    return (
        f"{seconds:,.0f} s in all, {between}; seed {parts['seed']}; commit {parts['commit']}; "
        f"{parts['machine']}; {parts['versions']}. After ± stands the standard error of the mean "
        "over splits."
    )
