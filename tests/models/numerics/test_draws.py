"""Functions of one draw, mapped over many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.numerics.draws import in_blocks


@pytest.mark.parametrize("together", [1, 3, 100])
def test_blocks_change_no_value_of_a_mapped_function(together):
    def one(given, site):
        return {"sum": given @ site, "square": site**2}

    given, sites = jnp.arange(3.0), jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))
    found = jax.jit(jax.vmap(in_blocks(one, together), in_axes=(None, 0)))(given, sites)
    expected = jax.vmap(one, in_axes=(None, 0))(given, sites)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


def test_so_many_draws_are_mapped_at_once():
    mapped = jax.vmap(in_blocks(lambda given, site: jnp.sin(site), 2), in_axes=(None, 0))
    program = str(jax.make_jaxpr(mapped)(0.0, jnp.zeros((6, 5))))
    assert "[2,5] = sin" in program
