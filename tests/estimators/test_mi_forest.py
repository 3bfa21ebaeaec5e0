"""MIForest: the distribution of labels as a minimum, drawn labels, and what annealing finds."""

import pickle

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators.mi_forest import (
    MIForest,
    bootstrap,
    draw_labels,
    label_probability,
    most_probable,
)
from scipy.optimize import minimize_scalar
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score

SETTINGS = {"num_trees": 20, "max_steps": 20, "start_temperature": 4.0}


@pytest.fixture(scope="module")
def bags():
    """Forty bags of two to nine instances; the first of each positive one is from the concept."""
    random = np.random.default_rng(0)
    tables = [random.normal(size=(random.integers(2, 10), 2)) for _ in range(40)]
    labels = np.arange(40) % 2
    for table, label in zip(tables, labels, strict=True):
        table[0] += 4 * label
    return Bags.from_list(tables, labels=labels)


@pytest.fixture(scope="module")
def fitted(bags):
    return MIForest(seed=0, **SETTINGS).fit(bags)


def is_from_the_concept(bags):
    first = np.zeros(bags.num_instances, dtype=int)
    first[bags.starts] = bags.labels
    return first


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
def test_labels_minimise_loss_less_entropy(probability, temperature):
    """SciPy minimises p̂ ℓ(F_1) + (1 − p̂) ℓ(F_0) − T H(p̂), with the hinge loss."""

    def objective(p):
        loss = [max(0, 1 - (1 - 2 * probability)), max(0, 1 - (2 * probability - 1))]
        return (1 - p) * loss[0] + p * loss[1] - temperature * entropy([1 - p, p])

    best = minimize_scalar(objective, bounds=(0, 1), method="bounded", options={"xatol": 1e-9}).x
    found = label_probability(np.array([probability]), temperature)
    np.testing.assert_allclose(found, best, atol=1e-6)


def test_labels_are_drawn_with_their_probability():
    """Three thousand draws: a standard error of 0.0092 at most; one look, 4.5 of them."""
    bags = Bags.from_list([np.zeros((4, 1)), np.zeros((3, 1))], labels=[1, 0])
    probability = np.array([0.2, 0.9, 0.6, 0.5, 1.0, 0.0, 0.7])
    random = np.random.default_rng(0)
    drawn = np.mean([draw_labels(probability, 1.0, bags, random) for _ in range(3000)], axis=0)
    expected = 1 / (1 + np.exp(-2 * (2 * probability[:4] - 1)))
    expected[1] = 1.0  # the most probable one
    np.testing.assert_allclose(drawn[:4], expected, atol=4.5 * 0.0092)
    assert (drawn[4:] == 0).all()


def test_every_positive_bag_gets_a_positive_instance():
    random = np.random.default_rng(1)
    for _ in range(20):
        tables = [np.zeros((size, 1)) for size in random.integers(1, 30, size=10)]
        bags = Bags.from_list(tables, labels=np.arange(10) % 2)
        probability = random.random(bags.num_instances) / 10
        drawn = draw_labels(probability, 0.01, bags, random)
        for b in range(10):
            own = bags.bag_index == b
            expected = np.zeros(own.sum())
            expected[np.argmax(probability[own])] = bags.labels[b]
            np.testing.assert_array_equal(drawn[own], expected)


def test_equals_are_equally_often_most_probable():
    """Three thousand draws of three: standard error 0.0086; one look, 4.5 standard errors."""
    bags = Bags.from_list([np.zeros((4, 1)), np.zeros((1, 1))])
    probability = np.array([0.7, 0.7, 0.1, 0.7, 0.2])
    random = np.random.default_rng(0)
    found = np.array([most_probable(probability, bags, random) for _ in range(3000)])
    frequency = np.bincount(found[:, 0], minlength=4) / 3000
    np.testing.assert_allclose(frequency, [1 / 3, 1 / 3, 0, 1 / 3], atol=4.5 * 0.0086)
    assert (found[:, 1] == 4).all()


def test_trees_see_as_many_bags_of_each_label():
    labels = np.array([0, 1, 1, 0, 1])
    counts = bootstrap(labels, 2000, np.random.default_rng(0))
    assert (counts[:, labels == 0].sum(axis=1) == 2).all()
    assert (counts[:, labels == 1].sum(axis=1) == 3).all()
    # A bag is in none of n draws with probability (1 − 1/n)^n; 4.5 standard errors of 0.0112.
    expected = np.where(labels == 0, 1 / 4, (2 / 3) ** 3)
    np.testing.assert_allclose((counts == 0).mean(axis=0), expected, atol=4.5 * 0.0112)


def test_annealing_finds_the_instances_of_the_concept(fitted, bags):
    """Without a high temperature, instances keep the labels of their bags."""
    truth = is_from_the_concept(bags)
    assert np.mean(fitted.predict_instances(bags) == truth) > 0.97
    assert fitted.score(bags) > 0.95
    cold = MIForest(seed=0, num_trees=20, max_steps=5, start_temperature=0.1).fit(bags)
    assert np.mean(cold.predict_instances(bags) == bags.labels[bags.bag_index]) > 0.9
    hotter = fitted.score_instances(bags)
    assert roc_auc_score(truth, cold.score_instances(bags)) < roc_auc_score(truth, hotter)


def test_a_bag_has_the_score_of_its_highest_instance(fitted, bags):
    scores = np.zeros(bags.num_instances)
    for tree in fitted.trees_:
        scores += tree.predict_proba(bags.instances)[:, 1] / 20
    np.testing.assert_allclose(fitted.score_instances(bags), scores - 0.5, atol=1e-12)
    highest = [scores[bags.bag_index == b].max() - 0.5 for b in range(bags.num_bags)]
    np.testing.assert_allclose(fitted.decision_function(bags), highest, atol=1e-12)


def test_temperature_falls_by_a_constant_factor():
    forest = MIForest(seed=0, max_steps=3, start_temperature=4.0, end_temperature=0.25)
    np.testing.assert_allclose(forest._temperatures(), [4.0, 1.0, 0.25])


def test_how_the_annealing_ended_is_reported(fitted, bags):
    assert fitted.num_steps_ == 20
    assert fitted.status_.kind == "converged"
    hot = MIForest(seed=0, num_trees=5, max_steps=1, start_temperature=9.0, end_temperature=9.0)
    status = hot.fit(bags).status_
    assert status.kind == "max_steps"
    assert "after 1 epochs the more probable label still changed for " in status.sentence
    assert f"of {np.sum(bags.labels[bags.bag_index])} instances in positive" in status.sentence


def test_two_bags_suffice():
    """Each is in the sample of every tree."""
    bags = Bags.from_list([np.zeros((1, 2)), np.ones((3, 2))], labels=[0, 1])
    fitted = MIForest(seed=0, num_trees=3, max_steps=2).fit(bags)
    assert fitted.predict(bags).tolist() == [0, 1]


def test_identical_instances_have_one_score():
    bags = Bags.from_list([np.ones((size, 2)) for size in (1, 2, 3, 4)], labels=[0, 1, 0, 1])
    scores = MIForest(seed=0, num_trees=3, max_steps=2).fit(bags).score_instances(bags)
    np.testing.assert_array_equal(scores, scores[0])


def test_predictions_do_not_depend_on_other_bags(fitted, bags):
    together = fitted.decision_function(bags)
    alone = [fitted.decision_function(bags[[b]])[0] for b in range(10)]
    np.testing.assert_array_equal(together[:10], alone)
    backwards = Bags.from_list([table[::-1] for table in bags.to_list()])
    np.testing.assert_array_equal(fitted.decision_function(backwards), together)


def test_seed_decides_the_forest(bags):
    one, same, other = (
        MIForest(seed=seed, num_trees=3, max_steps=2).fit(bags).score_instances(bags)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_a_pickled_forest_predicts_the_same(fitted, bags):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.score_instances(bags), fitted.score_instances(bags))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_trees": 0}, "MIForest num_trees is 0; expected an integer of at least 1"),
        ({"max_steps": 0}, "MIForest max_steps is 0; expected an integer of at least 1"),
        ({"max_depth": 0}, "max_depth is 0; expected an integer of at least 1, or None for trees"),
        ({"min_leaf": 0}, "MIForest min_leaf is 0; expected an integer of at least 1"),
        ({"end_temperature": 0.0}, "end_temperature is 0.0; expected a positive finite number"),
        ({"end_temperature": 2.5}, "end_temperature is 2.5; expected at most start_temperature"),
        ({"seed": -1}, "seed is -1; expected an integer from 0"),
    ],
)
def test_bad_parameters_are_refused(bags, parameters, message):
    with pytest.raises(ValueError, match=message):
        MIForest(**({"seed": 0} | parameters)).fit(bags)
