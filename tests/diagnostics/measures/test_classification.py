"""Scores of classifiers: by counting, and of those inside pipelines and searches."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.diagnostics.measures.classification import (
    SCORES,
    Classification,
    bayes_regret,
    classify,
)
from milzoo.estimators.contract import (
    BagClassifier,
    ProbabilisticBagClassifier,
    ScoresInstances,
)
from milzoo.estimators.transformers import TransformInstances
from scipy.special import expit, logit, rel_entr
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

NOTHING = (np.empty(0, int), np.empty(0, int), np.empty(0))


def test_scores_are_those_by_counting():
    truth, label = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0])
    decision = np.array([3.0, 2.0, -1.0, 1.0, -2.0])
    probability = np.array([0.9, 0.8, 0.3, 0.6, 0.2])
    found = Classification(truth, label, decision, logit(probability), *NOTHING).scores()
    assert found["accuracy"] == 3 / 5
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    pairs = [float(d > e) for d in decision[truth == 1] for e in decision[truth == 0]]
    assert found["auc"] == pytest.approx(np.mean(pairs))
    # precision at each positive, from the highest: 1/1, 2/2, 3/4
    assert found["average_precision"] == pytest.approx((1 + 1 + 3 / 4) / 3)
    of_truth = np.array([0.9, 0.8, 0.3, 0.4, 0.8])
    assert found["log_loss"] == pytest.approx(-np.log(of_truth).mean())
    assert found["brier"] == pytest.approx(np.mean((1 - of_truth) ** 2))
    assert math.isnan(found["instance_auc"])
    assert set(found) == set(SCORES)


def test_what_does_not_apply_is_nan():
    one = np.ones(2, dtype=int)
    found = Classification(one, one, np.array([1.0, 2.0]), None, *NOTHING).scores()
    assert found["accuracy"] == found["f1"] == 1
    others = set(found) - {"accuracy", "f1"}
    assert all(math.isnan(found[name]) for name in others)


class HighestFirstFeature(ScoresInstances):
    """Scores an instance by its first feature."""

    def __init__(self, offset=0.0):
        self.offset = offset

    def _fit(self, bags):
        self.fitted_ = True

    def _decision(self, bags):
        assert bags.labels is None
        assert bags.instance_labels is None
        return np.maximum.reduceat(bags.instances[:, 0], bags.starts) + self.offset

    def _instance_decision(self, bags):
        return np.asarray(bags.instances[:, 0])


@pytest.fixture
def bags():
    instances = [[[1.0], [-1.0]], [[-2.0], [-3.0]], [[2.0], [3.0]], [[-1.0]]]
    known = [[1, 0], [0, 0], [-1, 1], [0]]
    return Bags.from_list(instances, labels=[1, 0, 1, 0], instance_labels=known)


def test_test_labels_are_hidden_and_unknown_ones_left_out(bags):
    found = classify(HighestFirstFeature().fit(bags), bags)
    assert found.label.tolist() == [1, 0, 1, 0]
    assert found.instance_truth.tolist() == [1, 0, 0, 0, 1, 0]
    assert found.instance_decision.tolist() == [1.0, -1.0, -2.0, -3.0, 3.0, -1.0]
    scores = found.scores()
    assert scores["instance_auc"] == scores["instance_f1"] == scores["instance_accuracy"] == 1


def test_instances_are_scored_inside_pipelines_and_searches(bags):
    """The transformer turns the sign, so that the scores are all wrong."""
    pipeline = make_pipeline(TransformInstances(FunctionTransformer(np.negative)))
    pipeline.steps.append(("classify", HighestFirstFeature()))
    search = GridSearchCV(pipeline, {"classify__offset": [0.0, 9.0]}, cv=2)
    for classifier in (pipeline, search):
        fitted = classifier.fit(bags, bags.labels)
        found = classify(fitted, bags)
        assert found.instance_decision.tolist() == [-1.0, 1.0, 2.0, 3.0, -3.0, 1.0]
        assert found.scores()["instance_accuracy"] == 0
        np.testing.assert_array_equal(found.label, fitted.predict(bags.without_labels()))


class CountsPredictions(HighestFirstFeature):
    """Tells how often it was asked."""

    def _decision(self, bags):
        self.asked_.append("bags")
        return super()._decision(bags)

    def _instance_decision(self, bags):
        self.asked_.append("instances")
        return super()._instance_decision(bags)


def test_bags_and_instances_are_predicted_once(bags):
    """Integrals over a thousand draws take longer than the fit."""
    classifier = CountsPredictions().fit(bags)
    classifier.asked_ = []
    found = classify(classifier, bags)
    assert classifier.asked_ == ["bags", "instances"]
    assert found.instance_label.tolist() == [1, 0, 0, 0, 1, 0]


class CallsAllNegative(HighestFirstFeature):
    """Has rules of its own."""

    def predict(self, bags):
        return np.zeros(len(bags), int)

    def predict_instances(self, bags):
        return np.zeros(bags.num_instances, int)


def test_a_class_with_other_rules_is_asked(bags):
    found = classify(CallsAllNegative().fit(bags), bags)
    assert not found.label.any()
    assert not found.instance_label.any()


class KnowsNoInstances(BagClassifier):
    """Calls every bag positive."""

    def _fit(self, bags):
        self.fitted_ = True

    def _decision(self, bags):
        return np.ones(len(bags))


def test_a_classifier_of_bags_alone_has_no_instance_scores(bags):
    found = classify(KnowsNoInstances().fit(bags), bags)
    assert len(found.instance_truth) == 0
    assert found.probability is None
    with pytest.raises(ValueError, match="bags have no labels; expected those that predictions"):
        classify(KnowsNoInstances().fit(bags), bags.without_labels())


class LogOddsOfFirstFeature(ProbabilisticBagClassifier):
    """Is certain of every bag, of some more than of others."""

    def _fit(self, bags):
        self.fitted_ = True

    def _decision(self, bags):
        return 100 * bags.instances[bags.starts, 0]

    def _probability(self, bags):
        return expit(self._decision(bags))


def test_log_odds_are_scored_where_probabilities_round():
    bags = Bags.from_list([[[1.0]], [[2.0]], [[3.0]], [[-1.0]]], [0, 1, 1, 0])
    found = classify(LogOddsOfFirstFeature().fit(bags), bags)
    assert found.probability.round(9).tolist() == [1.0, 1.0, 1.0, 0.0]
    assert found.scores()["log_loss"] == pytest.approx(100 / 4)
    assert found.scores()["brier"] == pytest.approx(1 / 4)
    assert found.scores()["auc"] == 1.0


class OnlyProbabilities:
    """As classifiers of others may be, without decision values."""

    def predict_proba(self, bags):
        positive = expit(bags.instances[bags.starts, 0])
        return np.column_stack([1 - positive, positive])

    def predict(self, bags):
        return np.ones(len(bags), int)


def test_bags_are_ranked_by_probabilities_without_decisions(bags):
    found = classify(OnlyProbabilities(), bags)
    assert found.label.tolist() == [1, 1, 1, 1]
    first = bags.instances[bags.starts, 0]
    np.testing.assert_allclose(found.decision, first, rtol=1e-12)
    np.testing.assert_allclose(found.probability, expit(first), rtol=1e-12)


TRUE, SAID = np.array([0.9, 0.5, 0.2, 0.01]), np.array([0.6, 0.5, 0.7, 0.02])


def test_the_regret_is_the_mean_divergence():
    found = bayes_regret(probability=SAID, true_probability=TRUE)
    each = rel_entr(TRUE, SAID) + rel_entr(1 - TRUE, 1 - SAID)
    assert found.mean == pytest.approx(each.mean())
    variance = np.sum((each - each.mean()) ** 2) / 3
    assert found.standard_error == pytest.approx(np.sqrt(variance / 4))


def test_the_regret_is_the_excess_of_expected_log_loss():
    """The log loss of `Classification`, averaged over all 2⁴ labels of the bags."""
    expected = dict.fromkeys(("said", "true"), 0.0)
    for labels in itertools.product([0, 1], repeat=4):
        truth = np.array(labels)
        chance = np.prod(np.where(truth == 1, TRUE, 1 - TRUE))
        for name, probability in (("said", SAID), ("true", TRUE)):
            one = Classification(truth, truth, probability, logit(probability), *NOTHING)
            expected[name] += chance * one.scores()["log_loss"]
    found = bayes_regret(probability=SAID, true_probability=TRUE)
    assert found.mean == pytest.approx(expected["said"] - expected["true"])
    assert found.bayes_log_loss == pytest.approx(expected["true"])


def test_regret_of_log_odds_is_that_of_probabilities():
    expected = bayes_regret(probability=SAID, true_probability=TRUE)
    for said in ({"log_odds": logit(SAID)}, {"probability": SAID}):
        found = bayes_regret(**said, true_log_odds=logit(TRUE))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_certain_truths_cost_the_log_odds():
    """Also where probabilities are rounded to 0 and 1."""
    found = bayes_regret(log_odds=[-900.0, 900.0, 2.0], true_log_odds=[900.0, 900.0, -900.0])
    assert found.mean == pytest.approx((900 + 0 + np.log1p(np.exp(2.0))) / 3)
    assert found.bayes_log_loss == 0
    rounded = bayes_regret(probability=[0.0], true_probability=[1.0])
    assert rounded.mean == pytest.approx(-np.log(np.finfo(float).tiny))
    assert math.isnan(rounded.standard_error)


def test_the_truth_has_no_regret():
    odds = np.random.default_rng(0).normal(size=1000, scale=20)
    found = bayes_regret(log_odds=odds, true_log_odds=odds)
    assert found[:2] == (0, 0)
    near = [bayes_regret(log_odds=[one * (1 + 1e-15)], true_log_odds=[one]).mean for one in odds]
    assert min(near) >= 0  # also by rounding
    assert max(near) < 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probability": [0.5]}, "0 of true_probability and true_log_odds are given; expected one"),
        (
            {"probability": [0.5], "log_odds": [0.0], "true_probability": [0.5]},
            "2 of probability and log_odds are given; expected one",
        ),
        (
            {"probability": [[0.5, 0.5]], "true_probability": [0.5]},
            r"probability has shape \(1, 2\); expected \(B,\), one for each bag",
        ),
        ({"log_odds": [], "true_probability": [0.5]}, r"log_odds has shape \(0,\); expected"),
        (
            {"log_odds": [0.0, 1.0], "true_probability": [0.5]},
            "the classifier speaks of 2 bags and the truth of 1; expected",
        ),
        (
            {"probability": [0.5], "true_probability": [1.5]},
            r"true_probability is not in \[0, 1\] in every bag; expected",
        ),
        ({"probability": [math.nan], "true_probability": [0.5]}, r"probability is not in \[0, 1\]"),
        (
            {"probability": [0.5], "true_log_odds": [math.inf]},
            "true_log_odds are not all finite; expected log p",
        ),
    ],
)
def test_bad_arguments_of_the_regret_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        bayes_regret(**arguments)
