"""Calibration at given bags: what passes there, what does not, and what has no replicate."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics import posterior_calibration
from milzoo.diagnostics.checks.posterior_calibration import _PosteriorTrial
from milzoo.inference import coordinate_ascent, nuts
from milzoo.inference.traceable import TraceableAscent, TraceableDraws
from milzoo.models import DPMIL, RBF, VGPMIL, Gaussian
from milzoo.models.vwsgp import VWSGP

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(12, range(1, 5), num_features=2, seed=3)
EXACT = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=Gaussian(0.5))
LOGISTIC = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)


@dataclass(frozen=True)
class Shifted:
    """A planted fault: draws of the exact engine, half an sd aside."""

    are_independent = True

    def check(self, model, bags):
        pass

    def draws(self, model, bags, key, num_draws):
        site = TraceableAscent().draws(model, bags, key, num_draws).sites["inducing_value"]
        return TraceableDraws({"inducing_value": site + 0.5 * site.std(axis=0)}, jnp.array(True))


@pytest.fixture(scope="module")
def exact():
    """The posterior of targets, which is Gaussian."""
    targets, _ = simulate(EXACT, DESIGN, seed=1)
    return coordinate_ascent(EXACT, targets, seed=0, num_draws=4000)


@pytest.mark.in_ci
def test_an_exact_engine_is_calibrated_at_these_bags(exact):
    """Posterior and refit are of different numbers of bags, so that nothing cancels by itself."""
    found = posterior_calibration(exact, "coordinate_ascent", seed=0, simulations=400)
    assert found.is_calibrated and found.num_simulations == 400
    assert found.sentences[0].startswith("coordinate_ascent on vwsgp at these bags: nothing found")


@pytest.mark.slow
def test_a_shift_at_these_bags_is_found(exact):
    found = posterior_calibration(exact, Shifted(), seed=0, simulations=200)
    assert not found.is_calibrated
    assert (found.table["mean_deviation"].iloc[:3] < -0.3).all()


@pytest.mark.slow
def test_truths_from_another_posterior_are_found(exact):
    """The ranks judge the posterior that truths are drawn from, too."""
    q = exact.approximation
    wide = replace(exact, approximation=replace(q, scale_tril=2.0 * q.scale_tril))
    tree = wide.tree.copy(deep=True)
    tree["posterior"]["inducing_value"].values[0] = wide.draws(4000, seed=0)["inducing_value"]
    found = posterior_calibration(
        replace(wide, tree=tree), "coordinate_ascent", seed=0, simulations=200
    )
    assert not found.is_calibrated


@pytest.mark.in_ci
def test_the_first_labels_stay_and_the_second_are_replicates(exact):
    bags = exact.bags
    trial = _PosteriorTrial(
        EXACT,
        bags.select(np.tile(np.arange(bags.num_bags), 2)),
        None,
        99,
        bags=bags,
        draws=exact.stored_draws(),
    )
    with jax.enable_x64(True):
        drawn, truth = jax.vmap(trial.simulate)(jax.random.split(jax.random.key(0), 2000))
    first, second = np.split(np.asarray(drawn["targets"]), 2, axis=1)
    np.testing.assert_array_equal(first, np.tile(bags.targets, (2000, 1)))
    # Replicates have the mean that their own truth gives them.
    with jax.enable_x64(True):
        rows = EXACT.accumulated(bags)
        mean = np.asarray(jax.vmap(rows.mean)(truth["inducing_value"]))
    error = (second - mean).mean(axis=0)
    sd = np.sqrt(0.5 + np.asarray(rows.residual_variance))
    assert np.abs(error).max() < 5 * sd.max() / np.sqrt(2000)


@pytest.mark.slow
def test_the_ascent_is_overconfident_where_nuts_is_not():
    labels, _ = simulate(LOGISTIC, DESIGN, seed=1)
    posterior = nuts(LOGISTIC, labels, seed=0)
    by_nuts = posterior_calibration(posterior, "nuts", seed=0, simulations=200, thin=2)
    assert by_nuts.is_calibrated, by_nuts.sentences
    ascent = posterior_calibration(posterior, "coordinate_ascent", seed=0, simulations=400)
    assert not ascent.is_calibrated
    assert ascent.table["rms_deviation"].iloc[:3].max() > 1.2


@pytest.mark.slow
def test_a_model_of_instances_has_no_replicate():
    model = DPMIL(np.zeros(2), np.eye(2), 4.0, max_components=1)
    bags, _ = simulate(model, simulate_instances(4, 2, num_features=2, seed=0), seed=0)
    limits = {"num_starts": 1, "num_draws": 10, "max_steps": 2}
    posterior = coordinate_ascent(model, bags, seed=0, **limits)
    with pytest.raises(NotImplementedError, match="DPMIL generates instances given labels"):
        posterior_calibration(posterior, "gibbs", seed=0, simulations=2)
