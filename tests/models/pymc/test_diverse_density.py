"""The PyMC twin against the NumPyro program: the same density, the same slope, at random points."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.models import DiverseDensity
from milzoo.models.pymc.diverse_density import pymc_twin

MODELS = {
    "default": DiverseDensity(),
    "other priors": DiverseDensity(dist.Normal(1.0, 0.2), dist.HalfNormal(0.5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_density_and_slope_are_those_of_the_numpyro_program(assert_same_density, bags, name):
    assert_same_density(pymc_twin, MODELS[name], "marginal", bags)
    twin = pymc_twin(MODELS[name], bags)
    for site in MODELS[name].latent_sites:
        assert twin.named_vars_to_dims[site] == MODELS[name].dims[site]


@pytest.mark.parametrize("bag", [1, 2])
def test_a_bag_far_away_has_a_density_and_a_slope(assert_same_density, bags, bag):
    """Of either label. q is some thousands there, and e^−q nothing."""
    moved = np.where(bags.bag_index == bag, 30.0, 0.0)
    far = replace(bags, instances=bags.instances + moved[:, None])
    assert_same_density(pymc_twin, MODELS["default"], "marginal", far)


def test_what_pymc_cannot_do_is_refused(bags):
    with pytest.raises(ValueError, match="program is 'full'; expected 'marginal': what it sums"):
        pymc_twin(MODELS["default"], bags, program="full")
