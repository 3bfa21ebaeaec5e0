"""Prototypes: local maxima, the four clusters of the scene, radii by trial."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags, load
from milzoo.estimators import PrototypeLearner
from milzoo.estimators.prototypes import Peaks, Prototypes, find_radii, gradient_ascent
from milzoo.models import NeighbourScore
from scipy.spatial.distance import cdist

SCORE = NeighbourScore(k=6, transform=jnp.log1p)
CENTRES = np.array([[-4.0, 4.0], [4.0, 4.0], [-4.0, -4.0], [2.2, -0.6]])


@pytest.fixture(scope="module")
def scene():
    return load("venkatesan2015")


@pytest.fixture(scope="module")
def peaks(scene):
    return PrototypeLearner(SCORE, separation=1.0).find_peaks(scene)


def test_positive_clusters_are_among_the_first_six_peaks(peaks):
    first = cdist(CENTRES, peaks.points[:6])
    # Within two and a half sds, as 96 % of a cluster's instances are.
    assert (first.min(axis=1) < 2.5 * np.array([0.45, 0.45, 0.45, 0.35])).all()
    assert len(np.unique(first.argmin(axis=1))) == 4


def test_gradient_ascent_ends_at_local_maxima(scene):
    random = np.random.default_rng(0)
    starts = random.normal(size=(40, 2)) * 3
    ends = gradient_ascent(SCORE, scene, starts, first_step=0.5)
    assert (np.diff(ends.objective) <= 0).all()
    np.testing.assert_allclose(SCORE.scores(ends.points, scene), ends.objective, atol=1e-12)
    around = ends.points[:, None] + 1e-2 * random.normal(size=(40, 50, 2))
    near = SCORE.scores(around.reshape(-1, 2), scene).reshape(40, 50)
    # Along a kink the steps get ever shorter: the end is right to 1e-3 of the score's range.
    slack = 1e-3 * np.ptp(SCORE.scores(scene.instances, scene))
    assert (near.max(axis=1) - ends.objective < slack).mean() > 0.9


def test_gradient_ascent_never_ends_below_its_start(scene):
    starts = scene.instances[scene.instance_labels == 1]
    ends = gradient_ascent(SCORE, scene, starts, first_step=0.5, max_steps=7)
    begun = np.sort(SCORE.scores(starts, scene))[::-1]
    assert (ends.objective >= begun).all()  # both sorted
    assert (ends.objective > begun).mean() > 0.5


def test_ascent_under_plain_distances_leaves_the_instances(scene):
    """The paper claims for Ψ(d) = d that peaks lie among positive instances: they do not."""
    plain = gradient_ascent(NeighbourScore(k=6), scene, CENTRES[:3], first_step=0.5)
    concave = gradient_ascent(SCORE, scene, CENTRES[:3], first_step=0.5)
    positive = scene.instances[scene.instance_labels == 1]
    # Four sds of a cluster from the nearest, and within one.
    assert cdist(plain.points, positive).min(axis=1).max() > 1.8
    assert cdist(concave.points, positive).min(axis=1).max() < 0.45


def test_of_close_peaks_the_highest_is_left():
    points = np.array([[0.0], [1.0], [1.8], [5.0]])
    left = Peaks(points, np.array([4.0, 3.0, 2.0, 1.0]), np.ones((4, 1))).suppressed(1.5)
    assert left.points.ravel().tolist() == [0.0, 1.8, 5.0]
    assert left.objective.tolist() == [4.0, 2.0, 1.0]


def test_one_radius_is_the_best_that_trying_finds():
    random = np.random.default_rng(1)
    for min_positive in (1, 2):
        bags = Bags.from_list([random.normal(size=(n, 2)) for n in random.integers(1, 5, size=12)])
        labels = random.integers(0, 2, size=12)
        distance = np.linalg.norm(bags.instances, axis=1)[:, None]
        (radius,) = find_radii(distance, bags, labels, min_positive)

        def error(tried, distance=distance, bags=bags, labels=labels, least=min_positive):
            counts = np.bincount(bags.bag_index, distance[:, 0] <= tried)
            return np.mean((counts >= least) != (labels == 1))

        assert error(radius) == min(error(tried) for tried in [-1.0, *distance[:, 0]])


def test_several_radii_leave_fewer_errors_than_one(scene, peaks):
    labels = scene.labels
    distance = cdist(scene.instances, peaks.points[:6])

    def error(radii):
        inside = (distance <= radii).any(axis=1)
        return np.mean((np.bincount(scene.bag_index, inside) >= 1) != (labels == 1))

    radii = find_radii(distance, scene, labels, 1)
    alone = [
        error(np.where(np.arange(6) == n, find_radii(distance[:, [n]], scene, labels, 1), -np.inf))
        for n in range(6)
    ]
    assert error(radii) <= min(alone) - 0.1
    # No single radius takes another error away.
    for n in range(6):
        for tried in [-np.inf, *distance[:, n]]:
            assert error(np.where(np.arange(6) == n, tried, radii)) >= error(radii)


def test_predictions_need_the_prototypes_alone(scene):
    training, test = scene.split(0.7, seed=0)
    learner = PrototypeLearner(SCORE, separation=1.0, max_prototypes=6)
    classifier = learner.fit(training)
    peaks, radii = classifier.prototypes_.peaks, classifier.prototypes_.radii
    assert peaks.points.shape == (6, 2)
    inside = (cdist(test.instances, peaks.points) <= radii).any(axis=1)
    np.testing.assert_array_equal(classifier.predict_instances(test), inside)
    np.testing.assert_array_equal(
        classifier.predict(test), np.bincount(test.bag_index, inside) >= 1
    )
    # Chance would be a half of 24: 20 right has a chance of 8e-4, and the seed is fixed.
    assert (classifier.predict(test) == test.labels).mean() >= 20 / 24


def test_bad_input_is_refused(scene):
    with pytest.raises(ValueError, match=r"PrototypeLearner separation is 0.0; expected a pos"):
        PrototypeLearner(SCORE, separation=0.0).fit(scene)
    with pytest.raises(ValueError, match="max_prototypes is 0; expected"):
        PrototypeLearner(SCORE, 1.0, max_prototypes=0).fit(scene)
    with pytest.raises(ValueError, match="bags have no labels; prototypes are looked for from"):
        PrototypeLearner(SCORE, 1.0).find_peaks(replace(scene, labels=None))


def test_separation_is_in_the_units_of_features():
    """Whatever the scales are."""
    points, objective = np.array([[0.0], [0.5]]), np.array([2.0, 1.0])
    for scale in (0.1, 1.0, 4.0):
        peaks = Peaks(points, objective, np.full((2, 1), scale))
        assert len(peaks.suppressed(0.6).points) == 1
        assert len(peaks.suppressed(0.4).points) == 2


def test_an_instance_at_the_radius_is_positive():
    """Distances 2 and 3 from the one prototype, whose radius is 2."""
    learner = PrototypeLearner(SCORE, separation=1.0)
    learner.classes_, learner.n_features_in_ = np.array([0, 1]), 2
    peaks = Peaks(np.zeros((1, 2)), np.zeros(1), np.ones((1, 2)))
    learner.prototypes_ = Prototypes(peaks, np.array([2.0]))
    bags = Bags.from_list([[[2.0, 0.0]], [[0.0, 3.0]]])
    assert learner.decision_function(bags).tolist() == [0.0, -1.0]
    assert learner.predict(bags).tolist() == [1, 0]
    assert learner.predict_instances(bags).tolist() == [1, 0]
