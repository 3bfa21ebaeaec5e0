"""A mixture too large for gradients is refused at once, by all engines that follow them."""

import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import laplace, nuts, svi
from milzoo.inference.pymc_nuts import pymc_nuts
from milzoo.inference.runtime.densities import check_number_of_unknowns
from milzoo.models import DPMIL, VGPMIL


@pytest.fixture(scope="module")
def bags():
    design = simulate_instances(20, 4, num_features=6, seed=0)
    model = VGPMIL.as_published(design, num_inducing=5, variance=5.0, mean=-1.0)
    return simulate(model, design, seed=1)[0]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("engine", [nuts, pymc_nuts, laplace, svi], ids=lambda e: e.__name__)
def test_refusal_names_the_engine_and_an_alternative(bags, engine):
    model = DPMIL.for_bags(bags, max_components=20)
    expected = rf"{engine.__name__} would have .* 1,118 unknown .* 6 features.* coordinate_ascent"
    with pytest.raises(ValueError, match=expected):
        engine(model, bags, seed=0)


def test_limit_counts_unknowns_and_not_data(bags):
    # 2 × (K (D + D(D + 1)/2) + K − 1) unknown numbers: 1,006 for D = 6 and K = 18, 950 for 17.
    with pytest.raises(ValueError, match="1,006 unknown"):
        check_number_of_unknowns(DPMIL.for_bags(bags, max_components=18), "nuts")
    check_number_of_unknowns(DPMIL.for_bags(bags, max_components=17), "nuts")
    check_number_of_unknowns(DPMIL.for_bags(bags, max_components=20, covariance="diagonal"), "nuts")
    instances = np.asarray(bags.instances)
    assert DPMIL.for_bags(bags, max_components=17).num_unknowns > instances.size
