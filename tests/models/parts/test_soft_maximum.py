"""The soft maximum against integrals on fine grids, and draws against their densities."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.parts.soft_maximum import (
    draw_given_soft_maximum,
    log_odds_of_soft_maximum,
    soft_maximum_rule,
)
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import kstest


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@jax.jit
def log_odds(location, scale, bag_index, of_bags, rule):
    return log_odds_of_soft_maximum(location, scale, bag_index, of_bags.shape[0], rule)


def of_bags(locations, scales, largest=None):
    """log odds of bags with given lists of a and s."""
    index = np.repeat(np.arange(len(locations)), [len(own) for own in locations])
    location, scale = (np.concatenate(each).astype(float) for each in (locations, scales))
    rule = soft_maximum_rule(scale.max() if largest is None else largest)
    return np.asarray(log_odds(location, scale, index, np.zeros(len(locations)), rule))


def gaussian_grid(location, scale, number):
    """Nodes of f and log weights that hold the mass of p(f) e^{±f} as well."""
    nodes = np.linspace(-10.0 - scale, 10.0 + scale, number)
    log_weights = -0.5 * nodes**2
    return location + scale * nodes, log_weights - logsumexp(log_weights)


def by_grid(location, scale, number=4001):
    """log P(T = 1) − log P(T = 0) of one bag of one or two instances, on a grid of f."""
    grids = [gaussian_grid(a, s, number) for a, s in zip(location, scale, strict=True)]
    values = np.stack(np.meshgrid(*[grid[0] for grid in grids], indexing="ij"))
    log_weights = sum(np.meshgrid(*[grid[1] for grid in grids], indexing="ij"))
    total = logsumexp(values, axis=0)
    return logsumexp(log_weights + log_expit(total)) - logsumexp(log_weights + log_expit(-total))


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("scale", [1e-3, 0.3, 0.499, 0.501, 1.0, 2.2, 4.0, 8.0])
def test_one_instance_is_the_logistic_gaussian_integral(scale):
    location = np.array([-200.0, -50.0, -20.0, -13.0, -8.0, -3.0, 0.0, 3.0, 20.0])
    found = of_bags(location[:, None], np.full((9, 1), scale))
    expected = [by_grid([a], [scale], 40_001) for a in location]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("scales", [(0.2, 0.4), (0.3, 1.5), (1.0, 2.5)])
def test_two_instances_are_a_double_integral(scales):
    """One rule for all, made for 2.5: small scales beside large ones."""
    pairs = list(product([-30.0, -4.0, 0.0, 2.0], [-5.0, 0.0, 7.0]))
    found = of_bags(pairs, [scales] * len(pairs), largest=2.5)
    expected = [by_grid(pair, scales, 601) for pair in pairs]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


def test_a_variance_that_takes_too_many_nodes_is_refused():
    with pytest.raises(ValueError, match=r"is up to 1e\+04; expected at most 400, .* smaller vari"):
        soft_maximum_rule(100.0)
    with pytest.raises(ValueError, match="is up to nan"):
        soft_maximum_rule(float("nan"))


def test_without_variance_it_is_the_log_of_the_sum():
    random = np.random.default_rng(0)
    locations = [random.normal(0.0, 4.0, size) for size in (1, 2, 50, 1000)]
    found = of_bags(locations, [np.full(len(own), 1e-7) for own in locations])
    np.testing.assert_allclose(found, [logsumexp(own) for own in locations], atol=1e-7)


@pytest.mark.in_ci
def test_many_instances_equal_the_mean_over_draws():
    """Four bags at 4.5 standard errors of 20,000 draws: a false alarm in 3e-5 of all seeds."""
    random = np.random.default_rng(1)
    locations = [random.normal(-2.0 - np.log(size), 1.0, size) for size in (3, 10, 40, 100)]
    scales = [random.uniform(0.05, 2.0, len(own)) for own in locations]
    for found, a, s in zip(of_bags(locations, scales), locations, scales, strict=True):
        drawn = expit(logsumexp(a + s * random.normal(size=(20_000, len(a))), axis=1))
        assert abs(expit(found) - drawn.mean()) < 4.5 * drawn.std() / np.sqrt(20_000)


INDEX = np.repeat(np.arange(3), [3, 1, 4])


@jax.jit
def derivatives(both, rule):
    """Gradient and Hessian of a combination of the log odds of three bags."""

    def total(both):
        odds = log_odds_of_soft_maximum(*both, INDEX, 3, rule)
        return jnp.sum(jnp.array([1.0, -2.0, 3.0]) * odds)

    return total(both), jax.grad(total)(both), jax.hessian(total)(both)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("largest", [0.4, 2.5])
def test_derivatives_are_those_of_differences(largest):
    random = np.random.default_rng(2)
    rule = soft_maximum_rule(largest)
    point = np.stack([random.normal(-1.0, 2.0, 8), largest * random.uniform(0.1, 1.0, 8)])
    _, gradient, hessian = derivatives(point, rule)
    for place in product(range(2), range(8)):
        step = np.zeros_like(point)
        step[place] = 1e-3
        up, down = derivatives(point + step, rule), derivatives(point - step, rule)
        slope, curve = ((up[k] - down[k]) / 2e-3 for k in (0, 1))
        np.testing.assert_allclose(gradient[place], slope, atol=2e-5)
        np.testing.assert_allclose(hessian[place], curve, atol=2e-5)


@pytest.mark.in_ci
@pytest.mark.parametrize("largest", [0.4, 2.5])
@pytest.mark.parametrize("size", [-1e8, -1e3, 1e3, 1e8])
def test_value_and_derivatives_are_finite_far_out(largest, size):
    location = size * np.linspace(0.5, 1.0, 8)
    scale = largest * np.linspace(0.1, 1.0, 8)
    rule = soft_maximum_rule(largest)
    for found in derivatives(np.stack([location, scale]), rule):
        assert np.isfinite(found).all()
    if size < 0:  # log E S, which is far below 0
        expected = [logsumexp((location + scale**2 / 2)[b == INDEX]) for b in range(3)]
        found = log_odds(location, scale, INDEX, np.zeros(3), rule)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


# ------------------------------------------------------------------ draws

CASES = [
    ([0.3], [0.4], 0),
    ([0.3], [0.4], 1),
    ([1.0], [2.0], 0),
    ([-4.0], [1.5], 1),
    ([0.5, -1.0], [0.45, 1.5], 0),
    ([-1.0, -3.0], [0.45, 2.0], 1),
]
NUM_DRAWS = 20_000


@jax.jit
def drawn(keys, location, scale, label, rule):
    def one(key):
        index = np.zeros(location.shape[0], int)
        return draw_given_soft_maximum(key, location, scale, index, label == 1, rule)

    return jax.vmap(one)(keys)


@pytest.mark.slow
@pytest.mark.parametrize(("location", "scale", "label"), CASES)
def test_draws_have_the_conditional_distribution(location, scale, label):
    """Eight looks, each a false alarm in 1e-5 of all seeds."""
    keys = jax.random.split(jax.random.key(0), NUM_DRAWS)
    a, s = np.array(location), np.array(scale)
    found = np.asarray(drawn(keys, a, s, np.array([label]), soft_maximum_rule(2.5)))
    grids = [gaussian_grid(*each, 801) for each in zip(location, scale, strict=True)]
    values = np.stack(np.meshgrid(*[grid[0] for grid in grids], indexing="ij"))
    log_weights = sum(np.meshgrid(*[grid[1] for grid in grids], indexing="ij"))
    total = logsumexp(values, axis=0)
    density = np.exp(log_weights + log_expit(total if label == 1 else -total))
    for n, (nodes, _) in enumerate(grids):
        own = density.sum(axis=tuple(axis for axis in range(len(a)) if axis != n))
        # The cumulative sum is that of the cells that end half a step beyond the nodes.
        edges = nodes + (nodes[1] - nodes[0]) / 2
        given = np.interp(found[:, n], edges, np.cumsum(own) / own.sum())
        assert kstest(given, "uniform").pvalue > 1e-5
        prior = np.interp(found[:, n], edges, np.cumsum(np.exp(grids[n][1])))
        assert kstest(prior, "uniform").pvalue < 1e-5  # power: it is not the prior
