"""k̂ against tails that are known, and what weights by it make of draws: a wrong sign of it lies."""

import jax
import numpy as np
import pytest
from milzoo.inference.importance import (
    ImportanceResampled,
    WeightedDraws,
    khat_error,
    largest_khat,
    weighted_evidence,
)
from milzoo.models import RBF, Gaussian
from milzoo.models.vwsgp import VWSGP
from scipy import stats


def pareto_khat(log_target_density, log_approximation):
    return weighted_evidence(log_target_density, log_approximation).khat


def test_draws_from_a_narrow_gaussian_cannot_correct_a_student():
    draws = stats.norm.rvs(size=4000, random_state=0)
    assert pareto_khat(stats.t(3).logpdf(draws), stats.norm.logpdf(draws)) > 0.7


def test_draws_from_a_student_easily_correct_a_gaussian():
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
    assert np.isnan(pareto_khat(np.append(np.zeros(99), -np.inf), np.zeros(100)))


def test_few_draws_are_refused():
    with pytest.raises(
        ValueError, match="log_target_density is of 99 draws; expected at least 100"
    ):
        pareto_khat(np.arange(99.0), np.zeros(99))


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_error_of_khat_is_the_spread_over_replicates(rate):
    draws = np.random.default_rng(1).exponential(size=(400, 4000))
    khats = np.array([pareto_khat(-rate * some, -some) for some in draws])
    # The prior worth ten observations draws k̂ towards ½ by 10/200, and its spread with it; an sd
    # of 400 replicates has a standard error of 1/√800, of which 4.5 are 0.16.
    expected = 190 / 200 * khat_error(1 - rate, 4000)
    assert khats.std(ddof=1) == pytest.approx(expected, rel=0.16)


def test_the_largest_khat_depends_on_the_number_of_draws():
    assert largest_khat(1000) == pytest.approx(2 / 3)
    assert largest_khat(10_000) == 0.7


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_khat_of_exponential_ratios_is_their_tail_index(rate):
    """For q = Exp(1), p = Exp(λ) the ratio λ e^{(1−λ)x} is a Pareto variable, k = 1 − λ."""
    draws = np.random.default_rng(0).exponential(size=(20, 20_000))
    khats = [pareto_khat(-rate * some, -some) for some in draws]
    error = np.std(khats, ddof=1) / np.sqrt(len(khats))
    # A prior worth ten observations at ½ draws k̂ there: (k − ½) 10/434 of 424 in the tail.
    assert np.mean(khats) == pytest.approx(1 - rate, abs=4.5 * error + 0.01)
    # With the wrong sign the ratio is bounded.
    assert pareto_khat(-draws[0], -rate * draws[0]) < 0.1 < min(khats)


# --------------------------------------------------------------------- weights and draws

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
MODEL = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=Gaussian(0.5))


class Wider:
    """A closed form with sds half as large again: N(m, 2.25 S)."""

    def __init__(self, approximation):
        self.approximation = approximation

    def draws(self, model, bags, key, num_draws):
        draws = self.approximation.draws(model, bags, key, num_draws)["inducing_value"]
        return {"inducing_value": self.approximation.mean + 1.5 * (draws - self.approximation.mean)}

    def log_density(self, model, bags, draws):
        inward = self.approximation.mean + (draws["inducing_value"] - self.approximation.mean) / 1.5
        log_density = self.approximation.log_density(model, bags, {"inducing_value": inward})
        return log_density - len(self.approximation.mean) * np.log(1.5)


@pytest.fixture(scope="module")
def exact():
    from milzoo.datasets import simulate, simulate_instances
    from milzoo.inference import coordinate_ascent

    design = simulate_instances(12, range(1, 5), num_features=2, seed=3)
    return coordinate_ascent(MODEL, simulate(MODEL, design, seed=1)[0], seed=0)


@pytest.mark.slow
def test_weights_turn_a_wide_proposal_into_the_exact_posterior(exact):
    approximation, num = exact.approximation, 40_000
    resampled = ImportanceResampled(Wider(approximation), num)
    found = resampled.weighted(MODEL, exact.bags, jax.random.key(0))
    assert found.khat < 0.3  # bounded ratios
    assert found.weights.sum() == pytest.approx(1.0)
    # Of N(0, I) by N(0, a²I) in three dimensions: E w² = (a²/√(2a² − 1))³.
    size = num / (1.5**2 / np.sqrt(2 * 1.5**2 - 1)) ** 3
    assert found.effective_size == pytest.approx(size, rel=0.03)

    draws, covariance = (
        found.draws["inducing_value"],
        approximation.scale_tril @ approximation.scale_tril.T,
    )
    mean = found.weights @ draws
    error = np.sqrt(np.diag(covariance) / size)
    assert np.abs(mean - approximation.mean).max() / error.min() < 5
    scatter = (found.weights * (draws - approximation.mean).T) @ (draws - approximation.mean)
    np.testing.assert_allclose(scatter, covariance, atol=6 * np.diag(covariance).max() / size**0.5)

    kept = resampled.draws(MODEL, exact.bags, jax.random.key(1), 4000)["inducing_value"]
    assert np.abs(kept.mean(axis=0) - approximation.mean) / np.sqrt(np.diag(covariance) / 4000) == (
        pytest.approx(0.0, abs=5)
    )
    np.testing.assert_allclose(kept.std(axis=0), np.sqrt(np.diag(covariance)), rtol=0.08)


class Broken(Wider):
    """One density in a hundred is no number."""

    def log_density(self, model, bags, draws):
        log_density = super().log_density(model, bags, draws)
        return np.where(np.arange(len(log_density)) % 100 == 3, np.nan, log_density)


@pytest.mark.in_ci
def test_draws_are_none_where_weights_are_no_numbers(exact):
    broken = ImportanceResampled(Broken(exact.approximation), 500)
    assert np.isnan(broken.weighted(MODEL, exact.bags, jax.random.key(0)).khat)
    draws = broken.draws(MODEL, exact.bags, jax.random.key(0), 7)["inducing_value"]
    assert draws.shape == (7, 3)
    assert np.isnan(draws).all()


@pytest.mark.in_ci
def test_where_all_ratios_are_alike_weights_are_equal(exact):
    found = ImportanceResampled(exact.approximation, 500).weighted(
        MODEL, exact.bags, jax.random.key(0)
    )
    assert found.khat == -np.inf
    assert found.weights.tolist() == [1 / 500] * 500
    assert found.effective_size == pytest.approx(500)


def test_effective_size_of_extreme_weights_is_exact():
    """Of equal weights, and of a single one."""
    draws = {"x": np.zeros(4)}
    assert WeightedDraws(draws, np.full(4, 0.25), 0.0).effective_size == 4.0
    assert WeightedDraws(draws, np.array([0.0, 1.0, 0.0, 0.0]), 0.0).effective_size == 1.0
    assert WeightedDraws(draws, np.array([0.5, 0.5, 0.0, 0.0]), 0.0).effective_size == 2.0
