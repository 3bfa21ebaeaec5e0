"""What is evaluated while JAX traces."""

import jax
import jax.numpy as jnp
import numpy as np
from milzoo.models.numerics.tracing import evaluated_apart_from_traces


def test_a_program_apart_from_traces_is_compiled_whole(compilations):
    @jax.jit
    def inner(x):
        return x + jnp.cumsum(jnp.where(jnp.arange(len(x)) % 3 == 1, 1.0, 0.0))

    given, seen = np.linspace(0.0, 1.0, 37), []

    @jax.jit
    def outer(scale):
        before = compilations.number
        with evaluated_apart_from_traces():
            found = np.asarray(inner(given))
        seen.append(compilations.number - before)
        return scale * found

    expected = 2.0 * (given + np.cumsum(np.arange(37) % 3 == 1))
    np.testing.assert_allclose(outer(2.0), expected, rtol=1e-6)
    assert seen == [1]  # and one more for each constant under jax.ensure_compile_time_eval
