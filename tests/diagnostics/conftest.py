"""One small fit of each kind of engine, shared by all tests of the wing."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.diagnostics import compare
from milzoo.inference import coordinate_ascent, gibbs, nuts
from milzoo.models import VGPMIL, GammaScaleMixture

NUM_INDUCING = 8


@pytest.fixture(scope="session")
def problem():
    """Training bags, test bags with most of their instance labels known, and the model."""
    design = simulate_instances(60, range(1, 6), 2, seed=1)
    model = VGPMIL.for_bags(
        design, num_inducing=NUM_INDUCING, variance=4.0, length_scale=1.0, mean=-1.5
    )
    bags, _ = simulate(model, design, seed=2)
    training, test = bags.split(0.7, seed=3)
    known = np.zeros(test.num_instances, int)
    known[test.starts] = test.labels  # as if the first instance alone made a bag positive
    known[1::4] = -1
    return training, replace(test, instance_labels=known), model


@pytest.fixture(scope="session")
def posteriors(problem):
    training, _, model = problem
    return {
        "cavi": coordinate_ascent(model, training, seed=0),
        "nuts": nuts(model, training, seed=1, num_warmup=200, num_samples=500),
        "gibbs": gibbs(model, training, seed=2, num_warmup=200, num_samples=1500),
    }


@pytest.fixture(scope="session")
def comparison(posteriors, problem):
    return compare(posteriors, test=problem[1])


@pytest.fixture(scope="session")
def runaway():
    """Engines all in the near mode of a Gamma scale mixture; the far one has all the mass."""
    random = np.random.default_rng(0)
    bags = Bags.from_list(
        [random.normal(size=(6, 2)) for _ in range(10)], labels=(np.arange(10) < 3).astype(int)
    )
    model = VGPMIL.for_bags(
        bags,
        num_inducing=2,
        variance=2.0,
        length_scale=4.0,
        mean=0.0,
        scale_mixture=GammaScaleMixture(1.0, 0.3),
    )
    chains = {"seed": 0, "num_warmup": 300, "num_samples": 1000}
    return compare(
        {
            "coordinate_ascent": coordinate_ascent(model, bags, seed=0),
            "nuts": nuts(model, bags, **chains),
            "gibbs": gibbs(model, bags, **chains),
        }
    )
