"""Simulation-based calibration of both samplers, short; at full length under tests/slow.

Each calibration is one look at all its quantities together, false alarm below 1e-4.
"""

from dataclasses import replace

import pytest
from milzoo.inference.gibbs.vgpmil import VGPMILGibbs

SIMULATIONS = 100


@pytest.fixture(scope="module")
def calibrate(simulation_based_calibration):
    def short(chain_for, thinning):
        return simulation_based_calibration.calibrate(
            chain_for, simulations=SIMULATIONS, thinning=thinning, key=1
        )

    return short


def test_nuts_is_calibrated(calibrate, simulation_based_calibration):
    ranks = calibrate(simulation_based_calibration.nuts_chain, thinning=2)
    assert ranks.outside_the_bands() == {}
    assert ranks.effective_share > 0.75  # draws must be nearly independent, or ranks pile up


def test_gibbs_is_calibrated(calibrate):
    ranks = calibrate(VGPMILGibbs.for_model, thinning=5)
    assert ranks.outside_the_bands() == {}
    assert ranks.effective_share > 0.75


class ShiftedGibbs(VGPMILGibbs):
    """A planted fault: κ = y − 0.4 in the draw of the inducing values."""

    def draw_white(self, key, label, omega):
        return super().draw_white(key, label + 0.1, omega)


def test_a_wrong_constant_in_one_conditional_is_found(calibrate, without_type_checks):
    # Evidence and inducing values give it away, at p below 1e-6.
    found = calibrate(ShiftedGibbs.for_model, thinning=5).outside_the_bands()
    assert "evidence 0" in found
    assert "inducing_value 0" in found


def test_labels_read_the_wrong_way_round_are_found(calibrate, simulation_based_calibration):
    def swapped(model, bags):
        other = replace(bags, labels=1 - bags.labels)
        return simulation_based_calibration.nuts_chain(model, other)

    # The log likelihood tells labels from no labels; the prior alone leaves the others uniform.
    assert "log likelihood" in calibrate(swapped, thinning=2).outside_the_bands()
