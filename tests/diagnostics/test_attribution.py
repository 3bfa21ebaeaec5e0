"""An error of the model or of the engine: planted predictions of either kind."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.diagnostics import compare
from milzoo.diagnostics.attribution import attributed
from milzoo.diagnostics.checks.leave_one_out import HeldOutCalibration
from milzoo.diagnostics.measures.reliability import reliability
from scipy.optimize import isotonic_regression


def test_the_engines_are_told_what_they_add(comparison):
    model, left_out, engines = comparison.attribution
    name = comparison.reference
    scores = comparison.table.loc[name]
    assert model.startswith(f"The model: by {name} the log loss is {scores['log_loss']:.3f}, and")
    assert f"the calibration error is {scores['calibration_error']:.2f}" in model
    cavi = comparison.table.loc["cavi"]
    added = f"cavi {cavi['added_log_loss']:+.3f} ± {cavi['added_log_loss_error']:.3f}"
    assert left_out.startswith(f"For training bags held out in turn, by {name}'s weights,")
    assert engines.startswith(f"The engines add to {name}'s log loss: ") and added in engines
    expected = cavi["log_loss"] - scores["log_loss"]
    assert cavi["added_log_loss"] == pytest.approx(expected)


@pytest.mark.slow
def test_labels_of_another_world_are_model_error(comparison):
    """Turned round they belie every probability; fair coins by the posterior itself do not."""
    probability = comparison.predictions[comparison.reference].bag_probability
    random = np.random.default_rng(0)

    def said(labels):
        test = replace(comparison.test, labels=labels.astype(int))
        return compare(comparison.posteriors, test=test, reference=comparison.reference).attribution

    assert "an error of the model, which no engine corrects" in said(probability < 0.5)[0]
    drawn = random.random(len(probability)) < probability
    assert "these bags show no error of the model" in said(drawn)[0]


@pytest.mark.in_ci
def test_without_a_reliable_reference_nobody_is_blamed(posteriors, problem, comparison):
    alone = compare({"cavi": posteriors["cavi"]}, test=problem[1])
    assert alone.attribution == []
    asked_for = compare(posteriors, test=problem[1], reference="cavi")  # it cannot judge
    assert asked_for.attribution == []
    missed = {comparison.reference}
    assert attributed(comparison.verdicts, comparison.reference, missed, None) == []


def test_held_out_bags_blame_the_model_without_test_bags(posteriors, comparison):
    """Planted probabilities of held-out bags: half as many come true as were said, or as many."""
    name = comparison.reference

    def said(p_value, num_influential):
        found = HeldOutCalibration(0.3, 0.1, p_value, 42, num_influential)
        return attributed(compare(posteriors).verdicts, name, {}, found)

    (wrong,) = said(0.001, 2)
    assert "the calibration error is 0.30, 0.10 by chance (p = 0.001)" in wrong
    assert "2 bags too influential for weights not counted: that is an error of the model" in wrong
    (right,) = said(0.4, 0)
    assert right.endswith("(p = 0.4): these show no error of the model.")


def test_what_recalibration_saves_is_the_fall_of_log_loss():
    random = np.random.default_rng(1)
    forecast = np.round(random.random(200), 1)
    truth = (random.random(200) < forecast**2).astype(int)
    by_forecast = [truth[forecast == one].mean() for one in np.unique(forecast)]
    count = np.unique(forecast, return_counts=True)[1].astype(float)
    frequency = isotonic_regression(by_forecast, weights=count).x
    recalibrated = frequency[np.searchsorted(np.unique(forecast), forecast)]

    def log_loss(probability):
        right = np.where(truth == 1, probability, 1 - probability)
        return -np.mean(np.log(np.maximum(right, np.finfo(float).tiny)))

    found = reliability(forecast, truth)
    assert found.log_loss_saved == pytest.approx(log_loss(forecast) - log_loss(recalibrated))
    assert found.log_loss_saved > 3 * found.log_loss_saved_if_calibrated > 0
