"""Several starts of one ascent: where they agree, where not, and where one ends lower."""

import jax
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.diagnostics import compare
from milzoo.inference import svi
from milzoo.inference.gaussian import GaussianApproximation
from milzoo.inference.posterior import Status
from milzoo.inference.starts import compared_across_starts
from milzoo.models import DiverseDensity
from numpyro import distributions as dist

CONVERGED = Status("converged", "it is at its end")


def normal(mean, size, scale=1.0):
    return GaussianApproximation(np.full(size, mean), scale * np.eye(size))


@pytest.fixture(scope="module")
def judged(small_problem):
    """The status by means of q in sds, and by bounds."""
    model, bags = small_problem
    size = len(model.inducing_points)

    def judged(means, bounds, status=CONVERGED):
        with jax.enable_x64(True):
            approximations = [normal(mean, size) for mean in means]
            key = jax.random.key(0)
            return compared_across_starts(
                status, model, bags, approximations, np.array(bounds), key=key
            )

    return judged


def test_starts_that_end_alike_agree(judged):
    status = judged([0.0, 0.0, 0.0], [-7.0, -7.1, -6.9])
    assert status.kind == "converged"
    assert "across 3 of 3 starts" in status.sentence


def test_whitened_means_that_differ_by_an_sd_disagree(judged, small_problem):
    """R̂² = 1 + d²/3 of two chains, split, whose means differ by d of their own sds."""
    with jax.enable_x64(True):
        factor = np.asarray(small_problem[0].inducing_cholesky())
    distance = np.abs(factor.sum(axis=1)) / np.linalg.norm(factor, axis=1)  # of L1, in sds
    status = judged([-0.5, 0.5], [-7.0, -7.0])
    assert status.kind == "disagreed"
    rhat = float(status.sentence.split("R̂ ")[1].split()[0])
    assert rhat == pytest.approx(np.sqrt(1 + distance.max() ** 2 / 3), abs=0.05)
    assert judged([-0.15, 0.15], [-7.0, -7.0]).kind == "converged"


def test_an_optimum_without_weight_is_left_out(judged):
    status = judged([0.0, 3.0], [-7.0, -19.5])
    assert status.kind == "converged"
    assert status.sentence.endswith("the next highest of 2 starts ends 12.5 nats lower")
    status = judged([0.0, 3.0, 0.0], [-7.0, -np.inf, -7.0])
    assert status.kind == "converged" and "across 2 of 3 starts" in status.sentence


def test_an_ascent_that_has_not_ended_keeps_its_status(judged):
    status = judged([0.0, 3.0], [-7.0, -7.0], Status("max_steps", "it still rises"))
    assert status.kind == "max_steps" and status.sentence.startswith("it still rises; R̂ ")


@pytest.fixture(scope="module")
def two_concepts():
    """Bags with an instance at 3 and one at −3 are positive: the concept is near either."""
    random = np.random.default_rng(1)
    pairs = [np.array([[3.0], [-3.0]]) + 0.1 * random.normal(size=(2, 1)) for _ in range(4)]
    others = [np.full((1, 1), value) for value in (0.2, -0.2, 6.0, -6.0)]
    bags = Bags.from_list([*pairs, *others], labels=[1] * 4 + [0] * 4)
    return DiverseDensity(concept_prior=dist.Normal(0.0, 3.0)), bags


@pytest.mark.slow
def test_svi_tells_of_two_concepts(two_concepts):
    settings = {"max_steps": 1000, "learning_rate": 0.05, "seed": 0}
    several = svi(*two_concepts, num_starts=4, **settings)
    assert several.status.kind == "disagreed"
    comparison = compare({"svi": several})
    assert "svi depends on where it starts: " in comparison.sentences["svi"]
    assert comparison.verdicts["svi"].status == "disagreed"


@pytest.mark.in_ci
def test_the_highest_of_the_starts_is_returned(two_concepts):
    """More starts begin as fewer did; of this seed each of the first three ends higher."""
    settings = {"max_steps": 200, "seed": 2}
    bounds = [svi(*two_concepts, num_starts=n, **settings).elbo[-1] for n in (1, 2, 3)]
    assert bounds[0] < bounds[1] < bounds[2]
