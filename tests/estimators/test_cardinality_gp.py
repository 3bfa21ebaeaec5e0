"""The process on the mean kernel: no label is used twice, and noise stays noise."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import load, simulate_instances
from milzoo.estimators import BayesianMIL, CardinalityGPClassifier
from milzoo.inference import coordinate_ascent
from milzoo.models import (
    RBF,
    VWSGP,
    CardinalityGP,
    CardinalityModel,
    MeanCardinalityKernel,
    NormalCardinality,
)

LAPLACE = BayesianMIL(CardinalityModel, "laplace", seed=0)
NUM_DRAWS = 5


@pytest.fixture(scope="module")
def bags():
    return load("digits")[:48].standardize()


@pytest.fixture(scope="module")
def fitted(bags):
    return CardinalityGPClassifier(LAPLACE, num_draws=NUM_DRAWS, seed=0).fit(bags)


def test_parts_have_each_label_once(bags, fitted):
    parts = [process.model.made_at for process in fitted.posteriors_]
    others = [posterior.bags for posterior in fitted.cardinality_posteriors_]
    assert sum(len(part) for part in parts) == len(bags)
    for part, rest, process in zip(parts, others, fitted.posteriors_, strict=True):
        assert len(part) + len(rest) == len(bags)
        assert process.model.kernel.learned_from_labels_of(rest) == (
            f"a kernel learned from the labels of {len(rest)} of its bags"
        )
        assert process.model.learned_from_labels == ""


def test_predictions_are_means_of_the_processes(bags, fitted):
    """Made again by hand from the posteriors of the cardinality models."""
    by_hand = []
    for posterior in fitted.cardinality_posteriors_:
        rows = np.flatnonzero(~np.isin(bags.names, posterior.bags.names))
        draws = posterior.draws(NUM_DRAWS, seed=0)
        kernel = MeanCardinalityKernel.of(
            posterior.model, draws, posterior.bags, RBF(1.0, np.sqrt(bags.num_features))
        )
        again = coordinate_ascent(
            CardinalityGP.at_bags(kernel, bags[rows], 5.0), bags[rows], seed=0
        )
        by_hand.append(again.predict(bags).bag_probability)
    assert len(by_hand) == 2
    found = fitted.predict_proba(bags)[:, 1]
    np.testing.assert_allclose(found, np.mean(by_hand, axis=0), rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_labels_used_twice_find_evidence_in_noise(seed):
    """No process can expect more evidence than a coin has for labels that no feature tells."""
    noise = simulate_instances(40, 3, num_features=30, seed=seed)
    labels = np.random.default_rng(seed + 50).permutation(np.arange(40) % 2)
    noise, coin = replace(noise, labels=labels), 40 * np.log(0.5)
    once = CardinalityGPClassifier(LAPLACE, 8.0, num_draws=NUM_DRAWS, seed=0).fit(noise)
    posterior = LAPLACE.fit(noise).posterior_
    draws = posterior.draws(NUM_DRAWS, seed=0)
    kernel = MeanCardinalityKernel.of(posterior.model, draws, noise, RBF(1.0, 8.0))
    twice = coordinate_ascent(CardinalityGP.at_bags(kernel, noise, 5.0), noise, seed=0)
    assert twice.model.learned_from_labels.endswith("40 of its bags")
    assert sum(process.elbo[-1] for process in once.posteriors_) < coin - 1
    assert twice.elbo[-1] > coin + 1


@pytest.mark.slow
def test_priors_on_the_potential_are_sampled(bags):
    def with_priors(given, seed):
        potential = NormalCardinality(dist.Beta(2.0, 2.0), dist.LogNormal(-2.0, 0.5))
        return CardinalityModel.for_bags(given, potential)

    sampled = BayesianMIL(
        with_priors,
        "nuts",
        seed=0,
        engine__num_warmup=50,
        engine__num_samples=50,
        engine__num_chains=1,
    )
    fitted = CardinalityGPClassifier(sampled, num_draws=4, seed=0).fit(bags)
    for process in fitted.posteriors_:
        drawn = process.model.kernel.draws
        assert set(drawn) == {"weights", "mu", "sigma"}
        assert len(np.unique(drawn["mu"])) == 4


def test_too_few_bags_of_a_label_are_refused(bags):
    few = bags[np.r_[np.flatnonzero(bags.labels == 1)[:2], np.flatnonzero(bags.labels == 0)]]
    with pytest.raises(ValueError, match="num_parts is 3, but only 2 bags have one of the labels"):
        CardinalityGPClassifier(LAPLACE, num_parts=3, seed=0).fit(few)


def test_another_model_is_refused(bags):
    other = BayesianMIL(VWSGP, "coordinate_ascent", seed=0, model__num_inducing=5)
    with pytest.raises(TypeError, match="cardinality fits a VWSGP; expected a CardinalityModel"):
        CardinalityGPClassifier(other, seed=0).fit(bags)
    with pytest.raises(ValueError, match="num_parts is 1; expected an integer of at least 2"):
        CardinalityGPClassifier(LAPLACE, num_parts=1, seed=0).fit(bags)
