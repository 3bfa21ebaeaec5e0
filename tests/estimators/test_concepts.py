"""Concepts: gradients at peaks, and why the peaks of the scene are hard to find."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags, load, simulate, simulate_instances
from milzoo.estimators import EMDD, DiverseDensityLearner
from milzoo.estimators.concepts import ConceptSearch, nearest_in_bags
from milzoo.estimators.prototypes import Peaks, Prototypes, instances_of_positive_bags
from milzoo.models import DiverseDensity
from numpyro.handlers import substitute
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

CENTRES = np.array([[-4.0, 4.0], [4.0, 4.0], [-4.0, -4.0], [2.2, -0.6]])
TRUTH = {"concept": np.array([0.3, -0.5]), "scale": np.array([1.5, 0.6])}


@pytest.fixture(scope="module")
def scene():
    return load("venkatesan2015")


@pytest.fixture(scope="module")
def bags():
    """Sixty bags whose labels follow from one concept."""
    design = simulate_instances(60, range(1, 5), num_features=2, seed=0)
    return simulate(substitute(DiverseDensity(), TRUTH), design, seed=1)[0]


def chance_of_bags(point, scale, bags, *, by_nearest):
    """P(Y_b = 1) by a loop."""
    near = np.exp(-(scale**2 * (bags.instances - point) ** 2).sum(axis=1))
    found = []
    for b in range(bags.num_bags):
        own = near[bags.bag_index == b]
        found.append(own.max() if by_nearest else 1 - np.prod(1 - own))
    return np.array(found)


def log_likelihood_of(learner, point, scale, bags):
    """The log likelihood that a learner maximises, by a loop."""
    chance = chance_of_bags(point, scale, bags, by_nearest=isinstance(learner, EMDD))
    noise, labels = learner.label_noise, bags.labels
    return np.log(noise + (1 - 2 * noise) * np.where(labels == 1, chance, 1 - chance)).sum()


def moved(point, scale, step):
    """Point and scales after a step in units of the scales."""
    return point + step[:2] / scale, scale * np.exp(step[2:])


LEARNERS = [
    DiverseDensityLearner(separation=0.5),
    DiverseDensityLearner(separation=0.5, learns_scales=False),
    DiverseDensityLearner(separation=0.5, label_noise=0.05),
    EMDD(separation=0.5),
    EMDD(separation=0.5, learns_scales=False, label_noise=0.05),
]


@pytest.fixture(scope="module", params=LEARNERS, ids=str)
def fitted(request, bags):
    return request.param, request.param.find_peaks(bags)


@pytest.mark.slow
def test_peaks_are_sorted_by_their_log_likelihood(fitted, bags):
    learner, peaks = fitted
    expected = [
        log_likelihood_of(learner, point, scale, bags)
        for point, scale in zip(peaks.points, peaks.scales, strict=True)
    ]
    np.testing.assert_allclose(peaks.objective, expected, rtol=1e-8)
    assert (np.diff(peaks.objective) <= 0).all()
    if not learner.learns_scales:
        assert (peaks.scales == learner.scale).all()


@pytest.mark.in_ci
@pytest.mark.slow_but_first
def test_log_likelihood_at_points_takes_the_initial_scales(fitted, bags):
    learner, _ = fitted
    points = np.random.default_rng(2).normal(size=(70, 2))
    expected = [log_likelihood_of(learner, point, np.ones(2), bags) for point in points]
    np.testing.assert_allclose(learner.log_likelihood(points, bags), expected, rtol=1e-8)


@pytest.mark.slow
def test_highest_peak_is_likelier_than_the_truth(fitted, bags):
    learner, peaks = fitted
    scale = TRUTH["scale"] if learner.learns_scales else np.ones(2)
    assert peaks.objective[0] > log_likelihood_of(learner, TRUTH["concept"], scale, bags)


def test_searches_start_in_the_smallest_positive_bags():
    """A bag of each size from 1 to 6; those of odd sizes are positive, and far apart."""
    own = [
        np.full((size, 2), 10.0 * size) + np.arange(size)[:, None] for size in (6, 5, 4, 3, 2, 1)
    ]
    some = Bags.from_list(own, np.arange(6) % 2)
    np.testing.assert_array_equal(
        instances_of_positive_bags(some, 2), np.concatenate([own[3], own[5]])
    )
    learner = DiverseDensityLearner(0.5, learns_scales=False, label_noise=0.05, start_bags=1)
    np.testing.assert_allclose(learner.find_peaks(some).points, own[5], atol=1e-4)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
def test_gradients_vanish_at_peaks(fitted, bags):
    """All peaks are near the instances."""
    learner, peaks = fitted
    low, high = bags.instances.min(axis=0), bags.instances.max(axis=0)
    assert (np.abs(peaks.points - (low + high) / 2) <= 1.5 * (high - low)).all()
    if isinstance(learner, EMDD):
        return  # its rounds may end short of a peak; the next test has them
    moves = 1e-5 * np.eye(4 if learner.learns_scales else 2, 4)
    for point, _, scale in zip(*peaks, strict=True):

        def log_likelihood(step, point=point, scale=scale):
            return log_likelihood_of(learner, *moved(point, scale, step), bags)

        gradient = [(log_likelihood(move) - log_likelihood(-move)) / 2e-5 for move in moves]
        np.testing.assert_allclose(gradient, 0.0, atol=2e-3)  # at rest is below 1e-3


@pytest.mark.slow
def test_a_scale_that_is_not_learned_stays(bags):
    learner = DiverseDensityLearner(separation=0.5, scale=2.0, learns_scales=False)
    peaks = learner.find_peaks(bags)
    np.testing.assert_array_equal(peaks.scales, 2.0)
    np.testing.assert_allclose(peaks.objective, learner.log_likelihood(peaks.points, bags))


@pytest.mark.parametrize("label_noise", [0.0, 0.05])
def test_distances_by_products_are_those_by_differences(bags, label_noise):
    """Far from the start too, and on an instance, where the log odds end."""
    search = ConceptSearch(learns_scales=False, label_noise=label_noise, max_steps=1)
    with jax.enable_x64(True):
        scale = jnp.array([1.5, 0.6])
        start = {"concept": jnp.asarray(bags.instances[0]), "scale": scale}
        by_products = jax.value_and_grad(search._by_products(start, bags))
        by_differences = jax.value_and_grad(partial(search.log_likelihood, bags=bags))
        for point in (
            bags.instances[0],
            bags.instances[0] + 0.3,
            bags.instances[5] + 1e-3,
            -TRUTH["concept"],
        ):
            concept = {"concept": jnp.asarray(point), "scale": scale}
            found, gradient = by_products(concept)
            expected, expected_gradient = by_differences(concept)
            np.testing.assert_allclose(found, expected, rtol=1e-9)
            np.testing.assert_allclose(
                gradient["concept"], expected_gradient["concept"], rtol=1e-6, atol=1e-9
            )


@pytest.mark.in_ci
@pytest.mark.parametrize("kind", [DiverseDensityLearner, EMDD])
def test_another_fold_and_scale_compile_nothing(bags, kind, compilations):
    learner = kind(separation=0.5, label_noise=0.01)
    learner.find_peaks(bags[:41])
    before = compilations.number
    learner.set_params(scale=0.7).find_peaks(bags[17:])
    assert compilations.number == before


@pytest.mark.slow
def test_another_round_of_em_dd_raises_no_likelihood(bags):
    """SciPy maximises with the nearest instances alone; the result is judged with all instances."""
    learner = EMDD(separation=0.5)
    for point, log_likelihood, scale in zip(
        *learner.find_peaks(bags).select(slice(5)), strict=True
    ):
        with jax.enable_x64(True):
            nearest = nearest_in_bags(
                {"concept": jnp.array(point), "scale": jnp.array(scale)}, bags
            )
        alone = Bags.from_list([one[None] for one in np.asarray(nearest)], labels=bags.labels)

        def loss(step, point=point, scale=scale, alone=alone):
            return -log_likelihood_of(learner, *moved(point, scale, step), alone)

        step = minimize(loss, np.zeros(4), method="L-BFGS-B").x
        again = log_likelihood_of(learner, *moved(point, scale, step), bags)
        assert again <= log_likelihood + 1e-6 * abs(log_likelihood)


@pytest.mark.in_ci
def test_the_nearest_instance_of_each_bag_is_found(bags):
    scale = np.array([0.3, 2.0])
    with jax.enable_x64(True):
        concept = {"concept": jnp.ones(2), "scale": jnp.asarray(scale)}
        found = np.asarray(nearest_in_bags(concept, bags))
    distance = np.linalg.norm(scale * (bags.instances - 1.0), axis=1)
    for b in range(bags.num_bags):
        own = bags.bag_index == b
        np.testing.assert_array_equal(found[b], bags.instances[own][distance[own].argmin()])


def reached(points):
    """Which of the clusters have a peak within two and a half sds."""
    return (cdist(CENTRES, points).min(axis=1) < 2.5 * np.array([0.45, 0.45, 0.45, 0.35])).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "expected"), [(1.0, [False] * 4), (4.0, [False] * 3 + [True])])
def test_clusters_at_the_rim_are_no_peaks(scene, scale, expected):
    """About half of the positive bags have each; the gradient of others grows with distance."""
    exact = DiverseDensityLearner(separation=1.0, scale=scale, learns_scales=False)
    assert reached(exact.find_peaks(scene).points) == expected
    nearest = cdist(CENTRES, scene.instances) < 2.5 * 0.45
    for near in nearest:
        has_one = np.bincount(scene.bag_index, near)[scene.labels == 1] > 0
        assert 0.4 < has_one.mean() < 0.6


@pytest.mark.slow
def test_with_label_noise_all_four_are(scene):
    learner = DiverseDensityLearner(separation=1.0, learns_scales=False, label_noise=0.01)
    assert reached(learner.find_peaks(scene).points[:6]) == [True] * 4


def test_features_that_a_peak_ignores_separate_nothing():
    points = np.array([[0.0, 0.0], [0.2, 50.0], [3.0, 0.0]])
    scales = np.array([[2.0, 1e-4], [2.0, 2.0], [2.0, 2.0]])
    left = Peaks(points, np.array([3.0, 2.0, 1.0]), scales).suppressed(1.0)
    assert left.points[:, 0].tolist() == [0.0, 3.0]
    # The other way round they are apart: by 50 in a feature that the higher one knows.
    other = Peaks(points, np.array([3.0, 2.0, 1.0]), scales[::-1]).suppressed(1.0)
    assert len(other.points) == 3


PEAKS = Peaks(np.array([[0.0, 0.0], [1.0, 1.0]]), np.zeros(2), np.array([[1.0, 0.0], [2.0, 3.0]]))


@pytest.mark.in_ci
def test_distances_are_in_the_scales_of_each_peak():
    """Depths are in the units of the features."""
    instances = np.array([[3.0, 7.0], [1.0, 2.0]])
    expected = np.array([[3.0, np.hypot(4.0, 18.0)], [1.0, 3.0]])
    np.testing.assert_allclose(PEAKS.distances(instances), expected)
    prototypes = Prototypes(PEAKS, np.array([2.5, 6.0]))
    found = prototypes.depths(Bags.from_list([instances[:1], instances[1:]]))
    # Of the first its own prototype's −0.5; of the second 1.5 of the one, and 3 / 3 of the other.
    np.testing.assert_allclose(found, [-0.5, 1.5])


@pytest.mark.in_ci
def test_its_prototypes_classify(bags):
    classifier = DiverseDensityLearner(separation=0.5, max_prototypes=1).fit(bags)
    (point,), (scale,), (radius,) = (
        classifier.prototypes_.peaks.points,
        classifier.prototypes_.peaks.scales,
        classifier.prototypes_.radii,
    )
    inside = np.linalg.norm(scale * (bags.instances - point), axis=1) <= radius
    expected = np.bincount(bags.bag_index, inside) >= 1
    np.testing.assert_array_equal(classifier.predict(bags), expected)
    # No radius does better, the best constant among them.
    fractions = [np.mean(bags.labels), 1 - np.mean(bags.labels)]
    assert np.mean(expected == bags.labels) > max(fractions)


@pytest.mark.slow
def test_bad_input_is_refused(bags):
    with pytest.raises(ValueError, match=r"EMDD scale is 0.0; expected a positive finite number"):
        EMDD(separation=1.0, scale=0.0).fit(bags)
    with pytest.raises(
        ValueError, match=r"DiverseDensityLearner label_noise is 0.5; expected 0 or"
    ):
        DiverseDensityLearner(separation=1.0, label_noise=0.5).fit(bags)
    with pytest.raises(ValueError, match="bags have no labels; prototypes are looked for from"):
        EMDD(separation=1.0).find_peaks(replace(bags, labels=None))
    with pytest.warns(UserWarning, match="all 1 bags have label 0"):
        nobody = Bags.from_list([np.zeros((1, 2))], labels=[0])
    with pytest.raises(ValueError, match="bags have no positive one among them; prototypes are"):
        EMDD(separation=1.0).find_peaks(nobody)
    with pytest.raises(ValueError, match=r"none of .* searches ended at a peak near the"):
        DiverseDensityLearner(separation=1.0, max_steps=1).fit(bags)
    with pytest.raises(ValueError, match="bags have no labels; prototypes are looked for from"):
        EMDD(separation=1.0).log_likelihood(np.zeros((1, 2)), replace(bags, labels=None))
    wide = Bags.from_list([np.zeros((1, 3))])
    fitted = EMDD(separation=1.0, learns_scales=False, max_prototypes=1).fit(bags)
    with pytest.raises(ValueError, match="X has 3 features, but EMDD is expecting 2 features as"):
        fitted.predict(wide)
    with pytest.raises(ValueError, match="max_steps is 0; expected"):
        EMDD(separation=1.0, max_steps=0).fit(bags)
