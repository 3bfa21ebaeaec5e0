"""Simulation-based calibration of the samplers, short; at full length under tests/slow.

Each calibration is one look at all its quantities together, false alarm below 1e-4.
"""

from dataclasses import replace

import pytest
from milzoo.inference.gibbs import bag_latent
from milzoo.inference.gibbs.inducing import draw_whitened
from milzoo.inference.gibbs.probit_gpmil import ProbitGibbs
from milzoo.inference.gibbs.vgpmil import VGPMILGibbs

SIMULATIONS = 100


@pytest.fixture(scope="module")
def calibrate(simulation_based_calibration):
    def short(problem, chain_for, thinning):
        return simulation_based_calibration.calibrate(
            chain_for,
            problem=simulation_based_calibration.PROBLEMS[problem],
            simulations=SIMULATIONS,
            thinning=thinning,
            key=1,
        )

    return short


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "program", "thinning"),
    [
        ("vgpmil", "marginal", 2),
        ("coupled vgpmil", "marginal", 2),
        ("vwsgp", "marginal", 3),
        ("vwsgp", "full", 2),
        ("cardinality", "marginal", 4),
        ("score threshold", "marginal", 4),
        ("diverse density", "marginal", 4),
        ("bmil", "marginal", 4),
        ("gpmil", "full", 4),
        ("probit gpmil", "marginal", 4),
    ],
)
def test_nuts_is_calibrated(calibrate, simulation_based_calibration, problem, program, thinning):
    ranks = calibrate(problem, simulation_based_calibration.nuts_on(program), thinning)
    assert ranks.not_uniform == []
    assert ranks.relative_efficiency > 0.75  # draws must be nearly independent, or ranks pile up


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "sampler", "thinning"),
    [
        ("vgpmil", VGPMILGibbs, 5),
        ("coupled vgpmil", VGPMILGibbs, 8),
        ("vwsgp", bag_latent.BagLatentGibbs, 5),
        ("probit vwsgp", bag_latent.BagLatentGibbs, 12),
        ("student vwsgp", bag_latent.BagLatentGibbs, 10),
        ("probit gpmil", ProbitGibbs, 20),
    ],
)
def test_gibbs_is_calibrated(calibrate, problem, sampler, thinning):
    ranks = calibrate(problem, sampler.for_model, thinning)
    assert ranks.not_uniform == []
    assert ranks.relative_efficiency > 0.75


class BiasedGibbs(VGPMILGibbs):
    """A planted fault: κ = y − 0.4 in the draw of the inducing values."""

    def draw_whitened(self, key, label, omega):
        return super().draw_whitened(key, label + 0.1, omega)


@pytest.mark.slow
def test_a_wrong_constant_in_one_conditional_is_found(calibrate, without_type_checks):
    # Latent and inducing values give it away, at p below 1e-6.
    found = calibrate("vgpmil", BiasedGibbs.for_model, thinning=5).not_uniform
    assert "latent 0" in found
    assert "inducing_value 0" in found


@pytest.mark.slow
def test_a_sampler_that_leaves_edges_out_is_found(calibrate):
    def uncoupled(model, bags):
        return VGPMILGibbs.for_model(model, bags.with_edges(None))

    # Residuals are twice as wide as they should be. One number is looked at, at a rate of its own.
    table = calibrate("coupled vgpmil", uncoupled, thinning=8).table
    assert table.loc["latent 0", "p_coverage"] < 1e-4
    assert table.loc["latent 0", "rms_deviation"] < 0.75


@pytest.mark.slow
def test_wrong_constant_in_draws_of_inducing_values_is_found(calibrate, monkeypatch):
    def biased(key, projection, residual_variance, omega, linear_term):  # κ = T − 0.4
        return draw_whitened(key, projection, residual_variance, omega, linear_term + 0.1)

    monkeypatch.setattr(bag_latent, "draw_whitened", biased)
    # At p below 1e-8.
    found = calibrate("vwsgp", bag_latent.BagLatentGibbs.for_model, thinning=5).not_uniform
    assert "bag_latent 0" in found
    assert "inducing_value 0" in found


@pytest.mark.slow
def test_labels_read_the_wrong_way_round_are_found(calibrate, simulation_based_calibration):
    def swapped(model, bags):
        other = replace(bags, labels=1 - bags.labels)
        return simulation_based_calibration.nuts_on("marginal")(model, other)

    # The log likelihood tells labels from no labels; the prior alone leaves the others uniform.
    assert "log likelihood" in calibrate("vgpmil", swapped, thinning=2).not_uniform
