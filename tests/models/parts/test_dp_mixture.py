"""Mixtures of Gaussians, and bags of them, against scipy and sums over all labels and clusters.

Statistical tests are seeded; `largest_z` keeps the false alarms of each below 5e-6 over all its
looks, hence of the whole file (5 such tests) below 1e-4.
"""

import math
from itertools import product
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.parts.dp_mixture import MixtureBags, Mixtures, gaussian_by_precision
from milzoo.models.parts.witnesses import LabelRule
from scipy import stats
from scipy.special import logsumexp

FALSE_ALARM = 5e-6
COVARIANCES = ["full", "diagonal"]
INF = math.inf


def largest_z(looks):
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * looks))


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def random_roots(shape, num_features, covariance, seed):
    """Roots of precisions: lower triangular, or positive numbers."""
    random = np.random.default_rng(seed)
    diagonal = random.uniform(0.4, 2.0, size=(*shape, num_features))
    if covariance == "diagonal":
        return diagonal
    below = np.tril(random.normal(size=(*shape, num_features, num_features)), -1)
    return below + diagonal[..., None] * np.eye(num_features)


def precision_of(root, num_features):
    """Λ of one component."""
    return np.diag(root**2) if root.shape == (num_features,) else root @ root.T


# ------------------------------------------------------------------ one Gaussian by its precision


@pytest.mark.slow_but_first
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_density_is_scipys(covariance):
    random = np.random.default_rng(0)
    loc, root = random.normal(size=(2, 4, 3)), random_roots((2, 4), 3, covariance, seed=1)
    strength, x = random.uniform(0.2, 5.0, size=(2, 4)), random.normal(size=(2, 4, 3))
    distribution = gaussian_by_precision(*map(jnp.asarray, (loc, root, strength)))
    assert distribution.batch_shape == (2, 4) and distribution.event_shape == (3,)
    found = distribution.log_prob(jnp.asarray(x))
    of_one_strength = gaussian_by_precision(jnp.asarray(loc), jnp.asarray(root), 0.3)
    of_one_strength = of_one_strength.log_prob(jnp.asarray(x))
    for where in np.ndindex(2, 4):
        precision = precision_of(root[where], 3)
        for one, beta in ((found, strength[where]), (of_one_strength, 0.3)):
            cov = np.linalg.inv(beta * precision)
            expected = stats.multivariate_normal(loc[where], cov).logpdf(x[where])
            np.testing.assert_allclose(float(one[where]), expected, rtol=1e-10)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_gradients_of_the_density_are_those_of_differences(covariance):
    root = jnp.asarray(random_roots((), 2, covariance, seed=2))
    x = jnp.array([0.4, -1.3])

    def log_density(loc, root, strength):
        return gaussian_by_precision(loc, root, strength).log_prob(x)

    at = (jnp.array([0.1, 0.7]), root, jnp.asarray(0.8))
    flat, unravel = jax.flatten_util.ravel_pytree(at)
    steps = 1e-5 * np.eye(len(flat))
    function = jax.jit(lambda vector: log_density(*unravel(vector)))
    difference = [(function(flat + h) - function(flat - h)) / 2e-5 for h in steps]
    found = jax.flatten_util.ravel_pytree(jax.grad(log_density, argnums=(0, 1, 2))(*at))[0]
    if covariance == "full":  # above the diagonal nothing is read
        upper = 2 + 1
        found, difference = (np.delete(np.asarray(a), upper) for a in (found, difference))
    np.testing.assert_allclose(found, difference, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_draws_have_the_inverse_precision_as_covariance(covariance):
    number = 40_000
    loc = np.array([[3.0, -1.0, 0.5], [0.0, 100.0, -2.0]])
    root, strength = random_roots((2,), 3, covariance, seed=3), np.array([0.5, 7.0])
    distribution = gaussian_by_precision(*map(jnp.asarray, (loc, root, strength)))
    draws = np.asarray(jax.jit(lambda key: distribution.sample(key, (number,)))(jax.random.key(4)))
    assert draws.shape == (number, 2, 3)
    looks = 2 * (2 * (3 + 9) + 9)
    for k in range(2):
        expected = np.linalg.inv(strength[k] * precision_of(root[k], 3))
        variance = np.diagonal(expected)
        z_mean = (draws[:, k].mean(axis=0) - loc[k]) / np.sqrt(variance / number)
        assert np.abs(z_mean).max() < largest_z(looks)
        # The sd of a sample covariance of Gaussians.
        error = np.sqrt((np.outer(variance, variance) + expected**2) / number)
        z_covariance = (np.cov(draws[:, k].T) - expected) / error
        assert np.abs(z_covariance).max() < largest_z(looks)
    between = np.corrcoef(draws[:, 0].T, draws[:, 1].T)[:3, 3:]
    assert np.abs(between).max() * math.sqrt(number) < largest_z(looks)


# ------------------------------------------------------------------ two mixtures


def mixtures_of(covariance, num_components=3, num_features=2, seed=5):
    random = np.random.default_rng(seed)
    weight = random.dirichlet(np.ones(num_components), size=2)
    mean = 2 * random.normal(size=(2, num_components, num_features))
    root = random_roots((2, num_components), num_features, covariance, seed + 1)
    return Mixtures(*map(jnp.asarray, (np.log(weight), mean, root)))


def dense_components(mixtures, instances):
    """log π_lk N(x_n; μ_lk, Λ_lk⁻¹), by scipy."""
    log_weight, mean, root = map(np.asarray, mixtures)
    found = np.empty((*log_weight.shape, len(instances)))
    for klass, k in np.ndindex(log_weight.shape):
        covariance = np.linalg.inv(precision_of(root[klass, k], mean.shape[-1]))
        normal = stats.multivariate_normal(mean[klass, k], covariance)
        found[klass, k] = log_weight[klass, k] + normal.logpdf(instances)
    return found


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("block", [2**22, 30, 1], ids=["at once", "in blocks", "one by one"])
def test_densities_are_scipys_whatever_the_blocks(covariance, block, monkeypatch):
    monkeypatch.setattr("milzoo.models.parts.dp_mixture._BLOCK", block)
    mixtures = mixtures_of(covariance)
    # The last lie so far out that their densities underflow.
    instances = 5 * np.random.default_rng(7).normal(size=(7, 2))
    instances[-2:] *= 100
    expected = dense_components(mixtures, instances)
    found = mixtures.log_components(jnp.asarray(instances))
    assert found.shape == (2, 3, 7)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(
        mixtures.log_density(jnp.asarray(instances)), logsumexp(expected, axis=1), rtol=1e-10
    )


def test_densities_in_hundreds_of_dimensions_are_those_of_scipy():
    random = np.random.default_rng(8)
    root = random_roots((2, 1), 170, "full", seed=9) + 3 * np.eye(170)
    mixtures = Mixtures(
        *map(jnp.asarray, (np.zeros((2, 1)), random.normal(size=(2, 1, 170)), root))
    )
    instances = random.normal(size=(2, 170))
    found = mixtures.log_density(jnp.asarray(instances))
    # By the factor itself: the covariance is too ill conditioned to be inverted.
    for klass in range(2):
        whitened = (instances - np.asarray(mixtures.mean[klass, 0])) @ root[klass, 0]
        log_root = np.log(np.diagonal(root[klass, 0])).sum()
        expected = stats.norm.logpdf(whitened).sum(axis=1) + log_root
        np.testing.assert_allclose(found[klass], expected, rtol=1e-12)


@pytest.mark.slow
def test_a_component_of_weight_zero_adds_nothing():
    mixtures = mixtures_of("full")
    without = mixtures._replace(log_weight=mixtures.log_weight.at[:, 1].set(-INF))
    kept = jax.tree.map(lambda a: a[:, jnp.array([0, 2])], mixtures)
    x = jnp.asarray(np.random.default_rng(10).normal(size=(4, 2)))
    np.testing.assert_allclose(without.log_density(x), kept.log_density(x), rtol=1e-14)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_gaussians_of_labels_and_clusters_are_their_components(covariance):
    mixtures = mixtures_of(covariance)
    label, cluster = jnp.array([0, 1, 1, 0]), jnp.array([2, 0, 1, 1])
    x = np.random.default_rng(11).normal(size=(4, 2))
    every = dense_components(mixtures, x) - np.asarray(mixtures.log_weight)[..., None]
    found = mixtures.of(label, cluster).log_prob(jnp.asarray(x))
    np.testing.assert_allclose(found, every[label, cluster, np.arange(4)], rtol=1e-10)


# ------------------------------------------------------------------ bags of them

SIZES = [2, 3, 1, 3, 2]
BAG_INDEX = np.repeat(np.arange(len(SIZES)), SIZES)
MEMBERS = [np.flatnonzero(b == BAG_INDEX) for b in range(len(SIZES))]
# Negative; positive; positive of one; positive with known labels; positive without the condition.
KNOWN = np.array([-INF, -INF, 0.0, 0.0, 0.0, 0.0, 0.0, INF, -INF, 0.0, 0.0])
NEEDS_WITNESS = np.array([False, True, True, False, False])


def small_rule():
    return LabelRule(jnp.asarray(KNOWN), jnp.asarray(NEEDS_WITNESS), jnp.asarray(BAG_INDEX))


def allowed(bag):
    """All labellings that the rule allows of a bag."""
    known = KNOWN[MEMBERS[bag]]
    return [
        labels
        for labels in product((0, 1), repeat=len(known))
        if all(k == 0 or (k > 0) == bool(label) for k, label in zip(known, labels, strict=True))
        and (any(labels) or not NEEDS_WITNESS[bag])
    ]


def log_evidence(mixtures, instances, bag):
    """log of the mean over the labels and the sum over the clusters, term by term."""
    components, members = dense_components(mixtures, instances), MEMBERS[bag]
    clusters = list(product(range(components.shape[1]), repeat=len(members)))
    terms = [
        components[labels, cluster, members].sum()
        for labels in allowed(bag)
        for cluster in clusters
    ]
    return logsumexp(terms) - math.log(len(allowed(bag)))


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("covariance", "num_components"), [("full", 3), ("diagonal", 2), ("full", 1)]
)
def test_the_bag_density_sums_over_labels_and_clusters(covariance, num_components):
    mixtures = mixtures_of(covariance, num_components)
    instances = 2 * np.random.default_rng(12).normal(size=(len(BAG_INDEX), 2))
    distribution = MixtureBags(mixtures, small_rule())
    assert distribution.batch_shape == () and distribution.event_shape == (len(BAG_INDEX), 2)
    expected = [log_evidence(mixtures, instances, bag) for bag in range(len(SIZES))]

    @jax.jit
    def both(distribution, instances):
        return distribution.log_prob_by_bag(instances), distribution.log_prob(instances)

    by_bag, together = both(distribution, jnp.asarray(instances))
    np.testing.assert_allclose(by_bag, expected, rtol=1e-12)
    np.testing.assert_allclose(float(together), sum(expected), rtol=1e-12)


def test_the_density_of_bags_integrates_to_one():
    """Over both instances of a positive bag of one feature, by trapezoids."""
    mixtures = mixtures_of("full", num_components=2, num_features=1)
    rule = LabelRule(jnp.zeros(2), jnp.array([True]), jnp.zeros(2, int))
    grid = np.linspace(-30.0, 30.0, 301)
    pairs = jnp.asarray(np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2, 1))
    density = jnp.exp(jax.jit(jax.vmap(MixtureBags(mixtures, rule).log_prob))(pairs))
    # The narrowest Gaussian is 2.5 steps wide: an error of e^{−2π² 2.5²}.
    np.testing.assert_allclose(float(density.sum()) * (grid[1] - grid[0]) ** 2, 1, rtol=1e-10)


@pytest.fixture(scope="module")
def drawn():
    """Draws of bags from components so far apart that an instance shows where it came from."""
    weight = np.array([[0.2, 0.8], [0.6, 0.4]])
    mean = np.array([[[0.0, 0.0], [100.0, 0.0]], [[0.0, 100.0], [100.0, 100.0]]])
    root = random_roots((2, 2), 2, "full", seed=13)
    with jax.enable_x64(True):
        mixtures = Mixtures(*map(jnp.asarray, (np.log(weight), mean, root)))
        keys = jax.random.split(jax.random.key(14), 20_000)
        draws = np.asarray(jax.jit(jax.vmap(MixtureBags(mixtures, small_rule()).sample))(keys))
    distance = np.linalg.norm(draws[:, :, None, None] - mean, axis=-1)  # (S, N, 2, 2)
    nearest = distance.reshape(*distance.shape[:2], 4).argmin(axis=-1)
    return weight, mean, root, draws, nearest // 2, nearest % 2


@pytest.mark.slow
def test_drawn_labels_are_uniform_over_those_allowed(drawn):
    *_, label, _ = drawn
    for bag, members in enumerate(MEMBERS):
        possible = dict.fromkeys(allowed(bag), 0)
        found, counts = np.unique(label[:, members], axis=0, return_counts=True)
        for labels, count in zip(found, counts, strict=True):
            assert tuple(labels.tolist()) in possible
            possible[tuple(labels.tolist())] = count
        if len(possible) > 1:
            pvalue = stats.chisquare(list(possible.values())).pvalue
            assert pvalue > FALSE_ALARM / len(SIZES)


@pytest.mark.slow
def test_drawn_clusters_are_independent_with_the_class_weights(drawn):
    weight, _, _, _, label, cluster = drawn
    looks = 2 * len(BAG_INDEX) + math.comb(len(BAG_INDEX), 2)
    for n in range(len(BAG_INDEX)):
        for klass in range(2):
            of_class = cluster[label[:, n] == klass, n]
            if len(of_class):
                test = stats.binomtest(int(of_class.sum()), len(of_class), weight[klass, 1])
                assert test.pvalue > FALSE_ALARM / looks
    # Given the labels: what is left of a cluster when its mean is taken off.
    left = cluster - weight[label, 1]
    correlation = np.corrcoef(left.T)[np.triu_indices(len(BAG_INDEX), 1)]
    assert np.abs(correlation).max() * math.sqrt(len(left)) < largest_z(looks)


@pytest.mark.in_ci
def test_drawn_instances_are_gaussian_around_their_component(drawn):
    _, mean, root, draws, label, cluster = drawn
    deviation = draws - mean[label, cluster]
    # (x − μ)ᵀL is standard.
    standard = np.einsum("snd,snde->sne", deviation, root[label, cluster])
    looks = 4 * 3
    for klass, k in np.ndindex(2, 2):
        own = standard[(label == klass) & (cluster == k)]
        for column in own.T:
            assert stats.kstest(column, "norm").pvalue > FALSE_ALARM / looks
        correlation = np.corrcoef(own.T)[0, 1]
        assert abs(correlation) * math.sqrt(len(own)) < largest_z(looks)


@pytest.mark.in_ci
def test_drawn_instances_have_the_mixture_moments(drawn):
    """Of the last bag, which has no condition: either class with probability ½."""
    weight, mean, root, draws, *_ = drawn
    fraction = 0.5 * weight
    expected = np.einsum("lk,lkd->d", fraction, mean)
    second = np.zeros((2, 2))
    for klass, k in np.ndindex(2, 2):
        covariance = np.linalg.inv(precision_of(root[klass, k], 2))
        second += fraction[klass, k] * (covariance + np.outer(mean[klass, k], mean[klass, k]))
    for n in MEMBERS[-1]:
        x = draws[:, n]
        products = x[:, :, None] * x[:, None, :]
        for found, exact in ((x, expected), (products, second)):
            z = (found.mean(axis=0) - exact) / (found.std(axis=0) / math.sqrt(len(found)))
            assert np.abs(z).max() < largest_z(2 * (2 + 4))


def test_several_draws_at_once_are_refused():
    distribution = MixtureBags(mixtures_of("full"), small_rule())
    with pytest.raises(ValueError, match=r"sample_shape is \(3,\); expected \(\), one draw of all"):
        distribution.sample(jax.random.key(0), (3,))
