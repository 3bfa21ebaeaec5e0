"""Bags with a patch on a grid: their distribution, their graph, and the true posterior."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from milzoo.datasets import Bags, patch_on_grid, patch_on_grid_log_odds
from scipy.special import expit
from scipy.stats import norm


@pytest.fixture(scope="module")
def bags():
    return patch_on_grid(200, side=5, patch=2, num_features=3, shift=0.8, seed=1)


def test_a_positive_bag_has_one_patch(bags):
    cells = np.asarray(bags.instance_labels).reshape(-1, 5, 5)
    places = {
        (top, left): np.pad(np.ones((2, 2), int), ((top, 3 - top), (left, 3 - left)))
        for top, left in product(range(4), repeat=2)
    }
    found = set()
    for label, grid in zip(bags.labels, cells, strict=True):
        matching = [place for place, expected in places.items() if (grid == expected).all()]
        assert len(matching) == label and grid.sum() == 4 * label
        found |= set(matching)
    assert found == set(places)
    assert bags.labels.sum() == 200


def test_neighbours_share_a_side(bags):
    cells = np.array(list(product(range(5), repeat=2)))
    distance = np.abs(cells[:, None] - cells[None]).sum(axis=2)
    whole = bags[0].edges.as_matrix(25).toarray()
    np.testing.assert_array_equal(whole, (distance == 1).astype(float))
    assert bags.edges.num_edges == 400 * 80


def test_features_are_normal_around_shifted_means(bags):
    """Eight moments at 4.5 standard errors: a false alarm in 5e-5; seeded."""
    for label in (0, 1):
        rows = bags.instances[bags.instance_labels == label]
        z = (rows.mean(axis=0) - 0.8 * label) * np.sqrt(len(rows))
        assert (np.abs(z) < 4.5).all()
        assert abs(rows.var() - 1) < 4.5 * np.sqrt(2 / rows.size)


def test_true_log_odds_sum_over_all_places(bags):
    """By densities of whole bags."""
    some = bags.select(np.arange(6))
    found = patch_on_grid_log_odds(some, patch=2, shift=0.8)
    for rows, log_odds in zip(some.to_list(), found, strict=True):
        grid = rows.reshape(5, 5, 3)
        ratios = []
        for top, left in product(range(4), repeat=2):
            mean = np.zeros_like(grid)
            mean[top : top + 2, left : left + 2] = 0.8
            ratios.append((norm.logpdf(grid, mean) - norm.logpdf(grid)).sum())
        assert log_odds == pytest.approx(np.log(np.mean(np.exp(ratios))), abs=1e-10)


def test_true_probabilities_are_calibrated(bags):
    """The score of the log odds has mean 0: within 4.5 standard errors; seeded."""
    probability = expit(patch_on_grid_log_odds(bags, patch=2, shift=0.8))
    for weight in (np.ones(400), probability - 0.5):
        terms = weight * (bags.labels - probability)
        assert abs(terms.mean()) < 4.5 * terms.std() / 20


def test_draws_come_back_with_their_seed(bags):
    again = patch_on_grid(200, side=5, patch=2, num_features=3, shift=0.8, seed=1)
    np.testing.assert_array_equal(again.instances, bags.instances)


def test_bad_arguments_are_refused(bags):
    with pytest.raises(ValueError, match="patch is 7; expected at most 6, the side of the grid"):
        patch_on_grid(patch=7, seed=0)
    with pytest.raises(ValueError, match="shift is -1; expected a positive finite number"):
        patch_on_grid(shift=-1, seed=0)
    with pytest.raises(ValueError, match="side is 0; expected an integer of at least 1"):
        patch_on_grid(side=0, seed=0)
    with pytest.raises(ValueError, match="bags have 3 to 25 instances; expected one square number"):
        patch_on_grid_log_odds(Bags.from_list([np.ones((3, 2)), np.ones((25, 2))]))
    with pytest.raises(ValueError, match="patch is 6; expected at most 5"):
        patch_on_grid_log_odds(replace(bags, labels=None), patch=6)
