"""Making: draws that are nearly independent, of chains or of a grid."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from milzoo.references import entry_named, making
from milzoo.references.making import Length, in_chains, make_reference, thinned


@pytest.fixture(scope="module")
def autoregression():
    """One site is independent, one has the autocorrelation 0.3ᵏ at lag k."""
    values = np.random.default_rng(0).normal(size=(10, 4000, 2))
    for k in range(1, 4000):
        values[:, k, 1] = 0.3 * values[:, k - 1, 1] + np.sqrt(1 - 0.3**2) * values[:, k, 1]
    return xr.Dataset({"site": (["chain", "draw", "number"], values)})


def test_thinning_ends_where_neighbours_are_independent(autoregression):
    """0.3² is above 0.05 and 0.3³ below."""
    draws, step = thinned(autoregression, Length(num_draws=1000, most_thinning=4))
    assert step == 3
    expected = autoregression["site"].to_numpy()[:, :3000:3].astype("f4")
    np.testing.assert_array_equal(draws["site"].to_numpy(), expected)


def test_thinning_takes_the_most_where_none_is_enough(autoregression):
    draws, step = thinned(autoregression, Length(num_draws=1000, most_thinning=2))
    assert step == 2 and draws.sizes["draw"] == 1000


def test_independent_draws_are_laid_out_as_chains():
    every = xr.Dataset({"u": (["chain", "draw", "m"], np.arange(24.0).reshape(1, 12, 2) / 3)})
    found = in_chains(every, Length(num_chains=3, num_draws=4))["u"]
    assert found.dims == ("chain", "draw", "m") and found.shape == (3, 4, 2)
    np.testing.assert_array_equal(
        found.to_numpy().reshape(12, 2), every["u"].to_numpy()[0].astype("f4")
    )


def test_an_entry_with_a_reason_is_not_made():
    entry = replace(entry_named("vwsgp-musk1-20"), reason="it runs away")
    with pytest.raises(ValueError, match="vwsgp-musk1-20 are kept: it runs away"):
        make_reference(entry, seed=0)


@pytest.mark.slow
def test_grid_and_particles_make_a_two_mode_reference():
    """Half of the draws at each concept, and the evidence of both; ESS is not that of chains."""
    entry = entry_named("diverse-density-two-concepts-2")
    made = make_reference(entry, seed=0, length=Length(num_chains=4, num_draws=250))
    assert made.passed, [str(gate) for gate in made.gates]
    assert "divergences" not in [gate.name for gate in made.gates]
    concept = made.draws["concept"].to_numpy().ravel()
    assert np.mean(concept > 0) == pytest.approx(0.5, abs=0.08)
    assert made.log_evidences[0].method == "grid"
    assert 0 < made.log_evidences[0].error < 1e-3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dpmil-simulated-10", {"thin": 3}),
        ("vgpmil-digits-20", {"mass_matrix": "auto"}),
        ("vwsgp-priors-simulated-12", {"mass_matrix": "low_rank", "target_accept": 0.99}),
    ],
)
def test_the_kept_sampler_gets_the_settings_of_its_entry(
    monkeypatch, without_type_checks, name, expected
):
    """And the sampler that checks it gets none of them."""
    entry, calls = entry_named(name), {}

    def recorded(sampler):
        return lambda model, bags, **options: calls.setdefault(sampler, options)

    for sampler in ("nuts", "gibbs"):
        monkeypatch.setattr(making, sampler, recorded(sampler))
    length = Length(num_chains=1, num_warmup=1, num_draws=1, most_thinning=2)
    common = {"seed": 0, "num_samples": 2, "num_chains": 1, "num_warmup": 1}
    for sampler in {entry.first, "gibbs"}:
        making._sample(sampler, entry, 0, length)
    assert calls.pop(entry.first) == common | expected
    assert all(options == common for options in calls.values())
