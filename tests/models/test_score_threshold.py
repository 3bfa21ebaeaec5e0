"""The soft threshold on a score against sums over all labels, and its hard limit."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, load, simulate
from milzoo.estimators import ScoreLearner
from milzoo.inference.runtime.densities import log_joint, log_likelihood
from milzoo.models import NeighbourScore, ScoreThreshold, scored
from milzoo.models.score_threshold import BagLabelsByScore
from scipy.special import expit, logsumexp
from scipy.stats import lognorm, norm

NUM_SCORES = 3


@pytest.fixture(scope="module")
def bags():
    """Four bags of two, one, three and one instances."""
    random = np.random.default_rng(0)
    parts = [random.normal(size=(size, NUM_SCORES)) for size in (2, 1, 3, 1)]
    return Bags.from_list(parts, labels=[1, 0, 1, 1])


@pytest.fixture(scope="module")
def draws():
    random = np.random.default_rng(1)
    return {"threshold": random.normal(size=6), "softness": np.exp(random.normal(size=6) - 1)}


def by_all_labels(threshold, softness, bags, labels):
    """log P_k(Y_b) by the sum over the labels of the instances, (K, B)."""
    chance = expit((bags.instances - threshold) / softness)
    found = np.empty((NUM_SCORES, bags.num_bags))
    for k in range(NUM_SCORES):
        for b, label in enumerate(labels):
            own = chance[bags.bag_index == b, k]
            total = 0.0
            for each in product([0, 1], repeat=len(own)):
                if max(each) == label:
                    total += np.prod(np.where(np.array(each) == 1, own, 1 - own))
            found[k, b] = np.log(total)
    return found


def test_the_marginal_program_sums_over_labels_and_scores(bags, draws):
    model = ScoreThreshold()
    expected = [
        norm(0, 2).logpdf(t)
        + lognorm(1.0, scale=np.exp(-1)).logpdf(s)
        + logsumexp(by_all_labels(t, s, bags, bags.labels).sum(axis=1))
        - np.log(NUM_SCORES)
        for t, s in zip(draws["threshold"], draws["softness"], strict=True)
    ]
    np.testing.assert_allclose(log_joint(model, "marginal", draws, bags), expected, rtol=1e-12)


@pytest.mark.parametrize("program", ["called", "augmented"])
def test_programs_with_discrete_sites_sum_to_the_marginal_one(bags, draws, program):
    model = ScoreThreshold()
    one = {name: value[:1] for name, value in draws.items()}
    labellings = [[0] * 7] if program == "called" else list(product([0, 1], repeat=7))
    values = [
        dict(one)
        | {"score_index": np.array([k])}
        | ({} if program == "called" else {"instance_label": np.array([labelling])})
        for k in range(NUM_SCORES)
        for labelling in labellings
    ]
    together = {name: np.concatenate([value[name] for value in values]) for name in values[0]}
    full = log_joint(model, "full" if program == "called" else "augmented", together, bags)
    expected = log_joint(model, "marginal", one, bags)[0]
    np.testing.assert_allclose(logsumexp(full), expected, rtol=1e-12)


def test_a_bag_is_predicted_from_the_other_labels(bags, draws):
    """log p(Y) − log p(Y without b), by which leave-one-out goes."""
    t, s = draws["threshold"][0], draws["softness"][0]
    by_bag = by_all_labels(t, s, bags, bags.labels)
    whole = logsumexp(by_bag.sum(axis=1))
    expected = [whole - logsumexp(np.delete(by_bag, b, axis=1).sum(axis=1)) for b in range(4)]
    found = log_likelihood(ScoreThreshold(), "marginal", draws, bags)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_labels_are_drawn_with_their_probabilities():
    logits = jnp.array([[2.0, -1.0], [-3.0, 0.5]])
    distribution = BagLabelsByScore(logits)
    drawn = np.asarray(distribution.sample(jax.random.key(0), (40_000,)))
    for pair in product([0, 1], repeat=2):
        chance = float(jnp.exp(distribution.log_prob(jnp.array(pair))))
        fraction = np.mean((drawn == pair).all(axis=1))
        # Four looks at 4.5 sd: a false alarm in 3e-5 of all seeds.
        assert abs(fraction - chance) < 4.5 * np.sqrt(chance * (1 - chance) / len(drawn))
    np.testing.assert_allclose(distribution.mean, expit(np.asarray(logits)).mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        distribution.variance, distribution.mean * (1 - distribution.mean), rtol=1e-6
    )


def test_predictions_are_means_over_scores_by_their_posterior(bags, draws):
    model = ScoreThreshold()
    known = dict(draws) | model.estimands_of(draws, bags)
    assert known["score_probability"].shape == (6, NUM_SCORES)
    predicted = model.predict(known, replace(bags, labels=None))
    for n, (t, s) in enumerate(zip(draws["threshold"], draws["softness"], strict=True)):
        of_score = by_all_labels(t, s, bags, bags.labels).sum(axis=1)
        weight = np.exp(of_score - logsumexp(of_score))
        np.testing.assert_allclose(known["score_probability"][n], weight, rtol=1e-10)
        positive = np.exp(by_all_labels(t, s, bags, [1] * 4))
        np.testing.assert_allclose(predicted["bag_probability"][n], weight @ positive, rtol=1e-10)
        own = expit((bags.instances - t) / s) @ weight
        np.testing.assert_allclose(predicted["instance_probability"][n], own, rtol=1e-10)


@pytest.mark.slow
def test_what_was_summed_out_is_drawn_back(bags, draws):
    model = ScoreThreshold()
    one = {name: np.repeat(value[:1], 20_000) for name, value in draws.items()}
    drawn = model.complete(one, bags, seed=0)
    highest = [drawn["instance_label"][:, bags.bag_index == b].max(axis=1) for b in range(4)]
    assert (bags.labels == np.array(highest).T).all()
    expected = model.estimands_of(draws, bags)["score_probability"][0]
    for k, chance in enumerate(expected):
        error = np.sqrt(chance * (1 - chance) / 20_000)
        assert abs(np.mean(drawn["score_index"] == k) - chance) < 4.5 * error
    # P(y_n = 1 | Y) of the first instance, by Bayes within its bag of two.
    t, s = draws["threshold"][0], draws["softness"][0]
    chance = expit((bags.instances[:2] - t) / s)
    given = chance[0] / (1 - np.prod(1 - chance, axis=0))
    mean = given @ expected
    error = np.sqrt(mean * (1 - mean) / 20_000)
    assert abs(drawn["instance_label"][:, 0].mean() - mean) < 4.5 * error


def test_a_sharp_threshold_is_the_papers():
    bags = load("kandemir2014")
    training, test = bags.split(0.7, seed=0)
    neighbourhood_score = NeighbourScore(k=3)
    hard = ScoreLearner(neighbourhood_score).fit(training)
    draws = {
        "threshold": np.array([hard.threshold_.value]),
        "softness": np.array([1e-6]),
        "score_probability": np.ones((1, 1)),
    }
    predicted = ScoreThreshold().predict(draws, scored([neighbourhood_score], training, test))
    np.testing.assert_array_equal(predicted["bag_probability"][0] > 0.5, hard.predict(test))


def test_labels_can_be_simulated(bags):
    drawn, sites = simulate(ScoreThreshold().marginal(), bags, seed=0)
    assert drawn.labels.shape == (4,)
    assert {"threshold", "softness"} < set(sites)


# ------------------------------------------------------------------ what it refuses


def test_bad_input_is_refused(bags, draws):
    with pytest.raises(ValueError, match=r"softness_prior is .*; expected a NumPyro distri"):
        ScoreThreshold(softness_prior=dist.Normal(0.0, 1.0))
    with pytest.raises(ValueError, match=r"threshold_prior is .* of one real number"):
        ScoreThreshold(threshold_prior=dist.LogNormal(0.0, 1.0))
    model = ScoreThreshold()
    with pytest.raises(ValueError, match=r"draws have no score_probability; model.estimands_of"):
        model.predict(draws, bags)
    known = dict(draws) | model.estimands_of(draws, bags)
    narrow = replace(bags, instances=bags.instances[:, :2])
    with pytest.raises(ValueError, match="bags have 2 features, but 3 scores were learned from"):
        model.predict(known, narrow)
    with pytest.raises(ValueError, match="bags have no labels; complete"):
        model.complete(draws, replace(bags, labels=None), seed=0)
