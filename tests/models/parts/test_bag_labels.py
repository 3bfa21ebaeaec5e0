"""Noisy maximum and instance labels against brute force and high precision.

Statistical tests are seeded; `largest_z` keeps the false alarms of each below 5e-6 over all its
looks, hence of the whole file (fewer than 20 such tests) below 1e-4.
"""

import math
from decimal import Decimal, localcontext
from itertools import product
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from milzoo.models.parts.bag_labels import InstanceLabels, LogOddsLabel, NoisyMaximum
from milzoo.models.parts.polya_gamma import PolyaGamma
from numpyro import handlers
from numpyro.infer import Predictive
from scipy import stats

FALSE_ALARM = 5e-6


def largest_z(looks):
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * looks))


@pytest.fixture(autouse=True)
def precision(request):
    """64 bit, unless the test asks for 32 by its parameter."""
    with jax.enable_x64(getattr(request, "param", 64) == 64):
        yield


in_both_precisions = pytest.mark.parametrize("precision", [64, 32], indirect=True)


def draws_of(distribution, number, seed):
    sample = jax.jit(lambda key: distribution.sample(key, (number,)))
    return np.asarray(sample(jax.random.key(seed)))


# --------------------------------------------------------------------------------------
# Noisy maximum
# --------------------------------------------------------------------------------------
LOG_NONE_POSITIVE = (0.0, -1e-20, -1e-8, -0.7, -40.0, -1e5)
SHARPNESS = (1.0, 100.0, 1e12)


def exact_noisy_maximum(log_none_positive, sharpness, label):
    """Log probability and its derivative by log p₀, in 100 digits."""
    with localcontext() as context:
        context.prec = 100
        H, log_p0 = Decimal(sharpness), Decimal(log_none_positive)
        p0 = log_p0.exp()
        weight = H - (H - 1) * p0 if label else 1 + (H - 1) * p0
        gradient = (-1 if label else 1) * (H - 1) * p0 / weight
        return float((weight / (H + 1)).ln()), float(gradient)


@in_both_precisions
def test_noisy_maximum_and_gradient_are_exact_at_extremes(precision):
    tolerance = 1e-13 if jax.config.jax_enable_x64 else 1e-5
    # What the precision at hand makes of an argument is not the formula's fault.
    cases = [
        (float(jnp.asarray(log_none_positive)), sharpness, label)
        for log_none_positive, sharpness, label in product(LOG_NONE_POSITIVE, SHARPNESS, (0, 1))
    ]

    @jax.jit
    @jax.vmap
    @jax.value_and_grad
    def log_probability(log_none_positive, sharpness, label):
        return NoisyMaximum(log_none_positive, sharpness).log_prob(label)

    found, found_gradients = log_probability(*map(jnp.array, zip(*cases, strict=True)))
    expected, expected_gradients = np.transpose([exact_noisy_maximum(*case) for case in cases])
    np.testing.assert_allclose(found, expected, rtol=tolerance)
    np.testing.assert_allclose(found_gradients, expected_gradients, rtol=tolerance, atol=1e-16)


def test_noisy_maximum_is_the_sum_over_all_instance_labels():
    logits, sharpness = np.array([-1.0, 0.4, 2.0, -3.0]), 30.0
    by_label = np.zeros(2)
    for labels in product((0, 1), repeat=4):
        probability = np.prod(1 / (1 + np.exp(-(2 * np.array(labels) - 1) * logits)))
        by_label[max(labels)] += probability * sharpness / (sharpness + 1)
        by_label[1 - max(labels)] += probability / (sharpness + 1)
    noisy = NoisyMaximum(-np.logaddexp(0, logits).sum(), sharpness)
    np.testing.assert_allclose(np.exp(noisy.log_prob(noisy.enumerate_support())), by_label)
    np.testing.assert_allclose(float(noisy.mean), by_label[1])
    np.testing.assert_allclose(float(noisy.variance), by_label[0] * by_label[1])


@pytest.mark.slow_but_first
@in_both_precisions
def test_noisy_maximum_draws_have_its_frequencies(precision):
    number = 200_000
    noisy = NoisyMaximum(np.array([-0.01, -0.3, -2.0, -100.0]), 9.0)
    draws = draws_of(noisy, number, seed=12)
    assert draws.shape == (number, 4) and draws.dtype.kind == "i"
    mean = np.asarray(noisy.mean, np.float64)
    z = (draws.mean(0) - mean) / np.sqrt(mean * (1 - mean) / number)
    assert np.abs(z).max() < largest_z(2 * 4)


def test_noisy_maximum_of_sharpness_one_is_a_fair_coin():
    noisy = NoisyMaximum(np.array([0.0, -1.0, -1e5]), 1.0)
    np.testing.assert_array_equal(noisy.mean, 0.5)


def test_noisy_maximum_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match="invalid log_none_positive"):
        NoisyMaximum(0.1, 100.0, validate_args=True)
    with pytest.raises(ValueError, match="invalid sharpness"):
        NoisyMaximum(-0.1, 0.5, validate_args=True)


# --------------------------------------------------------------------------------------
# Instance labels
# --------------------------------------------------------------------------------------
BAG_INDEX = np.repeat([0, 1, 2, 3, 4], [1, 2, 3, 4, 1])
MEMBERS = [np.flatnonzero(is_member) for is_member in np.equal.outer(range(5), BAG_INDEX)]
BAG_LABEL = np.array([1, 0, 1, 0, 0])
LOGITS = np.array([-1.2, 0.3, -2.0, -1.0, 0.1, 1.4, -3.0, -0.2, -1.1, 0.8, 2.0])


def small_labels(sharpness=20.0):
    return InstanceLabels(LOGITS, BAG_INDEX, BAG_LABEL, sharpness, 5)


def brute_force(bag, sharpness):
    """All labellings of one bag and their weights e^{yμ} H^[T = max y]."""
    logits = LOGITS[MEMBERS[bag]]
    labellings = np.array(list(product((0, 1), repeat=len(logits))))
    matches = labellings.max(1) == BAG_LABEL[bag]
    return labellings, np.exp(labellings @ logits) * np.where(matches, sharpness, 1.0)


@pytest.mark.slow_but_first
@in_both_precisions
def test_instance_labels_equal_brute_force_in_each_bag(precision):
    rtol = 1e-12 if jax.config.jax_enable_x64 else 1e-5

    @jax.jit
    def quantities(sharpness):
        distribution = small_labels(sharpness)
        return distribution.log_normaliser(), distribution.mean, distribution.positive_probability()

    for sharpness, bag in product((1.0, 20.0, 1e12), range(5)):
        log_normaliser, mean, positive_probability = quantities(sharpness)
        labellings, weights = brute_force(bag, sharpness)
        probability = weights / weights.sum()
        np.testing.assert_allclose(float(log_normaliser[bag]), math.log(weights.sum()), rtol)
        np.testing.assert_allclose(mean[MEMBERS[bag]], probability @ labellings, rtol)
        some_positive = probability @ labellings.max(1)
        np.testing.assert_allclose(float(positive_probability[bag]), some_positive, rtol)


def test_log_probabilities_match_brute_force_and_normalise():
    sharpness = 20.0
    everything = np.array(list(product((0, 1), repeat=len(LOGITS))))
    log_probability = np.asarray(small_labels(sharpness).log_prob(everything))
    expected = np.zeros(len(everything))
    for bag in range(5):
        weights = brute_force(bag, sharpness)[1]
        members = everything[:, MEMBERS[bag]]
        which = members @ (2 ** np.arange(members.shape[1])[::-1])  # binary, as product counts
        expected += np.log(weights / weights.sum())[which]
    np.testing.assert_allclose(log_probability, expected, rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_probability).sum(), 1, rtol=1e-12)


@pytest.mark.slow_but_first
@in_both_precisions
def test_instance_label_draws_have_the_frequency_of_every_labelling(precision):
    number, sharpness = 200_000, 6.0
    draws = draws_of(small_labels(sharpness), number, seed=13)
    assert draws.shape == (number, len(LOGITS)) and draws.dtype.kind == "i"
    for bag in range(5):
        weights = brute_force(bag, sharpness)[1]
        members = draws[:, MEMBERS[bag]]
        which = members @ (2 ** np.arange(members.shape[1])[::-1])
        counts = np.bincount(which, minlength=len(weights))
        expected = number * weights / weights.sum()
        assert expected.min() > 20
        assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM / (2 * 5)


def test_draws_of_different_bags_are_independent():
    draws = draws_of(small_labels(6.0), 100_000, seed=14)
    correlation = np.corrcoef(draws.T)[BAG_INDEX[:, None] < BAG_INDEX]
    assert np.abs(correlation).max() * math.sqrt(len(draws)) < largest_z(correlation.size)


def test_bag_times_instance_probability_is_the_joint_one():
    """P(T) p(y|T) = P(T|y) Π σ(±μ), whatever T and y."""
    sharpness, generator = 20.0, np.random.default_rng(15)
    for _ in range(5):
        labels = generator.integers(0, 2, len(LOGITS))
        bag_label = generator.integers(0, 2, 5)
        distribution = InstanceLabels(LOGITS, BAG_INDEX, bag_label, sharpness, 5)
        left = NoisyMaximum(distribution.log_none_positive, sharpness).log_prob(bag_label).sum()
        left = left + distribution.log_prob(labels)
        maxima = np.array([labels[MEMBERS[bag]].max() for bag in range(5)])
        right = -np.logaddexp(0, -(2 * labels - 1) * LOGITS).sum()
        right += np.sum((maxima == bag_label) * math.log(sharpness)) - 5 * math.log1p(sharpness)
        np.testing.assert_allclose(float(left), right, rtol=1e-12)


def test_a_bag_of_one_is_plain_logistic_regression():
    logits = np.array([-3.0, 0.5, -900.0, 900.0])
    label = np.array([1, 0, 1, 0])
    distribution = InstanceLabels(logits, np.arange(4), label, 100.0, 4)
    expected = jax.nn.sigmoid(logits + (2 * label - 1) * math.log(100.0))
    np.testing.assert_allclose(distribution.mean, expected, rtol=1e-13)


@pytest.mark.slow
@in_both_precisions
def test_the_normaliser_gradient_is_the_mean_at_extremes(precision):
    logits = jnp.array([-1000.0, 1000.0, -80.0, -30.0, -1e-3, 1000.0, -1000.0, -30.0, -20.0, 3.0])
    bag_index = np.array([0, 0, 1, 1, 2, 3, 4, 5, 5, 6])
    label = np.array([0, 1, 0, 0, 1, 1, 1])
    none, every = jnp.zeros(10, int), jnp.ones(10, int)

    def distribution(logits, sharpness):
        return InstanceLabels(logits, bag_index, label, sharpness, 7)

    @jax.jit
    def at(sharpness):
        return (
            jax.grad(lambda logits: distribution(logits, sharpness).log_normaliser().sum())(logits),
            distribution(logits, sharpness).mean,
            jax.value_and_grad(lambda logits: distribution(logits, sharpness).log_prob(none))(
                logits
            ),
            jax.value_and_grad(lambda logits: distribution(logits, sharpness).log_prob(every))(
                logits
            ),
            distribution(logits, sharpness).sample(jax.random.key(16), (500,)),
        )

    # The gradient is a difference of probabilities near 1: right to rounding in absolute terms.
    atol = 1e-15 if jax.config.jax_enable_x64 else 1e-6
    for sharpness in (1.0, 100.0, 1e12):
        gradient, mean, at_none, at_every, draws = at(sharpness)
        np.testing.assert_allclose(gradient, mean, rtol=10 * atol, atol=atol)
        for array in (*at_none, *at_every):
            assert bool(jnp.isfinite(array).all())
        assert bool((draws[:, 1] == 1).all()) and bool((draws[:, 0] == 0).all())


@pytest.mark.slow_but_first
@in_both_precisions
def test_bags_of_thousands_do_not_underflow(precision):
    """Bag 0 holds 2,000 likely positives and is called negative; bag 1, 2,000 unlikely ones."""
    size, sharpness = 2_000, 1e6
    logits = np.repeat([4.0, -12.0], size)
    label = np.array([0, 1])
    distribution = InstanceLabels(logits, np.repeat([0, 1], size), label, sharpness, 2)
    with localcontext() as context:
        context.prec = 60
        H = Decimal(sharpness)
        expected_mean, expected_log = [], []
        for logit, positive in ((Decimal(4), False), (Decimal(-12), True)):
            probability = 1 / (1 + (-logit).exp())
            p0 = (1 - probability) ** size
            weight = H - (H - 1) * p0 if positive else 1 + (H - 1) * p0
            expected_mean.append(float((H if positive else 1) * probability / weight))
            expected_log.append(float(weight.ln() - p0.ln()))
    rtol = 1e-11 if jax.config.jax_enable_x64 else 2e-5
    log_normaliser, mean = jax.jit(lambda: (distribution.log_normaliser(), distribution.mean))()
    np.testing.assert_allclose(log_normaliser, expected_log, rtol=rtol)
    np.testing.assert_allclose(mean[np.array([0, -1])], expected_mean, rtol=rtol)

    number = 500
    draws = draws_of(distribution, number, seed=17)
    frequency = draws.reshape(number, 2, size).mean((0, 2))
    # The labels of bag 1 are nearly exclusive, those of bag 0 nearly independent.
    error = np.sqrt(np.array(expected_mean) * (1 - np.array(expected_mean)) / (number * size))
    error[1] = draws[:, size:].sum(1).std() / math.sqrt(number) / size + 1e-9
    assert np.all(np.abs(frequency - expected_mean) < largest_z(2 * 2) * error)


@pytest.mark.slow
def test_batched_instance_labels_equal_single_ones():
    logits = jnp.stack([LOGITS, LOGITS - 1, LOGITS * 2])
    keys = jax.random.split(jax.random.key(18), 3)

    def alone(key, logits):
        distribution = InstanceLabels(logits, BAG_INDEX, BAG_LABEL, 20.0, 5)
        draw = distribution.sample(key)
        return draw, distribution.log_prob(draw), distribution.mean, distribution.log_normaliser()

    one_at_a_time = map(jax.jit(alone), keys, logits)
    together = jax.jit(jax.vmap(alone))(keys, logits)
    for found, expected in zip(together, zip(*one_at_a_time, strict=True), strict=True):
        np.testing.assert_allclose(found, np.stack(expected), rtol=1e-12)

    @jax.jit
    def batched(logits, bag_label, sharpness):
        distribution = InstanceLabels(logits, BAG_INDEX, bag_label, sharpness, 5)
        assert distribution.batch_shape == (3,) and distribution.event_shape == (11,)
        assert distribution.sample(keys[0], (4, 2)).shape == (4, 2, 3, 11)
        return distribution.log_prob(together[0]), distribution.mean, distribution.log_normaliser()

    for bag_label, sharpness in ((BAG_LABEL, 20.0), (np.stack([BAG_LABEL] * 3), np.full(3, 20.0))):
        for found, expected in zip(
            batched(logits, bag_label, sharpness), together[1:], strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_instance_labels_cross_jit_as_a_pytree():
    distribution = small_labels()
    value = np.zeros(11, int)
    compiled = jax.jit(lambda distribution, value: distribution.log_prob(value))
    np.testing.assert_allclose(
        float(compiled(distribution, value)), float(distribution.log_prob(value))
    )


def test_a_bag_without_instances_has_no_positive():
    distribution = InstanceLabels(np.array([0.3]), np.array([1]), np.array([1, 1]), 10.0, 2)

    @jax.jit
    def quantities():
        draws = distribution.sample(jax.random.key(0), (5,))
        return (
            distribution.positive_probability(),
            draws,
            distribution.log_prob(np.array([[0], [1]])),
        )

    positive_probability, draws, both = quantities()
    assert float(positive_probability[0]) == 0
    assert draws.shape == (5, 1)
    np.testing.assert_allclose(np.exp(both).sum(), 1, rtol=1e-13)


def test_instance_labels_say_which_shapes_contradict_each_other():
    with pytest.raises(ValueError, match=r"shape \(10,\) and bag_index of shape \(11,\)"):
        InstanceLabels(LOGITS[1:], BAG_INDEX, BAG_LABEL, 20.0, 5)
    with pytest.raises(ValueError, match=r"bag_label of shape \(5,\) .* num_bags = 4 bags"):
        InstanceLabels(LOGITS, BAG_INDEX, BAG_LABEL, 20.0, 4)


def test_a_wrong_bag_index_is_refused_with_reasons():
    with pytest.raises(ValueError, match=r"from 0 to 4 and is not sorted.*sort the instances"):
        InstanceLabels(LOGITS, BAG_INDEX[::-1].copy(), BAG_LABEL, 20.0, 5)
    with pytest.raises(ValueError, match=r"from 1 to 5, but must be non-decreasing in 0 … 4"):
        InstanceLabels(LOGITS, BAG_INDEX + 1, BAG_LABEL, 20.0, 5)


# --------------------------------------------------------------------------------------
# Inside NumPyro programs
# --------------------------------------------------------------------------------------
def augmented_program(bag_label):
    with numpyro.plate("instance", 11):
        latent = numpyro.sample("latent", numpyro.distributions.Normal(-1.0, 1.0))
        numpyro.sample("augmentation", PolyaGamma(1, latent))
    with numpyro.plate("bag", 5):
        none_positive = jax.ops.segment_sum(-jax.nn.softplus(latent), BAG_INDEX, 5)
        numpyro.sample("bag_label", NoisyMaximum(none_positive, 20.0), obs=bag_label)
    numpyro.sample("instance_label", InstanceLabels(latent, BAG_INDEX, BAG_LABEL, 20.0, 5))


@pytest.mark.slow
@in_both_precisions
def test_the_distributions_work_under_predictive_and_handlers(precision):
    predictive = Predictive(augmented_program, num_samples=7, parallel=True)
    with numpyro.validation_enabled():
        draws = jax.jit(lambda key: predictive(key, None))(jax.random.key(19))
        assert draws["augmentation"].shape == draws["instance_label"].shape == (7, 11)
        assert draws["bag_label"].shape == (7, 5)
        first = {name: value[0] for name, value in draws.items()}
        log_joint = jax.jit(
            lambda sites: numpyro.infer.util.log_density(augmented_program, (None,), {}, sites)[0]
        )(first)

    @jax.jit
    def sum_of_sites(values):
        sites = handlers.trace(handlers.substitute(augmented_program, values)).get_trace(None)
        sampled = [site for site in sites.values() if site["type"] == "sample"]
        return sum(jnp.sum(site["fn"].log_prob(site["value"])) for site in sampled)

    np.testing.assert_allclose(float(log_joint), float(sum_of_sites(first)), rtol=1e-5)


def test_expanded_and_masked_copies_keep_the_distribution():
    expanded = PolyaGamma(1, jnp.array([0.5, 3.0])).expand((4, 2))
    draws = expanded.sample(jax.random.key(20), (3,))
    assert draws.shape == (3, 4, 2)
    np.testing.assert_allclose(
        expanded.log_prob(draws), PolyaGamma(1, np.array([0.5, 3.0])).log_prob(draws)
    )
    masked = NoisyMaximum(np.array([-1.0, -2.0]), 5.0).mask(np.array([True, False]))
    assert float(masked.log_prob(np.array([1, 1]))[1]) == 0


# ------------------------------------------------------------------ labels by their log odds


def test_log_odds_give_the_log_probabilities_of_both_labels():
    log_odds = np.array([-800.0, -3.0, 0.0, 0.2, 50.0])
    with jax.enable_x64(True):
        found = np.stack([LogOddsLabel(logits=log_odds).log_prob(label) for label in (0, 1)])
    expected = [-np.logaddexp(0, log_odds), -np.logaddexp(0, -log_odds)]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize(("label", "gradient"), [(0, -0.5), (1, 0.5)])
def test_derivative_at_even_odds_is_one_half(label, gradient):
    found = jax.grad(lambda x: LogOddsLabel(logits=x).log_prob(label))(0.0)
    assert found == gradient
