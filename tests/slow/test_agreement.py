"""Samplers that share no code, one posterior: NumPyro's NUTS, Gibbs, and nutpie on PyMC.

VGPMIL on digits and on musk1, VWSGP on musk1: every inducing value and every test bag's probability
(f* integrated out). DPMIL on a scene of two features and K = 4, drawn from the model: what has no
names, the probabilities of the instances in positive bags, the log densities of the bags and the
numbers of occupied components. The cardinality model, which has no Gibbs sampler, on simulated
bags: weights, intercept, hyper-parameters, the probabilities of bags and instances. The threshold
on a score, with independent draws from the grid in the place of Gibbs: its sites, the
probabilities of the bags. Diverse density on bags of one concept, no Gibbs: concept, scales, the
probabilities of six bags. BMIL on bags of three features, no Gibbs: weights, intercept, the
probabilities of six bags. GPMIL on bags of two features, no Gibbs: three inducing values, the
probabilities of six bags. Mean and sd of each are compared between each two samplers in Monte-Carlo
standard errors, |z| ≤ 5.5. A normal z is further out with probability 3.8e-8; there are
3 × 2 × (50 + B*) numbers in each case, B* test bags (28 or 49), 3 × 2 × 62 of DPMIL, 2 × 227 of the
cardinality model, 3 × 2 × 42 of the threshold, 2 × 10 of diverse density, 2 × 10 of BMIL and 2 × 9
of GPMIL: 2,666 in all, a false alarm in 1e-4 of all runs.
"""

from itertools import combinations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from arviz_stats.base import array_stats
from milzoo.datasets import load, simulate, simulate_instances
from milzoo.inference import gibbs, grid, nuts
from milzoo.inference.pymc_nuts import pymc_nuts
from milzoo.models import (
    BMIL,
    GPMIL,
    RBF,
    VGPMIL,
    VWSGP,
    CardinalityModel,
    DiverseDensity,
    NeighbourScore,
    NormalCardinality,
    ScoreThreshold,
    scored,
)
from numpyro.handlers import substitute

LARGEST_Z = 5.5
LEAST_ESS = 2000


def posteriors(model, bags, num_samples, thin=None):
    yield "nuts", nuts(model, bags, seed=1, num_samples=num_samples)
    if thin is not None:
        yield "gibbs", gibbs(model, bags, seed=2, num_samples=5000, thin=thin)
    yield "pymc_nuts", pymc_nuts(model, bags, seed=3, num_samples=num_samples)


def of_gaussian_processes(kind, data):
    """Draws (chain, draw, 50 + B*) of each sampler: inducing values, test-bag probabilities."""
    train, test = load(data).split(0.7, seed=0)
    train, test = train.standardize(), test.standardize(train)
    model = kind.as_published(train)
    assert len(model.inducing_points) == 50
    for name, posterior in posteriors(model, train, num_samples=2000, thin=1):
        inducing_value = posterior.tree["posterior"]["inducing_value"].to_numpy()
        probability = posterior.predict(test).bag_draws
        by_chain = probability.reshape(*inducing_value.shape[:2], test.num_bags)
        yield name, np.concatenate([inducing_value, by_chain], axis=2)


def of_mixtures(scene_of_clusters, estimand_draws):
    """Draws (chain, draw, 62) of each sampler, of what `DPMIL.estimands` names."""
    model, bags = scene_of_clusters(16, range(2, 8), seed=8)
    for name, posterior in posteriors(model, bags, num_samples=3000, thin=4):
        yield name, estimand_draws(posterior)


def of_counts():
    """Draws (chain, draw, 227): four sites of 6 numbers, 40 bags, 181 instances."""
    potential = NormalCardinality(mu=dist.Beta(4.0, 4.0), sigma=0.2)
    model = CardinalityModel(potential, dist.HalfNormal(2.0), intercept_scale=1.0)
    design = simulate_instances(40, range(1, 9), num_features=3, seed=0)
    bags = simulate(model, design, seed=1)[0]
    for name, posterior in posteriors(model, bags, num_samples=6000):
        draws = posterior.tree["posterior"]
        predicted = posterior.predict(bags)
        sites = [draws[site].to_numpy() for site in model.latent_sites]
        parts = [*sites, predicted.bag_draws, predicted.instance_draws]
        yield name, np.concatenate([part.reshape(4, 6000, -1) for part in parts], axis=2)


def of_thresholds():
    """Draws (chain, draw, 42): T, s, 40 bags, whose probabilities tell of the scores too."""
    neighbourhood_scores = [NeighbourScore(k=k) for k in (1, 3, 8)]
    design = scored(neighbourhood_scores, load("kandemir2014")).standardize()
    model = ScoreThreshold()
    truth = {"threshold": jnp.asarray(0.8), "softness": jnp.asarray(0.4)}
    bags = simulate(substitute(model.marginal(), truth), design, seed=0)[0]
    fitted = dict(posteriors(model, bags, num_samples=6000))
    fitted["grid"] = grid(model, bags, seed=4, num_draws=24_000)
    for name, posterior in fitted.items():
        draws = posterior.stored_draws()
        sites = [draws[site] for site in model.latent_sites]
        parts = [*sites, posterior.predict(bags).bag_draws]
        yield name, np.concatenate([part.reshape(4, 6000, -1) for part in parts], axis=2)


def of_concepts():
    """Draws (chain, draw, 10): two sites of 2 numbers, the first 6 bags."""
    model = DiverseDensity(dist.Normal(0.0, 1.0), dist.LogNormal(0.0, 0.5))
    truth = {"concept": jnp.array([0.4, -0.3]), "scale": jnp.array([1.2, 0.7])}
    design = simulate_instances(40, range(1, 7), num_features=2, seed=0)
    bags = simulate(substitute(model, truth), design, seed=1)[0]
    for name, posterior in posteriors(model, bags, num_samples=6000):
        draws = posterior.stored_draws()
        sites = [draws[site] for site in model.latent_sites]
        parts = [*sites, posterior.predict(bags.select(np.arange(6))).bag_draws]
        yield name, np.concatenate([part.reshape(4, 6000, -1) for part in parts], axis=2)


def of_relevances():
    """Draws (chain, draw, 10): three weights, the intercept, the first 6 bags."""
    model = BMIL(shape=1.0, rate=1.0, intercept_scale=2.0, intercept_mean=-1.0)
    truth = {"weights": jnp.array([2.0, -1.0, 0.0]), "intercept": jnp.asarray(-1.0)}
    design = simulate_instances(60, range(1, 7), num_features=3, seed=0)
    bags = simulate(substitute(model.marginal(), truth), design, seed=1)[0]
    for name, posterior in posteriors(model, bags, num_samples=6000):
        draws = posterior.stored_draws()
        sites = [draws[site] for site in model.latent_sites]
        parts = [*sites, posterior.predict(bags.select(np.arange(6))).bag_draws]
        yield name, np.concatenate([part.reshape(4, 6000, -1) for part in parts], axis=2)


def of_soft_maxima():
    """Draws (chain, draw, 9): three inducing values, the first 6 bags."""
    model = GPMIL(RBF(4.0, 1.3), np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]]), mean=-1.0)
    design = simulate_instances(40, range(1, 7), num_features=2, seed=0)
    bags = simulate(model, design, seed=1)[0]
    fitted = {
        "nuts": nuts(model, bags, seed=1, num_samples=2500),
        # The marginal program of PyMC is for checks: a gradient takes 0.1 s here.
        "pymc_nuts": pymc_nuts(model, bags, seed=3, num_samples=2500, program="full"),
    }
    for name, posterior in fitted.items():
        draws = posterior.stored_draws()["inducing_value"]
        predicted = posterior.predict(bags.select(np.arange(6))).bag_draws
        parts = [part.reshape(4, 2500, -1) for part in (draws, predicted)]
        yield name, np.concatenate(parts, axis=2)


CASES = {"vgpmil-digits": VGPMIL, "vgpmil-musk1": VGPMIL, "vwsgp-musk1": VWSGP}


@pytest.fixture(
    scope="module",
    params=[*CASES, "dpmil-scene", "cardinality", "threshold", "concept", "relevance", "soft"],
)
def quantities(request, scene_of_clusters, estimand_draws):
    """Draws (chain, draw, quantity) of each sampler."""
    if request.param == "cardinality":
        return dict(of_counts())
    if request.param == "threshold":
        return dict(of_thresholds())
    if request.param == "concept":
        return dict(of_concepts())
    if request.param == "relevance":
        return dict(of_relevances())
    if request.param == "soft":
        return dict(of_soft_maxima())
    if request.param == "dpmil-scene":
        return dict(of_mixtures(scene_of_clusters, estimand_draws))
    data = request.param.split("-")[1]
    if data == "musk1":
        request.getfixturevalue("data_folder")
    return dict(of_gaussian_processes(CASES[request.param], data))


@pytest.mark.parametrize("purpose", ["bulk", "mean", "sd"])
def test_every_quantity_has_draws_enough(quantities, purpose):
    for name, draws in quantities.items():
        ess = array_stats.ess(draws, chain_axis=0, draw_axis=1, method=purpose)
        assert ess.min() >= LEAST_ESS, name


def test_means_and_sds_agree(quantities, moments):
    known = {name: moments(draws) for name, draws in quantities.items()}
    for one, other in combinations(known, 2):
        assert known[one].largest_z(known[other]) <= LARGEST_Z, (one, other)
