"""Distributions the models need and NumPyro does not have.

============  ===========================================  ==========================
Symbol        Meaning                                      Code name
============  ===========================================  ==========================
ω             Pólya-Gamma variable                         ``value`` of `PolyaGamma`
b, c          its shape parameter and tilt                 ``concentration``, ``tilt``
T_b           label of bag b, in {0, 1}                    ``bag_label``
y_n           label of instance n, in {0, 1}               ``value`` of `InstanceLabels`
μ_n           log-odds of instance n being positive        ``logits``
p₀            P(no positive instance in the bag)           ``exp(log_none_positive)``
H             how firmly T_b = max y_n is believed         ``sharpness``
logit P(T_b)  log odds of a positive label                 ``logits`` of `LogOddsLabel`
============  ===========================================  ==========================

All of them work in 32 and in 64 bit, under ``jit`` and ``vmap``.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import log_ndtr, ndtr, ndtri
from jax.scipy.stats import norm
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Shaped
from numpyro.distributions import BernoulliLogits, Distribution, constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import is_prng_key, not_jax_tracer

AnyArray = Array | np.ndarray

# Of `draw_above`: from the worst start, lower = 0 and U → 1, the error falls to rounding in these.
_NEWTON_STEPS = 12

# The density has two theta series, one in x and its dual in 1/x. At this point, in the units of
# J*(1, z) = 4 PG(1, 2z), they converge equally fast, each with q < 0.002 on its own side.
_SELF_DUAL_POINT = 2 / math.pi
# From this z on, the inverse Gaussian falls left of that point often enough to be proposed.
_INVERSE_GAUSSIAN_FROM = 2.3


# --------------------------------------------------------------------------------------
# Pólya-Gamma
# --------------------------------------------------------------------------------------
class PolyaGamma(Distribution):
    r"""Pólya-Gamma distribution PG(b, c), the mixing law of the logistic likelihood.

    .. math::
        \omega = \frac{1}{2\pi^2} \sum_{k \ge 1} \frac{g_k}{(k - 1/2)^2 + c^2 / (4\pi^2)},
        \qquad g_k \sim \mathrm{Gamma}(b, 1)

        \mathrm{PG}(\omega \mid b, c) = \cosh(c/2)^b \, e^{-c^2 \omega / 2}
        \, \mathrm{PG}(\omega \mid b, 0)

    so that :math:`\mathrm{E}\, e^{-x^2 \omega / 2} = \cosh(x/2)^{-b}` at c = 0.

    Parameters
    ----------
    concentration : positive integer or array of them
        b. (The papers call it shape; NumPyro's distributions already have a method of that name.)
    tilt : real or array
        c. Only its absolute value matters.

    Notes
    -----
    Draws are exact (rejection, nothing is truncated) and are not differentiable in the tilt.
    A draw with concentration b costs b times a draw with concentration 1.

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
        # Kept static: inside jit the value is a tracer, and `log_prob` has to know.
        self._concentration_is_one = not_jax_tracer(concentration) and bool(
            np.all(np.asarray(concentration) == 1)
        )
        batch_shape = lax.broadcast_shapes(jnp.shape(concentration), jnp.shape(tilt))
        self.concentration, self.tilt = concentration, tilt
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draw exactly from PG(b, c); array of shape ``sample_shape + batch_shape``."""
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
            For any other concentration: the alternating series of PG(b, 0) cancels to nothing
            away from zero, and the dual series that rescues b = 1 has no counterpart.
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
        return _log_cosh(tilt / 2) - tilt**2 * value / 2 + _log_density_without_tilt(value)

    @property
    def mean(self) -> Float[Array, "..."]:
        """E ω = b tanh(c/2) / (2c), which is b/4 at c = 0."""
        half_tilt = jnp.asarray(self.tilt, _float_type(self.tilt)) / 2
        return jnp.broadcast_to(self.concentration * _tanh_ratio(half_tilt) / 4, self.batch_shape)

    @property
    def variance(self) -> Float[Array, "..."]:
        """Var ω = b (sinh c − c) / (4c³ cosh²(c/2)), which is b/24 at c = 0."""
        half_tilt = jnp.asarray(self.tilt, _float_type(self.tilt)) / 2
        return jnp.broadcast_to(
            self.concentration * _tanh_excess_ratio(half_tilt) / 16, self.batch_shape
        )


class TiltedPolyaGamma(PolyaGamma):
    r"""PG(b, c) with its density taken relative to PG(b, 0), which is known for every b.

    .. math::
        \log \frac{\mathrm{PG}(\omega \mid b, c)}{\mathrm{PG}(\omega \mid b, 0)}
        = b \log\cosh(c/2) - c^2 \omega / 2

    What is relative to one measure in a program has to be so in its guide: the ELBO is then the
    same as with densities.
    """

    @validate_sample
    def log_prob(
        self, value: ArrayLike, intermediates: list[Any] | None = None
    ) -> Float[Array, "..."]:
        """Log density relative to PG(b, 0)."""
        tilt = jnp.asarray(self.tilt)
        concentration = jnp.asarray(self.concentration).astype(tilt.dtype)
        return concentration * _log_cosh(tilt / 2) - tilt**2 * jnp.asarray(value) / 2


def polya_gamma_kl(tilt: ArrayLike) -> Float[Array, "..."]:
    """Kullback-Leibler divergence KL(PG(1, c) ‖ PG(1, 0)) = log cosh(c/2) − (c/4) tanh(c/2).

    Parameters
    ----------
    tilt : real or array
        c.

    Returns
    -------
    Array of the shape of ``tilt``, in nats; rounding is absolute (1e-16), not relative, at c → 0.

    Reference
    ---------
    Follows from E ω = tanh(c/2)/(2c) and log PG(ω|1,c) − log PG(ω|1,0) = log cosh(c/2) − c²ω/2.
    """
    half_tilt = jnp.asarray(tilt, _float_type(tilt)) / 2
    return _log_cosh(half_tilt) - half_tilt * jnp.tanh(half_tilt) / 2


def _float_type(*values: ArrayLike) -> jnp.dtype:
    return jnp.result_type(*values, float)


def _log_cosh(x: Array) -> Array:
    return jnp.logaddexp(x, -x) - math.log(2)


def _tanh_ratio(x: Array) -> Array:
    """tanh(x)/x, by its power series near 0 so that every derivative stays right there."""
    near_zero = jnp.abs(x) < 0.01
    away = jnp.where(near_zero, 1.0, x)
    coefficients = jnp.array([-17 / 315, 2 / 15, -1 / 3, 1], x.dtype)
    series = jnp.polyval(coefficients, jnp.where(near_zero, x, 0.0) ** 2)
    return jnp.where(near_zero, series, jnp.tanh(away) / away)


def _tanh_excess_ratio(x: Array) -> Array:
    """(tanh x − x sech² x)/x³, which loses all digits near 0 when computed as written."""
    near_zero = jnp.abs(x) < 0.1
    away = jnp.where(near_zero, 1.0, x)
    coefficients = [13820 / 155925, -496 / 2835, 34 / 105, -8 / 15, 2 / 3]
    series = jnp.polyval(jnp.array(coefficients, x.dtype), jnp.where(near_zero, x, 0.0) ** 2)
    tanh = jnp.tanh(away)
    return jnp.where(near_zero, series, (tanh / away - (1 - tanh**2)) / away**2)


def _theta_correction(decay: Array) -> Array:
    """1 − 3q + 5q³ − 7q⁶ + …, less one; with q < 0.002 three terms are exact in 64 bit."""
    return decay * (-3 + decay**2 * (5 - 7 * decay**3))


@jax.jit
def _log_density_without_tilt(value: Array) -> Array:
    """log PG(ω | 1, 0) by whichever theta series converges at once, in log space."""
    inside = value > 0
    value = jnp.where(inside, value, 1.0)
    left = -1.5 * jnp.log(value) - 1 / (8 * value) - 0.5 * math.log(2 * math.pi)
    right = math.log(2 * math.pi) - math.pi**2 * value / 2
    decay = jnp.exp(-jnp.maximum(1 / value, 4 * math.pi**2 * value))
    leading = jnp.where(4 * value < _SELF_DUAL_POINT, left, right)
    return jnp.where(inside, leading + jnp.log1p(_theta_correction(decay)), -jnp.inf)


class _Envelope(NamedTuple):
    """What the proposal for J*(1, z) needs, computed once per call; all arrays of one shape.

    The leading terms of the two series bound the density of J*(1, z):

    - right of the self-dual point t: an exponential with rate π²/8 + z²/2;
    - left of it, with x = 1/s²: exp(−s²/2 − z²/(2s²)), s > 1/√t. For small z the second part is
      bounded by its tangent in s² at a point of contact s*², which leaves a normal tail with a
      larger scale; for large z it is an inverse Gaussian IG(1/z, 1) on the whole half line.

    Chosen so that at least 84 % of all proposals are accepted, whatever z.
    """

    left_probability: Array
    tail_probability: Array  # of the half-normal behind the left proposal
    scale: Array  # of that normal
    drift: Array  # z where the inverse Gaussian is proposed, 0 where the normal tail is
    gap: Array  # z²/2 where the tangent is, 0 elsewhere
    contact: Array  # x* = 1/s*², where the tangent touches
    rate: Array  # of the exponential


def _envelope(z: Array) -> _Envelope:
    use_tangent = z < _INVERSE_GAUSSIAN_FROM
    small_z = jnp.where(use_tangent, z, 0.0)
    contact = 1 / (3.17 + 0.14 * small_z**2)  # near the smallest left mass for every z
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
    """Normal tail or inverse Gaussian (Michael, Schucany and Haas); returns (x, unused coin)."""
    largest = 1 - jnp.finfo(uniform.dtype).epsneg
    upper_quantile = jnp.minimum(1 - 2 * envelope.tail_probability * (1 - uniform), largest)
    normal = envelope.scale * math.sqrt(2) * lax.erf_inv(upper_quantile)
    drift = envelope.drift
    # With drift z, s − z/s is standard normal: s is the positive root. With none, s is the normal.
    root = (normal + jnp.sqrt(normal**2 + 4 * drift)) / 2
    smaller = 1 / root**2
    keep = 1 / (1 + drift * smaller)  # else the other root of the same square, 1/(z²x)
    flip = coin >= keep
    draw = jnp.where(flip, 1 / jnp.where(flip, drift * (drift * smaller), 1.0), smaller)
    rest = jnp.where(flip, (coin - keep) / jnp.where(flip, 1 - keep, 1.0), coin / keep)
    return draw, rest


def _attempt(key: Array, envelope: _Envelope) -> tuple[Array, Array]:
    """One proposal per element for J*(1, z), and whether it is accepted.

    Two uniforms per element serve four decisions: what is left of a uniform once it has
    decided between two cases is uniform again.
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


@jax.jit  # else a call outside jit compiles the loop anew each time
def _sum_of_draws(
    key: Array, concentration: Int[Array, "*shape"], tilt: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Sum of b draws from PG(1, c) = J*(1, c/2)/4, every element at once.

    One attempt per element and pass, until each element has collected its b accepted draws.
    """
    finite = jnp.isfinite(tilt)
    envelope = _envelope(jnp.abs(jnp.where(finite, tilt, 0.0)) / 2)
    # A tilt of NaN would never be accepted, and ω → 0 as c → ∞: neither enters the loop.
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


# --------------------------------------------------------------------------------------
# Labels by their log odds
# --------------------------------------------------------------------------------------
class LogOddsLabel(BernoulliLogits):
    """Label in {0, 1} with log P(T=1)/P(T=0) given, its log probability smooth at 0 as well.

    NumPyro 0.22's own has the slopes 0 and 1 at log odds 0 where they are ±½, so that whatever
    starts there, such as a search for the mode from u = 0, never leaves.

    Parameters
    ----------
    logits : array
        log P(T=1) − log P(T=0). Its shape is the batch shape.
    """

    @validate_sample
    def log_prob(
        self, value: ArrayLike, intermediates: list[Any] | None = None
    ) -> Float[Array, "..."]:
        """Log probability of labels in {0, 1}."""
        return jax.nn.log_sigmoid(jnp.where(jnp.asarray(value) == 1, 1, -1) * self.logits)


# --------------------------------------------------------------------------------------
# Noisy maximum
# --------------------------------------------------------------------------------------
class NoisyMaximum(Distribution):
    r"""Bag label as a noisy maximum of its instance labels, with these summed out.

    .. math::
        P(T_b \mid y_b) = \frac{H^{[T_b = \max_n y_n]}}{H + 1}, \qquad
        P(T_b = 1) = \frac{H - (H - 1) p_0}{H + 1}, \quad
        P(T_b = 0) = \frac{1 + (H - 1) p_0}{H + 1}

    where :math:`p_0 = \prod_{n \in b} P(y_n = 0)`. Accurate for p₀ next to 0 and next to 1.

    Parameters
    ----------
    log_none_positive : array, ≤ 0
        log p₀ for each bag; with evidence f it is −Σ_n softplus(f_n). Its shape is the batch shape.
    sharpness : real ≥ 1
        H. At 1 the label is a fair coin, whatever the instances.

    Reference
    ---------
    Haußmann, Hamprecht and Kandemir (2017), Variational Bayesian multiple instance learning with
    Gaussian processes, CVPR.
    """

    arg_constraints = {
        "log_none_positive": constraints.less_than_eq(0.0),
        "sharpness": constraints.greater_than_eq(1.0),
    }
    _support = constraints.boolean
    reparametrized_params: list[str] = []
    pytree_data_fields = ("log_none_positive", "sharpness")
    has_enumerate_support = True

    def __init__(
        self,
        log_none_positive: ArrayLike,
        sharpness: ArrayLike,
        *,
        validate_args: bool | None = None,
    ) -> None:
        batch_shape = lax.broadcast_shapes(jnp.shape(log_none_positive), jnp.shape(sharpness))
        self.log_none_positive, self.sharpness = log_none_positive, sharpness
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    @property
    def logits(self) -> Float[Array, "..."]:
        """log P(T = 1) − log P(T = 0); through it either log probability keeps its digits."""
        log_none_positive = jnp.asarray(self.log_none_positive)
        positive = _log_label_weight(1, log_none_positive, self.sharpness)
        return positive - _log_label_weight(0, log_none_positive, self.sharpness)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        """Draw labels in {0, 1}; array of shape ``sample_shape + batch_shape``."""
        assert is_prng_key(key) and key is not None
        shape = tuple(sample_shape) + self.batch_shape
        return jax.random.bernoulli(key, self.mean, shape).astype(int)

    @validate_sample
    def log_prob(
        self, value: ArrayLike, intermediates: list[Any] | None = None
    ) -> Float[Array, "..."]:
        """Log probability of labels in {0, 1}."""
        return jax.nn.log_sigmoid(jnp.where(jnp.asarray(value) == 1, 1, -1) * self.logits)

    @property
    def mean(self) -> Float[Array, "..."]:
        """P(T = 1)."""
        return jax.nn.sigmoid(self.logits)

    @property
    def variance(self) -> Float[Array, "..."]:
        """P(T = 1) P(T = 0)."""
        return jax.nn.sigmoid(self.logits) * jax.nn.sigmoid(-self.logits)

    def enumerate_support(self, expand: bool = True) -> Int[Array, "..."]:
        """Both labels along a new leading axis."""
        values = jnp.arange(2).reshape((-1,) + (1,) * len(self.batch_shape))
        return jnp.broadcast_to(values, (2, *self.batch_shape)) if expand else values


def _log_label_weight(label: ArrayLike, log_none_positive: Array, sharpness: ArrayLike) -> Array:
    """log of H − (H−1)p₀ for label 1 and of 1 + (H−1)p₀ for label 0."""
    excess = jnp.asarray(sharpness) - 1
    positive = jnp.log1p(excess * -jnp.expm1(log_none_positive))  # 1 + (H−1)(1−p₀)
    negative = jnp.log1p(excess * jnp.exp(log_none_positive))
    return jnp.where(jnp.asarray(label) == 1, positive, negative)


# --------------------------------------------------------------------------------------
# Instance labels
# --------------------------------------------------------------------------------------
class InstanceLabels(Distribution):
    r"""Joint law of all instance labels given the bag labels, under a noisy maximum.

    .. math::
        p(y_b) \propto \prod_{n \in b} e^{y_n \mu_n} \; H^{[T_b = \max_{n \in b} y_n]},
        \qquad \log Z_b = \log w_b + \sum_{n \in b} \log(1 + e^{\mu_n})

    with :math:`w_b = H - (H-1) p_0` for T_b = 1 and :math:`1 + (H-1) p_0` for T_b = 0,
    :math:`p_0 = \prod_{n \in b} (1 - \sigma(\mu_n))`. Bags are independent; the labels within
    one are not. The event is the vector of all N labels.

    Parameters
    ----------
    logits : (..., N) array
        μ, the log-odds of each instance before the bag label is seen. Leading axes are batch axes.
    bag_index : (N,) integer array
        The bag of each instance, non-decreasing, in 0 … ``num_bags`` − 1.
    bag_label : (..., B) integer array
        T, in {0, 1}.
    sharpness : real ≥ 1
        H; an array must have the shape of the batch.
    num_bags : int
        B (static under ``jit``).

    Raises
    ------
    ValueError
        If the shapes contradict each other or ``bag_index`` is out of order or out of range.

    Reference
    ---------
    As `NoisyMaximum`. The paper approximates this law by independent labels; summing over a bag's
    labels in the two groups max y = 0 and max y = 1 gives it exactly.
    """

    arg_constraints = {
        "logits": constraints.real_vector,
        "bag_index": constraints.independent(constraints.nonnegative_integer, 1),
        "bag_label": constraints.independent(constraints.boolean, 1),
        "sharpness": constraints.greater_than_eq(1.0),
    }
    _support = constraints.independent(constraints.boolean, 1)
    reparametrized_params: list[str] = []
    pytree_data_fields = ("logits", "bag_index", "bag_label", "sharpness")
    pytree_aux_fields = ("num_bags",)

    def __init__(
        self,
        logits: Float[AnyArray, "..."],
        bag_index: Int[AnyArray, " N"],
        bag_label: Int[AnyArray, "..."],
        sharpness: ArrayLike,
        num_bags: int,
        *,
        validate_args: bool | None = None,
    ) -> None:
        _check_bags(logits, bag_index, bag_label, num_bags)
        self.logits, self.bag_index, self.bag_label = logits, bag_index, bag_label
        self.sharpness = sharpness
        self.num_bags = num_bags
        batch_shape = lax.broadcast_shapes(
            jnp.shape(logits)[:-1], jnp.shape(bag_label)[:-1], jnp.shape(sharpness)
        )
        super().__init__(batch_shape, jnp.shape(bag_index), validate_args=validate_args)

    def _sum_over_bags(self, values: Float[Array, "... N"]) -> Float[Array, "... B"]:
        return self._over_bags(jax.ops.segment_sum, values)

    def _over_bags(
        self, reduction: Callable[..., Array], values: Float[Array, "... N"]
    ) -> Float[Array, "... B"]:
        index = jnp.asarray(self.bag_index)
        by_bag = reduction(
            jnp.moveaxis(values, -1, 0), index, self.num_bags, indices_are_sorted=True
        )
        return jnp.moveaxis(by_bag, 0, -1)

    def _to_instances(self, values: Shaped[Array, "... B"]) -> Shaped[Array, "... N"]:
        # As a JAX array: a NumPy index keeps its 64 bits, which 32-bit programs stumble over.
        return jnp.take(values, jnp.asarray(self.bag_index), axis=-1)

    @property
    def _bag_sharpness(self) -> Array:
        return jnp.asarray(self.sharpness)[..., None]

    @property
    def log_none_positive(self) -> Float[Array, "... B"]:
        """log p₀ = −Σ softplus(μ_n), per bag: no label positive, before T is seen."""
        return -self._sum_over_bags(jax.nn.softplus(jnp.asarray(self.logits)))

    @property
    def _log_weight(self) -> Float[Array, "... B"]:
        return _log_label_weight(self.bag_label, self.log_none_positive, self._bag_sharpness)

    def log_normaliser(self) -> Float[Array, "... B"]:
        """log Z_b for each bag, shape (..., B)."""
        return self._log_weight - self.log_none_positive

    def positive_probability(self) -> Float[Array, "... B"]:
        """P(max y_b = 1 | T_b) for each bag, shape (..., B)."""
        some_positive = -jnp.expm1(self.log_none_positive)
        factor = jnp.where(jnp.asarray(self.bag_label) == 1, self._bag_sharpness, 1.0)
        return jnp.clip(factor * some_positive * jnp.exp(-self._log_weight), 0.0, 1.0)

    @property
    def mean(self) -> Float[Array, "... N"]:
        """P(y_n = 1 | T): Hσ(μ_n)/[H − (H−1)p₀] for T = 1, σ(μ_n)/[1 + (H−1)p₀] for T = 0."""
        factor = jnp.where(jnp.asarray(self.bag_label) == 1, self._bag_sharpness, 1.0)
        boost = factor * jnp.exp(-self._log_weight)
        mean = jax.nn.sigmoid(jnp.asarray(self.logits)) * self._to_instances(boost)
        return jnp.clip(mean, 0.0, 1.0)

    @property
    def variance(self) -> Float[Array, "... N"]:
        """P(y_n = 1 | T) P(y_n = 0 | T)."""
        mean = self.mean
        return mean * (1 - mean)

    @validate_sample
    def log_prob(
        self, value: ArrayLike, intermediates: list[Any] | None = None
    ) -> Float[Array, "..."]:
        """Joint log probability of the N labels, shape of the batch."""
        logits = jnp.asarray(self.logits)
        labels = jnp.asarray(value).astype(logits.dtype)
        # Σ yμ − Σ softplus(μ) instance by instance: at |μ| = 1000 the two sums cancel.
        unconstrained = jnp.sum(labels * logits - jax.nn.softplus(logits), axis=-1)
        matches = self._sum_over_bags(labels) > 0
        matches = matches == (jnp.asarray(self.bag_label) == 1)
        by_bag = jnp.where(matches, jnp.log(self._bag_sharpness), 0.0) - self._log_weight
        return unconstrained + jnp.sum(by_bag, axis=-1)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Int[Array, "... N"]:
        """Draw all labels exactly; array of shape ``sample_shape + batch_shape + (N,)``.

        Since 1 − σ(μ_n) = exp(−λ_n) with λ_n = softplus(μ_n), label n is positive just when an
        exponential clock of rate λ_n rings before time 1. In a bag with a positive label the first
        ring is an exponential of rate Σλ truncated to [0, 1]; who rings first, and how much later
        the others do, does not depend on it. So the race is run once and shifted to that start.
        """
        assert is_prng_key(key) and key is not None
        positive_key, start_key, race_key = jax.random.split(key, 3)
        shape = tuple(sample_shape) + self.batch_shape
        logits = jnp.asarray(self.logits)
        some_positive = jax.random.bernoulli(
            positive_key, self.positive_probability(), (*shape, self.num_bags)
        )
        # The floor keeps rings finite; it lies far below what a uniform can resolve.
        rate = jnp.maximum(jax.nn.softplus(logits), math.sqrt(jnp.finfo(logits.dtype).tiny))
        rings = jax.random.exponential(race_key, (*shape, *self.event_shape), logits.dtype) / rate
        start = self._first_ring(start_key, self._sum_over_bags(rate), shape)
        delay = rings - self._to_instances(self._over_bags(jax.ops.segment_min, rings))
        in_time = self._to_instances(start) + delay <= 1
        return (in_time & self._to_instances(some_positive)).astype(int)

    def _first_ring(self, key: Array, rate: Array, shape: tuple[int, ...]) -> Array:
        """Exponential of this rate, truncated to [0, 1]; shape (..., B)."""
        rate = jnp.where(rate > 0, rate, 1.0)  # a bag without instances rings never
        uniform = jax.random.uniform(key, (*shape, self.num_bags), rate.dtype)
        return jnp.minimum(-jnp.log1p(uniform * jnp.expm1(-rate)) / rate, 1.0)


def _check_bags(logits: AnyArray, bag_index: AnyArray, bag_label: AnyArray, num_bags: int) -> None:
    if logits.shape[-1:] != bag_index.shape:
        raise ValueError(
            f"InstanceLabels: logits of shape {logits.shape} and bag_index of shape "
            f"{bag_index.shape} do not describe the same instances; give one bag for each entry "
            "of the last axis of logits."
        )
    if bag_label.shape[-1:] != (num_bags,):
        raise ValueError(
            f"InstanceLabels: bag_label of shape {bag_label.shape} does not hold one label for "
            f"each of num_bags = {num_bags} bags; its last axis must have that length."
        )
    if not not_jax_tracer(bag_index) or bag_index.size == 0:
        return
    index = np.asarray(bag_index)
    if index[0] < 0 or index[-1] >= num_bags or np.any(np.diff(index) < 0):
        raise ValueError(
            f"InstanceLabels: bag_index runs from {index.min()} to {index.max()}"
            f"{'' if np.all(np.diff(index) >= 0) else ' and is not sorted'}, but must be "
            f"non-decreasing in 0 … {num_bags - 1}; sort the instances by bag first."
        )


# --------------------------------------------------------------------------------------
# A Gaussian times a logistic function
# --------------------------------------------------------------------------------------
def draw_tilted_gaussian(
    key: Array, mean: Float[Array, " N"], scale: Float[Array, " N"]
) -> Float[Array, " N"]:
    """Exact draws from p(f) ∝ N(f; a, s²) σ(f).

    log σ lies below its tangent at x₀: log σ(f) ≤ log σ(x₀) + σ(−x₀)(f − x₀). The tangent turns
    N(a, s²) into N(a + s²σ(−x₀), s²); x₀ is chosen as the mean of that proposal.

    Parameters
    ----------
    key : JAX key
    mean, scale : array
        a and s.

    Returns
    -------
    array
    """

    def newton(_: Array, x: Float[Array, " N"]) -> Float[Array, " N"]:
        slope = jax.nn.sigmoid(-x)
        return x - (x - mean - scale**2 * slope) / (1 + scale**2 * slope * (1 - slope))

    tangent_point = jax.lax.fori_loop(0, 20, newton, jnp.maximum(mean, 0.0))
    slope = jax.nn.sigmoid(-tangent_point)
    proposal_mean = mean + scale**2 * slope

    def attempt(state: tuple) -> tuple:
        key, value, accepted = state
        key, normal_key, uniform_key = jax.random.split(key, 3)
        proposal = proposal_mean + scale * jax.random.normal(normal_key, mean.shape, mean.dtype)
        tangent = slope * (proposal - tangent_point) - jax.nn.softplus(-tangent_point)
        log_ratio = -jax.nn.softplus(-proposal) - tangent
        uniform = jax.random.uniform(uniform_key, mean.shape, mean.dtype)
        takes = ~accepted & (jnp.log(uniform) < log_ratio)
        return key, jnp.where(takes, proposal, value), accepted | takes

    start = (key, proposal_mean, jnp.zeros(mean.shape, bool))
    return jax.lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, start)[1]


def draw_above(key: Array, lower: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Draws of a standard normal above ``lower``, exact however far out that is.

    The inverse of the upper tail Q(x) = Φ(−x) at U·Q(lower). Where ``lower`` is positive it is
    found in logs by Newton's method from √(lower² − 2 log U), which is never below it: log Q is
    concave, so that the steps fall to it without ever passing.

    Parameters
    ----------
    key : JAX key
    lower : array

    Returns
    -------
    array
        Of the shape of ``lower``.
    """
    tiny = float(jnp.finfo(lower.dtype).tiny)
    uniform = jax.random.uniform(key, lower.shape, lower.dtype, minval=tiny)
    near = -ndtri(uniform * ndtr(-jnp.minimum(lower, 0.0)))
    far = jnp.maximum(lower, 0.0)
    log_tail = jnp.log(uniform) + log_ndtr(-far)

    def newton(_: Array, x: Array) -> Array:
        log_survival = log_ndtr(-x)
        hazard = jnp.exp(norm.logpdf(x) - log_survival)
        return x + (log_survival - log_tail) / hazard

    start = jnp.sqrt(far**2 - 2 * jnp.log(uniform))
    beyond = jax.lax.fori_loop(0, _NEWTON_STEPS, newton, start)
    return jnp.where(lower > 0, beyond, near)
