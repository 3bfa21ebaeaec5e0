"""Pólya-Gamma distribution, which makes the logistic likelihood a Gaussian scale mixture.

============  ===========================================  ==========================
Symbol        Meaning                                      Code name
============  ===========================================  ==========================
ω             Pólya-Gamma variable                         ``value`` of `PolyaGamma`
b, c          its shape parameter and tilt                 ``concentration``, ``tilt``
============  ===========================================  ==========================

All functions work in 32 and in 64 bit, under ``jit`` and ``vmap``.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Float, Int
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import is_prng_key, not_jax_tracer

__all__ = ["PolyaGamma", "log_cosh", "polya_gamma_kl"]

# The density has two theta series, one in x and its dual in 1/x. At this point both converge
# equally fast. On its own side of the point each has q < 0.002. Units are those of
# J*(1, z) = 4 PG(1, 2z).
_SELF_DUAL_POINT = 2 / math.pi
# From this z on, draws of an inverse Gaussian fall left of that point often enough for a proposal.
_INVERSE_GAUSSIAN_FROM = 2.3


class PolyaGamma(Distribution):
    r"""Pólya-Gamma distribution PG(b, c), the mixing distribution of the logistic likelihood.

    .. math::
        \omega = \frac{1}{2\pi^2} \sum_{k \ge 1} \frac{g_k}{(k - 1/2)^2 + c^2 / (4\pi^2)},
        \qquad g_k \sim \mathrm{Gamma}(b, 1)

        \mathrm{PG}(\omega \mid b, c) = \cosh(c/2)^b \, e^{-c^2 \omega / 2}
        \, \mathrm{PG}(\omega \mid b, 0)

    so that :math:`\mathrm{E}\, e^{-x^2 \omega / 2} = \cosh(x/2)^{-b}` at c = 0.

    Parameters
    ----------
    concentration : positive integer or array of them
        b. The papers call it shape, but NumPyro's distributions have a method of that name.
    tilt : real or array
        c. Only its absolute value matters.

    Notes
    -----
    Draws are exact, because rejection sampling does not truncate the infinite sum. They are not
    differentiable with respect to the tilt. A draw with concentration b costs b times a draw with
    concentration 1.

    References
    ----------
    Polson, Scott and Windle (2013), Bayesian inference for logistic models using Pólya-Gamma
    latent variables, JASA 108. Devroye (2009), On exact simulation algorithms for some
    distributions related to Jacobi theta functions.
    """

    arg_constraints = {"concentration": constraints.positive_integer, "tilt": constraints.real}
    _support = constraints.positive
    reparametrized_params: list[str] = []
    pytree_data_fields = ("concentration", "tilt")
    pytree_aux_fields = ("_concentration_is_one",)

    def __init__(
        self,
        concentration: ArrayLike,
        tilt: ArrayLike = 0.0,
        *,
        validate_args: bool | None = None,
    ) -> None:
        # `log_prob` needs a Python bool, and under jit the concentration itself is a tracer.
        self._concentration_is_one = not_jax_tracer(concentration) and bool(
            np.all(np.asarray(concentration) == 1)
        )
        batch_shape = lax.broadcast_shapes(jnp.shape(concentration), jnp.shape(tilt))
        self.concentration, self.tilt = concentration, tilt
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draw exactly from PG(b, c); the array has shape ``sample_shape + batch_shape``."""
        assert is_prng_key(key) and key is not None
        shape = tuple(sample_shape) + self.batch_shape
        tilt = lax.stop_gradient(jnp.asarray(self.tilt, _float_type(self.tilt)))
        concentration = jnp.asarray(self.concentration).astype(int)
        return _sum_of_draws(
            key, jnp.broadcast_to(concentration, shape), jnp.broadcast_to(tilt, shape)
        )

    @validate_sample
    def log_prob(
        self, value: ArrayLike, intermediates: list[Any] | None = None
    ) -> Float[Array, "..."]:
        """Log density at ``value``, for concentration 1.

        Raises
        ------
        NotImplementedError
            For any other concentration. The alternating series of PG(b, 0) loses all digits away
            from zero, and only b = 1 has a dual series.
        """
        if not self._concentration_is_one:
            raise NotImplementedError(
                "PolyaGamma.log_prob: the density is available for concentration 1 only, found "
                f"concentration = {self.concentration}. For a larger one, write the variable as a "
                "sum of that many PolyaGamma(1, tilt) variables; sample, mean and variance work "
                "for every positive integer."
            )
        value = jnp.asarray(value, _float_type(value, self.tilt))
        tilt = jnp.asarray(self.tilt)
        # PG(ω|1,c) = cosh(c/2) exp(−c²ω/2) PG(ω|1,0)
        return log_cosh(tilt / 2) - tilt**2 * value / 2 + _log_density_without_tilt(value)

    @property
    def mean(self) -> Float[Array, "..."]:
        """Mean E ω = b tanh(c/2) / (2c), which is b/4 at c = 0."""
        half_tilt = jnp.asarray(self.tilt, _float_type(self.tilt)) / 2
        return jnp.broadcast_to(self.concentration * _tanh_ratio(half_tilt) / 4, self.batch_shape)

    @property
    def variance(self) -> Float[Array, "..."]:
        """Variance Var ω = b (sinh c − c) / (4c³ cosh²(c/2)), which is b/24 at c = 0."""
        half_tilt = jnp.asarray(self.tilt, _float_type(self.tilt)) / 2
        return jnp.broadcast_to(
            self.concentration * _tanh_excess_ratio(half_tilt) / 16, self.batch_shape
        )


def polya_gamma_kl(tilt: ArrayLike) -> Float[Array, "..."]:
    """Kullback-Leibler divergence KL(PG(1, c) ‖ PG(1, 0)) = log cosh(c/2) − (c/4) tanh(c/2).

    Parameters
    ----------
    tilt : real or array
        c.

    Returns
    -------
    array
        In nats, of the shape of ``tilt``. The rounding error is absolute (1e-16), not relative, as
        c → 0.

    Notes
    -----
    It follows from E ω = tanh(c/2)/(2c) and log PG(ω|1,c) − log PG(ω|1,0) = log cosh(c/2) − c²ω/2.
    """
    half_tilt = jnp.asarray(tilt, _float_type(tilt)) / 2
    return log_cosh(half_tilt) - half_tilt * jnp.tanh(half_tilt) / 2


def _float_type(*values: ArrayLike) -> jnp.dtype:
    return jnp.result_type(*values, float)


def log_cosh(x: Array) -> Array:
    """Compute log cosh x without overflow."""
    return jnp.logaddexp(x, -x) - math.log(2)


def _tanh_ratio(x: Array) -> Array:
    """Compute tanh(x)/x, near 0 by a power series so that all derivatives are accurate there."""
    near_zero = jnp.abs(x) < 0.01
    away = jnp.where(near_zero, 1.0, x)
    coefficients = jnp.array([-17 / 315, 2 / 15, -1 / 3, 1], x.dtype)
    series = jnp.polyval(coefficients, jnp.where(near_zero, x, 0.0) ** 2)
    return jnp.where(near_zero, series, jnp.tanh(away) / away)


def _tanh_excess_ratio(x: Array) -> Array:
    """Compute (tanh x − x sech² x)/x³, near 0 by a power series because the terms cancel there."""
    near_zero = jnp.abs(x) < 0.1
    away = jnp.where(near_zero, 1.0, x)
    coefficients = [13820 / 155925, -496 / 2835, 34 / 105, -8 / 15, 2 / 3]
    series = jnp.polyval(jnp.array(coefficients, x.dtype), jnp.where(near_zero, x, 0.0) ** 2)
    tanh = jnp.tanh(away)
    return jnp.where(near_zero, series, (tanh / away - (1 - tanh**2)) / away**2)


def _theta_correction(decay: Array) -> Array:
    """Theta series 1 − 3q + 5q³ − 7q⁶ + … minus 1.

    For q < 0.002 three terms are exact in 64 bit.
    """
    return decay * (-3 + decay**2 * (5 - 7 * decay**3))


@jax.jit
def _log_density_without_tilt(value: Array) -> Array:
    """Log density at tilt 0, log PG(ω | 1, 0), by the theta series that converges faster."""
    in_support = value > 0
    value = jnp.where(in_support, value, 1.0)
    left = -1.5 * jnp.log(value) - 1 / (8 * value) - 0.5 * math.log(2 * math.pi)
    right = math.log(2 * math.pi) - math.pi**2 * value / 2
    decay = jnp.exp(-jnp.maximum(1 / value, 4 * math.pi**2 * value))
    leading = jnp.where(4 * value < _SELF_DUAL_POINT, left, right)
    return jnp.where(in_support, leading + jnp.log1p(_theta_correction(decay)), -jnp.inf)


class _Envelope(NamedTuple):
    """Parameters of the proposal for J*(1, z), all arrays of one shape.

    The leading terms of the two series bound the density of J*(1, z) from above:

    - Right of the self-dual point t, the bound is an exponential with rate π²/8 + z²/2.
    - Left of it, with x = 1/s², the bound is exp(−s²/2 − z²/(2s²)), s > 1/√t. For small z the
      tangent in s² at a point of contact s*² replaces the exponent −z²/(2s²), which it bounds from
      above. The proposal is then a normal tail with a larger scale. For large z the proposal is an
      inverse Gaussian IG(1/z, 1) on the whole half line.

    With this choice at least 84 % of all proposals are accepted, whatever z.
    """

    left_probability: Array
    tail_probability: Array  # mass of the normal tail that gives the left proposal
    scale: Array  # of that normal
    drift: Array  # z for an inverse Gaussian proposal, 0 for a normal tail
    gap: Array  # z²/2 where the tangent is used, 0 elsewhere
    contact: Array  # x* = 1/s*²
    rate: Array  # of the exponential


def _envelope(z: Array) -> _Envelope:
    use_tangent = z < _INVERSE_GAUSSIAN_FROM
    small_z = jnp.where(use_tangent, z, 0.0)
    contact = 1 / (3.17 + 0.14 * small_z**2)  # nearly minimises the left mass for every z
    scale = lax.rsqrt(1 - (small_z * contact) ** 2)
    normal_tail = lax.erfc((2 * _SELF_DUAL_POINT) ** -0.5 / scale) / 2  # Φ(−1/(√t scale))
    tail_probability = jnp.where(use_tangent, normal_tail, 0.5)
    rate = math.pi**2 / 8 + z**2 / 2
    log_left = jnp.where(
        use_tangent,
        math.log(4) - small_z**2 * contact + jnp.log(scale * tail_probability),
        math.log(2) - z,
    )
    log_right = jnp.log(math.pi / 2 / rate) - rate * _SELF_DUAL_POINT
    return _Envelope(
        left_probability=jax.nn.sigmoid(log_left - log_right),
        tail_probability=tail_probability,
        scale=scale,
        drift=jnp.where(use_tangent, 0.0, z),
        gap=small_z**2 / 2,
        contact=contact,
        rate=rate,
    )


def _propose_left(uniform: Array, coin: Array, envelope: _Envelope) -> tuple[Array, Array]:
    """Propose x from a normal tail or an inverse Gaussian; returns x and the unused coin.

    The inverse Gaussian is drawn by the method of Michael, Schucany and Haas.
    """
    largest = 1 - jnp.finfo(uniform.dtype).epsneg
    upper_quantile = jnp.minimum(1 - 2 * envelope.tail_probability * (1 - uniform), largest)
    normal = envelope.scale * math.sqrt(2) * lax.erf_inv(upper_quantile)
    drift = envelope.drift
    # With drift z, s − z/s is normal, and s is the positive root. Without drift, s is the normal.
    root = (normal + jnp.sqrt(normal**2 + 4 * drift)) / 2
    smaller = 1 / root**2
    keep = 1 / (1 + drift * smaller)  # otherwise draw 1/(z²x), which has the same (s − z/s)²
    flip = coin >= keep
    draw = jnp.where(flip, 1 / jnp.where(flip, drift * (drift * smaller), 1.0), smaller)
    rest = jnp.where(flip, (coin - keep) / jnp.where(flip, 1 - keep, 1.0), coin / keep)
    return draw, rest


def _attempt(key: Array, envelope: _Envelope) -> tuple[Array, Array]:
    """Propose a draw of J*(1, z) for each element; returns draws and whether each is accepted.

    Two uniforms per element serve four decisions. After each decision between two cases the
    uniform is rescaled, and given that decision it is uniform again.
    """
    threshold = envelope.left_probability
    uniform, coin = jax.random.uniform(key, (2, *threshold.shape), threshold.dtype)
    is_left = uniform < threshold
    uniform = jnp.where(is_left, uniform / threshold, (uniform - threshold) / (1 - threshold))
    uniform = jnp.clip(uniform, 0.0, 1 - jnp.finfo(uniform.dtype).epsneg)
    left, rest = _propose_left(uniform, coin, envelope)
    right = _SELF_DUAL_POINT - jnp.log1p(-uniform) / envelope.rate
    draw = jnp.where(is_left, left, right)
    rest = jnp.where(is_left, rest, coin)
    below_tangent = envelope.gap * (draw - envelope.contact) ** 2 / draw
    kept_by_tangent = jnp.exp(-jnp.where(is_left, below_tangent, 0.0))
    decay = jnp.exp(-jnp.maximum(4 / draw, math.pi**2 * draw))
    accepted = rest < kept_by_tangent * (1 + _theta_correction(decay))
    return draw, accepted & ((draw < _SELF_DUAL_POINT) == is_left)


@jax.jit  # so that calls outside jit do not compile the loop each time
def _sum_of_draws(
    key: Array, concentration: Int[Array, "*shape"], tilt: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Sum b draws from PG(1, c) = J*(1, c/2)/4 for each element.

    Each pass makes one attempt for every element, until each element has its b accepted draws.
    """
    finite = jnp.isfinite(tilt)
    envelope = _envelope(jnp.abs(jnp.where(finite, tilt, 0.0)) / 2)
    # Only finite tilts enter the loop. With NaN no proposal is ever accepted; ω → 0 as c → ∞.
    remaining = jnp.where(finite, concentration, 0)
    total = jnp.where(jnp.isnan(tilt), jnp.nan, jnp.zeros_like(tilt))

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return jnp.any(state[1] > 0)

    def one_pass(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, remaining, total = state
        key, attempt_key = jax.random.split(key)
        draw, accepted = _attempt(attempt_key, envelope)
        accepted = accepted & (remaining > 0)
        total = jnp.where(accepted, total + draw, total)
        return key, remaining - accepted.astype(remaining.dtype), total

    return lax.while_loop(unfinished, one_pass, (key, remaining, total))[2] / 4
