"""One bag drawn: its images, its instances' probabilities, and which are truly positive."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from milzoo.datasets import load
from milzoo.diagnostics import plot_bag
from milzoo.inference.prediction import Prediction

DIGITS = load("digits")
POSITIVE = int(np.flatnonzero(DIGITS.labels == 1)[0])


@pytest.fixture(scope="module")
def predictions():
    random = np.random.default_rng(0)
    sizes = (DIGITS.num_bags, DIGITS.num_instances)
    return {
        name: Prediction(*(random.uniform(size=(50, size)) for size in sizes))
        for name in ("CAVI", "NUTS")
    }


def test_only_truly_positive_images_have_a_red_frame(predictions):
    figure = plot_bag(predictions, DIGITS, POSITIVE, image_shape=(8, 8))
    rows = DIGITS.bag_index == POSITIVE
    (below,) = figure.axes
    images = below.child_axes
    assert len(images) == rows.sum()
    framed = [to_hex(panel.spines["left"].get_edgecolor()) == "#d55e00" for panel in images]
    assert framed == (DIGITS.instance_labels[rows] == 1).tolist()
    np.testing.assert_array_equal(
        images[0].images[0].get_array(), DIGITS.instances[rows][0].reshape(8, 8)
    )
    assert below.get_xlabel() == "instance"
    assert "positive" in figure.get_suptitle()


def test_dots_are_the_probabilities_and_bars_the_intervals(predictions):
    figure = plot_bag(predictions, DIGITS, POSITIVE)
    (panel,) = figure.axes
    rows = DIGITS.bag_index == POSITIVE
    for container, prediction in zip(panel.containers, predictions.values(), strict=True):
        dots, _, (bars,) = container.lines
        np.testing.assert_allclose(dots.get_ydata(), prediction.instance_probability[rows])
        ends = np.array([segment[:, 1] for segment in bars.get_segments()]).T
        np.testing.assert_allclose(ends, prediction.instance_interval(0.9)[:, rows])
    red = [label.get_color() == "#D55E00" for label in panel.get_xticklabels()]
    assert red == (DIGITS.instance_labels[rows] == 1).tolist()


def test_without_instance_labels_nothing_is_red(predictions):
    bags = replace(DIGITS, instance_labels=None, labels=None)
    figure = plot_bag(predictions, bags, POSITIVE)
    assert not any(label.get_color() == "#D55E00" for label in figure.axes[0].get_xticklabels())
    assert figure.get_suptitle() == f"bag {DIGITS.names[POSITIVE]}"


def test_bad_input_is_refused(predictions):
    with pytest.raises(ValueError, match="predictions is empty"):
        plot_bag({}, DIGITS, 0)
    with pytest.raises(ValueError, match=r"bag is 999; expected the number, 0 to 163"):
        plot_bag(predictions, DIGITS, 999)
    with pytest.raises(ValueError, match=r"expected 1640 of 81 pixels each"):
        plot_bag(predictions, DIGITS, 0, image_shape=(9, 9))
