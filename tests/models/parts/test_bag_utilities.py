"""Utilities given bag labels against truncated normals, integrals, and draws without labels."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.parts.bag_utilities import BagUtilities
from scipy.stats import norm, truncnorm

LOCATION = np.array([0.3, -1.1, -0.4, 0.9, -2.0, -0.2])
SCALE = np.array([1.0, 1.4, 1.1, 1.0, 1.7, 2.0])
INDEX, LABELS = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 1, 1])


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def utilities(location=LOCATION, labels=LABELS):
    return BagUtilities(location, SCALE, INDEX, labels)


def moments_over_signs():
    """P(T) of each bag, and E g: a sum over the signs that the label allows."""
    chance, mean = np.zeros(3), np.zeros(6)
    for bag in range(3):
        own = np.flatnonzero(bag == INDEX)
        for signs in product([0, 1], repeat=len(own)):
            if max(signs) != LABELS[bag]:
                continue
            a, s, positive = LOCATION[own], SCALE[own], np.array(signs) == 1
            weight = norm.cdf(np.where(positive, 1, -1) * a / s).prod()
            low = np.where(positive, -a / s, -np.inf)
            high = np.where(positive, np.inf, -a / s)
            chance[bag] += weight
            mean[own] += weight * truncnorm.mean(low, high, a, s)
    return chance, mean / chance[INDEX]


def test_normaliser_and_mean_are_sums_over_signs():
    chance, mean = moments_over_signs()
    np.testing.assert_allclose(utilities().log_normaliser(), np.log(chance), rtol=1e-12)
    np.testing.assert_allclose(utilities().mean, mean, rtol=1e-10)


def test_density_is_that_of_the_normals_where_labels_agree():
    allowed = np.array([-0.5, -0.1, 2.0, -1.0, -0.3, 0.4])
    expected = norm.logpdf(allowed, LOCATION, SCALE).sum() - np.log(moments_over_signs()[0]).sum()
    assert float(utilities().log_prob(allowed)) == pytest.approx(expected, abs=1e-10)
    for place in (0, 5):  # a positive one in a negative bag; none in a positive bag
        wrong = allowed.copy()
        wrong[place] *= -1
        assert float(utilities().log_prob(wrong)) == -np.inf


def test_gradient_of_the_normaliser_is_the_mean():
    """∂ log Z/∂a_n = (E g_n − a_n)/s_n²."""
    gradient = jax.grad(lambda location: jnp.sum(utilities(location).log_normaliser()))
    expected = (utilities().mean - LOCATION) / SCALE**2
    np.testing.assert_allclose(gradient(LOCATION), expected, rtol=1e-10)


def test_draws_have_the_distribution_of_rejected_ones():
    """Means and mean squares of six: twelve numbers at 4.5 errors, a false alarm in 8e-5."""
    found = np.asarray(utilities().sample(jax.random.key(0), (20_000,)))
    drawn = LOCATION + SCALE * np.random.default_rng(1).normal(size=(400_000, 6))
    largest = np.maximum.reduceat(drawn, [0, 2, 5], axis=1)
    assert ((np.maximum.reduceat(found, [0, 2, 5], axis=1) > 0) == (LABELS == 1)).all()
    for power in (1, 2):
        for bag in range(3):
            own = np.flatnonzero(bag == INDEX)
            kept = drawn[(largest[:, bag] > 0) == LABELS[bag]][:, own] ** power
            ours = found[:, own] ** power
            error = np.sqrt(ours.var(axis=0) / len(ours) + kept.var(axis=0) / len(kept))
            assert (np.abs(ours.mean(axis=0) - kept.mean(axis=0)) < 4.5 * error).all()


@pytest.mark.parametrize("shift", [-40.0, -300.0, 40.0])
def test_all_is_finite_where_labels_are_surprising(shift):
    for labels in (LABELS, 1 - LABELS):
        joint = utilities(LOCATION + shift, labels)
        drawn = np.asarray(joint.sample(jax.random.key(0)))
        assert np.isfinite(joint.log_normaliser()).all() and np.isfinite(joint.mean).all()
        assert ((np.maximum.reduceat(drawn, [0, 2, 5]) > 0) == (labels == 1)).all()
        assert np.isfinite(joint.log_prob(drawn))
