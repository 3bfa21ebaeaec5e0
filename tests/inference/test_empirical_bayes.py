"""Hyper-parameters by Laplace's evidence against exact evidences and finite differences."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import load, simulate, simulate_instances
from milzoo.inference import coordinate_ascent, laplace, log_evidence
from milzoo.inference.empirical_bayes import _objective, learn_by_evidence
from milzoo.inference.gaussian import whitened_program
from milzoo.models import DPMIL, RBF, VGPMIL, Gaussian
from milzoo.models.vwsgp import VWSGP
from numpyro.distributions import LogNormal, Normal

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(40, range(1, 5), num_features=2, seed=3)
GAUSSIAN = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=Gaussian(0.5))
LOGISTIC = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)


@pytest.fixture(scope="module")
def labels():
    return simulate(LOGISTIC, DESIGN, seed=1)[0]


@pytest.mark.slow
def test_gaussian_models_have_values_by_exact_evidence():
    """The closed form's bound is the evidence there, and its ascent another search."""
    targets, _ = simulate(GAUSSIAN, DESIGN, seed=1)
    start = replace(GAUSSIAN, kernel=RBF(1.0, 2.0), likelihood=Gaussian(1.0))
    exact = coordinate_ascent(start, targets, seed=0, learn_hyperparameters=True)
    found = laplace(start, targets, seed=0, learn_hyperparameters=True)
    assert found.status.kind == "converged"
    # Learning is a part of the fit: hardly any time lies beside it and compilation.
    assert found.seconds + found.compile_seconds > 0.7 * found.wall_seconds
    # Laplace's evidence is the exact one: of the values that it chose, and within the search's
    # tolerance of the largest.
    at_found = coordinate_ascent(found.model, targets, seed=0).elbo[-1]
    assert f"log evidence {at_found:.2f} after" in found.status.sentence
    assert at_found == pytest.approx(exact.elbo[-1], abs=2e-2)
    for name, value in exact.model.hyperparameters.items():
        assert float(found.model.hyperparameters[name]) == pytest.approx(float(value), rel=0.15)


@pytest.mark.in_ci
def test_the_gradient_through_the_mode_is_that_of_differences(labels):
    given = {"variance": LogNormal(1.0, 2.0), "length_scale": LogNormal(0.0, 2.0),
             "mean": Normal(0.0, 1.0)}  # fmt: skip
    point = {"variance": 0.7, "length_scale": 0.2, "mean": -0.5}
    with jax.enable_x64(True):
        target = whitened_program(LOGISTIC.with_hyperparameters(given), labels)

        def at(**changed):
            values = {name: np.asarray(v) for name, v in (point | changed).items()}
            return _objective(target, values, np.asarray(100), has_prior=("variance",))

        gradient, _ = at()
        for name, value in point.items():
            above, below = (at(**{name: value + step})[1][0] for step in (1e-4, -1e-4))
            assert gradient[name] == pytest.approx(float(above - below) / 2e-4, abs=1e-5)


@pytest.mark.slow
def test_the_evidence_is_laplaces_at_the_learned_values(labels):
    found = laplace(LOGISTIC, labels, seed=0, learn_hyperparameters=True)
    q = found.approximation
    with jax.enable_x64(True):
        target = whitened_program(found.model, labels)
        log_joint = float(target.log_density(jnp.asarray(q.mean)))
    log_determinant = np.log(np.diag(q.scale_tril)).sum()
    expected = log_joint + 0.5 * len(q.mean) * np.log(2 * np.pi) + log_determinant
    assert f"log evidence {expected:.2f} after" in found.status.sentence
    # Importance weights correct it.
    corrected = log_evidence(found, seed=0)
    assert corrected.value == pytest.approx(expected, abs=1.0)


@pytest.mark.slow
def test_a_prior_holds_what_the_bags_do_not_tell(labels):
    prior = LogNormal(np.log(3.0), 0.05)
    model = LOGISTIC.with_hyperparameters({"variance": prior})
    with jax.enable_x64(True):
        found = learn_by_evidence(model, labels, 100)
        again = laplace(found.model, labels, seed=0)
        target = whitened_program(found.model, labels)
        log_joint = float(target.log_density(jnp.asarray(again.approximation.mean)))
    assert found.model.hyperparameters["variance"] == pytest.approx(3.0, rel=0.1)
    assert found.complaint == ""
    # The evidence of the learned values is without their prior.
    half_log_determinant = -np.log(np.diag(again.approximation.scale_tril)).sum()
    constant = 0.5 * target.size * np.log(2 * np.pi)
    expected = log_joint + constant - half_log_determinant
    assert found.log_evidence == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_values_at_the_end_of_the_search_are_told():
    """Labels without anything to do with instances: the best variance is 0."""
    bags = replace(DESIGN, labels=np.arange(40) % 2)
    found = laplace(LOGISTIC, bags, seed=0, learn_hyperparameters=True)
    small = float(found.model.hyperparameters["variance"])
    assert small < 0.2 or "give it a prior" in found.status.sentence


def test_a_model_without_hyperparameters_has_none_to_learn(labels):
    with pytest.raises(ValueError, match="has no hyper-parameters"):
        laplace(DPMIL.for_bags(labels, 2), labels, seed=0, learn_hyperparameters=True)


@pytest.mark.slow
def test_the_evidence_wants_features_that_the_bound_switches_off():
    """On musk1 the bound prefers a variance of 0, under which no feature matters."""
    train = load("musk1").split(0.8, seed=0)[0].standardize()
    model = VGPMIL.as_published(train, num_inducing=20, variance=5.0, mean=-2.0)
    by_bound = coordinate_ascent(model, train, seed=0, learn_hyperparameters=True)
    by_evidence = laplace(model, train, seed=0, learn_hyperparameters=True)
    assert float(by_bound.model.hyperparameters["variance"]) < 0.01
    assert by_bound.status.kind == "collapsed"
    assert "prefers a model that ignores the features" in by_bound.status.sentence
    assert float(by_evidence.model.hyperparameters["variance"]) > 1.0


# ---------------------------------------------------------------- by the bound


@pytest.mark.in_ci
def test_a_bound_that_ignores_the_features_says_so():
    bags = replace(DESIGN, labels=np.arange(40) % 2)
    found = coordinate_ascent(LOGISTIC, bags, seed=0, learn_hyperparameters=True)
    assert found.model.ignores_features and found.status.kind == "collapsed"
    assert "ignores the features" in found.status.sentence
    kept = coordinate_ascent(LOGISTIC, bags, seed=0)
    assert kept.status.kind == "converged"


@pytest.mark.slow
def test_priors_are_ascended_with_the_bound(labels):
    """At the end neither a larger nor a smaller value has a larger sum of bound and log prior."""
    prior = LogNormal(np.log(3.0), 0.2)
    model = LOGISTIC.with_hyperparameters({"variance": prior})
    found = coordinate_ascent(
        model, labels, seed=0, learn_hyperparameters=True, tolerance=1e-12, max_steps=5000
    )

    def bound(variance):
        at = found.model.with_hyperparameters({"variance": variance})
        return coordinate_ascent(at, labels, seed=0, tolerance=1e-13, max_steps=5000).elbo[-1]

    best = float(found.model.hyperparameters["variance"])
    assert found.elbo[-1] == pytest.approx(bound(best), abs=1e-6)
    total = [bound(v) + float(prior.log_prob(v)) for v in (0.97 * best, best, 1.03 * best)]
    assert total[1] > max(total[0], total[2])


def test_without_learning_a_prior_is_no_number(labels):
    model = LOGISTIC.with_hyperparameters({"variance": LogNormal(0.0, 1.0)})
    with pytest.raises(ValueError, match="have priors, but coordinate_ascent needs numbers"):
        coordinate_ascent(model, labels, seed=0)
