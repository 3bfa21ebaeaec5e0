"""Concept fractions: known mixtures, the bag rule by enumeration, and honest posteriors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators import ConceptFractionClassifier
from milzoo.estimators.concept_fraction import DensityRatio, Rates, lowest_ratio
from scipy.stats import binom
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

# A mixture on four points: 1 − γ is the ratio at the first, which the concept does not reach.
GAMMA = 0.4
CONCEPT = np.array([0.0, 0.1, 0.3, 0.6])
NON_CONCEPT = np.array([0.5, 0.28, 0.2, 0.02])
POSITIVE = GAMMA * CONCEPT + (1 - GAMMA) * NON_CONCEPT


class KnownDensities(ClassifierMixin, BaseEstimator):
    """Bayes' theorem with the true densities and the class frequencies of the training set."""

    def fit(self, X, y):
        self.classes_, self.positive_ = np.unique(y), np.mean(y)
        return self

    def predict_proba(self, X):
        point = X[:, 0].astype(int)
        positive = self.positive_ * POSITIVE[point]
        negative = (1 - self.positive_) * NON_CONCEPT[point]
        return np.column_stack([negative, positive]) / (negative + positive)[:, None]


def bags_on_points(num_positive, num_negative, size, seed=0):
    random = np.random.default_rng(seed)
    densities = [POSITIVE] * num_positive + [NON_CONCEPT] * num_negative
    points = [random.choice(4, p=density, size=(size, 1)) for density in densities]
    return Bags.from_list(
        [one.astype(float) for one in points], [1] * num_positive + [0] * num_negative
    )


def gaussian_bags(num_bags, size, gamma, seed, apart=6.0):
    """Concept N(apart, 1), non-concept N(0, 1); which instances are of the concept comes too."""
    random = np.random.default_rng(seed)
    labels = np.arange(num_bags) % 2
    is_concept = (random.random((num_bags, size)) < gamma) & (labels[:, None] == 1)
    instances = random.standard_normal((num_bags, size)) + apart * is_concept
    return Bags.from_list(list(instances[:, :, None]), labels.tolist()), is_concept


@pytest.mark.parametrize(("num_positive", "num_negative"), [(10, 10), (40, 10), (10, 70)])
def test_reweighting_gives_the_density_ratio(num_positive, num_negative):
    """Whatever the class frequencies of the training set are."""
    bags = bags_on_points(num_positive, num_negative, 5)
    found = DensityRatio.learn(KnownDensities(), bags).log_ratios(bags)
    expected = (POSITIVE / NON_CONCEPT)[bags.instances[:, 0].astype(int)]
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-12)


def test_the_fraction_of_a_known_mixture_is_found():
    """Standard error of P₊/P₋ at the first point, and one more by which it is taken too high."""
    fitted = ConceptFractionClassifier(KnownDensities()).fit(bags_on_points(200, 200, 50))
    variances = [(1 - p) / (p * 200 * 50) for p in (POSITIVE[0], NON_CONCEPT[0])]
    error = (1 - GAMMA) * np.sqrt(np.sum(variances))
    assert -6 * error < fitted.concept_fraction_ - GAMMA < 4 * error


@pytest.mark.parametrize(("num_positive", "num_negative"), [(200, 200), (300, 60)])
def test_instances_get_their_most_probable_label(num_positive, num_negative):
    bags = bags_on_points(num_positive, num_negative, 50)
    fitted = ConceptFractionClassifier(KnownDensities()).fit(bags)
    weight = num_positive / (num_positive + num_negative)
    concept = weight * GAMMA * CONCEPT
    expected = concept > weight * (1 - GAMMA) * NON_CONCEPT + (1 - weight) * NON_CONCEPT
    points = Bags.from_list([np.arange(4.0)[:, None]])
    np.testing.assert_array_equal(fitted.predict_instances(points), expected)


def test_the_threshold_is_where_both_posteriors_are_a_half():
    bags = bags_on_points(30, 50, 20)
    fitted = ConceptFractionClassifier(KnownDensities()).fit(bags)
    ratio, weight = np.exp(fitted.log_ratio_threshold_), 30 / 80
    concept = weight * (ratio - (1 - fitted.concept_fraction_))  # in units of the negative density
    assert concept / (weight * ratio + 1 - weight) == pytest.approx(0.5)


def test_the_lowest_ratio_is_that_of_a_loop():
    random = np.random.default_rng(0)
    is_positive = random.random(60) < 0.4
    scores = random.integers(8, size=60) + 3.0 * is_positive
    ratios = [1.0]
    for t in range(12):
        high = (np.sum(scores[is_positive] <= t) + 0.5) / (is_positive.sum() + 1)
        low = (np.sum(scores[~is_positive] <= t) + 0.5) / ((~is_positive).sum() + 1)
        high += (high * (1 - high) / is_positive.sum()) ** 0.5
        low -= (low * (1 - low) / (~is_positive).sum()) ** 0.5
        if low > 0:
            ratios.append(high / low)
    assert lowest_ratio(scores, is_positive) == pytest.approx(min(ratios))
    assert 0.1 < min(ratios) < 0.5


def test_equal_distributions_have_no_concept():
    """At most: a chance ratio below 1 has to outdo its standard errors."""
    random = np.random.default_rng(0)
    assert lowest_ratio(random.standard_normal(4000), np.arange(4000) % 2 == 0) > 0.9
    assert lowest_ratio(np.zeros(40), np.arange(40) % 2 == 0) == 1


def test_the_bag_rule_is_bayes_theorem_over_labellings():
    """Log odds of all 2⁵ labellings of a bag, one Bernoulli factor for each instance."""
    rates = Rates(0.7, 0.2)
    for labelling in itertools.product([0, 1], repeat=5):
        likelihoods = [
            np.prod([rate if one else 1 - rate for one in labelling]) for rate in (0.7, 0.2)
        ]
        found = rates.log_odds(np.array([sum(labelling)]), np.array([5]))[0]
        assert found == pytest.approx(np.log(likelihoods[0] / likelihoods[1]))


@pytest.mark.parametrize("prior", [0.2, 0.5, 0.8])
def test_no_threshold_has_a_lower_error(prior):
    """Of all bags that are positive from c concept instances on, by the tails of the binomials."""
    size, rates = 12, Rates(0.45, 0.15)
    counts = np.arange(size + 1)
    odds = np.log(prior / (1 - prior)) + rates.log_odds(counts, np.full(size + 1, size))
    errors = [
        prior * binom.cdf(c - 1, size, 0.45) + (1 - prior) * binom.sf(c - 1, size, 0.15)
        for c in range(size + 2)
    ]
    assert np.sum(odds <= 0) == np.argmin(errors)


def test_decisions_count_the_labels_of_instances():
    bags, _ = gaussian_bags(31, 4, 0.6, seed=0, apart=2.0)
    fitted = ConceptFractionClassifier().fit(bags)
    counts = np.add.reduceat(fitted.predict_instances(bags), bags.starts)
    rates = fitted.rates_
    expected = binom.logpmf(counts, 4, rates.positive) - binom.logpmf(counts, 4, rates.negative)
    expected += np.log(15 / 16)
    np.testing.assert_allclose(fitted.decision_function(bags), expected, rtol=1e-9)
    probability = fitted.predict_proba(bags)[:, 1]
    np.testing.assert_allclose(np.log(probability / (1 - probability)), expected, rtol=1e-9)
    assert 0 < fitted.score(bags) < 1


def test_rates_that_cross_are_pooled():
    is_positive = np.arange(10) < 4
    crossed = Rates.learn(~is_positive, is_positive)
    assert crossed == Rates(6.5 / 11, 6.5 / 11)
    assert Rates.learn(is_positive, is_positive) == Rates(4.5 / 5, 0.5 / 7)


class SeesNoTrainingBag(KnownDensities):
    """Counts the rows predicted out of fold, and refuses rows that it was fitted to."""

    fitted_rows: list[set]
    predicted: int

    def fit(self, X, y):
        self.rows_ = set(X[:, 1])
        type(self).fitted_rows.append(self.rows_)
        return super().fit(X, y)

    def predict_proba(self, X):
        assert not self.rows_ & set(X[:, 1])
        type(self).predicted += len(X)
        return super().predict_proba(X)


def test_posteriors_are_out_of_fold_by_bags():
    points = bags_on_points(6, 9, 4)
    numbered = np.column_stack([points.instances, np.arange(points.num_instances)])
    bags = Bags.from_arrays(numbered, points.bag_index, points.labels)
    SeesNoTrainingBag.fitted_rows, SeesNoTrainingBag.predicted = [], 0
    ConceptFractionClassifier(SeesNoTrainingBag(), num_folds=3).fit(bags)
    assert SeesNoTrainingBag.predicted == 15 * 4
    sizes = [len(rows) for rows in SeesNoTrainingBag.fitted_rows]
    assert sizes == [40, 40, 40, 60]


def test_bags_are_told_apart_as_truth_tells():
    """The truth: a bag is positive if it has a concept instance. Six standard errors."""
    training, _ = gaussian_bags(400, 5, 0.3, seed=0)
    test, is_concept = gaussian_bags(1000, 5, 0.3, seed=1)
    fitted = ConceptFractionClassifier(LogisticRegression()).fit(training)
    of_truth = np.mean(is_concept.any(axis=1) == test.labels)
    assert of_truth == pytest.approx(1 - 0.5 * 0.7**5, abs=0.03)
    assert fitted.score(test) > of_truth - 6 * np.sqrt(of_truth * (1 - of_truth) / 1000)
    assert fitted.concept_fraction_ == pytest.approx(0.3, abs=0.07)
    assert fitted.rates_.positive == pytest.approx(0.3, abs=0.05)
    assert np.mean(fitted.predict_instances(test) == is_concept.ravel()) > 0.98


@pytest.mark.parametrize(
    "instances", [[[[0.0]], [[1.0]]], [[[0.0], [0.0], [0.0]], [[0.0]]], [[[2.0]] * 9, [[1.0]]]]
)
def test_one_bag_of_a_label_is_enough(instances):
    bags = Bags.from_list(instances, labels=[0, 1])
    fitted = ConceptFractionClassifier().fit(bags)
    assert np.isfinite(fitted.decision_function(bags)).all()
    assert 0 <= fitted.concept_fraction_ < 1


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"num_folds": 1}, ValueError, "num_folds is 1; expected an integer of at least 2"),
        ({"classifier": LogisticRegression}, TypeError, "expected a classifier of scikit-learn"),
        ({"classifier": SVC(probability=False)}, TypeError, "with fit and predict_proba"),
    ],
)
def test_bad_parameters_are_refused(parameters, error, message):
    with pytest.raises(error, match=message):
        ConceptFractionClassifier(**parameters).fit(bags_on_points(3, 3, 2))
