"""Figures of papers that show the numbers of their tables: ours beside the published ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .exhibits import SCORES, Exhibit, Paper
from .results import Comparison, Result, compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "draw_all"]

_PUBLISHED, _OURS = "#999999", "#0072b2"
_MARKERS = "os^vD*"


def draw_all(paper: Paper, results: dict[str, list[Result]], folder: Path) -> list[Path]:
    """Draw the figures of a paper whose tables have results.

    Parameters
    ----------
    paper : Paper
    results : dict of lists
        By the name of the table.
    folder : Path
        Of the results of all papers.

    Returns
    -------
    list of Path
    """
    paths = []
    for exhibit in paper.exhibits:
        if exhibit.of and any(results.get(name) for name in exhibit.of):
            path = folder / paper.name / f"{exhibit.name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(paper, exhibit, results).savefig(path, dpi=110)
            paths.append(path)
    return paths


def draw(paper: Paper, exhibit: Exhibit, results: dict[str, list[Result]]) -> Figure:
    """One panel for each table of the figure.

    Scores are bars, ours under the protocol as published beside the printed ones. Seconds are our
    seconds of a fit against our AUC: the paper's stand in its figure alone.

    Parameters
    ----------
    paper : Paper
    exhibit : Exhibit
        With ``of`` and ``shows``.
    results : dict of lists
        By the name of the table.

    Returns
    -------
    Figure
    """
    import matplotlib.pyplot as plt

    tables = {one.name: one for one in paper.exhibits}
    figure, axes = plt.subplots(
        len(exhibit.of), figsize=(8, 3.2 * len(exhibit.of)), squeeze=False, layout="constrained"
    )
    for panel, name in zip(axes[:, 0], exhibit.of, strict=True):
        every = [one for one in compared(tables[name], results.get(name, [])) if one.ours]
        (_bars if exhibit.shows == "scores" else _seconds)(panel, every)
        panel.set_title(f"{tables[name].title} ({name.replace('-', ' ')})", loc="left")
    plt.close(figure)  # it is the caller's: pyplot keeps no figure
    return figure


def _bars(panel: Axes, every: list[Comparison]) -> None:
    places = np.arange(len(every))
    printed = [one.published for one in every]
    ours = [one.ours[str(one.compared_protocol)] for one in every]
    options: dict[str, Any] = {"width": 0.4, "capsize": 2}
    panel.bar(
        places - 0.2,
        [one.value or 0.0 for one in printed],
        yerr=[one.error or 0.0 for one in printed],
        color=_PUBLISHED,
        label="published",
        **options,
    )
    panel.bar(
        places + 0.2,
        [one.value for one in ours],
        yerr=[one.error for one in ours],
        color=_OURS,
        label="ours, as published",
        **options,
    )
    labels = [f"{one.cell.method}\n{SCORES[one.score]}" for one in every]
    panel.set_xticks(places, labels, rotation=90, fontsize=6)
    panel.set_ylim(0.0, 1.0)
    panel.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=8)


def _seconds(panel: Axes, every: Iterable[Comparison]) -> None:
    for number, one in enumerate(one for one in every if one.score == "auc"):
        ours = one.ours[str(one.compared_protocol)]
        panel.errorbar(
            ours.fit_seconds,
            ours.value,
            yerr=ours.error,
            fmt=_MARKERS[number % len(_MARKERS)],
            color=f"C{number}",
            label=one.cell.method,
        )
    panel.set(xlabel="seconds of a fit, median over splits", ylabel="AUC of bags")
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
