"""VGPMIL as the authors' scripts fit it: its updates by plain algebra, and what it keeps."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags, load
from milzoo.datasets.padding import padded
from milzoo.models import GammaScaleMixture, PolyaGammaScaleMixture
from milzoo.papers import exhibits_named, published_vgpmil
from milzoo.papers.published_vgpmil import CutGamma, Fit, Labels, PublishedVGPMIL, Rows
from numpy.linalg import inv, slogdet
from scipy.special import expit

pytestmark = pytest.mark.in_ci

M, D, JITTER = 4, 3, 1e-6
MIXTURES = (PolyaGammaScaleMixture(), CutGamma(GammaScaleMixture(1.0, 2.5)))


@pytest.fixture(scope="module")
def bags():
    random = np.random.default_rng(0)
    return Bags.from_list([random.normal(size=(1 + b % 4, D)) for b in range(9)], np.arange(9) % 2)


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(1).normal(size=(M, D))


@pytest.fixture
def fit(bags):
    random, size = np.random.default_rng(2), padded(bags).num_instances
    with jax.enable_x64(True):
        return Fit(
            jnp.log(jnp.array([2.0, 0.7])),
            jnp.asarray(random.normal(size=M)),
            jnp.asarray(np.eye(M) + 0.1 * random.normal(size=(M, M))),
            jnp.asarray(random.uniform(size=size)),
            jnp.asarray(random.uniform(0.5, 2.0, size)),
        )


def covariance(one, other, log_kernel):
    """v exp(−‖x − x'‖²/(2ℓ²))."""
    squared_length_scale, variance = np.exp(np.asarray(log_kernel))
    squares = ((one[:, None] - other[None]) ** 2).sum(axis=2)
    return variance * np.exp(-squares / (2 * squared_length_scale))


def matrices(bags, points, log_kernel):
    """K_ZZ⁻¹, A = K_XZ K_ZZ⁻¹ and K_XZ."""
    inverse = inv(covariance(points, points, log_kernel) + JITTER * np.eye(M))
    between = covariance(np.asarray(bags.instances), points, log_kernel)
    return inverse, between @ inverse, between


def test_precision_of_cut_gamma_is_that_of_the_scripts():
    """−ψ'(c)/(cψ(c)) with ψ and ψ' at c cut to 3, both written out."""
    mixture, tilts = (
        CutGamma(GammaScaleMixture(0.5, 2.5)),
        np.array([1e-3, 0.7, 2.9, 3.0, 3.1, 8.0]),
    )
    cut = np.minimum(tilts, 3.0)
    psi, derivative = (2.5 + cut**2 / 2) ** -0.5, -0.5 * (2.5 + cut**2 / 2) ** -1.5 * cut
    with jax.enable_x64(True):
        found = mixture.expected_precision(jnp.asarray(tilts))
        at_zero = mixture.expected_precision(jnp.zeros(()))
        log_psi = mixture.log_density(jnp.asarray(np.concatenate([-tilts, tilts])))
    np.testing.assert_allclose(found, -derivative / (tilts * psi), rtol=1e-12)
    assert float(at_zero) == pytest.approx(0.5 / 2.5)
    expected = np.log(psi) + 0.5 * np.log(2.5)
    # Absolute: near 0 the expected number is a difference of two logarithms of size 1.
    np.testing.assert_allclose(log_psi, np.tile(expected, 2), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("mixture", MIXTURES, ids=["logistic", "gamma"])
def test_updates_are_those_of_algorithm_1(bags, points, fit, mixture):
    """S = (K⁻¹ + AᵀΘA)⁻¹ and m = SAᵀ(π − ½); η = E f + (2T − 1) log H (1 − max of others)."""
    with jax.enable_x64(True):
        given, labels = padded(bags), Labels.of(padded(bags))
        pairs = published_vgpmil._pairs(given, jnp.asarray(points))
        found = jax.tree.map(np.asarray, published_vgpmil._update(fit, pairs, labels, mixture))
        theta = np.asarray(mixture.expected_precision(fit.tilt))[: bags.num_instances]
    inverse, weights, between = matrices(bags, points, fit.log_kernel)
    former = np.asarray(fit.probability)[: bags.num_instances]
    S = inv(inverse + weights.T @ (theta[:, None] * weights))
    m = S @ weights.T @ (former - 0.5)
    np.testing.assert_allclose(found.mean, m, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.root @ found.root.T, S, rtol=1e-7, atol=1e-9)
    location, logits = weights @ m, np.empty(bags.num_instances)
    for n in range(bags.num_instances):
        others = (bags.bag_index == bags.bag_index[n]) & (np.arange(len(former)) != n)
        largest = former[others].max() if others.any() else 0.0
        sign = 2 * bags.labels[bags.bag_index[n]] - 1
        logits[n] = location[n] + sign * np.log(1e12) * (1 - largest)
    size = bags.num_instances
    np.testing.assert_allclose(found.probability[:size], expit(logits), rtol=1e-7, atol=1e-14)
    # The 1 is v by equation 3.
    variance = 1 - np.sum(weights * between, axis=1) + np.sum(weights @ S * weights, axis=1)
    np.testing.assert_allclose(found.tilt[:size] ** 2, abs(location**2 + variance), rtol=1e-8)


def test_probabilities_are_expectations_under_the_posterior(bags, points, fit):
    """E σ(f) with f ~ N(Am, v − AK_ZX + ASAᵀ), by the trapezoid rule."""
    with jax.enable_x64(True):
        pairs = published_vgpmil._pairs(padded(bags), jnp.asarray(points))
        found = published_vgpmil._of_instances(fit, pairs)[: bags.num_instances]
    _, weights, between = matrices(bags, points, fit.log_kernel)
    root = np.asarray(fit.root)
    residual = np.exp(fit.log_kernel[1]) - np.sum(weights * between, axis=1)
    scale = np.sqrt(residual + np.sum((weights @ root) ** 2, axis=1))
    grid = np.linspace(-12, 12, 4001)
    latent = (weights @ np.asarray(fit.mean))[:, None] + scale[:, None] * grid
    expected = np.trapezoid(expit(latent) * np.exp(-(grid**2) / 2), grid) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def minus_bound(log_kernel, bags, points, fit, mixture, noise):
    """Of a mean instance, with ψ at one draw of f and 0.6 of KL(q(u) ‖ p(u))/M."""
    inverse, weights, between = matrices(bags, points, log_kernel)
    pi = np.asarray(fit.probability)[: bags.num_instances]
    m, root = np.asarray(fit.mean), np.asarray(fit.root)
    S = root @ root.T
    residual = np.exp(log_kernel[1]) - np.sum(weights * between, axis=1)
    variance = residual + np.sum(weights @ S * weights, axis=1)
    latent = weights @ m + np.sqrt(variance) * noise[: bags.num_instances]
    with jax.enable_x64(True):
        log_psi = np.asarray(mixture.log_density(jnp.asarray(latent)))
    divergence = np.trace(inverse @ S) + m @ inverse @ m - M
    divergence += -slogdet(inverse)[1] - slogdet(S)[1]
    return 0.6 * divergence / 2 / M - np.mean((pi - 0.5) * (weights @ m) + log_psi)


def value_and_gradient(log_kernel, bags, points, fit, mixture, noise, share=0.6):
    given = padded(bags)
    with jax.enable_x64(True):
        pairs = published_vgpmil._pairs(given, jnp.asarray(points))
        weight = Labels.of(given).weight
        rows = Rows(pairs.instances, fit.probability, jnp.asarray(noise), weight)
        parts = fit, pairs.inducing, rows, mixture, jnp.asarray(share)
        value, gradient = published_vgpmil._value_and_gradient(jnp.asarray(log_kernel), *parts)
        return float(value), np.asarray(gradient)


@pytest.mark.parametrize("mixture", MIXTURES, ids=["logistic", "gamma"])
def test_the_objective_is_minus_the_bound_of_an_instance(bags, points, fit, mixture):
    """Up to what no kernel changes; its gradient by differences of plain algebra."""
    noise = np.random.default_rng(3).normal(size=padded(bags).num_instances)
    parts = bags, points, fit, mixture, noise
    found, expected = [], []
    for log_kernel in (np.log([2.0, 0.7]), np.log([5.0, 1.5])):
        value, gradient = value_and_gradient(log_kernel, *parts)
        found.append(value)
        expected.append(minus_bound(log_kernel, *parts))
        differences = [
            (minus_bound(log_kernel + h, *parts) - minus_bound(log_kernel - h, *parts)) / 2e-5
            for h in 1e-5 * np.eye(2)
        ]
        np.testing.assert_allclose(gradient, differences, rtol=1e-6, atol=1e-8)
    assert found[1] - found[0] == pytest.approx(expected[1] - expected[0], rel=1e-8)


def test_learning_lowers_the_objective_and_moves_the_kernel_alone(bags, points, fit):
    given, noise = padded(bags), np.zeros(padded(bags).num_instances)
    with jax.enable_x64(True):
        pairs = published_vgpmil._pairs(given, jnp.asarray(points))
        parts = pairs, Labels.of(given), MIXTURES[0], jnp.asarray(noise)
        learned = published_vgpmil._learn_kernel(fit, *parts)
    before, after = (
        value_and_gradient(one.log_kernel, bags, points, fit, MIXTURES[0], noise, share=0.5)[0]
        for one in (fit, learned)
    )
    assert after < before - 1e-4
    for name in ("mean", "root", "probability", "tilt"):
        np.testing.assert_array_equal(getattr(learned, name), getattr(fit, name))


@pytest.fixture(scope="module")
def digits():
    return load("digits")[:39].standardize()


@pytest.fixture(scope="module")
def fitted(digits):
    return PublishedVGPMIL(10, seed=0).fit(digits)


def test_a_bag_is_scored_by_its_largest_instance(digits, fitted):
    of_instances = expit(fitted.score_instances(digits))
    expected = [of_instances[digits.bag_index == b].max() for b in range(len(digits))]
    np.testing.assert_allclose(fitted.predict_proba(digits)[:, 1], expected, rtol=1e-9)


def test_the_update_of_lowest_log_loss_is_kept(digits, monkeypatch):
    seen, largest = [], published_vgpmil._largest

    def watched(fit, pairs, bags):
        found = largest(fit, pairs, bags)
        right = np.where(bags.labels == 1, found, 1 - found)
        seen.append((-np.log(right).mean(), fit))
        return found

    monkeypatch.setattr(published_vgpmil, "_largest", watched)
    fitted = PublishedVGPMIL(10, alpha=1.0, beta=2.5, seed=0).fit(digits)
    losses = [loss for loss, _ in seen]
    assert fitted.num_updates_ == len(seen) <= 60
    kept = next(number for number, (_, fit) in enumerate(seen) if fit is fitted.fit_)
    assert losses[kept] < min(losses) + 1e-3
    # Ten updates after the first ten have not lowered it, or all sixty were made.
    assert len(seen) == 60 or len(seen) - 1 - max(kept, 9) == 10


def test_bags_set_aside_are_watched_and_not_fitted(digits, monkeypatch):
    """They are the bags that the protocol of MNIST scores."""
    watched, largest = [], published_vgpmil._largest
    fitted, padding = [], published_vgpmil.padded

    def watching(fit, pairs, bags):
        watched.append(bags)
        return largest(fit, pairs, bags)

    def padding_seen(bags):
        fitted.append(bags)
        return padding(bags)

    monkeypatch.setattr(published_vgpmil, "_largest", watching)
    monkeypatch.setattr(published_vgpmil, "padded", padding_seen)
    ((_, exhibit),) = exhibits_named("castro-macias-2024/table-4")
    published, _ = exhibit.cells[0].attempts
    training, scored = published.protocol.splits("digits", digits, 0)[0]
    assert set(scored) < set(training)
    PublishedVGPMIL(6, sets_aside=True, seed=0).fit(digits[training])
    np.testing.assert_array_equal(watched[0].instances, digits[scored].instances)
    others = np.setdiff1d(training, scored)
    assert sorted(fitted[0].instances.tolist()) == sorted(digits[others].instances.tolist())


def test_half_of_the_inducing_points_is_of_each_label(bags):
    """Instances of positive bags are far above those of negative ones here."""
    label = np.asarray(bags.labels)[bags.bag_index]
    apart = replace(bags, instances=np.asarray(bags.instances) + 100.0 * label[:, None])
    for num_inducing in (4, 5):
        found = PublishedVGPMIL(num_inducing, seed=0)._centres_by_label(apart)
        is_of_positive = found.mean(axis=1) > 50
        assert is_of_positive.tolist() == [False] * (num_inducing - 2) + [True] * 2
        assert len(np.unique(found, axis=0)) == num_inducing


def test_a_second_fit_of_like_size_compiles_nothing(digits, fitted, compilations):
    fitted.predict(digits[1:])
    before = compilations.number
    PublishedVGPMIL(10, seed=1).fit(digits[1:]).predict(digits[:38])
    assert compilations.number == before


def test_scripts_score_the_bags_that_they_train_on(digits):
    ((_, exhibit),) = exhibits_named("castro-macias-2024/table-6")
    for cell in exhibit.cells:
        published, honest = cell.attempts
        assert "trained on" in published.protocol.peeks
        for training, test in published.protocol.splits("digits", digits, 0):
            np.testing.assert_array_equal(training, test)
        for training, test in honest.protocol.splits("digits", digits, 0):
            assert not set(training) & set(test)
