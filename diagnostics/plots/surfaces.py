"""Functions on a plane and their peaks, with the bags that made them behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...datasets.bags import Bags
from ...estimators.prototypes import Peaks
from .panels import COLOURS, STYLE, rows_of_panels

__all__ = ["Surface", "plot_surfaces"]

# Points along each axis.
_GRID = 121
# Quantile of the values below which all is of one colour: logarithms go far down.
_FLOOR = 0.15
_SHADES = LinearSegmentedColormap.from_list("shades", ["#FFFFFF", "#8A8A8A"])


class Surface(NamedTuple):
    """A function on a plane, and its local maxima.

    Attributes
    ----------
    objective : callable
        Of points (P, 2), gives (P,).
    peaks : Peaks
        The highest first.
    meaning : str
        Of the colours.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import Surface
    >>> from milzoo.estimators.prototypes import Peaks
    >>> bags = Bags.from_list([[[0.0, 0.0], [3.0, 3.0]], [[0.2, 0.1]]], labels=[1, 0])
    >>> peaks = Peaks(points=np.array([[3.0, 3.0]]), objective=np.ones(1), scales=np.ones((1, 2)))
    >>> def nearness(points):
    ...     return np.exp(-np.sum((points - 3.0) ** 2, axis=1))
    >>> surface = Surface(nearness, peaks, "nearness to the witness")
    >>> surface.objective(np.array([[3.0, 3.0], [0.0, 0.0]])).round(2)
    array([1., 0.])
    """

    objective: Callable[[Float[np.ndarray, "P 2"]], Float[np.ndarray, " P"]]
    peaks: Peaks
    meaning: str


def plot_surfaces(surfaces: Mapping[str, Surface], bags: Bags, *, num_peaks: int) -> Figure:
    """Heat maps side by side, with instances and the highest peaks, in their order.

    Shades end at a quantile: below it all is white. Peaks outside the instances' box are not drawn.

    Parameters
    ----------
    surfaces : dict of Surface
        By title.
    bags : Bags
        With labels and two features.
    num_peaks : int
        Peaks that are marked with their rank.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        If there are no surfaces, or one is the same everywhere or not finite, or the bags have no
        labels or another number of features.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import Surface, plot_surfaces
    >>> from milzoo.estimators.prototypes import Peaks
    >>> bags = Bags.from_list([[[0.0, 0.0], [3.0, 3.0]], [[0.2, 0.1]]], labels=[1, 0])
    >>> peaks = Peaks(points=np.array([[3.0, 3.0]]), objective=np.ones(1), scales=np.ones((1, 2)))
    >>> def nearness(points):
    ...     return np.exp(-np.sum((points - 3.0) ** 2, axis=1))
    >>> surfaces = {"one concept": Surface(nearness, peaks, "nearness to the witness")}
    >>> figure = plot_surfaces(surfaces, bags, num_peaks=1)
    >>> figure.savefig("surface.png")
    >>> [axes.get_title() for axes in figure.axes]
    ['one concept', '']
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['second feature', '']
    """
    if not surfaces:
        raise ValueError("surfaces is empty; expected at least one, by title")
    if bags.num_features != 2 or bags.labels is None:
        labels = "no labels" if bags.labels is None else "labels"
        raise ValueError(
            f"bags have {bags.num_features} features and {labels}; expected 2 features and labels"
        )
    with mpl.rc_context(STYLE):
        figure, panels = rows_of_panels(len(surfaces), height=5.2, width=4.0, share_y=True)
        for panel, (title, surface) in zip(panels, surfaces.items(), strict=True):
            _draw(panel, title, surface, bags, num_peaks)
            panel.set(title=title, xlabel="first feature")
        for panel in panels[::3]:
            panel.set_ylabel("second feature")
        figure.legend(handles=_handles(), loc="outside lower center", ncols=3)
    return figure


def _draw(panel: Axes, title: str, surface: Surface, bags: Bags, num_peaks: int) -> None:
    instances = np.asarray(bags.instances)
    low, high = instances.min(axis=0), instances.max(axis=0)
    margin = 0.08 * (high - low)
    across, up = np.linspace(low - margin, high + margin, _GRID).T
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    values = surface.objective(grid)
    lowest, highest = np.quantile(values, _FLOOR), values.max()
    if not (np.isfinite([lowest, highest]).all() and lowest < highest):
        raise ValueError(
            f"surface {title!r} goes from {values.min():.3g} to {values.max():.3g} on "
            "the plane; expected finite values that differ"
        )
    levels = np.linspace(lowest, highest, 25)
    colours = panel.contourf(
        across, up, values.reshape(_GRID, _GRID), levels=levels, cmap=_SHADES, extend="min"
    )
    assert panel.figure is not None
    panel.figure.colorbar(
        colours,
        ax=panel,
        location="bottom",
        label=surface.meaning,
        ticks=levels[[0, 8, 16, 24]],
        format="%.3g",
        pad=0.02,
    )
    labels = np.asarray(bags.labels)[np.asarray(bags.bag_index)]
    for label, marker in ((0, "s"), (1, "o")):
        panel.scatter(*instances[labels == label].T, marker=marker, **_looks(label), s=14, zorder=3)
    marked = surface.peaks.select(slice(num_peaks))
    for rank, point in enumerate(marked.points, start=1):
        panel.annotate(
            str(rank),
            tuple(point),
            ha="center",
            va="center",
            fontsize=9,
            fontweight="bold",
            bbox={"boxstyle": "circle,pad=0.25", "fc": "white", "ec": "black", "lw": 1.2},
            annotation_clip=True,
            zorder=5,
        )
    panel.set(xlim=across[[0, -1]], ylim=up[[0, -1]])


def _looks(label: int) -> dict[str, Any]:
    colour = COLOURS[1] if label == 1 else COLOURS[2]
    return {"facecolors": colour, "edgecolors": "white", "linewidths": 0.4, "alpha": 0.8}


def _handles() -> list[Line2D]:
    def mark(marker: str, label: str, **looks: Any) -> Line2D:
        return Line2D([], [], marker=marker, ls="", label=label, **looks)

    return [
        mark("o", "in a positive bag", color=COLOURS[1]),
        mark("s", "in a negative bag", color=COLOURS[2]),
        mark("o", "peak, the highest is 1", mfc="white", mec="black", ms=11),
    ]
