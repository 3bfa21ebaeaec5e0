"""The classifier two-sample test where its accuracy and its false alarms are known.

A set of p-values is uniform or larger if Kolmogorov and Smirnov's one-sided test says so at 1e-4.
"""

import numpy as np
import pytest
import xarray as xr
from milzoo.diagnostics.checks.two_sample import evenly, independent_number, two_sample_test
from scipy.stats import kstest, multivariate_t, norm


def dataset(values):
    """Draws of one site, dimensions chain and draw first."""
    return xr.Dataset({"u": (("chain", "draw", "u_dim"), values)})


def independent(random, number, *, mean=0.0, root=None, size=4):
    noise = random.normal(size=(1, number, size))
    return mean + (noise if root is None else noise @ root.T)


def autoregressive(random, correlation=0.8, chains=4, length=2000, size=4):
    values = random.normal(size=(length, chains, size))
    for now in range(1, length):
        values[now] = correlation * values[now - 1] + np.sqrt(1 - correlation**2) * values[now]
    return np.swapaxes(values, 0, 1)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("draw", [lambda random: independent(random, 300), autoregressive])
def test_alike_draws_are_told_apart_by_chance_alone(draw):
    p_values = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        found = two_sample_test(dataset(draw(random)), dataset(draw(random)), random=random)
        p_values.append(found.p_value)
    assert kstest(p_values, "uniform", alternative="greater").pvalue > 1e-4


def test_accuracy_by_densities_is_that_of_the_total_variation():
    random = np.random.default_rng(0)
    ours, theirs = independent(random, 2000, mean=0.5), independent(random, 2000)

    # log N(0, 1) − log N(½, 1) summed over sites.
    def log_ratio(draws):
        return np.sum(0.125 - 0.5 * draws["u"], axis=-1)

    found = two_sample_test(dataset(ours), dataset(theirs), random=random, log_ratio=log_ratio)
    # The means are 1 apart, in sds.
    assert found.accuracy == pytest.approx(norm.cdf(0.5), abs=4.5 * found.accuracy_error)
    assert found.total_variation == pytest.approx(2 * norm.cdf(0.5) - 1, abs=0.1)
    assert found.is_best and found.p_value == pytest.approx(1 / 500)
    assert found.accuracy_error == pytest.approx(0.5 / np.sqrt(4000), rel=0.3)


def test_a_wrong_correlation_is_found_and_where():
    """No site by itself differs, so no mean, sd or quantile does."""
    random = np.random.default_rng(1)
    covariance = np.eye(4)
    covariance[1, 2] = covariance[2, 1] = 0.9
    ours = independent(random, 2000)
    theirs = independent(random, 2000, root=np.linalg.cholesky(covariance))
    found = two_sample_test(dataset(ours), dataset(theirs), random=random)
    assert found.p_value < 0.01 and found.accuracy > 0.7 and not found.is_best
    # u₁ − u₂ has an sd of √2 here, and of √0.2 there.
    assert found.direction.sd_ratio == pytest.approx(np.sqrt(10), rel=0.15)
    assert found.direction.site in ("u[1]", "u[2]")


def test_heavy_tails_of_the_same_covariance_are_found():
    random = np.random.default_rng(2)
    heavy = multivariate_t(np.zeros(4), np.eye(4) / 3, df=3).rvs(2000, random_state=random)
    found = two_sample_test(dataset(heavy[None]), dataset(independent(random, 2000)), random=random)
    assert found.p_value < 0.01


def test_a_shift_is_told_in_reference_sds():
    random = np.random.default_rng(3)
    ours = independent(random, 2000, mean=np.array([0.0, 0.0, 3.0, 0.0]))
    theirs = independent(random, 2000, root=np.diag([1.0, 1.0, 2.0, 1.0]))
    where = two_sample_test(dataset(ours), dataset(theirs), random=random).direction
    assert where.site == "u[2]" and where.correlation > 0.95
    assert where.distance == pytest.approx(1.5, abs=0.15)
    assert where.sd_ratio == pytest.approx(0.5, abs=0.05)


@pytest.mark.in_ci
def test_many_sites_are_looked_at_in_random_directions():
    random = np.random.default_rng(4)
    ours, theirs = (independent(random, 2000, size=60, root=w * np.eye(60)) for w in (0.8, 1.0))
    found = two_sample_test(dataset(ours), dataset(theirs), random=random)
    assert found.p_value < 0.01 and found.accuracy > 0.8


def test_chains_are_thinned_to_their_effective_size():
    chains = autoregressive(np.random.default_rng(5))
    # Squares of an autoregression have the square of its correlation: (1 − ρ²)/(1 + ρ²) = 0.22,
    # its own (1 − ρ)/(1 + ρ) = 0.11.
    number = independent_number(chains)
    assert number / 8000 == pytest.approx(0.11, abs=0.03)
    assert len(evenly(chains, number)) == number // 4
    assert independent_number(chains[:1]) == 2000
    random = np.random.default_rng(6)
    found = two_sample_test(dataset(chains), dataset(autoregressive(random)), random=random)
    assert found.num_draws / 8000 == pytest.approx(0.11, abs=0.03)


@pytest.mark.parametrize(("number", "size"), [(150, 2), (220, 60)])
def test_too_few_draws_are_not_judged(number, size):
    random = np.random.default_rng(6)
    ours, theirs = (dataset(independent(random, number, size=size)) for _ in range(2))
    assert two_sample_test(ours, theirs, random=random) is None


def test_sites_that_do_not_vary_are_left_out():
    random = np.random.default_rng(7)
    ours, theirs = independent(random, 500), independent(random, 500)
    ours[..., 0] = theirs[..., 0] = 1.0
    assert two_sample_test(dataset(ours), dataset(theirs), random=random) is not None
    frozen = ours.copy()
    frozen[..., 2] = theirs[0, 0, 2]
    found = two_sample_test(dataset(frozen), dataset(theirs), random=random)
    assert found.p_value < 0.01 and found.direction.site == "u[2]"
    assert found.direction.sd_ratio < 1e-6
    assert two_sample_test(dataset(theirs), dataset(frozen), random=random) is None
    theirs[..., 1] = theirs[..., 2]  # no covariance
    assert two_sample_test(dataset(ours), dataset(theirs), random=random) is None
