"""Gates on draws of known distributions: independent ones pass, planted faults are refused."""

import numpy as np
import pytest
import xarray as xr
from milzoo.inference.evidence import LogEvidence
from milzoo.references.gates import (
    Gate,
    effective_fraction,
    gates_of_chains,
    gates_of_evidence,
    gates_of_two_samplers,
    lag_1,
)

COVARIANCE = np.array([[1.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 1.0]])


def dataset(values):
    return xr.Dataset({"site": (["chain", "draw", "number"], values)})


def independent(seed, chains=10, length=1000):
    random = np.random.default_rng(seed)
    return random.multivariate_normal(np.zeros(3), COVARIANCE, size=(chains, length))


@pytest.fixture(scope="module")
def others():
    """What a second sampler has: as many draws again."""
    return dataset(independent(1))


def statistics(energy, diverging=0):
    flags = np.zeros(energy.shape, bool)
    flags.flat[:diverging] = True
    dims = ["chain", "draw"]
    return xr.Dataset({"energy": (dims, energy), "diverging": (dims, flags)})


def refused(gates):
    return {gate.name for gate in gates if not gate.passed}


def test_independent_draws_pass_every_gate(others):
    draws = dataset(independent(0))
    energy = np.random.default_rng(2).normal(size=(10, 1000))
    assert refused(gates_of_chains(draws, statistics(energy))) == set()
    assert refused(gates_of_two_samplers(draws, others, seed=0)) == set()


def narrowed(values, factor):
    return values * factor


def shifted(values, distance):
    return values + distance * np.array([0.0, 1.0, 0.0])


def without_what_is_beyond(values, limit):
    """A mode is missing: draws beyond the limit come again on this side of it."""
    folded = values.copy()
    folded[..., 2] = np.where(values[..., 2] > limit, -values[..., 2], values[..., 2])
    return folded


@pytest.mark.parametrize(
    ("planted", "size"), [(narrowed, 0.93), (shifted, 0.1), (without_what_is_beyond, 0.0)]
)
def test_a_planted_fault_is_refused(others, planted, size):
    draws = dataset(planted(independent(0), size))
    assert "largest |z|" in refused(gates_of_two_samplers(draws, others, seed=0))


@pytest.mark.parametrize(
    ("planted", "size"), [(narrowed, 0.98), (shifted, 0.03), (without_what_is_beyond, 2.6)]
)
def test_a_smaller_fault_is_not_seen(others, planted, size):
    """As the page of references says."""
    draws = dataset(planted(independent(0), size))
    assert refused(gates_of_two_samplers(draws, others, seed=0)) == set()


def test_the_classifier_refuses_a_correlation_of_opposite_sign(others):
    """All means, sds and quantiles are right."""
    values = independent(0)
    values[..., 0] *= -1
    names = refused(gates_of_two_samplers(dataset(values), others, seed=0))
    assert names == {"p-value of a classifier"}


def test_correlated_draws_are_refused():
    """Of an autoregression with coefficient 0.2 the ESS is 0.8 / 1.2 of the draws; one site is."""
    values = independent(3)
    for k in range(1, values.shape[1]):
        values[:, k, 1] = 0.2 * values[:, k - 1, 1] + np.sqrt(1 - 0.2**2) * values[:, k, 1]
    draws = dataset(values)
    assert lag_1(draws) == pytest.approx(0.2, abs=0.03)
    assert effective_fraction(draws) == pytest.approx(0.8 / 1.2, abs=0.1)
    energy = np.random.default_rng(2).normal(size=(10, 1000))
    names = refused(gates_of_chains(draws, statistics(energy)))
    assert names == {"lag-1 autocorrelation", "ESS over draws"}


def test_chains_that_differ_are_refused():
    values = independent(4)
    values[:5, :, 1] += 0.4
    energy = np.random.default_rng(2).normal(size=(10, 1000))
    assert "R̂" in refused(gates_of_chains(dataset(values), statistics(energy)))


def test_a_divergence_and_slow_energies_are_refused():
    """The E-BFMI of a random walk of 1,000 steps is far below that of white noise, 2."""
    draws = dataset(independent(0))
    walk = np.cumsum(np.random.default_rng(5).normal(size=(10, 1000)), axis=1)
    names = refused(gates_of_chains(draws, statistics(walk, diverging=1)))
    assert names == {"E-BFMI", "divergences"}


def test_evidences_are_compared_in_their_standard_errors():
    def found(value, error):
        return LogEvidence(value, error, "bridge sampling", np.nan)

    (near,) = gates_of_evidence(found(-10.0, 0.03), found(-10.1, 0.04))
    assert near.value == pytest.approx(2.0) and near.passed
    (far,) = gates_of_evidence(found(-10.0, 0.03), found(-10.3, 0.04))
    assert far.value == pytest.approx(6.0) and not far.passed
    (unknown,) = gates_of_evidence(found(-10.0, 0.03), found(-10.0, np.inf))
    assert not unknown.passed


def test_a_value_that_is_no_number_passes_no_gate():
    assert not Gate("some", np.nan, 1.0, "below").passed
    assert not Gate("some", np.nan, 1.0, "above").passed
    assert str(Gate("R̂", 1.02, 1.01, "below")) == "R̂: 1.02, should be below 1.01: failed"
