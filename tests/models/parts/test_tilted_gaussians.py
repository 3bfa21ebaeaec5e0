"""Draws of a Gaussian above a bound have the distribution of SciPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.parts.tilted_gaussians import draw_above
from scipy import stats


@pytest.fixture(autouse=True)
def precision(request):
    """64 bit, unless the test asks for 32 by its parameter."""
    with jax.enable_x64(getattr(request, "param", 64) == 64):
        yield


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


def test_draws_above_are_finite_in_32_bit_far_out():
    with jax.enable_x64(False):
        draws = draw_above(jax.random.key(1), jnp.array([-8.0, 0.0, 6.0, 40.0, 300.0]))
    assert draws.dtype == np.float32
    assert np.isfinite(draws).all()
