"""Plots of a comparison, each a Matplotlib figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import arviz as az
import arviz_plots
import matplotlib as mpl
import numpy as np
import xarray as xr
from jaxtyping import Float, Int
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...datasets.bags import Bags
from ...inference.grid import GridApproximation
from ..compared import Compared
from ..measures.accuracy import site_names
from ..measures.reliability import Reliability, reliability
from .inside_a_bag import plot_bag
from .panels import COLOURS, GREY, MARKERS, STYLE, draw_intervals, rows_of_panels

__all__ = [
    "bag",
    "calibration",
    "elbo",
    "forest",
    "khat",
    "leave_one_out",
    "marginals",
    "probabilities",
    "rank",
    "targets",
    "trace",
]

# Instances of a bag whose intervals can be told apart in a picture.
_READABLE = 30
# Probability that no draw of a site is marked where all chains are alike.
_RANKS_ALIKE = 0.999


def forest(comparison: Compared, max_sites: int = 12) -> Figure:
    """Means, 50 % and 90 % intervals of the sites on which the posteriors differ most."""
    draws = {
        n: v.assessment.draws for n, v in comparison.verdicts.items() if not v.assessment.failed
    }
    if not draws:
        raise ValueError("every posterior failed, so no sites to draw; see the sentences for why")
    table, shown = _where_they_differ_most(comparison, draws, max_sites)
    colours, markers = _looks(comparison)
    with _arviz_style():
        height = 1.6 + len(shown) * (0.15 + 0.08 * len(table))
        collection = arviz_plots.plot_forest(
            {name: az.convert_to_datatree(one) for name, one in table.items()},
            combined=True,
            point_estimate="mean",
            ci_kind="eti",
            ci_probs=(0.5, 0.9),
            color=[colours[name] for name in table],
            marker=[markers[name] for name in table],
            aes={"color": ["model"], "marker": ["model"]},
            aes_by_visuals={
                "credible_interval": ["y", "overlay", "color"],
                "point_estimate": ["y", "overlay", "color", "marker"],
                "labels": ["overlay"],
            },
            visuals={"point_estimate": {"size": 24}, "twig": {"width": 1.0}, "ticklabels": False},
            figure_kwargs={"figsize": (8.5, height), "layout": "constrained"},
        )
    figure = _taken(collection, "Means, 50 % and 90 % intervals where they differ most")
    _tidy_forest(figure, {name: (colours[name], markers[name]) for name in table})
    return figure


def _tidy_forest(figure: Figure, looks: dict[str, tuple[str, str]]) -> None:
    """No axis under the labels, and a legend clear of the data."""
    labels, intervals = figure.axes
    labels.set_axis_off()
    intervals.set_xlabel("value of the site")
    handles = [
        Line2D([], [], color=colour, marker=marker, label=name)
        for name, (colour, marker) in looks.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)


def marginals(comparison: Compared, max_sites: int = 6) -> Figure:
    """Densities of the sites on which the posteriors differ most, by engine; points have none."""
    draws = {
        name: verdict.assessment.draws
        for name, verdict in comparison.verdicts.items()
        if not (verdict.assessment.failed or verdict.assessment.is_point)
    }
    if not draws:
        raise ValueError("no posterior has draws to plot a density of")
    table, shown = _where_they_differ_most(comparison, draws, max_sites)
    colours, _ = _looks(comparison)
    with _arviz_style():
        collection = arviz_plots.plot_dist(
            {name: az.convert_to_datatree(one) for name, one in table.items()},
            kind="kde",
            color=[colours[name] for name in table],
            aes={"color": ["model"]},
            cols=["__variable__"],
            col_wrap=3,
            visuals={
                "credible_interval": False,
                "point_estimate": False,
                "point_estimate_text": False,
                "dist": {"width": 1.6},
            },
            figure_kwargs={
                "figsize": (11, 0.8 + 2.4 * -(-len(shown) // 3)),
                "layout": "constrained",
            },
        )
    figure = _taken(collection, "Densities where the posteriors differ most")
    handles = [Line2D([], [], color=colours[name], label=name) for name in table]
    columns = min(4, len(handles))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def leave_one_out(comparison: Compared, engine: str | None = None) -> Figure:
    """k̂ of the weights of leave-one-out for each bag, beside its limit."""
    known = comparison.leave_one_out
    chosen = engine
    if chosen is None:
        chosen = comparison.reference if comparison.reference in known else next(iter(known), None)
    if chosen is None or chosen not in known:
        raise ValueError(
            f"engine is {engine!r}; expected a posterior that can leave bags out: "
            f"{', '.join(known) or 'this comparison has none'}"
        )
    colours, _ = _looks(comparison)
    khat, largest = np.asarray(known[chosen].pareto_k), known[chosen].good_k
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        panel = figure.subplots()
        panel.axhline(largest, color=GREY, linewidth=1)
        panel.annotate(
            f"beyond weighting: above {largest:.2f}",
            (1, largest),
            (0, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            color=GREY,
        )
        panel.plot(np.arange(len(khat)), khat, "o", color=colours[chosen], markersize=4)
        panel.set(xlabel="bag learned from", ylabel="k̂ without it", title=chosen)
        panel.set_ylim(min(-0.1, *khat) - 0.05, max(1.0, *khat) + 0.1)
    return figure


def elbo(comparison: Compared) -> Figure:
    """The bound by recorded step, a panel for each engine that has one.

    Where a grid is among the posteriors of a target density, all bounds are below its evidence.
    """
    traces = {
        name: posterior.elbo
        for name, posterior in comparison.posteriors.items()
        if posterior.elbo is not None and len(posterior.elbo) > 0
    }
    evidence = _known_evidence(comparison)
    traces = {n: bound for n, bound in traces.items() if not _is_grid(comparison, n)} or traces
    if not traces:
        raise ValueError(
            "no posterior has a bound to draw; expected one of coordinate_ascent or svi among them"
        )
    colours, _ = _looks(comparison)
    with mpl.rc_context(STYLE):
        figure, panels = rows_of_panels(len(traces), height=3.4)
        for panel, (name, bound) in zip(panels, traces.items(), strict=True):
            steps = np.arange(1, len(bound) + 1)
            panel.plot(steps, bound, color=colours[name], marker=".", markersize=4)
            panel.set(title=f"{name}: ends at {bound[-1]:,.2f}", xlabel="recorded step")
            highest = evidence.get(comparison.verdicts[name].target_density)
            shown = bound[np.isfinite(bound)]
            if highest is not None:
                panel.axhline(highest, color=GREY, ls="--", lw=1)
                panel.set_xlabel(f"recorded step (dashed: log evidence, {highest:,.2f})")
                shown = np.append(shown, highest)
            if len(shown):
                panel.set_ylim(*_without_the_start(shown))
        panels[0].set_ylabel("ELBO")
    return figure


def _known_evidence(comparison: Compared) -> dict[str, float]:
    """log p(labels) by target density, where a grid has summed it up."""
    return {
        verdict.target_density: float(posterior.elbo[-1])
        for name, verdict in comparison.verdicts.items()
        if _is_grid(comparison, name) and not verdict.assessment.failed
        if (posterior := comparison.posteriors[name]).elbo is not None
    }


def _is_grid(comparison: Compared, name: str) -> bool:
    return isinstance(comparison.posteriors[name].approximation, GridApproximation)


def trace(comparison: Compared, engine: str | None = None) -> Figure:
    """Traces of a sampler's three worst-mixed sites; of the reference if none is named."""
    engine = _sampler(comparison, engine)
    chosen = _worst_mixed(comparison, engine, 3)
    with _arviz_style():
        collection = arviz_plots.plot_trace(
            _as_tree(comparison, engine, chosen),
            color=list(COLOURS[1:]),
            visuals={"trace": {"alpha": 0.6, "width": 0.7}},
            cols=["__variable__"],
            figure_kwargs={"figsize": (11, 3.4), "layout": "constrained"},
        )
    return _taken(collection, f"{engine}: draws of its worst-mixed sites, a colour for each chain")


def rank(comparison: Compared, engine: str | None = None) -> Figure:
    """Differences of rank distributions between chains, for a sampler's worst-mixed sites."""
    engine = _sampler(comparison, engine)
    chosen = _worst_mixed(comparison, engine, 3)
    draws = _scalar_sites(comparison.verdicts[engine].assessment.draws)[chosen]
    with _arviz_style():
        collection = arviz_plots.plot_rank(
            az.convert_to_datatree(_nearly_independent(_halves_of_one(draws))),
            # The test takes draws for independent. Without thinning it rejected chains that are
            # alike in 64 % of 200 trials where it should in 1 % (4 × 2,000 draws, ρ = 0.7).
            method="mtc_c",
            envelope_prob=_RANKS_ALIKE,
            color=list(COLOURS[1:]),
            cols=["__variable__"],
            figure_kwargs={"figsize": (11, 3.4), "layout": "constrained"},
        )
    what = "chains" if draws.sizes["chain"] > 1 else "halves of its chain"
    title = f"{engine}: ranks of its worst-mixed sites; dots where {what} differ"
    figure = _taken(collection, title)
    for text in (text for panel in figure.axes for text in panel.texts):
        text.set_text(text.get_text().partition("(")[0])  # leaves out the level, "α=0.00"
    return figure


def khat(comparison: Compared) -> Figure:
    """k̂ of each approximation beside the limits up to which importance weighting corrects it."""
    values = {
        name: (verdict.assessment.khat, verdict.assessment.khat_error)
        for name, verdict in comparison.verdicts.items()
        if verdict.assessment.has_density
    }
    if not values:
        raise ValueError(
            "no posterior is an approximation that is more than a point; k̂ judges "
            "coordinate_ascent, svi, laplace"
        )
    colours, markers = _looks(comparison)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 1.8 + 0.45 * len(values)), layout="constrained")
        axes = figure.subplots()
        _draw_khats(axes, values, colours, markers)
    return figure


def _draw_khats(
    axes: Axes,
    values: dict[str, tuple[float, float]],
    colours: dict[str, str],
    markers: dict[str, str],
) -> None:
    ends = [value + side * error for value, error in values.values() for side in (-2, 2)]
    right = max(1.0, 1.1 * max((end for end in ends if np.isfinite(end)), default=1.0))
    left = min(-0.1, 1.1 * min((end for end in ends if np.isfinite(end)), default=0.0))
    axes.axvspan(0.5, 0.7, color="#EEEEEE", zorder=0)
    axes.axvspan(0.7, right, color="#DDDDDD", zorder=0)
    for position, (name, (value, error)) in enumerate(values.items()):
        if np.isfinite(value):
            look = {"fmt": markers[name], "color": colours[name], "markersize": 9}
            axes.errorbar(value, position, xerr=2 * error, **look)
            axes.annotate(f"{value:.2f}", (value, position), (4, 6), textcoords="offset points")
        else:
            axes.text(left, position, "  exact" if value == -np.inf else "  not finite")
    axes.set_yticks(range(len(values)), list(values))
    axes.set(xlim=(left, right), ylim=(len(values) - 0.5, -0.5))
    axes.set_xlabel("PSIS k̂: weighting corrects easily to 0.5, with more draws to 0.7, not beyond")


def probabilities(comparison: Compared) -> Figure:
    """Bag probabilities of each posterior against the reference's, with 90 % intervals."""
    predictions, labels = _tested(comparison)
    # The reference may have failed.
    reference = next((n for n in predictions if n == comparison.reference), next(iter(predictions)))
    others = [name for name in predictions if name != reference]
    if not others:
        raise ValueError(
            f"{reference!r} is the only posterior with predictions; nothing to compare"
        )
    colours, _ = _looks(comparison)
    across = predictions[reference].bag_probability
    with mpl.rc_context(STYLE):
        figure, panels = rows_of_panels(len(others), height=3.6, share_y=True)
        for panel, name in zip(panels, others, strict=True):
            panel.axline((0, 0), slope=1, color=GREY, linewidth=1, zorder=1)
            centre, interval = predictions[name].bag_probability, None
            if not comparison.verdicts[name].assessment.is_point:
                interval = predictions[name].bag_interval(0.9)
            draw_intervals(panel, across, centre, interval, labels == 1, colours[name])
            panel.set(title=name, xlabel=f"P(positive), {reference}", aspect="equal")
            panel.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        panels[0].set_ylabel("P(positive), title's engine")
        figure.legend(
            handles=[
                Line2D([], [], color=GREY, marker="o", label="positive bag"),
                Line2D([], [], color=GREY, marker="o", mfc="white", label="negative bag"),
            ],
            loc="outside lower center",
            ncols=2,
        )
    return figure


def targets(comparison: Compared) -> Figure:
    """Targets as each posterior predicts them against the true ones, with 90 % intervals."""
    test = _test_bags(comparison, "targets")
    if not comparison.predicts_numbers:
        raise ValueError(
            "these posteriors predict labels, so there are no targets to draw; expected posteriors "
            "of a model of targets: draw these by plot_probabilities or plot_calibration"
        )
    predictions = comparison.target_predictions
    if not predictions:
        raise ValueError("every posterior failed, so no targets to draw; see the sentences for why")
    truth = np.asarray(test.targets)
    middle = float(truth.mean())
    colours, _ = _looks(comparison)
    with mpl.rc_context(STYLE):
        # One scale for all: how wide the intervals are is what there is to compare.
        figure, panels = rows_of_panels(len(predictions), height=3.6, share_y=True)
        for panel, (name, prediction) in zip(panels, predictions.items(), strict=True):
            low, high = prediction.bag_interval(0.9)
            inside = (low <= truth) & (truth <= high)
            panel.axline((middle, middle), slope=1, color=GREY, linewidth=1, zorder=1)
            draw_intervals(panel, truth, prediction.bag_target, (low, high), inside, colours[name])
            panel.set(title=f"{name}: {inside.sum()} of {len(truth)} inside", xlabel="true target")
        for panel in panels[::3]:
            panel.set_ylabel("predicted target")
        figure.legend(
            handles=[
                Line2D([], [], color=GREY, marker="o", label="truth inside the 90 % interval"),
                Line2D([], [], color=GREY, marker="o", mfc="white", label="outside"),
                Line2D([], [], color=GREY, linewidth=1, label="predicted = true"),
            ],
            loc="outside lower center",
            ncols=3,
        )
    return figure


def calibration(comparison: Compared, of: Literal["bags", "instances"] = "bags") -> Figure:
    """Reliability by isotonic regression (PAVA), with the band of a calibrated forecast."""
    predictions, labels = _tested(comparison)
    forecasts = {name: one.bag_probability for name, one in predictions.items()}
    if of == "instances":
        labels, forecasts = _of_known_instances(comparison)
    colours, _ = _looks(comparison)
    with mpl.rc_context(STYLE):
        figure, panels = rows_of_panels(len(forecasts), height=3.6, share_y=True)
        for panel, (name, probability) in zip(panels, forecasts.items(), strict=True):
            found = reliability(probability, labels)
            _draw_reliability(panel, found, colours[name])
            panel.plot(probability, labels, "|", color=colours[name], alpha=0.5, markersize=7)
            error = f"error {found.error:.3f}, by chance {found.error_if_calibrated:.3f}"
            panel.set_title(f"{name}\n{error}", fontsize=11)
            panel.set(xlabel="predicted probability", aspect="equal")
            panel.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        panels[0].set_ylabel("observed frequency")
        figure.legend(
            handles=[
                Patch(color="#DDDDDD", label="90 % if calibrated, pointwise"),
                Line2D([], [], color=GREY, linewidth=1.8, label="observed frequency"),
                Line2D([], [], color=GREY, marker="|", ls="", label=f"one test {of[:-1]}"),
            ],
            loc="outside lower center",
            ncols=3,
        )
    return figure


def _draw_reliability(panel: Axes, found: Reliability, colour: str) -> None:
    panel.fill_between(found.probability, found.low, found.high, color="#DDDDDD")
    panel.axline((0, 0), slope=1, color=GREY, linewidth=1)
    panel.plot(found.probability, found.frequency, color=colour, linewidth=1.8)


def _of_known_instances(
    comparison: Compared,
) -> tuple[Int[np.ndarray, " K"], dict[str, Float[np.ndarray, " K"]]]:
    """Labels of the test instances that have one, and their probabilities by engine."""
    truth = _test_bags(comparison, "probabilities").instance_labels
    known = np.zeros(0, bool) if truth is None else np.asarray(truth) >= 0
    if truth is None or not known.any():
        raise ValueError(
            "no label of a test instance is known, so their calibration cannot be drawn; pass test "
            'bags with instance_labels, or draw that of the bags: of="bags"'
        )
    forecasts = {n: one.instance_probability[known] for n, one in comparison.predictions.items()}
    return np.asarray(truth)[known], forecasts


def bag(
    comparison: Compared,
    bag: int | None = None,
    *,
    image_shape: tuple[int, int] | None = None,
    images: Float[np.ndarray, "N P"] | None = None,
) -> Figure:
    """Instances of one test bag by `plot_bag`; of the most disputed bag if none is named."""
    test = _labelled_test_bags(comparison)
    chosen = _most_disputed_bag(comparison, test) if bag is None else bag
    # The reference in black, as in the other pictures.
    order = sorted(comparison.predictions, key=lambda name: name != comparison.reference)
    predictions = {name: comparison.predictions[name] for name in order}
    return plot_bag(predictions, test, chosen, image_shape=image_shape, images=images)


def _most_disputed_bag(comparison: Compared, test: Bags) -> int:
    """The bag whose instances the posteriors see most differently: positive, small if any is.

    Without a small positive bag another small one, without a small one any.
    """
    instances = np.array([one.instance_probability for one in comparison.predictions.values()])
    dispute = np.maximum.reduceat(np.ptp(instances, axis=0), np.asarray(test.starts))
    is_small = np.asarray(test.bag_sizes) <= _READABLE
    is_positive = np.asarray(test.labels) == 1
    # The last key sorts first.
    return int(np.lexsort((dispute, is_small & is_positive, is_small))[-1])


# ---------------------------------------------------------------- what the pictures are about


def _sampler(comparison: Compared, engine: str | None) -> str:
    """The sampler that is named, or the reference, or the first."""
    samplers = [name for name, posterior in comparison.posteriors.items() if posterior.is_mcmc]
    chosen = engine or (comparison.reference if comparison.reference in samplers else None)
    chosen = chosen or next(iter(samplers), None)
    if chosen not in samplers:
        raise ValueError(
            f"engine is {engine!r}; expected a sampler of this comparison: "
            f"{', '.join(samplers) or 'it has none'}"
        )
    return chosen


def _tested(comparison: Compared):
    """Predictions by engine and labels of the test bags."""
    return comparison.predictions, np.asarray(_labelled_test_bags(comparison).labels)


def _labelled_test_bags(comparison: Compared) -> Bags:
    """The test bags, if there are probabilities of theirs to draw."""
    test = _test_bags(comparison, "probabilities")
    if comparison.predicts_numbers:
        raise ValueError(
            "these posteriors predict targets, so there are no probabilities to draw; expected "
            "posteriors of a model of labels: draw these by plot_targets"
        )
    if not comparison.predictions:
        raise ValueError("every posterior failed, so no probabilities to draw; see the sentences")
    return test


def _test_bags(comparison: Compared, what: str) -> Bags:
    if comparison.test is None:
        raise ValueError(
            f"comparison has no test bags, so no {what} to draw; pass test= to compare"
        )
    return comparison.test


def _looks(comparison: Compared) -> tuple[dict[str, str], dict[str, str]]:
    """Colour and marker of each engine, the reference in black."""
    names = sorted(comparison.posteriors, key=lambda name: name != comparison.reference)
    first = 0 if comparison.reference else 1
    looks = [(i + first) % len(COLOURS) for i in range(len(names))]
    return (
        {name: COLOURS[i] for name, i in zip(names, looks, strict=True)},
        {name: MARKERS[i] for name, i in zip(names, looks, strict=True)},
    )


def _where_they_differ_most(
    comparison: Compared, draws: dict[str, xr.Dataset], max_sites: int
) -> tuple[dict[str, xr.Dataset], list[str]]:
    """Draws by engine of the scalar sites to be shown, all of one length; and their names."""
    shown = _most_different_sites(comparison, draws, max_sites)
    return {name: _scalar_sites(one)[shown] for name, one in _same_length(draws).items()}, shown


def _most_different_sites(
    comparison: Compared, draws: dict[str, xr.Dataset], count: int
) -> list[str]:
    """The scalar sites on which some posterior differs most from the reference, in their order."""
    errors = [v.reference.accuracy for v in comparison.verdicts.values() if v.reference is not None]
    if errors:
        worst: dict[str, float] = {}
        # By name: engines may share different constants with the reference, which are left out.
        for error in errors:
            for name, size in zip(error.names, np.abs(error.error), strict=True):
                worst[name] = max(worst.get(name, 0.0), float(size))
    else:
        first, *others = draws.values()
        names = site_names(first[[n for n in first if all(n in other for other in others)]])
        worst = {name: -number for number, name in enumerate(names)}
    most = set(sorted(worst, key=lambda name: -worst[name])[:count])
    return [name for name in worst if name in most]


def _worst_mixed(comparison: Compared, engine: str, count: int) -> list[str]:
    """The scalar sites of a sampler with the smallest bulk ESS, worst first."""
    draws = _scalar_sites(comparison.verdicts[engine].assessment.draws)
    ess = {name: float(value) for name, value in az.ess(draws, method="bulk").data_vars.items()}
    return sorted(ess, key=lambda name: ess[name])[:count]


def _nearly_independent(draws: xr.Dataset) -> xr.Dataset:
    """Every k-th draw, k from the ESS of chains by themselves: also where they disagree."""
    by_chain = [az.ess(draws.isel(chain=[chain])) for chain in range(draws.sizes["chain"])]
    ess = min(np.mean([one[name].item() for one in by_chain]) for name in draws)
    step = max(1, round(draws.sizes["draw"] / ess)) if np.isfinite(ess) else 1
    return draws.isel(draw=slice(None, None, step))


def _halves_of_one(draws: xr.Dataset) -> xr.Dataset:
    """Two halves of a single chain as chains, which ought to be alike; several as they are."""
    if draws.sizes["chain"] > 1:
        return draws
    half = draws.sizes["draw"] // 2
    parts = [draws.isel(draw=slice(half)), draws.isel(draw=slice(half, 2 * half))]
    alike = [part.assign_coords(draw=np.arange(half)) for part in parts]
    return xr.concat(alike, dim="chain").assign_coords(chain=[0, 1])


def _as_tree(comparison: Compared, engine: str, names: Sequence[str]) -> xr.DataTree:
    draws = _scalar_sites(comparison.verdicts[engine].assessment.draws)[list(names)]
    tree = az.convert_to_datatree(draws)
    statistics = comparison.posteriors[engine].tree.children.get("sample_stats")
    if statistics is not None:
        tree["sample_stats"] = statistics
    return tree


def _scalar_sites(draws: xr.Dataset) -> xr.Dataset:
    """Each scalar site as a variable of its own, named as in `site_names`."""
    columns = []
    for name in sorted(draws, key=str):
        values = draws[name].transpose("chain", "draw", ...).to_numpy()
        columns += list(np.moveaxis(values.reshape(*values.shape[:2], -1), -1, 0))
    named = zip(site_names(draws), columns, strict=True)
    return xr.Dataset(
        {name: (("chain", "draw"), column) for name, column in named},
        {dim: draws[dim] for dim in ("chain", "draw")},
    )


def _same_length(draws: dict[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """One chain each, thinned to the length of the shortest, so that they stack.

    A point, which has one draw, has it as often.
    """
    totals = [one.sizes["chain"] * one.sizes["draw"] for one in draws.values()]
    length = min((total for total in totals if total > 1), default=1)
    thinned = {}
    for name, one in draws.items():
        total = one.sizes["chain"] * one.sizes["draw"]
        kept = np.linspace(0, total - 1, length).astype(int)
        variables = {}
        for site, values in one.data_vars.items():
            rows = values.transpose("chain", "draw", ...).to_numpy()
            rows = rows.reshape(total, *rows.shape[2:])[kept][None]
            variables[site] = (("chain", "draw", *values.dims[2:]), rows)
        thinned[name] = xr.Dataset(variables)
    return thinned


def _without_the_start(bound: Float[np.ndarray, " _"]) -> tuple[float, float]:
    """Limits of the axis that show the end; the first steps may fall below them."""
    high, low = float(bound.max()), float(np.quantile(bound, 0.1))
    width = max(high - low, 1e-3 * abs(high), 1e-9)
    return low - 0.3 * width, high + 0.1 * width


@contextmanager
def _arviz_style() -> Iterator[None]:
    with mpl.rc_context(STYLE), az.rc_context({"plot.backend": "matplotlib"}):
        yield


def _taken(collection: Any, title: str | None = None) -> Figure:
    """The figure of a plot collection, taken out of pyplot's hands."""
    figure = collection.viz["figure"].item()
    if title:
        figure.suptitle(title, fontsize=12)
    plt.close(figure)
    return figure
