"""Density and gradient of the PyMC program against those of the NumPyro program."""

import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.sparse
from milzoo.models import RBF, CoupledVGPMIL
from milzoo.models.pymc.coupled_vgpmil import coupled_vgpmil_program


@pytest.fixture(scope="module")
def bags_with_edges(bags):
    """Bags of 1, of 300 and of sizes between, their instances in a row."""
    rows = [
        scipy.sparse.diags_array([np.ones(n - 1)], offsets=[1], shape=(n, n)) for n in sizes(bags)
    ]
    return bags.with_edges([row + row.T for row in rows])


def sizes(bags):
    return bags.bag_sizes.tolist()


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("program", ["marginal", "full"])
@pytest.mark.parametrize("coupling", [0.0, 0.6])
def test_density_and_gradient_are_those_of_the_numpyro_program(
    assert_same_density, inducing_points, bags_with_edges, program, coupling
):
    model = CoupledVGPMIL(RBF(5.0, 1.5), inducing_points, mean=-4.0, coupling=coupling)
    assert_same_density(coupled_vgpmil_program, model, program, bags_with_edges)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["marginal", "full"])
def test_density_and_gradient_agree_under_priors(
    assert_same_density, inducing_points, bags_with_edges, program
):
    kernel = RBF(dist.LogNormal(0.0, 0.3), dist.Gamma(6.0, 4.0))
    model = CoupledVGPMIL(kernel, inducing_points, mean=dist.Normal(-4.0, 1.0), coupling=0.6)
    assert_same_density(coupled_vgpmil_program, model, program, bags_with_edges)
