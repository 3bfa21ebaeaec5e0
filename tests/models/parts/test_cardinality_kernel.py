"""The kernel between bags: all labellings of small ones, symmetry and positive definiteness."""

from itertools import product

import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags
from milzoo.models import (
    RBF,
    CardinalityKernel,
    CardinalityModel,
    MajorityCardinality,
    MeanCardinalityKernel,
    NormalCardinality,
)
from milzoo.models.parts import cardinality_kernel
from scipy.spatial.distance import cdist

SIZES = [1, 3, 6, 2, 4, 9]
WEIGHTS, INTERCEPT = np.array([2.0, -1.0, 1.5]), -0.3


@pytest.fixture(scope="module")
def bags():
    random = np.random.default_rng(0)
    return Bags.from_list([random.normal(size=(size, 3)) for size in SIZES])


def kernel_with(potential):
    model = CardinalityModel(potential, intercept_scale=1.0)
    return CardinalityKernel(model, WEIGHTS, RBF(1.7, 1.2), INTERCEPT)


def labelling_probabilities(instances, potential):
    """Every labelling of a bag and P(y | X), from equations 2, 3 and 4."""
    labellings = np.array(list(product([0, 1], repeat=len(instances))))
    fraction = labellings.mean(axis=1)
    if isinstance(potential, MajorityCardinality):
        either = np.ones_like(fraction)  # C⁺ + C⁻
    else:
        scale = 2 * potential.sigma**2
        either = np.exp(-(fraction**2) / scale) + np.exp(-((fraction - potential.mu) ** 2) / scale)
    weight = either * np.exp(labellings @ (instances @ WEIGHTS + INTERCEPT))
    return labellings, weight / weight.sum()


def brute_force(one, other, potential):
    """Σ P(y | X) P(y' | X') Σ_ij k_x(x_i, x'_j) 1(y_i = y'_j), equations 11 and 14."""
    between = 1.7 * np.exp(-0.5 * cdist(one, other, "sqeuclidean") / 1.2**2)
    (labels, chance), (others, their_chance) = (
        labelling_probabilities(bag, potential) for bag in (one, other)
    )
    total = 0.0
    for y, p in zip(labels, chance, strict=True):
        same = y[None, :, None] == others[:, None, :]
        total += p * (their_chance @ (between * same).sum(axis=(1, 2)))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("potential", [NormalCardinality(0.5, 0.3), MajorityCardinality()])
def test_kernel_is_that_of_all_labellings(bags, potential):
    kernel, parts = kernel_with(potential), bags.to_list()
    joint = np.array([[brute_force(one, other, potential) for other in parts] for one in parts[:5]])
    few = bags.select(np.arange(5))
    np.testing.assert_allclose(kernel.joint(few, bags), joint, rtol=1e-10)
    own = np.sqrt([brute_force(part, part, potential) for part in parts])
    expected = joint / np.outer(own[:5], own)
    np.testing.assert_allclose(kernel(few, bags), expected, rtol=1e-10)


@pytest.mark.in_ci
def test_labels_that_are_surely_opposite_leave_rounding_alone():
    """½ Σ k_x and 2 Σ k_x (p − ½)(p' − ½) cancel: what is left is small beside k of one bag."""
    bags = Bags.from_list([np.full((3, 1), 1.0), np.full((2, 1), -1.0)], labels=[1, 0])
    kernel = CardinalityKernel(CardinalityModel(), np.array([80.0]), RBF(1.0, 10.0))
    positive, negative = (kernel.instance_probability(bags)[n] for n in (0, 4))
    assert positive > 1 - 1e-8 and negative < 1e-8
    exact = np.exp(-0.02) * (positive * negative + (1 - positive) * (1 - negative))
    np.testing.assert_allclose(kernel(bags, bags)[0, 1], exact, atol=1e-15)


@pytest.mark.slow
def test_chunks_change_nothing(bags, monkeypatch):
    kernel = kernel_with(NormalCardinality())
    few = bags.select([1, 3])
    expected = kernel(bags, bags), kernel(few, bags)
    monkeypatch.setattr(cardinality_kernel, "_ROWS", 5)
    for found, whole in zip((kernel(bags, bags), kernel(few, bags)), expected, strict=True):
        np.testing.assert_allclose(found, whole, rtol=1e-13)


@pytest.mark.in_ci
def test_the_kernel_is_symmetric_positive_definite_and_normalised(bags):
    found = kernel_with(NormalCardinality())(bags, bags)
    np.testing.assert_allclose(found, found.T, rtol=1e-13)
    np.testing.assert_allclose(np.diagonal(found), 1.0, rtol=1e-13)
    assert np.linalg.eigvalsh(found).min() > 0


def test_variance_of_the_instance_kernel_cancels(bags):
    one = kernel_with(NormalCardinality())
    other = CardinalityKernel(one.model, WEIGHTS, RBF(50.0, 1.2), INTERCEPT)
    np.testing.assert_allclose(one(bags, bags), other(bags, bags), rtol=1e-13)


# ------------------------------------------------------------------ the mean over draws


@pytest.fixture(scope="module")
def sampled():
    """A model with a prior on each hyper-parameter, and draws of all sites."""
    potential = NormalCardinality(dist.Beta(2.0, 2.0), dist.LogNormal(-2.0, 0.5))
    model = CardinalityModel(potential, dist.HalfNormal(1.0), intercept_scale=1.0)
    random = np.random.default_rng(1)
    sites = ("mu", "sigma", "weight_scale", "intercept")
    draws = {name: random.uniform(0.1, 0.9, size=7) for name in sites}
    return model, draws | {"weights": random.normal(size=(7, 3))}


def test_mean_kernel_is_that_of_kernels(bags, sampled):
    model, draws = sampled
    few = bags.select([1, 3])
    mean = MeanCardinalityKernel.of(model, draws, few, RBF(1.7, 1.2))
    expected = []
    for number in range(7):
        one = {name: float(values[number]) for name, values in draws.items() if name != "weights"}
        kernel = CardinalityKernel(
            model.with_hyperparameters(one),
            draws["weights"][number],
            RBF(1.7, 1.2),
            one["intercept"],
        )
        expected.append((kernel(few, bags), kernel(bags, bags)))
    for found, of_draws in zip(
        (mean(few, bags), mean(bags, bags)), zip(*expected, strict=True), strict=True
    ):
        np.testing.assert_allclose(found, np.mean(of_draws, axis=0), rtol=1e-12)


def test_mean_kernel_knows_whose_labels_taught_it(bags, sampled):
    model, draws = sampled
    kernel = MeanCardinalityKernel.of(model, draws, bags.select([0, 1, 2]), RBF(1.0, 1.0))
    assert kernel.learned_from_labels_of(bags.select([3, 4])) == ""
    turned = Bags.from_list([bags.to_list()[2][::-1], bags.to_list()[4]])
    assert kernel.learned_from_labels_of(turned) == (
        "a kernel learned from the labels of 1 of its bags"
    )


def test_draws_that_are_missing_are_refused(bags, sampled):
    model, draws = sampled
    without = {name: values for name, values in draws.items() if name != "sigma"}
    message = r"'sigma': 0.*expected the same number of draws of each"
    with pytest.raises(ValueError, match=message):
        MeanCardinalityKernel.of(model, without, bags, RBF(1.0, 1.0))
    with pytest.raises(ValueError, match="length_scale of the instance_kernel have priors"):
        MeanCardinalityKernel.of(model, draws, bags, RBF(1.0, dist.HalfNormal(1.0)))


def test_draws_that_are_not_finite_are_refused(bags, sampled):
    model, draws = sampled
    broken = draws | {"mu": np.where(np.arange(7) == 2, np.nan, draws["mu"])}
    with pytest.raises(ValueError, match="draws have some that are not finite"):
        MeanCardinalityKernel.of(model, broken, bags, RBF(1.0, 1.0))


def test_mean_kernel_refuses_bags_of_another_width(bags, sampled):
    kernel = MeanCardinalityKernel.of(*sampled, bags, RBF(1.0, 1.0))
    narrow = Bags.from_list([np.ones((2, 2))])
    with pytest.raises(ValueError, match="bags have 2 features, but there are weights for 3"):
        kernel(bags, narrow)


# ------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((2, 2)), r"shape \(2, 2\); expected \(D,\)"),
        (np.array([1.0, np.nan]), r"shape \(2,\) and some that are not finite"),
    ],
)
def test_weights_that_are_no_vector_of_numbers_are_refused(weights, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        CardinalityKernel(CardinalityModel(), weights, RBF(1.0, 1.0))


def test_priors_are_refused():
    model = CardinalityModel(weight_scale=dist.HalfNormal(1.0))
    with pytest.raises(ValueError, match="weight_scale of the model have priors"):
        CardinalityKernel(model, WEIGHTS, RBF(1.0, 1.0))
    with pytest.raises(ValueError, match="length_scale of the instance_kernel have priors"):
        CardinalityKernel(CardinalityModel(), WEIGHTS, RBF(1.0, dist.HalfNormal(1.0)))


def test_bags_of_another_width_are_refused(bags):
    narrow = Bags.from_list([np.ones((2, 2))])
    with pytest.raises(ValueError, match="bags have 2 features, but there are weights for 3"):
        kernel_with(NormalCardinality())(bags, narrow)
