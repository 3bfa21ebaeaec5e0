"""k̂ against tails that are known: its sign is easily turned round, and then it lies."""

import numpy as np
import pytest
from milzoo.diagnostics.accuracy import pareto_khat
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
