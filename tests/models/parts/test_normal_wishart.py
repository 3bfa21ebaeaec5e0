"""Conjugate distributions of Gaussians against Bishop, scipy and quadrature.

Statistical tests are seeded; `largest_z` keeps the false alarms of each below 5e-6 over all its
looks, hence of the whole file (12 such tests) below 1e-4.
"""

import math
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.parts.normal_wishart import (
    NormalGamma,
    NormalWishart,
    Statistics,
    family,
    log_predictive,
)
from scipy import integrate, stats
from scipy.special import multigammaln

FALSE_ALARM = 5e-6
COVARIANCES = ["full", "diagonal"]
BETA_0, NU_0 = 0.7, 4.5


def largest_z(looks):
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * looks))


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


# ------------------------------------------------------------------ a problem, and plain algebra


class Problem(NamedTuple):
    """Instances in units of their own, with the weights of three components: the last has none."""

    instances: np.ndarray  # (N, D)
    weight: np.ndarray  # (N, 3)
    center: np.ndarray  # m0
    scale: np.ndarray  # W0, (D, D)

    @property
    def root(self):
        """B, with BBᵀ = W0."""
        return np.linalg.cholesky(self.scale)

    @property
    def whitened(self):
        """x̃, with x = B⁻ᵀx̃ + m0."""
        return (self.instances - self.center) @ self.root


def problem(num_features, seed=0):
    random = np.random.default_rng(seed)
    mix = random.normal(size=(num_features, num_features)) + 2 * np.eye(num_features)
    instances = 5.0 + random.normal(size=(11, num_features)) @ mix
    weight = random.uniform(size=(11, 3)) * [1.0, 0.2, 0.0]
    scale = np.linalg.inv(mix @ mix.T + np.eye(num_features))
    return Problem(instances, weight, random.normal(size=num_features), scale)


def products(instances):
    """x_i x_j, i ≤ j, one after the other."""
    num_features = instances.shape[1]
    pairs = [(i, j) for i in range(num_features) for j in range(i, num_features)]
    return np.stack([instances[:, i] * instances[:, j] for i, j in pairs], axis=1)


def statistics_of(whitened, weight, covariance="full"):
    moments = products(whitened) if covariance == "full" else whitened**2
    of_instances = (weight.sum(axis=0), weight.T @ whitened, weight.T @ moments)
    return Statistics(*map(jnp.asarray, of_instances))


def bishop(instances, weight, center, scale, strength=BETA_0, degrees_of_freedom=NU_0):
    """m, β, W and ν by Bishop 10.60–10.63 with 10.51–10.53, of one component."""
    occupancy = weight.sum()
    average = weight @ instances / occupancy if occupancy else np.zeros_like(center)
    deviation = instances - average
    scatter = (weight[:, None] * deviation).T @ deviation  # N_k S_k
    beta = strength + occupancy
    offset = np.outer(average - center, average - center)
    inverse = np.linalg.inv(scale) + scatter + strength * occupancy / beta * offset
    mean = (strength * center + occupancy * average) / beta
    return mean, beta, np.linalg.inv(inverse), degrees_of_freedom + occupancy


def scales(posterior):
    """W of each component."""
    if isinstance(posterior, NormalGamma):
        return np.stack([np.diag(1 / w) for w in np.asarray(posterior.scatter)])
    factor = np.asarray(posterior.scatter_cholesky)
    return np.linalg.inv(factor @ np.swapaxes(factor, -1, -2))


# Each shape compiles once: operation by operation takes longer.
@partial(jax.jit, static_argnames="covariance")
def posterior_of(statistics, covariance="full", strength=BETA_0, degrees_of_freedom=NU_0):
    return family(covariance).posterior(statistics, strength, degrees_of_freedom)


class Expectations(NamedTuple):
    """Expectations under a conjugate posterior."""

    log_determinant: jax.Array
    log_density: tuple[jax.Array, jax.Array, jax.Array]
    divergence: jax.Array

    def at(self, instances):
        """E log N(x; μ, Λ⁻¹), (N, K)."""
        constant, linear, quadratic = map(np.asarray, self.log_density)
        is_full = quadratic.shape[-1] > linear.shape[-1]
        moments = products(instances) if is_full else instances**2
        return constant + instances @ linear.T + moments @ quadratic.T


@jax.jit
def expectations_of(posterior, strength=BETA_0, degrees_of_freedom=NU_0):
    return Expectations(
        posterior.expected_log_determinant(),
        posterior.expected_log_density(),
        posterior.divergence_from_prior(strength, degrees_of_freedom),
    )


@jax.jit
def predictive_of(instances, posterior):
    is_full = isinstance(posterior, NormalWishart)
    root = posterior.scale_cholesky() if is_full else 1 / jnp.sqrt(posterior.scatter)
    return log_predictive(
        instances, posterior.mean, root, posterior.strength, posterior.degrees_of_freedom
    )


@pytest.fixture(scope="module", params=COVARIANCES)
def posterior(request):
    """A posterior of two components of three features, from few instances."""
    given = problem(3, seed=1)
    with jax.enable_x64(True):
        statistics = statistics_of(given.whitened, given.weight[:, :2], request.param)
        return posterior_of(statistics, request.param)


def draws_by_scipy(posterior, component, number, seed):
    """μ (S, D) and Λ (S, D, D), by scipy's Wishart distribution."""
    random = np.random.default_rng(seed)
    nu, W = float(posterior.degrees_of_freedom[component]), scales(posterior)[component]
    if isinstance(posterior, NormalGamma):
        by_feature = [stats.wishart(nu, w).rvs(number, random_state=random) for w in np.diagonal(W)]
        precision = np.einsum("ds,de->sde", by_feature, np.eye(len(W)))
    else:
        precision = stats.wishart(nu, W).rvs(number, random_state=random)
    covariance = np.linalg.inv(float(posterior.strength[component]) * precision)
    noise = random.normal(size=(number, len(W), 1))
    deviation = (np.linalg.cholesky(covariance) @ noise)[..., 0]
    return np.asarray(posterior.mean[component]) + deviation, precision


def log_normal(deviation, precision):
    """log N(deviation; 0, precision⁻¹), whatever the leading axes."""
    quadratic = np.einsum("...i,...ij,...j->...", deviation, precision, deviation)
    log_determinant = np.linalg.slogdet(precision)[1]
    return 0.5 * (log_determinant - quadratic - deviation.shape[-1] * math.log(2 * math.pi))


def z_of_mean(draws, expected):
    draws = np.asarray(draws)
    return np.abs((draws.mean(axis=0) - expected) / (draws.std(axis=0) / math.sqrt(len(draws))))


# ------------------------------------------------------------------ the posterior


@pytest.mark.parametrize("num_features", [1, 3])
def test_second_moments_are_upper_triangles_of_products(num_features):
    instances = np.random.default_rng(2).normal(size=(4, num_features))
    full = NormalWishart.second_moments(jnp.asarray(instances))
    np.testing.assert_allclose(full, products(instances), rtol=1e-15)
    rows, columns = np.triu_indices(num_features)
    np.testing.assert_allclose(full, instances[:, rows] * instances[:, columns], rtol=1e-15)
    diagonal = NormalGamma.second_moments(jnp.asarray(instances))
    np.testing.assert_allclose(diagonal, instances**2, rtol=1e-15)


@pytest.mark.parametrize("num_features", [1, 2, 4])
def test_the_full_posterior_is_bishops(num_features):
    given = problem(num_features)
    posterior = posterior_of(statistics_of(given.whitened, given.weight))
    factor = np.asarray(posterior.scatter_cholesky)
    np.testing.assert_array_equal(factor, np.tril(factor))
    for k in range(3):
        mean, beta, W, nu = bishop(given.instances, given.weight[:, k], given.center, given.scale)
        back = given.center + np.linalg.inv(given.root).T @ np.asarray(posterior.mean[k])
        np.testing.assert_allclose(back, mean, rtol=1e-11)
        np.testing.assert_allclose(float(posterior.strength[k]), beta, rtol=1e-14)
        np.testing.assert_allclose(float(posterior.degrees_of_freedom[k]), nu, rtol=1e-14)
        # Inverses of matrices of condition 1e3 or so.
        found = given.root @ scales(posterior)[k] @ given.root.T
        np.testing.assert_allclose(found, W, rtol=1e-9, atol=1e-12)


def test_the_diagonal_posterior_is_bishops_for_each_feature():
    given = problem(3)
    precision = np.diagonal(given.scale)
    whitened = (given.instances - given.center) * np.sqrt(precision)
    statistics = statistics_of(whitened, given.weight, "diagonal")
    posterior = posterior_of(statistics, "diagonal")
    for k in range(3):
        for d in range(3):
            mean, beta, W, nu = bishop(
                given.instances[:, [d]],
                given.weight[:, k],
                given.center[[d]],
                given.scale[d : d + 1, d : d + 1],
            )
            back = given.center[d] + float(posterior.mean[k, d]) / math.sqrt(precision[d])
            np.testing.assert_allclose(back, mean[0], rtol=1e-12)
            np.testing.assert_allclose(precision[d] / posterior.scatter[k, d], W[0, 0], rtol=1e-11)
            np.testing.assert_allclose(
                [posterior.strength[k], posterior.degrees_of_freedom[k]], [beta, nu], rtol=1e-14
            )


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_component_without_instances_keeps_the_prior(covariance):
    given = problem(3)
    statistics = statistics_of(given.whitened, given.weight, covariance)
    posterior = posterior_of(statistics, covariance)
    np.testing.assert_array_equal(posterior.mean[2], np.zeros(3))
    np.testing.assert_array_equal(scales(posterior)[2], np.eye(3))
    assert float(posterior.strength[2]) == BETA_0 and float(posterior.degrees_of_freedom[2]) == NU_0


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_learning_in_two_halves_is_learning_at_once(covariance):
    """The posterior of the first half is the prior of the second, in its whitened coordinates."""
    given = problem(3)
    whitened, weight = given.whitened, given.weight[:, :1]
    both = posterior_of(statistics_of(whitened, weight, covariance), covariance)
    first = posterior_of(statistics_of(whitened[:5], weight[:5], covariance), covariance)
    if covariance == "full":
        root = np.asarray(first.scale_cholesky()[0])  # RRᵀ = W
    else:
        root = np.diag(1 / np.sqrt(np.asarray(first.scatter[0])))
    rewhitened = (whitened[5:] - np.asarray(first.mean[0])) @ root
    second = posterior_of(
        *(statistics_of(rewhitened, weight[5:], covariance), covariance),
        *(first.strength, first.degrees_of_freedom),
    )
    back = np.asarray(first.mean[0]) + np.linalg.inv(root).T @ np.asarray(second.mean[0])
    np.testing.assert_allclose(back, both.mean[0], rtol=1e-10)
    found = root @ scales(second)[0] @ root.T
    np.testing.assert_allclose(found, scales(both)[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(second.strength, both.strength, rtol=1e-14)
    np.testing.assert_allclose(second.degrees_of_freedom, both.degrees_of_freedom, rtol=1e-14)


def test_roots_and_determinant_are_those_of_the_scale():
    given = problem(4)
    posterior = posterior_of(statistics_of(given.whitened, given.weight))
    W = scales(posterior)
    root, factor = np.asarray(posterior.scale_root()), np.asarray(posterior.scale_cholesky())
    for triangle in (root, factor):
        np.testing.assert_array_equal(triangle, np.tril(triangle))
    np.testing.assert_allclose(np.swapaxes(root, -1, -2) @ root, W, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(factor @ np.swapaxes(factor, -1, -2), W, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(posterior.log_determinant(), np.linalg.slogdet(W)[1], rtol=1e-10)


def test_a_diagonal_posterior_is_a_product_over_features():
    given = problem(3)
    x, weight = given.whitened, given.weight
    whole = posterior_of(statistics_of(x, weight, "diagonal"), "diagonal")
    found = expectations_of(whole)
    single = [posterior_of(statistics_of(x[:, [d]], weight)) for d in range(3)]
    expected = [expectations_of(one) for one in single]
    for d, one in enumerate(single):
        np.testing.assert_allclose(one.mean[:, 0], whole.mean[:, d], rtol=1e-13)
        np.testing.assert_allclose(one.scatter_cholesky[:, 0, 0] ** 2, whole.scatter[:, d], 1e-13)
    density = sum(one.at(x[:, [d]]) for d, one in enumerate(expected))
    np.testing.assert_allclose(found.at(x), density, rtol=1e-12)
    divergence = sum(np.asarray(one.divergence) for one in expected)
    np.testing.assert_allclose(found.divergence, divergence, rtol=1e-12, atol=1e-14)
    log_determinant = sum(np.asarray(one.log_determinant) for one in expected)
    np.testing.assert_allclose(found.log_determinant, log_determinant, rtol=1e-12)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_components_on_two_leading_axes_are_those_on_one(covariance):
    given = problem(2)
    statistics = statistics_of(given.whitened, given.weight[:, [0, 1, 2, 0]], covariance)
    square = jax.tree.map(lambda a: a.reshape(2, 2, *a.shape[1:]), statistics)

    @jax.jit
    def all_of(statistics):
        posterior = family(covariance).posterior(statistics, BETA_0, NU_0)
        return posterior, expectations_of(posterior)

    flat, found = all_of(statistics), all_of(square)
    for one, other in zip(*map(jax.tree.leaves, (found, flat)), strict=True):
        np.testing.assert_allclose(one.reshape(other.shape), other, rtol=1e-13, atol=1e-14)


# ------------------------------------------------------------------ expectations


def expectation(posterior, function):
    """E f(μ, λ) under the one component of one feature, to rounding.

    λ by trapezoids evenly spaced in log λ, whose error falls exponentially; μ by Gauss–Hermite.
    """
    nu, w = float(posterior.degrees_of_freedom[0]), float(scales(posterior)[0, 0, 0])
    beta, mean = float(posterior.strength[0]), float(posterior.mean[0, 0])
    precision = w * np.exp(np.linspace(-30.0, 7.0, 4001))
    step = math.log(precision[1] / precision[0])
    mass = stats.wishart(nu, w).pdf(precision) * precision * step
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    mu = mean + nodes[:, None] / np.sqrt(beta * precision)
    return float(weights / weights.sum() @ function(mu, precision) @ mass)


@pytest.fixture(scope="module", params=COVARIANCES)
def one_feature(request):
    """A posterior of one component of one feature."""
    given = problem(1, seed=3)
    with jax.enable_x64(True):
        statistics = statistics_of(given.whitened[:3], given.weight[:3, :1], request.param)
        return posterior_of(statistics, request.param)


def test_the_quadrature_itself_finds_mass_one(one_feature):
    assert abs(expectation(one_feature, lambda mu, _: np.ones_like(mu)) - 1) < 1e-12


@pytest.mark.parametrize("x", [-3.0, 0.2, 40.0])
def test_the_expected_log_density_matches_quadrature(one_feature, x):
    constant, linear, quadratic = (part[0] for part in expectations_of(one_feature).log_density)
    found = constant + linear[0] * x + quadratic[0] * x**2
    expected = expectation(
        one_feature, lambda mu, precision: stats.norm(mu, 1 / np.sqrt(precision)).logpdf(x)
    )
    np.testing.assert_allclose(float(found), expected, rtol=1e-11)


def test_the_divergence_of_one_feature_is_that_of_quadrature(one_feature):
    posterior = one_feature
    nu, beta = float(posterior.degrees_of_freedom[0]), float(posterior.strength[0])
    of_precision = stats.wishart(nu, scales(posterior)[0, 0, 0])

    def log_ratio(mu, precision):
        ratio = of_precision.logpdf(precision) - stats.wishart(NU_0, 1.0).logpdf(precision)
        mean = float(posterior.mean[0, 0])
        ratio = ratio + stats.norm(mean, 1 / np.sqrt(beta * precision)).logpdf(mu)
        return ratio - stats.norm(0.0, 1 / np.sqrt(BETA_0 * precision)).logpdf(mu)

    expected = expectation(posterior, log_ratio)
    assert expected > 0.1
    np.testing.assert_allclose(expectations_of(posterior).divergence[0], expected, rtol=1e-10)


def test_the_expected_log_determinant_is_that_of_chi_squares(posterior):
    """|Λ|/|W| is a product of independent χ²: of ν, ν − 1, … degrees; of ν each where diagonal."""
    full = isinstance(posterior, NormalWishart)
    for k, found in enumerate(expectations_of(posterior).log_determinant):
        nu, expected = (
            float(posterior.degrees_of_freedom[k]),
            np.linalg.slogdet(scales(posterior)[k])[1],
        )
        for d in range(3):
            chi = stats.chi2(nu - d if full else nu)
            expected += integrate.quad(
                lambda t, chi=chi: t * math.exp(t) * chi.pdf(math.exp(t)), -40, 8, limit=400
            )[0]
        np.testing.assert_allclose(float(found), expected, rtol=1e-8)


def test_the_expected_log_density_matches_scipy_draws(posterior):
    number, looks = 20_000, 2 * 4
    x = np.random.default_rng(4).normal(size=(4, 3)) * 2
    found = expectations_of(posterior).at(x)
    for k in range(2):
        mean, precision = draws_by_scipy(posterior, k, number, seed=5 + k)
        draws = log_normal(x[None] - mean[:, None], precision[:, None])
        assert z_of_mean(draws, found[:, k]).max() < largest_z(2 * looks)


def log_wishart(precision, degrees_of_freedom, scale):
    """Log density of many matrices at once, its constant by scipy at one of them."""
    size = len(scale)
    constant = stats.wishart(degrees_of_freedom, scale).logpdf(scale)
    log_determinant = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(scale)[1]
    trace = np.einsum("ij,sij->s", np.linalg.inv(scale), precision) - size
    return constant + 0.5 * (degrees_of_freedom - size - 1) * log_determinant - 0.5 * trace


def test_the_density_of_many_precisions_is_scipys():
    given = problem(3)
    _, _, W, nu = bishop(given.instances, given.weight[:, 0], given.center, given.scale)
    precision = stats.wishart(nu, W).rvs(4, random_state=6)
    expected = [stats.wishart(nu, W).logpdf(one) for one in precision]
    np.testing.assert_allclose(log_wishart(precision, nu, W), expected, rtol=1e-10)


def test_the_divergence_is_that_of_draws_by_scipy(posterior):
    found = expectations_of(posterior).divergence
    for k in range(2):
        mean, precision = draws_by_scipy(posterior, k, 20_000, seed=7 + k)
        nu, W = float(posterior.degrees_of_freedom[k]), scales(posterior)[k]
        if isinstance(posterior, NormalWishart):
            ratio = log_wishart(precision, nu, W) - log_wishart(precision, NU_0, np.eye(3))
        else:
            diagonal = np.diagonal(precision, axis1=1, axis2=2)
            ratio = stats.gamma(nu / 2, scale=2 * np.diagonal(W)).logpdf(diagonal)
            ratio = (ratio - stats.gamma(NU_0 / 2, scale=2.0).logpdf(diagonal)).sum(axis=1)
        deviation = mean - np.asarray(posterior.mean[k])
        ratio = ratio + log_normal(deviation, float(posterior.strength[k]) * precision)
        ratio = ratio - log_normal(mean, BETA_0 * precision)
        assert z_of_mean(ratio, float(found[k])) < largest_z(2 * 2)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("num_features", [1, 5])
def test_the_divergence_of_the_prior_from_itself_is_zero(covariance, num_features):
    # Gamma functions of 60 or so cancel.
    for nu in (num_features - 0.5, num_features + 1.0, 60.0):
        size = num_features * (num_features + 1) // 2 if covariance == "full" else num_features
        shapes = ((2,), (2, num_features), (2, size))
        statistics = Statistics(*(jnp.zeros(shape) for shape in shapes))
        prior = posterior_of(statistics, covariance, BETA_0, nu)
        np.testing.assert_allclose(expectations_of(prior, BETA_0, nu).divergence, 0, atol=1e-12)


# ------------------------------------------------------------------ the evidence


def log_evidence(instances, center, scale):
    """log p(X), of whole instances, by the normalisers before and after."""
    number, num_features = instances.shape
    _, beta, W, nu = bishop(instances, np.ones(number), center, scale)
    gammas = multigammaln(nu / 2, num_features) - multigammaln(NU_0 / 2, num_features)
    determinants = nu * np.linalg.slogdet(W)[1] - NU_0 * np.linalg.slogdet(scale)[1]
    return (
        -0.5 * number * num_features * math.log(math.pi)
        + gammas
        + 0.5 * determinants
        + 0.5 * num_features * math.log(BETA_0 / beta)
    )


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_expected_density_less_divergence_is_the_evidence(covariance):
    """The ELBO is tight at the exact posterior; the prior is 0 and 1 here."""
    x = problem(3).whitened
    statistics = statistics_of(x, np.ones((len(x), 1)), covariance)
    expectations = expectations_of(posterior_of(statistics, covariance))
    found = expectations.at(x).sum() - float(expectations.divergence[0])
    if covariance == "full":
        evidence = log_evidence(x, np.zeros(3), np.eye(3))
    else:
        evidence = sum(log_evidence(x[:, [d]], np.zeros(1), np.eye(1)) for d in range(3))
    np.testing.assert_allclose(found, evidence, rtol=1e-11)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_sequential_predictions_multiply_to_the_evidence(covariance):
    x, predicted = problem(3).whitened[:6], 0.0
    for n in range(len(x)):
        posterior = posterior_of(statistics_of(x[:n], np.ones((n, 1)), covariance), covariance)
        predicted += float(predictive_of(x[n : n + 1], posterior)[0, 0])
    if covariance == "full":
        evidence = log_evidence(x, np.zeros(3), np.eye(3))
    else:
        evidence = sum(log_evidence(x[:, [d]], np.zeros(1), np.eye(1)) for d in range(3))
    np.testing.assert_allclose(predicted, evidence, rtol=1e-11)


# ------------------------------------------------------------------ the predictive


@pytest.mark.parametrize("num_features", [1, 3])
def test_the_full_predictive_is_scipys_multivariate_t(num_features):
    random = np.random.default_rng(10)
    mean, strength = random.normal(size=(2, num_features)), np.array([0.7, 12.0])
    nu, x = np.array([num_features - 0.4, 30.0]), random.normal(size=(5, num_features)) * 3
    root = random.normal(size=(2, num_features, num_features)) + 2 * np.eye(num_features)
    root[1, 0] *= -1  # a root may reflect
    found = log_predictive(*map(jnp.asarray, (x, mean, root, strength, nu)))
    for k in range(2):
        freedom = nu[k] + 1 - num_features
        precision = freedom * strength[k] / (1 + strength[k]) * root[k] @ root[k].T
        expected = stats.multivariate_t(mean[k], np.linalg.inv(precision), freedom).logpdf(x)
        np.testing.assert_allclose(found[k], expected, rtol=1e-10)


def test_the_diagonal_predictive_is_a_product_of_scipys_t():
    random = np.random.default_rng(11)
    mean, strength, nu = random.normal(size=(2, 3)), np.array([0.7, 12.0]), np.array([0.4, 30.0])
    root, x = random.uniform(0.2, 3.0, size=(2, 3)), random.normal(size=(5, 3)) * 3
    found = log_predictive(*map(jnp.asarray, (x, mean, root, strength, nu)))
    for k in range(2):
        precision = nu[k] * strength[k] / (1 + strength[k]) * root[k] ** 2
        expected = stats.t(nu[k], mean[k], 1 / np.sqrt(precision)).logpdf(x).sum(axis=1)
        np.testing.assert_allclose(found[k], expected, rtol=1e-12)


def test_full_and_diagonal_predictives_agree_for_one_feature():
    random = np.random.default_rng(12)
    x, mean, root = (random.normal(size=shape) for shape in ((4, 1), (2, 1), (2, 1)))
    of_both = [
        log_predictive(
            *map(jnp.asarray, (x, mean, one, np.array([0.3, 5.0]), np.array([0.2, 9.0])))
        )
        for one in (np.abs(root)[..., None], np.abs(root))
    ]
    np.testing.assert_allclose(*of_both, rtol=1e-13)


def test_the_predictive_is_accurate_in_extremes():
    x = jnp.array([[0.0], [1e3], [1e10]])
    root, mean = jnp.array([[0.02]]), jnp.zeros((1, 1))
    found = log_predictive(x, mean, root, jnp.array([1e6]), jnp.array([1e6]))
    precision = 1e6 / (1 + 1e-6) * 0.02**2
    expected = stats.t(1e6, 0.0, 1 / math.sqrt(precision)).logpdf(np.asarray(x[:, 0]))
    # Gamma functions of 5e5 cancel: 6e6 · 1e-16.
    np.testing.assert_allclose(found[0], expected, rtol=1e-8, atol=1e-8)


# ------------------------------------------------------------------ draws


class Drawn(NamedTuple):
    """A posterior and draws from it."""

    posterior: NormalWishart | NormalGamma
    mean: np.ndarray  # (S, K, D)
    precision: np.ndarray  # (S, K, D, D)
    root: np.ndarray  # the same as the package has it


@pytest.fixture(scope="module", params=COVARIANCES)
def drawn(request):
    """Draws of two components with enough instances for all moments under test."""
    given = problem(3, seed=13)
    instances = np.concatenate([given.whitened, given.whitened[::-1] * 0.7])
    weight = np.concatenate([given.weight, given.weight])[:, :2] * [1.0, 4.0] + 0.3
    with jax.enable_x64(True):
        posterior = posterior_of(statistics_of(instances, weight, request.param), request.param)
        keys = jax.random.split(jax.random.key(14), 30_000)
        # On two leading axes, as a model of two classes has them.
        by_class = jax.tree.map(lambda a: a[None], posterior)
        mean, root = (np.asarray(a)[:, 0] for a in jax.jit(jax.vmap(by_class.draw))(keys))
    if request.param == "full":
        return Drawn(posterior, mean, root @ np.swapaxes(root, -1, -2), root)
    return Drawn(posterior, mean, root[..., None] * np.eye(3), root)


@pytest.mark.slow
def test_drawn_precisions_have_scipys_mean_and_variance(drawn):
    posterior, _, precision, root = drawn
    if isinstance(posterior, NormalWishart):
        np.testing.assert_array_equal(root, np.tril(root))
    for k in range(2):
        nu, W = float(posterior.degrees_of_freedom[k]), scales(posterior)[k]
        if isinstance(posterior, NormalWishart):
            mean, variance = stats.wishart(nu, W).mean(), stats.wishart(nu, W).var()
            upper = np.triu_indices(3)
        else:
            one = [stats.wishart(nu, w) for w in np.diagonal(W)]
            mean, variance = (np.diag([getattr(o, of)() for o in one]) for of in ("mean", "var"))
            upper = np.diag_indices(3)
        entries = precision[:, k][:, *upper]
        squares = (entries - mean[upper]) ** 2
        looks = 2 * 2 * 2 * 6
        assert z_of_mean(entries, mean[upper]).max() < largest_z(looks)
        assert z_of_mean(squares, variance[upper]).max() < largest_z(looks)


@pytest.mark.in_ci
def test_drawn_means_and_precisions_have_their_joint_distribution(drawn):
    """aᵀΛa/aᵀWa is χ² of ν, β(μ − m)ᵀΛ(μ − m) χ² of D, and the two are independent.

    Where precisions are diagonal, the same of each feature.
    """
    posterior, mean, precision, _ = drawn
    number, looks = len(mean), 2 * 2 * (1 + 3 * 3)
    full = isinstance(posterior, NormalWishart)
    random = np.random.default_rng(16)
    directions = random.normal(size=(3, 3)) if full else np.eye(3)
    for k in range(2):
        W, nu, beta = (
            scales(posterior)[k],
            float(posterior.degrees_of_freedom[k]),
            float(posterior.strength[k]),
        )
        deviation = mean[:, k] - np.asarray(posterior.mean[k])
        distance = beta * np.einsum("si,sij,sj->s", deviation, precision[:, k], deviation)
        assert stats.kstest(distance, stats.chi2(3).cdf).pvalue > FALSE_ALARM / looks
        for a in directions:
            ratio = np.einsum("i,sij,j->s", a, precision[:, k], a) / (a @ W @ a)
            assert stats.kstest(ratio, stats.chi2(nu).cdf).pvalue > FALSE_ALARM / looks
            correlation = np.corrcoef(ratio, distance)[0, 1]
            assert abs(correlation) * math.sqrt(number) < largest_z(looks)
            # a(μ − m), given Λ, is Gaussian: standardised, independent of Λ.
            variance = np.einsum("i,sij,j->s", a, np.linalg.inv(beta * precision[:, k]), a)
            standard = deviation @ a / np.sqrt(variance)
            assert stats.kstest(standard, "norm").pvalue > FALSE_ALARM / looks


@pytest.mark.in_ci
def test_the_mean_density_of_draws_is_the_predictive(drawn):
    posterior, mean, precision, _ = drawn
    x = np.random.default_rng(17).normal(size=(4, 3))
    found = np.exp(predictive_of(x, posterior))
    for k in range(2):
        density = np.exp(log_normal(x[None] - mean[:, None, k], precision[:, None, k]))
        assert z_of_mean(density, found[k]).max() < largest_z(2 * 2 * 4)


@pytest.mark.slow
def test_draws_of_different_components_are_uncorrelated(drawn):
    _, mean, precision, _ = drawn
    upper = np.triu_indices(3) if isinstance(drawn.posterior, NormalWishart) else np.diag_indices(3)
    first, second = (np.hstack([mean[:, k], precision[:, k][:, *upper]]).T for k in (0, 1))
    correlation = np.corrcoef(first, second)[: len(first), len(first) :]
    assert np.abs(correlation).max() * math.sqrt(len(mean)) < largest_z(2 * 9 * 9)
