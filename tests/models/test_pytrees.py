"""Models as arguments of compiled programs: numbers are leaves, and checked only where known."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.models import BMIL, DPMIL, GPMIL, RBF, VGPMIL, VWSGP, GammaScaleMixture
from milzoo.models.numerics.tracing import as_pytree

POINTS = np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]])
MODELS = {
    "vgpmil": lambda factor: VGPMIL(RBF(2.0 * factor, 1.0), POINTS * factor, mean=-factor),
    "gamma": lambda factor: VGPMIL(
        RBF(2.0, factor), POINTS, scale_mixture=GammaScaleMixture(factor, 2.0)
    ),
    "prior": lambda factor: VGPMIL(RBF(dist.LogNormal(0.0, factor), 1.0), POINTS),
    "vwsgp": lambda factor: VWSGP(RBF(0.5, factor), POINTS),
    "dpmil": lambda factor: DPMIL(np.zeros(2), factor * np.eye(2), 3.0, max_components=3),
    "gpmil": lambda factor: GPMIL(RBF(0.5, factor), POINTS, mean=factor),
    "bmil": lambda factor: BMIL(factor, 2.0 * factor, intercept_mean=-factor),
}
every_model = pytest.mark.parametrize("name", MODELS)


@every_model
def test_models_come_back_from_their_leaves(name):
    model = MODELS[name](1.5)
    leaves, definition = jax.tree.flatten(model)
    again = jax.tree.unflatten(definition, leaves)
    assert type(again) is type(model)
    for one, other in zip(leaves, jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


@every_model
def test_models_that_differ_in_numbers_share_a_definition(name):
    one, other = (MODELS[name](factor) for factor in (1.5, 2.5))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in leaves)


@every_model
def test_a_program_of_a_model_is_compiled_once(name):
    traced = []

    @jax.jit
    def total(model):
        traced.append(model)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(model))

    first, second = (total(MODELS[name](factor)) for factor in (1.5, 2.5))
    assert len(traced) == 1
    assert first != second


def test_models_that_differ_in_static_fields_do_not_share():
    one, other = (DPMIL(np.zeros(2), np.eye(2), 3.0, max_components=k) for k in (3, 4))
    assert jax.tree.structure(one) != jax.tree.structure(other)


@as_pytree("kind")
@dataclass(frozen=True)
class Positive:
    """A number above 0."""

    kind: str
    value: object

    def __post_init__(self):
        if self.value <= 0:
            raise ValueError("not positive")


def test_checks_hold_where_numbers_are_known():
    with pytest.raises(ValueError, match="not positive"):
        Positive("a", -1.0)


def test_checks_are_left_out_while_jax_traces():
    made = jax.jit(lambda value: Positive("a", value))(-1.0)
    assert float(made.value) == -1.0 and made.kind == "a"


def test_integers_become_floats_and_truth_values_stay():
    assert jax.tree.leaves(Positive("a", 2)) == [2.0]
    assert type(jax.tree.leaves(Positive("a", 2))[0]) is float
    assert jax.tree.leaves(Positive("a", True)) == [True]
    assert type(jax.tree.leaves(Positive("a", True))[0]) is bool
