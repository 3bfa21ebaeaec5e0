"""MILES: its linear program, its features, and what instances contribute to their bag."""

import itertools
import pickle

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators.miles import MILES, solve_one_norm
from sklearn.base import clone


@pytest.fixture(scope="module")
def bags():
    """A positive bag has one instance near (3, 3)."""
    random = np.random.default_rng(0)
    labels = np.arange(30) % 2
    tables = [random.standard_normal((size, 2)) for size in random.choice([1, 2, 3, 7], 30)]
    for table, label in zip(tables, labels, strict=True):
        if label:
            table[0] = 3 + 0.3 * random.standard_normal(2)
    return Bags.from_list(tables, labels)


@pytest.fixture(scope="module")
def fitted(bags):
    return MILES(1.5, 5.0, 0.4).fit(bags)


def smallest_at_a_vertex(features, is_positive, cost):
    """The minimum of the linear program over all of its vertices, in exact equality form."""
    num_bags, num_features = features.shape
    sign = np.where(is_positive, 1.0, -1.0)
    weights = sign[:, None] * np.hstack([features, -features])
    intercept = sign[:, None] * np.array([[1.0, -1.0]])
    slack = np.hstack([np.eye(num_bags), -np.eye(num_bags)])
    table = np.hstack([weights, intercept, slack])
    price = np.concatenate([np.ones(2 * num_features), [0.0, 0.0], cost, np.zeros(num_bags)])
    bases = np.array(list(itertools.combinations(range(table.shape[1]), num_bags)))
    squares = table[:, bases].transpose(1, 0, 2)
    regular = np.abs(np.linalg.det(squares)) > 1e-9
    values = np.linalg.solve(squares[regular], np.ones((regular.sum(), num_bags, 1)))[..., 0]
    feasible = (values >= -1e-9).all(axis=1)
    return np.min(np.sum(price[bases[regular]] * values, axis=1)[feasible])


@pytest.mark.parametrize("seed", range(5))
def test_the_linear_program_is_at_its_lowest_vertex(seed):
    random = np.random.default_rng(seed)
    features, cost = random.random((4, 4)), random.uniform(0.5, 20, 4)
    is_positive = np.array([True, False, True, False])
    found = solve_one_norm(features, is_positive, cost)
    assert found.fun == pytest.approx(smallest_at_a_vertex(features, is_positive, cost), abs=1e-6)


def objective_of(classifier, bags):
    """The paper's objective at the weights found, slack taken from decision values."""
    sign = np.where(bags.labels == 1, 1.0, -1.0)
    slack = np.maximum(0, 1 - sign * classifier.decision_function(bags))
    positive, negative = slack[bags.labels == 1].sum(), slack[bags.labels == 0].sum()
    weighted = classifier.positive_weight * positive + (1 - classifier.positive_weight) * negative
    return np.abs(classifier.weights_).sum() + classifier.penalty * weighted


def test_the_objective_is_that_of_the_paper(bags, fitted):
    assert objective_of(fitted, bags) == pytest.approx(fitted.objective_, rel=1e-6)
    assert 0 < len(fitted.selected_) < bags.num_instances
    assert fitted.status_.kind == "converged"
    assert fitted.num_steps_ > 0


def test_decisions_follow_the_definition(bags, fitted):
    np.testing.assert_array_equal(fitted.concepts_, bags.instances[fitted.selected_])
    expected = [
        sum(
            weight * max(np.exp(-np.sum((x - concept) ** 2) / 1.5**2) for x in bag)
            for weight, concept in zip(fitted.weights_, fitted.concepts_, strict=True)
        )
        + fitted.intercept_
        for bag in bags.to_list()
    ]
    np.testing.assert_allclose(fitted.decision_function(bags), expected, atol=1e-12)


def contributions(classifier, bag):
    """Decision values of the instances of one bag, concept by concept."""
    total, members = np.zeros(len(bag)), set()
    for weight, concept in zip(classifier.weights_, classifier.concepts_, strict=True):
        squared = ((bag - concept) ** 2).sum(axis=1)
        nearest = [j for j in range(len(bag)) if squared[j] == squared.min()]
        members |= set(nearest)
        for j in nearest:
            total[j] += weight * np.exp(-squared[j] / classifier.width**2) / len(nearest)
    for j in members:
        total[j] += classifier.intercept_ / len(members)
    return total


def test_instances_score_what_they_contribute(bags, fitted):
    tables = bags.to_list()
    tables.append(np.repeat(tables[1], 3, axis=0))  # all equally near
    scored = Bags.from_list(tables)
    expected = np.concatenate([contributions(fitted, bag) for bag in tables])
    np.testing.assert_allclose(fitted.score_instances(scored), expected, atol=1e-12)
    assert np.any(expected == 0)


def test_instance_scores_add_up_to_the_bag(bags, fitted):
    added = np.add.reduceat(fitted.score_instances(bags), bags.starts)
    np.testing.assert_allclose(added, fitted.decision_function(bags), atol=1e-12)


def test_the_witness_scores_highest_in_its_bag(bags, fitted):
    scores = np.split(fitted.score_instances(bags), bags.starts[1:])
    assert fitted.score(bags) == 1
    positive = [own for own, label in zip(scores, bags.labels, strict=True) if label]
    assert np.mean([own.argmax() == 0 for own in positive]) > 0.9


def test_far_instances_do_not_tie_by_underflow(fitted):
    """Both similarities are 0 in floating point, and only the nearer one contributes."""
    far = Bags.from_list([[[1e3, 1e3], [2e3, 2e3]]])
    assert fitted.score_instances(far).tolist() == [fitted.intercept_, 0.0]


def test_weights_of_classes_decide_without_selected_instances(bags):
    for weight, label in [(0.9, 1), (0.1, 0)]:
        constant = MILES(1.0, 1e-3, weight).fit(bags)
        assert len(constant.selected_) == 0
        assert set(constant.predict(bags)) == {label}
        assert not constant.score_instances(bags).any()


def test_bags_are_predicted_one_by_one(bags, fitted):
    random = np.random.default_rng(2)
    single = np.concatenate([fitted.decision_function(bag) for bag in bags])
    np.testing.assert_array_equal(single, fitted.decision_function(bags))
    turned = Bags.from_list([random.permutation(bag) for bag in bags.to_list()])
    np.testing.assert_array_equal(fitted.decision_function(turned), single)


def test_a_copy_predicts_the_same(bags, fitted):
    for copy in (pickle.loads(pickle.dumps(fitted)), clone(fitted).fit(bags)):
        np.testing.assert_array_equal(copy.decision_function(bags), fitted.decision_function(bags))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 0.0}, "MILES width is 0.0; expected a positive finite number"),
        ({"penalty": -1}, "MILES penalty is -1; expected a positive finite number"),
        ({"positive_weight": 1}, "MILES positive_weight is 1; expected a number between 0 and 1"),
    ],
)
def test_bad_parameters_are_refused(bags, settings, message):
    with pytest.raises(ValueError, match=message):
        MILES(**({"width": 1.0} | settings)).fit(bags)
