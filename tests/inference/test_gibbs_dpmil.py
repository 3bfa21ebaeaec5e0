"""Gibbs of DPMIL against NUTS, which shares no code with it; calibration is in test_calibration."""

import numpy as np
import pytest
from arviz_stats.base import array_stats
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import gibbs, nuts
from milzoo.models import DPMIL

LARGEST_Z = 5.5  # of 2 × 28 numbers: a false alarm in 2e-6 of all runs
LEAST_ESS = 500


@pytest.fixture(scope="module")
def scene():
    """Eight bags of two features, drawn from the model with K = 4."""
    design = simulate_instances(8, range(2, 5), num_features=2, seed=3)
    model = DPMIL(
        center=np.zeros(2),
        scale=np.eye(2),
        degrees_of_freedom=6.0,
        mean_strength=0.2,
        max_components=4,
    )
    return model, simulate(model, design, seed=4)[0]


def test_gibbs_and_nuts_agree_on_what_has_no_names(scene, moments):
    model, bags = scene
    assert set(bags.labels) == {0, 1}
    found = []
    for posterior in (
        nuts(model, bags, seed=1, num_samples=750),
        gibbs(model, bags, seed=2, num_samples=2000, thin=4),
    ):
        draws = posterior.tree["posterior"]
        judged = [draws[site].to_numpy().astype(float) for site in model.judged_by]
        flat = np.concatenate([site.reshape(*site.shape[:2], -1) for site in judged], axis=2)
        for purpose in ("bulk", "mean", "sd"):
            ess = array_stats.ess(flat, chain_axis=0, draw_axis=1, method=purpose)
            assert ess.min() >= LEAST_ESS
        found.append(moments(flat))
    assert found[0].values.size <= 2 * 28
    assert found[0].largest_z(found[1]) <= LARGEST_Z
