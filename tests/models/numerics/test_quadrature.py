"""Logistic-Gaussian integrals against a trapezoid rule of 8,001 nodes in logs.

Measured against that reference, over means in [−200, 200] and variances in [0, 1000]: the largest
error of the log is 5e-8 in 64 bit (around variance 2, where the trapezoid's step is 1), with the
rule made for the variance or for a larger one; second derivatives are wrong by up to 4e-6.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from jax.test_util import check_grads
from milzoo.models.numerics.quadrature import (
    log_expectation,
    log_expected_sigmoid,
    logistic_rule,
    on_grid,
    sigmoid_table,
    trapezoid_rule,
)
from milzoo.models.parts.target_distributions import count_rule
from scipy import integrate, special

VARIANCES = [0.0, 1e-8, 0.01, 0.49, 0.5, 0.51, 0.99, 1.0, 1.01, 2.0, 5.0, 20.0, 100.0, 300.0, 1e3]
MEANS = np.concatenate([np.linspace(-200, 200, 41), [-37.3, -6.1, -0.7, 0.01, 1.9, 12.2, 80.0]])


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def dense(mean, standard_deviation):
    """log E σ(f), plainly in logs: for s ≤ 32 the step in f is below 0.4, with poles at ±iπ."""
    z = np.linspace(-50.0, 50.0, 8_001)
    log_weight = -(z**2) / 2 - np.log(2 * np.pi) / 2 + np.log(z[1] - z[0])
    return logsumexp(jax.nn.log_sigmoid(mean + standard_deviation * z) + log_weight)


@functools.cache
def derivatives_of_dense():
    """Value, gradient and Hessian of `dense` in (mean, standard deviation), without our code."""
    value_and_gradient = jax.value_and_grad(dense, argnums=(0, 1))
    return (
        jax.jit(jax.vmap(value_and_gradient)),
        jax.jit(jax.vmap(jax.hessian(dense, argnums=(0, 1)))),
    )


def dense_values(variance, means=MEANS):
    s = np.full_like(means, np.sqrt(variance))
    return jax.tree.map(np.asarray, derivatives_of_dense()[0](means, s))


@pytest.mark.parametrize(("mean", "s"), [(0.3, 0.7), (-4.0, 2.0), (-30.0, 3.0), (5.0, 12.0)])
def test_the_reference_of_this_file_agrees_with_adaptive_quadrature(mean, s):
    def integrand(f):  # e^{-a} keeps the far tail away from the absolute tolerance
        return np.exp(special.log_expit(f) - ((f - mean) / s) ** 2 / 2 - min(mean, 0.0))

    reach = [mean - 12 * s, 0.0, mean + s * s, mean + 12 * s + s * s]
    pieces = zip(sorted(reach)[:-1], sorted(reach)[1:], strict=True)
    total = sum(integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-11)[0] for a, b in pieces)
    expected = np.log(total / s / np.sqrt(2 * np.pi)) + min(mean, 0.0)
    np.testing.assert_allclose(float(dense(mean, s)), expected, atol=1e-10)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("variance", VARIANCES)
def test_log_expected_sigmoid_is_accurate_by_every_rule(variance):
    s = np.sqrt(variance)
    expected, _ = dense_values(variance)
    for largest in (s, 1.7 * s, max(s, 12.0)):
        found = log_expected_sigmoid(
            jnp.asarray(MEANS), jnp.full(MEANS.shape, s), logistic_rule(largest)
        )
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.in_ci
@pytest.mark.parametrize("variance", [0.3, 1.0, 5.0, 100.0, 1000.0])
def test_deep_negative_tail_is_right_relative_to_itself(variance):
    """Where log E σ(f) = a + s²/2 to all digits."""
    s = np.sqrt(variance)
    mean = jnp.asarray([-3.0, -5.0]) * variance - 60.0
    found = log_expected_sigmoid(mean, jnp.full(2, s), logistic_rule(s))
    np.testing.assert_allclose(found, mean + variance / 2, rtol=1e-12, atol=1e-8)


@pytest.mark.parametrize("variance", VARIANCES)
def test_both_signs_sum_to_one(variance):
    mean, s = jnp.asarray(MEANS), jnp.full(MEANS.shape, np.sqrt(variance))
    rule = logistic_rule(float(s[0]))
    total = jnp.exp(log_expected_sigmoid(mean, s, rule)) + jnp.exp(
        log_expected_sigmoid(-mean, s, rule)
    )
    np.testing.assert_allclose(total, 1.0, rtol=0, atol=1e-7)


@pytest.mark.parametrize("variance", [1e-8, 0.49, 1.0, 1.01, 5.0, 100.0, 300.0, 1e3])
def test_first_derivatives_are_those_of_the_integral(variance):
    mean, s = jnp.asarray(MEANS), jnp.full(MEANS.shape, np.sqrt(variance))
    rule = logistic_rule(np.sqrt(variance))
    gradient = jax.jit(
        jax.grad(lambda a, s: jnp.sum(log_expected_sigmoid(a, s, rule)), argnums=(0, 1))
    )(mean, s)
    _, expected = dense_values(variance)
    for found, wanted in zip(gradient, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("variance", [0.2, 1.0, 4.0, 30.0, 400.0])
def test_second_derivatives_are_those_of_the_integral(variance):
    means = np.array([-90.0, -12.0, -1.0, 0.0, 0.4, 3.0, 25.0])
    s = np.full_like(means, np.sqrt(variance))
    rule = logistic_rule(float(s[0]))
    found = jax.vmap(jax.hessian(lambda a, s: log_expected_sigmoid(a, s, rule), argnums=(0, 1)))(
        jnp.asarray(means), jnp.asarray(s)
    )
    expected = derivatives_of_dense()[1](means, s)
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_derivatives_agree_with_finite_differences_in_both_modes():
    rule = logistic_rule(3.0)
    check_grads(
        lambda a, s: log_expected_sigmoid(jnp.asarray(a), jnp.asarray(s), rule),
        (jnp.float64(-1.3), jnp.float64(1.8)),
        order=2,
        modes=["fwd", "rev"],
        rtol=1e-5,
        atol=1e-6,
        eps=1e-4,
    )


@pytest.mark.in_ci
def test_a_constant_sd_keeps_the_derivative_by_the_mean():
    mean, s, rule = jnp.asarray([-2.0, 0.5, 3.0]), jnp.asarray([0.1, 1.0, 2.0]), logistic_rule(2.0)
    constant = jax.grad(lambda a: jnp.sum(log_expected_sigmoid(a, s, rule)))(mean)
    traced = jax.grad(lambda a, s: jnp.sum(log_expected_sigmoid(a, s, rule)))(mean, s)
    np.testing.assert_allclose(constant, traced, rtol=1e-13)
    curvature = jax.hessian(lambda a: jnp.sum(log_expected_sigmoid(a, s, rule)))(mean)
    expected = jax.hessian(lambda a, s: jnp.sum(log_expected_sigmoid(a, s, rule)))(mean, s)
    np.testing.assert_allclose(curvature, expected, rtol=1e-12)


@pytest.mark.in_ci
def test_jit_and_vmap_change_nothing():
    mean = jnp.linspace(-8, 8, 6).reshape(2, 3)
    s = jnp.linspace(0, 3, 6).reshape(2, 3)
    rule = logistic_rule(3.0)

    def at(a, s):
        return log_expected_sigmoid(a, s, rule)

    one_by_one = [float(at(a, b)) for a, b in zip(mean.ravel(), s.ravel(), strict=True)]
    plain = np.reshape(one_by_one, (2, 3))
    for found in (at(mean, s), jax.jit(at)(mean, s), jax.vmap(at)(mean, s)):
        np.testing.assert_allclose(found, plain, rtol=1e-13)
    over_means_alone = jax.vmap(lambda a: at(a, s[0]))(mean)
    np.testing.assert_allclose(over_means_alone[0], plain[0], rtol=1e-13)


def test_a_constant_sd_compiles_no_exponentials():
    s = jnp.linspace(0.5, 3.0, 7)
    for rule in (logistic_rule(3.0), logistic_rule(10.0)):
        program = str(jax.make_jaxpr(lambda a, r=rule: log_expected_sigmoid(a, s, r))(jnp.zeros(7)))
        assert re.findall(r"f64\[(\d+,\d+)\] = exp ", program) == []


@pytest.mark.slow
@pytest.mark.parametrize("in_64_bit", [True, False])
@pytest.mark.parametrize("variance", [0.0, 60.0, 135.0, 1000.0])
def test_nothing_is_nan_at_extremes(variance, in_64_bit):
    """Nor infinite: values, first and second derivatives, in either precision."""
    with jax.enable_x64(in_64_bit):
        mean = jnp.asarray([-1e4, -1e3, -300.0, -100.0, 0.0, 100.0, 300.0, 1e3, 1e4])
        s = jnp.full(mean.shape, np.sqrt(variance))
        rule = logistic_rule(float(np.sqrt(variance)))

        def total(a, s):
            return jnp.sum(log_expected_sigmoid(a, s, rule))

        values = log_expected_sigmoid(mean, s, rule)
        assert np.isfinite(values).all(), values
        assert (np.diff(values) >= 0).all()
        assert (np.asarray(values) <= 1e-5).all()
        for gradient in jax.grad(total, argnums=(0, 1))(mean, s):
            assert np.isfinite(gradient).all(), gradient
        for row in jax.hessian(total, argnums=(0, 1))(mean, s):
            for block in row:
                assert np.isfinite(block).all(), block


@pytest.mark.slow_but_first
@pytest.mark.parametrize("variance", [0.0, 1.0, 5.0, 50.0, 1000.0])
def test_32_bit_is_right_to_1e_5(variance):
    """Relative to the log where that exceeds 1: a float of 200 knows itself to 1.5e-5."""
    expected, _ = dense_values(variance)
    with jax.enable_x64(False):
        s = np.sqrt(variance)
        found = log_expected_sigmoid(
            jnp.asarray(MEANS, jnp.float32), jnp.full(MEANS.shape, s), logistic_rule(s)
        )
        assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("largest", [0.0, 0.3, 0.9, 1.0, 1.1, 4.0, 40.0])
def test_logistic_rule_has_the_moments_of_a_standard_normal(largest):
    """Up to what lies beyond six standard deviations: 4e-5 of the sixth moment."""
    nodes, log_weights, *_ = logistic_rule(largest)
    assert (np.diff(nodes) > 0).all()
    weights = np.exp(log_weights)
    for power, moment in enumerate([1, 0, 1, 0, 3, 0, 15]):
        beyond = integrate.quad(lambda z: z**power * np.exp(-(z**2) / 2), 6, 40)[0]  # noqa: B023
        np.testing.assert_allclose(weights @ nodes**power, moment, atol=1e-9 + 2 * beyond)


def test_rules_have_few_numbers_of_nodes():
    """Up to s = 1.25^11 a number for each power, and one above: few programs are compiled."""
    scales = np.geomspace(1.01, 16.0, 2000)
    assert len({len(logistic_rule(float(s)).nodes) for s in scales}) <= 12
    grid = np.array([on_grid(float(s)) for s in scales])
    assert (grid >= scales * (1 - 1e-8)).all() and (grid < 1.25 * scales).all()
    for s in set(grid):
        assert on_grid(float(s)) == s


@pytest.mark.slow_but_first
@pytest.mark.parametrize("s", [0.5, 1.0, 2.5, 5.0, 20.0])
def test_a_table_gives_the_values_of_its_rule(s):
    mean, scale = jnp.asarray(MEANS), jnp.linspace(0.1, s, len(MEANS))
    rule = logistic_rule(s)
    table = sigmoid_table(scale, rule)
    both = jax.jit(jax.value_and_grad(lambda a, r: jnp.sum(log_expected_sigmoid(a, scale, r))))
    for found, expected in zip(both(mean, table), both(mean, rule), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("s", [1e-8, 0.4, 1.0, 3.0, 10.0])
def test_log_expectation_of_an_exponential(s):
    """E e^{tf} = exp(ta + t²s²/2), for every t that the rule was tilted for."""
    mean = jnp.asarray([-300.0, -2.0, 0.0, 5.0])
    rule = trapezoid_rule(s, distance_to_pole=2.0, tilt=(1.0, 0.5))
    for t in (-1.0, -0.5, 0.0, 0.3, 0.5):
        found = log_expectation(lambda f: t * f, mean, jnp.full(4, s), rule)  # noqa: B023
        np.testing.assert_allclose(found, t * mean + (t * s) ** 2 / 2, rtol=0, atol=1e-8)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("s", [0.2, 1.0, 4.0])
def test_log_expectation_of_a_gaussian(s):
    """E exp(−f²/2) = exp(−a²/(2(1 + s²)))/√(1 + s²)."""
    mean = jnp.asarray([[-4.0, 0.0], [1.0, 7.0]])
    rule = trapezoid_rule(s, distance_to_pole=2.0, tilt=(1.0, 1.0))
    found = log_expectation(lambda f: -(f**2) / 2, mean, jnp.full((2, 2), s), rule)
    expected = -(mean**2) / (2 * (1 + s**2)) - np.log(1 + s**2) / 2
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_log_expectation_agrees_with_log_expected_sigmoid():
    """At means above −s²/2: below, sigmoids are those of the mirrored mean."""
    mean, s = jnp.asarray([-7.0, -0.3, 0.3, 9.0]), jnp.asarray([4.0, 1.0, 4.0, 2.5])
    rule = trapezoid_rule(4.0, distance_to_pole=2.0, tilt=(0.0, 1.0))

    def by_log_expectation(a, s):
        return jnp.sum(log_expectation(jax.nn.log_sigmoid, a, s, rule))

    def by_sigmoids(a, s):
        return jnp.sum(log_expected_sigmoid(a, s, rule))

    np.testing.assert_allclose(by_log_expectation(mean, s), by_sigmoids(mean, s), rtol=1e-12)
    for one, other in zip(
        jax.grad(by_log_expectation, argnums=(0, 1))(mean, s),
        jax.grad(by_sigmoids, argnums=(0, 1))(mean, s),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.in_ci
def test_rules_for_smaller_variances_have_the_stated_error():
    # sparse_gp caps the variance that rules are made for at 64, and says 2e-4 at 400. Rules are
    # made for the next power of 1.25, here a scale of 9.3.
    mean, scale = jnp.linspace(-60.0, 60.0, 25), jnp.full(25, 20.0)
    with jax.enable_x64(True):
        short, enough = (log_expected_sigmoid(mean, scale, logistic_rule(s)) for s in (8.0, 20.0))
    assert 1e-4 < np.abs(short - enough).max() < 3e-4


@pytest.mark.in_ci
@pytest.mark.parametrize("scale", [45.0, 100.0, 300.0])
def test_the_far_tail_is_that_of_an_exponential(scale):
    # For a + s² ≪ 0 all mass lies where σ(f) = e^f: log E σ = a + s²/2.
    mean = -1.5 * scale**2
    with jax.enable_x64(True):
        rule = logistic_rule(scale)
        found = log_expected_sigmoid(jnp.array([mean]), jnp.array([scale]), rule)
    np.testing.assert_allclose(found, mean + scale**2 / 2, atol=1e-6)


# --------------------------------------------------------------- very large variances


def of_parts(mean: float, s: float) -> float:
    """log E σ(f): e^f below −40 and 1 above 40, in closed form; Gauss–Legendre between."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    between = special.log_expit(40 * nodes) - 0.5 * ((40 * nodes - mean) / s) ** 2
    below = mean + s**2 / 2 + special.log_ndtr((-40 - mean - s**2) / s)
    middle = special.logsumexp(between, b=40 * weights) - math.log(s * math.sqrt(2 * math.pi))
    return special.logsumexp([below, middle, special.log_ndtr((mean - 40) / s)])


@pytest.mark.in_ci
@pytest.mark.parametrize("s", [12.0, 18.3, 50.0, 1e3, 1e6])
def test_the_error_is_as_stated_at_any_variance(s):
    """In both tails too, where the error is relative to a value that double precision rounds."""
    rule = logistic_rule(s)
    means = [-60.0, -5.0, 0.0, 5.0, 60.0, -3 * s, 3 * s, -0.49 * s**2, -0.51 * s**2, -2 * s**2]
    for mean in means:
        found = float(log_expected_sigmoid(jnp.array(mean), jnp.array(s), rule))
        assert found == pytest.approx(of_parts(mean, s), rel=1e-14, abs=1e-8)


@pytest.mark.parametrize("s", [2.2, 4.7])
def test_rules_of_large_variances_are_right_at_small_ones(s):
    """There the nodes of a logistic variable would err by 2e-5 at s = 2.2."""
    rule = logistic_rule(100.0)
    for mean in (-60.0, -5.0, 0.0, 5.0, -0.49 * s**2, -0.51 * s**2):
        found = float(log_expected_sigmoid(jnp.array(mean), jnp.array(s), rule))
        assert found == pytest.approx(of_parts(mean, s), rel=1e-14, abs=1e-7)


def test_both_ways_agree_where_they_meet():
    rule = logistic_rule(100.0)
    for mean in (-200.0, -60.0, -12.0, 0.0, 30.0):
        below, above = (
            float(log_expected_sigmoid(jnp.array(mean), jnp.array(1.25**7 + by), rule))
            for by in (-1e-9, 1e-9)
        )
        assert below == pytest.approx(above, abs=1e-7)


def test_logistic_nodes_have_the_moments_of_a_logistic_variable():
    """E ℓ^2k = (2^2k − 2) π^2k |B_2k|, exactly up to the degree 2J − 1 of Gauss' rule."""
    nodes, log_weights = logistic_rule(100.0).logistic
    bernoulli = np.abs(special.bernoulli(2 * len(nodes)))
    for power in range(0, 2 * len(nodes), 2):
        found = np.exp(log_weights) @ nodes**power
        expected = (2.0**power - 2) * np.pi**power * bernoulli[power] if power else 1.0
        assert found == pytest.approx(expected, rel=1e-10)
        assert np.exp(log_weights) @ nodes ** (power + 1) == pytest.approx(0, abs=1e-9 * found)


@pytest.mark.slow
def test_derivatives_exist_at_any_variance():
    """To the second order, on both sides of the choice, without NaN from the other side."""
    rule = logistic_rule(1e3)
    for s in (10.0, 900.0):
        for mean in (-0.6 * s**2, 2 * s):
            check_grads(
                lambda a, b: log_expected_sigmoid(jnp.asarray(a), jnp.asarray(b), rule),
                (jnp.array(mean), jnp.array(s)),
                order=2,
                modes=("rev",),
                rtol=1e-3,
                eps=1e-3 * max(1.0, s),
            )


def test_the_number_of_nodes_is_bounded():
    assert {len(logistic_rule(s).nodes) for s in (12.0, 1e3, 1e8)} == {68}
    assert len(logistic_rule(1e8).logistic.nodes) == 12
    for rule in (
        functools.partial(trapezoid_rule, distance_to_pole=1.0, tilt=(1.0, 1.0)),
        count_rule,
    ):
        with pytest.raises(ValueError, match=r"is up to 1e\+08, and .* give the kernel a smaller"):
            rule(1e4)
