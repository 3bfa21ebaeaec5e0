"""ALP-SVM: the step in p by scipy and by brute force, the step in f, descent, edges."""

from itertools import product

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators.alp_svm import (
    ALPSVM,
    WeightedLearner,
    expected_positives,
    label_probabilities,
    loss,
)
from scipy.optimize import minimize
from scipy.special import entr, expit

SIZES = (3, 1, 4, 2, 3, 2, 1, 3)
LABELS = np.array([1, 1, 1, 0, 1, 0, 0, 0])


@pytest.fixture(scope="module", params=[0, 1])
def bags(request):
    random = np.random.default_rng(request.param)
    arrays = [random.normal(size=(size, 2)) for size in SIZES]
    for array, label in zip(arrays, LABELS, strict=True):
        array[0] += 1.5 * label
    return Bags.from_list(arrays, LABELS)


@pytest.fixture(scope="module")
def positive(bags):
    return bags[LABELS == 1]


def sums(values, bags):
    return np.array([values[bags.bag_index == b].sum() for b in range(len(bags))])


@pytest.mark.parametrize("total", [4, 5, 8, 10])
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_probabilities_are_the_optimum_by_scipy(positive, total, temperature):
    cost = np.random.default_rng(total).normal(size=positive.num_instances) * 2
    found = label_probabilities(cost, positive, total, temperature)
    # In a bag of one it is 1; the others are σ(z) for any z.
    alone = np.flatnonzero(np.repeat(positive.bag_sizes, positive.bag_sizes) == 1)
    np.testing.assert_array_equal(found[alone], 1)

    def probability(z):
        return np.insert(expit(z), alone, 1.0)

    def to_minimise(z):
        p, q = expit(z), expit(-z)
        return np.delete(cost, alone) @ p - temperature * (entr(p) + entr(q)).sum()

    def beyond_one(z):
        return (sums(probability(z), positive) - 1)[positive.bag_sizes > 1]

    constraints = [
        {"type": "eq", "fun": lambda z: probability(z).sum() - total},
        {"type": "ineq", "fun": beyond_one},
    ]
    if total == len(positive):  # then every bag has exactly one, and the total follows
        constraints = [{"type": "eq", "fun": beyond_one}]
    best = minimize(
        to_minimise,
        np.zeros(len(cost) - len(alone)),
        jac=lambda z: (np.delete(cost, alone) + temperature * z) * expit(z) * expit(-z),
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 500},
    )
    assert best.success
    np.testing.assert_allclose(found, probability(best.x), atol=1e-5)
    assert (sums(found, positive) >= 1 - 1e-10).all()


@pytest.mark.parametrize("total", [4, 5, 8, 11])
def test_cold_labels_are_best_of_all_labellings(positive, total):
    scores = np.random.default_rng(total).normal(size=positive.num_instances) * 2
    cost = loss(scores) - loss(-scores)
    allowed = [
        np.array(y)
        for y in product((0, 1), repeat=positive.num_instances)
        if sum(y) == total and (sums(np.array(y), positive) >= 1).all()
    ]
    best = min(allowed, key=lambda y: loss(scores) @ y + loss(-scores) @ (1 - y))
    np.testing.assert_allclose(label_probabilities(cost, positive, total, 1e-4), best, atol=1e-8)


def test_final_labels_are_best_given_the_classifier(bags, positive):
    classifier = ALPSVM(0.5).fit(bags)
    assert classifier.status_.kind == "converged" and classifier.entropy_ < 1e-6
    is_positive = LABELS[bags.bag_index] == 1
    labels, scores = classifier.probabilities_[is_positive], classifier.score_instances(positive)
    cost = loss(scores) - loss(-scores)
    values = [
        cost @ np.array(y)
        for y in product((0, 1), repeat=len(cost))
        if sum(y) == round(labels.sum()) and (sums(np.array(y), positive) >= 1).all()
    ]
    np.testing.assert_allclose(cost @ labels, min(values), atol=1e-6)
    assert round(labels.sum()) == 6  # the half of 11, to an even number
    np.testing.assert_array_equal(classifier.probabilities_[~is_positive], 0)


def plain_minimum(rows, negative, probability, penalty):
    """½‖w‖² and C times the expected squared hinge loss, by scipy, with a linear kernel."""
    examples = np.concatenate([rows, rows, negative])
    signs = np.repeat([1, -1, -1], [len(rows), len(rows), len(negative)])
    weights = np.concatenate([probability, 1 - probability, np.ones(len(negative))])
    signed = np.column_stack([examples, np.ones(len(signs))]) * signs[:, None]

    def value(z):
        return 0.5 * z[:-1] @ z[:-1] + penalty * weights @ np.maximum(0, 1 - signed @ z) ** 2

    best = minimize(value, np.zeros(3), method="BFGS", options={"gtol": 1e-8})
    return best.x, best.fun


def test_classifier_minimises_the_weighted_loss(bags):
    is_positive = LABELS[bags.bag_index] == 1
    rows, negative = bags.instances[is_positive], bags.instances[~is_positive]
    probability = np.random.default_rng(0).random(len(rows))
    both = np.concatenate([rows, negative])
    learner = WeightedLearner(both @ both.T, len(rows), 2.0)
    found = learner.train(probability)
    weights, value = plain_minimum(rows, negative, probability, 2.0)
    np.testing.assert_allclose(found.coefficients @ both, weights[:-1], atol=1e-4)
    np.testing.assert_allclose(found.intercept, weights[-1], atol=1e-4)
    np.testing.assert_allclose(learner.objective(found, probability, 0.0), value, rtol=1e-6)
    cold, warm = (learner.objective(found, np.full(11, 0.5), t) for t in (0.0, 3.0))
    np.testing.assert_allclose(cold - warm, 2.0 * 3.0 * 11 * np.log(2))


def test_steps_at_one_temperature_never_raise_the_objective(bags):
    values = []
    for steps in range(1, 7):
        one = ALPSVM(0.5, temperature=0.5, coldest=1.0, tolerance=0.0, max_steps=steps).fit(bags)
        values.append(one.objective_)
    assert (np.diff(values) <= 1e-4).all() and values[-1] < values[0] - 1e-3


def test_clearly_positive_instances_are_found():
    random = np.random.default_rng(3)
    arrays = [random.normal(size=(5, 2)) for _ in range(20)]
    for array in arrays[:10]:
        array[2] = 6.0
    classifier = ALPSVM(0.2).fit(Bags.from_list(arrays, [1] * 10 + [0] * 10))
    expected = np.tile([0.0, 0, 1, 0, 0], 10)
    np.testing.assert_allclose(classifier.probabilities_[:50], expected, atol=1e-8)
    assert classifier.score(Bags.from_list(arrays, [1] * 10 + [0] * 10)) == 1


def test_bags_of_one_instance_give_a_plain_classifier():
    random = np.random.default_rng(0)
    bags = Bags.from_arrays(random.normal(size=(8, 2)) + LABELS[:, None], np.arange(8), LABELS)
    rows, negative = bags.instances[LABELS == 1], bags.instances[LABELS == 0]
    weights, _ = plain_minimum(rows, negative, np.ones(4), 1.0)
    expected = bags.instances @ weights[:-1] + weights[-1]
    found = ALPSVM(kernel="linear").fit(bags).decision_function(bags)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_bag_decision_is_its_highest_instance(bags):
    classifier = ALPSVM().fit(bags)
    scores = classifier.score_instances(bags)
    expected = [scores[bags.bag_index == b].max() for b in range(len(bags))]
    np.testing.assert_array_equal(classifier.decision_function(bags), expected)


def test_order_of_instances_does_not_matter(bags):
    rows = np.random.default_rng(0).permutation(bags.num_instances)
    rows = rows[np.argsort(bags.bag_index[rows], kind="stable")]
    shuffled = Bags.from_arrays(bags.instances[rows], bags.bag_index, bags.labels)
    one, other = ALPSVM().fit(bags), ALPSVM().fit(shuffled)
    np.testing.assert_array_equal(one.decision_function(bags), other.decision_function(bags))
    np.testing.assert_array_equal(one.probabilities_[rows], other.probabilities_)


def test_identical_instances_share_one_label(positive):
    """A bag of three needs one positive label: each has a third of it, however cold."""
    same = Bags.from_list([np.ones((3, 2)), np.ones((3, 2))])
    found = label_probabilities(np.zeros(6), same, 2, 1e-6)
    np.testing.assert_allclose(found, 1 / 3, atol=1e-9)
    bags = Bags.from_list([np.ones((3, 2))] * 4, [0, 1, 0, 1])
    assert np.isfinite(ALPSVM().fit(bags).decision_function(bags)).all()


def test_each_positive_bag_expects_one_at_least(positive):
    assert expected_positives(positive, 0.01) == 4
    assert expected_positives(positive, 0.75) == 8
    assert expected_positives(positive, 0.999) == 11
    np.testing.assert_array_equal(label_probabilities(np.zeros(11), positive, 11, 1.0), 1)


def test_too_few_steps_are_reported(bags):
    classifier = ALPSVM(tolerance=0.0, max_steps=1, temperature=1.0, coldest=1.0).fit(bags)
    assert classifier.status_.kind == "max_steps" and classifier.num_steps_ == 1
    assert "T = 1 after 1 steps" in classifier.status_.sentence


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("positive_fraction", 1.0, "1.0; expected a number between 0 and 1"),
        ("kernel", "poly", "'poly'; expected one of linear, rbf"),
        ("penalty", 0.0, "0.0; expected a positive finite number"),
        ("temperature", 0.0, "0.0; expected a positive finite number"),
        ("cooling", 1.0, "1.0; expected a finite number above 1"),
        ("coldest", -1.0, "-1.0; expected a positive finite number"),
        ("tolerance", -1.0, "-1.0; expected a finite number of at least 0"),
        ("max_steps", 0, "0; expected an integer of at least 1"),
    ],
)
def test_bad_parameters_are_refused(bags, name, value, words):
    with pytest.raises(ValueError, match=f"ALPSVM {name} is {words}"):
        ALPSVM(**{name: value}).fit(bags)
