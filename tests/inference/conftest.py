"""Small problems that the engines' tests share."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.models import VGPMIL


def ragged_bags(sizes: list[int], num_features: int, seed: int) -> Bags:
    random = np.random.default_rng(seed)
    return Bags.from_list([random.normal(size=(size, num_features)) for size in sizes])


@pytest.fixture(scope="session")
def small_problem() -> tuple[VGPMIL, Bags]:
    """Twelve bags of one to four instances, labels drawn from the model itself."""
    design = ragged_bags([1, 2, 3, 4] * 3, num_features=2, seed=3)
    model = VGPMIL.for_bags(design, num_inducing=4, variance=2.0, length_scale=1.5)
    model = replace(model, mean=-0.7)
    bags, _ = simulate(model, design, seed=5)
    return model, bags


@pytest.fixture(scope="session")
def one_inducing_point() -> tuple[VGPMIL, Bags]:
    """A posterior of one dimension, for quadrature."""
    design = simulate_instances(8, 3, 2, seed=11)
    model = VGPMIL.for_bags(design, num_inducing=1, variance=3.0, length_scale=2.0)
    model = replace(model, mean=-1.0)
    bags, _ = simulate(model, design, seed=2)
    return model, bags
