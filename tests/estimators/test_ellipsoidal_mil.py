"""eMIL: points of ellipsoids, finite differences, and a support vector classifier of means."""

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators.ellipsoidal_mil import (
    EllipsoidalMIL,
    direction_of_spreads,
    ellipsoid_scores,
    objective_and_gradient,
)
from scipy.optimize import approx_fprime
from sklearn.svm import LinearSVC

RADIUS = 1.5
# L-BFGS ends within 2e-9 of the objective, and so within some 1e-4 of the solution.
END = 1e-3


@pytest.fixture(scope="module")
def bags():
    random = np.random.default_rng(4)
    labels = np.arange(20) % 2
    sizes = random.integers(1, 8, size=20)
    rows = [
        random.normal(size=(n, 3)) * (1 + 2 * label) + [0.3 * label, 0, 0]
        for n, label in zip(sizes, labels, strict=True)
    ]
    return Bags.from_list(rows, labels)


@pytest.fixture(scope="module")
def weights():
    return np.array([0.7, -1.2, 0.4])


def test_score_is_the_largest_over_the_ellipsoid(bags, weights):
    random = np.random.default_rng(0)
    directions = random.normal(size=(20_000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    found = ellipsoid_scores(weights, bags, RADIUS).of_bags
    for rows, score in zip(bags.to_list(), found, strict=True):
        # Σ = RᵀR, which is as good as a symmetric root: directions are of all kinds.
        root = np.linalg.qr(rows - rows.mean(axis=0), mode="r") / np.sqrt(len(rows))
        values = (rows.mean(axis=0) + RADIUS * directions[:, : len(root)] @ root) @ weights
        assert values.max() <= score + 1e-8
        # The nearest of 20,000 directions is within 0.02 rad of the best one, as a rule.
        assert values.max() == pytest.approx(score, rel=1e-3, abs=1e-3)


def test_weights_name_the_point_that_has_the_score(bags, weights):
    scores = ellipsoid_scores(weights, bags, RADIUS)
    start = 0
    for rows, score in zip(bags.to_list(), scores.of_bags, strict=True):
        own_weights = scores.instance_weights[start : start + len(rows)]
        start += len(rows)
        point = own_weights @ rows
        assert own_weights.sum() == pytest.approx(1.0)
        assert point @ weights == pytest.approx(score)
        away = point - rows.mean(axis=0)
        covariance = np.cov(rows.T, bias=True) if len(rows) > 1 else np.zeros((3, 3))
        distance = away @ np.linalg.pinv(covariance) @ away
        assert distance == pytest.approx(RADIUS**2 if len(rows) > 1 else 0.0, abs=1e-8)


def test_gradient_is_that_of_finite_differences(bags):
    random = np.random.default_rng(1)
    for point in random.normal(size=(5, 4)):
        _, gradient = objective_and_gradient(point, bags, RADIUS, 0.3)
        expected = approx_fprime(
            point, lambda at: objective_and_gradient(at, bags, RADIUS, 0.3)[0], 1e-7
        )
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


def test_without_radius_it_is_liblinears_on_means(bags):
    classifier = EllipsoidalMIL(radius=0.0, penalty=0.4).fit(bags)
    means = np.array([rows.mean(axis=0) for rows in bags.to_list()])
    # Its intercept has a penalty too, which a large scale takes away.
    expected = LinearSVC(C=0.4, dual=False, tol=1e-10, intercept_scaling=1e3, max_iter=10_000)
    expected.fit(means, bags.labels)
    np.testing.assert_allclose(classifier.weights_, expected.coef_[0], atol=END)
    np.testing.assert_allclose(
        classifier.decision_function(bags), expected.decision_function(means), atol=END
    )


def test_no_step_from_the_solution_lowers_the_objective(bags):
    classifier = EllipsoidalMIL(RADIUS, penalty=0.3).fit(bags)
    found = np.append(classifier.weights_, classifier.intercept_)
    value, gradient = objective_and_gradient(found, bags, RADIUS, 0.3)
    assert classifier.objective_ == pytest.approx(value)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-3)
    for step in 1e-2 * np.random.default_rng(2).normal(size=(200, 4)):
        assert objective_and_gradient(found + step, bags, RADIUS, 0.3)[0] > value


def test_the_search_lowers_what_means_begin_with(bags):
    start = EllipsoidalMIL(radius=0.0, penalty=0.3).fit(bags)
    before, _ = objective_and_gradient(
        np.append(start.weights_, start.intercept_), bags, RADIUS, 0.3
    )
    found = EllipsoidalMIL(RADIUS, penalty=0.3).fit(bags)
    assert found.objective_ < before
    assert found.status_.kind == "converged"
    assert found.num_steps_ > start.num_steps_


def test_copies_of_all_instances_change_nothing(bags):
    twice = Bags.from_list([np.repeat(rows, 2, axis=0) for rows in bags.to_list()], bags.labels)
    expected = EllipsoidalMIL().fit(bags).decision_function(bags)
    np.testing.assert_allclose(
        EllipsoidalMIL().fit(twice).decision_function(twice), expected, atol=END
    )


def test_bags_of_one_instance_ignore_the_radius():
    random = np.random.default_rng(5)
    points = Bags.from_list(list(random.normal(size=(12, 1, 2))), np.arange(12) % 2)
    near, far = (EllipsoidalMIL(radius).fit(points) for radius in (0.0, 3.0))
    np.testing.assert_allclose(near.weights_, far.weights_, atol=END)


def test_bags_of_equal_means_are_told_by_their_variances():
    """The solution for means is w = 0, from which no gradient leads away."""
    bags = Bags.from_list(
        [[[-2.0], [2.0]], [[-4.0], [4.0]], [[-0.5], [0.5]], [[0.0]]], [1, 1, 0, 0]
    )
    assert EllipsoidalMIL(radius=0.0).fit(bags).score(bags) == 0.5
    assert EllipsoidalMIL().fit(bags).score(bags) == 1.0


def test_second_start_is_where_variances_differ_most(bags):
    """No direction of many has more variance in positive bags beyond that in negative ones."""

    def difference(direction):
        variance = [np.var(rows @ direction) for rows in bags.to_list()]
        return variance @ (2 * bags.labels - 1), np.mean(variance)

    found, of_mean_bag = difference(direction_of_spreads(bags))
    assert of_mean_bag == pytest.approx(1.0)
    norm = np.linalg.norm(direction_of_spreads(bags))
    for direction in np.random.default_rng(6).normal(size=(2000, 3)):
        assert difference(direction / np.linalg.norm(direction) * norm)[0] <= found + 1e-9


def test_too_few_steps_are_reported(bags):
    status = EllipsoidalMIL(max_steps=1).fit(bags).status_
    assert status.kind == "max_steps"
    assert "after 1 steps" in status.sentence


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"radius": -1.0}, "EllipsoidalMIL radius is -1.0; expected"),
        ({"penalty": 0.0}, "EllipsoidalMIL penalty is 0.0; expected a positive"),
        ({"max_steps": 0}, "EllipsoidalMIL max_steps is 0; expected an integer of at least 1"),
    ],
)
def test_bad_parameters_are_refused(bags, setting, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        EllipsoidalMIL(**setting).fit(bags)
