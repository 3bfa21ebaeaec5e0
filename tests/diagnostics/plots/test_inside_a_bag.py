"""One bag drawn: its images, its instances' probabilities, and which are truly positive."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from milzoo.datasets import load
from milzoo.diagnostics import Relevance, plot_bag
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


def relevance_of(rows):
    """Of ten instances: four that may go."""
    information = np.linspace(0.02, 0.2, len(rows))
    return Relevance(rows, information, np.arange(len(rows)) < 4, 0.9, 0.7, is_exact=True)


def test_bars_below_are_what_labels_tell(predictions):
    relevance = relevance_of(np.flatnonzero(DIGITS.bag_index == POSITIVE))
    figure = plot_bag(predictions, DIGITS, POSITIVE, relevance=relevance)
    above, below = figure.axes
    bars = below.patches
    np.testing.assert_allclose([bar.get_height() for bar in bars], relevance.expected_information)
    assert [to_hex(bar.get_facecolor()) == "#c8c8c8" for bar in bars] == relevance.may_go.tolist()
    np.testing.assert_allclose(above.get_xlim(), below.get_xlim())
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words[-2:] == ["all that is needed for P(positive) = 0.70", "may go"]


def test_relevance_of_another_bag_is_refused(predictions):
    other = relevance_of(np.flatnonzero(DIGITS.bag_index == POSITIVE + 1))
    with pytest.raises(ValueError, match=r"relevance is of the instances \[.*; pass that of this"):
        plot_bag(predictions, DIGITS, POSITIVE, relevance=other)


def test_bad_input_is_refused(predictions):
    with pytest.raises(ValueError, match="predictions is empty"):
        plot_bag({}, DIGITS, 0)
    with pytest.raises(ValueError, match=r"bag is 999; expected the number, 0 to 163"):
        plot_bag(predictions, DIGITS, 999)
    with pytest.raises(ValueError, match=r"expected 1640 of 81 pixels each"):
        plot_bag(predictions, DIGITS, 0, image_shape=(9, 9))
