"""MILBoost: its gradient and its steps, by loops over bags; and what its likelihood does."""

import pickle

import numpy as np
import pytest
from milzoo.datasets import Bags, load
from milzoo.estimators.mil_boost import (
    MILBoost,
    bag_log_odds,
    gradient,
    log_likelihood,
    search_line,
)


def random_bags(seed, num_bags=12):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 6, size=num_bags)
    sizes[0] = 40  # larger than all others
    return Bags.from_list(
        [random.normal(size=(size, 3)) for size in sizes], labels=np.arange(num_bags) % 2
    )


@pytest.fixture(scope="module")
def bags():
    """Those with an instance beyond 1 in feature 0 are positive, but for every tenth."""
    random = np.random.default_rng(0)
    tables = [random.normal(size=(random.integers(2, 6), 2)) for _ in range(60)]
    labels = np.array([int(table[:, 0].max() > 1) for table in tables])
    labels[::10] = 1 - labels[::10]
    return Bags.from_list(tables, labels=labels)


@pytest.fixture(scope="module")
def fitted(bags):
    return MILBoost(seed=0, max_steps=20).fit(bags)


def log_likelihood_by_loop(scores, bags):
    """log L from the product of 1 − p over the instances of each bag."""
    total = 0.0
    for b in range(bags.num_bags):
        none = 1.0
        for score in scores[bags.bag_index == b]:
            none *= 1 - 1 / (1 + np.exp(-score))
        total += np.log(1 - none) if bags.labels[b] == 1 else np.log(none)
    return total


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_the_gradient_of_the_log_likelihood(seed):
    bags = random_bags(seed)
    scores = np.random.default_rng(seed).normal(-1, 1.5, size=bags.num_instances)
    assert log_likelihood(scores, bags) == pytest.approx(log_likelihood_by_loop(scores, bags))
    width = 1e-5
    for n, weight in enumerate(gradient(scores, bags)):
        move = width * (np.arange(len(scores)) == n)
        difference = log_likelihood_by_loop(scores + move, bags) - log_likelihood_by_loop(
            scores - move, bags
        )
        assert weight == pytest.approx(difference / (2 * width), rel=1e-5, abs=1e-8)


def test_probabilities_that_round_to_zero_keep_their_logarithm():
    """For p → 0 log P(T = 1) is log Σ e^f, and for p → 1 log P(T = 0) is −Σ f."""
    bags = Bags.from_list([np.zeros((2, 1)), np.zeros((1, 1)), np.zeros((2, 1))], labels=[1, 1, 0])
    scores = np.array([-2000.0, -2000.0, -90.0, 3000.0, 500.0])
    expected = [np.log(2) - 2000, -90, 3500]
    np.testing.assert_allclose(bag_log_odds(scores, bags), expected, rtol=1e-12)
    assert log_likelihood(scores, bags) == pytest.approx(np.log(2) - 2000 - 90 - 3500)
    np.testing.assert_allclose(gradient(scores, bags), [0.5, 0.5, 1, -1, -1])


def test_no_step_on_a_grid_beats_the_line_search():
    found_within = 0
    for seed in range(20):
        bags = random_bags(seed)
        random = np.random.default_rng(seed)
        scores = random.normal(-1, 2, size=bags.num_instances)
        direction = random.choice([-1.0, 1.0], size=bags.num_instances)
        found = search_line(scores, direction, bags, 3.0)
        grid = np.linspace(0, 3, 121)
        best = max(log_likelihood_by_loop(scores + step * direction, bags) for step in grid)
        assert found.log_likelihood >= best - 1e-9
        after = log_likelihood_by_loop(scores + found.step * direction, bags)
        assert found.log_likelihood == pytest.approx(after)
        assert 0 <= found.step <= 3
        found_within += 0 < found.step < 3
    assert found_within > 5


def test_a_step_down_is_not_taken():
    bags = Bags.from_list([np.zeros((1, 1)), np.ones((1, 1))], labels=[0, 1])
    found = search_line(np.zeros(2), np.array([1.0, -1.0]), bags, 3.0)
    assert found == (0.0, pytest.approx(-2 * np.log(2)))


@pytest.mark.parametrize("max_depth", [1, 3])
def test_log_likelihood_never_falls(max_depth):
    bags = random_bags(1, num_bags=30)
    trace = MILBoost(seed=0, max_steps=30, max_depth=max_depth).fit(bags).log_likelihood_
    assert trace[0] == pytest.approx(log_likelihood_by_loop(np.zeros(bags.num_instances), bags))
    assert (np.diff(trace) > 0).all()


def test_scores_are_the_sum_of_the_trees(fitted, bags):
    expected = np.zeros(bags.num_instances)
    for tree, step in zip(fitted.trees_, fitted.steps_, strict=True):
        expected += step * tree.predict(bags.instances)
    np.testing.assert_allclose(fitted.score_instances(bags), expected)
    assert log_likelihood_by_loop(expected, bags) == pytest.approx(fitted.log_likelihood_[-1])
    assert len(fitted.trees_) == fitted.num_steps_ == len(fitted.log_likelihood_) - 1


def test_a_bag_is_the_noisy_or_of_its_instances(fitted, bags):
    chance = 1 / (1 + np.exp(-fitted.score_instances(bags)))
    expected = [1 - np.prod(1 - chance[bags.bag_index == b]) for b in range(bags.num_bags)]
    found = fitted.predict_proba(bags)[:, 1]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found.min() < 0.5 < found.max()
    odds = np.exp(fitted.decision_function(bags))
    np.testing.assert_allclose(odds / (1 + odds), found, rtol=1e-9)


def test_the_instance_that_makes_bags_positive_is_found(fitted, bags):
    first = fitted.trees_[0].tree_
    assert (first.feature[0], round(first.threshold[0], 1)) == (0, 1.0)
    beyond = bags.instances[:, 0] > 1
    assert np.mean(fitted.predict_instances(bags) == beyond) > 0.9


def test_first_tree_of_large_bags_lowers_all_scores():
    """By noisy-or at f = 0 all large bags are positive, so that only negative ones have weight."""
    random = np.random.default_rng(0)
    tables = list(random.normal(size=(10, 80, 2)))
    bags = Bags.from_list(tables, labels=np.arange(10) % 2)
    fitted = MILBoost(seed=0, max_steps=1).fit(bags)
    assert (fitted.trees_[0].predict(bags.instances) == -1).all()
    # Half of the bags are positive: (1 − p)^80 = 1/2 at the best constant.
    constant = -np.log(1 / (1 - 0.5 ** (1 / 80)) - 1)
    assert fitted.steps_[0] == pytest.approx(-constant, rel=1e-4)


def test_identical_instances_end_the_boosting():
    """No tree tells them apart: f is the constant at which half of the bags are positive."""
    bags = Bags.from_list([np.ones((1, 2))] * 4, labels=[0, 1, 0, 1])
    fitted = MILBoost(seed=0).fit(bags)
    assert fitted.status_.kind == "converged"
    assert fitted.num_steps_ == 0
    np.testing.assert_allclose(fitted.predict_proba(bags), 0.5)


def test_too_few_rounds_are_reported(fitted):
    assert fitted.status_.kind == "max_steps"
    assert "still rose in the last of 20 rounds" in fitted.status_.sentence


def test_predictions_do_not_depend_on_other_bags(fitted, bags):
    together = fitted.decision_function(bags)
    alone = [fitted.decision_function(bags[[b]])[0] for b in range(10)]
    np.testing.assert_array_equal(together[:10], alone)
    backwards = Bags.from_list([table[::-1] for table in bags.to_list()])
    np.testing.assert_allclose(fitted.decision_function(backwards), together, rtol=1e-12)


def test_same_seed_fits_the_same_trees(fitted, bags):
    again = pickle.loads(pickle.dumps(MILBoost(seed=0, max_steps=20).fit(bags)))
    np.testing.assert_array_equal(again.steps_, fitted.steps_)
    np.testing.assert_array_equal(again.score_instances(bags), fitted.score_instances(bags))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_steps": 0}, "MILBoost max_steps is 0; expected an integer of at least 1"),
        ({"max_depth": 0}, "MILBoost max_depth is 0; expected an integer of at least 1"),
        ({"largest_step": 0.0}, "MILBoost largest_step is 0.0; expected a positive finite number"),
        ({"seed": -1}, "seed is -1; expected an integer from 0"),
    ],
)
def test_bad_parameters_are_refused(bags, parameters, message):
    with pytest.raises(ValueError, match=message):
        MILBoost(**({"seed": 0} | parameters)).fit(bags)


def test_random_musk_labels_are_no_better_than_chance(data_folder):
    """Boosting fits any labels of the training bags; held-out bags tell."""
    bags = load("musk1")
    random = np.random.default_rng(0)
    labels = random.permutation(bags.labels)
    training, test = np.arange(0, 92, 2), np.arange(1, 92, 2)
    fitted = MILBoost(seed=0, max_steps=20, max_depth=2).fit(bags[training], labels[training])
    assert fitted.score(bags[training], labels[training]) > 0.9
    assert fitted.score(bags[test], labels[test]) < 0.5 + 3 * np.sqrt(0.25 / 46)
