"""Surfaces: what is drawn is what was given."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.datasets import Bags, load
from milzoo.diagnostics import Surface, plot_surfaces
from milzoo.estimators.prototypes import Peaks

POINTS = np.array([[1.0, 2.0], [-3.0, 0.5], [0.0, 0.0]])


def bowl(points):
    return -((points - POINTS[0]) ** 2).sum(axis=1)


SURFACES = {
    "one": Surface(bowl, Peaks(POINTS, np.array([0.0, -3.0, -5.0]), np.ones((3, 2))), "depth"),
    "two": Surface(lambda points: points[:, 0], Peaks(POINTS, np.zeros(3), np.ones((3, 2))), "x"),
}


@pytest.fixture(scope="module")
def scene():
    return load("venkatesan2015")


def test_the_highest_peaks_are_marked_in_their_order(scene):
    figure = plot_surfaces(SURFACES, scene, num_peaks=2)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [panel.get_title() for panel in panels] == ["one", "two"]
    for panel in panels:
        assert [text.get_text() for text in panel.texts] == ["1", "2"]
        np.testing.assert_allclose([text.xy for text in panel.texts], POINTS[:2])
        drawn = np.concatenate([points.get_offsets() for points in panel.collections[1:]])
        assert len(drawn) == scene.num_instances
    labels = [axes.get_xlabel() for axes in figure.axes if axes not in panels]
    assert labels == ["depth", "x"]


def test_the_darkest_shade_is_where_the_function_is_highest(scene):
    panel = plot_surfaces(SURFACES, scene, num_peaks=1).axes[0]
    shades = panel.collections[0]
    assert shades.levels[-1] == pytest.approx(0.0, abs=0.01)  # points lie 0.1 apart
    darkest = shades.get_paths()[-1].vertices
    radius = np.sqrt(-shades.levels[-2])
    np.testing.assert_allclose(np.hypot(*(darkest - POINTS[0]).T), radius, atol=0.01)


def test_bad_input_is_refused(scene):
    with pytest.raises(ValueError, match="surfaces is empty; expected at least one, by title"):
        plot_surfaces({}, scene, num_peaks=1)
    with pytest.raises(ValueError, match="bags have 2 features and no labels; expected 2 features"):
        plot_surfaces(SURFACES, replace(scene, labels=None), num_peaks=1)
    wide = Bags.from_list([np.zeros((2, 3))] * 2, labels=[0, 1])
    with pytest.raises(ValueError, match="bags have 3 features and labels; expected 2 features"):
        plot_surfaces(SURFACES, wide, num_peaks=1)
    flat = {"flat": SURFACES["one"]._replace(objective=lambda points: 0 * points[:, 0])}
    with pytest.raises(ValueError, match="surface 'flat' goes from 0 to 0 on the plane"):
        plot_surfaces(flat, scene, num_peaks=1)
