"""The PyMC twin against the NumPyro program: the same density, the same slope, at random points."""

from dataclasses import replace

import numpyro.distributions as dist
import pytest
from milzoo.models import MeasureThreshold
from milzoo.models.pymc.measure_threshold import pymc_twin

MODELS = {
    "default": MeasureThreshold(),
    "other priors": MeasureThreshold(dist.Normal(1.0, 0.2), dist.HalfNormal(0.5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_density_and_slope_are_those_of_the_numpyro_program(assert_same_density, bags, name):
    assert_same_density(pymc_twin, MODELS[name], "marginal", bags)


def test_what_pymc_cannot_do_is_refused(bags):
    with pytest.raises(ValueError, match="program is 'full'; expected 'marginal': what it sums"):
        pymc_twin(MODELS["default"], bags, program="full")
    with pytest.raises(ValueError, match="bags have no labels; in PyMC the labels of all bags"):
        pymc_twin(MODELS["default"], replace(bags, labels=None))
