"""Errors against laws that are known."""

import numpy as np
import pytest
import xarray as xr
from milzoo.diagnostics.accuracy import accuracy


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
