"""Plot one bag: the posterior probabilities of its instances, and the instances as images."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...datasets.bags import Bags
from ...inference.prediction import Prediction
from ..measures.relevance import Relevance, rows_of_bag
from .panels import COLOURS, MARKERS, STYLE, draw_intervals

__all__ = ["plot_bag"]

_POSITIVE = COLOURS[1]
# Of bars of instances.
_STAYS, _MAY_GO = "#444444", "#C8C8C8"
_MOST_IMAGES = 30


def plot_bag(
    predictions: Mapping[str, Prediction],
    bags: Bags,
    bag: int,
    *,
    image_shape: tuple[int, int] | None = None,
    images: Float[np.ndarray, "N P"] | None = None,
    mass: float = 0.9,
    relevance: Relevance | None = None,
) -> Figure:
    """Probabilities of the instances of one bag with intervals; and the instances, if images.

    Parameters
    ----------
    predictions : dict of Prediction
        Of all bags, by the name of the posterior.
    bags : Bags
    bag : int
        Which.
    image_shape : pair of int or None
        Height and width of an instance that is an image, for a row of pictures above.
    images : array (N, P) or None
        Its pixels, for all instances; the features of the bags if left out (before they are
        standardised they look better).
    mass : float
        Of the intervals.
    relevance : Relevance or None
        Of this bag, for a panel below: what each label would tell, and which instances may go.

    Returns
    -------
    Figure
        Instances that are known to be positive have a red frame, or a red number.

    Raises
    ------
    ValueError
        If there is no prediction or no such bag, images have another number of pixels or are too
        many, or the relevance is of another bag.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import plot_bag
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = laplace(model, bags, seed=0)
    >>> figure = plot_bag({"laplace": posterior.predict(bags)}, bags, 0)
    >>> figure.savefig("bag.png")
    >>> [(axes.get_title(), axes.get_ylabel()) for axes in figure.axes]
    [('', 'P(positive), 90% interval')]
    """
    rows = rows_of_bag(bags, bag)
    pixels = np.asarray(bags.instances if images is None else images)
    _check(predictions, bags, bag, rows, pixels, image_shape)
    if relevance is not None and not np.array_equal(relevance.rows, rows):
        raise ValueError(
            f"relevance is of the instances {relevance.rows.tolist()}, but bag {bag} has "
            f"{rows.tolist()}; pass that of this bag"
        )
    is_positive = np.zeros(len(rows), bool)
    if bags.instance_labels is not None:
        is_positive = np.asarray(bags.instance_labels)[rows] == 1
    with mpl.rc_context(STYLE):
        width = min(12.0, max(5.5, 1.0 + 0.75 * len(rows)))
        height = 3.4 + (1.0 if image_shape else 0.0) + (1.4 if relevance else 0.0)
        figure = Figure(figsize=(width, height), layout="constrained")
        heights = [3.4, 1.4][: 1 + bool(relevance)]
        panel, *below = figure.subplots(len(heights), squeeze=False, height_ratios=heights).flat
        _draw_probabilities(panel, predictions, rows, is_positive, mass)
        handles = _handles(list(predictions), bool(is_positive.any()))
        if relevance is not None:
            panel.set(xlabel=None)
            handles += _draw_relevance(below[0], relevance)
        if image_shape:
            _draw_images(panel, pixels[rows].reshape(-1, *image_shape), is_positive)
        figure.suptitle(_title(bags, bag), fontsize=12)
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=2 if relevance else 4,
        )
    return figure


def _check(
    predictions: Mapping[str, Prediction],
    bags: Bags,
    bag: int,
    rows: np.ndarray,
    pixels: np.ndarray,
    image_shape: tuple[int, int] | None,
) -> None:
    if not predictions:
        raise ValueError("predictions is empty; expected at least one, by name")
    if image_shape is None:
        return
    if pixels.shape != (bags.num_instances, np.prod(image_shape)):
        raise ValueError(
            f"images have shape {pixels.shape}; expected {bags.num_instances} of "
            f"{np.prod(image_shape)} pixels each, for image_shape={image_shape}"
        )
    if len(rows) > _MOST_IMAGES:
        raise ValueError(
            f"bag {bag} has {len(rows)} instances; expected at most {_MOST_IMAGES} to draw as "
            "images: leave image_shape out"
        )


def _title(bags: Bags, bag: int) -> str:
    name = f"bag {bags.names[bag]}" if bags.names else f"bag {bag}"
    if bags.labels is None:
        return name
    return f"{name}, {'positive' if np.asarray(bags.labels)[bag] == 1 else 'negative'}"


def _draw_images(
    panel: Axes, images: Float[np.ndarray, "n h w"], is_positive: Bool[np.ndarray, " n"]
) -> None:
    """Above the panel, each over its number."""
    for index, (image, marked) in enumerate(zip(images, is_positive, strict=True)):
        bounds = (index - 0.45, 1.04, 0.9, 0.34)
        above = panel.inset_axes(bounds, transform=panel.get_xaxis_transform())
        above.imshow(image, cmap="gray_r", interpolation="nearest")
        above.set(xticks=[], yticks=[])
        looks = {"color": _POSITIVE, "linewidth": 3} if marked else {"color": "#BBBBBB"}
        for side in above.spines.values():
            side.set(visible=True, **looks)


def _draw_probabilities(
    panel: Axes,
    predictions: Mapping[str, Prediction],
    rows: np.ndarray,
    is_positive: Bool[np.ndarray, " n"],
    mass: float,
) -> None:
    position, is_drawn = np.arange(len(rows)), np.ones(len(rows), bool)
    for number, prediction in enumerate(predictions.values()):
        interval = None
        if len(prediction.instance_draws) > 1:  # a point has none
            interval = prediction.instance_interval(mass)[:, rows]
        centre = prediction.instance_probability[rows]
        across = position + 0.12 * (number - (len(predictions) - 1) / 2)
        draw_intervals(panel, across, centre, interval, is_drawn, *_looks(number))
    panel.set(
        xlim=(-0.6, len(rows) - 0.4),
        ylim=(-0.02, 1.02),
        ylabel=f"P(positive), {mass:.0%} interval",
        xlabel="instance",
    )
    panel.set_xticks(position, [str(n + 1) for n in position])
    for label, marked in zip(panel.get_xticklabels(), is_positive, strict=True):
        if marked:
            label.set(color=_POSITIVE, fontweight="bold")


def _draw_relevance(panel: Axes, relevance: Relevance) -> list[Line2D | Patch]:
    """Bars of what each label would tell; handles of what may go and what must stay."""
    position = np.arange(len(relevance.rows))
    colours = np.where(relevance.may_go, _MAY_GO, _STAYS)
    panel.bar(position, relevance.expected_information, width=0.5, color=colours)
    panel.set(xlim=(-0.6, len(position) - 0.4), xlabel="instance", ylabel="nats")
    panel.set_xticks(position, [str(n + 1) for n in position])
    side = "all that is needed" if relevance.is_exact else "enough"
    panel.set_title("expected information of the label", fontsize="small", loc="left")
    stays = f"{side} for P(positive) = {relevance.probability_without:.2f}"
    return [Patch(color=_STAYS, label=stays), Patch(color=_MAY_GO, label="may go")]


def _looks(number: int) -> tuple[str, str]:
    """Colour, not that of positive instances, and marker."""
    others = [colour for colour in COLOURS if colour != _POSITIVE]
    return others[number % len(others)], MARKERS[number % len(MARKERS)]


def _handles(names: list[str], has_positive: bool) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for number, name in enumerate(names):
        colour, marker = _looks(number)
        handles.append(Line2D([], [], color=colour, marker=marker, ls="", label=name))
    if has_positive:
        handles.append(Patch(fc="none", ec=_POSITIVE, lw=2, label="truly positive"))
    return handles
