"""ProbitGPMIL against its formulas, integrals over latent values, and draws."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import simulate
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import RBF, ProbitGPMIL
from scipy.stats import norm


@pytest.fixture(scope="module")
def model(process):
    return ProbitGPMIL(process.kernel, process.points, mean=process.mean)


@pytest.fixture(scope="module")
def bags(four_bags):
    return four_bags


@pytest.fixture(scope="module")
def draws(draws_of_four_bags):
    return draws_of_four_bags


@pytest.fixture(scope="module")
def marginal_draws(draws):
    return {"inducing_value": draws["inducing_value"]}


def log_likelihood(negative, bags):
    """P(T_b = 0) = Π P(g_n < 0), of (..., N) probabilities."""
    none = np.multiply.reduceat(negative, bags.starts, axis=-1)
    return np.log(np.where(np.asarray(bags.labels) == 1, 1 - none, none)).sum(axis=-1)


def test_the_program_has_the_density_of_its_formula(model, bags, draws, process):
    expected = []
    for u, f in zip(*draws.values(), strict=True):
        mean, scale = process.given(u, bags.instances)
        likelihood = log_likelihood(norm.cdf(-f), bags)
        expected.append(process.log_prior(u) + norm(mean, scale).logpdf(f).sum() + likelihood)
    np.testing.assert_allclose(log_joint(model, "full", draws, bags), expected, rtol=1e-9)


def test_the_marginal_program_integrates_latent_values_out(model, bags, marginal_draws, process):
    """Each Φ(−f_n) on a grid of f_n."""
    z = np.linspace(-9.0, 9.0, 361)
    weight = norm.pdf(z) / norm.pdf(z).sum()
    expected = []
    for u in marginal_draws["inducing_value"]:
        mean, scale = process.given(u, bags.instances)
        negative = weight @ norm.cdf(-(mean + scale * z[:, None]))
        expected.append(process.log_prior(u) + log_likelihood(negative, bags))
    found = log_joint(model, "marginal", marginal_draws, bags)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_the_augmented_program_has_utilities_and_no_latent_values(
    model, bags, marginal_draws, process
):
    """Of g with the signs that the labels ask for, and with others."""
    utility = np.tile([0.4, -0.2, -1.0, -0.3, 2.0, 0.1, 0.7], (5, 1))
    expected = []
    for u in marginal_draws["inducing_value"]:
        mean, scale = process.given(u, bags.instances)
        expected.append(
            process.log_prior(u) + norm(mean, np.sqrt(1 + scale**2)).logpdf(utility[0]).sum()
        )
    sites = marginal_draws | {"latent_utility": utility}
    np.testing.assert_allclose(log_joint(model, "augmented", sites, bags), expected, rtol=1e-9)
    wrong = marginal_draws | {"latent_utility": -utility}
    assert np.isneginf(log_joint(model, "augmented", wrong, bags)).all()


def test_predictions_are_means_over_utilities(model, bags, marginal_draws, process):
    """Eleven probabilities of five draws at 4.5 standard errors: a false alarm in 4e-4; seeded."""
    predicted = model.predict(marginal_draws, replace(bags, labels=None))
    random = np.random.default_rng(4)
    for s, u in enumerate(marginal_draws["inducing_value"]):
        mean, scale = process.given(u, bags.instances)
        f = mean + scale * random.normal(size=(40_000, 7))
        positive = f + random.normal(size=f.shape) > 0
        bag = np.logical_or.reduceat(positive, bags.starts, axis=1)
        for found, drawn in (
            (predicted["instance_probability"][s], positive),
            (predicted["bag_probability"][s], bag),
        ):
            error = np.sqrt(found * (1 - found) / len(drawn))
            assert (np.abs(found - drawn.mean(axis=0)) < 4.5 * error).all()


@pytest.mark.in_ci
def test_latent_values_are_drawn_back_given_labels(model, bags, marginal_draws, process):
    """Against draws of the prior that have the labels: fourteen means at 4.5 errors; seeded."""
    u = marginal_draws["inducing_value"][:1]
    repeated = {"inducing_value": np.repeat(u, 8000, axis=0)}
    completed = model.complete(repeated, bags, seed=0)
    mean, scale = process.given(u[0], bags.instances)
    random = np.random.default_rng(5)
    f = mean + scale * random.normal(size=(400_000, 7))
    g = f + random.normal(size=f.shape)
    has = np.logical_or.reduceat(g > 0, bags.starts, axis=1) == (np.asarray(bags.labels) == 1)
    kept = has.all(axis=1)
    for name, drawn in (("latent", f[kept]), ("latent_utility", g[kept])):
        found = completed[name]
        error = np.sqrt(found.var(axis=0) / len(found) + drawn.var(axis=0) / len(drawn))
        assert (np.abs(found.mean(axis=0) - drawn.mean(axis=0)) < 4.5 * error).all()
    assert (np.abs(mean - f[kept].mean(axis=0)) > 4.5 * error).any()  # power: labels tell something


@pytest.mark.in_ci
def test_hyperparameters_with_priors_are_sites(model, bags, marginal_draws):
    other = replace(model, kernel=RBF(dist.LogNormal(0.0, 0.5), 1.3), mean=dist.Normal(-1.0, 1.0))
    assert other.latent_sites == ("inducing_value", "variance", "mean")
    sites = marginal_draws | {"variance": np.full(5, 2.0), "mean": np.full(5, -0.7)}
    priors = dist.LogNormal(0.0, 0.5).log_prob(2.0) + dist.Normal(-1.0, 1.0).log_prob(-0.7)
    expected = log_joint(model, "marginal", marginal_draws, bags) + float(priors)
    np.testing.assert_allclose(log_joint(other, "marginal", sites, bags), expected, rtol=1e-6)


def test_labels_can_be_simulated(model, bags):
    drawn, sites = simulate(model, bags, seed=0)
    assert drawn.labels.shape == (4,)
    assert sites["inducing_value"].shape == (3,) and sites["latent"].shape == (7,)


def test_bad_input_is_refused(model, bags, marginal_draws):
    with pytest.raises(ValueError, match="ProbitGPMIL mean is nan; expected a finite number"):
        replace(model, mean=np.nan)
    with pytest.raises(ValueError, match="bags have no labels; complete"):
        model.complete(marginal_draws, replace(bags, labels=None), seed=0)
