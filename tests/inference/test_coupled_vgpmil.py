"""Engines on CoupledVGPMIL against definitions, VGPMIL and each other; edges in posteriors.

At most 40 numbers are looked at with |z| ≤ 5 Monte-Carlo standard errors: fewer than one false
alarm in 40,000 runs of this file.
"""

from dataclasses import replace
from importlib import import_module

import jax
import numpy as np
import pytest
import scipy.sparse
from milzoo.datasets import Bags, patch_on_grid, simulate
from milzoo.diagnostics import compare
from milzoo.diagnostics.checks.leave_one_out import leave_one_out
from milzoo.diagnostics.measures.relevance import relevance
from milzoo.inference import Posterior, coordinate_ascent, gibbs, laplace, natural_gradient, nuts
from milzoo.models import VGPMIL, CoupledVGPMIL


def in_a_row(size: int) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(np.eye(size, k=1) + np.eye(size, k=-1))


@pytest.fixture(scope="module")
def problem(small_problem):
    """The twelve bags of `small_problem`, instances in a row, labels drawn from this model."""
    other, design = small_problem
    fields = {"mean": other.mean, "coupling": 0.6}
    model = CoupledVGPMIL(other.kernel, other.inducing_points, **fields)
    design = design.with_edges([in_a_row(size) for size in design.bag_sizes.tolist()])
    return model, simulate(model, replace(design, labels=None), seed=5)[0]


@pytest.fixture(scope="module")
def fit(problem):
    return coordinate_ascent(*problem, seed=0)


# ------------------------------------------------------------------ the bound


@pytest.mark.in_ci
@pytest.mark.parametrize("label_update", ["exact", "mean_field"])
def test_bound_equals_trace_elbo_of_the_guide(problem, label_update, trace_elbo_draws):
    model, bags = problem
    posterior = coordinate_ascent(model, bags, seed=0, label_update=label_update, max_steps=8)
    draws = trace_elbo_draws(posterior, bags)
    error = draws.mean() - posterior.elbo[-1]
    assert abs(error) < 4.5 * draws.std(ddof=1) / np.sqrt(draws.size)


def test_the_bound_rises_to_a_stationary_point(problem, closed_form_start, gradient_of_the_bound):
    with jax.enable_x64(True):
        start = closed_form_start(*problem)
        bounds = [start.after(steps).elbo for steps in (1, 2, 4, 8, 30)]
        assert (np.diff(bounds) > 0).all()
        for gradient in gradient_of_the_bound(start.after(2000)):
            assert np.abs(gradient).max() < 1e-8


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_without_coupling_the_ascent_is_that_of_vgpmil(problem, dtype):
    model, bags = problem
    uncoupled = VGPMIL(model.kernel, model.inducing_points, mean=model.mean)
    theirs = coordinate_ascent(uncoupled, bags, seed=0, dtype=dtype)
    for without, some in ((replace(model, coupling=0.0), bags), (model, bags.with_edges(None))):
        ours = coordinate_ascent(without, some, seed=0, dtype=dtype)
        np.testing.assert_allclose(ours.elbo, theirs.elbo, rtol=0, atol=1e-10)
        for name in ("mean", "scale_tril"):
            one, other = (getattr(fit.approximation, name) for fit in (ours, theirs))
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
        one, other = (fit.predict(some).bag_probability for fit in (ours, theirs))
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.in_ci
def test_bags_in_pieces_give_the_posterior_in_memory(problem, fit, monkeypatch):
    """Pieces are whole bags, with all their edges; and so are batches."""
    module = import_module("milzoo.inference.closed_form.coordinate_ascent")
    monkeypatch.setattr(module, "_NUMBERS_KEPT_OF_BAGS", 0)
    in_pieces = coordinate_ascent(*problem, seed=0)
    np.testing.assert_allclose(in_pieces.elbo[-1], fit.elbo[-1], rtol=1e-9)
    np.testing.assert_allclose(in_pieces.approximation.mean, fit.approximation.mean, atol=1e-6)
    by_batches = natural_gradient(*problem, seed=0, batch_instances=9, max_steps=200)
    assert abs(by_batches.elbo[-1] - fit.elbo[-1]) < 0.1


def test_the_order_of_bags_and_instances_is_no_matter(problem, fit):
    model, bags = problem
    order = np.arange(bags.num_instances)[::-1]
    graph = bags.edges.as_matrix(bags.num_instances)[order][:, order]
    rows = [rows[::-1] for rows in reversed(bags.to_list())]
    turned = Bags.from_list(rows, labels=bags.labels[::-1]).with_edges(graph)
    again = coordinate_ascent(model, turned, seed=0)
    np.testing.assert_allclose(again.elbo[-1], fit.elbo[-1], rtol=1e-10)
    ours, theirs = again.predict(turned).bag_probability, fit.predict(bags).bag_probability
    np.testing.assert_allclose(ours[::-1], theirs, rtol=1e-6)


# ------------------------------------------------------------------ the samplers


@pytest.mark.slow
def test_gibbs_agrees_with_nuts_on_the_full_program(problem, moments):
    """In u and f."""
    model, bags = problem
    keep = ("inducing_value", "latent")
    sampled = gibbs(model, bags, seed=0, num_samples=6000, keep=keep)
    full = nuts(model, bags, seed=1, program="full", num_samples=3000)
    for name in keep:
        ours, theirs = (moments(p.tree["posterior"][name]) for p in (sampled, full))
        assert ours.largest_z(theirs) < 5


@pytest.mark.in_ci
def test_gibbs_agrees_with_nuts_on_the_marginal_program(problem, moments):
    model, bags = problem
    sampled = gibbs(model, bags, seed=0, num_samples=3000)
    marginal = nuts(model, bags, seed=1, num_samples=1500)
    ours, theirs = (moments(p.tree["posterior"]["inducing_value"]) for p in (sampled, marginal))
    assert ours.largest_z(theirs) < 5


# ------------------------------------------------------------------ what follows from a posterior


def test_edges_are_saved_with_the_bags(fit, problem, tmp_path):
    fit.save(tmp_path / "posterior.nc")
    loaded = Posterior.load(tmp_path / "posterior.nc")
    for ours, theirs in zip(problem[1].edges, loaded.bags.edges, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    ours, theirs = (one.predict(problem[1]).bag_probability for one in (fit, loaded))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("edge_row", lambda row: row + 10**6, "between other instances than there are"),
        ("edge_weight", lambda weight: -weight, "expected finite numbers of at least 0"),
        ("edge_weight", lambda weight: weight * np.arange(len(weight)), "expected the same"),
        ("edge_column", lambda column: column[::-1], "edges? "),
    ],
)
def test_edges_of_a_file_are_checked(fit, tmp_path, name, values, message):
    constant = fit.tree["constant_data"].to_dataset()
    constant[name] = ("edge", values(constant[name].to_numpy()))
    tree = fit.tree.copy()
    tree["constant_data"] = tree["constant_data"].assign(constant)
    replace(fit, tree=tree).save(tmp_path / "posterior.nc")
    with pytest.raises(ValueError, match=message):
        Posterior.load(tmp_path / "posterior.nc")


def test_posteriors_of_other_edges_are_not_compared(problem, fit):
    model, bags = problem
    other = coordinate_ascent(model, bags.with_edges(None), seed=0)
    with pytest.raises(ValueError, match=r"different bags \(their edges differ\)"):
        compare({"one": fit, "other": other})


def test_relevance_leaves_edges_between_the_others(problem, fit):
    """The probabilities without some instances are those of bags with what is left of the graph."""
    _, bags = problem
    bag = int(np.flatnonzero(bags.bag_sizes == 4)[0])
    found = relevance(fit, bags, bag)
    kept = np.flatnonzero(~found.may_go)
    alone = bags.select([bag])
    graph = alone.edges.as_matrix(4)[kept][:, kept]
    rest = Bags.from_list([np.asarray(alone.instances)[kept]]).with_edges(graph)
    assert found.probability_without == pytest.approx(fit.predict(rest).bag_probability[0])


@pytest.mark.slow
def test_a_bag_left_out_is_a_bag_left_out(problem):
    """By importance weights against a fit to the others."""
    model, bags = problem
    posterior = nuts(model, bags, seed=0, num_samples=2000)
    held_out = leave_one_out(posterior)
    without = nuts(model, bags.select(np.arange(1, bags.num_bags)), seed=1, num_samples=2000)
    probability = without.predict(bags.select([0])).bag_probability[0]
    expected = np.log(probability if bags.labels[0] else 1 - probability)
    assert float(held_out.elpd_i[0]) == pytest.approx(expected, abs=0.05)


@pytest.mark.slow
def test_coupling_pays_where_positives_are_a_patch():
    """In log loss of held-out bags and of their instances; with the graph shuffled it does not."""
    train, test = (patch_on_grid(60, shift=0.7, seed=seed) for seed in (0, 1))
    uncoupled = VGPMIL.for_bags(train, 30)
    fields = {"mean": uncoupled.mean, "coupling": 0.6}
    coupled = CoupledVGPMIL(uncoupled.kernel, uncoupled.inducing_points, **fields)
    of_bags, of_instances = [], []
    for model in (uncoupled, coupled):
        predicted = laplace(model, train, seed=0).predict(test)
        for losses, probability, labels in (
            (of_bags, predicted.bag_probability, test.labels),
            (of_instances, predicted.instance_probability, test.instance_labels),
        ):
            losses.append(-np.log(np.where(labels == 1, probability, 1 - probability)).mean())
    assert of_bags[1] < of_bags[0] - 0.03
    assert of_instances[1] < of_instances[0] - 0.03
