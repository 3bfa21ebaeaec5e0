"""The contract: what every model answers, and what one answers that says nothing else."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from milzoo import models
from milzoo.datasets import simulate_instances
from milzoo.models.model import (
    Model,
    ModelDefaults,
    given_labels,
    part_of_bags,
    random_key,
    split_key,
)
from milzoo.models.parts.components import ComponentModel

SMALL = {
    "VGPMIL": {"num_inducing": 3, "mean": -1.0},
    "GPMIL": {"num_inducing": 3, "mean": -1.0},
    "VWSGP": {"num_inducing": 3},
}
BAGS = simulate_instances(12, range(1, 4), num_features=2, seed=0)


@dataclass(frozen=True, eq=False)
class Intercept(ModelDefaults):
    """Labels that have nothing to do with instances."""

    name: ClassVar = "intercept"
    dims: ClassVar = {}
    latent_sites: ClassVar = ("intercept",)

    def __call__(self, bags):
        logits = jnp.full(bags.num_bags, numpyro.sample("intercept", dist.Normal()))
        with numpyro.plate("bag", bags.num_bags):
            numpyro.sample("bag_label", dist.Bernoulli(logits=logits), obs=given_labels(bags))

    def marginal(self):
        return self

    def augmented(self):
        return self

    def predict(self, draws, bags):
        chance = np.asarray(jax.nn.sigmoid(draws["intercept"]))[:, None]
        return {
            "bag_probability": np.tile(chance, bags.num_bags),
            "instance_probability": np.tile(chance, bags.num_instances),
        }


def test_a_program_and_predictions_make_a_model():
    model = Intercept()
    assert isinstance(model, Model)
    assert part_of_bags(model) == "labels"
    assert model.priors == {} and model.with_hyperparameters({"variance": 2.0}) is model
    assert model.estimands_of({"intercept": np.zeros(3)}, BAGS) == {}
    assert model.observation == "logistic" and model.is_normalised


@pytest.mark.parametrize(
    "name", ["VGPMIL", "VWSGP", "CardinalityModel", "DiverseDensity", "BMIL", "GPMIL"]
)
def test_every_model_of_the_zoo_keeps_the_contract(name):
    model = getattr(models, name).for_bags(BAGS, **SMALL.get(name, {}))
    assert isinstance(model, Model)
    assert set(model.observation_fields) | set(model.fields_for_bags) <= set(vars(model))
    assert not model.leave_one_out_note and not isinstance(model, ComponentModel)


def test_another_scale_mixture_asks_for_the_logistic_model():
    gamma = models.VGPMIL.as_published(
        BAGS, num_inducing=3, scale_mixture=models.GammaScaleMixture(1.0, 2.5)
    )
    assert not gamma.is_normalised and gamma.observation is gamma.scale_mixture
    (companion,) = gamma.companions.values()
    assert companion.is_normalised and companion.observation == "logistic"
    assert not companion.companions


def test_a_mixture_has_a_leave_one_out_note():
    model = models.DPMIL(np.zeros(2), np.eye(2), degrees_of_freedom=3.0)
    assert isinstance(model, Model) and isinstance(model, ComponentModel)
    assert "instances given labels" in model.leave_one_out_note
    assert model.replication_note and model.estimand_note and not model.gradient_note


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_a_seed_gives_the_key_of_jax(seed):
    with jax.enable_x64(True):
        ours, theirs = (
            jax.random.key_data(key) for key in (random_key(seed), jax.random.key(seed))
        )
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_would_wrap_around_is_refused(seed):
    with pytest.raises(ValueError, match=f"seed is {seed}; expected an integer from 0 to 4294"):
        random_key(seed)


def test_keys_are_split_as_by_jax():
    key = random_key(3)
    for ours, theirs in zip(split_key(key, 3), jax.random.split(key, 3), strict=True):
        np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))
