"""Errors against laws that are known, and k̂ against tails that are: a wrong sign of it lies."""

import numpy as np
import pytest
import xarray as xr
from milzoo.diagnostics.accuracy import accuracy, pareto_khat
from scipy import stats


def test_draws_from_a_narrow_gaussian_cannot_mend_a_student():
    draws = stats.norm.rvs(size=4000, random_state=0)
    assert pareto_khat(stats.t(3).logpdf(draws), stats.norm.logpdf(draws)) > 0.7


def test_draws_from_a_student_easily_mend_a_gaussian():
    draws = stats.t(3).rvs(size=4000, random_state=0)
    assert pareto_khat(stats.norm.logpdf(draws), stats.t(3).logpdf(draws)) < 0.5


@pytest.mark.parametrize("ratio", [1.2, 1.5, 3.0])
def test_khat_of_gaussian_ratios_is_the_known_tail_index(ratio):
    """For q = N(0, 1), p = N(0, s²) the ratio has the Pareto tail index k = 1 − 1/s²."""
    khats = []
    for seed in range(20):
        draws = stats.norm.rvs(size=20_000, random_state=seed)
        khats.append(pareto_khat(stats.norm(scale=ratio).logpdf(draws), stats.norm.logpdf(draws)))
    error = np.std(khats, ddof=1) / np.sqrt(len(khats))
    # The log factor of the tail leaves a bias of finite samples that falls slowly.
    assert np.mean(khats) == pytest.approx(1 - 1 / ratio**2, abs=4.5 * error + 0.15)


def test_a_density_that_is_not_finite_gives_no_khat():
    assert np.isnan(pareto_khat(np.array([0.0, -np.inf]), np.zeros(2)))


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


def test_z_of_two_samples_of_one_law_is_standard_normal():
    ours, theirs = (gaussian_draws(3.0, 2.0, seed=seed, num_sites=200) for seed in (2, 3))
    z = accuracy(ours, theirs).z
    # The sd of 400 standard normal numbers has a standard error of 0.035.
    assert np.std(z) == pytest.approx(1.0, abs=4.5 * 0.035)
    assert np.mean(z) == pytest.approx(0.0, abs=4.5 / np.sqrt(400))
