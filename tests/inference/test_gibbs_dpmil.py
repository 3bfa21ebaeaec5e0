"""Gibbs of DPMIL against NUTS, which shares no code with it; calibration is in tests/slow."""

import pytest
from arviz_stats.base import array_stats
from milzoo.inference import gibbs, nuts

LARGEST_Z = 5.5  # of 2 × 28 numbers: a false alarm in 2e-6 of all runs
LEAST_ESS = 500


@pytest.mark.slow
def test_gibbs_and_nuts_agree_on_label_invariant_quantities(
    scene_of_clusters, estimand_draws, moments
):
    model, bags = scene_of_clusters(8, range(2, 5), seed=3)
    assert set(bags.labels) == {0, 1}
    found = []
    for posterior in (
        nuts(model, bags, seed=1, num_samples=750),
        gibbs(model, bags, seed=2, num_samples=2000, thin=4),
    ):
        draws = estimand_draws(posterior)
        for purpose in ("bulk", "mean", "sd"):
            ess = array_stats.ess(draws, chain_axis=0, draw_axis=1, method=purpose)
            assert ess.min() >= LEAST_ESS
        found.append(moments(draws))
    assert found[0].values.size <= 2 * 28
    assert found[0].largest_z(found[1]) <= LARGEST_Z
