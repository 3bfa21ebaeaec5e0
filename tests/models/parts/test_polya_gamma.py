"""Pólya-Gamma variables against series, quadrature and high precision.

Statistical tests are seeded; `largest_z` keeps the false alarms of each below 5e-6 over all its
looks, hence of the whole file (fewer than 20 such tests) below 1e-4.
"""

import math
from decimal import Decimal, localcontext
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.parts.polya_gamma import PolyaGamma, polya_gamma_kl
from scipy import stats

FALSE_ALARM = 5e-6
# Both sides of the switch between the two left proposals (tilt 4.6), and far beyond it.
TILTS = np.array([0.0, 0.3, 1.0, 2.5, 4.59, -4.61, 8.0, 30.0])


def largest_z(looks):
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * looks))


@pytest.fixture(autouse=True)
def precision(request):
    """64 bit, unless the test asks for 32 by its parameter."""
    with jax.enable_x64(getattr(request, "param", 64) == 64):
        yield


in_both_precisions = pytest.mark.parametrize("precision", [64, 32], indirect=True)
in_single_precision = pytest.mark.parametrize("precision", [32], indirect=True)


def draws_of(distribution, number, seed):
    sample = jax.jit(lambda key: distribution.sample(key, (number,)))
    return np.asarray(sample(jax.random.key(seed)))


def density_on_grid(tilt):
    """Nodes evenly spaced in log ω, and density times dω there: the trapezoid rule is spectral."""
    grid = np.exp(np.linspace(math.log(1e-6), math.log(80.0), 20_001))
    step = math.log(grid[1] / grid[0])
    return grid, np.exp(np.asarray(PolyaGamma(1, tilt).log_prob(grid))) * grid * step


def alternating_series(value):
    """log PG(ω|1,0) by the one series for every ω, with digits enough to survive cancellation."""
    with localcontext() as context:
        context.prec = 250
        exact = Decimal(value)
        terms = (
            (-1) ** n * (2 * n + 1) * (-Decimal((2 * n + 1) ** 2) / (8 * exact)).exp()
            for n in range(300)
        )
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
        return float((sum(terms) / (2 * pi * exact**3).sqrt()).ln())


@pytest.mark.parametrize(
    "value", [1e-4, 1e-3, 0.02, 0.1, 0.159, 1 / (2 * math.pi), 0.16, 0.25, 1.0, 7.0, 50.0]
)
def test_log_density_equals_the_alternating_series_in_250_digits(value):
    expected = alternating_series(value)
    np.testing.assert_allclose(float(PolyaGamma(1, 0.0).log_prob(value)), expected, rtol=1e-13)


def test_the_two_series_meet_without_a_kink():
    joint = 1 / (2 * math.pi)
    values = jnp.array([joint * (1 - 1e-9), joint * (1 + 1e-9)])
    below, above = PolyaGamma(1, 1.0).log_prob(values)
    gradients = jax.vmap(jax.grad(lambda x: PolyaGamma(1, 1.0).log_prob(x)))(values)
    assert abs(float(above - below) - 2e-9 * joint * float(gradients[0])) < 1e-14
    np.testing.assert_allclose(float(gradients[0]), float(gradients[1]), rtol=1e-6)


@pytest.mark.parametrize("tilt", TILTS)
def test_density_has_mass_one_and_the_closed_form_moments(tilt):
    grid, mass = density_on_grid(tilt)
    distribution = PolyaGamma(1, tilt)
    mean, variance = float(distribution.mean), float(distribution.variance)
    np.testing.assert_allclose(mass.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(mass @ grid, mean, rtol=1e-12)
    np.testing.assert_allclose(mass @ (grid - mean) ** 2, variance, rtol=1e-10)


def test_laplace_transform_is_the_hyperbolic_secant():
    grid, mass = density_on_grid(0.0)
    for x in (0.1, 1.0, 5.0, 20.0):
        np.testing.assert_allclose(
            mass @ np.exp(-(x**2) * grid / 2), 1 / math.cosh(x / 2), rtol=1e-11
        )


@pytest.mark.parametrize("tilt", [0.0, 1e-9, 1e-3, 0.0199, 0.0201, 0.199, 0.201, 3.0, 700.0])
def test_moments_keep_their_digits_next_to_tilt_zero(tilt):
    with localcontext() as context:
        context.prec = 60
        c = Decimal(tilt)
        if tilt:
            cosh, sinh = (c.exp() + (-c).exp()) / 2, (c.exp() - (-c).exp()) / 2
            mean = float(sinh / (cosh + 1) / (2 * c))  # tanh(c/2) = sinh c/(cosh c + 1)
            variance = float((sinh - c) / (2 * c**3 * (cosh + 1)))
        else:
            mean, variance = 0.25, 1 / 24
    distribution = PolyaGamma(2, tilt)
    np.testing.assert_allclose(float(distribution.mean), 2 * mean, rtol=1e-14)
    np.testing.assert_allclose(float(distribution.variance), 2 * variance, rtol=2e-11)


def test_mean_and_its_derivatives_are_smooth_at_tilt_zero():
    def mean(tilt):
        return PolyaGamma(1, tilt).mean

    gradient, curvature = jax.jit(jax.grad(mean)), jax.jit(jax.grad(jax.grad(mean)))
    assert float(gradient(0.0)) == 0
    # tanh(c/2)/(2c) = 1/4 − c²/48 + …
    np.testing.assert_allclose(float(curvature(0.0)), -1 / 24, rtol=1e-12)
    np.testing.assert_allclose(float(gradient(1e6)), -0.5e-12, rtol=1e-9)


@pytest.mark.slow
def test_draws_have_the_closed_form_mean_and_variance():
    number, distribution = 100_000, PolyaGamma(1, TILTS)
    draws = draws_of(distribution, number, seed=1)
    mean, variance = np.asarray(distribution.mean), np.asarray(distribution.variance)
    squares = (draws - mean) ** 2
    z_mean = (draws.mean(0) - mean) / np.sqrt(variance / number)
    z_variance = (squares.mean(0) - variance) / (squares.std(0) / math.sqrt(number))
    assert np.abs([z_mean, z_variance]).max() < largest_z(2 * len(TILTS))


@pytest.mark.slow
@in_both_precisions
def test_draws_follow_the_density(precision):
    number, looks = 300_000, 3 * 2 * len(TILTS)
    draws = draws_of(PolyaGamma(1, TILTS), number, seed=2).astype(np.float64)
    with jax.enable_x64(True):
        for tilt, column in zip(TILTS, draws.T, strict=True):
            grid, mass = density_on_grid(tilt)
            # Midpoint convention: half of a node's own mass lies below the node.
            distribution_function = np.cumsum(mass) - mass / 2
            transformed = np.interp(column, grid, distribution_function)
            assert stats.kstest(transformed, "uniform").pvalue > FALSE_ALARM / looks
            counts = np.histogram(transformed, bins=50, range=(0, 1))[0]
            assert stats.chisquare(counts).pvalue > FALSE_ALARM / looks
            # The sides of the self-dual point have separate proposals, where errors show first.
            fraction = np.interp(1 / (2 * math.pi), grid, distribution_function)
            below = np.sum(column < 1 / (2 * math.pi))
            assert stats.binomtest(below, number, min(fraction, 1.0)).pvalue > FALSE_ALARM / looks


def test_draws_have_the_laplace_transform():
    draws = draws_of(PolyaGamma(1, 0.0), 400_000, seed=3)
    for x in (0.5, 2.0, 6.0):
        terms = np.exp(-(x**2) * draws / 2)
        z = (terms.mean() - 1 / math.cosh(x / 2)) / (terms.std() / math.sqrt(len(draws)))
        assert abs(z) < largest_z(3)


def test_draws_of_concentration_three_are_sums_of_three():
    number = 100_000
    whole = draws_of(PolyaGamma(3, 2.0), number, seed=4)
    parts = draws_of(PolyaGamma(1, jnp.full(3, 2.0)), number, seed=5).sum(1)
    assert stats.ks_2samp(whole, parts).pvalue > FALSE_ALARM


@pytest.mark.in_ci
def test_every_element_keeps_its_own_concentration():
    number, concentration = 50_000, np.array([1, 2, 7])
    distribution = PolyaGamma(concentration, np.array([[0.5], [6.0]]))
    draws = draws_of(distribution, number, seed=6)
    assert draws.shape == (number, 2, 3)
    scale = np.sqrt(np.asarray(distribution.variance) / number)
    z = (draws.mean(0) - np.asarray(distribution.mean)) / scale
    assert np.abs(z).max() < largest_z(6)


def test_draws_of_different_elements_are_uncorrelated():
    draws = draws_of(PolyaGamma(1, np.array([0.0, 0.0, 5.0, 5.0])), 100_000, seed=7)
    correlation = np.corrcoef(draws.T)[np.triu_indices(4, 1)]
    assert np.abs(correlation).max() * math.sqrt(len(draws)) < largest_z(6)


@pytest.mark.in_ci
def test_kl_is_the_mean_difference_of_log_densities():
    tilted = PolyaGamma(1, np.array([0.4, 3.0, 12.0]))
    draws = draws_of(tilted, 100_000, seed=8)
    difference = np.asarray(tilted.log_prob(draws) - PolyaGamma(1, 0.0).log_prob(draws))
    z = difference.mean(0) - np.asarray(polya_gamma_kl(tilted.tilt))
    z /= difference.std(0) / math.sqrt(len(draws))
    assert np.abs(z).max() < largest_z(3)
    for tilt in TILTS:
        grid, mass = density_on_grid(tilt)
        log_ratio = PolyaGamma(1, tilt).log_prob(grid) - PolyaGamma(1, 0.0).log_prob(grid)
        expected = mass @ np.asarray(log_ratio)
        np.testing.assert_allclose(float(polya_gamma_kl(tilt)), expected, rtol=1e-11, atol=1e-14)
    assert float(polya_gamma_kl(0.0)) == 0


def test_gradients_of_the_log_density_agree_with_differences():
    def log_density(value, tilt):
        return PolyaGamma(1, tilt).log_prob(value)

    gradient = jax.jit(jax.grad(log_density, argnums=(0, 1)))
    for value in (1e-4, 0.02, 0.159, 0.16, 2.0, 50.0):
        for tilt in (0.0, 1e-3, 4.0, 30.0):
            gradients = gradient(value, tilt)
            step = 1e-5 * value
            by_value = log_density(value + step, tilt) - log_density(value - step, tilt)
            by_tilt = log_density(value, tilt + 1e-5) - log_density(value, tilt - 1e-5)
            np.testing.assert_allclose(float(gradients[0]), float(by_value) / (2 * step), rtol=1e-5)
            np.testing.assert_allclose(
                float(gradients[1]), float(by_tilt) / 2e-5, rtol=1e-5, atol=1e-6
            )


@pytest.mark.slow_but_first
@in_both_precisions
def test_no_value_or_tilt_in_use_gives_infinities(precision):
    values = jnp.geomspace(1e-4, 50.0, 400)[:, None]
    tilts = jnp.array([-800.0, 0.0, 1e-20, 1e-4, 1.0, 90.0, 1e4])
    gradient = jax.jit(jax.grad(lambda x, c: PolyaGamma(1, c).log_prob(x).sum(), argnums=(0, 1)))
    for array in (PolyaGamma(1, tilts).log_prob(values), *gradient(values, tilts)):
        assert bool(jnp.isfinite(array).all())
    assert float(PolyaGamma(1, 0.0, validate_args=False).log_prob(-1.0)) == -math.inf


@pytest.mark.slow_but_first
@in_both_precisions
def test_extreme_tilts_end_the_loop_with_the_right_draws(precision):
    tilt = jnp.array([1e-30, 1e3, 1e6, -1e15, jnp.inf, jnp.nan])
    draws = PolyaGamma(2, tilt, validate_args=False).sample(jax.random.key(9))
    assert bool(jnp.isnan(draws[-1])) and float(draws[-2]) == 0
    # At large tilt ω concentrates on its mean: relative sd c^(-1/2).
    ratio = np.asarray(draws[1:4] / PolyaGamma(2, tilt[1:4]).mean)
    np.testing.assert_allclose(ratio, 1, atol=0.25)
    np.testing.assert_allclose(ratio[1:], 1, atol=0.01)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@in_single_precision
def test_polya_gamma_in_single_precision_stays_single_and_close(precision):
    tilts = jnp.asarray(TILTS)
    single = PolyaGamma(1, tilts)
    draws = draws_of(single, 1_000, seed=10)
    assert draws.dtype == single.mean.dtype == single.variance.dtype == jnp.float32
    log_density, mean, variance = single.log_prob(draws), single.mean, single.variance
    assert log_density.dtype == polya_gamma_kl(tilts).dtype == jnp.float32
    with jax.enable_x64(True):
        double = PolyaGamma(1, TILTS)
        expected = double.log_prob(draws.astype(np.float64))
        np.testing.assert_allclose(log_density, expected, rtol=2e-5, atol=2e-4)
        np.testing.assert_allclose(mean, double.mean, rtol=1e-6)
        np.testing.assert_allclose(variance, double.variance, rtol=2e-5)


def test_single_precision_input_stays_single_under_64_bit():
    tilt = jnp.ones(4, jnp.float32)
    assert PolyaGamma(1, tilt).sample(jax.random.key(0)).dtype == jnp.float32
    assert PolyaGamma(1, tilt).mean.dtype == jnp.float32


@pytest.mark.slow
def test_draws_are_the_same_alone_compiled_and_vectorised():
    keys = jax.random.split(jax.random.key(11), 3)
    tilts = jnp.linspace(0.0, 9.0, 30).reshape(3, 10)

    def draw(key, tilt):
        return PolyaGamma(1, tilt).sample(key)

    alone = jnp.stack([draw(key, tilt) for key, tilt in zip(keys, tilts, strict=True)])
    np.testing.assert_allclose(jax.jit(jax.vmap(draw))(keys, tilts), alone, rtol=1e-12)


def test_polya_gamma_crosses_jit_as_a_pytree():
    distribution = PolyaGamma(1, jnp.array([0.5, 3.0]))
    value = jnp.array([0.2, 0.1])
    np.testing.assert_allclose(
        jax.jit(lambda d, x: d.log_prob(x))(distribution, value), distribution.log_prob(value)
    )
    with pytest.raises(NotImplementedError, match="concentration 1 only"):
        jax.jit(lambda d, x: d.log_prob(x))(PolyaGamma(2, jnp.ones(2)), value)


def test_log_density_of_larger_concentrations_is_refused():
    with pytest.raises(NotImplementedError, match=r"found concentration = 3\. .*sum of that many"):
        PolyaGamma(3, 1.0).log_prob(0.5)


def test_a_fractional_concentration_is_refused():
    with pytest.raises(ValueError, match="invalid concentration"):
        PolyaGamma(1.5, 1.0, validate_args=True)


def test_drawing_under_a_gradient_treats_the_draw_as_constant():
    assert float(jax.grad(lambda c: PolyaGamma(1, c).sample(jax.random.key(0)))(1.0)) == 0
