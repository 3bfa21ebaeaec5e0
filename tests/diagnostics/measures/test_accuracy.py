"""Errors against known distributions."""

import numpy as np
import pytest
import xarray as xr
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics import compare
from milzoo.diagnostics.measures.accuracy import accuracy, independent_fraction
from milzoo.inference import coordinate_ascent, laplace, nuts
from milzoo.models import RBF, VGPMIL
from scipy.stats import norm, t


def gaussian_draws(mean, deviation, seed, num_sites=1):
    draws = np.random.default_rng(seed).normal(mean, deviation, size=(4, 1000, num_sites))
    return xr.Dataset({"x": (("chain", "draw", "site"), draws)})


def test_errors_are_in_standard_deviations_of_the_reference():
    found = accuracy(gaussian_draws(1.0, 0.5, seed=0), gaussian_draws(0.0, 2.0, seed=1))
    # Standard errors from 4,000 draws a side: of the means 0.033, of the sds 0.006 and 0.022.
    assert found.mean_error == pytest.approx(1.0 / 2.0, abs=4.5 * 0.033 / 2)
    assert found.mean_error_mcse == pytest.approx(0.033 / 2, rel=0.1)
    assert found.mean_sd_ratio == pytest.approx(0.5 / 2.0, abs=4.5 * 0.004)
    assert found.worst_site == "x[0]"


@pytest.mark.in_ci
def test_z_of_two_equal_samplers_is_standard_normal():
    ours, theirs = (gaussian_draws(3.0, 2.0, seed=seed, num_sites=200) for seed in (2, 3))
    z = accuracy(ours, theirs).z
    # The sd of 200 standard normal numbers, of each kind, has a standard error of 0.05.
    for of_one_kind in z.reshape(7, 200):
        assert np.std(of_one_kind) == pytest.approx(1.0, abs=4.5 * 0.05)
        assert np.mean(of_one_kind) == pytest.approx(0.0, abs=4.5 / np.sqrt(200))


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_a_site_frozen_on_one_side_errs_infinitely(side):
    draws = {"ours": gaussian_draws(0.0, 1.0, 0, num_sites=3)}
    draws["theirs"] = gaussian_draws(0.0, 1.0, 1, num_sites=3)
    draws[side]["x"].values[:, :, 1] = 0.0
    found = accuracy(draws["ours"], draws["theirs"])
    assert found.frozen_sites == ("x[1]",) and found.worst_site == "x[1]"
    assert found.mean_error == found.largest_z == found.largest_possible_error == np.inf
    assert found.sd_ratio[1] == (0 if side == "ours" else np.inf)


def test_constants_on_both_sides_are_left_out_if_equal():
    ours, theirs = (gaussian_draws(0.0, 1.0, seed, num_sites=3) for seed in (0, 1))
    for draws, other in ((ours, 5.0), (theirs, 6.0)):
        draws["x"].values[:, :, 0] = 0.25
        draws["x"].values[:, :, 1] = other
    found = accuracy(ours, theirs)
    assert found.names == ("x[1]", "x[2]")
    assert found.frozen_sites == ("x[1]",) and found.error[0] == np.inf


def test_the_limit_of_z_is_bonferronis():
    found = accuracy(gaussian_draws(0.0, 1.0, 0, num_sites=50), gaussian_draws(0.0, 1.0, 1, 50))
    assert 2 * len(found.z) * norm.sf(found.z_limit) == pytest.approx(1e-4)


def test_errors_that_draws_do_not_exclude_are_told():
    """Two sides of 4,000 independent draws: a mean's error has a standard error of √(2/4000)."""
    found = accuracy(gaussian_draws(0.0, 1.0, 0), gaussian_draws(0.0, 1.0, 1))
    expected = np.abs(found.error[0]) + found.z_limit * np.sqrt(2 / 4000)
    assert found.largest_possible_error == pytest.approx(expected, rel=0.05)


def student_draws(seed):
    """Of t₃, scaled to the sd of 1."""
    draws = np.random.default_rng(seed).standard_t(3, size=(4, 5000, 20)) / np.sqrt(3)
    return xr.Dataset({"x": (("chain", "draw", "site"), draws)})


def test_intervals_of_a_matched_t_are_too_narrow():
    gaussian = np.random.default_rng(1).normal(size=(4, 5000, 20))
    found = accuracy(student_draws(0), gaussian_of(gaussian))
    wide, narrow = (t.isf(tail, 3) / np.sqrt(3) for tail in (0.05, 0.25))
    coverage = [2 * norm.cdf(end) - 1 for end in (wide, narrow)]  # 0.83 and 0.34
    assert found.mean_sd_ratio == pytest.approx(1.0, abs=0.05)
    # A site's 90 % width, of 20,000 draws a side, is known to 1.4 %; the mean of 20 to 0.3 %.
    assert np.mean(found.width_ratio) == pytest.approx(wide / norm.isf(0.05), abs=4.5 * 0.003)
    assert found.mean_coverage == pytest.approx(tuple(coverage), abs=4.5 * 0.002)
    assert not found.agrees


def gaussian_of(draws):
    return xr.Dataset({"x": (("chain", "draw", "site"), draws)})


def test_a_shifted_interval_has_a_lower_coverage():
    """Widths and sds are right, and the mean is off by one sd."""
    found = accuracy(gaussian_draws(1.0, 1.0, 0), gaussian_draws(0.0, 1.0, 1))
    end = norm.isf(0.05)
    expected = norm.cdf(1 + end) - norm.cdf(1 - end)
    assert found.coverage_90[0] == pytest.approx(expected, abs=4.5 * found.coverage_mcse[0])
    assert found.width_ratio[0] == pytest.approx(1.0, abs=0.1)


@pytest.mark.in_ci
def test_errors_of_sd_ratios_and_coverages_hold_over_replicates():
    ours, theirs = (gaussian_draws(0.0, 1.0, seed, num_sites=400) for seed in (4, 5))
    found = accuracy(ours, theirs)
    assert np.std(found.sd_ratio) == pytest.approx(found.mean_sd_ratio_mcse, rel=0.16)
    assert np.std(found.coverage_90) == pytest.approx(found.mean_coverage_mcse, rel=0.16)


def test_a_point_has_no_width():
    point = gaussian_of(np.zeros((1, 1, 1)))
    found = accuracy(point, gaussian_draws(0.0, 1.0, 1))
    assert found.width_ratio[0] == found.coverage_90[0] == found.sd_ratio_mcse[0] == 0.0


@pytest.fixture(scope="module")
def two_numbers():
    """A model in two unknown numbers, and bags of two drawn from it."""
    design = simulate_instances(12, 2, num_features=1, seed=1)
    model = VGPMIL(RBF(2.0, 1.0), np.array([[-0.7], [0.7]]), mean=-0.9)
    return model, simulate(model, design, seed=3)[0]


def moments_by_quadrature(model, bags):
    """Posterior means and sds of u, by NumPy alone and from the model's formulas."""
    points, (x,) = model.inducing_points[:, 0], np.asarray(bags.instances).T

    def kernel(a, b):
        return 2.0 * np.exp(-0.5 * (a[:, None] - b) ** 2)

    prior = kernel(points, points) + model.jitter * 2.0 * np.eye(2)
    weights = np.linalg.solve(prior, kernel(points, x)).T  # A
    residual = 2.0 - (weights * kernel(x, points)).sum(axis=1)  # k̃
    axis = np.linspace(-9.0, 9.0, 241)
    u = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    nodes, mass = np.polynomial.hermite_e.hermegauss(40)
    latent = (u @ weights.T - 0.9)[:, :, None] + np.sqrt(residual)[:, None] * nodes
    negative = (1 / (1 + np.exp(latent))) @ (mass / mass.sum())
    none = negative.reshape(len(u), -1, 2).prod(axis=2)  # p0
    positive = (model.sharpness - (model.sharpness - 1) * none) / (model.sharpness + 1)
    labels = np.asarray(bags.labels) == 1
    log_density = np.log(np.where(labels, positive, 1 - positive)).sum(axis=1)
    log_density -= 0.5 * (u * np.linalg.solve(prior, u.T).T).sum(axis=1)
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = density @ u
    return mean, np.sqrt(density @ (u - mean) ** 2)


@pytest.mark.slow
def test_the_reference_ranks_first_by_errors_computed_outside(two_numbers):
    model, bags = two_numbers
    mean, sd = moments_by_quadrature(model, bags)
    posteriors = {
        "coordinate_ascent": coordinate_ascent(model, bags, seed=0, num_draws=20_000),
        "laplace": laplace(model, bags, seed=0, num_draws=20_000),
        "short": nuts(model, bags, seed=1, num_warmup=300, num_samples=150),
        "nuts": nuts(model, bags, seed=0, num_warmup=500, num_samples=5000),
    }
    comparison = compare(posteriors, num_draws=20_000)
    assert comparison.reference == "nuts"
    table = comparison.table.drop(index="nuts")
    true = {
        name: (one.stored_draws()["inducing_value"].mean(axis=0) - mean) / sd
        for name, one in posteriors.items()
    }
    size = {name: float(np.abs(error).mean()) for name, error in true.items()}
    # Only what is not by chance has a rank: errors of samplers are.
    approximate = ["coordinate_ascent", "laplace"]
    assert size["nuts"] < min(size[name] for name in approximate)
    by_truth = sorted(approximate, key=size.__getitem__)
    assert list(table.loc[approximate].sort_values("mean_error").index) == by_truth
    # The largest |z| of two numbers is above 4.9 with a chance of 2e-6.
    ess = comparison.table.loc["nuts", "ess_bulk"]
    assert (np.abs(true["nuts"]) * np.sqrt(ess)).max() < 4.9
    for name in table.index:
        apart = abs(table.loc[name, "mean_error"] - size[name])
        assert apart < 4.9 * table.loc[name, "error_mcse"]
        ratio = posteriors[name].stored_draws()["inducing_value"].std(axis=0) / sd
        assert table.loc[name, "sd_ratio"] == pytest.approx(ratio.mean(), rel=0.05)


def one_chain(values):
    return xr.Dataset({"x": (("chain", "draw"), values[None])})


@pytest.mark.slow
def test_errors_of_resampled_draws_hold_over_replicates():
    """Draws of N(0, 1), resampled to be those of N(1, 0.5²): 1,000, of which 2,000 are made."""
    random = np.random.default_rng(0)
    exact = one_chain(random.normal(1.0, 0.5, size=200_000))
    z = []
    for _ in range(300):
        proposals = random.standard_normal(1000)
        weights = norm(1.0, 0.5).pdf(proposals) / norm.pdf(proposals)
        drawn = one_chain(random.choice(proposals, 2000, p=weights / weights.sum()))
        z.append(accuracy(drawn, exact, fractions=(independent_fraction(drawn), 1.0)).z)
    # 4.5 standard errors of a root mean square of 300; resampled draws are no more than
    # asymptotically normal, above all their sds, so that 0.1 is added.
    size = np.sqrt(np.mean(np.square(z), axis=0))
    np.testing.assert_allclose(size[:2], 1.0, atol=0.18 + 0.1)
    # Where weights are small, as below the 5 % quantile, fewer draws are repetitions: the error of
    # a quantile there is smaller than it is said to be.
    assert (size[2:] < 1.0 + 0.18 + 0.1).all()


def test_draws_without_repetitions_are_all_independent():
    assert independent_fraction(one_chain(np.arange(100.0))) == 1.0
    assert independent_fraction(one_chain(np.repeat(np.arange(50.0), 2))) == 0.5
