"""Diverse density against sums over all labels, and where its logarithms are hardest."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, simulate
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import DiverseDensity
from milzoo.models.diverse_density import concept_logits, log_diverse_density
from scipy.special import logsumexp
from scipy.stats import lognorm, norm

MODEL = DiverseDensity(dist.Normal(0.2, 1.5), dist.LogNormal(-0.3, 0.7))


@pytest.fixture(scope="module")
def bags():
    """Four bags of two, one, three and one instances, in two dimensions."""
    random = np.random.default_rng(0)
    parts = [random.normal(size=(size, 2)) for size in (2, 1, 3, 1)]
    return Bags.from_list(parts, labels=[1, 0, 1, 1])


@pytest.fixture(scope="module")
def draws():
    random = np.random.default_rng(1)
    return {"concept": random.normal(size=(6, 2)), "scale": np.exp(random.normal(size=(6, 2)) / 2)}


def chance_of_instances(concept, scale, instances):
    return np.exp(-(scale**2 * (instances - concept) ** 2).sum(axis=1))


def by_all_labels(chance, bags, labels):
    """P(Y_b) by the sum over the labels of the instances, (B,)."""
    found = []
    for b, label in enumerate(labels):
        own, total = chance[bags.bag_index == b], 0.0
        for each in product([0, 1], repeat=len(own)):
            if max(each) == label:
                total += np.prod(np.where(np.array(each) == 1, own, 1 - own))
        found.append(total)
    return np.array(found)


def test_the_program_is_the_sum_over_all_labels(bags, draws):
    expected = [
        norm(0.2, 1.5).logpdf(t).sum()
        + lognorm(0.7, scale=np.exp(-0.3)).logpdf(s).sum()
        + np.log(by_all_labels(chance_of_instances(t, s, bags.instances), bags, bags.labels)).sum()
        for t, s in zip(draws["concept"], draws["scale"], strict=True)
    ]
    np.testing.assert_allclose(log_joint(MODEL, "marginal", draws, bags), expected, rtol=1e-12)


def test_the_augmented_program_sums_to_it(bags, draws):
    labellings = np.array(list(product([0, 1], repeat=7)))
    one = {name: np.repeat(value[:1], len(labellings), axis=0) for name, value in draws.items()}
    full = log_joint(MODEL, "augmented", one | {"instance_label": labellings}, bags)
    expected = log_joint(MODEL, "marginal", {n: v[:1] for n, v in draws.items()}, bags)[0]
    np.testing.assert_allclose(logsumexp(full), expected, rtol=1e-12)


def test_predictions_are_the_noisy_or_and_its_parts(bags, draws):
    predicted = MODEL.predict(draws, replace(bags, labels=None))
    for n, (t, s) in enumerate(zip(draws["concept"], draws["scale"], strict=True)):
        chance = chance_of_instances(t, s, bags.instances)
        np.testing.assert_allclose(predicted["instance_probability"][n], chance, rtol=1e-10)
        positive = by_all_labels(chance, bags, [1] * 4)
        np.testing.assert_allclose(predicted["bag_probability"][n], positive, rtol=1e-10)


@pytest.mark.slow
def test_instance_labels_are_drawn_back_given_those_of_bags(bags, draws):
    one = {name: np.repeat(value[:1], 20_000, axis=0) for name, value in draws.items()}
    drawn = MODEL.complete(one, bags, seed=0)["instance_label"]
    highest = [drawn[:, bags.bag_index == b].max(axis=1) for b in range(4)]
    assert (bags.labels == np.array(highest).T).all()
    chance = chance_of_instances(draws["concept"][0], draws["scale"][0], bags.instances)
    for first, size in ((0, 2), (3, 3)):
        own = chance[first : first + size]
        given = own / (1 - np.prod(1 - own))
        error = np.sqrt(given * (1 - given) / 20_000)
        # Five looks at 4.5 sd: a false alarm in 4e-5 of all seeds.
        found = drawn[:, first : first + size].mean(axis=0)
        assert (np.abs(found - given) < 4.5 * error).all()


def gradient_and_differences(function, point, step=1e-6):
    moves = step * np.eye(point.size)
    differences = [(function(point + move) - function(point - move)) / (2 * step) for move in moves]
    return np.asarray(jax.grad(function)(point)), np.array(differences)


@pytest.mark.slow
def test_gradients_are_finite_differences(bags, draws):
    with jax.enable_x64(True):
        for t, s in zip(draws["concept"], draws["scale"], strict=True):

            def objective(both):
                return log_diverse_density({"concept": both[:2], "scale": both[2:]}, bags).sum()

            found, expected = gradient_and_differences(objective, jnp.concatenate([t, s]))
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_a_concept_far_away_has_likelihood_and_gradient(bags):
    """P(Y_b = 1) is e^−80,000 there, and the nearest instance alone counts."""
    site = {"concept": jnp.array([200.0, 0.0]), "scale": jnp.array([1.5, 0.8])}
    with jax.enable_x64(True):
        found = np.asarray(log_diverse_density(site, bags))
        gradient = jax.grad(lambda t: log_diverse_density(site | {"concept": t}, bags).sum())
        at = np.asarray(gradient(site["concept"].astype(float)))
    offset = bags.instances - np.array([200.0, 0.0])
    squared = (np.array([1.5, 0.8]) ** 2 * offset**2).sum(axis=1)
    nearest = [int(np.argmin(np.where(bags.bag_index == b, squared, np.inf))) for b in (0, 2, 3)]
    # The second nearest adds e^−100 and less.
    np.testing.assert_allclose(found[[0, 2, 3]], -squared[nearest], rtol=1e-6)
    assert abs(found[1]) < 1e-300
    expected = 2 * np.array([1.5, 0.8]) ** 2 * offset[nearest].sum(axis=0)
    np.testing.assert_allclose(at, expected, rtol=1e-6)


def test_concepts_at_negative_instances_have_negligible_density(bags):
    with jax.enable_x64(True):
        at = {"concept": jnp.asarray(bags.instances[2]), "scale": jnp.ones(2)}
        assert float(log_diverse_density(at, bags)[1]) < np.log(1e-11)
        assert float(concept_logits(at, bags.instances[2:3])[0]) > 20


def test_the_prior_of_scales_follows_the_number_of_features(bags):
    wide = Bags.from_list([np.zeros((2, 50))])
    for some in (bags, wide):
        model = DiverseDensity.for_bags(some)
        median = float(jnp.exp(model.scale_prior.loc))
        # Σ s² (x − z)² over D features, of which each has a mean square of 2.
        np.testing.assert_allclose(median**2 * 2 * some.num_features, 4.0, rtol=1e-6)


def test_labels_can_be_simulated(bags):
    drawn, sites = simulate(MODEL.marginal(), bags, seed=0)
    assert drawn.labels.shape == (4,)
    assert sites["concept"].shape == sites["scale"].shape == (2,)


def test_bad_input_is_refused(bags, draws):
    with pytest.raises(ValueError, match=r"DiverseDensity scale_prior is .* of one positive numbe"):
        DiverseDensity(scale_prior=dist.Normal(0.0, 1.0))
    with pytest.raises(ValueError, match=r"DiverseDensity concept_prior is .* of one real number"):
        DiverseDensity(concept_prior=dist.Normal(jnp.zeros(2), 1.0))
    wide = Bags.from_list([np.zeros((2, 3))])
    with pytest.raises(ValueError, match="bags have 3 features, but the concept has 2; pass bags"):
        MODEL.predict(draws, wide)
    with pytest.raises(ValueError, match="bags have no labels; complete"):
        MODEL.complete(draws, replace(bags, labels=None), seed=0)
