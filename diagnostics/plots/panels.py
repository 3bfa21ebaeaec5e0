"""Parts of plots: style, rows of panels, intervals, distribution functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

__all__ = [
    "COLOURS",
    "GREY",
    "MARKERS",
    "STYLE",
    "draw_intervals",
    "pit_differences",
    "predictive_statistics",
    "replicates_by_size",
    "rows_of_panels",
]

# Okabe and Ito's palette, told apart with every kind of colour vision; its yellow is too faint.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#666666"
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 100,
    "savefig.dpi": 130,
    "legend.frameon": False,
}


def rows_of_panels(
    count: int, *, height: float, width: float = 3.7, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """Panels in rows of at most three, no pyplot state."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(width * columns, 5.5), height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    panels = list(grid.ravel())
    for empty in panels[count:]:
        empty.set_axis_off()
    return figure, panels[:count]


def draw_intervals(
    panel: Axes,
    across: Float[np.ndarray, " B"],
    centre: Float[np.ndarray, " B"],
    interval: Sequence[Float[np.ndarray, " B"]] | Float[np.ndarray, "2 B"] | None,
    is_filled: Bool[np.ndarray, " B"],
    colour: str,
    marker: str = "o",
) -> None:
    """A dot with an interval for each bag or instance, if there are any, filled or hollow."""
    low, high = (centre, centre) if interval is None else interval
    for rows, fill in ((is_filled, colour), (~is_filled, "white")):
        if not rows.any():
            continue
        panel.errorbar(
            across[rows],
            centre[rows],
            yerr=np.maximum([(centre - low)[rows], (high - centre)[rows]], 0),
            fmt=marker,
            color=colour,
            markerfacecolor=fill,
            markersize=5,
            elinewidth=0.7,
            alpha=0.8,
            zorder=2,
        )


def pit_differences(
    pit: dict[str, Float[np.ndarray, " S"]], *, band: float, wrong: Sequence[str], title: str
) -> Figure:
    """Plot distribution functions of PIT values less the uniform one, and the test's band.

    ArviZ's `plot_ecdf_pit` makes other tests, and names them in the figure.
    """
    with mpl.rc_context(STYLE):
        figure, panels = rows_of_panels(len(pit), height=2.6, share_y=True)
        for panel, (name, values) in zip(panels, pit.items(), strict=True):
            panel.axhspan(-band, band, color=GREY, alpha=0.15, lw=0)
            panel.axhline(0.0, color=GREY, lw=0.8)
            panel.plot(*_less_uniform(values), color=COLOURS[1])
            panel.plot(*_less_uniform(np.abs(2 * values - 1)), color=COLOURS[2], ls="--")
            panel.set(title=name + (": not uniform" if name in wrong else ""), xlim=(0, 1))
        for panel in panels[::3]:
            panel.set_ylabel("ECDF − uniform")
        handles = [
            Line2D([], [], color=COLOURS[1], label="p, the fraction of draws below the truth"),
            Line2D([], [], color=COLOURS[2], ls="--", label="|2p − 1|: central intervals"),
            Patch(color=GREY, alpha=0.15, lw=0, label="where all lines stay if it is right"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(panels)))
        figure.suptitle(title, fontsize=12)
    return figure


def _less_uniform(pit: Float[np.ndarray, " S"]) -> tuple[np.ndarray, np.ndarray]:
    """Steps of an empirical distribution function, and its difference from the diagonal there."""
    at = np.repeat(np.sort(pit), 2)
    fraction = np.repeat(np.arange(len(pit) + 1), 2)[1:-1] / len(pit)
    return np.concatenate([[0], at, [1]]), np.concatenate([[0], fraction - at, [0]])


def predictive_statistics(
    observed: dict[str, float],
    prior: dict[str, Float[np.ndarray, " S"]],
    posterior: dict[str, Float[np.ndarray, " S"]],
) -> Figure:
    """Histograms of statistics of replicates under prior and posterior, and the observed value."""
    with mpl.rc_context(STYLE):
        figure, panels = rows_of_panels(len(observed), height=2.8)
        for panel, (name, value) in zip(panels, observed.items(), strict=True):
            both = np.concatenate([prior[name], posterior[name], [value]])
            edges = np.histogram_bin_edges(both, bins=30).tolist()
            panel.hist(prior[name], edges, color=GREY, alpha=0.4, density=True)
            panel.hist(
                posterior[name], edges, color=COLOURS[2], density=True, histtype="step", lw=1.5
            )
            panel.axvline(value, color=COLOURS[1], lw=2)
            panel.set(title=name, yticks=[])
        handles = [
            Patch(color=GREY, alpha=0.4, label="under the prior"),
            Patch(fc="none", ec=COLOURS[2], lw=1.5, label="under the posterior"),
            Line2D([], [], color=COLOURS[1], lw=2, label="observed"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def replicates_by_size(
    sizes: Int[np.ndarray, "G 2"],
    expected: Float[np.ndarray, " G"],
    interval: Float[np.ndarray, "G 2"],
    observed: Float[np.ndarray, " G"] | None,
    what: str,
) -> Figure:
    """Expected values and 90 % intervals of replicates, and observed values, by size of bag."""
    place = np.arange(len(sizes))
    with mpl.rc_context(STYLE):
        figure, (panel,) = rows_of_panels(1, height=3.4, width=6.0)
        panel.bar(
            place,
            interval[:, 1] - interval[:, 0],
            bottom=interval[:, 0],
            width=0.6,
            color=GREY,
            alpha=0.25,
            label="nine in ten replicates from the prior",
        )
        panel.plot(place, expected, "o-", color=GREY, label="mean of replicates")
        if observed is not None:
            panel.plot(place, observed, "D", color=COLOURS[1], label="observed")
        names = [f"{low}" if low == high else f"{low}–{high}" for low, high in sizes.tolist()]
        panel.set_xticks(place, names)
        panel.set(xlabel="instances in a bag", ylabel=what)
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure
