"""A second fit on other bags of like size compiles nothing, whatever the model and the engine."""

from functools import partial

import jax
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.inference import (
    coordinate_ascent,
    gibbs,
    grid,
    laplace,
    maximum_a_posteriori,
    natural_gradient,
    nuts,
    svi,
)
from milzoo.models import (
    DPMIL,
    RBF,
    VGPMIL,
    VWSGP,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    DiverseDensity,
    GammaMixing,
    Gaussian,
    Logistic,
    MeasureThreshold,
    Probit,
)

NUM_INDUCING = 5

# ------------------------------------------------------------------ what is fitted with what


def variance_for(bags: Bags) -> float:
    """A number that differs from fit to fit: it is an argument of programs too."""
    return 1.0 + bags.num_bags / 100


def vgpmil(bags: Bags, **fields) -> VGPMIL:
    return VGPMIL.for_bags(bags, NUM_INDUCING, variance_for(bags), **fields)


def vwsgp(bags: Bags, likelihood) -> VWSGP:
    return VWSGP.for_bags(bags, NUM_INDUCING, variance_for(bags), likelihood=likelihood)


def cardinality_gp(bags: Bags) -> CardinalityGP:
    kernel = CardinalityKernel(CardinalityModel(), np.array([0.5, -0.3]), RBF(1.0, 1.0))
    return CardinalityGP.at_bags(kernel, bags.select(range(NUM_INDUCING)), variance_for(bags))


MODELS = {
    "VGPMIL": vgpmil,
    "VGPMIL gamma": partial(vgpmil, mixing=GammaMixing(1.0, 2.5)),
    "VWSGP logistic": partial(vwsgp, likelihood=Logistic()),
    "VWSGP probit": partial(vwsgp, likelihood=Probit()),
    "VWSGP gaussian": partial(vwsgp, likelihood=Gaussian()),
    "CardinalityGP": cardinality_gp,
    "DPMIL": partial(DPMIL.for_bags, max_components=2),
    "DPMIL diagonal": partial(DPMIL.for_bags, max_components=2, covariance="diagonal"),
    "CardinalityModel": lambda bags: CardinalityModel(weight_scale=variance_for(bags)),
    "DiverseDensity": DiverseDensity.for_bags,
    "MeasureThreshold": lambda bags: MeasureThreshold(),
}
BAG_SUMS = ["VWSGP logistic", "VWSGP probit", "VWSGP gaussian", "CardinalityGP"]
WITH_CLOSED_FORM = ["VGPMIL", "VGPMIL gamma", *BAG_SUMS, "DPMIL", "DPMIL diagonal"]
SMOOTH = ["VGPMIL", *BAG_SUMS, "CardinalityModel", "DiverseDensity", "MeasureThreshold"]

CHAINS = {"num_warmup": 20, "num_samples": 20, "num_chains": 2}
# Each engine with options, and the models it is for.
ENGINES = {
    "coordinate_ascent": (partial(coordinate_ascent, max_steps=5), WITH_CLOSED_FORM),
    "coordinate_ascent mean_field": (
        partial(coordinate_ascent, max_steps=5, label_update="mean_field"),
        ["VGPMIL"],
    ),
    "coordinate_ascent plug_in_max": (
        partial(coordinate_ascent, max_steps=5, label_update="plug_in_max"),
        ["VGPMIL"],
    ),
    "coordinate_ascent hard": (
        partial(coordinate_ascent, max_steps=5, label_update="hard"),
        ["DPMIL"],
    ),
    "coordinate_ascent learning": (
        partial(coordinate_ascent, max_steps=5, learn_hyperparameters=True),
        ["VGPMIL", *BAG_SUMS],
    ),
    "natural_gradient": (partial(natural_gradient, max_steps=5), WITH_CLOSED_FORM),
    "laplace": (laplace, SMOOTH),
    "gibbs": (
        partial(gibbs, **CHAINS),
        ["VGPMIL", "VWSGP logistic", "VWSGP probit", "CardinalityGP", "DPMIL", "DPMIL diagonal"],
    ),
    "nuts": (partial(nuts, **CHAINS), [*SMOOTH, "DPMIL"]),
    "maximum_a_posteriori": (partial(maximum_a_posteriori, max_steps=50), SMOOTH),
    "svi": (partial(svi, max_steps=20), [*SMOOTH, "DPMIL"]),
    "grid": (partial(grid, num_points=31), ["CardinalityModel", "MeasureThreshold"]),
}
COMBINATIONS = [(model, engine) for engine, (_, models) in ENGINES.items() for model in models]


# ------------------------------------------------------------------ bags of like size


def bags_of_like_size(num_positive: int, num_negative: int, seed: int) -> Bags:
    """Bags of 1 to 5 instances with labels and targets, in a random order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat([1, 0], [num_positive, num_negative]))
    sizes = np.empty(labels.size, int)
    for label in (0, 1):
        sizes[labels == label] = np.resize([2, 3, 1, 5, 3], np.sum(labels == label))
    instances = [random.normal(label, 1.0, (n, 2)) for n, label in zip(sizes, labels, strict=True)]
    targets = labels + random.normal(size=labels.size)
    return Bags.from_list(instances, labels=labels).with_targets(targets)


# 42 bags and 116 instances, 43 and 119. No multiple of 8 and no power of 2 is between these
# numbers, nor one between their numbers of positive bags and instances: one bucket for both.
FIRST, SECOND = bags_of_like_size(21, 21, seed=1), bags_of_like_size(22, 21, seed=2)


# ------------------------------------------------------------------ the contract


class Compilations:
    """How many programs XLA compiled since it was made; not all versions of JAX can unregister."""

    def __init__(self) -> None:
        self.number = 0
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def _count(self, event: str, seconds: float, **_) -> None:
        self.number += "backend_compile" in event


COMPILATIONS = Compilations()


def compilations_of_a_fit(model: str, engine: str, bags: Bags) -> int:
    """Model made, fitted and asked for predictions."""
    fit, _ = ENGINES[engine]
    before = COMPILATIONS.number
    fit(MODELS[model](bags), bags, seed=0).predict(bags)
    return COMPILATIONS.number - before


def test_the_counter_sees_a_compilation():
    before = COMPILATIONS.number
    jax.jit(lambda x: 3 * x + 1)(np.ones(2)).block_until_ready()
    assert COMPILATIONS.number == before + 1


@pytest.mark.parametrize(("model", "engine"), COMBINATIONS)
def test_a_second_fit_compiles_nothing(model, engine):
    compilations_of_a_fit(model, engine, FIRST)
    assert compilations_of_a_fit(model, engine, SECOND) == 0
