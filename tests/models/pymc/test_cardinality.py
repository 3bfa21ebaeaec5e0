"""Density and gradient of the PyMC program against those of the NumPyro program.

Nothing here is a statistical test: the densities must agree to rounding.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpyro.distributions as dist
import pytest
from milzoo.models import AtLeastOne, CardinalityModel, MajorityCardinality, NormalCardinality
from milzoo.models.pymc.cardinality import cardinality_program


def most_of_three(count, size):
    return jnp.stack([-1.0 * count, -jnp.abs(count - 3.0)])


MODELS = {
    "normal": CardinalityModel(NormalCardinality(0.5, 0.1)),
    "majority, an intercept": CardinalityModel(MajorityCardinality(), 0.4, intercept_scale=2.0),
    "at least one, Laplace": CardinalityModel(AtLeastOne(), 0.1, weight_prior="laplace"),
    "a function": CardinalityModel(most_of_three, 0.7),
    "priors": CardinalityModel(
        NormalCardinality(dist.Beta(2.0, 3.0), dist.LogNormal(-1.0, 0.5)), dist.HalfNormal(2.0)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_density_and_gradient_are_those_of_the_numpyro_program(assert_same_density, bags, name):
    # One instance after another in PyTensor's interpreter: the bag of 300 takes seconds.
    few = bags if name == "normal" else bags.select(bags.bag_sizes < 300)
    assert_same_density(cardinality_program, MODELS[name], "marginal", few)


def test_labels_that_are_not_known_are_a_site(bags):
    pymc_model = cardinality_program(MODELS["normal"], replace(bags, labels=None))
    assert [v.name for v in pymc_model.free_RVs] == ["whitened_weights", "bag_label"]


def test_the_program_with_instance_labels_is_refused(bags):
    with pytest.raises(ValueError, match="program is 'full'; expected 'marginal': the "):
        cardinality_program(MODELS["normal"], bags, program="full")


def test_a_prior_without_counterpart_in_pymc_is_refused(bags):
    model = CardinalityModel(weight_scale=dist.HalfCauchy(1.0))
    with pytest.raises(ValueError, match="prior of weight_scale is HalfCauchy"):
        cardinality_program(model, bags)
