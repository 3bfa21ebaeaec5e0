"""Simulation-based calibration of the samplers, 500 simulations each.

The bands are Kolmogorov and Smirnov's, Bonferroni over the quantities: each sampler of a model is
one look with a false alarm in 1e-4 of all runs.
"""

from dataclasses import replace

import numpyro.distributions as dist
import pytest
from milzoo.inference.gibbs import bag_latent, dpmil
from milzoo.inference.gibbs.inducing import draw_whitened
from milzoo.inference.gibbs.interweaving import Interweaved
from milzoo.inference.gibbs.vgpmil import VGPMILGibbs
from milzoo.inference.traceable import traceable_engine

SIMULATIONS = 500


@pytest.fixture(scope="module")
def calibrate(simulation_based_calibration):
    def long(problem, chain_for, thinning):
        return simulation_based_calibration.calibrate(
            chain_for,
            problem=simulation_based_calibration.PROBLEMS[problem],
            simulations=SIMULATIONS,
            thinning=thinning,
            key=2,
        )

    return long


@pytest.mark.parametrize(
    ("problem", "program", "thinning"),
    [
        ("vgpmil", "marginal", 3),
        ("vgpmil", "full", 3),
        ("vwsgp", "marginal", 4),
        ("vwsgp", "full", 3),
        ("probit vwsgp", "marginal", 4),
        ("cardinality", "marginal", 6),
        ("score threshold", "marginal", 6),
        ("diverse density", "marginal", 6),
        ("bmil", "marginal", 6),
        ("gpmil", "full", 6),
    ],
)
def test_nuts_is_calibrated(calibrate, simulation_based_calibration, problem, program, thinning):
    ranks = calibrate(problem, simulation_based_calibration.nuts_on(program), thinning)
    assert ranks.not_uniform == []
    assert ranks.relative_efficiency > 0.8


@pytest.mark.parametrize(
    ("problem", "mass_matrix"),
    [
        ("vgpmil", "low_rank"),
        ("vwsgp", "laplace"),
        ("vwsgp", "dense"),
        ("cardinality", "low_rank"),
        ("bmil", "laplace"),
    ],
)
def test_every_mass_matrix_is_calibrated(
    calibrate, simulation_based_calibration, problem, mass_matrix
):
    chain_for = simulation_based_calibration.nuts_on("marginal", mass_matrix=mass_matrix)
    ranks = calibrate(problem, chain_for, 4)
    assert ranks.not_uniform == []
    assert ranks.relative_efficiency > 0.8


@pytest.mark.parametrize("problem", ["vgpmil", "cardinality", "diverse density", "bmil"])
def test_tempered_smc_is_calibrated(simulation_based_calibration, problem):
    ranks = simulation_based_calibration.calibrate_engine(
        traceable_engine("tempered_smc", thin=2),
        problem=simulation_based_calibration.PROBLEMS[problem],
        simulations=SIMULATIONS,
        key=2,
    )
    assert ranks.not_uniform == []


@pytest.mark.parametrize("problem", ["vgpmil", "cardinality", "bmil"])
def test_the_ensemble_is_calibrated(simulation_based_calibration, problem):
    ranks = simulation_based_calibration.calibrate_engine(
        traceable_engine("ensemble"),
        problem=simulation_based_calibration.PROBLEMS[problem],
        simulations=SIMULATIONS,
        key=3,
    )
    assert ranks.not_uniform == []


@pytest.mark.parametrize(
    ("problem", "sampler", "thinning"),
    [
        ("vgpmil", VGPMILGibbs, 8),
        ("vgpmil", Interweaved, 4),
        ("vwsgp", bag_latent.BagLatentGibbs, 8),
        ("counting vwsgp", bag_latent.BagLatentGibbs, 10),
        ("dpmil", dpmil.DPMILGibbs, 16),
        ("diagonal dpmil", dpmil.DPMILGibbs, 24),
    ],
)
def test_gibbs_is_calibrated(calibrate, problem, sampler, thinning):
    ranks = calibrate(problem, sampler.for_model, thinning)
    assert ranks.not_uniform == []
    assert ranks.relative_efficiency > 0.8


class FixedAugmentation(VGPMILGibbs):
    """A planted fault that is no bias: ω at its prior mean ¼ instead of its draw."""

    def draw_whitened(self, key, label, omega):
        return super().draw_whitened(key, label, 0.0 * omega + 0.25)


def test_an_augmentation_that_is_not_drawn_is_found(calibrate):
    assert calibrate("vgpmil", FixedAugmentation.for_model, thinning=8).not_uniform


def with_fixed_augmentation(key, projection, residual_variance, omega, linear_term):
    return draw_whitened(key, projection, residual_variance, 0.0 * omega + 0.25, linear_term)


def with_forgotten_residual_variance(key, projection, residual_variance, omega, linear_term):
    return draw_whitened(key, projection, 0.0 * residual_variance, omega, linear_term)


@pytest.mark.parametrize("faulty", [with_fixed_augmentation, with_forgotten_residual_variance])
def test_wrong_weight_in_draws_of_inducing_values_is_found(calibrate, monkeypatch, faulty):
    monkeypatch.setattr(bag_latent, "draw_whitened", faulty)
    ranks = calibrate("vwsgp", bag_latent.BagLatentGibbs.for_model, thinning=8)
    assert "log likelihood" in ranks.not_uniform


def test_a_wrong_prior_of_the_components_is_found(calibrate):
    def with_other_prior(model, bags):
        other = replace(model, degrees_of_freedom=model.degrees_of_freedom + 1)  # as is printed
        return dpmil.DPMILGibbs.for_model(other, bags)

    assert "log likelihood" in calibrate("dpmil", with_other_prior, 8).not_uniform


def test_wrong_sharpness_is_found_by_the_log_likelihood(calibrate, simulation_based_calibration):
    def blunt(model, bags):
        changed = replace(model, sharpness=5.0)
        return simulation_based_calibration.nuts_on("marginal")(changed, bags)

    assert "log likelihood" in calibrate("vgpmil", blunt, thinning=3).not_uniform


def test_wrong_potential_is_found_by_the_log_likelihood(calibrate, simulation_based_calibration):
    def blunt(model, bags):
        changed = replace(model, potential=replace(model.potential, sigma=0.5))
        return simulation_based_calibration.nuts_on("marginal")(changed, bags)

    assert "log likelihood" in calibrate("cardinality", blunt, thinning=6).not_uniform


def test_wrong_softness_is_found_by_the_log_likelihood(calibrate, simulation_based_calibration):
    def sharp(model, bags):
        changed = replace(model, softness_prior=dist.LogNormal(-3.0, 0.5))
        return simulation_based_calibration.nuts_on("marginal")(changed, bags)

    assert "log likelihood" in calibrate("score threshold", sharp, 6).not_uniform


class WithoutLabels(VGPMILGibbs):
    """A planted fault of the move: labels do not count in its density."""

    def log_density_given_noise(self, state, whitened):
        return -0.5 * whitened @ whitened


def test_a_move_that_forgets_labels_is_found(calibrate):
    def chain_for(model, bags):
        right = Interweaved.for_model(model, bags)
        return replace(right, sweep=WithoutLabels.for_model(model, bags))

    assert calibrate("vgpmil", chain_for, thinning=4).not_uniform
