"""A figure with a slider that needs neither a kernel nor a network: every frame is precomputed."""

from __future__ import annotations

import json
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from .panels import COLOURS

if TYPE_CHECKING:
    import altair

__all__ = ["SliderFigure", "plot_with_slider"]

_HEIGHT = 300
# Title, axis and slider; and a row of the legend. In a narrower row than its letters it is cut.
_AROUND, _LEGEND_ROW = 135, 18
_LETTERS_IN_A_ROW = 40
_LOOKS: dict[str, dict[str, Any]] = {
    "area": {"opacity": 0.2},
    "line": {"strokeWidth": 2},
    "point": {"size": 60, "opacity": 1, "filled": True},
}
# The slider stands below the axes, and has a row for itself at any width of the page.
_STYLE = """
body { margin: 0; background: white; overflow-x: hidden; }
#vis.vega-embed { display: block; }
.vega-bind { font: 14px sans-serif; color: black; padding: 4px 12px; }
.vega-bind label { display: flex; align-items: center; gap: 12px; }
.vega-bind input { flex: 1; min-width: 0; }
.vega-bind input + span { display: none; }
"""


@dataclass(frozen=True)
class SliderFigure:
    """A figure with a slider, shown by notebooks and built sites.

    Attributes
    ----------
    chart : altair.LayerChart
        The chart, to be changed or saved.
    height : int
        Of the figure with its slider, in pixels.

    See Also
    --------
    plot_with_slider

    Examples
    --------
    >>> import pandas as pd
    >>> from milzoo.diagnostics import SliderFigure, plot_with_slider
    >>> frames = pd.DataFrame({"x": [0, 1, 0, 1], "y": [0, 1, 0, 2], "gradient": [1, 1, 2, 2]})
    >>> figure = plot_with_slider(frames, x="x", y="y", slider="gradient")
    >>> isinstance(figure, SliderFigure)
    True
    >>> figure.chart.to_dict()["params"][0]["bind"]["max"]  # the slider goes from 0 to 1
    1
    """

    chart: altair.LayerChart
    height: int

    def __repr__(self) -> str:
        return "SliderFigure()"

    def _repr_html_(self) -> str:
        """A frame of its own, with all the JavaScript that it needs."""
        options = {"actions": False, "defaultStyle": _STYLE}
        page = self.chart.to_html(inline=True, embed_options=options)
        page = page.replace("&", "&amp;").replace('"', "&quot;")
        return (
            f'<iframe srcdoc="{page}" title="figure with a slider" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )


def plot_with_slider(
    frames: pd.DataFrame,
    *,
    x: str,
    y: str,
    slider: str,
    colour: str | None = None,
    points: pd.DataFrame | None = None,
    band: tuple[str, str] | None = None,
    start: object = None,
) -> SliderFigure:
    """Plot lines that change with a slider, without a kernel: each frame is precomputed.

    The figure has all the JavaScript that it needs (0.9 MB), so that it works in a saved notebook
    and in a built site, also without network. Axes and colours are the same in every frame.

    Parameters
    ----------
    frames : DataFrame
        A row for each point of a line. Rows without a value in the column `slider` are in every
        frame.
    x, y : str
        Columns of the coordinates, and the titles of the axes.
    slider : str
        Column that the slider chooses from, in the order of appearance, and its title.
    colour : str or None
        Column of the names of the lines.
    points : DataFrame or None
        Rows that are drawn as dots, with the same columns.
    band : pair of str or None
        Columns of the lower and the upper end of a shaded band around each line.
    start : object
        Value of the slider at the beginning; the first one if left out.

    Returns
    -------
    SliderFigure

    Raises
    ------
    ImportError
        If Altair is missing, with the command that installs it.
    ValueError
        If a column is missing, the slider has fewer than two values, or `start` is not one of them.

    Examples
    --------
    Tangents of the convex function x²: the slider moves the point of contact, a dot.

    >>> import numpy as np
    >>> import pandas as pd
    >>> from milzoo.diagnostics import plot_with_slider
    >>> x = np.linspace(-2, 2, 41)
    >>> square = pd.DataFrame({"x": x, "y": x**2, "line": "x²"})
    >>> tangents = [
    ...     pd.DataFrame({"x": x, "y": c**2 + 2 * c * (x - c), "c": c, "line": "tangent"})
    ...     for c in (-1.0, 0.0, 1.0)
    ... ]
    >>> contact = pd.DataFrame({"c": [-1.0, 0.0, 1.0]}).assign(x=lambda f: f.c, y=lambda f: f.c**2)
    >>> plot_with_slider(
    ...     pd.concat([square, *tangents]),
    ...     x="x", y="y", slider="c", colour="line", points=contact.assign(line="tangent"),
    ... )
    SliderFigure()
    """
    parts = {"x": x, "y": y, "frame": slider} | ({} if colour is None else {"line": colour})
    ends = {} if band is None else {"low": band[0], "high": band[1]}
    lines = _renamed(frames, parts | ends)
    dots = None if points is None else _renamed(points, parts)
    rows = lines if dots is None else pd.concat([lines, dots])
    values = list(rows["frame"].dropna().unique())
    if len(values) < 2:
        raise ValueError(f"the column {slider!r} has {len(values)} values; expected two or more")
    if start is not None and start not in values:
        raise ValueError(f"start is {start!r}; expected one of {values}, of {slider!r}")

    altair = _import_altair()
    channels = _channels(rows, x, y)
    layers = [_layer(("line",) if band is None else ("area", "line"), lines, values, channels)]
    if dots is not None:
        layers.append(_layer(("point",), dots, values, channels))
    position = altair.param(
        name="position",
        value=0 if start is None else values.index(start),
        bind=altair.binding_range(min=0, max=len(values) - 1, step=1, name=slider),
    )
    num_rows = 0 if colour is None else _num_legend_rows(list(rows["line"].unique()))
    titles = json.dumps([f"{slider} = {_as_text(value)}" for value in values])
    return SliderFigure(
        altair.layer(*layers)
        .properties(width="container", height=_HEIGHT)
        .properties(title=altair.TitleParams(altair.expr(f"{titles}[position]")))
        .configure_axis(labelFontSize=12, titleFontSize=13, grid=False)
        .configure_legend(labelFontSize=12, labelLimit=0, orient="top", symbolOpacity=1)
        .add_params(position),
        height=_HEIGHT + _AROUND + _LEGEND_ROW * num_rows,
    )


def _num_legend_rows(lines: list[str]) -> int:
    """One, unless a narrow page would cut it."""
    return 1 if sum(map(len, lines)) <= _LETTERS_IN_A_ROW else len(lines)


def _import_altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401 - with which Altair makes a page that stands alone
    except ImportError as error:
        message = "a figure with a slider needs Altair: pip install 'milzoo[notebooks]'"
        raise ImportError(message) from error
    return altair


def _renamed(table: pd.DataFrame, parts: dict[str, str]) -> pd.DataFrame:
    """The columns that are drawn, each by its part in the figure."""
    for name in parts.values():
        if name not in table:
            raise ValueError(f"there is no column {name!r}; expected one of {list(table)}")
    return pd.DataFrame({part: table[name] for part, name in parts.items()})


def _as_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, numbers.Real) else str(value)


def _channels(rows: pd.DataFrame, x: str, y: str) -> dict[str, Any]:
    """Axes and colours: scales are the same in every frame."""
    altair = _import_altair()

    def axis(title: str, *parts: str) -> dict[str, Any]:
        found = rows[[part for part in parts if part in rows]]
        low, high = float(found.min(axis=None)), float(found.max(axis=None))
        margin = 0.03 * (high - low)
        scale = altair.Scale(domain=[low - margin, high + margin], nice=False)
        return {"title": title, "type": "quantitative", "scale": scale}

    vertical = axis(y, "y", "low", "high")
    channels = {
        "x": altair.X("x", **axis(x, "x")),
        "y": altair.Y("y", **vertical),
        "low": altair.Y("low", **vertical),
    }
    if "line" in rows:
        lines = list(rows["line"].unique())
        scale = altair.Scale(domain=lines, range=list(COLOURS[: len(lines)]))
        legend = altair.Legend(title=None, columns=len(lines) // _num_legend_rows(lines))
        channels["color"] = altair.Color("line", type="nominal", scale=scale, legend=legend)
    return channels


def _layer(
    marks: tuple[str, ...], table: pd.DataFrame, values: list[object], channels: dict[str, Any]
) -> altair.LayerChart:
    """Marks of one table: the rows of the frame that is chosen, and those of every frame."""
    altair = _import_altair()
    codes = {value: code for code, value in enumerate(values)}
    table = table.assign(frame=table["frame"].map(codes).astype("Int64"))
    # Comma-separated values take half as many characters as JSON does.
    data = altair.InlineData(
        values=table.to_csv(index=False, float_format="%.5g"),
        format=altair.CsvDataFormat(
            type="csv", parse={part: "number" for part in table if part != "line"}
        ),
    )
    of_all = {name: channel for name, channel in channels.items() if name not in ("y", "low")}
    of_mark = {
        "area": {"y": channels["low"], "y2": altair.Y2("high")},
        "line": {"y": channels["y"]},
        "point": {"y": channels["y"]},
    }
    charts = [
        altair.Chart(mark=altair.MarkDef(type=mark, **_LOOKS[mark])).encode(
            **of_all, **of_mark[mark]
        )
        for mark in marks
    ]
    chosen = "datum.frame == null || datum.frame == position"
    return altair.layer(*charts, data=data).transform_filter(chosen)
