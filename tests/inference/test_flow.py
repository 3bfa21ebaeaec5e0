"""Flows: their density, the order of their coordinates, and what they have over a Gaussian."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.inference import grid, svi
from milzoo.inference.flow import FlowApproximation, _network
from milzoo.inference.gaussian import WhitenedProgram, whitened_program
from milzoo.inference.svi import _newton_gain
from milzoo.models import RBF, VGPMIL, DiverseDensity
from milzoo.models.numerics.tracing import as_pytree
from numpyro.distributions import LogNormal
from scipy.stats import norm

SIZE = 4


@pytest.fixture(scope="module")
def flow() -> FlowApproximation:
    """Two flows of random weights, coordinates in another order."""
    with jax.enable_x64(True):
        initial, _ = _network(SIZE)
        shapes = jax.eval_shape(lambda key: initial(key, (SIZE,))[1], jax.random.key(0))
        number = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    weights = 0.5 * np.random.default_rng(0).normal(size=(2, number))
    return FlowApproximation(weights, np.array([2, 0, 3, 1]))


@pytest.fixture(scope="module")
def one_concept() -> tuple[DiverseDensity, Bags]:
    """A posterior of two numbers, skewed: the scale is known from below alone."""
    bags = Bags.from_list(
        [np.array([[0.1], [2.0]]), np.array([[-0.2]]), np.array([[1.5]]), np.array([[-2.5]])],
        labels=[1, 1, 0, 0],
    )
    return DiverseDensity(), bags


def test_coordinates_are_put_into_their_order_at_last(flow):
    with jax.enable_x64(True):
        noise = jax.random.normal(jax.random.key(2), (SIZE,))
        own = np.asarray(flow.from_standard(noise)[0])
        unordered = np.asarray(replace(flow, order=np.arange(SIZE)).from_standard(noise)[0])
    np.testing.assert_array_equal(own, unordered[flow.order])


@as_pytree()
@dataclass(frozen=True)
class DensityOf(WhitenedProgram):
    """A posterior that is a given approximation."""

    q: FlowApproximation = None

    def log_density(self, vector):
        return self.q.distribution().log_prob(vector)


def test_a_flow_that_is_right_has_nothing_to_gain(flow):
    target = DensityOf(model=None, given=None, shapes=(), q=flow)
    with jax.enable_x64(True):
        gain = _newton_gain(target, flow, jax.random.key(0), has_full_covariance=True)
    assert float(gain) == pytest.approx(0.0, abs=1e-12)


def test_the_jacobian_is_that_of_the_map(flow):
    noise = np.random.default_rng(1).normal(size=SIZE)
    with jax.enable_x64(True):
        of_map = jax.jacfwd(lambda one: flow.from_standard(one)[0])(jnp.asarray(noise))
        log_jacobian = flow.from_standard(jnp.asarray(noise))[1]
    sign, expected = np.linalg.slogdet(of_map)
    assert sign != 0 and abs(expected) > 0.1
    assert float(log_jacobian) == pytest.approx(expected, abs=1e-10)


def test_the_density_is_the_standard_over_the_jacobian(flow):
    with jax.enable_x64(True):
        noise = jax.random.normal(jax.random.key(2), (SIZE,))
        vector, log_jacobian = flow.from_standard(jnp.asarray(noise))
        found = flow.distribution().log_prob(vector)
    expected = norm.logpdf(noise).sum() - float(log_jacobian)
    assert float(found) == pytest.approx(expected, abs=1e-9)


def test_draws_are_images_of_standard_ones(flow):
    with jax.enable_x64(True):
        draws = np.asarray(flow.distribution().sample(jax.random.key(0), (20_000,)))
        noise = jax.random.normal(jax.random.key(1), (20_000, SIZE))
        images = np.asarray(jax.vmap(lambda one: flow.from_standard(one)[0])(noise))
    error = np.hypot(draws.std(axis=0), images.std(axis=0)) / 20_000**0.5
    assert (np.abs(draws.mean(axis=0) - images.mean(axis=0)) < 5 * error).all()


@pytest.mark.slow
def test_the_trace_is_the_bound_of_the_approximation():
    """Whose sites stand in another order in the program than by name."""
    random = np.random.default_rng(0)
    bags = Bags.from_list([random.normal(size=(3, 2)) for _ in range(8)], labels=[0, 1] * 4)
    model = VGPMIL(RBF(LogNormal(1.0, 0.5), 1.0), bags.instances[:2], mean=0.0)
    posterior = svi(model, bags, seed=0, guide="flow", max_steps=1000)
    with jax.enable_x64(True):
        target = whitened_program(model, bags)
        q = posterior.approximation
        noise = jax.random.normal(jax.random.key(5), (4000, target.size))

        @jax.jit
        @jax.vmap
        def log_ratio(one):
            vector, log_jacobian = q.from_standard(one)
            return target.log_density(vector) + log_jacobian - norm_log_density(one)

        ratios = np.asarray(log_ratio(noise))
    error = ratios.std() / 4000**0.5
    assert error < 0.01
    # The trace has means over 800 draws, of steps at which the learning rate is nearly 0.
    assert ratios.mean() == pytest.approx(posterior.elbo[-1], abs=5 * error * (1 + 5**0.5))
    density = posterior.log_density(posterior.draws(50, seed=3))
    assert np.isfinite(density).all()


def norm_log_density(noise):
    return jnp.sum(jax.scipy.stats.norm.logpdf(noise))


@pytest.mark.slow
def test_a_flow_is_nearer_to_a_skewed_posterior(one_concept):
    exact = grid(*one_concept, seed=0).elbo[-1]
    flow, gaussian = (
        exact - np.mean(svi(*one_concept, seed=0, guide=guide).elbo[-3:])
        for guide in ("flow", "multivariate_normal")
    )
    assert gaussian > 0.05
    assert -0.02 < flow < gaussian / 2


def test_a_single_number_has_no_flow():
    bags = Bags.from_list([np.zeros((1, 1)), np.ones((1, 1))], labels=[0, 1])
    model = VGPMIL(RBF(1.0, 1.0), np.zeros((1, 1)), mean=0.0)
    with pytest.raises(ValueError, match="guide is 'flow', and vgpmil has 1 unknown number"):
        svi(model, bags, seed=0, guide="flow")
