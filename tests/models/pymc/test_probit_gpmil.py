"""Density and gradient of the PyMC program against those of the NumPyro program."""

import numpyro.distributions as dist
import pytest
from milzoo.models import RBF, ProbitGPMIL
from milzoo.models.pymc.probit_gpmil import probit_gpmil_program


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("program", ["marginal", "full"])
@pytest.mark.parametrize("variance", [0.1, 5.0])
def test_density_and_gradient_are_those_of_the_numpyro_program(
    assert_same_density, inducing_points, bags, program, variance
):
    model = ProbitGPMIL(RBF(variance, 1.5), inducing_points, mean=-0.7)
    assert_same_density(probit_gpmil_program, model, program, bags)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["marginal", "full"])
def test_density_and_gradient_agree_under_priors(
    assert_same_density, inducing_points, bags, program
):
    kernel = RBF(dist.LogNormal(0.0, 0.3), dist.Gamma(6.0, 4.0))
    model = ProbitGPMIL(kernel, inducing_points, mean=dist.Normal(-3.0, 1.0))
    assert_same_density(probit_gpmil_program, model, program, bags)


def test_what_pymc_cannot_do_is_refused(inducing_points, bags):
    model = ProbitGPMIL(RBF(1.0, 1.0), inducing_points)
    with pytest.raises(ValueError, match="program is 'joint'; expected 'marginal' or 'full'"):
        probit_gpmil_program(model, bags, program="joint")
