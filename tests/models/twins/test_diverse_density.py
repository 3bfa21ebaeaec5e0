"""The PyMC twin against the NumPyro program: the same density, the same slope, at random points."""

import numpyro.distributions as dist
import pytest
from milzoo.models import DiverseDensity
from milzoo.models.twins.diverse_density import pymc_twin

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


def test_what_pymc_cannot_do_is_refused(bags):
    with pytest.raises(ValueError, match="program is 'full'; expected 'marginal': what it sums"):
        pymc_twin(MODELS["default"], bags, program="full")
