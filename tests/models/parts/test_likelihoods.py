"""Likelihoods: each ELBO against brute force, its fixed point, and errors.

Monte-Carlo checks are seeded; 20 numbers are looked at, with 4.5 or 5 standard errors: a false
alarm in 5e-5 of all seeds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from milzoo.inference import serialization
from milzoo.models.parts.likelihoods import (
    Gaussian,
    LatentMoments,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Probit,
    StudentT,
)
from milzoo.models.parts.polya_gamma import PolyaGamma
from milzoo.models.parts.scale_mixtures import PolyaGammaScaleMixture
from numpyro.distributions import LogNormal
from numpyro.infer import Trace_ELBO
from scipy import integrate, special, stats

LIKELIHOODS = [
    Logistic(),
    Probit(noise=0.3),
    Gaussian(noise=0.4),
    StudentT(degrees_of_freedom=3.0, scale=0.7),
    NegativeBinomial(total_count=3),
]
with_every_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda one: one.name)


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def observations_for(likelihood):
    if likelihood.observed_part == "labels":
        return np.array([1, 0, 1, 1, 0])
    if isinstance(likelihood, NegativeBinomial):
        return np.array([0, 2, 1, 7, 30])
    return np.array([0.3, -1.2, 6.0, 0.0, 25.0])


class Rows(NamedTuple):
    """Five rows with one whitened inducing value."""

    observed: np.ndarray
    projection: jax.Array
    residual_variance: jax.Array


def rows_for(likelihood):
    projection = jnp.array([0.8, -1.1, 0.3, 2.0, 1.4])
    return Rows(observations_for(likelihood), projection, jnp.array([0.2, 0.5, 1.3, 0.05, 2.0]))


def statistics_of(likelihood, rows, mean, variance):
    location, explained = rows.projection * mean, rows.projection**2 * variance
    return likelihood.expected_statistics(
        rows.observed, jnp.asarray(location), jnp.asarray(explained), rows.residual_variance
    )


def elbo_of(likelihood, rows, mean, variance):
    divergence = 0.5 * (variance + mean**2 - 1.0 - jnp.log(variance))
    return statistics_of(likelihood, rows, mean, variance).log_likelihood.sum() - divergence


def updated(likelihood, rows, mean, variance):
    statistics = statistics_of(likelihood, rows, mean, variance)
    variance = 1.0 / (1.0 + statistics.precision @ rows.projection**2)
    return variance * (statistics.linear_term @ rows.projection), variance


def fixed_point_of(likelihood, rows):
    step = jax.jit(lambda _, q: updated(likelihood, rows, *q))
    return map(float, jax.lax.fori_loop(0, 500, step, (0.0, 1.0)))


def log_probability(likelihood, observed, latent):
    """log p(y | s) in SciPy."""
    match likelihood:
        case Logistic():
            return special.log_expit(np.where(observed == 1, latent, -latent))
        case Probit(noise=noise):
            sign = np.where(observed == 1, 1.0, -1.0)
            return stats.norm.logcdf(sign * latent / np.sqrt(1 + noise))
        case Gaussian(noise=noise):
            return stats.norm.logpdf(observed, latent, np.sqrt(noise))
        case StudentT(degrees_of_freedom=degrees, scale=scale):
            return stats.t.logpdf(observed, degrees, latent, scale)
        case NegativeBinomial(total_count=total):
            return stats.nbinom.logpmf(observed, total, special.expit(-latent))


def expectation(function, mean, variance):
    """E of a function under N(mean, variance), by 200 nodes: smooth functions to rounding."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    values = function(np.asarray(mean)[..., None] + np.sqrt(variance) * nodes)
    return values @ (weights / weights.sum())


def log_marginal(likelihood, observed, location, residual_variance):
    """log E[p(y | s) | u] by quadrature."""

    def probability(latent):
        return np.exp(log_probability(likelihood, observed, latent))

    return np.log(expectation(probability, location, residual_variance))


def integral(log_density, function, low, high):
    """∫ exp(log_density) function."""
    options = {"epsabs": 1e-13, "epsrel": 1e-13, "limit": 500}
    return integrate.quad(lambda x: np.exp(log_density(x)) * function(x), low, high, **options)[0]


# ------------------------------------------------------------------ the bound


@with_every_likelihood
def test_every_likelihood_keeps_the_protocol(likelihood):
    assert isinstance(likelihood, Likelihood)


@with_every_likelihood
def test_bound_is_tight_where_the_latent_is_known(likelihood):
    latent, nothing = jnp.array([0.4, -1.5, 3.0, 0.0, 2.5]), jnp.zeros(5)
    observed = observations_for(likelihood)
    found = likelihood.expected_statistics(observed, latent, nothing, nothing).log_likelihood
    expected = log_probability(likelihood, observed, np.asarray(latent))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@with_every_likelihood
def test_derivatives_of_the_bound_are_the_statistics(likelihood):
    """∂/∂e = −θ/2 and ∂/∂μ = linear term − θμ: the update is the stationary point."""
    rows = rows_for(likelihood)
    mean, explained = jnp.linspace(-2.0, 2.0, 5), jnp.linspace(0.1, 3.0, 5)

    def total(mean, explained):
        return likelihood.expected_statistics(
            rows.observed, mean, explained, rows.residual_variance
        ).log_likelihood.sum()

    by_mean, by_explained = jax.grad(total, (0, 1))(mean, explained)
    found = likelihood.expected_statistics(rows.observed, mean, explained, rows.residual_variance)
    np.testing.assert_allclose(by_explained, -found.precision / 2, rtol=1e-10)
    expected = found.linear_term - found.precision * mean
    np.testing.assert_allclose(by_mean, expected, rtol=1e-10, atol=1e-12)


@with_every_likelihood
def test_bound_lies_below_the_expected_log_likelihood(likelihood):
    """E_q log E[p(y | s) | u] by quadrature; the Gaussian's bound is equal to it."""
    rows = rows_for(likelihood)
    mean, variance = fixed_point_of(likelihood, rows)
    bound = np.asarray(statistics_of(likelihood, rows, mean, variance).log_likelihood)
    exact = [
        expectation(
            lambda a, y=y, k=k: log_marginal(likelihood, y, a, k), v * mean, v**2 * variance
        )
        for y, v, k in zip(*map(np.asarray, rows), strict=True)
    ]
    if isinstance(likelihood, Gaussian):
        np.testing.assert_allclose(bound, exact, rtol=1e-10)
    else:
        assert np.all(bound < exact)


@with_every_likelihood
def test_evidence_lies_above_the_bound(likelihood):
    """log ∫ p(y | u) p(u) du by quadrature; for the Gaussian they are equal."""
    rows = rows_for(likelihood)
    mean, variance = fixed_point_of(likelihood, rows)

    # The prior is wider than the posterior: nodes cover the posterior.
    nodes = np.linspace(-9.0, 9.0, 361) * np.sqrt(variance) + mean
    log_joint = stats.norm.logpdf(nodes) + sum(
        log_marginal(likelihood, y, v * nodes, k)
        for y, v, k in zip(*map(np.asarray, rows), strict=True)
    )
    evidence = np.trapezoid(np.exp(log_joint), nodes)
    bound = float(elbo_of(likelihood, rows, mean, variance))
    if isinstance(likelihood, Gaussian):
        np.testing.assert_allclose(bound, np.log(evidence), rtol=1e-10)
    else:
        assert bound < np.log(evidence)


def test_logistic_bound_equals_integral_over_polya_gamma():
    """E log [p(y | s) p(ω | s) / q(ω)] = E log [e^{(y−½)s} p(ω) e^{−ωs²/2} / (2 q(ω))]."""
    mean, second_moment = 0.7, 0.7**2 + 0.3 + 0.9
    factor, prior = PolyaGamma(1, jnp.sqrt(second_moment)), PolyaGamma(1, 0.0)

    # In t = log ω, by the trapezoid rule: the integrand falls on both sides.
    t, step = jnp.linspace(-7.0, 4.0, 2001, retstep=True)
    omega = jnp.exp(t)
    joint = -0.5 * mean - 0.5 * omega * second_moment + prior.log_prob(omega) - jnp.log(2.0)
    log_factor = factor.log_prob(omega)
    expected = step * jnp.exp(log_factor + t) @ (joint - log_factor)
    found = Logistic().expected_statistics(*jnp.array([[0.0], [mean], [0.3], [0.9]]))
    np.testing.assert_allclose(found.log_likelihood[0], expected, rtol=1e-10)
    np.testing.assert_allclose(found.precision[0], factor.mean, rtol=1e-12)


def test_student_bound_equals_integral_over_gamma():
    likelihood = StudentT(degrees_of_freedom=3.0, scale=0.7)
    squared = (2.1 - 0.7) ** 2 + 0.3 + 0.9  # E (y − s)²
    factor = stats.gamma(2.0, scale=2.0 / (3.0 + squared / 0.49))
    prior = stats.gamma(1.5, scale=2.0 / 3.0)

    def log_ratio(omega):
        gaussian = 0.5 * np.log(omega / (2 * np.pi * 0.49)) - 0.5 * omega * squared / 0.49
        return gaussian + prior.logpdf(omega) - factor.logpdf(omega)

    expected = integral(factor.logpdf, log_ratio, 0.0, np.inf)
    found = likelihood.expected_statistics(*jnp.array([[2.1], [0.7], [0.3], [0.9]]))
    np.testing.assert_allclose(found.log_likelihood[0], expected, rtol=1e-10)
    np.testing.assert_allclose(found.precision[0], factor.mean() / 0.49, rtol=1e-12)
    np.testing.assert_allclose(found.linear_term[0], 2.1 * found.precision[0], rtol=1e-12)


def test_probit_bound_equals_integral_over_utility():
    likelihood, mean, explained, residual = Probit(noise=0.5), 0.7, 0.3, 0.9
    scale = np.sqrt(1.5 + residual)
    factor = stats.truncnorm(-np.inf, -mean / scale, mean, scale)  # y = 0: z < 0

    def log_ratio(z):
        return stats.norm.logpdf(z, mean, scale) - 0.5 * explained / scale**2 - factor.logpdf(z)

    expected = integral(factor.logpdf, log_ratio, -40.0, -1e-12)
    found = likelihood.expected_statistics(*jnp.array([[0.0], [mean], [explained], [residual]]))
    np.testing.assert_allclose(found.log_likelihood[0], expected, rtol=1e-10)
    np.testing.assert_allclose(found.linear_term[0], factor.mean() / scale**2, rtol=1e-10)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@with_every_likelihood
def test_bound_equals_trace_elbo_of_the_guide(likelihood):
    rows = rows_for(likelihood)
    mean, variance = fixed_point_of(likelihood, rows)
    scale = jnp.sqrt(rows.residual_variance)

    def program():
        whitened = numpyro.sample("u", dist.Normal())
        with numpyro.plate("row", 5):
            likelihood.sample_augmented(
                rows.projection * whitened,
                scale,
                jnp.asarray(rows.observed),
                latent_site="s",
                observed_site="y",
            )

    def guide():
        whitened = numpyro.sample("u", dist.Normal(mean, jnp.sqrt(variance)))
        location, explained = rows.projection * mean, rows.projection**2 * variance
        moments = LatentMoments(location, explained, rows.residual_variance)
        with numpyro.plate("row", 5):
            likelihood.sample_guide(
                rows.projection * whitened,
                scale,
                moments,
                jnp.asarray(rows.observed),
                latent_site="s",
            )

    def one(key):
        return -Trace_ELBO(1).loss(key, {}, program, guide)

    draws = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 4000)))
    error = draws.mean() - elbo_of(likelihood, rows, mean, variance)
    rounding = 1e-10  # the Gaussian's guide is the posterior: all draws are alike
    assert abs(error) < 4.5 * draws.std(ddof=1) / np.sqrt(draws.size) + rounding


@pytest.mark.slow_but_first
@with_every_likelihood
def test_gaussian_terms_are_the_likelihood_given_the_auxiliary(likelihood):
    """log E[e^{ps − ωs²/2}] over the auxiliary's prior is log p(y | s), up to a constant in s.

    By importance sampling it follows from draws at one s: E e^{(p(s') − …)} = p(y | s')/p(y | s).
    """
    observed = jnp.asarray(np.repeat(observations_for(likelihood)[:3], 100_000))
    latent, other = jnp.full(observed.shape, 0.4), jnp.full(observed.shape, 0.9)
    nothing = jnp.zeros(observed.shape)
    key = jax.random.key(1)
    # Without residual variance u tells s: the probit's utility is drawn given u.
    auxiliary = likelihood.draw_auxiliary(key, observed, latent, latent, nothing)
    precision, linear = likelihood.gaussian_terms(observed, auxiliary)
    log_ratio = linear * (other - latent) - 0.5 * precision * (other**2 - latent**2)
    ratio = np.exp(np.asarray(log_ratio)).reshape(3, -1)
    expected = np.exp(
        log_probability(likelihood, np.asarray(observed), 0.9)
        - log_probability(likelihood, np.asarray(observed), 0.4)
    ).reshape(3, -1)[:, 0]
    if not isinstance(likelihood, Gaussian):
        error = 5 * ratio.std(axis=1) / np.sqrt(ratio.shape[1])
        assert (np.abs(ratio.mean(axis=1) - expected) < error).all()
    else:  # N(y; s) has a term in y² that is no function of s
        np.testing.assert_allclose(ratio.mean(axis=1), expected, rtol=1e-10)


# ------------------------------------------------------------------ the fixed point


@with_every_likelihood
def test_no_update_lowers_the_bound(likelihood):
    rows, mean, variance = rows_for(likelihood), -3.0, 4.0
    trace = []
    for _ in range(30):
        trace.append(float(elbo_of(likelihood, rows, mean, variance)))
        mean, variance = updated(likelihood, rows, mean, variance)
    assert np.diff(trace).min() > -1e-12 * np.abs(trace).max()  # rounding
    assert trace[-1] > trace[0] + 0.1


@with_every_likelihood
def test_gradient_is_zero_at_the_fixed_point(likelihood):
    rows = rows_for(likelihood)
    mean, variance = fixed_point_of(likelihood, rows)
    gradient = jax.grad(lambda m, v: elbo_of(likelihood, rows, m, v), (0, 1))(mean, variance)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-10)


# ------------------------------------------------------------------ known answers


def test_logistic_precision_is_that_of_the_mixture():
    tilt = jnp.array([0.0, 1e-5, 0.02, 0.0316, 0.0317, 1.0, 30.0, 1e4])
    nothing = jnp.zeros_like(tilt)
    found = Logistic().expected_statistics(nothing, nothing, tilt**2, nothing).precision
    np.testing.assert_allclose(found, PolyaGammaScaleMixture().expected_precision(tilt), rtol=1e-9)


def test_student_tends_to_gaussian():
    rows = jnp.array([[0.3, -2.0], [1.0, 0.5], [0.2, 0.7], [0.4, 0.1]])
    student = StudentT(degrees_of_freedom=1e9, scale=0.7).expected_statistics(*rows)
    observed, mean, explained, residual = rows
    # The Gaussian integrates s out, the Student keeps it: without k̄ they are one.
    gaussian = Gaussian(noise=0.49).expected_statistics(
        observed, mean, explained + residual, jnp.zeros(2)
    )
    for found, expected in zip(student, gaussian, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-7)  # (r/σ)⁴/ν and less


def test_counts_sum_to_one():
    counts, latent = np.arange(4000), jnp.full(4000, 1.3)
    nothing = jnp.zeros(4000)
    for total in (1, 4):
        found = NegativeBinomial(total).expected_statistics(counts, latent, nothing, nothing)
        np.testing.assert_allclose(np.exp(found.log_likelihood).sum(), 1.0, rtol=1e-10)


def test_counts_until_one_failure_are_geometric():
    counts, latent = np.arange(12), jnp.full(12, -0.4)
    found = NegativeBinomial(1).expected_statistics(counts, latent, 0.0 * latent, 0.0 * latent)
    expected = stats.geom.logpmf(counts + 1, special.expit(0.4))
    np.testing.assert_allclose(found.log_likelihood, expected, rtol=1e-12)


# ------------------------------------------------------------------ numbers, types, pytrees


@with_every_likelihood
def test_statistics_of_extreme_rows_are_finite(likelihood):
    """Rows of padding (all zero) and latent values in the thousands, with their gradients."""
    mean = jnp.array([0.0, 2e3, -2e3, 5.0, 0.0])
    observed = observations_for(likelihood)

    def total(mean):
        found = likelihood.expected_statistics(observed, mean, 0.0 * mean, 0.0 * mean)
        return found.log_likelihood.sum(), found

    (_, found), gradient = jax.value_and_grad(total, has_aux=True)(mean)
    assert all(np.isfinite(values).all() for values in (*found, gradient))


@with_every_likelihood
def test_statistics_agree_in_32_bit(likelihood):
    rows = rows_for(likelihood)
    parts = [jnp.linspace(-2.0, 2.0, 5), jnp.linspace(0.0, 3.0, 5), rows.residual_variance]
    expected = likelihood.expected_statistics(rows.observed, *parts)
    with jax.enable_x64(False):
        narrow = [jnp.asarray(part, jnp.float32) for part in parts]
        found = jax.jit(likelihood.expected_statistics)(rows.observed, *narrow)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.float32
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@with_every_likelihood
def test_likelihoods_pass_through_transformations(likelihood):
    rows = rows_for(likelihood)
    found = jax.jit(lambda one: statistics_of(one, rows, 0.3, 0.5))(likelihood)
    expected = statistics_of(likelihood, rows, 0.3, 0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    leaves, structure = jax.tree.flatten(likelihood)
    assert jax.tree.unflatten(structure, leaves) == likelihood
    jax.tree.unflatten(structure, [object()] * len(leaves))  # as JAX does with placeholders


@with_every_likelihood
def test_likelihoods_are_read_back_as_written(likelihood):
    assert serialization.decode(serialization.encode(likelihood)) == likelihood


def test_values_replace_hyperparameters_by_their_site_names():
    gaussian, student = Gaussian(LogNormal(0.0, 1.0)), StudentT(4.0, LogNormal(0.0, 1.0))
    assert gaussian.with_values({"noise": 2.0, "variance": 3.0}) == Gaussian(2.0)
    assert student.with_values({"noise_scale": 2.0, "noise": 3.0}) == StudentT(4.0, 2.0)
    assert list(gaussian.hyperparameters) == ["noise"]
    assert list(student.hyperparameters) == ["noise_scale"]
    assert Probit().hyperparameters == {} == Logistic().hyperparameters


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("likelihood", "fields", "message"),
    [
        (Probit, {"noise": -0.1}, "Probit noise is -0.1; expected a finite number of at least 0"),
        (Probit, {"noise": LogNormal()}, "to infer it, put a prior on the kernel variance"),
        (Gaussian, {"noise": 0.0}, "Gaussian noise is 0.0; expected a positive finite number"),
        (Gaussian, {"noise": [1.0]}, r"Gaussian noise is \[1.0\]; expected a positive finite"),
        (StudentT, {"degrees_of_freedom": 0.0}, "degrees_of_freedom is 0.0; expected a positive"),
        (StudentT, {"scale": -1.0}, "StudentT scale is -1.0; expected a positive finite number"),
        (NegativeBinomial, {"total_count": 0}, "total_count is 0; expected an integer of"),
        (NegativeBinomial, {"total_count": 1.5}, "total_count is 1.5; expected an integer of"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_fields_out_of_range_are_refused(likelihood, fields, message):
    with pytest.raises(ValueError, match=message):
        likelihood(**fields)


@pytest.mark.parametrize(
    ("likelihood", "values", "message"),
    [
        (Logistic(), [0, 1, 2], "label 2 at position 2; expected 0 or 1"),
        (Probit(), [0, -1], "label -1 at position 1; expected 0 or 1"),
        (Gaussian(), [0.0, np.nan], "target nan at position 1; expected a finite number"),
        (StudentT(), [np.inf], "target inf at position 0; expected a finite number"),
        (NegativeBinomial(), [3.0, 1.5], "target 1.5 at position 1 is not a count; NegativeBinom"),
        (NegativeBinomial(), [-1.0], "target -1.0 at position 0 is not a count; NegativeBinomial"),
    ],
)
def test_what_cannot_be_observed_is_refused(likelihood, values, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check_observed(np.array(values))


@with_every_likelihood
def test_traced_observations_pass(likelihood):
    jax.jit(likelihood.check_observed)(np.array([0.5]))


def test_log_odds_of_the_logistic_keep_their_digits():
    """Far out on either side: with a small sd they are the location itself."""
    location, scale = jnp.array([-60.0, -40.0, 0.0, 40.0, 60.0]), jnp.full(5, 1e-3)
    with jax.enable_x64(True):
        likelihood = Logistic()
        rule = likelihood.quadrature_rule(1e-3)
        found = likelihood.marginal_distribution(location, scale, rule).logits
        np.testing.assert_allclose(found, location, rtol=1e-6, atol=1e-7)
