"""Relevance of instances against sums over labels and predictions of every subset."""

from itertools import combinations

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.diagnostics import expected_information, relevance
from milzoo.diagnostics.measures.relevance import removed_one_by_one
from milzoo.inference import coordinate_ascent
from milzoo.inference.prediction import Prediction
from milzoo.models import VGPMIL, VWSGP, Gaussian

SIZES = [3, 6, 4, 14, 1, 5]


@pytest.fixture(scope="module")
def bags():
    """Positive where an instance is on the right; bags of one to fourteen."""
    random = np.random.default_rng(2)
    parts = [random.normal(size=(size, 2)) for size in SIZES * 3]
    labels = [int(part[:, 0].max() > 1.0) for part in parts]
    return Bags.from_list(parts, labels=labels)


@pytest.fixture(scope="module")
def posterior(bags):
    return coordinate_ascent(VGPMIL.for_bags(bags, 8), bags, seed=0)


def a_bag(posterior, bags, size, *, is_positive):
    predicted = posterior.predict(bags).bag_probability > 0.5
    found = (bags.bag_sizes == size) & (predicted == is_positive)
    return int(np.flatnonzero(found)[0])


def test_information_is_of_label_and_draw_together():
    draws = np.array([[0.9, 0.5, 0.0, 1.0], [0.2, 0.5, 0.0, 0.0], [0.4, 0.5, 0.0, 1.0]])
    prediction = Prediction(np.full((3, 1), 0.5), draws)
    expected = []
    for p in draws.T:
        joint = np.stack([p, 1 - p]) / 3  # of label and draw
        independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
        there = joint > 0
        expected.append(np.sum(joint[there] * np.log(joint[there] / independent[there])))
    np.testing.assert_allclose(expected_information(prediction), expected, atol=1e-14)
    assert expected_information(prediction)[1] == pytest.approx(0.0, abs=1e-15)


def test_one_draw_tells_of_no_information():
    with pytest.raises(ValueError, match="prediction has one draw"):
        expected_information(Prediction(np.full((1, 1), 0.5), np.full((1, 2), 0.5)))


@pytest.mark.parametrize("is_positive", [True, False])
def test_no_larger_subset_may_go(posterior, bags, is_positive):
    bag = a_bag(posterior, bags, 5, is_positive=is_positive)
    found = relevance(posterior, bags, bag)
    instances = bags.instances[found.rows]

    def probability(kept):
        return float(posterior.predict(Bags.from_list([instances[list(kept)]])).bag_probability[0])

    stays = tuple(np.flatnonzero(~found.may_go))
    assert found.is_exact and found.probability_without == pytest.approx(probability(stays))
    assert (found.probability_without > 0.5) == (found.bag_probability > 0.5) == is_positive
    for fewer in range(1, len(stays)):
        for kept in combinations(range(5), fewer):
            assert (probability(kept) > 0.5) != is_positive
    rivals = [probability(kept) for kept in combinations(range(5), len(stays))]
    same = [one for one in rivals if (one > 0.5) == is_positive]
    closest = min(same, key=lambda one: abs(one - found.bag_probability))
    assert closest == pytest.approx(found.probability_without)


def test_a_long_bag_loses_instances_one_by_one(posterior, bags):
    bag = a_bag(posterior, bags, 14, is_positive=True)
    found = relevance(posterior, bags, bag)
    kept = bags.instances[found.rows][~found.may_go]
    assert not found.is_exact and found.may_go.any()
    left = posterior.predict(Bags.from_list([kept])).bag_probability[0]
    assert found.probability_without == pytest.approx(float(left)) and left > 0.5
    if len(kept) > 1:
        without = Bags.from_list([np.delete(kept, n, axis=0) for n in range(len(kept))])
        assert (posterior.predict(without).bag_probability < 0.5).all()


def test_the_least_mover_stays_where_losses_cross():
    """Of three: without the first 0.49, without the second 0.60, and then the side is lost."""

    def probabilities(kept):
        without_second = np.where(kept.sum(axis=1) == 2, 0.60, 0.3)
        found = np.where(kept[:, 1], 0.1, without_second)
        return np.where(kept[:, 1] & kept[:, 2] & ~kept[:, 0], 0.49, found)

    kept, left = removed_one_by_one(probabilities, 3, 0.52, 0.5)
    assert kept.tolist() == [True, False, True] and left == 0.60


def test_an_only_instance_must_stay(posterior, bags):
    bag = int(np.flatnonzero(bags.bag_sizes == 1)[0])
    found = relevance(posterior, bags, bag)
    assert not found.may_go.any() and found.probability_without == found.bag_probability


def test_another_threshold_is_kept_to(posterior, bags):
    bag = a_bag(posterior, bags, 5, is_positive=True)
    whole = float(posterior.predict(bags).bag_probability[bag])
    strict = relevance(posterior, bags, bag, threshold=0.99 * whole)
    assert strict.probability_without >= 0.99 * whole
    assert strict.may_go.sum() <= relevance(posterior, bags, bag).may_go.sum()


def test_a_model_of_targets_is_refused(bags):
    with_targets = bags.with_targets(np.arange(18.0))
    model = VWSGP.for_bags(with_targets, 4, likelihood=Gaussian(1.0))
    with pytest.raises(ValueError, match="posterior is of vwsgp for targets"):
        relevance(coordinate_ascent(model, with_targets, seed=0), bags, 0)


def test_what_is_no_bag_or_threshold_is_refused(posterior, bags):
    with pytest.raises(ValueError, match="bag is 99; expected the number, 0 to 17, of a bag"):
        relevance(posterior, bags, 99)
    with pytest.raises(ValueError, match=r"threshold is 1\.5; expected"):
        relevance(posterior, bags, 0, threshold=1.5)
