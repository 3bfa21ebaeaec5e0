"""Any model with any engine as an estimator: the posterior's predictions, and its parameters."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from milzoo.datasets import Bags, load
from milzoo.estimators import BayesianMIL, BayesianMILRegressor
from milzoo.inference import coordinate_ascent, maximum_a_posteriori
from milzoo.models import VGPMIL, VWSGP, CardinalityModel, Gaussian
from sklearn.base import clone

SETTINGS = {"model__num_inducing": 10, "model__variance": 2.0}


@pytest.fixture(scope="module")
def parts():
    return load("kandemir2014").split(0.7, seed=0)


@pytest.fixture(scope="module")
def fitted(parts):
    return BayesianMIL(VWSGP, "coordinate_ascent", seed=1, **SETTINGS).fit(parts[0])


@pytest.mark.in_ci
def test_predictions_are_those_of_the_posterior(parts, fitted):
    training, test = parts
    model = VWSGP.for_bags(training, num_inducing=10, variance=2.0, seed=1)
    expected = coordinate_ascent(model, training, seed=1).predict(test)
    of_bags, of_instances = expected.bag_probability, expected.instance_probability
    np.testing.assert_allclose(fitted.predict_proba(test)[:, 1], of_bags, rtol=1e-12)
    np.testing.assert_array_equal(fitted.predict(test), of_bags > 0.5)
    np.testing.assert_allclose(fitted.predict_instances_proba(test)[:, 1], of_instances, rtol=1e-12)
    np.testing.assert_array_equal(fitted.predict_instances(test), of_instances > 0.5)
    assert fitted.score(test) == np.mean((of_bags > 0.5) == test.labels)


@pytest.mark.slow
def test_log_odds_give_the_probability_back(parts, fitted):
    probability = fitted.predict_proba(parts[1])[:, 1]
    found = 1 / (1 + np.exp(-fitted.decision_function(parts[1])))
    np.testing.assert_allclose(found, probability, rtol=1e-12)


def test_bags_and_instances_that_round_to_certainty_are_ordered():
    bags = Bags.from_list([[[-2.0]] * 40, [[-2.1], [-1.9]] * 40, [[2.0]] * 40], [0, 0, 1])
    classifier = BayesianMIL("dpmil", "coordinate_ascent", seed=0, model__max_components=1)
    classifier.fit(bags)
    new = Bags.from_list([[[3.0]] * 100, [[3.0]] * 150 + [[4.0]] * 50])
    assert classifier.predict_proba(new)[:, 1].tolist() == [1.0, 1.0]
    lower, higher = classifier.decision_function(new)
    assert lower + 1 < higher
    assert set(classifier.predict_instances_proba(new)[:, 1]) == {1.0}
    lower, higher = classifier.score_instances(new)[[0, -1]]
    assert lower + 1 < higher


def test_labels_given_go_before_those_of_the_bags(parts):
    training, test = parts
    words = np.where(training.labels == 1, "witness", "none")
    by_words = BayesianMIL(VWSGP, "coordinate_ascent", seed=1, **SETTINGS).fit(training, words)
    assert by_words.classes_.tolist() == ["none", "witness"]
    assert set(by_words.predict(test)) <= {"none", "witness"}
    other = clone(by_words).fit(training, 1 - training.labels)
    assert np.corrcoef(other.decision_function(test), by_words.decision_function(test))[0, 1] < 0


def test_a_model_is_named_made_or_ready(parts):
    training, test = parts
    ready = VWSGP.for_bags(training, num_inducing=10, variance=2.0, seed=1)

    def make(bags, *, seed, variance):
        return VWSGP.for_bags(bags, num_inducing=10, variance=variance, seed=seed)

    given = (
        ("vwsgp", SETTINGS),
        (ready, {}),
        (make, {"model__variance": 2.0}),
    )
    found = [
        BayesianMIL(model, coordinate_ascent, seed=1, **settings).fit(training).predict_proba(test)
        for model, settings in given
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    with pytest.raises(ValueError, match="the model VWSGP has no setting 'kernl'; did you mean"):
        BayesianMIL(ready, "coordinate_ascent", seed=1, model__kernl=None)


@pytest.mark.in_ci
def test_settings_replace_fields_of_a_ready_model(parts):
    ready = CardinalityModel(weight_scale=1.0)
    changed = BayesianMIL(ready, "maximum_a_posteriori", seed=0, model__weight_scale=0.1)
    assert changed.fit(parts[0]).posterior_.model.weight_scale == 0.1
    assert ready.weight_scale == 1.0


def test_settings_are_parameters(parts, fitted):
    assert fitted.get_params()["model__variance"] == 2.0
    other = clone(fitted).set_params(model__variance=3.0, engine__max_steps=7, seed=2)
    assert other.get_params()["engine__max_steps"] == 7
    assert fitted.get_params()["model__variance"] == 2.0
    other.fit(parts[0])
    assert len(other.posterior_.elbo) <= 8
    assert other.posterior_.model.kernel.variance == 3.0


@pytest.mark.in_ci
def test_another_engine_fits_models_without_closed_form(parts):
    training, test = parts
    found = BayesianMIL(CardinalityModel, "maximum_a_posteriori", seed=0).fit(training)
    model = CardinalityModel.for_bags(training, seed=0)
    expected = maximum_a_posteriori(model, training, seed=0).predict(test).bag_probability
    np.testing.assert_allclose(found.predict_proba(test)[:, 1], expected, rtol=1e-12)


def test_a_fitted_one_is_pickled(parts, fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(parts[1]), fitted.predict_proba(parts[1]))


@pytest.mark.in_ci
def test_targets_are_predicted_with_intervals(parts):
    training, test = (
        part.with_targets(np.add.reduceat(part.instances[:, 0], part.starts)) for part in parts
    )
    settings = SETTINGS | {"model__likelihood": Gaussian(0.1)}
    found = BayesianMILRegressor(VWSGP, "coordinate_ascent", seed=0, **settings).fit(training)
    predicted = found.posterior_.predict(test)
    np.testing.assert_array_equal(found.predict(test), predicted.bag_target)
    np.testing.assert_array_equal(found.predict_interval(test, 0.5), predicted.bag_interval(0.5))
    np.testing.assert_array_equal(found.predict_instances(test), predicted.instance_contribution)
    residual, total = test.targets - found.predict(test), test.targets - test.targets.mean()
    assert found.score(test) == pytest.approx(1 - np.sum(residual**2) / np.sum(total**2))
    with pytest.raises(ValueError, match="learns from targets of bags; use BayesianMILRegressor"):
        BayesianMIL(VWSGP, "coordinate_ascent", seed=0, **settings).fit(test)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"variance": 1.0}, "no parameter 'variance'; did you mean 'model__variance'"),
        ({"model__varance": 1.0}, "the model VGPMIL has no setting 'varance'; did you mean 'var"),
        ({"engine__steps": 1}, "the engine coordinate_ascent has no setting 'steps'; did you mean"),
    ],
)
def test_a_misspelt_setting_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        BayesianMIL(VGPMIL, "coordinate_ascent", seed=0, **given)


def test_what_is_no_model_engine_or_seed_is_refused(parts, without_type_checks):
    with pytest.raises(ValueError, match="unknown model 'vwspg'; did you mean 'vwsgp'"):
        BayesianMIL("vwspg", "nuts", seed=0).fit(parts[0])
    with pytest.raises(ValueError, match="unknown engine 'nut'; did you mean 'nuts'"):
        BayesianMIL("vwsgp", "nut", seed=0).fit(parts[0])
    with pytest.raises(TypeError, match="seed is None; expected an integer"):
        BayesianMIL("vwsgp", "nuts", seed=None).fit(parts[0])
