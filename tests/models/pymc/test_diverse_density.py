"""Density and gradient of the PyMC program against those of the NumPyro program."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.models import DiverseDensity
from milzoo.models.pymc.diverse_density import diverse_density_program

MODELS = {
    "default": DiverseDensity(),
    "other priors": DiverseDensity(dist.Normal(1.0, 0.2), dist.HalfNormal(0.5)),
}


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", MODELS)
def test_density_and_gradient_are_those_of_the_numpyro_program(assert_same_density, bags, name):
    assert_same_density(diverse_density_program, MODELS[name], "marginal", bags)
    pymc_model = diverse_density_program(MODELS[name], bags)
    for site in MODELS[name].latent_sites:
        assert pymc_model.named_vars_to_dims[site] == MODELS[name].dims[site]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("bag", [1, 2])
def test_a_bag_far_away_has_density_and_gradient(assert_same_density, bags, bag):
    """Bags of either label: q is some thousands there, and e^−q underflows."""
    offset = np.where(bags.bag_index == bag, 30.0, 0.0)
    far = replace(bags, instances=bags.instances + offset[:, None])
    assert_same_density(diverse_density_program, MODELS["default"], "marginal", far)


def test_what_pymc_cannot_do_is_refused(bags):
    with pytest.raises(ValueError, match="program is 'full'; expected 'marginal': the "):
        diverse_density_program(MODELS["default"], bags, program="full")
