"""CoupledVGPMIL against its formulas, integrals over latent values, and VGPMIL."""

import pickle
from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.sparse
from milzoo.datasets import Bags, simulate
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import RBF, VGPMIL, CoupledVGPMIL, GammaScaleMixture
from scipy.special import expit
from scipy.stats import norm

COUPLING, SHARPNESS = 0.6, 20.0
# Weights between the instances of the bags of two and of three.
GRAPH = ((0, 1, 1.0), (3, 4, 0.5), (4, 5, 2.0))


@pytest.fixture(scope="module")
def model(process):
    return CoupledVGPMIL(
        process.kernel, process.points, mean=process.mean, sharpness=SHARPNESS, coupling=COUPLING
    )


@pytest.fixture(scope="module")
def bags(four_bags):
    one, other, weight = zip(*GRAPH, strict=True)
    upper = scipy.sparse.coo_array((weight, (one, other)), shape=(7, 7))
    return four_bags.with_edges(upper + upper.T)


@pytest.fixture(scope="module")
def uncoupled(model):
    return VGPMIL(model.kernel, model.inducing_points, mean=model.mean, sharpness=SHARPNESS)


@pytest.fixture(scope="module")
def draws(draws_of_four_bags):
    return draws_of_four_bags


@pytest.fixture(scope="module")
def marginal_draws(draws):
    return {"inducing_value": draws["inducing_value"]}


def averages():
    """S, written out."""
    matrix = np.eye(7)
    for n, neighbours in {
        0: {1: 1.0},
        1: {0: 1.0},
        3: {4: 1.0},
        4: {3: 0.2, 5: 0.8},
        5: {4: 1.0},
    }.items():
        matrix[n, n] = 1 - COUPLING
        for j, weight in neighbours.items():
            matrix[n, j] = COUPLING * weight
    return matrix


def given(process, inducing_value, bags):
    """Mean and sd of f_n | u, by dense products."""
    mean, scale = process.given(inducing_value, bags.instances)
    matrix = averages()
    covariance = matrix @ np.diag(scale**2) @ matrix.T
    return process.mean + matrix @ (mean - process.mean), np.sqrt(np.diag(covariance))


def log_likelihood(negative, bags):
    """log P(T | probabilities (..., N) that instances are negative)."""
    none = np.multiply.reduceat(negative, bags.starts, axis=-1)
    positive = (SHARPNESS - (SHARPNESS - 1) * none) / (SHARPNESS + 1)
    return np.log(np.where(np.asarray(bags.labels) == 1, positive, 1 - positive)).sum(axis=-1)


def test_the_program_has_the_density_of_its_formula(model, bags, draws, process):
    expected = []
    for u, f in zip(*draws.values(), strict=True):
        mean, scale = given(process, u, bags)
        likelihood = log_likelihood(expit(-f), bags)
        expected.append(process.log_prior(u) + norm(mean, scale).logpdf(f).sum() + likelihood)
    np.testing.assert_allclose(log_joint(model, "full", draws, bags), expected, rtol=1e-9)


def test_the_marginal_program_integrates_latent_values_out(model, bags, marginal_draws, process):
    """Each 1 − σ(f_n) on a grid of f_n."""
    z = np.linspace(-9.0, 9.0, 361)
    weight = norm.pdf(z) / norm.pdf(z).sum()
    expected = []
    for u in marginal_draws["inducing_value"]:
        mean, scale = given(process, u, bags)
        negative = weight @ expit(-(mean + scale * z[:, None]))
        expected.append(process.log_prior(u) + log_likelihood(negative, bags))
    found = log_joint(model, "marginal", marginal_draws, bags)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.in_ci
def test_predictions_are_means_over_latent_values(model, bags, marginal_draws, process):
    z = np.linspace(-9.0, 9.0, 361)
    weight = norm.pdf(z) / norm.pdf(z).sum()
    predicted = model.predict(marginal_draws, replace(bags, labels=None))
    for s, u in enumerate(marginal_draws["inducing_value"]):
        mean, scale = given(process, u, bags)
        negative = weight @ expit(-(mean + scale * z[:, None]))
        none = np.multiply.reduceat(negative, bags.starts)
        bag = (SHARPNESS - (SHARPNESS - 1) * none) / (SHARPNESS + 1)
        found = predicted["instance_probability"][s]
        np.testing.assert_allclose(found, 1 - negative, atol=1e-7)
        np.testing.assert_allclose(predicted["bag_probability"][s], bag, atol=1e-7)


@pytest.mark.in_ci
def test_latent_values_are_drawn_back_given_labels(model, bags, marginal_draws, process):
    """Against draws of the prior with weights: seven means at 4.5 errors; seeded."""
    u = marginal_draws["inducing_value"][:1]
    repeated = {"inducing_value": np.repeat(u, 8000, axis=0)}
    found = model.complete(repeated, bags, seed=0)["latent"]
    mean, scale = given(process, u[0], bags)
    f = mean + scale * np.random.default_rng(5).normal(size=(200_000, 7))
    weight = np.exp(log_likelihood(expit(-f), bags))
    weight /= weight.sum()
    expected = weight @ f
    of_prior = np.sqrt(weight**2 @ (f - expected) ** 2)
    error = np.hypot(of_prior, found.std(axis=0) / np.sqrt(len(found)))
    assert (np.abs(found.mean(axis=0) - expected) < 4.5 * error).all()
    assert (np.abs(mean - expected) > 4.5 * error).any()  # power: labels tell something


# ------------------------------------------------------------------ VGPMIL as a special case


@pytest.mark.in_ci
@pytest.mark.parametrize("which", ["no coupling", "no edges", "an empty graph"])
def test_without_coupling_it_is_vgpmil(model, uncoupled, bags, draws, marginal_draws, which):
    if which == "no coupling":
        model = replace(model, coupling=0.0)
    else:
        empty = scipy.sparse.csr_array((7, 7))
        bags = bags.with_edges(None if which == "no edges" else empty)
    for program, sites in (("full", draws), ("marginal", marginal_draws)):
        ours, theirs = (log_joint(one, program, sites, bags) for one in (model, uncoupled))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)
    ours, theirs = (one.predict(marginal_draws, bags) for one in (model, uncoupled))
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-10)


def test_coupling_brings_neighbours_together(model, uncoupled, bags, marginal_draws):
    ours, theirs = (
        one.predict(marginal_draws, bags)["instance_probability"] for one in (model, uncoupled)
    )
    assert (np.abs(ours[:, 0] - ours[:, 1]) < np.abs(theirs[:, 0] - theirs[:, 1])).all()
    np.testing.assert_allclose(ours[:, [2, 6]], theirs[:, [2, 6]], atol=1e-12)  # bags of one


def test_order_of_bags_and_instances_is_no_matter(model, bags, marginal_draws):
    """With the edges in the same new order."""
    order = np.arange(7)[::-1]
    graph = bags.edges.as_matrix(7)[order][:, order]
    turned = Bags.from_list([rows[::-1] for rows in reversed(bags.to_list())]).with_edges(graph)
    ours, theirs = (model.predict(marginal_draws, one) for one in (bags, turned))
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name][:, ::-1], rtol=1e-12)


# ------------------------------------------------------------------ what else it can do


@pytest.mark.in_ci
def test_hyperparameters_with_priors_are_sites(model, bags, marginal_draws):
    other = replace(model, kernel=RBF(dist.LogNormal(0.0, 0.5), 1.3), mean=dist.Normal(-1.0, 1.0))
    assert other.latent_sites == ("inducing_value", "variance", "mean")
    sites = marginal_draws | {"variance": np.full(5, 2.0), "mean": np.full(5, -0.7)}
    priors = dist.LogNormal(0.0, 0.5).log_prob(2.0) + dist.Normal(-1.0, 1.0).log_prob(-0.7)
    expected = log_joint(model, "marginal", marginal_draws, bags) + float(priors)
    np.testing.assert_allclose(log_joint(other, "marginal", sites, bags), expected, rtol=1e-6)


@pytest.mark.in_ci
def test_labels_can_be_simulated(model, bags):
    drawn, sites = simulate(model, bags, seed=0)
    assert drawn.labels.shape == (4,)
    assert sites["inducing_value"].shape == (3,) and sites["latent"].shape == (7,)


def test_another_scale_mixture_reweights_averaged_values(model, bags, draws):
    gamma = replace(model, scale_mixture=GammaScaleMixture(1.0, 2.5))
    f = draws["latent"]
    log_ratio = -np.log1p(0.2 * f**2) + np.log(2 * np.cosh(f / 2))
    ours, logistic = (log_joint(one, "full", draws, bags) for one in (gamma, model))
    difference = ours - logistic - log_ratio.sum(axis=1)
    np.testing.assert_allclose(difference, difference[0], atol=1e-9)


def test_for_bags_takes_a_coupling(bags):
    model = CoupledVGPMIL.for_bags(bags, 3, coupling=0.25)
    assert model.coupling == 0.25 and np.isfinite(model.mean)
    assert pickle.loads(pickle.dumps(model)).coupling == 0.25


@pytest.mark.parametrize("coupling", [-0.1, 1.0, np.nan, "0.5", dist.Beta(1.0, 1.0)])
def test_a_coupling_out_of_range_is_refused(model, coupling, without_type_checks):
    with pytest.raises(ValueError, match=r"CoupledVGPMIL coupling is .*; expected a number of at"):
        replace(model, coupling=coupling)
