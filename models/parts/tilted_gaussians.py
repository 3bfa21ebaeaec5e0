"""Exact draws of a Gaussian times a likelihood, and of a truncated Gaussian."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import log_ndtr, ndtr, ndtri
from jax.scipy.stats import norm
from jaxtyping import Float

__all__ = [
    "draw_above",
    "draw_before_an_event",
    "draw_tilted_gaussian",
    "inverse_mills_ratio",
]

# Of `draw_above`: from the worst start, lower = 0 and U → 1, the error falls to rounding in these.
_NEWTON_STEPS = 12


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
        gradient = jax.nn.sigmoid(-x)
        return x - (x - mean - scale**2 * gradient) / (1 + scale**2 * gradient * (1 - gradient))

    tangent_point = jax.lax.fori_loop(0, 20, newton, jnp.maximum(mean, 0.0))
    gradient = jax.nn.sigmoid(-tangent_point)
    proposal_mean = mean + scale**2 * gradient

    def attempt(state: tuple) -> tuple:
        key, value, accepted = state
        key, normal_key, uniform_key = jax.random.split(key, 3)
        proposal = proposal_mean + scale * jax.random.normal(normal_key, mean.shape, mean.dtype)
        tangent = gradient * (proposal - tangent_point) - jax.nn.softplus(-tangent_point)
        log_ratio = -jax.nn.softplus(-proposal) - tangent
        uniform = jax.random.uniform(uniform_key, mean.shape, mean.dtype)
        takes = ~accepted & (jnp.log(uniform) < log_ratio)
        return key, jnp.where(takes, proposal, value), accepted | takes

    start = (key, proposal_mean, jnp.zeros(mean.shape, bool))
    return jax.lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, start)[1]


def draw_before_an_event(
    key: Array,
    mean: Float[Array, " N"],
    scale: Float[Array, " N"],
    log_time: Float[Array, " N"],
) -> Float[Array, " N"]:
    """Exact draws from p(f) ∝ N(f; a, s²) exp(−t e^f): no event at rate e^f before time t.

    −t e^f lies below its tangent at x₀, which turns N(a, s²) into N(a − s² t e^{x₀}, s²); x₀ is
    chosen as the mean of that proposal, x₀ = a − W(s² t e^a) with Lambert's W.

    Parameters
    ----------
    key : JAX key
    mean, scale : array
        a and s.
    log_time : array
        log t.

    Returns
    -------
    array
    """
    log_argument = 2 * jnp.log(scale) + log_time + mean  # of W
    first = jax.nn.softplus(log_argument)
    start = first * (1 - jnp.log1p(first) / (2 + first))  # W, with an error of a few hundredths

    def newton(_: Array, w: Float[Array, " N"]) -> Float[Array, " N"]:
        # log w + w = log argument, in x = log w.
        return w * jnp.exp((log_argument - w - jnp.log(w)) / (1 + w))

    lambert = jax.lax.fori_loop(0, 8, newton, jnp.maximum(start, jnp.finfo(mean.dtype).tiny))
    tangent_point = mean - lambert
    rate = lambert / scale**2  # t e^{x₀}

    def attempt(state: tuple) -> tuple:
        key, value, accepted = state
        key, normal_key, uniform_key = jax.random.split(key, 3)
        distance = scale * jax.random.normal(normal_key, mean.shape, mean.dtype)
        log_ratio = -rate * (jnp.expm1(distance) - distance)
        uniform = jax.random.uniform(uniform_key, mean.shape, mean.dtype)
        takes = ~accepted & (jnp.log(uniform) < log_ratio)
        return key, jnp.where(takes, tangent_point + distance, value), accepted | takes

    first_state = (key, tangent_point, jnp.zeros(mean.shape, bool))
    return jax.lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, first_state)[1]


def inverse_mills_ratio(ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """φ(x)/Φ(x), the mean of −z for a standard normal z below x; right far in the tail.

    Parameters
    ----------
    ratio : array
        x.

    Returns
    -------
    array
    """
    return jnp.exp(norm.logpdf(ratio) - log_ndtr(ratio))


def draw_above(key: Array, lower: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Draws of a standard normal truncated to values above ``lower``, exact in the far tail.

    The inverse of the upper tail Q(x) = Φ(−x) at U·Q(lower). Where ``lower`` is positive it is
    found in logs by Newton's method from √(lower² − 2 log U), which is never below it. As log Q
    is concave, the steps decrease to the solution and never pass it.

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
