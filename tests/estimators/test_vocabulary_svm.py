"""Bags of words: words at clusters, histograms by counting, the kernel and its dual optimum."""

import pickle

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators.vocabulary_svm import VocabularySVM, chi_squared
from scipy.optimize import minimize

CENTRES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])


@pytest.fixture(scope="module")
def bags():
    """Most instances of a positive bag are of the first cluster, of a negative one few."""
    random = np.random.default_rng(0)
    labels, tables = np.arange(24) % 2, []
    for label in labels:
        probabilities = [0.7, 0.2, 0.1] if label else [0.2, 0.3, 0.5]
        cluster = random.choice(3, size=random.choice([1, 5, 12]), p=probabilities)
        tables.append(CENTRES[cluster] + random.standard_normal((len(cluster), 2)))
    return Bags.from_list(tables, labels)


@pytest.fixture(scope="module")
def fitted(bags):
    return VocabularySVM(3, 2.0, seed=0).fit(bags)


def distance(one, other):
    return sum((a - b) ** 2 / (a + b) for a, b in zip(one, other, strict=True) if a + b > 0)


def test_words_are_the_means_of_clusters(bags, fitted):
    cluster = np.argmin(((bags.instances[:, None] - CENTRES) ** 2).sum(axis=2), axis=1)
    means = np.array([bags.instances[cluster == k].mean(axis=0) for k in range(3)])
    nearest = np.linalg.norm(means[:, None] - fitted.words_, axis=2).min(axis=1)
    np.testing.assert_allclose(nearest, 0, atol=1e-9)
    assert fitted.status_.kind == "converged"


def test_histograms_count_the_nearest_words(bags, fitted):
    for own, histogram in zip(bags.to_list(), fitted.histograms_, strict=True):
        words = [np.argmin([np.linalg.norm(x - word) for word in fitted.words_]) for x in own]
        np.testing.assert_allclose(histogram, [words.count(k) / len(own) for k in range(3)])


def test_distances_follow_the_definition():
    histograms = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.25, 0.25]])
    expected = [[distance(a, b) for b in histograms] for a in histograms]
    np.testing.assert_allclose(chi_squared(histograms, histograms), expected)


def test_decisions_are_those_of_the_dual_optimum(bags, fitted):
    """Another optimiser on the dual, and its intercept from the bags on the margin."""
    num, sign = len(bags), np.where(bags.labels == 1, 1.0, -1.0)
    raw = np.array([[distance(a, b) for b in fitted.histograms_] for a in fitted.histograms_])
    kernel = np.exp(-raw / raw[~np.eye(num, dtype=bool)].mean())
    signed = sign[:, None] * kernel * sign
    found = minimize(
        lambda a: (0.5 * a @ signed @ a - a.sum(), signed @ a - 1),
        np.zeros(num),
        jac=True,
        method="SLSQP",
        bounds=[(0, 2.0)] * num,
        constraints={"type": "eq", "fun": lambda a: a @ sign, "jac": lambda _: sign},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    without_intercept = kernel @ (found.x * sign)
    is_on_margin = (found.x > 1e-3) & (found.x < 2 - 1e-3)
    intercept = np.mean((sign - without_intercept)[is_on_margin])
    expected = without_intercept + intercept
    np.testing.assert_allclose(fitted.decision_function(bags), expected, atol=1e-2)


def test_equal_histograms_have_a_decision():
    bags = Bags.from_list([[[0.0]], [[1.0]], [[2.0]], [[3.0]]], [0, 1, 0, 1])
    constant = VocabularySVM(1, seed=0).fit(bags)
    assert constant.mean_distance_ == 1
    assert np.isfinite(constant.decision_function(bags)).all()


def test_bags_are_predicted_one_by_one(bags, fitted):
    single = np.concatenate([fitted.decision_function(bag) for bag in bags])
    np.testing.assert_allclose(single, fitted.decision_function(bags), atol=1e-12)
    turned = Bags.from_list([own[::-1] for own in bags.to_list()])
    np.testing.assert_array_equal(fitted.decision_function(turned), fitted.decision_function(bags))


def test_the_seed_decides_the_words(bags, fitted):
    again = VocabularySVM(3, 2.0, seed=0).fit(bags)
    np.testing.assert_array_equal(again.words_, fitted.words_)
    other = VocabularySVM(7, num_starts=1, seed=1).fit(bags)
    assert not np.array_equal(other.words_, VocabularySVM(7, num_starts=1, seed=2).fit(bags).words_)
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.decision_function(bags), fitted.decision_function(bags))


def test_an_early_end_is_reported(bags):
    early = VocabularySVM(5, num_starts=1, max_steps=1, seed=0)
    assert early.fit(bags).status_.kind == "max_steps"


def test_bad_parameters_are_refused(bags):
    with pytest.raises(ValueError, match="VocabularySVM num_words is 0; expected an integer"):
        VocabularySVM(0, seed=0).fit(bags)
    with pytest.raises(ValueError, match="seed is -1; expected an integer from 0"):
        VocabularySVM(3, seed=-1).fit(bags)
    few = Bags.from_list([[[0.0], [0.0]], [[1.0]]], [0, 1])
    with pytest.raises(ValueError, match="num_words is 3, but only 2 training instances differ"):
        VocabularySVM(3, seed=0).fit(few)
