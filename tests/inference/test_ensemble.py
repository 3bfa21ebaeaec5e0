"""Many short chains: exact draws, superchains, and what nested R̂ sees."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.diagnostics.measures.convergence import convergence
from milzoo.inference import Posterior, coordinate_ascent, ensemble
from milzoo.inference.ensemble import _starts
from milzoo.inference.gaussian import whitened_program
from milzoo.inference.posterior import superchains_of
from milzoo.models import RBF, VWSGP, DiverseDensity, Gaussian

POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(16, range(1, 5), num_features=2, seed=3)
GAUSSIAN = VWSGP(RBF(4.0, 1.0), POINTS, likelihood=Gaussian(0.5))


def test_chains_of_a_superchain_begin_at_one_point(targets):
    with jax.enable_x64(True):
        target = whitened_program(GAUSSIAN, targets)
        starts = np.asarray(_starts(target, jax.random.key(0), 12, 4)).reshape(4, 3, 3)
    np.testing.assert_array_equal(starts, np.repeat(starts[:, :1], 3, axis=1))
    assert len(np.unique(starts[:, 0], axis=0)) == 4
    assert (np.abs(starts) <= 2).all() and np.abs(starts).max() > 1


@pytest.mark.parametrize(("num_chains", "num_superchains"), [(8, 3), (8, 1), (4, 8)])
def test_superchains_have_as_many_chains_each(num_chains, num_superchains, targets):
    with pytest.raises(ValueError, match=f"num_superchains is {num_superchains} and num_chains"):
        ensemble(GAUSSIAN, targets, seed=0, num_chains=num_chains, num_superchains=num_superchains)


# ------------------------------------------------------------------ one mode


@pytest.fixture(scope="module")
def targets() -> Bags:
    return simulate(GAUSSIAN, DESIGN, seed=1)[0]


@pytest.fixture(scope="module")
def conjugate(targets) -> Posterior:
    return ensemble(GAUSSIAN, targets, seed=0, num_chains=64, num_superchains=8, num_samples=40)


@pytest.mark.in_ci
def test_a_conjugate_posterior_has_its_moments(targets, conjugate):
    exact = coordinate_ascent(GAUSSIAN, targets, seed=0).approximation
    draws = conjugate.tree["posterior"]["inducing_value"].to_numpy()
    flat = draws.reshape(-1, 3)
    # As if a fourth of the draws were independent, each of 4.9 standard errors.
    number = len(flat) / 4
    covariance = exact.scale_tril @ exact.scale_tril.T
    sds = covariance.diagonal() ** 0.5
    assert (np.abs(flat.mean(axis=0) - exact.mean) < 4.9 * sds / number**0.5).all()
    bound = 4.9 * 2**0.5 * np.outer(sds, sds) / number**0.5
    assert (np.abs(np.cov(flat.T) - covariance) < bound).all()


@pytest.mark.in_ci
def test_short_chains_agree_by_nested_rhat(conjugate):
    assert conjugate.status.kind == "converged"
    assert "64 × 40 draws after warm-up, worst nested R̂ 1.00" in conjugate.status.sentence
    found = convergence(conjugate)
    assert found.rhat < 1.01
    assert found.smallest_ess > 640


@pytest.mark.in_ci
def test_a_saved_posterior_keeps_its_superchains(conjugate, tmp_path):
    conjugate.save(tmp_path / "fit.milzoo")
    found = Posterior.load(tmp_path / "fit.milzoo")
    np.testing.assert_array_equal(superchains_of(found.tree), np.repeat(range(8), 8))
    assert convergence(found) == convergence(conjugate)


@pytest.mark.in_ci
def test_chains_take_trajectories_of_the_same_length(conjugate):
    steps = conjugate.tree["sample_stats"]["n_steps"].to_numpy()
    np.testing.assert_array_equal(steps, np.broadcast_to(steps[:1], steps.shape))
    assert len(np.unique(steps[0])) > 1
    assert 0.6 < conjugate.tree["sample_stats"]["acceptance_rate"].mean() < 0.95


# ------------------------------------------------------------------ two modes


@pytest.mark.slow
def test_superchains_in_other_modes_are_seen():
    pairs = [np.array([[3.0], [-3.0]])] * 4
    bags = Bags.from_list([*pairs, np.zeros((1, 1))], labels=[1] * 4 + [0])
    model = DiverseDensity(concept_prior=dist.Normal(0.0, 3.0))
    posterior = ensemble(
        model, bags, seed=0, num_chains=32, num_superchains=4, num_warmup=50, num_samples=10
    )
    concept = posterior.tree["posterior"]["concept"].to_numpy()[:, :, 0]
    assert 0 < (concept > 0).mean() < 1
    assert posterior.status.kind == "max_steps"
    np.testing.assert_array_equal(superchains_of(posterior.tree), np.repeat(range(4), 8))
    assert convergence(posterior).rhat > 1.05
