"""Clusters and scenes: what is drawn is what the posterior says."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.patches import Ellipse
from milzoo.datasets import Bags, load
from milzoo.diagnostics import compare, plot_components, plot_scene
from milzoo.diagnostics.plots import clusters as clusters_module
from milzoo.inference import Posterior, coordinate_ascent
from milzoo.inference.posterior import Status
from milzoo.models import DPMIL, VGPMIL
from scipy.special import expit

NEGATIVE, POSITIVE = "#0072b2", "#d55e00"


@pytest.fixture(scope="module")
def bags() -> Bags:
    return load("kandemir2014").select(np.arange(16))


@pytest.fixture(scope="module")
def named(bags) -> Posterior:
    """Of coordinate ascent, whose clusters have names."""
    model = DPMIL.for_bags(bags, max_components=6)
    return coordinate_ascent(model, bags, seed=0, num_starts=2, num_draws=60)


@pytest.fixture(scope="module")
def nameless(named) -> Posterior:
    """Stand-in for a sampler's: the draws of q with the names of the clusters shuffled."""
    tree = named.tree.copy(deep=True)
    tree["posterior"] = xr.DataTree(named.draws_with_estimands.copy(deep=True))
    site = tree["posterior"]
    random = np.random.default_rng(0)
    order = np.argsort(random.random((1, 60, 2, 6)), axis=-1)
    weight = np.take_along_axis(drawn_weights(named)[None], order, axis=-1)
    left = 1 - np.cumsum(weight, axis=-1) + weight
    site["stick"].values[:] = (weight / left)[..., :-1]
    site["mean"].values[:] = np.take_along_axis(site["mean"].values, order[..., None], axis=-2)
    name = "precision_cholesky"
    site[name].values[:] = np.take_along_axis(site[name].values, order[..., None, None], axis=-3)
    return replace(named, engine="gibbs", tree=tree, approximation=None, elbo=None)


def drawn_weights(posterior):
    """π of all draws, from sticks: v_k Π_{j<k} (1 − v_j)."""
    stick = posterior.stored_draws()["stick"]
    stick = np.concatenate([stick, np.ones((*stick.shape[:-1], 1))], axis=-1)
    left = np.cumprod(1 - stick, axis=-1)[..., :-1]
    return stick * np.concatenate([np.ones_like(left[..., :1]), left], axis=-1)


# --------------------------------------------------------------------- weights


def drawn(panel):
    """Heights of the dots, lower and upper ends of their intervals."""
    line, _, (bars,) = panel.containers[0].lines
    assert line.get_xdata().tolist() == list(range(1, len(line.get_xdata()) + 1))
    ends = np.array(bars.get_segments())[:, :, 1]
    return line.get_ydata(), ends[:, 0], ends[:, 1]


@pytest.mark.slow
def test_weights_of_named_clusters_are_their_expectations_largest_first(named):
    by_cluster = drawn_weights(named)
    for klass, panel in enumerate(plot_components(named).axes):
        expected = named.approximation.expected_weight[klass]
        order = np.argsort(-expected)
        centre, low, high = drawn(panel)
        np.testing.assert_allclose(centre, expected[order])
        for end, level in ((low, 0.05), (high, 0.95)):
            quantile = np.quantile(by_cluster[:, klass, order], level, axis=0)
            # An interval ends at its mean where that is outside.
            limit = np.minimum if level < 0.5 else np.maximum
            np.testing.assert_allclose(end, limit(quantile, centre), atol=1e-12)
        assert panel.get_xlabel() == "clusters of q, largest first"


@pytest.mark.slow
def test_weights_of_nameless_clusters_are_sorted_in_each_draw(named, nameless):
    # The names are gone, and with them nothing that is drawn.
    by_rank = -np.sort(-drawn_weights(named), axis=-1)
    assert (drawn_weights(nameless) != drawn_weights(named)).any()
    for klass, panel in enumerate(plot_components(nameless).axes):
        centre, low, high = drawn(panel)
        np.testing.assert_allclose(centre, by_rank[:, klass].mean(axis=0), atol=1e-9)
        np.testing.assert_allclose(
            [low, high], np.quantile(by_rank[:, klass], [0.05, 0.95], axis=0), atol=1e-9
        )
        assert panel.get_xlabel() == "k-th largest of each draw"


@pytest.mark.slow
def test_the_number_of_occupied_clusters_is_marked(named):
    number = named.draws_with_estimands["occupied_components"].to_numpy()[0]
    for klass, (panel, name) in enumerate(
        zip(plot_components(named).axes, ("negative", "positive"), strict=True)
    ):
        (line,) = [line for line in panel.lines if line.get_linestyle() == "--"]
        np.testing.assert_allclose(line.get_xdata(), number[:, klass].mean())
        (band,) = panel.patches
        ends = [band.get_x(), band.get_x() + band.get_width()]
        np.testing.assert_allclose(ends, np.quantile(number[:, klass], [0.05, 0.95]))
        title = f"coordinate_ascent\n{name} class: {number[:, klass].mean():.1f} occupied"
        assert panel.get_title() == title


@pytest.mark.slow
def test_a_row_for_each_posterior_with_its_name(named, nameless):
    titles_of = {"by q": named, "by draws": nameless}
    figure = plot_components(titles_of)
    titles = [panel.get_title().split(":")[0] for panel in figure.axes]
    by_class = [
        f"{name}\n{klass} class" for name in titles_of for klass in ("negative", "positive")
    ]
    assert titles == by_class


def test_one_cluster_has_all_the_weight(nameless):
    tree = nameless.tree.copy()
    first = nameless.tree["posterior"].to_dataset().drop_vars("stick").isel(component=[0])
    tree["posterior"] = type(tree)(first)
    alone = replace(nameless, tree=tree, model=replace(nameless.model, max_components=1))
    for panel in plot_components(alone).axes:
        assert [values.tolist() for values in drawn(panel)] == [[1.0]] * 3


# --------------------------------------------------------------------- the scene


def ellipses(panel, colour):
    return [p for p in panel.patches if isinstance(p, Ellipse) and to_hex(p.get_ec()) == colour]


def outline(ellipse):
    """Points on it, in the units of the features."""
    angle = np.linspace(0, 2 * np.pi, 20)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return ellipse.get_patch_transform().transform(circle)


def test_each_occupied_cluster_has_an_ellipse(named):
    """Its width is two expected sds."""
    q, panel = named.approximation, plot_scene(named).axes[0]
    for klass, colour in enumerate((NEGATIVE, POSITIVE)):
        count = q.strength[klass] - named.model.mean_strength
        found = ellipses(panel, colour)
        assert 0 < len(found) == (count >= 1).sum() < 6
        for ellipse, k in zip(found, np.flatnonzero(count >= 1), strict=True):
            root = q.scale_root[klass, k]
            precision = q.degrees_of_freedom[klass, k] * root @ root.T
            deviation = outline(ellipse) - q.mean[klass, k]
            distance = np.einsum("ni,ij,nj->n", deviation, precision, deviation)
            np.testing.assert_allclose(distance, 4.0)


@pytest.mark.slow
def test_sampler_probabilities_average_over_distant_draws(nameless, bags, monkeypatch):
    monkeypatch.setattr(clusters_module, "_DRAWS", 7)
    found = clusters_module._instance_probability(nameless, bags.instances)
    draws = nameless.stored_draws()
    some = np.linspace(0, len(draws["mean"]) - 1, 7).astype(int)
    model, some_draws = nameless.model, {name: value[some] for name, value in draws.items()}
    expected = expit(model.predict(some_draws, bags)["instance_log_odds"])
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_larger_the_weight_the_wider_the_line(named):
    panel = plot_scene(named).axes[0]
    q = named.approximation
    for klass, colour in enumerate((NEGATIVE, POSITIVE)):
        occupied = q.strength[klass] - named.model.mean_strength >= 1
        widths = [ellipse.get_linewidth() for ellipse in ellipses(panel, colour)]
        assert (
            np.argsort(widths).tolist() == np.argsort(q.expected_weight[klass, occupied]).tolist()
        )
        assert {e.get_linestyle() for e in ellipses(panel, colour)} == {("--", "-")[klass]}


@pytest.mark.slow
def test_clusters_of_samplers_come_from_a_typical_draw(named, nameless):
    panel = plot_scene(nameless).axes[0]
    draws = nameless.stored_draws()
    by_bag = draws["log_density"]
    typical = np.argmin(((by_bag - by_bag.mean(axis=0)) ** 2).sum(axis=1))
    for klass, colour in enumerate((NEGATIVE, POSITIVE)):
        found, root = ellipses(panel, colour), draws["precision_cholesky"][typical, klass]
        assert found
        for ellipse in found:
            (k,) = np.flatnonzero((draws["mean"][typical, klass] == ellipse.center).all(axis=1))
            whitened = (outline(ellipse) - ellipse.center) @ root[k]
            np.testing.assert_allclose(np.linalg.norm(whitened, axis=1), 2.0)


@pytest.mark.slow
def test_a_draw_says_how_many_instances_each_cluster_has(nameless, bags):
    one = {name: value[7:8] for name, value in nameless.stored_draws().items()}
    draw = {name: value[0] for name, value in one.items()}
    found = nameless.model.typical_components(one, one, bags)
    np.testing.assert_allclose(found.occupancy.sum(), bags.num_instances)
    np.testing.assert_allclose(found.occupancy[1].sum(), draw["instance_probability"].sum())
    # A bag whose instances are all negative for certain has responsibilities within one class.
    certain = bags.select(bags.labels == 0)
    deviation = certain.instances[:, None] - draw["mean"][0]
    whitened = np.einsum("nki,kij->nkj", deviation, draw["precision_cholesky"][0])
    determinant = np.linalg.det(draw["precision_cholesky"][0])
    density = found.weight[0] * determinant * np.exp(-0.5 * (whitened**2).sum(axis=2))
    occupancy = (density / density.sum(axis=1, keepdims=True)).sum(axis=0)
    alone = nameless.model.typical_components(one, one, certain)
    np.testing.assert_allclose(alone.occupancy, [occupancy, np.zeros(6)], atol=1e-9)


def marks(panel):
    """Where the instances are, their values, edges and whether they are circles."""
    found = [c for c in panel.collections if isinstance(c, PathCollection)]
    where = np.concatenate([np.asarray(mark.get_offsets()) for mark in found])
    value = np.concatenate([mark.get_array() for mark in found])
    edge = [to_hex(mark.get_edgecolor()[0]) for mark in found for _ in mark.get_offsets()]
    is_circle = [len(mark.get_paths()[0]) > 6 for mark in found for _ in mark.get_offsets()]
    order = np.lexsort(where.T)
    return where[order], value[order], np.array(edge)[order], np.array(is_circle)[order]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["named", "nameless"])
def test_instances_have_the_colour_of_their_predicted_probability(kind, bags, request):
    posterior = request.getfixturevalue(kind)
    where, value, edge, is_circle = marks(plot_scene(posterior).axes[0])
    order = np.lexsort(np.asarray(bags.instances).T)
    np.testing.assert_allclose(where, bags.instances[order])
    probability = posterior.predict(bags).instance_probability
    np.testing.assert_allclose(value, probability[order], atol=1e-9)
    np.testing.assert_array_equal(edge == "#000000", bags.instance_labels[order] == 1)
    np.testing.assert_array_equal(is_circle, bags.labels[bags.bag_index][order] == 1)


def test_unlabelled_bags_show_their_instances_alone(named, bags):
    unknown = replace(bags, labels=None, instance_labels=None)
    figure = plot_scene(named, unknown)
    _, value, edge, is_circle = marks(figure.axes[0])
    assert len(value) == bags.num_instances
    assert is_circle.all() and set(edge) == {"#666666"}
    labels = [text.get_text() for text in figure.legends[0].texts]
    assert "instance" in labels and "known witness" not in labels


def test_on_the_line_either_class_is_as_likely(named):
    panel = plot_scene(named).axes[0]
    (line,) = [c for c in panel.collections if np.array_equal(getattr(c, "levels", ()), [0.5])]
    points = np.concatenate([path.vertices for path in line.get_paths()])
    on_line = Bags.from_arrays(points, np.zeros(len(points), int))
    negative, positive = named.approximation.log_predictive(named.model, on_line)
    probability = expit(positive - negative)
    # The line is drawn between the points of a grid.
    assert np.abs(probability - 0.5).max() < 0.05


def test_clusters_of_diagonal_precisions_lie_along_the_axes(named):
    q, model = named.approximation, named.model
    of_features = np.diagonal(q.scale_root, axis1=-2, axis2=-1)
    diagonal = replace(
        named,
        model=replace(model, scale=np.diag(model.scale)),
        approximation=replace(q, scale_root=of_features),
    )
    (klass, k), *_ = np.argwhere(q.strength - model.mean_strength >= 1)
    ellipse = ellipses(plot_scene(diagonal).axes[0], NEGATIVE)[0]
    assert klass == 0
    extent = np.abs(outline(ellipse) - ellipse.center).max(axis=0)
    sd = 1 / np.sqrt(q.degrees_of_freedom[0, k] * of_features[0, k] ** 2)
    np.testing.assert_allclose(extent, 2 * sd, rtol=0.02)  # of 20 points on it


@pytest.mark.slow
def test_each_posterior_has_a_panel_without_overlaps(named, nameless):
    figure = plot_scene({"q": named, "draws": nameless})
    titles = [panel.get_title() for panel in figure.axes[:2]]
    assert titles == ["q\nexpected clusters", "draws\nclusters of a draw"]
    assert figure.axes[0].get_legend() is figure.axes[1].get_legend() is None
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert not any(legend.overlaps(panel.get_tightbbox()) for panel in figure.axes)
    assert plt.get_fignums() == []


# --------------------------------------------------------------------- messages


def test_a_scene_has_two_features(named, bags):
    wide = replace(bags, instances=np.column_stack([bags.instances, bags.instances[:, 0]]))
    with pytest.raises(ValueError, match=r"bags have 3 features; a scene has 2: .*kernel_pca"):
        plot_scene(named, wide)


@pytest.mark.parametrize("plot", [plot_components, plot_scene])
def test_only_sound_posteriors_of_dpmil_have_clusters(plot, named, bags):
    other = replace(named, model=VGPMIL.as_published(bags, num_inducing=3))
    with pytest.raises(ValueError, match="'mine' is one of vgpmil, which has no clusters"):
        plot({"mine": other})
    failed = replace(named, status=Status("failed", "the bound is not finite"))
    with pytest.raises(ValueError, match=r"'coordinate_ascent' failed \(the bound is not finite\)"):
        plot(failed)
    with pytest.raises(ValueError, match="posteriors is empty; expected at least one"):
        plot({})


# --------------------------------------------------------------------- the report


@pytest.mark.slow
def test_report_shows_clusters_and_the_scene(nameless, tmp_path):
    page = compare({"gibbs": nameless}).save_report(tmp_path).read_text("utf-8")
    assert {"components.png", "scene.png"} < {path.name for path in tmp_path.iterdir()}
    assert "Weights of the clusters in their class." in page
    assert "those of a typical draw" in page
