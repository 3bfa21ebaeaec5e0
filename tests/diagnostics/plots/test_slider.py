"""Figures with a slider: each position shows its own frame, and nothing is loaded to do so."""

import re
import sys

import numpy as np
import pandas as pd
import pytest
import vl_convert
from milzoo.diagnostics import plot_with_slider

X = np.linspace(-1, 1, 5)
CONTACTS = (-1.0, 0.0, 1.0)
TANGENTS = pd.concat(
    [
        pd.DataFrame({"x": X, "y": X**2, "line": "square"}),
        *(
            pd.DataFrame({"x": X, "y": 2 * c * X - c**2, "line": "tangent", "c": c})
            for c in CONTACTS
        ),
    ]
)
DOTS = pd.DataFrame({"x": CONTACTS, "y": np.square(CONTACTS), "c": CONTACTS, "line": "tangent"})


def tangents(**options):
    """The figure of the tangents of x²."""
    columns = {"x": "x", "y": "y", "slider": "c", "colour": "line", "points": DOTS}
    return plot_with_slider(TANGENTS, **columns | options)


def drawn(figure):
    """What Vega draws, as the text of an SVG."""
    return vl_convert.vegalite_to_svg(figure.chart.to_json())


@pytest.mark.parametrize("c", CONTACTS)
def test_a_position_shows_its_own_frame(c):
    svg = drawn(tangents(start=c))
    assert f">c = {c:g}<" in svg
    dots = re.findall(r'aria-label="x: ([^;]*); y: ([^;]*); line: tangent"[^>]*point', svg)
    dots = [[float(number.replace("−", "-")) for number in dot] for dot in dots]
    assert dots == [[c, c**2]]
    assert svg.count('aria-roledescription="line mark"') == 2  # the tangent, and x² in every frame


def test_axes_are_the_same_in_every_frame():
    first, last = (
        re.findall(r'aria-label="([XY]-axis[^"]*)"', drawn(tangents(start=c))) for c in (-1.0, 1.0)
    )
    assert len(first) == 2
    assert first == last


def test_a_band_goes_from_lower_to_upper_end():
    """One below and one above each line: as high everywhere, whatever the line does."""
    frames = TANGENTS.assign(low=TANGENTS.y - 1, high=TANGENTS.y + 1)
    lines = {"x": "x", "y": "y", "slider": "c", "colour": "line"}
    svg = drawn(plot_with_slider(frames, **lines, band=("low", "high")))
    outlines = re.findall(r'aria-roledescription="area mark" d="M([^"]*)Z"', svg)
    assert len(outlines) == 2
    for outline in outlines:
        corners = [corner.split(",") for corner in outline.split("L")]
        heights = np.array([float(height) for _, height in corners])
        np.testing.assert_allclose(np.ptp(heights[:5] - heights[:4:-1]), 0, atol=0.01)


def test_the_page_needs_no_network_and_is_small():
    page = tangents()._repr_html_()
    assert page.startswith("<iframe srcdoc=")
    assert page.count('"') == 6  # inside, they are written as entities
    assert not re.search(r"<(script|link)[^>]*(src|href)=", page)
    assert len(page.encode()) < 1_200_000


def test_long_names_in_a_legend_have_own_rows():
    short = tangents()
    long_name = "the tangent, with its point of contact, in words"
    named = {"frames": TANGENTS.replace("tangent", long_name), "points": None}
    long = plot_with_slider(x="x", y="y", slider="c", colour="line", **named)
    assert long.height > short.height
    assert long.chart.to_json().count('"columns": 1') > short.chart.to_json().count('"columns": 1')


def test_names_may_be_text_in_their_own_order():
    frames = pd.DataFrame(
        {"x": [0, 1] * 2, "y": [0, 1, 0, 2], "rule": ["mean", "mean", "all", "all"]}
    )
    figure = plot_with_slider(frames, x="x", y="y", slider="rule")
    assert ">rule = mean<" in drawn(figure)
    assert repr(figure) == "SliderFigure()"


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"there is no column 'ξ'; expected one of \['x', 'y'"):
        tangents(slider="ξ")
    with pytest.raises(ValueError, match="the column 'c' has 1 values; expected two or more"):
        plot_with_slider(TANGENTS[TANGENTS.c == 0], x="x", y="y", slider="c")
    with pytest.raises(ValueError, match=r"start is 0\.5; expected one of"):
        tangents(start=0.5)


def test_without_altair_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ImportError, match=r"pip install 'milzoo\[notebooks\]'"):
        tangents()
