"""Engines on diverse density: the posterior of a concept that sixty bags share."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.estimators import DiverseDensityLearner
from milzoo.inference import laplace, maximum_a_posteriori, nuts, svi
from milzoo.models import DiverseDensity
from numpyro.handlers import substitute

MODEL = DiverseDensity(dist.Normal(0.0, 1.0), dist.LogNormal(0.0, 0.5))


@pytest.fixture(scope="module")
def bags():
    truth = {"concept": jnp.array([0.4, -0.3]), "scale": jnp.array([1.2, 0.7])}
    design = simulate_instances(60, range(1, 5), num_features=2, seed=0)
    return simulate(substitute(MODEL, truth), design, seed=1)[0]


@pytest.fixture(scope="module")
def sampled(bags):
    return nuts(MODEL, bags, seed=0)


def unconstrained(posterior):
    """t and log s of every draw, (S, 4)."""
    draws = posterior.stored_draws()
    return np.concatenate([draws["concept"], np.log(draws["scale"])], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [laplace, svi])
def test_approximations_are_near_the_exact_posterior(bags, sampled, engine):
    approximate = engine(MODEL, bags, seed=0)
    assert approximate.status.kind == "converged"
    exact, found = unconstrained(sampled), unconstrained(approximate)
    # Four unknowns and sixty bags: skew moves means by a third of an sd, and sds by a quarter.
    assert (np.abs(found.mean(axis=0) - exact.mean(axis=0)) < 0.4 * exact.std(axis=0)).all()
    np.testing.assert_allclose(found.std(axis=0), exact.std(axis=0), rtol=0.35)


@pytest.mark.slow
def test_mode_under_a_flat_prior_is_the_highest_peak(bags):
    flat = DiverseDensity(dist.Normal(0.0, 1e4), dist.LogNormal(0.0, 1e4))
    mode = maximum_a_posteriori(flat, bags, seed=0).stored_draws()
    peaks = DiverseDensityLearner(separation=0.5).find_peaks(bags)
    # Priors this wide add gradients below 1e-4, and searches end at gradients of 1e-4 and less.
    np.testing.assert_allclose(mode["concept"][0], peaks.points[0], atol=2e-3)
    np.testing.assert_allclose(mode["scale"][0], peaks.scales[0], rtol=2e-3)


@pytest.mark.slow
def test_bags_of_the_concept_are_told_from_others(bags, sampled):
    predicted = sampled.predict(bags)
    assert ((predicted.bag_probability > 0.5) == bags.labels).mean() > 0.8
    chance = sampled.predict(bags).instance_probability
    highest = np.array([chance[bags.bag_index == b].max() for b in range(bags.num_bags)])
    # The mean over draws of a noisy-or is at least that of its likeliest part.
    assert (predicted.bag_probability >= highest - 1e-12).all()
