"""The kernel Stein discrepancy: its kernel by automatic derivatives, and draws of known kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics.checks.stein import stein_kernel, stein_test
from milzoo.inference import coordinate_ascent
from milzoo.inference.gaussian import whitened_program
from milzoo.models import RBF, Gaussian
from milzoo.models.vwsgp import VWSGP
from scipy.stats import kstest


def test_the_kernel_is_that_of_automatic_derivatives():
    random = np.random.default_rng(0)
    points, scores = random.normal(size=(2, 5, 3))

    def kernel(x, y):
        return (3 + jnp.sum((x - y) ** 2)) ** -0.5

    def expected(x, y, s, t):
        by_x, by_y = jax.grad(kernel, 0)(x, y), jax.grad(kernel, 1)(x, y)
        trace = jnp.trace(jax.jacfwd(jax.grad(kernel, 0), 1)(x, y))
        return s @ t * kernel(x, y) + s @ by_y + t @ by_x + trace

    pairs = list(zip(points, scores, strict=True))
    with jax.enable_x64(True):
        by_pairs = [
            [float(expected(*map(jnp.asarray, (x, y, s, t)))) for y, t in pairs] for x, s in pairs
        ]
    np.testing.assert_allclose(stein_kernel(points, scores), by_pairs, rtol=1e-10)


@pytest.fixture(scope="module")
def exact():
    """A Gaussian posterior, its density, and a function that draws from a wider or shifted one."""
    points = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
    model = VWSGP(RBF(4.0, 1.0), points, likelihood=Gaussian(0.5))
    design = simulate_instances(30, range(1, 5), num_features=2, seed=3)
    targets, _ = simulate(model, design, seed=1)
    approximation = coordinate_ascent(model, targets, seed=0).approximation
    with jax.enable_x64(True):
        target = whitened_program(model, targets)

    def drawn(random, *, width=1.0, shift=0.0):
        noise = shift + width * random.normal(size=(400, 3))
        return {"inducing_value": approximation.mean + noise @ approximation.scale_tril.T}

    return target, drawn


@pytest.mark.in_ci
def test_draws_of_the_posterior_are_refused_by_chance_alone(exact):
    target, drawn = exact
    found = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        found.append(stein_test(target, drawn(random), random=random))
    p_values = [one.p_value for one in found]
    assert kstest(p_values, "uniform", alternative="greater").pvalue > 1e-4
    # Without bias: pairs of a draw with itself do not count.
    discrepancies = [one.discrepancy for one in found]
    error = np.std(discrepancies, ddof=1) / np.sqrt(60)
    assert abs(np.mean(discrepancies)) < 4.5 * error


@pytest.mark.parametrize("wrong", [{"width": 0.7}, {"width": 1.4}, {"shift": 0.5}])
def test_draws_of_another_density_are_found(exact, wrong):
    target, drawn = exact
    random = np.random.default_rng(1)
    found = stein_test(target, drawn(random, **wrong), random=random)
    assert found.p_value <= 0.002 and found.discrepancy > 4 * found.error


def test_draws_without_a_covariance_are_not_judged(exact):
    target, drawn = exact
    random = np.random.default_rng(2)
    alike = {"inducing_value": np.repeat(drawn(random)["inducing_value"][:1], 10, axis=0)}
    assert stein_test(target, alike, random=random) is None
