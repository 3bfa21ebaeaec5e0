"""Labels with a witness in each positive bag, against brute force over all labellings.

Statistical tests are seeded; `largest_z` keeps the false alarms of each below 5e-6 over all its
looks, hence of the whole file (5 such tests) below 1e-4.
"""

import math
from decimal import Decimal, localcontext
from itertools import product
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.parts.bag_labels import InstanceLabels
from milzoo.models.parts.witnesses import LabelRule, WitnessLabels, log_some_positive, sum_over_bags
from scipy import stats
from scipy.special import logsumexp

FALSE_ALARM = 5e-6
INF = math.inf


def largest_z(looks):
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * looks))


@pytest.fixture(autouse=True)
def precision(request):
    """64 bit, unless the test asks for 32 by its parameter."""
    with jax.enable_x64(getattr(request, "param", 64) == 64):
        yield


in_both_precisions = pytest.mark.parametrize("precision", [64, 32], indirect=True)


# Compiled with the distribution as an argument: operation by operation takes longer.
mean_of = jax.jit(lambda distribution: distribution.mean)
log_prob_of = jax.jit(lambda distribution, labels: distribution.log_prob(labels))
log_probs_of = jax.jit(
    jax.vmap(lambda distribution, labels: distribution.log_prob(labels), in_axes=(None, 0))
)
log_some_of = jax.jit(log_some_positive, static_argnums=2)
sample_of = jax.jit(
    lambda distribution, key, number: distribution.sample(key, (number,)), static_argnums=2
)


def draws_of(distribution, number, seed):
    return np.asarray(sample_of(distribution, jax.random.key(seed), number))


def chi_square_pvalue(counts, probability):
    """Of a chi-square test, what is expected less than ten times counted together."""
    expected = probability * counts.sum()
    order = np.argsort(expected)
    number = max(1, np.searchsorted(np.cumsum(expected[order]), 10) + 1)
    rare, common = order[:number], order[number:]
    return stats.chisquare(
        np.append(counts[common], counts[rare].sum()),
        np.append(expected[common], expected[rare].sum()),
    ).pvalue


# ------------------------------------------------------------------ brute force

SIZES = [1, 2, 3, 4, 5, 6, 2, 3, 1]
BAG_INDEX = np.repeat(np.arange(len(SIZES)), SIZES)
MEMBERS = [np.flatnonzero(b == BAG_INDEX) for b in range(len(SIZES))]
# Bag 3 has known negatives, bag 6 is one, bag 7 has a known witness, bag 8 is known positive.
NEEDS_WITNESS = np.array([1, 1, 0, 1, 1, 1, 0, 0, 0], bool)
LOGITS = np.array(
    [
        *(-1.2,),
        *(0.3, -2.0),
        *(-1.0, 0.1, 1.4),
        *(-INF, -3.0, 0.4, -INF),
        *(-0.2, -1.1, 0.8, 2.0, -0.5),
        *(-2.0, -2.5, -1.0, -3.0, 0.2, -1.5),
        *(-INF, -INF),
        *(0.7, INF, -INF),
        *(INF,),
    ]
)


def probability_of_one(logit):
    """σ, by hand."""
    if math.isinf(logit):
        return float(logit > 0)
    return 1 / (1 + math.exp(-logit))


def brute_force(bag):
    """All labellings of one bag, and their probabilities under the condition."""
    one = np.array([probability_of_one(a) for a in LOGITS[MEMBERS[bag]]])
    labellings = np.array(list(product((0, 1), repeat=len(one))))
    weights = np.prod(np.where(labellings == 1, one, 1 - one), axis=1)
    if NEEDS_WITNESS[bag]:
        weights = weights * labellings.max(axis=1)
    return labellings, weights / weights.sum()


def small_distribution():
    return WitnessLabels(LOGITS, BAG_INDEX, NEEDS_WITNESS, len(SIZES))


def which(members):
    """The number of each labelling, as `product` counts."""
    return members @ (2 ** np.arange(members.shape[-1])[::-1])


@pytest.mark.slow_but_first
@in_both_precisions
def test_means_and_variances_are_those_of_all_labellings(precision):
    rtol = 1e-13 if jax.config.jax_enable_x64 else 1e-5
    mean, variance = jax.jit(lambda distribution: (distribution.mean, distribution.variance))(
        small_distribution()
    )
    for bag, members in enumerate(MEMBERS):
        labellings, probability = brute_force(bag)
        expected = probability @ labellings
        np.testing.assert_allclose(mean[members], expected, rtol=rtol)
        np.testing.assert_allclose(
            variance[members], expected * (1 - expected), rtol=rtol, atol=rtol
        )


def test_log_probabilities_are_those_of_brute_force():
    """Each labelling of each bag, the other bags at a labelling that they allow."""
    every = [brute_force(bag) for bag in range(len(SIZES))]
    likely = [labellings[probability.argmax()] for labellings, probability in every]
    log_likely = [math.log(probability.max()) for _, probability in every]
    rows, expected = [], []
    for bag, (labellings, probability) in enumerate(every):
        for labelling, one in zip(labellings, probability, strict=True):
            rows.append(np.concatenate([*likely[:bag], labelling, *likely[bag + 1 :]]))
            others = sum(log_likely) - log_likely[bag]
            expected.append(others + (math.log(one) if one > 0 else -INF))
    found = log_probs_of(small_distribution(), np.array(rows))
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_probabilities_of_all_labellings_sum_to_one():
    members = np.concatenate(MEMBERS[1:4] + MEMBERS[6:8])
    index = np.repeat(np.arange(5), [2, 3, 4, 2, 3])
    needs = NEEDS_WITNESS[[1, 2, 3, 6, 7]]
    distribution = WitnessLabels(LOGITS[members], index, needs, 5)
    everything = np.array(list(product((0, 1), repeat=len(members))))
    log_probability = log_probs_of(distribution, everything)
    np.testing.assert_allclose(np.exp(log_probability).sum(), 1, rtol=1e-12)


def test_labels_of_either_type_have_the_same_probability():
    distribution, labels = small_distribution(), np.zeros(len(LOGITS), int)
    labels[[0, 1, 7, 12, 19, 24, 26]] = 1
    as_numbers, as_truths = (
        log_prob_of(distribution, labels),
        log_prob_of(distribution, labels == 1),
    )
    assert math.isfinite(float(as_numbers)) and float(as_numbers) == float(as_truths)


def test_without_the_condition_labels_are_independent():
    logits = LOGITS[MEMBERS[5]]
    distribution = WitnessLabels(logits, np.zeros(6, int), np.array([False]), 1)
    np.testing.assert_allclose(mean_of(distribution), 1 / (1 + np.exp(-logits)), rtol=1e-14)
    labels = np.array([0, 1, 0, 0, 1, 1])
    expected = stats.bernoulli(1 / (1 + np.exp(-logits))).logpmf(labels).sum()
    np.testing.assert_allclose(float(log_prob_of(distribution, labels)), expected, rtol=1e-13)


def test_it_is_the_limit_of_the_noisy_maximum():
    """H = 1e12: what the noise lets through is of the order of 1e-12."""
    bag_label = np.array([1, 0, 1, 0, 1, 1])
    members = np.concatenate(MEMBERS[:6])
    random = np.random.default_rng(1)
    logits = random.normal(size=len(members))
    index = BAG_INDEX[members]
    noisy = InstanceLabels(logits, index, bag_label, 1e12, 6)
    known = np.where(bag_label[index] == 1, 0.0, -INF)
    distribution = WitnessLabels(known + logits, index, bag_label == 1, 6)
    np.testing.assert_allclose(mean_of(distribution), mean_of(noisy), rtol=1e-10, atol=1e-10)
    labels = random.integers(0, 2, size=(20, len(members))) * bag_label[index]
    labels[:, np.array([0, 3, 10, 15])] = bag_label[index[[0, 3, 10, 15]]]
    found, expected = (log_probs_of(one, labels) for one in (distribution, noisy))
    assert np.isfinite(found).sum() >= 10
    np.testing.assert_allclose(found, expected, rtol=1e-10)


# ------------------------------------------------------------------ draws


@pytest.mark.slow_but_first
@in_both_precisions
def test_draws_have_the_frequency_of_every_labelling(precision):
    number = 50_000
    draws = draws_of(small_distribution(), number, seed=2)
    assert draws.shape == (number, len(LOGITS)) and draws.dtype.kind == "i"
    for bag, members in enumerate(MEMBERS):
        probability = brute_force(bag)[1]
        counts = np.bincount(which(draws[:, members]), minlength=len(probability))
        possible = probability > 0
        assert not counts[~possible].any()
        if possible.sum() > 1:
            pvalue = chi_square_pvalue(counts[possible], probability[possible])
            assert pvalue > FALSE_ALARM / (2 * len(SIZES))


def test_draws_of_different_bags_are_uncorrelated():
    draws = draws_of(small_distribution(), 50_000, seed=3)
    varies = draws.std(axis=0) > 0
    index = BAG_INDEX[varies]
    correlation = np.corrcoef(draws[:, varies].T)[index[:, None] < index]
    assert np.abs(correlation).max() * math.sqrt(len(draws)) < largest_z(correlation.size)


OFFSETS = np.array([0.0, 1.0, -0.7, 0.4, -1.5])


@pytest.fixture(scope="module")
def draws_with():
    """Function that gives draws of one bag of five, in the precision of the test.

    Log-odds are an argument of the compiled program, which is then the same for all.
    """

    @jax.jit
    def sample(logits, key):
        distribution = WitnessLabels(logits, jnp.zeros(5, int), jnp.array([True]), 1)
        return distribution.sample(key, (20_000,))

    return lambda logits, seed: np.asarray(sample(jnp.asarray(logits), jax.random.key(seed)))


@pytest.mark.slow_but_first
@in_both_precisions
@pytest.mark.parametrize("level", [-45.0, -150.0, -360.0, -745.0, -1000.0, -1e5])
def test_unlikely_witnesses_are_drawn_by_softmax(level, precision, draws_with):
    draws = draws_with(level + OFFSETS, seed=4)
    # Two at once have probability e^level.
    np.testing.assert_array_equal(draws.sum(axis=1), 1)
    fraction = np.exp(OFFSETS) / np.exp(OFFSETS).sum()
    if not jax.config.jax_enable_x64:  # of the log-odds as they are in 32 bit
        rounded = np.float32(level + OFFSETS).astype(float) - level
        fraction = np.exp(rounded) / np.exp(rounded).sum()
    # 12 runs of this test.
    assert stats.chisquare(draws.sum(axis=0), len(draws) * fraction).pvalue > FALSE_ALARM / 12


@in_both_precisions
@pytest.mark.parametrize("level", [45.0, 1000.0, 1e5])
def test_where_all_are_certain_all_are_positive(level, precision, draws_with):
    # One that is not has probability e^−level.
    assert (draws_with(level + OFFSETS, seed=5) == 1).all()


@pytest.mark.parametrize("level", [-12.0, -6.0, 3.0])
def test_the_number_of_positives_has_its_exact_distribution(level, draws_with):
    draws = draws_with(level + OFFSETS, seed=6)
    one = 1 / (1 + np.exp(-(level + OFFSETS)))
    labellings = np.array(list(product((0, 1), repeat=5)))
    weights = np.prod(np.where(labellings == 1, one, 1 - one), axis=1)
    weights[0] = 0
    probability = weights / weights.sum()
    counts = np.bincount(which(draws), minlength=32)
    assert counts[0] == 0
    assert chi_square_pvalue(counts[1:], probability[1:]) > FALSE_ALARM / 3


def test_log_odds_far_apart_are_drawn_exactly(draws_with):
    """One far above the others is always there; the others follow their own odds."""
    draws = draws_with(np.array([-1000.0, 0.5, 1000.0, -1000.0, -1e5]), seed=7)
    assert (draws[:, [0, 2, 3, 4]] == [0, 1, 0, 0]).all()
    expected = 1 / (1 + math.exp(-0.5))
    assert stats.binomtest(int(draws[:, 1].sum()), len(draws), expected).pvalue > FALSE_ALARM
    draws = draws_with(np.array([-1000.0, -2.0, -1000.0, -400.0, -1e5]), seed=7)
    assert (draws == [0, 1, 0, 0, 0]).all()


def test_means_are_softmax_far_below_and_one_far_above():
    for level in (-45.0, -745.0, -1000.0, -1e5):
        distribution = WitnessLabels(level + OFFSETS, np.zeros(5, int), np.array([True]), 1)
        fraction = np.exp(OFFSETS) / np.exp(OFFSETS).sum()
        # The log-odds themselves are rounded, at 1e5 by 1e-11.
        np.testing.assert_allclose(
            mean_of(distribution), fraction, rtol=1e-10 if level < -1e4 else 1e-12
        )
    distribution = WitnessLabels(1000.0 + OFFSETS, np.zeros(5, int), np.array([True]), 1)
    np.testing.assert_array_equal(mean_of(distribution), 1.0)


def test_log_probabilities_far_below_are_those_of_the_softmax():
    distribution = WitnessLabels(OFFSETS - 1000.0, np.zeros(5, int), np.array([True]), 1)
    fraction = OFFSETS - logsumexp(OFFSETS)
    one = np.eye(5, dtype=int)
    found = log_probs_of(distribution, np.stack([*one, one[0] + one[1], np.zeros(5, int)]))
    # Differences of numbers around 1000.
    np.testing.assert_allclose(found[:5], fraction, atol=1e-12)
    np.testing.assert_allclose(found[5], fraction[0] + OFFSETS[1] - 1000, rtol=1e-14)
    assert float(found[6]) == -INF


def test_draws_have_the_shape_asked_for():
    distribution, key = small_distribution(), jax.random.key(8)
    assert distribution.event_shape == (len(LOGITS),) and distribution.batch_shape == ()
    one, several = jax.eval_shape(
        lambda distribution: (distribution.sample(key), distribution.sample(key, (2, 3))),
        distribution,
    )
    assert one.shape == (len(LOGITS),) and several.shape == (2, 3, len(LOGITS))


# ------------------------------------------------------------------ some positive


def exact_log_some_positive(logits):
    """log[1 − Π(1 − σ(a))] in 1,000 digits."""
    with localcontext() as context:
        context.prec = 1000
        none = Decimal(1)
        for a in logits:
            none /= 1 + Decimal(float(a)).exp()
        return float((1 - none).ln())


LEVELS = [-1000.0, -745.2, -500.0, -100.0, -38.0, -37.000001, -36.999999, -36.0, -20.0, -3.0, -0.1]
LEVELS += [0.0, 0.5, 2.0, 5.0, 10.0, 20.0, 36.0, 37.0, 50.0]
GROUPS = [[a] for a in LEVELS] + [
    [-1000.0, -1000.0],
    [-1000.0, -3.0],
    [-37.0, -37.0, -37.0, -37.0],
    [-38.5, -36.5],
    [-745.0, -746.0, -744.0],
    [-5.0] * 7,
    [50.0, -1000.0],
    [0.3, -2.0, 1.0],
    [3.0] * 5,
]


def groups_of_logits():
    index = np.repeat(np.arange(len(GROUPS)), [len(group) for group in GROUPS])
    return jnp.asarray(np.concatenate(GROUPS)), index


def test_log_some_positive_is_exact_to_rounding():
    """In logs of both ends: of the probability of some positive, and of none."""
    found = log_some_of(*groups_of_logits(), len(GROUPS))
    expected = np.array([exact_log_some_positive(group) for group in GROUPS])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=3e-16)


def test_log_some_positive_keeps_its_digits_also_near_zero():
    """Relative 1e-12 throughout, also where the probability is 1 to rounding."""
    found = log_some_of(*groups_of_logits(), len(GROUPS))
    expected = np.array([exact_log_some_positive(group) for group in GROUPS])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_log_some_positive_is_exact_in_single_precision():
    with jax.enable_x64(False):
        found = log_some_of(*groups_of_logits(), len(GROUPS))
        assert found.dtype == jnp.float32
    exact = [exact_log_some_positive(np.float32(group)) for group in GROUPS]
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=2e-7)


def test_log_some_positive_handles_known_labels_and_empty_bags():
    logits = jnp.array([-INF, -INF, INF, -INF, 0.3, -INF, INF, -1000.0])
    found = log_some_of(logits, np.array([0, 0, 1, 1, 2, 2, 4, 4]), 6)
    exact = [-INF, 0.0, exact_log_some_positive([0.3]), -INF, 0.0, -INF]
    np.testing.assert_allclose(found, exact, rtol=1e-14)


def test_gradients_of_log_some_positive_are_exact():
    """∂/∂a_n = σ(a_n) Π(1 − σ(a)) / [1 − Π(1 − σ(a))]."""
    logits, index = groups_of_logits()
    gradients = jax.jit(jax.grad(lambda a: log_some_positive(a, index, len(GROUPS)).sum()))
    found = gradients(logits)
    exact = []
    with localcontext() as context:
        context.prec = 1000
        for group in GROUPS:
            powers = [Decimal(a).exp() for a in group]
            none = Decimal(1)
            for power in powers:
                none /= 1 + power
            exact += [float(power / (1 + power) * none / (1 - none)) for power in powers]
    # Below e^-700 a gradient is negligible.
    np.testing.assert_allclose(found, exact, rtol=1e-11, atol=1e-300)


def test_sums_over_bags_are_those_of_a_loop():
    values = np.random.default_rng(9).normal(size=(len(BAG_INDEX), 2))
    expected = [values[members].sum(axis=0) for members in MEMBERS]
    found = sum_over_bags(jnp.asarray(values), BAG_INDEX, len(SIZES))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


# ------------------------------------------------------------------ the rule

KNOWN = np.where(np.isinf(LOGITS), LOGITS, 0.0)


def small_rule():
    return LabelRule(jnp.asarray(KNOWN), jnp.asarray(NEEDS_WITNESS), jnp.asarray(BAG_INDEX))


def allowed(bag):
    """All labellings that the rule allows of a bag."""
    known = KNOWN[MEMBERS[bag]]
    return np.array(
        [
            labelling
            for labelling in product((0, 1), repeat=len(known))
            if all(
                k == 0 or (k > 0) == (label == 1) for k, label in zip(known, labelling, strict=True)
            )
            and (max(labelling) == 1 or not NEEDS_WITNESS[bag])
        ]
    )


def random_log_density(sd=3.0, offset=0.0, seed=10):
    density = np.random.default_rng(seed).normal(-20.0, sd, size=(2, len(LOGITS)))
    return density + np.array([[0.0], [offset]])


def log_weights(bag, log_density):
    """The labellings allowed, and log Π p(x_n | r_n) of each."""
    labellings, members = allowed(bag), MEMBERS[bag]
    negative, positive = log_density[:, members]
    return labellings, np.where(labellings == 1, positive, negative).sum(axis=1)


@jax.jit
def evidence_of(rule, log_density):
    return rule.log_evidence(log_density)


@jax.jit
def gradients_of(rule, log_density):
    return jax.grad(lambda given: rule.log_evidence(given).sum())(log_density)


@pytest.mark.parametrize("offset", [0.0, -30.0, -700.0, 40.0])
def test_the_evidence_is_the_mean_over_all_labellings_allowed(offset):
    log_density = random_log_density(offset=offset)
    found = evidence_of(small_rule(), jnp.asarray(log_density))
    for bag in range(len(SIZES)):
        _, weights = log_weights(bag, log_density)
        expected = logsumexp(weights) - math.log(len(weights))
        np.testing.assert_allclose(float(found[bag]), expected, rtol=1e-13)


def test_labels_given_the_instances_follow_bayes_rule():
    log_density = random_log_density()
    rule = small_rule()
    assert rule.num_bags == len(SIZES)
    mean = mean_of(rule.labels(jnp.asarray(log_density[1] - log_density[0])))
    for bag, members in enumerate(MEMBERS):
        labellings, weights = log_weights(bag, log_density)
        expected = np.exp(weights - logsumexp(weights)) @ labellings
        np.testing.assert_allclose(mean[members], expected, rtol=1e-12)


def test_without_log_odds_all_labellings_allowed_are_equally_likely():
    distribution = small_rule().labels()
    expected = -sum(math.log(len(allowed(bag))) for bag in range(len(SIZES)))
    labels = np.concatenate([allowed(bag)[[0, -1]] for bag in range(len(SIZES))], axis=1)
    np.testing.assert_allclose(log_probs_of(distribution, labels), expected, rtol=1e-13)
    labels[:, MEMBERS[4]] = 0
    assert (np.asarray(log_probs_of(distribution, labels)) == -INF).all()


def test_gradients_of_the_evidence_are_finite_differences():
    log_density, rule = random_log_density(), small_rule()
    found = np.asarray(gradients_of(rule, jnp.asarray(log_density)))
    step = 1e-4
    steps = step * np.eye(2 * len(LOGITS)).reshape(-1, 2, len(LOGITS))
    total = jax.jit(jax.vmap(lambda given: rule.log_evidence(given).sum()))
    difference = (total(log_density + steps) - total(log_density - steps)) / (2 * step)
    # Central differences: h² of third derivatives below 1, and rounding of 500 · 1e-16 / h.
    np.testing.assert_allclose(found.ravel(), difference, atol=1e-8)


@pytest.mark.slow_but_first
@in_both_precisions
@pytest.mark.parametrize("offset", [0.0, -1000.0, 1000.0, -60.0, -1e5])
def test_gradients_of_log_evidence_are_label_probabilities(offset, precision):
    """By log p₊ that of a positive label, by log p₋ of a negative one: finite at all extremes."""
    log_density = jnp.asarray(random_log_density(offset=offset))
    rule = small_rule()
    # In 32 bit, what log-odds of that size are rounded by.
    rtol = 1e-10 if jax.config.jax_enable_x64 else max(1e-4, abs(offset) * 2.0**-22)
    if jax.config.jax_enable_x64:
        log_density = log_density.at[1, MEMBERS[4][:2]].add(2000.0)
    negative, positive = gradients_of(rule, log_density)
    mean = mean_of(rule.labels(log_density[1] - log_density[0]))
    np.testing.assert_allclose(positive, mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(negative, 1 - mean, rtol=rtol, atol=rtol)
    assert bool(jnp.isfinite(evidence_of(rule, log_density)).all())


def test_a_certain_witness_lifts_the_condition_on_draws():
    logits = np.array([INF, -1.0, -2.0, 0.0])
    distribution = WitnessLabels(jnp.asarray(logits), jnp.zeros(4, int), jnp.array([True]), 1)
    draws, mean = draws_of(distribution, 20_000, seed=0), np.asarray(distribution.mean)
    np.testing.assert_allclose(mean, 1 / (1 + np.exp(-logits)), rtol=1e-6)
    assert (draws[:, 0] == 1).all()
    error = np.sqrt(mean * (1 - mean) / len(draws))[1:]
    assert (np.abs(draws.mean(axis=0) - mean)[1:] / error).max() < largest_z(3)


def test_the_evidence_handles_zero_densities():
    """−∞ of one class: the label is then certain."""
    log_density = random_log_density()
    log_density[1, MEMBERS[4][0]] = log_density[0, MEMBERS[4][1]] = -INF
    found = np.asarray(evidence_of(small_rule(), jnp.asarray(log_density)))
    _, weights = log_weights(4, log_density)
    np.testing.assert_allclose(found[4], logsumexp(weights) - math.log(len(weights)), rtol=1e-13)
    _, weights = log_weights(5, log_density)
    np.testing.assert_allclose(found[5], logsumexp(weights) - math.log(len(weights)), rtol=1e-13)
