"""Early stopping: which step is returned, and when the ascent ends."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from milzoo.datasets import simulate_instances
from milzoo.inference import coordinate_ascent
from milzoo.models import RBF, VGPMIL

POINTS = np.array([[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
MODEL = VGPMIL(RBF(2.0, 1.0), POINTS, mean=-1.0)


@pytest.fixture(scope="module")
def bags():
    design = simulate_instances(10, range(1, 4), num_features=2, seed=0)
    return replace(design, labels=np.arange(10) % 2)


def fit(bags, scores, **options):
    """The posterior, and how often a callback that returns these scores was asked."""
    seen = []

    def callback(posterior):
        seen.append(posterior)
        return scores[len(seen) - 1]

    settings = {"seed": 0, "tolerance": 0.0, "max_steps": len(scores), "callback": callback}
    return coordinate_ascent(MODEL, bags, **(settings | options)), seen


@pytest.mark.in_ci
@pytest.mark.parametrize("label_update", ["exact", "mean_field", "plug_in_max"])
def test_the_step_of_the_highest_score_is_returned(bags, label_update):
    options = {"label_update": label_update}
    stopped, seen = fit(bags, [0.1, 0.5, 0.9, 0.2, 0.9, 0.3], **options)
    alone = coordinate_ascent(MODEL, bags, seed=0, tolerance=0.0, max_steps=3, **options)
    np.testing.assert_allclose(stopped.approximation.mean, alone.approximation.mean, rtol=1e-10)
    np.testing.assert_allclose(stopped.elbo, alone.elbo, rtol=1e-10)
    np.testing.assert_array_equal(seen[2].approximation.mean, stopped.approximation.mean)
    assert len(seen) == 6
    assert stopped.status.kind == "max_steps"
    assert "returned 0.9 after step 3, the highest of 6" in stopped.status.sentence


def test_the_ascent_ends_where_scores_stop_rising(bags):
    stopped, seen = fit(bags, [0.1, 0.5, *[0.4] * 20], patience=4)
    assert len(seen) == 6
    assert len(stopped.elbo) == 2


def test_a_halted_ascent_keeps_its_last_step(bags):
    scores = [0.1, 0.5, *[0.4] * 20]
    halted, seen = fit(bags, scores, patience=4, keep_best=False)
    assert len(halted.elbo) == len(seen) == 6
    np.testing.assert_array_equal(halted.approximation.mean, seen[-1].approximation.mean)
    expected = "stopped early: the callback returned 0.5 after step 2, the highest of 6; the last"
    assert halted.status.sentence.startswith(expected)


@pytest.mark.slow
def test_learned_hyperparameters_are_those_of_the_step(bags):
    stopped, seen = fit(bags, [0.1, 0.5, 0.2, 0.3], learn_hyperparameters=True)
    variances = [float(posterior.model.kernel.variance) for posterior in seen]
    assert len(set(variances)) == 4
    assert float(stopped.model.kernel.variance) == variances[1]


def test_an_ascent_that_converges_returns_the_highest_score(bags):
    stopped, seen = fit(bags, list(range(500, 0, -1)), tolerance=1e-3, patience=500)
    assert 2 < len(seen) < 500
    assert len(stopped.elbo) == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"patience": 0}, ValueError, "patience is 0; expected an integer of at least 1"),
        ({"callback": "auc"}, TypeError, "callback is 'auc'; expected a function of a posterior"),
        (
            {"mesh": jax.make_mesh((1,), ("bags",))},
            NotImplementedError,
            "callback needs the posterior after each step",
        ),
    ],
)
def test_bad_options_are_refused(bags, options, error, message):
    with pytest.raises(error, match=message):
        fit(bags, [0.0], **options)


def test_a_score_that_is_no_number_is_refused(bags):
    with pytest.raises(ValueError, match="callback returned nan after step 2; expected a number"):
        fit(bags, [0.0, np.nan])
