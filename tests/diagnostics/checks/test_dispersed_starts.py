"""Modes and their masses against quadrature, and what is said of engines that missed one."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, simulate_instances
from milzoo.diagnostics import compare
from milzoo.diagnostics.checks.dispersed_starts import Modes, find_modes
from milzoo.inference import coordinate_ascent, laplace, nuts
from milzoo.models import RBF, VGPMIL
from milzoo.models.model import ModelDefaults, given_labels, plate_of_bags
from milzoo.models.numerics.tracing import as_pytree
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import norm

LABELS = np.array([1, 1, 1, 1, 1, 1, 1, 0])
BAGS = Bags.from_list([np.zeros((1, 1))] * 8, labels=LABELS)


@as_pytree()
@dataclass(frozen=True, eq=False)
class TwoSided(ModelDefaults):
    """Labels by the square of one number: a mode on either side of 0, one of them preferred."""

    tilt: float = 0.0

    name: ClassVar = "two_sided"
    dims: ClassVar = {"shift": (), "bag_label": ("bag",)}
    latent_sites: ClassVar = ("shift",)

    def __call__(self, bags):
        shift = numpyro.sample("shift", dist.Normal(self.tilt, 3.0))
        with plate_of_bags(bags):
            logits = jnp.full(bags.num_bags, shift**2 - 4.0)
            numpyro.sample("bag_label", dist.Bernoulli(logits=logits), obs=given_labels(bags))

    def marginal(self):
        return self.__call__

    def augmented(self):
        return self.__call__

    def predict(self, draws, bags):
        chance = expit(draws["shift"] ** 2 - 4.0)[:, None]
        return {
            "bag_probability": np.tile(chance, bags.num_bags),
            "instance_probability": np.tile(chance, bags.num_instances),
        }


def masses(tilt):
    """Log mass left and right of 0, by quadrature."""
    shift = np.linspace(-20.0, 20.0, 40_001)
    logits = shift**2 - 4.0
    log_density = norm(tilt, 3.0).logpdf(shift) + LABELS.sum() * log_expit(logits)
    log_density += (1 - LABELS).sum() * log_expit(-logits) + np.log(1e-3)
    return logsumexp(log_density[shift < 0]), logsumexp(log_density[shift > 0])


def test_masses_of_both_modes_are_those_of_quadrature():
    left, right = masses(1.0)
    found = find_modes(TwoSided(1.0), BAGS, {"right": {"shift": np.array([2.5, 3.0])}}, seed=0)
    assert found is not None
    assert len(found.log_evidence) == 2
    by_size = sorted(found.log_evidence)
    # Each mode is skewed, and weighted by 1,000 draws; the Gaussian there may cut a tail.
    np.testing.assert_allclose(by_size, sorted([left, right]), atol=0.1)
    missed = found.missed("right")
    assert missed is not None
    assert missed.mass == pytest.approx(expit(left - right), abs=0.03)


def test_few_draws_in_another_mode_count_as_a_visit():
    shift = np.append(np.full(990, 2.5), np.full(10, -2.5))
    found = find_modes(TwoSided(), BAGS, {"a": {"shift": shift}}, seed=0)
    assert found is not None and found.missed("a") is None


@pytest.mark.in_ci
def test_a_posterior_with_one_mode_has_nothing_to_miss():
    bags = simulate_instances(12, 2, num_features=1, seed=1)
    bags = Bags.from_list([bags.instances[i : i + 2] for i in range(0, 24, 2)], [0, 1] * 6)
    model = VGPMIL(RBF(2.0, 1.0), np.array([[-0.7], [0.7]]), mean=-0.9)
    draws = {"cavi": coordinate_ascent(model, bags, seed=0).stored_draws()}
    assert find_modes(model, bags, draws, seed=0) is None


@pytest.mark.in_ci
def test_chains_in_one_of_two_modes_judge_nothing():
    model = TwoSided()
    chains = {
        name: nuts(model, BAGS, seed=seed, num_warmup=300, num_samples=1000)
        for name, seed in (("left", 0), ("also left", 1))
    }
    for one in chains.values():  # chains that all stay on one side, as those of a stiffer target do
        site = one.tree["posterior"]["shift"]
        site.values = -np.abs(site.values)
    compared = compare({"laplace": laplace(model, BAGS, seed=0), **chains})
    assert set(compared.missed) >= {"left", "also left"}
    assert compared.missed["left"].mass == pytest.approx(0.5, abs=0.05)
    assert "left did not visit modes that hold 50 % of the mass" in compared.reference_sentence
    assert not any("they should be" in text for text in compared.sentences.values())


@pytest.mark.slow
@pytest.mark.slow  # quick: the golden file of the same comparison
def test_engines_in_a_near_mode_hear_of_the_far(runaway):
    assert set(runaway.missed) == {"coordinate_ascent", "nuts", "gibbs"}
    assert all(one.mass > 0.99 for one in runaway.missed.values())
    assert all(one.size > 10 * one.own_size for one in runaway.missed.values())
    for name, text in runaway.sentences.items():
        assert f"{name} did not visit modes that hold over 99 % of the mass" in text
        assert "they should be" not in text
    assert "It judges no other." in runaway.reference_sentence


@pytest.mark.parametrize("unknown", [(np.nan, 1.0), (1.0, np.nan)])
def test_nothing_is_said_of_a_nan_mass(unknown):
    modes = Modes(unknown, (0.1, 0.1), (1.0, 50.0), {"a": (True, False)})
    assert modes.missed("a") is None
    assert replace(modes, log_evidence=(1.0, 5.0)).missed("a") is not None
