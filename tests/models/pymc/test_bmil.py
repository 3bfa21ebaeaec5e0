"""Density and gradient of the PyMC program against those of the NumPyro program."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.models import BMIL
from milzoo.models.pymc.bmil import bmil_program

MODELS = {
    "default": BMIL(),
    "other fields": BMIL(shape=0.4, rate=3.0, intercept_scale=0.7, intercept_mean=-2.0),
}
CASES = [(name, program) for program in ("marginal", "full") for name in MODELS]


@pytest.mark.slow_but_first
@pytest.mark.parametrize(("name", "program"), CASES)
def test_density_and_gradient_are_those_of_the_numpyro_program(
    assert_same_density, bags, name, program
):
    assert_same_density(bmil_program, MODELS[name], program, bags)
    pymc_model = bmil_program(MODELS[name], bags, program=program)
    for site in ("weights", *(["weight_precision"] if program == "full" else [])):
        assert pymc_model.named_vars_to_dims[site] == MODELS[name].dims[site]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("bag", [1, 2])
def test_a_bag_far_away_has_density_and_gradient(assert_same_density, bags, bag):
    """Bags of either label: log odds are some thousands there."""
    offset = np.where(bags.bag_index == bag, 3000.0, 0.0)
    far = replace(bags, instances=bags.instances + offset[:, None])
    assert_same_density(bmil_program, MODELS["default"], "marginal", far)


def test_what_pymc_cannot_do_is_refused(bags):
    with pytest.raises(ValueError, match="program is 'joint'; expected 'marginal' or 'full'"):
        bmil_program(MODELS["default"], bags, program="joint")
