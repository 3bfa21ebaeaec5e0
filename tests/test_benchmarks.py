"""The mathematics that benchmarks have of their own."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import load
from milzoo.inference import coordinate_ascent
from milzoo.inference.closed_form import vgpmil
from milzoo.models import VGPMIL

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def musk1_label_updates():
    path = BENCHMARKS / "musk1_label_updates.py"
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    # Its frozen dataclasses look their own module up by name.
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


@pytest.mark.parametrize("label_update", ["exact", "mean_field"])
def test_a_bag_left_out_by_zero_rows_is_a_bag_left_out(musk1_label_updates, label_update):
    bags = load("digits").select(np.arange(12)).standardize()
    held_out = np.arange(bags.num_bags) % 3 == 0
    model = replace(VGPMIL.for_bags(bags, num_inducing=6), mean=-2.0)
    others = coordinate_ascent(
        model, bags.select(~held_out), seed=0, label_update=label_update, tolerance=1e-13
    )
    with jax.enable_x64(True):
        problem, _ = vgpmil.init(model, bags, label_update="exact", key=jax.random.key(0))
        problem = musk1_label_updates.without(problem, held_out, label_update)
        state = musk1_label_updates.closed_form(problem, seed=0, tolerance=1e-13)
        bound = musk1_label_updates.honest_bound(problem, state, jnp.asarray(held_out))
        mean = model.conditional(bags).cholesky @ state.mean
    np.testing.assert_allclose(mean, others.approximation.mean, atol=1e-5)
    np.testing.assert_allclose(bound, others.elbo[-1], rtol=1e-9)
