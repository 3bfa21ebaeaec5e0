"""Scores against sums by hand."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.diagnostics.measures.scores import prediction_difference, score
from milzoo.inference import Prediction
from milzoo.inference.prediction import _REPLICATES, LatentPrediction, TargetPrediction
from milzoo.models import StudentT
from scipy import stats


@pytest.fixture
def test_bags():
    return Bags.from_arrays(
        np.arange(6.0)[:, None],
        [0, 0, 1, 1, 2, 2],
        [1, 0, 1],
        instance_labels=[1, 0, 0, 0, np.nan, 1],
    )


def predicted(bag, instance):
    return Prediction(np.array([bag]), np.array([instance]))


PREDICTION = predicted([0.8, 0.4, 0.3], [0.9, 0.2, 0.3, 0.1, 0.99, 0.25])


def test_scores_are_those_by_hand(test_bags):
    scores = score(PREDICTION, test_bags)
    assert scores.log_loss == pytest.approx(-np.log([0.8, 0.6, 0.3]).mean())
    assert scores.brier == pytest.approx(np.mean([0.2**2, 0.4**2, 0.7**2]))
    assert scores.accuracy == pytest.approx(2 / 3)
    assert scores.auc == pytest.approx(1 / 2)  # one of two pairs in order
    # Instances known: positives 0.9 and 0.25, negatives 0.2, 0.3, 0.1.
    assert scores.instance_auc == pytest.approx(5 / 6)
    assert scores.instance_auc_pr == pytest.approx((1 + 2 / 3) / 2)


def test_certain_predictions_are_ranked_and_cost_their_log_odds(test_bags):
    of_bags, of_instances = np.array([60.0, 50.0, 70.0]), np.array([80.0, 50, 60, 70, 4, 90])
    draws = np.full((1, 3), 0.5), np.full((1, 6), 0.5)
    prediction = Prediction(*draws, of_bags, of_instances)
    assert set(prediction.bag_probability) == {1.0}  # by these all bags would tie
    scores = score(prediction, test_bags)
    assert scores.log_loss == pytest.approx(50 / 3)  # of the negative bag
    assert scores.miscalibration == pytest.approx(50 / 3)  # the order alone is all right
    assert scores.auc == scores.instance_auc == scores.instance_auc_pr == 1.0


def test_unknown_truth_and_one_class_give_no_ranking(test_bags):
    scores = score(PREDICTION, replace(test_bags, labels=np.ones(3, int), instance_labels=None))
    assert np.isnan([scores.auc, scores.instance_auc, scores.instance_auc_pr]).all()
    assert np.isfinite([scores.log_loss, scores.brier, scores.accuracy]).all()


def test_differences_of_predictions_are_those_by_hand(test_bags):
    reference = predicted([0.7, 0.4, 0.6], [0.5] * 6)
    difference = prediction_difference(PREDICTION, reference, test_bags)
    assert difference.mean == pytest.approx(0.4 / 3)
    assert difference.worst == pytest.approx(0.3)
    loss = np.log([0.7 / 0.8, 1.0, 0.6 / 0.3])
    assert difference.log_loss == pytest.approx(loss.mean())
    assert difference.log_loss_error == pytest.approx(loss.std(ddof=1) / np.sqrt(3))


def test_differences_of_targets_are_in_the_references_predictive_sds(test_bags):
    test = test_bags.with_targets([0.0, 1.0, 2.0])
    instances = np.zeros((2, 6)), np.ones((2, 6))
    ours = TargetPrediction(np.array(2 * [[1.0, 1.0, 3.0]]), np.ones((2, 3)), *instances)
    # Two draws at ±3 of sd 4 each: the variance is 16 within and 9 between.
    theirs = TargetPrediction(
        np.array([[-3.0, -2.0, 0.0], [3.0, 4.0, 6.0]]), np.full((2, 3), 4.0), *instances
    )
    difference = prediction_difference(ours, theirs, test)
    assert difference.mean == pytest.approx(1 / 5 / 3)
    assert difference.worst == pytest.approx(1 / 5)


def test_differences_of_cauchy_targets_are_in_their_intervals(test_bags):
    test = test_bags.with_targets([0.0, 1.0, 2.0])
    at_zero, instances = np.zeros((1000, 3)), (np.zeros((2, 6)), np.ones((2, 6)))
    latent = LatentPrediction(StudentT(1.0, 2.0), at_zero, np.full_like(at_zero, 1e-6))
    scale = np.full_like(at_zero, np.inf)
    theirs = TargetPrediction(at_zero, scale, *instances, latent)
    ours = replace(theirs, bag_mean=at_zero + 3.0)
    difference = prediction_difference(ours, theirs, test)
    unit = 2.0 * stats.cauchy.ppf(stats.norm.cdf(1.0))
    # Of a quantile's estimate by the replicated targets of 1,000 draws.
    share, density = stats.norm.cdf(-1.0), stats.cauchy.pdf(unit, scale=2.0)
    error = np.sqrt(share * (1 - share) / (_REPLICATES * 1000)) / density
    assert abs(3.0 / difference.mean - unit) < 5 * error
