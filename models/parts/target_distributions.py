"""Targets whose latent value is Gaussian, with this value integrated out by quadrature.

======  ==================================================  =====================
symbol  meaning                                             code
======  ==================================================  =====================
y       target                                              ``value``
s       latent value, N(a, k̄)                               ``latent``
a, √k̄   its mean and standard deviation                     ``location``, ``scale``
σ, ν    scale and degrees of freedom of Student-t noise     ``noise_scale``, ``degrees_of_freedom``
ω       precision of a target's own noise                   ``exp(log_precision)``
r       number of failures that end a count                 ``total_count``
======  ==================================================  =====================
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm
from jax.typing import ArrayLike
from jaxtyping import Float
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import is_prng_key

from ..numerics.quadrature import QuadratureRule, check_number_of_nodes

__all__ = ["NormalNegativeBinomial", "NormalStudentT", "count_rule", "log_choices", "student_rule"]

# Nodes of the integral over log ω. Its error is below 1e-9 for ν = 4 and residuals up to 1e5 σ.
_STUDENT_NODES = 192
# Cells of the piecewise constant envelope that log ω is drawn by.
_CELLS = 1024
# −log of the density, as a fraction of its mode, beyond which integrals over log ω end.
_LOG_CUT = 23.0
# Standard deviations of the latent value beyond the mode of the integrand: 1e-9 is neglected.
_REACH = 6.5
_FEWEST_COUNT_NODES = 64
# From here on Stirling's series are more accurate than differences of log Γ.
_LARGE_SHAPE = 30.0


def _even_rule(number: int) -> QuadratureRule:
    """The trapezoid rule on [0, 1], for integrands that vanish at both ends."""
    return QuadratureRule(np.linspace(0.0, 1.0, number), np.full(number, -np.log(number - 1.0)))


# ------------------------------------------------------------------ Student-t


def student_rule() -> QuadratureRule:
    """Nodes on [0, 1], from the lowest to the highest log ω of a row, and log weights.

    Returns
    -------
    QuadratureRule
    """
    return _even_rule(_STUDENT_NODES)


class NormalStudentT(dist.Distribution):
    """Sum of a Gaussian and a Student-t variable, y = a + √k̄ z + σ t_ν.

    The density is the integral over the precision ω ~ Gamma(ν/2, ν/2) of N(y; a, k̄ + σ²/ω), by
    the trapezoid rule in log ω. There the integrand has one width whatever the scales, and ends
    that follow from the row.

    Parameters
    ----------
    location, scale : array
        a and √k̄.
    degrees_of_freedom, noise_scale : number or array
        ν and σ.
    rule : QuadratureRule
        As from `student_rule`.
    """

    support = constraints.real
    pytree_data_fields = ("location", "scale", "degrees_of_freedom", "noise_scale", "rule")

    def __init__(
        self,
        location: Array,
        scale: Array,
        degrees_of_freedom: ArrayLike,
        noise_scale: ArrayLike,
        rule: QuadratureRule,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.location, self.scale = location, scale
        self.degrees_of_freedom, self.noise_scale = degrees_of_freedom, noise_scale
        self.rule = rule
        shape = lax.broadcast_shapes(
            *map(jnp.shape, (location, scale, degrees_of_freedom, noise_scale))
        )
        super().__init__(batch_shape=shape, validate_args=validate_args)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draw; array of shape ``sample_shape + batch_shape``."""
        assert is_prng_key(key) and key is not None
        latent_key, noise_key = jax.random.split(key)
        shape = tuple(sample_shape) + self.batch_shape
        latent = self.location + self.scale * jax.random.normal(latent_key, shape)
        return latent + self.noise_scale * jax.random.t(noise_key, self.degrees_of_freedom, shape)

    @validate_sample
    def log_prob(
        self, value: ArrayLike, intermediates: list[Any] | None = None
    ) -> Float[Array, "..."]:
        """Log density of targets."""
        squared = jnp.broadcast_to((jnp.asarray(value) - self.location) ** 2, self.batch_shape)
        first, last = self._ends(squared)
        nodes = jnp.asarray(self.rule.nodes, squared.dtype)
        log_precision = first[..., None] + (last - first)[..., None] * nodes
        log_weights = jnp.log(last - first)[..., None] + jnp.asarray(self.rule.log_weights)
        values = self._log_joint(log_precision, squared[..., None])
        return logsumexp(values + log_weights.astype(squared.dtype), axis=-1)

    @property
    def mean(self) -> Float[Array, "..."]:
        """a; it is defined for ν > 1."""
        return jnp.broadcast_to(
            jnp.where(jnp.asarray(self.degrees_of_freedom) > 1, self.location, jnp.nan),
            self.batch_shape,
        )

    @property
    def variance(self) -> Float[Array, "..."]:
        """k̄ + σ²ν/(ν − 2), infinite up to ν = 2."""
        degrees = jnp.asarray(self.degrees_of_freedom)
        excess = jnp.where(degrees > 2, degrees - 2.0, 1.0)
        noise = jnp.where(degrees > 2, self.noise_scale**2 * degrees / excess, jnp.inf)
        return jnp.broadcast_to(self.scale**2 + noise, self.batch_shape)

    def draw_latent(self, key: Array, value: Array) -> Float[Array, "..."]:
        """Draw s given y: first ω by rejection, then s given both.

        The log density of log ω is an increasing plus a decreasing function. In each of many narrow
        cells, the first at the upper and the second at the lower end bound it.
        """
        squared = jnp.broadcast_to((value - self.location) ** 2, self.batch_shape)
        precision_key, latent_key = jax.random.split(key)
        precision = jnp.exp(self._draw_log_precision(precision_key, squared))
        noise_variance = self.noise_scale**2 / precision
        gain = self.scale**2 / (self.scale**2 + noise_variance)
        middle = self.location + gain * (value - self.location)
        noise = jax.random.normal(latent_key, squared.shape, squared.dtype)
        return middle + jnp.sqrt(gain * noise_variance) * noise

    def _draw_log_precision(self, key: Array, squared: Array) -> Array:
        first, last = self._ends(squared)
        width = (last - first) / _CELLS
        edges = first[..., None] + width[..., None] * jnp.arange(_CELLS + 1)
        rising, falling = self._rising(edges), self._falling(edges, squared[..., None])
        log_envelope = rising[..., 1:] + falling[..., :-1]

        def attempt(state: tuple) -> tuple:
            key, drawn, accepted = state
            key, cell_key, position_key, uniform_key = jax.random.split(key, 4)
            cell = jax.random.categorical(cell_key, log_envelope)
            position = jax.random.uniform(position_key, squared.shape, squared.dtype)
            proposal = first + width * (cell + position)
            log_density = self._rising(proposal) + self._falling(proposal, squared)
            log_bound = jnp.take_along_axis(log_envelope, cell[..., None], axis=-1)[..., 0]
            uniform = jax.random.uniform(uniform_key, squared.shape, squared.dtype)
            takes = ~accepted & (jnp.log(uniform) < log_density - log_bound)
            return key, jnp.where(takes, proposal, drawn), accepted | takes

        start = (key, first, jnp.zeros(squared.shape, bool))
        return lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, start)[1]

    def _rising(self, log_precision: Array) -> Array:
        """The increasing part of the log density of log ω given y."""
        degrees, _, _ = self._columns(log_precision.ndim)
        return 0.5 * (degrees + 1.0) * log_precision

    def _falling(self, log_precision: Array, squared: Array) -> Array:
        """The decreasing part of the log density of log ω given y."""
        precision = jnp.exp(log_precision)
        degrees, scale, noise_scale = self._columns(log_precision.ndim)
        scaled = scale**2 * precision + noise_scale**2
        return -0.5 * (degrees * precision + jnp.log(scaled) + squared * precision / scaled)

    def _columns(self, rank: int) -> tuple[Array, ...]:
        """ν, √k̄ and σ, with axes for nodes added up to this rank."""
        parts = (self.degrees_of_freedom, self.scale, self.noise_scale)
        wide = (jnp.broadcast_to(jnp.asarray(part), self.batch_shape) for part in parts)
        return tuple(part[(..., *(None,) * (rank - part.ndim))] for part in wide)

    def _ends(self, squared: Array) -> tuple[Array, Array]:
        """Interval of log ω with all but e^−23 of its density given y; no gradient."""
        degrees, noise_scale, squared = (
            lax.stop_gradient(jnp.asarray(part, squared.dtype))
            for part in (self.degrees_of_freedom, self.noise_scale, squared)
        )
        # All modes lie between those for y − s = 0 and for y − s = y − a.
        highest = jnp.log1p(1.0 / degrees) + 0.0 * squared
        lowest = jnp.log((degrees + 1.0) / (degrees + squared / noise_scale**2))
        beyond = 2.0 * _LOG_CUT / degrees + jnp.sqrt(4.0 * _LOG_CUT / degrees)
        return lowest - beyond, highest + jnp.log1p(beyond)

    def _log_joint(self, log_precision: Array, squared: Array) -> Array:
        """log N(y; a, k̄ + σ²/ω) Gamma(ω; ν/2, ν/2) ω."""
        degrees, scale, noise_scale = self._columns(log_precision.ndim)
        variance = scale**2 + noise_scale**2 * jnp.exp(-log_precision)
        gaussian = -0.5 * (jnp.log(2 * jnp.pi * variance) + squared / variance)
        gamma = 0.5 * degrees * (log_precision - jnp.expm1(log_precision))
        return gaussian + gamma + _log_stirling(0.5 * degrees)


def _log_stirling(shape: Array) -> Array:
    """x log x − x − log Γ(x)."""
    is_large = shape > _LARGE_SHAPE
    large, small = jnp.where(is_large, shape, _LARGE_SHAPE), jnp.where(is_large, 1.0, shape)
    series = 0.5 * jnp.log(large / (2 * jnp.pi)) - 1 / (12 * large) + 1 / (360 * large**3)
    return jnp.where(is_large, series, small * jnp.log(small) - small - gammaln(small))


# ------------------------------------------------------------------ counts


def count_rule(largest_scale: float) -> QuadratureRule:
    """Nodes on [0, 1], from end to end of the integrand of a row, and log weights.

    Parameters
    ----------
    largest_scale : float
        The largest √k̄ that the rule will be used with.

    Returns
    -------
    QuadratureRule

    Raises
    ------
    ValueError
        If it would have more than 20,000 nodes.
    """
    # Steps of half a unit of s: poles at ±iπ then leave an error below 1e-8.
    number = max(_FEWEST_COUNT_NODES, int(4 * _REACH * largest_scale) + 2)
    check_number_of_nodes(number, largest_scale)
    return _even_rule(number)


def log_choices(count: Float[Array, "*K"], total_count: int) -> Float[Array, "*K"]:
    """log C(y + r − 1, y), the ways to order y successes and r failures that end with a failure."""
    r = jnp.asarray(float(total_count), count.dtype)
    return gammaln(count + r) - gammaln(count + 1.0) - gammaln(r)


class NormalNegativeBinomial(dist.Distribution):
    """Counts whose log odds are Gaussian: p(y) = ∫ C(y + r − 1, y) σ(s)^y σ(−s)^r N(s; a, k̄) ds.

    By the trapezoid rule in z = (s − a)/√k̄ about the mode of the integrand, which is log-concave:
    with large counts its mass lies far out in the Gaussian.

    Parameters
    ----------
    location, scale : array
        a and √k̄.
    total_count : int
        r.
    rule : QuadratureRule
        As from `count_rule`.
    """

    support = constraints.nonnegative_integer
    pytree_data_fields = ("location", "scale", "rule")
    pytree_aux_fields = ("total_count",)

    def __init__(
        self,
        location: Array,
        scale: Array,
        total_count: int,
        rule: QuadratureRule,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.location, self.scale, self.total_count, self.rule = location, scale, total_count, rule
        shape = lax.broadcast_shapes(jnp.shape(location), jnp.shape(scale))
        super().__init__(batch_shape=shape, validate_args=validate_args)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw; array of shape ``sample_shape + batch_shape``."""
        assert is_prng_key(key) and key is not None
        latent_key, count_key = jax.random.split(key)
        shape = tuple(sample_shape) + self.batch_shape
        latent = self.location + self.scale * jax.random.normal(latent_key, shape)
        return dist.NegativeBinomialLogits(self.total_count, latent).sample(count_key)

    @validate_sample
    def log_prob(
        self, value: ArrayLike, intermediates: list[Any] | None = None
    ) -> Float[Array, "..."]:
        """Log probability of counts."""
        location, scale = (jnp.broadcast_to(x, self.batch_shape) for x in self._parts)
        count = jnp.asarray(value, location.dtype)
        first, last = self._ends(count)
        nodes = jnp.asarray(self.rule.nodes, location.dtype)
        z = first[..., None] + (last - first)[..., None] * nodes
        latent = location[..., None] + scale[..., None] * z
        values = norm.logpdf(z) - self._loss(latent, count[..., None])
        log_weights = jnp.asarray(self.rule.log_weights, location.dtype)
        log_sum = logsumexp(values + log_weights, axis=-1) + jnp.log(last - first)
        return log_sum + log_choices(count, self.total_count)

    @property
    def mean(self) -> Float[Array, "..."]:
        """r E e^s."""
        return self.total_count * jnp.exp(self.location + 0.5 * self.scale**2)

    @property
    def variance(self) -> Float[Array, "..."]:
        """E(m + m²/r) + Var m, with m = r e^s."""
        r, first = self.total_count, jnp.exp(self.location + 0.5 * self.scale**2)
        second = jnp.exp(2.0 * (self.location + self.scale**2))
        return r * (first + second) + r**2 * (second - first**2)

    def draw_latent(self, key: Array, value: Array) -> Float[Array, "..."]:
        """Draw s given y exactly, by rejection.

        The log density is concave: it lies below its mode, and below its tangents one width to
        either side. The envelope is flat in the middle and exponential in both tails.
        """
        location, scale = (jnp.broadcast_to(x, self.batch_shape) for x in self._parts)
        count = jnp.asarray(value, location.dtype)
        mode, width = self._mode_and_width(count)

        def log_density(z: Array) -> Array:
            return -0.5 * z**2 - self._loss(location + scale * z, count)

        highest = log_density(mode)
        ends, rates = [], []
        for side in (-1.0, 1.0):
            touching = mode + side * width
            rate = jnp.abs(self._gradient(touching, count))
            ends.append(touching - side * (highest - log_density(touching)) / rate)
            rates.append(rate)
        areas = jnp.stack([1.0 / rates[0], ends[1] - ends[0], 1.0 / rates[1]])

        def attempt(state: tuple) -> tuple:
            key, drawn, accepted = state
            key, piece_key, position_key, uniform_key = jax.random.split(key, 4)
            piece = jax.random.categorical(piece_key, jnp.log(areas), axis=0)
            position = jax.random.uniform(position_key, mode.shape, mode.dtype)
            excess = -jnp.log1p(-position)
            proposal = jnp.select(
                [piece == 0, piece == 1],
                [ends[0] - excess / rates[0], ends[0] + position * areas[1]],
                ends[1] + excess / rates[1],
            )
            log_bound = highest - jnp.where(piece == 1, 0.0, excess)
            uniform = jax.random.uniform(uniform_key, mode.shape, mode.dtype)
            takes = ~accepted & (jnp.log(uniform) < log_density(proposal) - log_bound)
            return key, jnp.where(takes, proposal, drawn), accepted | takes

        start = (key, mode, jnp.zeros(mode.shape, bool))
        z = lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, start)[1]
        return location + scale * z

    @property
    def _parts(self) -> tuple[Array, Array]:
        return jnp.asarray(self.location), jnp.asarray(self.scale)

    def _loss(self, latent: Array, count: Array) -> Array:
        """−log σ(s)^y σ(−s)^r."""
        return count * jax.nn.softplus(-latent) + self.total_count * jax.nn.softplus(latent)

    def _gradient(self, z: Array, count: Array) -> Array:
        """Derivative of the log integrand by z, decreasing in z."""
        location, scale = self._parts
        chance = jax.nn.sigmoid(location + scale * z)
        return scale * (count * (1.0 - chance) - self.total_count * chance) - z

    def _mode_and_width(self, count: Array) -> tuple[Array, Array]:
        """Mode and width of the integrand in z, by bisection: Newton overshoots where σ is flat."""
        location, scale = self._parts

        def bisect(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            lower, upper = ends
            middle = 0.5 * (lower + upper)
            is_below = self._gradient(middle, count) > 0  # the mode is above
            return jnp.where(is_below, middle, lower), jnp.where(is_below, upper, middle)

        zeros = jnp.zeros(self.batch_shape, location.dtype)
        # The gradient of log σ(s)^y σ(−s)^r lies between −r and y.
        ends = (zeros - self.total_count * scale, zeros + count * scale)
        lower, upper = lax.fori_loop(0, 40, bisect, ends)
        mode = 0.5 * (lower + upper)
        chance = jax.nn.sigmoid(location + scale * mode)
        curvature = 1.0 + scale**2 * (count + self.total_count) * chance * (1.0 - chance)
        return mode, curvature**-0.5

    def _ends(self, count: Array) -> tuple[Array, Array]:
        """Interval with all but 1e-9 of the integrand's mass; no gradient."""
        location, scale = map(lax.stop_gradient, self._parts)
        constant = NormalNegativeBinomial(location, scale, self.total_count, self.rule)
        mode, width = constant._mode_and_width(count)
        # Rates of the exponential tails: the gradient there.
        below = jnp.maximum(count * constant.scale - mode, 1e-6)
        above = jnp.maximum(self.total_count * constant.scale + mode, 1e-6)
        reach = [jnp.minimum(_REACH, 25.0 / rate + 8.0 * width) for rate in (below, above)]
        return mode - reach[0], mode + reach[1]
