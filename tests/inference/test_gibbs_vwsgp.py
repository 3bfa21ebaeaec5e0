"""Gibbs sampling of VWSGP against NUTS and quadrature.

At most 400 numbers are looked at with |z| ≤ 5.5 Monte-Carlo standard errors: fewer than one false
alarm in 50,000 runs of this file.
"""

import jax
import numpy as np
import pytest
from milzoo.datasets import load
from milzoo.inference import gibbs, nuts
from milzoo.inference.runtime.densities import log_likelihood
from milzoo.models import RBF, VWSGP, Gaussian, NegativeBinomial, Probit, StudentT
from numpyro.distributions import LogNormal


@pytest.fixture(scope="module")
def problem(accumulating_problem):
    return accumulating_problem(num_inducing=4, seed=0)


@pytest.fixture(scope="module")
def posterior(problem):
    return gibbs(
        *problem, seed=0, num_samples=4000, keep=("inducing_value", "bag_latent"), num_warmup=200
    )


@pytest.mark.slow
def test_moments_agree_with_nuts_on_both_programs(problem, posterior, moments):
    """Of inducing values and latent function values."""
    model, bags = problem
    full = nuts(model, bags, seed=1, program="full", num_samples=3000)
    for name in ("inducing_value", "bag_latent"):
        ours, theirs = (moments(p.tree["posterior"][name]) for p in (posterior, full))
        assert ours.largest_z(theirs) < 5.5
    marginal = nuts(model, bags, seed=2, num_samples=3000)
    ours, theirs = (moments(p.tree["posterior"]["inducing_value"]) for p in (posterior, marginal))
    assert ours.largest_z(theirs) < 5.5


@pytest.mark.slow
def test_latent_values_drawn_back_are_those_of_the_sampler(problem, posterior, moments):
    model, bags = problem
    marginal = nuts(model, bags, seed=2, num_samples=3000)
    draws = marginal.tree["posterior"]["inducing_value"].to_numpy()
    flat = {"inducing_value": draws.reshape(-1, draws.shape[-1])}
    latent = model.complete(flat, bags, seed=0)["bag_latent"]
    completed = moments(latent.reshape(*draws.shape[:2], -1))
    assert moments(posterior.tree["posterior"]["bag_latent"]).largest_z(completed) < 5.5


@pytest.mark.slow
def test_one_inducing_value_has_the_moments_of_quadrature(accumulating_problem, moments):
    model, bags = accumulating_problem(num_inducing=1, seed=4)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    with jax.enable_x64(True):
        scale = float(np.asarray(model.accumulated(bags).cholesky)[0, 0])
    u = scale * nodes
    likelihood = log_likelihood(model, "marginal", {"inducing_value": u[:, None]}, bags).sum(axis=1)
    weights = weights * np.exp(likelihood - likelihood.max())
    mean = weights @ u / weights.sum()
    deviation = np.sqrt(weights @ (u - mean) ** 2 / weights.sum())
    sampled = gibbs(model, bags, seed=0, num_samples=4000)
    found = moments(sampled.tree["posterior"]["inducing_value"])
    assert found.largest_z(np.array([[mean], [deviation]])) < 5.5


def test_bad_arguments_of_gibbs_are_refused(problem):
    model, bags = problem
    with pytest.raises(ValueError, match="keep has latent; expected some of inducing_value, bag"):
        gibbs(model, bags, seed=0, keep="latent")
    targets = VWSGP(RBF(1.0, 1.0), model.inducing_points, likelihood=Gaussian(LogNormal()))
    with pytest.raises(ValueError, match="noise of the model have priors, which have no conjugate"):
        gibbs(targets, bags.with_targets(np.zeros(bags.num_bags)), seed=0)
    counts = VWSGP(RBF(1.0, 1.0), model.inducing_points, likelihood=NegativeBinomial())
    with pytest.raises(ValueError, match=r"target 0\.5 at position 0 is not a count; NegativeBin"):
        gibbs(counts, bags.with_targets(np.full(bags.num_bags, 0.5)), seed=0)


@pytest.mark.slow
def test_probit_inducing_values_and_evidence_agree_with_nuts(accumulating_problem, moments):
    model, bags = accumulating_problem(num_inducing=4, seed=4, likelihood=Probit(0.5))
    sampled = gibbs(
        model, bags, seed=0, num_samples=4000, keep=("inducing_value", "latent_utility")
    )
    marginal = nuts(model, bags, seed=1, num_samples=3000)
    ours, theirs = (moments(p.tree["posterior"]["inducing_value"]) for p in (sampled, marginal))
    assert ours.largest_z(theirs) < 5.5
    is_above = sampled.tree["posterior"]["latent_utility"].to_numpy() > 0
    assert (is_above == (bags.labels == 1)).all()
    # The latent values that NUTS has as sites are those drawn back from Gibbs' inducing values.
    full = nuts(model, bags, seed=2, program="full", num_samples=3000)
    draws = sampled.tree["posterior"]["inducing_value"].to_numpy()
    flat = {"inducing_value": draws.reshape(-1, draws.shape[-1])}
    latent = model.complete(flat, bags, seed=0)["bag_latent"]
    ours = moments(latent.reshape(*draws.shape[:2], -1))
    assert ours.largest_z(moments(full.tree["posterior"]["bag_latent"])) < 5.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(0.4), StudentT(3.0, 0.6), NegativeBinomial(2)],
    ids=lambda one: one.name,
)
def test_posteriors_of_targets_agree_with_nuts(accumulating_problem, moments, likelihood):
    """u and s by Gibbs against NUTS with s as sites; s drawn back against both."""
    model, bags = accumulating_problem(num_inducing=3, seed=4, likelihood=likelihood)
    keep = ("inducing_value", "bag_latent")
    sampled = gibbs(model, bags, seed=0, num_samples=4000, keep=keep)
    full = nuts(model, bags, seed=1, program="full", num_samples=3000)
    for name in keep:
        ours, theirs = (moments(p.tree["posterior"][name]) for p in (sampled, full))
        assert ours.largest_z(theirs) < 5.5
    marginal = nuts(model, bags, seed=2, num_samples=3000)
    draws = marginal.tree["posterior"]["inducing_value"].to_numpy()
    ours = moments(sampled.tree["posterior"]["inducing_value"])
    assert ours.largest_z(moments(draws)) < 5.5
    flat = {"inducing_value": draws.reshape(-1, draws.shape[-1])}
    completed = model.complete(flat, bags, seed=0)["bag_latent"]
    ours = moments(sampled.tree["posterior"]["bag_latent"])
    assert ours.largest_z(moments(completed.reshape(*draws.shape[:2], -1))) < 5.5


@pytest.mark.slow
def test_probit_chains_survive_a_bad_start():
    bags = load("digits").standardize()
    model = VWSGP.as_published(bags, variance=50.0, likelihood=Probit())
    posterior = gibbs(model, bags, seed=0, num_chains=8, num_warmup=5, num_samples=10)
    assert posterior.status.kind != "failed"
    completed = model.complete(
        {"inducing_value": 20 * posterior.stored_draws()["inducing_value"]}, bags, seed=0
    )
    assert np.isfinite(completed["bag_latent"]).all()
