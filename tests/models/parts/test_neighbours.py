"""Neighbourhood scores against double loops and finite differences; errors."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.models.parts import neighbours
from milzoo.models.parts.neighbours import NeighbourScore, ParzenScore, scored


@pytest.fixture(scope="module", params=[2, 20])
def bags(request):
    """Bags of 1 to 12 instances that lie close together, so that own bags crowd the nearest."""
    random = np.random.default_rng(0)
    parts = [
        random.normal(size=request.param) + 0.3 * random.normal(size=(size, request.param))
        for size in (1, 12, 3, 5, 2, 7, 4, 1, 9)
    ]
    return Bags.from_list(parts, labels=[1, 1, 0, 1, 0, 0, 1, 0, 1], names=list("abcdefghi"))


@pytest.fixture(scope="module")
def points(bags):
    return np.random.default_rng(1).normal(size=(15, bags.num_features))


def log_transform(distance):
    return jnp.log1p(distance)


def of_loops(neighbourhood_score, point, reference, left_out=None):
    """f by the definition."""
    distances = ([], [])
    in_cube = [0, 0]
    for bag, (instances, label) in enumerate(
        zip(reference.to_list(), reference.labels, strict=True)
    ):
        for instance in instances:
            if bag != left_out:
                distances[label].append(np.sqrt(((point - instance) ** 2).sum()))
                if isinstance(neighbourhood_score, ParzenScore):
                    in_cube[label] += (np.abs(point - instance) <= neighbourhood_score.width).all()
    if isinstance(neighbourhood_score, ParzenScore):
        return (in_cube[1] - in_cube[0]) / reference.num_instances
    transform = np.log1p if neighbourhood_score.transform else (lambda distance: distance)
    votes = [
        transform(np.array(sorted(of_label)[: neighbourhood_score.k])).sum()
        for of_label in distances
    ]
    return votes[0] - votes[1]


SCORES = [
    NeighbourScore(k=1),
    NeighbourScore(k=4),
    NeighbourScore(k=3, transform=log_transform),
    ParzenScore(width=0.7),
]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("neighbourhood_score", SCORES)
def test_scores_are_those_of_a_double_loop(neighbourhood_score, bags, points, monkeypatch):
    monkeypatch.setattr(neighbours, "_PAIRS", 200)
    monkeypatch.setattr(neighbours, "_ROWS", 7)
    expected = [of_loops(neighbourhood_score, point, bags) for point in points]
    np.testing.assert_allclose(neighbourhood_score.scores(points, bags), expected, atol=1e-12)
    own = [
        of_loops(neighbourhood_score, point, bags, left_out)
        for point, left_out in zip(bags.instances, bags.bag_index, strict=True)
    ]
    np.testing.assert_allclose(neighbourhood_score.own_scores(bags), own, atol=1e-12)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("neighbourhood_score", SCORES[:3])
def test_the_gradient_is_a_finite_difference(neighbourhood_score, bags, points):
    value, gradient = neighbourhood_score.value_and_gradient(
        points, neighbourhood_score.neighbours(points, bags)
    )
    np.testing.assert_allclose(value, neighbourhood_score.scores(points, bags), atol=1e-12)
    step = 1e-5
    for feature in range(bags.num_features):
        move = step * np.eye(bags.num_features)[feature]
        ahead, behind = (neighbourhood_score.scores(points + side * move, bags) for side in (1, -1))
        np.testing.assert_allclose(gradient[:, feature], (ahead - behind) / (2 * step), atol=1e-8)


def test_coinciding_neighbours_do_not_enter_the_gradient(bags):
    neighbourhood_score = NeighbourScore(k=2)
    points = bags.instances[:5]
    nearest = neighbourhood_score.neighbours(points, bags)
    _, gradient = neighbourhood_score.value_and_gradient(points, nearest)
    for point, found, negative, positive in zip(points, gradient, *nearest, strict=True):
        away = [(1, z) for z in negative] + [(-1, z) for z in positive if (z != point).any()]
        expected = sum(s * (point - z) / np.linalg.norm(point - z) for s, z in away)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_scored_bags_have_a_feature_for_each_score(bags):
    among = scored(SCORES, bags)
    others = scored(SCORES, bags, replace(bags, labels=None))
    assert among.instances.shape == others.instances.shape == (bags.num_instances, len(SCORES))
    np.testing.assert_array_equal(among.labels, bags.labels)
    assert others.labels is None
    np.testing.assert_array_equal(among.instances[:, 3], SCORES[3].own_scores(bags))
    np.testing.assert_array_equal(others.instances[:, 1], SCORES[1].scores(bags.instances, bags))


def test_translations_and_rotations_change_nothing(bags, points):
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(bags.num_features,) * 2))[0]
    transformed = replace(bags, instances=bags.instances @ rotation + 3.0)
    neighbourhood_score = NeighbourScore(k=3)
    np.testing.assert_allclose(
        neighbourhood_score.scores(points @ rotation + 3.0, transformed),
        neighbourhood_score.scores(points, bags),
        atol=1e-11,
    )


# ------------------------------------------------------------------ what they refuse


def test_parameters_out_of_range_are_refused():
    with pytest.raises(
        ValueError, match=r"NeighbourScore k is 0; expected an integer of at least 1"
    ):
        NeighbourScore(k=0)
    with pytest.raises(ValueError, match=r"ParzenScore width is -1.0; expected a positive"):
        ParzenScore(width=-1.0)


@pytest.mark.parametrize("neighbourhood_score", [NeighbourScore(), ParzenScore(1.0)])
def test_missing_labels_and_other_widths_are_refused(neighbourhood_score, bags, points):
    unlabelled = replace(bags, labels=None)
    with pytest.raises(
        ValueError, match="bags have no labels; neighbourhood scores need bags with label 0"
    ):
        neighbourhood_score.scores(points, unlabelled)
    with pytest.raises(
        ValueError, match="bags have no labels; neighbourhood scores need bags with label 0"
    ):
        neighbourhood_score.own_scores(unlabelled)
    with pytest.raises(ValueError, match=r"points have shape \(15, 1\); expected \(P, "):
        neighbourhood_score.scores(points[:, :1], bags)


def test_too_few_instances_are_refused(bags, points):
    few = bags.select([0, 2, 3])
    with pytest.raises(ValueError, match="k is 4, but bags with label 0 have 3 instances"):
        NeighbourScore(k=4).scores(points, few)
    with pytest.raises(ValueError, match="k is 2, but without bag 'c' 0 instances are left in bag"):
        NeighbourScore(k=2).own_scores(few)


def test_folds_of_other_sizes_share_a_program(bags, compilations):
    score = NeighbourScore(k=2)
    score.own_scores(bags)
    before = compilations.number
    score.own_scores(bags[:8])
    score.scores(np.ones((3, bags.num_features)), bags[:7])
    assert compilations.number == before
