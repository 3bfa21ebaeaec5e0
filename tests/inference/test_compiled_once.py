"""A second fit of a closed form on other bags of like size compiles nothing."""

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.inference import coordinate_ascent, natural_gradient
from milzoo.inference.runtime.programs import num_compilations
from milzoo.models import DPMIL, VGPMIL, VWSGP


def bags_of(sizes, seed):
    """Every second bag positive, its first instance from a cluster of its own."""
    random = np.random.default_rng(seed)
    labels = np.arange(len(sizes)) % 2
    instances = [random.normal(size=(size, 2)) for size in sizes]
    for rows, label in zip(instances, labels, strict=True):
        rows[0] += 3.0 * label
    return Bags.from_list(instances, labels)


# 126 instances in 42 bags, and 126 in 44: 63 candidates and 63 certain negatives, as two folds.
FIRST, SECOND = [2, 4, 3] * 14, [1, 3, 3, *[2, 4, 3] * 13, 1, 1]

# Batches hold all bags: a short last one may have a number of bags of its own.
FITS = {
    "exact": (VGPMIL, coordinate_ascent, {}),
    "mean field": (VGPMIL, coordinate_ascent, {"label_update": "mean_field"}),
    "plug in": (VGPMIL, coordinate_ascent, {"label_update": "plug_in_max", "max_steps": 20}),
    "learned": (VGPMIL, coordinate_ascent, {"learn_hyperparameters": True, "max_steps": 5}),
    "vwsgp": (VWSGP, coordinate_ascent, {}),
    # A rule's nodes follow the numbers that are learned: few steps leave them close together.
    "vwsgp learned": (VWSGP, coordinate_ascent, {"learn_hyperparameters": True, "max_steps": 2}),
    "soft": (DPMIL, coordinate_ascent, {"num_starts": 2}),
    "hard": (DPMIL, coordinate_ascent, {"num_starts": 2, "label_update": "hard"}),
    "vgpmil by batches": (VGPMIL, natural_gradient, {"max_steps": 5, "batch_instances": 200}),
    "dpmil by batches": (DPMIL, natural_gradient, {"max_steps": 5, "batch_instances": 200}),
}


def model_for(kind, bags, factor):
    """With other numbers for other bags."""
    if kind is DPMIL:
        return DPMIL.for_bags(bags, 2, concentration=factor)
    variance = {VGPMIL: 2.0, VWSGP: 0.5}[kind]
    return kind.for_bags(bags, 3, variance=factor * variance, length_scale=factor * 0.7)


def fitted(name, sizes, seed, factor):
    kind, engine, options = FITS[name]
    bags = bags_of(sizes, seed)
    posterior = engine(model_for(kind, bags, factor), bags, seed=seed, num_draws=50, **options)
    posterior.predict(bags)
    return posterior


@pytest.mark.parametrize("name", FITS)
def test_a_second_fit_and_its_predictions_compile_nothing(name):
    first = fitted(name, FIRST, seed=1, factor=1.0)
    before = num_compilations()
    second = fitted(name, SECOND, seed=2, factor=1.02)
    assert num_compilations() == before
    assert second.compile_seconds == 0
    assert second.elbo[-1] != first.elbo[-1]


@pytest.mark.parametrize("name", ["exact", "vwsgp", "soft", "vgpmil by batches"])
def test_wall_time_includes_fit_and_compilation(name):
    for seed in (1, 2):
        found = fitted(name, FIRST, seed=seed, factor=1.0)
        assert found.seconds > 0
        # Clocks are read one after another: a millisecond for what lies between.
        assert found.wall_seconds >= found.seconds + found.compile_seconds - 1e-3
