"""The pictures of mixtures: the weights of its clusters, and where they lie among the instances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, Patch
from scipy.special import expit

from ...datasets.bags import Bags
from ...inference.posterior import Posterior, Predictive, flat_draws
from ...models.model import Draws
from ...models.parts.components import ComponentModel, Components, NamedComponents
from .panels import COLOURS, GREY, STYLE, draw_intervals, rows_of_panels

__all__ = ["plot_components", "plot_scene"]

_CLASSES = ("negative", "positive")
_CLASS_COLOURS = (COLOURS[2], COLOURS[1])
_CLASS_LINES = ("--", "-")
_TINTS = ("#EFF5FA", "#FCF3EC")
_PROBABILITY = LinearSegmentedColormap.from_list(
    "probability", [_CLASS_COLOURS[0], "#F4F4F4", _CLASS_COLOURS[1]]
)
# Draws that a sampler's probabilities are means over, and points on a side of their grid.
_DRAWS, _GRID = 100, 90
# Clusters shown beside those that may be occupied.
_EMPTY_ONES = 3


def plot_components(posteriors: Posterior | Mapping[str, Posterior]) -> Figure:
    """Plot the weights of the clusters in each class: means and 90 % intervals.

    Under the q of coordinate ascent clusters have names: E π_lk of each, largest first. From draw
    to draw of other posteriors they have none, so that the weights of each draw are sorted: the
    k-th interval is of the k-th largest weight. Dashed: the expected number of clusters that have
    an instance.

    Parameters
    ----------
    posteriors : Posterior or mapping of str to Posterior
        Of a model of mixtures (`ComponentModel`), as DPMIL is; a row for each.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        If a posterior is of another model, or failed.

    References
    ----------
    Kandemir and Hamprecht (2014), Figure 4.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.diagnostics import plot_components
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import DPMIL
    >>> bags = load("kandemir2014")
    >>> model = DPMIL.for_bags(bags, max_components=5)
    >>> posterior = coordinate_ascent(model, bags, seed=0, num_starts=1)
    >>> figure = plot_components(posterior)
    >>> figure.savefig("weights.png")
    >>> [axes.get_title().splitlines()[1] for axes in figure.axes]
    ['negative class: 3.6 occupied', 'positive class: 3.5 occupied']
    """
    weights = {name: _Weights.of(one) for name, one in _mixtures(posteriors).items()}
    with mpl.rc_context(STYLE):
        height = 0.7 + 2.9 * len(weights)
        figure = Figure(figsize=(8.5, height), layout="constrained")
        rows = figure.subplots(len(weights), 2, squeeze=False, sharex=True, sharey=True)
        for row, (name, found) in zip(rows, weights.items(), strict=True):
            for klass, panel in enumerate(row):
                found.draw(panel, klass)
                number = found.occupied[:, klass].mean()
                panel.set_title(f"{name}\n{_CLASSES[klass]} class: {number:.1f} occupied")
            row[0].set_ylabel("weight in its class")
        shown = max(found.num_shown for found in weights.values())
        most = max(float(found.interval.max()) for found in weights.values())
        rows[0, 0].set(xlim=(0.4, shown + 0.6), ylim=(-0.03 * most, 1.05 * most))
        rows[0, 0].set_xticks(range(1, shown + 1, math.ceil(shown / 12)))
        figure.legend(
            handles=[
                Line2D([], [], color=GREY, marker="o", ls="", label="mean and 90 % interval"),
                Line2D([], [], color=GREY, ls="--", label="number of occupied clusters"),
                Patch(color="#E4E4E4", label="its 90 % interval"),
            ],
            loc="outside lower center",
            ncols=3,
        )
    return figure


def plot_scene(posteriors: Posterior | Mapping[str, Posterior], bags: Bags | None = None) -> Figure:
    """Instances of two features, coloured by their probability, with the clusters found.

    Ellipses are 2 sd of the clusters that hold an instance or more, the wider their line the
    larger their weight in their class: under the q of coordinate ascent with means E μ and
    precisions E Λ; of other posteriors those of one draw, the one under which the log densities of
    the bags are nearest to their means. The line is p(x | positive) = p(x | negative).

    Parameters
    ----------
    posteriors : Posterior or mapping of str to Posterior
        Of a model of mixtures (`ComponentModel`), as DPMIL is; a panel for each.
    bags : Bags or None
        The instances shown; those learned from if left out.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        If there are not two features, or a posterior is of another model, or failed.

    References
    ----------
    Kandemir and Hamprecht (2014), Figure 1.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.diagnostics import plot_scene
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import DPMIL
    >>> bags = load("kandemir2014")
    >>> model = DPMIL.for_bags(bags, max_components=5)
    >>> posterior = coordinate_ascent(model, bags, seed=0, num_starts=1)
    >>> figure = plot_scene({"coordinate ascent": posterior})
    >>> figure.savefig("scene.png")
    >>> figure.axes[0].get_title().splitlines()
    ['coordinate ascent', 'expected clusters']
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['in a positive bag', 'in a negative bag', 'known witness', 'either class is as likely',
     'positive cluster, 2 sd', 'negative cluster, 2 sd']
    """
    mixtures = _mixtures(posteriors)
    bags = next(iter(mixtures.values())).posterior.bags if bags is None else bags
    if bags.num_features != 2:
        raise ValueError(
            f"bags have {bags.num_features} features; a scene has 2: expected such bags, as the "
            "first two kernel principal components are (datasets.kernel_pca)"
        )
    with mpl.rc_context(STYLE):
        figure, panels = rows_of_panels(len(mixtures), height=4.8, width=4.0, share_y=True)
        for panel, (name, mixture) in zip(panels, mixtures.items(), strict=True):
            _draw_scene(panel, mixture, bags)
            has_names = mixture.named_components is not None
            which = "expected clusters" if has_names else "clusters of a draw"
            panel.set(title=f"{name}\n{which}", xlabel="first feature")
        for panel in panels[::3]:
            panel.set_ylabel("second feature")
        scale = ScalarMappable(Normalize(0, 1), _PROBABILITY)
        figure.colorbar(scale, ax=panels, label="P(instance is positive)", aspect=30, pad=0.02)
        figure.legend(handles=_scene_handles(bags), loc="outside lower center", ncols=2)
    return figure


# ---------------------------------------------------------------- weights


@dataclass(frozen=True)
class _Weights:
    """Weights of the clusters of either class, largest first, and how many are occupied."""

    mean: Float[np.ndarray, "2 K"]
    interval: Float[np.ndarray, "2 2 K"]  # ends first
    occupied: Float[np.ndarray, "S 2"]
    have_names: bool

    @classmethod
    def of(cls, mixture: _Mixture) -> _Weights:
        weight = mixture.model.weights(mixture.posterior.stored_draws())
        named = mixture.named_components
        if named is not None:
            order = np.argsort(-named.weight, axis=1, kind="stable")
            mean = np.take_along_axis(named.weight, order, axis=1)
            weight = np.take_along_axis(weight, order[None], axis=2)
        else:
            weight = -np.sort(-weight, axis=2)
            mean = weight.mean(axis=0)
        interval = np.quantile(weight, [0.05, 0.95], axis=0)
        occupied = mixture.model.occupied(mixture.estimands)
        return cls(mean, interval, occupied, have_names=named is not None)

    @property
    def num_shown(self) -> int:
        """The number of clusters shown: all that may be occupied, and a few more."""
        most = math.ceil(np.quantile(self.occupied, 0.95, axis=0).max())
        return min(self.mean.shape[1], most + _EMPTY_ONES)

    def draw(self, panel: Axes, klass: int) -> None:
        """The weights of one class."""
        number = self.occupied[:, klass]
        panel.axvspan(*np.quantile(number, [0.05, 0.95]), color="#E4E4E4", zorder=0)
        panel.axvline(number.mean(), color=GREY, ls="--", linewidth=1.2, zorder=1)
        low, high = self.interval[:, klass]
        rank = np.arange(1.0, self.mean.shape[1] + 1)
        is_filled = np.ones(len(rank), bool)
        centre = self.mean[klass]
        draw_intervals(panel, rank, centre, (low, high), is_filled, _CLASS_COLOURS[klass])
        what = "clusters of q, largest first" if self.have_names else "k-th largest of each draw"
        panel.set_xlabel(what)
        panel.tick_params(labelbottom=True)


# ---------------------------------------------------------------- the scene


def _ellipse(components: Components, klass: int, k: int) -> Ellipse:
    """2 sd of one component."""
    root = components.root[klass, k]
    root = root if root.ndim == 2 else np.diag(root)
    precision, axis = np.linalg.eigh(root @ root.T)
    along, across = 4 / np.sqrt(precision)
    return Ellipse(
        tuple(components.mean[klass, k]),
        width=along,
        height=across,
        angle=math.degrees(math.atan2(axis[1, 0], axis[0, 0])),
        fill=False,
        edgecolor=_CLASS_COLOURS[klass],
        linestyle=_CLASS_LINES[klass],
        linewidth=0.6 + 4 * components.weight[klass, k],
        zorder=4,
    )


def _draw_scene(panel: Axes, mixture: _Mixture, bags: Bags) -> None:
    instances = np.asarray(bags.instances)
    low, high = instances.min(axis=0), instances.max(axis=0)
    margin = 0.12 * (high - low) + 1e-9
    across, up = np.linspace(low - margin, high + margin, _GRID).T
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    probability = _instance_probability(mixture.posterior, np.concatenate([instances, grid]))
    behind = probability[len(instances) :].reshape(_GRID, _GRID)
    panel.contourf(across, up, behind, levels=[0, 0.5, 1], colors=_TINTS, zorder=0)
    if behind.min() < 0.5 < behind.max():
        panel.contour(across, up, behind, levels=[0.5], colors="black", linewidths=1, zorder=1)
    for rows, marker, edge, width in _marks(bags):
        panel.scatter(
            *instances[rows].T,
            c=probability[: len(instances)][rows],
            cmap=_PROBABILITY,
            vmin=0,
            vmax=1,
            marker=marker,
            s=24,
            edgecolors=edge,
            linewidths=width,
            zorder=3,
        )
    components = mixture.components()
    for klass, k in np.argwhere(components.occupancy >= 1).tolist():
        panel.add_patch(_ellipse(components, klass, k))
    panel.set(xlim=across[[0, -1]], ylim=up[[0, -1]])


def _marks(bags: Bags) -> Iterator[tuple[Bool[np.ndarray, " N"], str, str, float]]:
    """Rows with their marker, by the label of the bag, and their edge, of witnesses the last."""
    in_positive, is_witness = np.ones(bags.num_instances, bool), np.zeros(bags.num_instances, bool)
    if bags.labels is not None:
        in_positive = np.asarray(bags.labels)[np.asarray(bags.bag_index)] == 1
    if bags.instance_labels is not None:
        is_witness = np.asarray(bags.instance_labels) == 1
    for of_kind, edge, width in ((~is_witness, GREY, 0.4), (is_witness, "black", 1.4)):
        yield ~in_positive & of_kind, "s", edge, width
        yield in_positive & of_kind, "o", edge, width


def _instance_probability(
    posterior: Posterior, points: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, " N"]:
    """Instance probabilities of a posterior; a sampler's from some of its draws."""
    bags = Bags.from_arrays(points, np.zeros(len(points), int))
    if isinstance(posterior.approximation, Predictive):
        log_negative, log_positive = posterior.approximation.log_predictive(posterior.model, bags)
        return expit(log_positive - log_negative)
    stored = posterior.stored_draws()
    kept = np.linspace(0, len(next(iter(stored.values()))) - 1, _DRAWS).astype(int)
    draws = {name: value[np.unique(kept)] for name, value in stored.items()}
    return expit(posterior.model.predict(draws, bags)["instance_log_odds"])


def _scene_handles(bags: Bags) -> list[Line2D]:
    def mark(marker: str, label: str, **looks: object) -> Line2D:
        looks = {"mfc": "#F4F4F4", "mec": GREY, "ls": ""} | looks
        return Line2D([], [], marker=marker, label=label, **looks)  # type: ignore[arg-type]

    handles = [mark("o", "instance")]
    if bags.labels is not None:
        handles = [mark("o", "in a positive bag"), mark("s", "in a negative bag")]
    if bags.instance_labels is not None:
        handles.append(mark("o", "known witness", mec="black", mew=1.4))
    handles.append(Line2D([], [], color="black", linewidth=1, label="either class is as likely"))
    return handles + [
        Line2D([], [], color=colour, ls=line, lw=2, label=f"{klass} cluster, 2 sd")
        for klass, colour, line in zip(
            reversed(_CLASSES), reversed(_CLASS_COLOURS), reversed(_CLASS_LINES), strict=True
        )
    ]


# ---------------------------------------------------------------- what they are about


@dataclass(frozen=True)
class _Mixture:
    """A posterior of a model of mixtures."""

    posterior: Posterior
    model: ComponentModel

    @property
    def estimands(self) -> Draws:
        return flat_draws(self.posterior.draws_with_estimands)

    @property
    def named_components(self) -> Components | None:
        """Components of an approximation, where each is the same one in all draws; else None."""
        approximation = self.posterior.approximation
        if isinstance(approximation, NamedComponents):
            return approximation.components(self.model)
        return None

    def components(self) -> Components:
        """The named ones, or those of a typical draw."""
        named = self.named_components
        if named is not None:
            return named
        draws = self.estimands
        return self.model.typical_components(draws, draws, self.posterior.bags)


def _mixtures(posteriors: Posterior | Mapping[str, Posterior]) -> dict[str, _Mixture]:
    """The posteriors by name, after checks."""
    if isinstance(posteriors, Posterior):
        posteriors = {posteriors.engine: posteriors}
    if not posteriors:
        raise ValueError("posteriors is empty; expected at least one, by name")
    return {name: _mixture(name, posterior) for name, posterior in posteriors.items()}


def _mixture(name: str, posterior: Posterior) -> _Mixture:
    if not isinstance(posterior.model, ComponentModel):
        raise ValueError(
            f"posterior {name!r} is one of {posterior.model.name}, which has no clusters; "
            "expected posteriors of a model of mixtures, such as dpmil"
        )
    if posterior.status.kind == "failed":
        raise ValueError(
            f"posterior {name!r} failed ({posterior.status.sentence}), so there is nothing to "
            "draw; expected posteriors that did not"
        )
    return _Mixture(posterior, posterior.model)
