"""θ, p(ω) and log ψ of each scale mixture are consistent; other functions are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models import RBF, VGPMIL, GammaScaleMixture, PolyaGammaScaleMixture, ScaleMixture
from milzoo.models.parts.scale_mixtures import GaussianScaleMixture, log_two_cosh_half


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def log_hyperbolic_secant(f):
    return -jnp.log(2 * jnp.cosh(f / 2))


def log_student(f):
    return -1.5 * jnp.log1p(f**2 / 4)


def log_logistic_density(f):
    return -f - 2 * jnp.log1p(jnp.exp(-f))


AUGMENTED = [
    PolyaGammaScaleMixture(),
    GammaScaleMixture(1.0, 1.0),
    GammaScaleMixture(alpha=0.5, beta=2.5),
]
AUTOMATIC = [ScaleMixture(log_psi) for log_psi in (log_hyperbolic_secant, log_student)]
TILTS = np.array([0.0, 1e-6, 9.9e-5, 1.01e-4, 5e-4, 1.1e-3, 0.03, 0.7, 2.0, 5.0, 20.0, -1.3])


def by_name(scale_mixture):
    return (
        scale_mixture.log_psi.__name__
        if isinstance(scale_mixture, ScaleMixture)
        else repr(scale_mixture)
    )


@pytest.mark.parametrize("scale_mixture", AUGMENTED + AUTOMATIC, ids=by_name)
def test_every_scale_mixture_keeps_the_protocol(scale_mixture):
    assert isinstance(scale_mixture, GaussianScaleMixture)


@pytest.mark.parametrize("scale_mixture", AUGMENTED + AUTOMATIC, ids=by_name)
def test_no_derivative_of_log_psi_is_larger_than_said(scale_mixture):
    if isinstance(scale_mixture, ScaleMixture):
        scale_mixture = ScaleMixture.from_log_density(scale_mixture.log_psi)
    latent = jnp.concatenate([jnp.zeros(1), jnp.geomspace(1e-2, 1e2, 2000)])
    derivative = np.abs(np.asarray(jax.vmap(jax.grad(scale_mixture.log_density))(latent)))
    assert derivative.max() == pytest.approx(scale_mixture.largest_log_derivative, rel=2e-3)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("scale_mixture", AUGMENTED + AUTOMATIC, ids=by_name)
def test_expected_precision_is_the_scaled_derivative_of_log_psi(scale_mixture):
    gradient = jax.vmap(jax.grad(scale_mixture.log_density))(jnp.asarray(TILTS))
    away = np.abs(TILTS) > 1e-7
    expected = -np.asarray(gradient)[away] / TILTS[away]
    found = np.asarray(scale_mixture.expected_precision(jnp.asarray(TILTS)))
    # Automatic differentiation takes its value at 0 up to c = 1e-3.
    tolerance = 1e-6 if isinstance(scale_mixture, ScaleMixture) else 1e-9
    np.testing.assert_allclose(found[away], expected, rtol=tolerance)
    limit = -jax.grad(jax.grad(scale_mixture.log_density))(0.0)
    np.testing.assert_allclose(found[0], limit, rtol=1e-10)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("scale_mixture", AUGMENTED[:2] + AUTOMATIC[1:], ids=by_name)
def test_expected_precision_has_derivatives_everywhere(scale_mixture):
    tilts = jnp.asarray([0.0, 5e-3, 0.4, 3.0])  # the series ends at 1e-4 and 1e-3
    gradient = jax.vmap(jax.grad(scale_mixture.expected_precision))(tilts)
    step = 1e-5
    difference = (
        scale_mixture.expected_precision(tilts + step)
        - scale_mixture.expected_precision(tilts - step)
    ) / (2 * step)
    np.testing.assert_allclose(gradient, difference, atol=2e-5)
    assert abs(float(gradient[0])) < 1e-10


@pytest.mark.parametrize("scale_mixture", AUGMENTED, ids=by_name)
def test_expected_precision_is_the_mean_of_the_conditional(scale_mixture):
    tilt = jnp.asarray(TILTS)
    np.testing.assert_allclose(
        scale_mixture.conditional(tilt).mean, scale_mixture.expected_precision(tilt), rtol=1e-12
    )


@pytest.mark.parametrize("scale_mixture", AUGMENTED, ids=by_name)
def test_the_conditional_is_the_tilted_mixing_distribution(scale_mixture):
    """log q(ω|c) = log p(ω) − ωc²/2 − [log ψ(c) − log ψ(0)] for every ω, hence also in mean."""
    omega, tilt = np.geomspace(0.01, 4.0, 9)[:, None], np.array([0.0, 0.4, 3.0, -7.0])
    log_density = np.asarray(
        scale_mixture.conditional(jnp.asarray(tilt)).log_prob(jnp.asarray(omega))
    )
    psi = np.asarray(scale_mixture.log_density(jnp.asarray(tilt)))
    expected = -omega * tilt**2 / 2 - (psi - psi[0])
    np.testing.assert_allclose(log_density - log_density[:, :1], expected, atol=1e-11)


@pytest.mark.parametrize("scale_mixture", AUGMENTED, ids=by_name)
def test_psi_is_a_mixture_of_gaussians(scale_mixture):
    """ψ(f)/ψ(0) = ∫ exp(−ωf²/2) p(ω) dω, by the trapezoid rule in log ω."""
    log_omega = np.linspace(np.log(1e-30), np.log(200.0), 20_001)
    omega = np.exp(log_omega)
    log_p = np.asarray(scale_mixture.conditional(jnp.float64(0.0)).log_prob(omega))
    psi = np.exp(np.asarray(scale_mixture.log_density(jnp.asarray([0.0, 0.5, 2.0, 6.0]))))
    for f, expected in zip([0.0, 0.5, 2.0, 6.0], psi / psi[0], strict=True):
        found = np.trapezoid(np.exp(log_p - omega * f**2 / 2) * omega, log_omega)
        np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize("scale_mixture", AUGMENTED + AUTOMATIC, ids=by_name)
def test_log_psi_at_the_rms_is_below_its_mean(scale_mixture):
    """E_q log ψ(f) ≥ log ψ(c), c² = E_q f², with equality where f is known up to its sign."""
    z = np.linspace(-12, 12, 4_001)
    weight = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    for mean in (0.0, -4.0, 30.0):
        for s in (0.0, 0.3, 4.0):
            expected = float(
                weight @ np.asarray(scale_mixture.log_density(jnp.asarray(mean + s * z)))
            )
            bound = float(scale_mixture.log_density(jnp.float64(np.hypot(mean, s))))
            assert expected >= bound - 1e-12 * (1 + abs(bound))
            if s == 0:
                np.testing.assert_allclose(expected, bound, rtol=1e-12)
            elif mean == 0 and s >= 2:
                assert expected > bound + 1e-3


def test_gamma_psi_keeps_its_constant():
    """log ψ = α log β − α log(β + f²/2), without which the ELBO would not be one."""
    scale_mixture, f = GammaScaleMixture(alpha=1.5, beta=0.4), np.array([0.0, 0.2, -3.0])
    expected = 1.5 * np.log(0.4) - 1.5 * np.log(0.4 + f**2 / 2)
    np.testing.assert_allclose(scale_mixture.log_density(jnp.asarray(f)), expected, atol=1e-14)


def test_polya_gamma_psi_is_a_factor_of_the_sigmoid():
    """σ(f) = e^{f/2} ψ(f)."""
    f = jnp.asarray([-40.0, -1.0, 0.0, 2.0, 700.0])
    np.testing.assert_allclose(
        f / 2 + PolyaGammaScaleMixture().log_density(f), jax.nn.log_sigmoid(f), atol=1e-12
    )


def test_log_two_cosh_half_neither_overflows_nor_loses_digits():
    f = np.array([0.0, 1e-9, 1.0, -3.0, 50.0, 1e4, -1e300])
    expected = np.logaddexp(f / 2, -f / 2)
    np.testing.assert_allclose(log_two_cosh_half(jnp.asarray(f)), expected, rtol=1e-14)
    gradient = jax.vmap(jax.grad(log_two_cosh_half))(jnp.asarray(f))
    np.testing.assert_allclose(gradient[1:], np.tanh(f[1:] / 2) / 2, rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_numeric_hyperbolic_secant_is_the_polya_gamma_scale_mixture():
    by_hand, automatic = (
        PolyaGammaScaleMixture(),
        ScaleMixture.from_log_density(log_hyperbolic_secant),
    )
    tilt = jnp.asarray(TILTS)
    np.testing.assert_allclose(
        automatic.expected_precision(tilt), by_hand.expected_precision(tilt), rtol=1e-6
    )
    np.testing.assert_allclose(automatic.log_density(tilt), by_hand.log_density(tilt), atol=1e-13)


def test_student_log_density_is_a_gamma_scale_mixture():
    automatic, by_hand = ScaleMixture.from_log_density(log_student), GammaScaleMixture(1.5, 2.0)
    tilt = jnp.asarray(TILTS)
    np.testing.assert_allclose(
        automatic.expected_precision(tilt), by_hand.expected_precision(tilt), rtol=1e-6
    )
    np.testing.assert_allclose(automatic.log_density(tilt), by_hand.log_density(tilt), atol=1e-13)


@pytest.mark.slow
def test_true_scale_mixtures_pass_in_32_bit():
    with jax.enable_x64(False):
        for log_psi in (
            log_logistic_density,
            lambda f: 7.0 - 3 * f**2 / 2,  # ω is the number 3
        ):
            mixture = ScaleMixture.from_log_density(log_psi)
            assert np.isfinite(mixture.expected_precision(jnp.asarray([0.0, 1e-4, 5.0]))).all()


NEGATIVE, INCREASING = (
    "expected a positive number everywhere",
    "increases with c; expected it to fall",
)


@pytest.mark.parametrize(
    ("log_psi", "complaint"),
    [
        pytest.param(lambda f: f**2 / 2, NEGATIVE, id="grows"),
        pytest.param(jax.nn.log_sigmoid, NEGATIVE, id="sigmoid"),
        pytest.param(lambda f: -((f - 1.0) ** 2), NEGATIVE, id="off centre"),
        pytest.param(lambda f: -jnp.abs(f), NEGATIVE, id="kink at 0"),
        pytest.param(jnp.log, NEGATIVE, id="undefined at 0"),
        pytest.param(lambda f: -(f**4) - f**2, INCREASING, id="too light tails"),
        pytest.param(lambda f: -(f**2) / 2 + jnp.cos(f) / 3, INCREASING, id="wavy"),
    ],
)
def test_what_is_no_gaussian_scale_mixture_is_refused(log_psi, complaint):
    with pytest.raises(ValueError, match=f"log_psi is not a Gaussian scale mixture.*{complaint}"):
        ScaleMixture.from_log_density(log_psi)


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_gamma_parameters_not_positive_and_finite_are_refused(name, bad):
    with pytest.raises(ValueError, match=f"GammaScaleMixture {name} is {bad}; expected a positive"):
        GammaScaleMixture(**({"alpha": 1.0, "beta": 1.0} | {name: bad}))


def test_augmentation_without_a_mixing_distribution_is_refused():
    mixture = ScaleMixture.from_log_density(log_student)
    message = r"its mixing distribution p\(ω\).*use PolyaGammaScaleMixture or GammaScaleMixture"
    with pytest.raises(NotImplementedError, match=message):
        mixture.conditional(jnp.zeros(2))
    model = VGPMIL(kernel=RBF(1.0, 1.0), inducing_points=np.zeros((1, 1)), scale_mixture=mixture)
    with pytest.raises(NotImplementedError, match=message):
        model.augmented()


@pytest.mark.slow_but_first
@pytest.mark.parametrize("scale_mixture", AUGMENTED + AUTOMATIC[1:], ids=by_name)
def test_32_bit_agrees_with_64_bit(scale_mixture):
    tilts = np.array([0.0, 1e-4, 2e-3, 0.3, 4.0, 60.0, -80.0])
    exact = [
        scale_mixture.log_density(jnp.asarray(tilts)),
        scale_mixture.expected_precision(jnp.asarray(tilts)),
    ]
    with jax.enable_x64(False):
        tilt = jnp.asarray(tilts)
        rough = [scale_mixture.log_density(tilt), scale_mixture.expected_precision(tilt)]
        assert {value.dtype for value in rough} == {np.dtype("float32")}
    for one, other in zip(rough, exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
