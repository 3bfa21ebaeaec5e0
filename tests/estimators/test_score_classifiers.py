"""Thresholds on a score: the fewest errors by trying all, ties, small bags, the elbow."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.datasets import Bags, load
from milzoo.estimators import Elbow, ScoreLearner, choose_by_elbow
from milzoo.estimators.score_classifiers import Threshold, nth_highest
from milzoo.models import NeighbourScore, ParzenScore

INFINITE = np.inf


@pytest.fixture(scope="module")
def bags():
    return load("kandemir2014")


def test_no_threshold_has_fewer_errors():
    random = np.random.default_rng(0)
    for _ in range(300):
        scores = random.integers(0, 6, size=random.integers(1, 9)).astype(float)
        scores[random.random(len(scores)) < 0.1] = -INFINITE
        labels = random.integers(0, 2, size=len(scores))
        tried = [np.mean((scores >= t) != (labels == 1)) for t in np.arange(-0.5, 7)]
        found = Threshold.learn(scores, labels)
        assert found.error == min(tried)
        assert found.error == np.mean((scores >= found.value) != (labels == 1))


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([1, 2, 3, 6], [0, 0, 1, 1], 2.5),
        ([1, 2, 4, 5], [0, 1, 0, 1], 4.5),  # 1.5 in as wide a gap: the highest
        ([1, 4, 5, 6], [0, 1, 0, 1], 2.5),  # the wider gap
        ([1, 2], [1, 1], 1.0),
        ([1, 2], [0, 0], INFINITE),
        ([-INFINITE, 2], [0, 1], 2.0),
        ([-INFINITE], [1], INFINITE),
        ([INFINITE, 1, 2], [0, 0, 1], 1.5),
    ],
)
def test_the_threshold_is_half_way_in_the_widest_gap(scores, labels, expected):
    assert Threshold.learn(np.array(scores, dtype=float), np.array(labels)).value == expected


def test_scores_are_ranked_within_bags():
    bags = Bags.from_list([np.zeros((3, 1)), np.zeros((1, 1)), np.zeros((2, 1))])
    scores = np.array([1.0, 3.0, 2.0, 9.0, 5.0, 4.0])
    assert nth_highest(scores, bags, 1).tolist() == [3.0, 9.0, 5.0]
    assert nth_highest(scores, bags, 2).tolist() == [2.0, -INFINITE, 4.0]
    assert nth_highest(scores, bags, 3).tolist() == [1.0, -INFINITE, -INFINITE]


@pytest.mark.parametrize("min_positive", [1, 2])
@pytest.mark.parametrize("neighbourhood_score", [NeighbourScore(k=3), ParzenScore(width=0.5)])
def test_bag_is_positive_if_enough_instances_reach_the_threshold(
    bags, neighbourhood_score, min_positive
):
    training, test = bags.split(0.7, seed=0)
    classifier = ScoreLearner(neighbourhood_score, min_positive).fit(training)
    scores = neighbourhood_score.scores(test.instances, training)
    is_positive = scores >= classifier.threshold_.value
    np.testing.assert_array_equal(classifier.predict_instances(test), is_positive)
    counts = np.bincount(test.bag_index, is_positive)
    np.testing.assert_array_equal(classifier.predict(test), counts >= min_positive)


class FirstFeature:
    """A neighbourhood score whose values are known."""

    def scores(self, points, bags):
        return points[:, 0]

    def own_scores(self, bags):
        return bags.instances[:, 0]


def test_a_score_at_the_threshold_is_positive():
    """All scores are 1, and T = 1 has one error, where T = ∞ has two."""
    bags = Bags.from_list([np.ones((1, 1))] * 3, labels=[1, 1, 0])
    classifier = ScoreLearner(FirstFeature()).fit(bags)
    assert classifier.decision_function(bags).tolist() == [0.0, 0.0, 0.0]
    assert classifier.predict(bags).tolist() == [1, 1, 1]
    assert classifier.predict_instances(bags).tolist() == [1, 1, 1]


def test_training_error_scores_each_bag_without_itself(bags):
    learned = ScoreLearner(NeighbourScore(k=2)).fit(bags)
    highest = [
        NeighbourScore(k=2).scores(own, bags.select(np.arange(bags.num_bags) != b)).max()
        for b, own in enumerate(bags.to_list())
    ]
    wrong = (np.array(highest) >= learned.threshold_.value) != (bags.labels == 1)
    assert learned.threshold_.error == wrong.mean()


def test_labels_of_the_scene_are_found_again(bags):
    """Where chance would be half: 12 of 40 wrong has a chance of 0.8 %, 8 of 40 of 1e-4."""
    assert ScoreLearner(NeighbourScore(k=3)).fit(bags).threshold_.error <= 0.2


def test_the_elbow_is_farthest_below_the_chord(bags):
    neighbourhood_scores = [NeighbourScore(k=k) for k in range(1, 9)]
    found = choose_by_elbow(neighbourhood_scores, bags)
    errors = [
        ScoreLearner(neighbourhood_score).fit(bags).threshold_.error
        for neighbourhood_score in neighbourhood_scores
    ]
    np.testing.assert_array_equal(found.errors, errors)
    chord = np.interp(range(8), [0, 7], [errors[0], errors[-1]])
    assert found.neighbourhood_score == neighbourhood_scores[int(np.argmax(chord - errors))]
    assert isinstance(found, Elbow)


def test_bad_input_is_refused(bags):
    with pytest.raises(ValueError, match="min_positive is 0; expected"):
        ScoreLearner(NeighbourScore(), 0).fit(bags)
    with pytest.raises(ValueError, match="there are no neighbourhood scores to choose from"):
        choose_by_elbow([], bags)
    with pytest.raises(
        ValueError, match="bags have no labels; ScoreLearner needs them where y is None"
    ):
        ScoreLearner(NeighbourScore()).fit(replace(bags, labels=None))
