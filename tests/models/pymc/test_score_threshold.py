"""Density and gradient of the PyMC program against those of the NumPyro program."""

from dataclasses import replace

import numpyro.distributions as dist
import pytest
from milzoo.models import ScoreThreshold
from milzoo.models.pymc.score_threshold import score_threshold_program

MODELS = {
    "default": ScoreThreshold(),
    "other priors": ScoreThreshold(dist.Normal(1.0, 0.2), dist.HalfNormal(0.5)),
}


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", MODELS)
def test_density_and_gradient_are_those_of_the_numpyro_program(assert_same_density, bags, name):
    assert_same_density(score_threshold_program, MODELS[name], "marginal", bags)


def test_what_pymc_cannot_do_is_refused(bags):
    with pytest.raises(ValueError, match="program is 'full'; expected 'marginal': the "):
        score_threshold_program(MODELS["default"], bags, program="full")
    with pytest.raises(ValueError, match="bags have no labels; in PyMC the labels of all bags"):
        score_threshold_program(MODELS["default"], replace(bags, labels=None))
