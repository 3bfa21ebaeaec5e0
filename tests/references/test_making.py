"""Thinning: as little as leaves nearly independent draws."""

import numpy as np
import pytest
import xarray as xr
from milzoo.references.making import Length, thinned


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
