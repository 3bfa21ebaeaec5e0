"""Density and gradient of the PyMC program against those of the NumPyro program."""

import numpyro.distributions as dist
import pytest
from milzoo.models import GPMIL, RBF
from milzoo.models.pymc.gpmil import gpmil_program


@pytest.fixture(scope="module")
def few(bags):
    """The smaller bags: the PyMC program keeps a number for each pair of nodes and instance."""
    return bags.select([0, 2, 3, 5, 6, 7])


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("program", ["marginal", "full"])
@pytest.mark.parametrize("variance", [0.1, 5.0])
def test_density_and_gradient_are_those_of_the_numpyro_program(
    assert_same_density, inducing_points, few, program, variance
):
    model = GPMIL(RBF(variance, 1.5), inducing_points, mean=-0.7)
    assert_same_density(gpmil_program, model, program, few)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["marginal", "full"])
def test_density_and_gradient_agree_under_priors(
    assert_same_density, inducing_points, few, program
):
    kernel = RBF(dist.LogNormal(0.0, 0.3), dist.Gamma(6.0, 4.0))
    # Far from the mean that the labels ask for: the slope there is no difference of large ones.
    model = GPMIL(kernel, inducing_points, mean=dist.Normal(-3.0, 1.0))
    assert_same_density(gpmil_program, model, program, few)


def test_what_pymc_cannot_do_is_refused(inducing_points, few):
    model = GPMIL(RBF(1.0, 1.0), inducing_points)
    with pytest.raises(ValueError, match="program is 'joint'; expected 'marginal' or 'full'"):
        gpmil_program(model, few, program="joint")
