"""Descent inside a compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.numerics.lbfgs import descend, largest_derivative

BEGUN = {"x": np.array([-1.2, 0.5]), "y": np.array(1.0)}


def _valley(point):
    """Rosenbrock's, twice: curved and narrow; 0 where x is 1 and y too."""
    x, y = point["x"], point["y"]
    return jnp.sum((1 - x) ** 2 + 100.0 * (y - x**2) ** 2)


def _descended(loss, **settings):
    with jax.enable_x64(True):
        start = jax.tree.map(jnp.asarray, BEGUN)
        return jax.tree.map(np.asarray, jax.jit(lambda at: descend(loss, at, **settings))(start))


def test_a_curved_valley_is_followed_to_its_lowest_point():
    end = _descended(_valley, max_steps=200)
    np.testing.assert_allclose(end["x"], 1.0, atol=1e-8)
    np.testing.assert_allclose(end["y"], 1.0, atol=1e-8)


@pytest.mark.in_ci
def test_it_ends_where_nothing_is_steeper_than_asked_for():
    with jax.enable_x64(True):
        gradients = [
            float(
                largest_derivative(jax.grad(_valley)(_descended(_valley, max_steps=200, flat=flat)))
            )
            for flat in (1e-1, 1e-6)
        ]
    assert gradients[1] < 1e-6 < gradients[0] < 1e-1


@pytest.mark.slow
def test_more_steps_never_end_higher():
    losses = [float(_valley(_descended(_valley, max_steps=num))) for num in (0, 1, 4, 16, 64)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(float(_valley(BEGUN)))
    assert losses[-1] < 1e-6


def test_a_loss_that_is_nan_returns_the_start():
    end = _descended(lambda point: jnp.sum(jnp.sqrt(point["x"] - 1.0) + point["y"]), max_steps=5)
    assert end["x"].tolist() == BEGUN["x"].tolist()


@pytest.mark.in_ci
def test_a_search_from_a_plateau_goes_on_downhill():
    # The first line search ends in a concave region, and the curvature that it saw points uphill.
    centres = np.array([[0.0, 0.0], [1.0, 0.5]])

    def two_wells(point):
        nearness = jnp.exp(-jnp.sum((point - centres) ** 2, axis=1))
        return -jnp.sum(jnp.log(0.01 + 0.98 * nearness))

    with jax.enable_x64(True):
        end = np.asarray(descend(two_wells, jnp.array([5.5, 1.65]), 200, 1e-6))
    np.testing.assert_allclose(end, [0.5, 0.25], atol=1e-6)  # half-way, where both wells count


def test_a_search_that_cannot_go_lower_ends_early():
    seen = []

    def noisy(point):
        jax.debug.callback(lambda: seen.append(None))
        return jnp.floor(jnp.sum(jnp.abs(point)) * 4) + jnp.sum(point)

    jax.block_until_ready(descend(noisy, jnp.array([0.9, -0.8]), max_steps=200))
    jax.effects_barrier()
    assert len(seen) < 200  # fewer than one for each step it may take
