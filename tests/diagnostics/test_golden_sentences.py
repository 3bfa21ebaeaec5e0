"""Verdicts as a reader gets them, kept in ``golden/`` to be read and reviewed.

Words must come back as they are, numbers up to what another machine's rounding does to chains. With
``MILZOO_WRITE_GOLDEN=1`` the files are written anew: read what has changed.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import load, simulate, simulate_instances
from milzoo.diagnostics import Comparison, compare
from milzoo.inference import coordinate_ascent, gibbs, grid, laplace, nuts, svi
from milzoo.inference.gaussian import FlatApproximation
from milzoo.models import RBF, VGPMIL, Gaussian
from milzoo.models.numerics.tracing import as_pytree
from milzoo.models.vwsgp import VWSGP

pytestmark = pytest.mark.in_ci

GOLDEN = Path(__file__).parent / "golden"
# The largest |z| of two samplers that agree is chance alone, and other chains have another. The
# smallest ESS of several sites is an estimate that differs by a tenth and more between chains.
CHANCE = re.compile(r"(?<=\|z\| )\d+\.\d+|(?<=smallest ESS )[\d,]+ bulk and [\d,]+(?= tail)")
NUMBER = re.compile(r"(?<![A-Za-z])\d[\d,]*(?:\.\d+)?")
INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(16, range(1, 5), num_features=2, seed=3)
TWO = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS[:2], mean=-0.8)
GAUSSIAN = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=Gaussian(0.5))


@as_pytree()
@dataclass(frozen=True, eq=False)
class Heavy(FlatApproximation):
    """A t₃ with the mean and the covariance of a Gaussian."""

    mean: np.ndarray
    scale_tril: np.ndarray

    def distribution(self):
        tril = jnp.asarray(self.scale_tril) / np.sqrt(3.0)
        return dist.MultivariateStudentT(3.0, jnp.asarray(self.mean), tril, validate_args=False)


def numbers(text):
    """The numbers of a text that come back on another machine."""
    found = NUMBER.findall(CHANCE.sub("#", text))
    return [float(number.replace(",", "")) for number in found]


def check(name: str, comparison: Comparison) -> None:
    text = "\n\n".join([comparison.reference_sentence, *comparison.sentences.values()]) + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("MILZOO_WRITE_GOLDEN"):
        file.write_text(text, "utf-8")
    expected = file.read_text("utf-8")
    assert NUMBER.sub("#", text) == NUMBER.sub("#", expected)
    np.testing.assert_allclose(numbers(text), numbers(expected), rtol=0.1, atol=0.02)


@pytest.fixture(scope="module")
def labels():
    return simulate(TWO, DESIGN, seed=1)[0]


@pytest.mark.slow
def test_a_grid_reference(labels):
    posteriors = {
        "grid": grid(TWO, labels, seed=0),
        "coordinate_ascent": coordinate_ascent(TWO, labels, seed=0),
        "laplace": laplace(TWO, labels, seed=0),
    }
    check("grid_reference", compare(posteriors, test=labels))


def test_a_t_matched_in_mean_and_sd():
    targets, _ = simulate(GAUSSIAN, DESIGN, seed=1)
    exact = laplace(GAUSSIAN, targets, seed=0)  # of a Gaussian posterior
    heavy = Heavy(exact.approximation.mean, exact.approximation.scale_tril)
    check("matched_t", compare({"exact": exact, "t3": replace(exact, approximation=heavy)}))


def test_an_unmixed_reference(labels):
    mixed = nuts(TWO, labels, seed=0, num_warmup=200, num_samples=500)
    tree = mixed.tree.copy(deep=True)
    values = tree["posterior"]["inducing_value"].values
    values[:] = np.random.default_rng(0).normal(size=values.shape)
    values[0] += 3.0
    stuck = replace(mixed, tree=tree)
    posteriors = {"stuck": stuck, "coordinate_ascent": coordinate_ascent(TWO, labels, seed=0)}
    check("unmixed_reference", compare(posteriors))


@pytest.mark.slow
def test_a_runaway(runaway):
    check("runaway", runaway)
    assert runaway.check is None  # labels of a ψ that is not normalised cannot be drawn


@pytest.mark.slow
def test_the_demo():
    train, test = load("digits").split(0.7, seed=0)
    train, test = train.standardize(), test.standardize(train)
    model = VGPMIL.for_bags(train, variance=5.0, length_scale=8.0, mean=-3.0)
    posteriors = {
        "coordinate_ascent": coordinate_ascent(model, train, seed=0),
        "laplace": laplace(model, train, seed=0),
        "svi": svi(model, train, seed=0),
        "nuts": nuts(model, train, seed=0),
        "gibbs": gibbs(model, train, seed=0, num_warmup=100, num_samples=2000, thin=8),
    }
    check("demo", compare(posteriors, test=test))
