"""Several classes of bags: two classes, brute force over instance labels, quadrature."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags, load
from milzoo.estimators import MILES, BayesianMIL, StickBreakingClassifier
from milzoo.models import RBF, VGPMIL
from numpyro.infer.util import log_density
from scipy.special import expit, logsumexp
from scipy.stats import norm

VGPMIL_BY_ASCENT = BayesianMIL(VGPMIL, "coordinate_ascent", seed=0, model__num_inducing=10)
SHARPNESS = 100.0


@pytest.fixture(scope="module")
def bags():
    return load("digits")[:60].standardize()


@pytest.fixture(scope="module")
def classes(bags):
    """No witness, one, or more."""
    return np.minimum(np.add.reduceat(bags.instance_labels, bags.starts), 2)


@pytest.fixture(scope="module")
def fitted(bags, classes):
    return StickBreakingClassifier(VGPMIL_BY_ASCENT).fit(bags, classes)


def test_two_classes_are_one_model(bags):
    alone = VGPMIL_BY_ASCENT.fit(bags)
    found = StickBreakingClassifier(VGPMIL_BY_ASCENT).fit(bags)
    np.testing.assert_allclose(found.predict_proba(bags), alone.predict_proba(bags), rtol=1e-12)
    np.testing.assert_allclose(
        found.predict_instances_proba(bags), alone.predict_instances_proba(bags), rtol=1e-12
    )


def test_sticks_see_the_bags_that_remain(bags, classes, fitted):
    """The first stick tells 2 from the rest, the second 1 from 0."""
    unlabelled = replace(bags, labels=None, instance_labels=None)
    first = VGPMIL_BY_ASCENT.fit(unlabelled, classes == 2).predict_proba(bags)[:, 1]
    fewer = classes < 2
    second = VGPMIL_BY_ASCENT.fit(unlabelled[fewer], classes[fewer]).predict_proba(bags)[:, 1]
    expected = np.stack([(1 - first) * (1 - second), (1 - first) * second, first], axis=1)
    np.testing.assert_allclose(fitted.predict_proba(bags), expected, rtol=1e-12)
    assert fitted.order_.tolist() == [2, 1, 0]


def test_probabilities_sum_to_one(bags, fitted):
    for found in (fitted.predict_proba(bags), fitted.predict_instances_proba(bags)):
        assert found.min() >= 0
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)


def probability_by_labels(logits, sharpness=SHARPNESS):
    """P(T = 2, 1, 0) of a bag by all labels y of its instances, one for each class but the last.

    ``logits`` (2, N) are the latent values; a class is taken with probability H/(H + 1) where
    the largest of its labels is 1, and with 1/(H + 1) where it is 0.
    """
    total = np.zeros(3)
    size = logits.shape[1]
    for labels in product(product([0, 1], repeat=size), repeat=2):
        y = np.array(labels)
        chance = np.prod(expit(logits) ** y * expit(-logits) ** (1 - y))
        taken = np.where(y.max(axis=1) == 1, sharpness, 1.0) / (sharpness + 1)
        total += chance * np.array([taken[0], (1 - taken[0]) * taken[1], np.prod(1 - taken)])
    return total


def test_bag_probability_sums_all_instance_labels():
    """Given latent values, the product of the sticks is the sum over 2^{2N} labels."""
    logits = np.random.default_rng(0).normal(size=(2, 3))
    none_positive = np.prod(expit(-logits), axis=1)
    stick = (SHARPNESS - (SHARPNESS - 1) * none_positive) / (SHARPNESS + 1)
    product_form = [stick[0], (1 - stick[0]) * stick[1], np.prod(1 - stick)]
    np.testing.assert_allclose(probability_by_labels(logits), product_form, rtol=1e-12)


@pytest.mark.slow
def test_joint_evidence_is_the_product_of_the_sticks():
    """One inducing value for each stick: quadrature of the joint likelihood in both at once."""
    random = np.random.default_rng(1)
    bags = Bags.from_list([random.normal(size=(size, 2)) for size in (1, 2, 3, 1, 2)])
    classes = np.array([2, 1, 0, 0, 1])
    model = VGPMIL(RBF(2.0, 1.5), np.zeros((1, 2)))
    grid = jnp.linspace(-9.0, 9.0, 601)
    weight = np.log(18 / 600)

    def log_joint(labels, chosen):
        """log p(u) + log p(T | u) on the grid."""
        some = replace(bags[chosen], labels=labels)

        def at(value):
            site = {"inducing_value": value[None]}
            return log_density(model.marginal(), (some,), {}, site)[0]

        with jax.enable_x64(True):
            return np.asarray(jax.vmap(at)(grid))

    everything = np.arange(5)
    first = log_joint((classes == 2).astype(int), everything)
    fewer = np.flatnonzero(classes < 2)
    second = log_joint(classes[fewer], fewer)
    # All bags by both inducing values: P(T = 2) = π₂, P(T = 1) = (1 − π₂) π₁, P(T = 0) the rest.
    prior = norm.logpdf(grid, scale=np.sqrt(2.0 * (1 + model.jitter)))
    of_bag = np.stack(
        [
            [log_joint(np.array([label]), np.array([b])) - prior for label in (0, 1)]
            for b in everything
        ]
    )
    joint = prior[:, None] + prior[None, :]
    for b, code in enumerate(classes):
        joint = joint + of_bag[b, int(code == 2)][:, None]
        if code < 2:
            joint = joint + of_bag[b, code][None, :]
    expected = logsumexp(first) + logsumexp(second) + 2 * weight
    np.testing.assert_allclose(logsumexp(joint) + 2 * weight, expected, rtol=1e-10)


# ------------------------------------------------------------------ what it is given


def test_the_order_is_a_part_of_the_model(bags, classes, fitted):
    other = StickBreakingClassifier(VGPMIL_BY_ASCENT, order=[1, 2, 0]).fit(bags, classes)
    assert other.order_.tolist() == [1, 2, 0]
    assert other.classes_.tolist() == [0, 1, 2]
    assert np.abs(other.predict_proba(bags) - fitted.predict_proba(bags)).max() > 0.01


def test_classes_may_be_words(bags, classes, fitted):
    words = np.array(["a none", "b one", "c more"])[classes]
    found = StickBreakingClassifier(VGPMIL_BY_ASCENT).fit(bags, words)
    np.testing.assert_array_equal(found.predict_proba(bags), fitted.predict_proba(bags))
    assert set(found.predict(bags)) <= set(words)
    assert found.score(bags, words) == fitted.score(bags, classes)


def test_an_order_of_other_classes_is_refused(bags, classes):
    with pytest.raises(ValueError, match=r"order is \[2, 1\]; expected each of the classes"):
        StickBreakingClassifier(VGPMIL_BY_ASCENT, order=[2, 1]).fit(bags, classes)


def test_one_class_is_refused(bags):
    with pytest.raises(ValueError, match="bags have one class only, 1"):
        StickBreakingClassifier(VGPMIL_BY_ASCENT).fit(bags, np.ones(len(bags), int))


def test_a_classifier_without_probabilities_is_refused(bags, classes):
    with pytest.raises(TypeError, match=r"classifier is MILES.*fit and predict_proba"):
        StickBreakingClassifier(MILES(1.0)).fit(bags, classes)


def test_instances_are_asked_of_models_alone(bags, classes):
    assert hasattr(StickBreakingClassifier(VGPMIL_BY_ASCENT), "predict_instances_proba")
    assert not hasattr(StickBreakingClassifier(MILES(1.0)), "predict_instances_proba")
