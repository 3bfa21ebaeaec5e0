"""Simulation-based calibration of both samplers, 500 simulations each.

The bands are Kolmogorov and Smirnov's, Bonferroni over the quantities: each sampler is one look
with a false alarm in 1e-4 of all runs.
"""

from dataclasses import replace

import pytest
from milzoo.inference.gibbs.vgpmil import VGPMILGibbs
from milzoo.inference.nuts import NUTSChain

SIMULATIONS = 500


@pytest.fixture(scope="module")
def calibrate(simulation_based_calibration):
    def long(chain_for, thinning):
        return simulation_based_calibration.calibrate(
            chain_for, simulations=SIMULATIONS, thinning=thinning, key=2
        )

    return long


@pytest.fixture(scope="module")
def nuts_on(simulation_based_calibration):
    warmup = simulation_based_calibration.WARMUP

    def named(program):
        return lambda model, bags: NUTSChain.for_model(
            model, bags, num_warmup=warmup, program=program
        )

    return named


@pytest.mark.parametrize("program", ["marginal", "full"])
def test_nuts_is_calibrated(calibrate, nuts_on, program):
    ranks = calibrate(nuts_on(program), thinning=3)
    assert ranks.outside_the_bands() == {}
    assert ranks.effective_share > 0.8


def test_gibbs_is_calibrated(calibrate):
    ranks = calibrate(VGPMILGibbs.for_model, thinning=8)
    assert ranks.outside_the_bands() == {}
    assert ranks.effective_share > 0.8


class FixedAugmentation(VGPMILGibbs):
    """A planted fault that is no shift: ω at its prior mean ¼ instead of its draw."""

    def draw_white(self, key, label, omega):
        return super().draw_white(key, label, 0.0 * omega + 0.25)


def test_an_augmentation_that_is_not_drawn_is_found(calibrate):
    assert calibrate(FixedAugmentation.for_model, thinning=8).outside_the_bands()


def test_a_wrong_sharpness_is_found_by_the_log_likelihood(calibrate, nuts_on):
    def blunt(model, bags):
        return nuts_on("marginal")(replace(model, sharpness=5.0), bags)

    assert "log likelihood" in calibrate(blunt, thinning=3).outside_the_bands()
