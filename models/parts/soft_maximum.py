r"""The soft maximum over a bag: its label is 1 with log odds log Σ e^{f_n}.

With S = Σ_n e^{f_n} over the instances of a bag,

.. code-block:: text

    P(T = 1 | f) = S/(1 + S),    P(T = 0 | f) = 1/(1 + S)

This is a soft-max over the instances and one more choice, none of them, whose value is 0.

**Latent values integrated out.** 1/(1 + S) is the integral of e^{−t(1 + S)} over t > 0, and given t
the instances separate. With f_n ~ N(a_n, s_n²), independent, and t = e^τ

.. code-block:: text

    P(T = 0) = ∫ e^{τ − e^τ} Π_n L_n(τ) dτ,         L_n(τ) = E exp(−e^{τ + f_n})
    P(T = 1) = ∫ e^{τ − e^τ} [1 − Π_n L_n(τ)] dτ

Both are sums of positive terms. L_n is analytic and bounded for |Im τ| < π/2, whatever a_n and s_n
are, so the trapezoid rule in τ needs no finer step for some bags than for others.

**One instance.** L_n is P(ℓ > τ + f_n) with ℓ the log of an exponential variable, of density
e^{ℓ − e^ℓ}. Where s_n is small, Gauss–Hermite is good for f_n. Where it is not, f_n is integrated
first: L_n(τ) = ∫ e^{ℓ − e^ℓ} Φ((ℓ − τ − a_n)/s_n) dℓ. By the trapezoid rule with the step of τ this
is a convolution: Φ is evaluated once for each difference ℓ − τ, and a matrix product does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.nn import softplus
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array, Bool, Float, Int
from numpy.polynomial.hermite_e import hermegauss

from ..numerics.quadrature import on_grid
from .bag_labels import AnyArray
from .tilted_gaussians import draw_before_an_event
from .witnesses import log_some_by_rates, log_sum_over_bags, sum_over_bags

__all__ = [
    "Convolution",
    "SoftMaximumRule",
    "draw_given_soft_maximum",
    "log_odds_of_soft_maximum",
    "soft_maximum_rule",
]

# The step h in τ and ℓ. The log of an exponential variable has the Fourier transform Γ(1 + iω), and
# Γ(2 + iω) with a factor t; at ω = 2π/h these are 2e-10 and 3e-9.
_STEP = 0.4
# −log of t E S at the first node. Below it the integrand is e^τ but for this fraction, and the
# rest of the sum is geometric; relative to P(T = 0) that errs by e^{−18}/2.
_MARGIN = 9.0
# Beyond this ℓ or τ, e^{−e^ℓ} is below 1e-23.
_LAST = 4.0
# Up to this s Gauss–Hermite, from it on the convolution; both err by 2e-8 or less there.
_WIDE = 0.5
_NUM_HERMITE = 12
# Where x = e^{τ + a + 3s²/2} is below e^{−15}, 1 − L is e^{τ + a + s²/2} (1 − x/2) to rounding.
_SERIES = -15.0
# Below, log(−log(1 − D)) is log D to rounding.
_TINY = 1e-15
# Nodes grow with s². At s = 20 there are 1,900 of τ, and for each 3,900 of ℓ.
_LARGEST = 20.0
# A smaller probability counts as this one; the square of its inverse is still a number.
_LEAST = 1e-150

type _Numbers = Float[Array, "..."] | Float[np.ndarray, "..."]


class Convolution(NamedTuple):
    """Trapezoid rule over ℓ for all nodes of τ at once.

    Attributes
    ----------
    lags : array (K,)
        τ − ℓ, from the first node of τ.
    density : array (K, J)
        h e^{ℓ − e^ℓ} at each lag and each node of τ.
    """

    lags: _Numbers
    density: _Numbers


class SoftMaximumRule(NamedTuple):
    """Nodes for the integrals over τ and over latent values.

    Attributes
    ----------
    offsets : array (J,)
        Of the nodes of τ from the first, which depends on the bag.
    wide : Convolution or None
        For latent values with s above ½; None where there are none.
    """

    offsets: _Numbers
    wide: Convolution | None


def soft_maximum_rule(largest_standard_deviation: float) -> SoftMaximumRule:
    """Rule for all standard deviations of latent values up to the given one.

    Parameters
    ----------
    largest_standard_deviation : float
        Rounded up to the next power of 1.25, so that few programs are compiled.

    Returns
    -------
    SoftMaximumRule
        43 nodes of τ up to s = ½, 93 at s = 2.2.

    Raises
    ------
    ValueError
        If it is above 20.

    Notes
    -----
    The first node is 9 below −log(1 + E S). P(T = 0) has its mass where t is about 1/(1 + S), and
    the last node is where S is as small as it may be: the mean of e^f is e^{a + s²/2}, and
    weighted by 1/(1 + S) it is above e^{a − s² − 6s}.
    """
    if not largest_standard_deviation <= _LARGEST:
        raise ValueError(
            f"the variance of latent function values is up to {largest_standard_deviation**2:.3g}; "
            f"expected at most {_LARGEST**2:.0f}, as integrals of the soft maximum over them take "
            "nodes in proportion: give the kernel a smaller variance, or a prior that does"
        )
    largest = on_grid(max(largest_standard_deviation, _WIDE))
    length = _MARGIN + _LAST + 1.5 * largest**2 + 6.0 * largest
    offsets = _STEP * np.arange(math.ceil(length / _STEP) + 1)
    if largest_standard_deviation <= _WIDE:
        return SoftMaximumRule(offsets, None)
    beyond = -_SERIES + 1.5 * largest**2 + 6.0 * largest
    lags = np.arange(-_LAST, length + beyond, _STEP)
    log_variable = offsets - lags[:, None]  # ℓ
    density = _STEP * np.exp(log_variable - np.exp(np.minimum(log_variable, 9.0)))
    # Beyond the last lag Φ is 1 and the density e^ℓ: a geometric series.
    density[-1] /= -math.expm1(-_STEP)
    return SoftMaximumRule(offsets, Convolution(lags, density))


def log_odds_of_soft_maximum(
    location: Float[Array, " N"],
    scale: Float[Array, " N"],
    bag_index: Int[AnyArray, " N"],
    num_bags: int,
    rule: SoftMaximumRule,
) -> Float[Array, " B"]:
    """log P(T = 1) − log P(T = 0) of each bag, with independent latent values integrated out.

    Parameters
    ----------
    location, scale : array (N,)
        a and s of f_n ~ N(a_n, s_n²).
    bag_index : array (N,)
        Non-decreasing.
    num_bags : int
    rule : SoftMaximumRule
        Made for no smaller standard deviation.

    Returns
    -------
    array (B,)
        Errors of both log probabilities are below 1e-7.
    """
    first, log_rate = _nodes_and_rates(location, scale, bag_index, num_bags, rule)
    log_weight = _log_weights(first, rule)
    none = log_weight - sum_over_bags(jnp.exp(log_rate), bag_index, num_bags)
    some = log_weight + log_some_by_rates(log_rate, bag_index, num_bags)
    log_none = logsumexp(none, axis=1)
    # Where S is large the nodes end before T = 1 has its mass, and 1 − P(T = 0) is accurate.
    is_likely = log_none < -math.log(2)
    log_complement = jnp.log1p(-jnp.exp(jnp.where(is_likely, log_none, -1.0)))
    return jnp.where(is_likely, log_complement, logsumexp(some, axis=1)) - log_none


def draw_given_soft_maximum(
    key: Array,
    location: Float[Array, " N"],
    scale: Float[Array, " N"],
    bag_index: Int[AnyArray, " N"],
    is_positive: Bool[Array, " B"],
    rule: SoftMaximumRule,
) -> Float[Array, " N"]:
    """Draw the latent values f_n ~ N(a_n, s_n²) given the labels of their bags.

    1/(1 + S) is the sum over the nodes of h e^{τ − e^τ} exp(−e^τ S), as accurate as the rule. So f
    given T = 0 is a mixture over nodes: a node is drawn, and given it the f_n are independent,
    p(f_n | τ) ∝ N(a_n, s_n²) exp(−e^{τ + f_n}). Given T = 1, S/(1 + S) has a factor e^{f_n} of one
    instance, the one that makes the bag positive: it is drawn with the node, and its f_n has the
    mean a_n + s_n² in the place of a_n.

    Parameters
    ----------
    key : JAX key
    location, scale : array (N,)
        a and s.
    bag_index : array (N,)
        Non-decreasing.
    is_positive : array (B,)
        The labels.
    rule : SoftMaximumRule
        Made for no smaller standard deviation.

    Returns
    -------
    array (N,)
    """
    index, num_bags = jnp.asarray(bag_index), is_positive.shape[0]
    node_key, instance_key, value_key = jax.random.split(key, 3)
    first, log_rate = _nodes_and_rates(location, scale, bag_index, num_bags, rule)
    rate = jnp.exp(log_rate)
    log_none = _log_weights(first, rule) - sum_over_bags(rate, bag_index, num_bags)  # (B, J)
    # log of E[e^{f_n} exp(−e^{τ + f_n})] / E exp(−e^{τ + f_n})
    shifted = location + scale**2
    of_positive = jnp.exp(log_rate_of_none(shifted, scale, first[index], rule))
    log_odds = (location + 0.5 * scale**2)[:, None] + rate - of_positive  # (N, J)
    log_some = log_none + log_sum_over_bags(log_odds, bag_index, num_bags)
    node = jax.random.categorical(node_key, jnp.where(is_positive[:, None], log_some, log_none))
    of_instance = node[index]
    # The largest of log odds with Gumbel noise is a draw in proportion to the odds.
    noisy = jnp.take_along_axis(log_odds, of_instance[:, None], axis=1)[:, 0]
    noisy = noisy + jax.random.gumbel(instance_key, noisy.shape, noisy.dtype)
    largest = jax.ops.segment_max(noisy, index, num_bags, indices_are_sorted=True)
    makes_positive = is_positive[index] & (noisy == largest[index])
    mean = jnp.where(makes_positive, shifted, location)
    log_time = first[index] + jnp.asarray(rule.offsets, first.dtype)[of_instance]
    return draw_before_an_event(value_key, mean, scale, log_time)


def _nodes_and_rates(
    location: Float[Array, " N"],
    scale: Float[Array, " N"],
    bag_index: Int[AnyArray, " N"],
    num_bags: int,
    rule: SoftMaximumRule,
) -> tuple[Float[Array, " B"], Float[Array, "N J"]]:
    """The first node of τ of each bag, and log(−log L_n) at all nodes."""
    log_total = log_sum_over_bags(location + 0.5 * scale**2, bag_index, num_bags)  # log E S
    # The integral does not depend on where its nodes are.
    first = jax.lax.stop_gradient(-softplus(log_total)) - _MARGIN
    of_instance = jnp.take(first, jnp.asarray(bag_index))
    return first, log_rate_of_none(location, scale, of_instance, rule)


def _log_weights(first: Float[Array, " B"], rule: SoftMaximumRule) -> Float[Array, "B J"]:
    """log h e^{τ − e^τ}; the first node also has the weights of all before it."""
    log_time = first[:, None] + jnp.asarray(rule.offsets, first.dtype)  # τ
    log_weight = log_time - jnp.exp(log_time) + math.log(_STEP)
    # Σ_{j<0} h e^{τ_j} is a geometric series.
    before = first - math.log(math.expm1(_STEP) / _STEP)
    return log_weight.at[:, 0].set(jnp.logaddexp(log_weight[:, 0], before))


def log_rate_of_none(
    location: Float[Array, " N"],
    scale: Float[Array, " N"],
    first: Float[Array, " N"],
    rule: SoftMaximumRule,
) -> Float[Array, "N J"]:
    """log(−log L_n(τ)) at the nodes of τ, accurate for L next to 0 and next to 1.

    Parameters
    ----------
    location, scale : array (N,)
        a and s.
    first : array (N,)
        First node of τ.
    rule : SoftMaximumRule

    Returns
    -------
    array (N, J)
    """
    return _by_row(_log_rate_of_none)(location + first, scale, rule)


type _RowsOf = Callable[
    [Float[Array, " N"], Float[Array, " N"], SoftMaximumRule], Float[Array, "N J"]
]


def _by_row(rows_of: _RowsOf) -> _RowsOf:
    """The function, which has row n from the entries n of its two arrays, with its derivatives.

    ∂ row/∂ entry is found once, along all rows together. A Hessian by the chain rule alone would
    repeat the convolution for every direction.
    """

    @jax.custom_jvp
    def rows(*arguments: Any) -> Float[Array, "N J"]:
        return rows_of(*arguments)

    @partial(rows.defjvp, symbolic_zeros=True)
    def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
        value = rows(*primals)
        total = jnp.zeros_like(value)
        for place, tangent in enumerate(tangents[:2]):
            if not isinstance(tangent, SymbolicZero):
                derivative = _by_row(partial(_derivative_by_row, rows_of, place))
                total += derivative(*primals) * tangent[:, None]
        return value, total

    return rows


def _derivative_by_row(
    rows_of: _RowsOf,
    place: int,
    location: Float[Array, " N"],
    scale: Float[Array, " N"],
    rule: SoftMaximumRule,
) -> Float[Array, "N J"]:
    """∂ row/∂ entry of the array at the place."""
    moves = [jnp.zeros_like(location), jnp.zeros_like(scale)]
    moves[place] = jnp.ones_like(moves[place])
    return jax.jvp(lambda a, s: rows_of(a, s, rule), (location, scale), tuple(moves))[1]


def _log_rate_of_none(
    location: Float[Array, " N"], scale: Float[Array, " N"], rule: SoftMaximumRule
) -> Float[Array, "N J"]:
    """As `log_rate_of_none`; ``location`` is a plus the first node of τ."""
    log_typical = location[:, None] + jnp.asarray(rule.offsets, location.dtype)  # τ + a
    if rule.wide is None:
        some, none = _complements_if_narrow(log_typical, scale)
    else:
        # Each is evaluated where it is good, so that gradients of the other are finite.
        is_wide = scale > _WIDE
        narrow = _complements_if_narrow(log_typical, jnp.where(is_wide, _WIDE, scale))
        wide = _complements_if_wide(location, jnp.where(is_wide, scale, 2 * _WIDE), rule.wide)
        some, none = (jnp.where(is_wide[:, None], w, n) for w, n in zip(wide, narrow, strict=True))
    log_ratio = log_typical + 1.5 * scale[:, None] ** 2
    is_small = log_ratio < _SERIES
    by_series = (
        log_ratio - scale[:, None] ** 2 + jnp.log1p(-0.5 * jnp.exp(jnp.minimum(log_ratio, _SERIES)))
    )
    return jnp.where(is_small, by_series, _log_rate(jnp.where(is_small, 0.25, some), none))


def _complements_if_narrow(
    log_typical: Float[Array, "N J"], scale: Float[Array, " N"]
) -> tuple[Float[Array, "N J"], Float[Array, "N J"]]:
    """1 − L and L by Gauss–Hermite, L = E e^{−x}, x = e^{τ + a + sz}."""
    nodes, weights = hermegauss(_NUM_HERMITE)
    typical = jnp.exp(log_typical)
    none = jnp.zeros_like(typical)
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        none += weight * jnp.exp(-typical * jnp.exp(scale * node)[:, None])
    return 1.0 - none, none


def _complements_if_wide(
    location: Float[Array, " N"], scale: Float[Array, " N"], rule: Convolution
) -> tuple[Float[Array, "N J"], Float[Array, "N J"]]:
    """1 − L and L by the convolution; ``location`` is a plus the first node of τ."""
    density = jnp.asarray(rule.density, location.dtype)
    standardised = (location[:, None] + jnp.asarray(rule.lags, location.dtype)) / scale[:, None]
    tail = ndtr(-jnp.abs(standardised))
    is_low = standardised < 0
    below, above = jnp.where(is_low, tail, 1.0 - tail), jnp.where(is_low, 1.0 - tail, tail)
    return below @ density, above @ density


def _log_rate(some: Float[Array, "..."], none: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(−log L) from 1 − L where L is near 1, and from L where it is not."""
    is_small = some < 0.5
    is_tiny = some < _TINY
    by_some = -jnp.log1p(-jnp.where(is_small & ~is_tiny, some, 0.25))
    by_none = -jnp.log(jnp.where(is_small, 0.5, jnp.maximum(none, _LEAST)))
    rate = jnp.where(is_small, by_some, by_none)
    return jnp.log(jnp.where(is_tiny, jnp.maximum(some, _LEAST), rate))
