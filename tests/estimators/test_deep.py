"""Networks on bags: what they compute, what they learn, and what stands behind `DeepVGPMIL`."""

import importlib
import sys
from copy import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags
from milzoo.datasets.padding import padded
from milzoo.estimators import deep
from milzoo.estimators.deep import AttentionNetwork, DeepVGPMIL
from milzoo.inference import coordinate_ascent
from numpyro.infer.util import log_density
from scipy.special import expit
from sklearn.metrics import roc_auc_score

pytestmark = pytest.mark.in_ci

SHAPE = (4, 5)


@pytest.fixture(scope="module")
def bags():
    """A positive bag has one bright instance."""
    random = np.random.default_rng(0)
    tables = [random.normal(size=(1 + b % 4, 20)) for b in range(60)]
    for table in tables[1::2]:
        table[0, :10] += 1.5
    truth = [np.arange(len(table)) < b % 2 for b, table in enumerate(tables)]
    return Bags.from_list(tables, np.arange(60) % 2, instance_labels=truth)


@pytest.fixture(scope="module")
def attention(bags):
    return AttentionNetwork(6, num_epochs=40, batch_bags=16, learning_rate=3e-3, seed=0).fit(bags)


@pytest.fixture(scope="module")
def deep_gp(bags):
    classifier = DeepVGPMIL(4, 12, num_epochs=30, batch_bags=16, seed=0)
    return classifier.fit(bags)


def learned(classifier, bags):
    """AUC of bags and of instances."""
    return (
        roc_auc_score(bags.labels, classifier.decision_function(bags)),
        roc_auc_score(bags.instance_labels, classifier.score_instances(bags)),
    )


# ------------------------------------------------------------------ attention


def test_log_odds_are_the_formula_of_ilse(bags, attention):
    """cᵀ Σ a_n h_n + d with a_n ∝ exp wᵀ tanh(V h_n + b), in NumPy."""
    network, features = attention.network_, attention.transform(bags).instances
    hidden, weight, output = network.hidden, network.weight, network.output
    score = np.tanh(features @ np.asarray(hidden.weight).T + np.asarray(hidden.bias))
    score = np.exp(score @ np.asarray(weight.weight)[0])
    expected = []
    for b in range(len(bags)):
        rows = bags.bag_index == b
        pooled = (score[rows] / score[rows].sum()) @ features[rows]
        expected.append(np.asarray(output.weight)[0] @ pooled + float(output.bias[0]))
    np.testing.assert_allclose(attention.decision_function(bags), expected, atol=1e-5)


def test_log_odds_of_certain_bags_stay_apart(bags, attention):
    certain = copy(attention)
    weight = 1000 * attention.network_.output.weight
    certain.network_ = eqx.tree_at(lambda one: one.output.weight, attention.network_, weight)
    is_certain = certain.predict_proba(bags)[:, 1] == 1
    assert is_certain.sum() > 1
    assert len(np.unique(certain.decision_function(bags)[is_certain])) == is_certain.sum()


def test_instances_are_scored_as_bags_of_one(bags, attention):
    alone = Bags.from_list(list(bags.instances[:, None, :]))
    np.testing.assert_allclose(
        attention.score_instances(bags), attention.decision_function(alone), atol=1e-5
    )


def test_the_loss_averages_over_bags_that_are_there(bags, attention):
    found = attention.network_.loss(padded(bags), jnp.asarray(60.0), jax.random.key(0))
    sign = 2 * bags.labels - 1
    expected = np.logaddexp(0, -sign * attention.decision_function(bags)).mean()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_attention_finds_bags_and_witnesses(bags, attention):
    assert min(learned(attention, bags)) > 0.95
    assert attention.losses_[-1] < 0.3 < attention.losses_[0]


@pytest.mark.slow
def test_images_go_through_two_convolutions(bags):
    network = AttentionNetwork(6, image_shape=SHAPE, num_epochs=1, seed=0).fit(bags).network_
    features = network.features
    pixels = jnp.asarray(bags.instances[0], jnp.float32)
    first = np.maximum(features.first(pixels.reshape(1, *SHAPE)), 0)
    # Of 4 × 5 pixels the largest of each 2 × 2 are kept, and the fifth column is left out.
    pooled = first[:, :, :4].reshape(8, 2, 2, 2, 2).max(axis=(2, 4))
    second = np.maximum(features.second(jnp.asarray(pooled)), 0)
    expected = np.tanh(features.dense(jnp.asarray(second.max(axis=(1, 2)))))
    np.testing.assert_allclose(features(pixels), expected, atol=1e-5)


def test_images_of_another_size_are_refused(bags):
    with pytest.raises(ValueError, match=r"image_shape is \(8, 8\), and bags have 20 features"):
        AttentionNetwork(6, image_shape=(8, 8), seed=0).fit(bags)


# ------------------------------------------------------------------ VGPMIL on top


@pytest.fixture(scope="module")
def near_a_point(deep_gp):
    """The same network with a q(u) of next to no width."""
    network = deep_gp.network_
    with jax.enable_x64(True):
        narrow = -30.0 * jnp.eye(len(network.mean))
        return eqx.tree_at(lambda one: one.root, network, narrow)


def test_the_likelihood_is_that_of_the_marginal_program(bags, deep_gp, near_a_point):
    posterior = deep_gp.posterior_
    features = deep_gp.transform(bags)
    with jax.enable_x64(True):
        found = deep._expected_log_likelihood(near_a_point, padded(bags), jax.random.key(0))
        u = posterior.model.inducing_cholesky() @ near_a_point.mean
        model = posterior.model
        joint, _ = log_density(model.marginal(), (features,), {}, {"inducing_value": u})
        root = jnp.asarray(model.inducing_cholesky())
        prior = dist.MultivariateNormal(scale_tril=root).log_prob(u)
        np.testing.assert_allclose(found[: len(bags)].sum(), joint - prior, rtol=1e-6)


def test_the_divergence_is_that_of_two_gaussians(deep_gp):
    network = deep_gp.network_
    with jax.enable_x64(True):
        q = dist.MultivariateNormal(network.mean, scale_tril=network.lower_root)
        prior = dist.MultivariateNormal(
            jnp.zeros(len(network.mean)), covariance_matrix=jnp.eye(len(network.mean))
        )
        expected = dist.kl_divergence(q, prior)
        np.testing.assert_allclose(deep._divergence_from_prior(network), expected, rtol=1e-10)


def test_the_loss_is_the_negative_elbo_by_bag(bags, deep_gp):
    network, key = deep_gp.network_, jax.random.key(3)
    with jax.enable_x64(True):
        found = network.loss(padded(bags), jnp.asarray(60.0), key)
        likelihood = deep._expected_log_likelihood(network, padded(bags), key)[: len(bags)]
        expected = (deep._divergence_from_prior(network) - likelihood.sum()) / 60
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_two_stages_are_attention_and_the_closed_form(bags, deep_gp):
    """Where learning all at once begins."""
    key = jax.random.key(5)
    start = deep_gp._two_stages(bags, key)
    first = AttentionNetwork(4, num_epochs=20, batch_bags=16, seed=key).fit(bags)
    features = first.transform(bags)
    with jax.enable_x64(True):
        model = deep._model_of(start)
    expected = coordinate_ascent(model, features, seed=0).approximation
    mean, root = in_units_of_the_model(start, model)
    np.testing.assert_allclose(mean, expected.mean, atol=1e-4)
    covariance = expected.scale_tril @ expected.scale_tril.T
    np.testing.assert_allclose(root @ root.T, covariance, atol=1e-4)


def in_units_of_the_model(network, model):
    """Mean and root of the covariance of u = Lε."""
    with jax.enable_x64(True):
        cholesky = np.asarray(model.inducing_cholesky())
        return cholesky @ np.asarray(network.mean), cholesky @ np.asarray(network.lower_root)


def test_the_approximation_is_that_of_the_network(deep_gp):
    posterior = deep_gp.posterior_
    mean, root = in_units_of_the_model(deep_gp.network_, posterior.model)
    np.testing.assert_allclose(posterior.approximation.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(posterior.approximation.scale_tril, root, atol=1e-10)


def test_the_posterior_of_the_last_layer_predicts(bags, deep_gp):
    predicted = deep_gp.posterior_.predict(deep_gp.transform(bags).without_labels())
    np.testing.assert_array_equal(deep_gp.predict_proba(bags)[:, 1], predicted.bag_probability)
    expected = np.asarray(predicted.instance_probability)
    np.testing.assert_allclose(expit(deep_gp.score_instances(bags)), expected, rtol=1e-9)


def test_features_kernel_and_q_are_learned_together(bags, deep_gp):
    assert min(learned(deep_gp, bags)) > 0.9
    # The two stages are the start: what is learned together comes on top.
    assert deep_gp.posterior_.elbo[-1] > deep_gp.posterior_.elbo[0] + 1


@pytest.mark.slow
@pytest.mark.parametrize("make", [AttentionNetwork, DeepVGPMIL])
def test_a_second_fit_compiles_nothing(bags, make, compilations):
    first, second = bags[:40], bags[20:]
    make(3, num_epochs=1, batch_bags=10, seed=0).fit(first).predict(first)
    before = compilations.number
    make(3, num_epochs=1, batch_bags=10, seed=1).fit(second).predict(second)
    assert compilations.number == before


def test_without_equinox_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "equinox", None)
    monkeypatch.delitem(sys.modules, "milzoo.estimators.deep")
    with pytest.raises(ImportError, match=r"pip install 'milzoo\[deep\]'"):
        importlib.import_module("milzoo.estimators.deep")
