"""Sums over labellings by the count: every labelling, exact fractions, and one bag at a time."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.parts import counting
from milzoo.models.parts.counting import CountTree, draw_labels, log_partition, log_symmetric
from scipy.special import logsumexp

SIZES = [3, 1, 7, 12, 2, 5, 70, 4]
INF = math.inf


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def tree_of(sizes):
    return CountTree.for_bags(np.repeat(np.arange(len(sizes)), sizes), len(sizes))


def in_bags(values, sizes):
    """The values of each bag."""
    return np.split(np.asarray(values), np.cumsum(sizes)[:-1], axis=-1)


def counts_in_bags(values, sizes):
    return in_bags(values, np.asarray(sizes) + 1)


def one_by_one(logits):
    """log e_c of a bag: one instance after another."""
    log_e = np.zeros(1)
    for logit in logits:
        log_e = np.logaddexp(np.append(log_e, -INF), np.append(-INF, log_e + logit))
    return log_e


def random_logits(sizes, scale, seed=0):
    return np.random.default_rng(seed).normal(-0.5 * scale, scale, sum(sizes))


def potentials(tree):
    """Normal ones, at least one or none, the majority, and one with two peaks."""
    count, size = np.asarray(tree.count), np.asarray(tree.size)[tree.count_bag]
    fraction = count / size
    with np.errstate(divide="ignore"):
        return np.stack(
            [
                -(fraction**2) / 0.02,
                -((fraction - 0.5) ** 2) / 0.02,
                np.log(count >= 1),
                np.log(count == 0),
                np.log(2 * count >= size),
                np.where(fraction < 0.5, -50 * fraction, -50 * (1 - fraction)),
            ]
        )


def concave_potentials(tree):
    """Without the last, which has two modes."""
    return potentials(tree)[:-1]


slow = jax.jit(log_symmetric)
fast = jax.jit(log_partition)


@pytest.fixture(params=[0, 7], ids=["tilted", "in logs"])
def partition(request, monkeypatch):
    """`log_partition`, all bags of which are tilted, or the small ones summed in logs."""
    monkeypatch.setattr(counting, "_LOG_DEPTHS", request.param)
    return jax.jit(lambda *arguments: log_partition(*arguments))


def slow_partition(tree, logits, log_potential, sizes):
    terms = log_potential + np.asarray(slow(tree, jnp.asarray(logits)))
    return np.stack([logsumexp(bag, axis=1) for bag in counts_in_bags(terms, sizes)], axis=1)


# ------------------------------------------------------------------ every count


def test_symmetric_polynomials_are_the_sums_over_all_labellings():
    sizes = SIZES[:6]
    logits = random_logits(sizes, 3.0)
    found = counts_in_bags(slow(tree_of(sizes), jnp.asarray(logits)), sizes)
    for of_bag, log_e in zip(in_bags(logits, sizes), found, strict=True):
        labellings = np.array(list(product([0, 1], repeat=len(of_bag))))
        count, log_weight = labellings.sum(axis=1), labellings @ of_bag
        expected = [logsumexp(log_weight[count == c]) for c in range(len(of_bag) + 1)]
        np.testing.assert_allclose(log_e, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 15.0])
def test_tails_of_the_count_distribution_match_exact_fractions(scale):
    """Sixty instances, log odds up to fifty: the least chance is e^−1000 or less."""
    logits = np.clip(random_logits([60], scale, seed=1), -50, 50)
    exact = [Fraction(1)]
    for weight in map(Fraction, np.exp(logits)):
        longer = [*exact, Fraction(0)]
        exact = [a + weight * b for a, b in zip(longer, [Fraction(0), *exact], strict=True)]
    total = sum(exact)
    expected = [_log(e / total) for e in exact]
    found = np.asarray(slow(tree_of([60]), jnp.asarray(logits)))
    found = found - np.logaddexp(0, logits).sum()
    # The relative error of a chance is the error of its log.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def _log(fraction):
    return math.log(fraction.numerator) - math.log(fraction.denominator)


@pytest.mark.slow
def test_the_count_distribution_of_five_thousand_instances_is_exact():
    logits = np.random.default_rng(2).uniform(-50, 50, 5000)
    tree = tree_of([5000])
    found, expected = np.asarray(slow(tree, jnp.asarray(logits))), one_by_one(logits)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-9)
    log_potential = concave_potentials(tree)
    partition = np.asarray(fast(tree, jnp.asarray(logits), jnp.asarray(log_potential)))[:, 0]
    np.testing.assert_allclose(
        partition, logsumexp(log_potential + expected, axis=1), rtol=1e-12, atol=1e-9
    )


def test_an_instance_that_cannot_be_positive_counts_for_nothing():
    sizes = [4, 3]
    logits = random_logits(sizes, 2.0)
    logits[[1, 5]] = -INF
    found = np.asarray(slow(tree_of(sizes), jnp.asarray(logits)))
    without = np.asarray(slow(tree_of([3, 2]), jnp.asarray(np.delete(logits, [1, 5]))))
    np.testing.assert_allclose(np.delete(found, [4, 8]), without, rtol=1e-14)
    assert (found[[4, 8]] == -INF).all()


# ------------------------------------------------------------------ the sum, and its gradients


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_the_sum_is_that_over_all_counts(partition, scale):
    tree, logits = tree_of(SIZES), random_logits(SIZES, scale, seed=3)
    log_potential = potentials(tree)
    expected = slow_partition(tree, logits, log_potential, SIZES)
    found = partition(tree, jnp.asarray(logits), jnp.asarray(concave_potentials(tree)))
    np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-12, atol=1e-11)
    # Potentials with two modes are for logs.
    found = partition(replace(tree, in_logs=True), jnp.asarray(logits), jnp.asarray(log_potential))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-11)


@pytest.mark.slow
def test_sums_by_fourier_transform_are_accurate_at_full_size():
    """The other way is in logs, where no term is subtracted."""
    tree = tree_of([3000])
    logits = jnp.asarray(np.random.default_rng(5).uniform(-5, 5, 3000))
    weight = jnp.asarray(concave_potentials(tree))

    def with_gradients(tree):
        def of(logits):
            values = log_partition(tree, logits, weight)[:, 0]
            return jnp.sum(values), values

        return jax.jit(jax.grad(of, has_aux=True))(logits)[::-1]

    value, gradients = with_gradients(tree)
    expected, expected_gradients = with_gradients(replace(tree, in_logs=True))
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(gradients, expected_gradients, rtol=1e-9)


@pytest.mark.parametrize("length", [2, 9, 17, 65, 1025])
def test_a_product_is_numpys(length):
    random = np.random.default_rng(length)
    one, other = random.random((2, 3, length))
    found = counting._product(jnp.asarray(one), jnp.asarray(other))
    expected = np.stack([np.convolve(*pair) for pair in zip(one, other, strict=True)])
    # A Fourier transform's errors are of the order of the largest coefficient.
    error = 1e-14 * expected.max() if length > counting._SHORT else 0.0
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=error)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
def test_gradients_are_the_probabilities_of_each_label(partition):
    sizes = SIZES[:6]
    tree, logits = tree_of(sizes), random_logits(sizes, 4.0, seed=5)
    log_potential = potentials(tree)

    @jax.jit
    @jax.jacrev
    def gradients_of(logits):
        return jnp.sum(partition(tree, logits, jnp.asarray(log_potential)), axis=1)

    of_bags = zip(
        in_bags(logits, sizes),
        in_bags(gradients_of(jnp.asarray(logits)), sizes),
        counts_in_bags(log_potential, sizes),
        strict=True,
    )
    for of_bag, gradients, log_c in of_bags:
        labellings = np.array(list(product([0, 1], repeat=len(of_bag))))
        weight = labellings @ of_bag + log_c[:, labellings.sum(axis=1)]
        chance = np.exp(weight - logsumexp(weight, axis=1, keepdims=True)) @ labellings
        # Also of labels that are all but impossible: nothing was subtracted.
        np.testing.assert_allclose(gradients, chance, rtol=1e-11, atol=1e-300)


@pytest.mark.slow
def test_gradients_by_logs_and_products_agree(partition):
    tree, logits = tree_of(SIZES), random_logits(SIZES, 30.0, seed=6)
    weight = jnp.asarray(potentials(tree)[1])

    def by_counts(logits):
        roots = tree.by_root(weight + log_symmetric(tree, logits))
        return sum(jnp.sum(counting._log_sum(root, axis=-1)) for root in roots)

    def by_partition(logits):
        return jnp.sum(partition(tree, logits, weight[None]))

    found, expected = (jax.jit(jax.grad(f))(jnp.asarray(logits)) for f in (by_partition, by_counts))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-300)


@pytest.mark.in_ci
def test_second_derivatives_of_a_large_bag_are_finite():
    """With C = 1, log Z = Σ log(1 + e^φ); some e_c are below 1e-154 of the largest."""
    tree, logits = tree_of([700]), random_logits([700], 2.0, seed=9)
    direction = np.random.default_rng(0).normal(size=700)

    @jax.jit
    @jax.grad
    def along(logits):
        chance = jax.grad(lambda x: log_partition(tree, x, jnp.zeros((1, 701)))[0, 0])(logits)
        return direction @ chance

    chance = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(along(logits), direction * chance * (1 - chance), rtol=1e-9)


@pytest.mark.slow
def test_a_bag_without_weight_leaves_others_unchanged(partition):
    tree, logits = tree_of(SIZES), random_logits(SIZES, 3.0, seed=8)
    count = np.asarray(tree.count)
    at_least_three = jnp.where(count >= 3, 0.0, -INF)[None]

    def of(logits):
        found = partition(tree, logits, at_least_three)[0]
        return jnp.sum(jnp.where(jnp.isfinite(found), found, 0.0)), found

    gradients, found = jax.jit(jax.grad(of, has_aux=True))(jnp.asarray(logits))
    expected = slow_partition(tree, logits, np.asarray(at_least_three), SIZES)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert (np.isneginf(found) == (np.array(SIZES) < 3)).all()
    few = np.repeat(np.array(SIZES) < 3, SIZES)
    assert (gradients[few] == 0).all() and (gradients[~few] > 0).all()


# ------------------------------------------------------------------ draws


@pytest.mark.slow
def test_labels_have_exact_frequencies_in_large_bags():
    sizes, draws = [70, 1, 5], 4000
    tree, logits = tree_of(sizes), jnp.asarray(random_logits(sizes, 2.0, seed=9))
    weight = jnp.asarray(potentials(tree)[1])  # half of the instances, about
    keys = jax.random.split(jax.random.key(0), draws)
    draw = jax.jit(lambda keys: jax.lax.map(lambda k: draw_labels(tree, k, logits, weight), keys))
    labels = np.asarray(draw(keys))
    chance = np.asarray(jax.jit(jax.grad(lambda x: fast(tree, x, weight[None]).sum()))(logits))
    # 76 labels at 5.5 sd: a false alarm in 3e-6 of all seeds.
    error = np.sqrt(chance * (1 - chance) / draws)
    assert (np.abs(labels.mean(axis=0) - chance) <= 5.5 * error).all()
    count = labels[:, :70].sum(axis=1)
    log_weight = np.asarray(weight + slow(tree, logits))[:71]
    probability = np.exp(log_weight - logsumexp(log_weight))
    mean = probability @ np.arange(71)
    error = np.sqrt(probability @ (np.arange(71) - mean) ** 2 / draws)
    # Labels of one bag are dependent: the distribution of their count shows it.
    assert abs(count.mean() - mean) <= 5 * error
    np.testing.assert_allclose(count.var(), draws * error**2, rtol=0.15)


@pytest.mark.slow
def test_bags_do_not_know_each_other():
    logits = random_logits(SIZES, 5.0, seed=7)
    together = counts_in_bags(slow(tree_of(SIZES), jnp.asarray(logits)), SIZES)
    for size, of_bag, found in zip(SIZES, in_bags(logits, SIZES), together, strict=True):
        alone = slow(tree_of([size]), jnp.asarray(of_bag))
        np.testing.assert_allclose(found, alone, rtol=1e-14)
