"""Draws of Gaussians above a bound, and of Gaussians times a likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.parts.tilted_gaussians import draw_above, draw_before_an_event
from scipy import stats


@pytest.fixture(autouse=True)
def precision(request):
    """64 bit, unless the test asks for 32 by its parameter."""
    with jax.enable_x64(getattr(request, "param", 64) == 64):
        yield


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("lower", [-30.0, -5.0, -0.1, 0.0, 0.1, 5.0, 9.0, 40.0, 1e4])
def test_draws_above_a_bound_are_truncated_gaussian(lower):
    with jax.enable_x64(True):
        draws = np.asarray(draw_above(jax.random.key(0), jnp.full(20_000, lower)))
    assert (draws >= lower).all() and np.isfinite(draws).all()
    # U = Q(x)/Q(lower), in logs.
    survival = np.exp(stats.norm.logsf(draws) - stats.norm.logsf(lower))
    # 9 tests at 1e-6: false alarm below 1e-5.
    assert stats.kstest(survival, "uniform").pvalue > 1e-6


@pytest.mark.parametrize(
    ("mean", "scale", "log_time"), [(0.0, 1.0, 0.0), (3.0, 2.0, 4.0), (-2.0, 0.01, 5.0), (0, 3, 9)]
)
def test_draws_before_an_event_have_their_density(mean, scale, log_time):
    drawn = draw_before_an_event(
        jax.random.key(2), *(jnp.full(20_000, float(x)) for x in (mean, scale, log_time))
    )
    f = mean + scale * np.linspace(-14.0, 8.0, 40_001)
    log_density = stats.norm(mean, scale).logpdf(f) - np.exp(log_time + f)
    below = np.cumsum(np.exp(log_density - log_density.max()))
    # Four tests at 1e-6: false alarm below 1e-5.
    cumulative = np.interp(np.asarray(drawn), f, below / below[-1])
    assert stats.kstest(cumulative, "uniform").pvalue > 1e-6


def test_draws_above_are_finite_in_32_bit_far_out():
    with jax.enable_x64(False):
        draws = draw_above(jax.random.key(1), jnp.array([-8.0, 0.0, 6.0, 40.0, 300.0]))
    assert draws.dtype == np.float32
    assert np.isfinite(draws).all()
