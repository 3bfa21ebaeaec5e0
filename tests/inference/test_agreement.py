"""Three samplers that share no code, one posterior: NumPyro's NUTS, Gibbs, and nutpie on PyMC.

VGPMIL on digits and on musk1, VWSGP on musk1: the mean and the sd of every inducing value and of
every test bag's probability (f* integrated out) are compared between each two samplers in
Monte-Carlo standard errors, |z| ≤ 5.5. A normal z is further out with probability 3.8e-8; there are
3 × 2 × (50 + B*) numbers in each case, B* test bags: fewer than 1,800 in all, a false alarm in 7e-5
of all runs.
"""

from itertools import combinations

import numpy as np
import pytest
from arviz_stats.base import array_stats
from milzoo.datasets import load
from milzoo.inference import gibbs, nuts
from milzoo.inference.pymc_nuts import pymc_nuts
from milzoo.models import VGPMIL, VWSGP

LARGEST_Z = 5.5
LEAST_ESS = 2000
SAMPLERS = {
    "nuts": lambda model, bags: nuts(model, bags, seed=1, num_samples=2000),
    "gibbs": lambda model, bags: gibbs(model, bags, seed=2, num_samples=5000),
    "pymc_nuts": lambda model, bags: pymc_nuts(model, bags, seed=3, num_samples=2000),
}


CASES = [(VGPMIL, "digits"), (VGPMIL, "musk1"), (VWSGP, "musk1")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0].name}-{case[1]}")
def quantities(request):
    """Draws (chain, draw, 50 + B*) of each sampler: inducing values, test-bag probabilities."""
    kind, data = request.param
    if data != "digits":
        request.getfixturevalue("data_folder")
    train, test = load(data).split(0.7, seed=0)
    train, test = train.standardize(), test.standardize(train)
    model = kind.for_bags(train)
    assert len(model.inducing_points) == 50
    draws = {}
    for name, sample in SAMPLERS.items():
        posterior = sample(model, train)
        inducing_value = posterior.tree["posterior"]["inducing_value"].to_numpy()
        probability = posterior.predict(test).bag_draws
        by_chain = probability.reshape(*inducing_value.shape[:2], test.num_bags)
        draws[name] = np.concatenate([inducing_value, by_chain], axis=2)
    return draws


@pytest.mark.parametrize("sampler", list(SAMPLERS))
@pytest.mark.parametrize("purpose", ["bulk", "mean", "sd"])
def test_every_quantity_has_draws_enough(quantities, sampler, purpose):
    ess = array_stats.ess(quantities[sampler], chain_axis=0, draw_axis=1, method=purpose)
    assert ess.min() >= LEAST_ESS


@pytest.mark.parametrize(("one", "other"), list(combinations(SAMPLERS, 2)))
def test_means_and_sds_agree(quantities, moments, one, other):
    assert moments(quantities[one]).largest_z(moments(quantities[other])) <= LARGEST_Z
