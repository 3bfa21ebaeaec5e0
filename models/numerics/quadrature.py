"""One-dimensional integrals against a Gaussian, in logs, for small and for very large variances."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Array, Float
from numpy.polynomial.hermite_e import hermegauss
from scipy.linalg import eigh_tridiagonal

from .tracing import evaluated_now_unless_traced

__all__ = [
    "NO_RULE",
    "LogisticNodes",
    "QuadratureRule",
    "SigmoidTable",
    "check_number_of_nodes",
    "log_expectation",
    "log_expected_sigmoid",
    "logistic_rule",
    "on_grid",
    "sigmoid_table",
    "trapezoid_rule",
]

# Reach of trapezoid rules in standard deviations: the Gaussian mass beyond is 1e-9.
_REACH = 6.0
# −log of the error that their step allows. E σ has an error of the log below 1e-7 by the second.
_LOG_ACCURACY, _LOGISTIC_LOG_ACCURACY = 22.0, 19.0
# Exponentials are evaluated at every node of this stride; products give those between.
_STRIDE = 16
# Largest s, 1.25¹¹, that a trapezoid rule serves alone: it has 202 nodes there, with one division
# each. The other way, which is taken for larger ones, costs about as much.
_LARGEST_ALONE = 1.25**11
# From this s on, where any is larger, E σ is an integral over the logistic variable, whose number
# of nodes does not depend on s: 12 have an error of the log below 1e-8 from here on.
_WIDE = 1.25**7
_LOGISTIC_NODES = 12
# Of a rule that must resolve a pole within a wide Gaussian: up to s of about 140 for the logistic.
_MOST_NODES = 20_000


class LogisticNodes(NamedTuple):
    """Nodes ℓ_j and weights λ_j with Σ_j λ_j g(ℓ_j) ≈ E g(ℓ), of a logistic variable ℓ.

    Attributes
    ----------
    nodes : array (J,)
    log_weights : array (J,)
        log λ_j.
    """

    nodes: Float[Array, " J"] | Float[np.ndarray, " J"]
    log_weights: Float[Array, " J"] | Float[np.ndarray, " J"]


class QuadratureRule(NamedTuple):
    """Nodes z_k and weights w_k with Σ_k w_k g(z_k) ≈ E g(z), z ~ N(0, 1).

    Attributes
    ----------
    nodes : array (K,)
    log_weights : array (K,)
        log w_k. Past nodes of 38 weights are 0 in 64 bit, where a g that grows may still have mass.
    logistic : LogisticNodes or None
        For E σ where s is above 4.8; None where the nodes z_k serve all s.
    step : float or None
        Distance between nodes, of a trapezoid rule.
    """

    nodes: Float[Array, " K"] | Float[np.ndarray, " K"]
    log_weights: Float[Array, " K"] | Float[np.ndarray, " K"]
    logistic: LogisticNodes | None = None
    step: float | Float[Array, ""] | None = None


class SigmoidTable(NamedTuple):
    """A quadrature rule with its exponentials evaluated for fixed standard deviations.

    Attributes
    ----------
    nodes, weights : array (K,)
    decay : array (K, …)
        e^{−s z_k}, for each standard deviation s; for 4.8 where s is larger and has other nodes.
    logistic : LogisticNodes or None
        Those of the rule.
    """

    nodes: Float[Array, " K"]
    weights: Float[Array, " K"]
    decay: Float[Array, "K ..."]
    logistic: LogisticNodes | None = None


def sigmoid_table(standard_deviation: Float[Array, "*batch"], rule: QuadratureRule) -> SigmoidTable:
    """Evaluate the exponentials of `log_expected_sigmoid` once, for fixed standard deviations.

    Parameters
    ----------
    standard_deviation : array
    rule : QuadratureRule

    Returns
    -------
    SigmoidTable
    """
    with evaluated_now_unless_traced(standard_deviation, rule):
        nodes = jnp.asarray(rule.nodes, standard_deviation.dtype)
        weights = jnp.exp(jnp.asarray(rule.log_weights, standard_deviation.dtype))
        narrow = _narrowed(standard_deviation, rule)
        return SigmoidTable(nodes, weights, _decay(narrow, nodes, rule.step), rule.logistic)


def _narrowed(
    standard_deviation: Float[Array, "*batch"], rule: QuadratureRule | SigmoidTable
) -> Float[Array, "*batch"]:
    """Standard deviations, capped where nodes of a logistic variable replace the nodes z_k."""
    return standard_deviation if rule.logistic is None else jnp.minimum(standard_deviation, _WIDE)


def _decay(
    standard_deviation: Float[Array, "*batch"],
    nodes: Float[Array, " K"],
    step: float | Float[Array, ""] | None,
) -> Float[Array, "K ..."]:
    """e^{−s z_k}: of equidistant nodes a product of every 16th and of the first 16."""
    if step is None:
        return jnp.exp(-jnp.multiply.outer(nodes, standard_deviation))
    ahead = jnp.asarray(step, nodes.dtype) * jnp.arange(_STRIDE)
    coarse, fine = (
        jnp.exp(-jnp.multiply.outer(some, standard_deviation)) for some in (nodes[::_STRIDE], ahead)
    )
    products = coarse[:, None] * fine[None]
    return products.reshape(-1, *standard_deviation.shape)[: len(nodes)]


# For integrals that have a closed form.
NO_RULE = QuadratureRule(np.zeros(0), np.zeros(0))


def logistic_rule(largest_standard_deviation: float) -> QuadratureRule:
    """Rule for E σ(f) that serves every standard deviation up to the given one.

    Gauss–Hermite where it is good (s² ≤ 1, error of the log below 1e-8), else the trapezoid rule,
    which alone resolves the poles of the logistic function at ±iπ: with 16 Gauss–Hermite nodes
    the log of E σ(f) is wrong by up to 2e-4 at s² = 5 and by 0.8 at s² = 100.

    Parameters
    ----------
    largest_standard_deviation : float
        The largest s the rule will be used with.

    Returns
    -------
    QuadratureRule
        12 or 16 nodes up to s² = ½ and 1, about (12 + s/2)·max(s, 1.4) above, for the next power s
        of 1.25: few numbers of nodes, so that few programs are compiled. Above s = 11.6 as many as
        for 4.8, and nodes of the logistic variable. The error of the log stays below 1e-7, for all
        means.

    Examples
    --------
    >>> from milzoo.models.numerics.quadrature import logistic_rule
    >>> [len(logistic_rule(s).nodes) for s in (0.5, 1.0, 5.0, 1e6)]
    [12, 16, 88, 68]
    """
    if largest_standard_deviation <= 1.0:
        nodes, weights = hermegauss(12 if largest_standard_deviation**2 <= 0.5 else 16)
        return QuadratureRule(nodes, np.log(weights / weights.sum()))
    is_alone = largest_standard_deviation <= _LARGEST_ALONE
    # σ(f) grows like e^f on its left: from the least mean, −s²/2, the mass moves by s/2.
    rule = trapezoid_rule(
        on_grid(largest_standard_deviation) if is_alone else _WIDE,
        distance_to_pole=math.pi,
        tilt=(0.0, 0.5),
        log_accuracy=_LOGISTIC_LOG_ACCURACY,
    )
    return rule if is_alone else rule._replace(logistic=_logistic_nodes())


def _logistic_nodes() -> LogisticNodes:
    """Gauss' rule for the logistic density, by the recurrence of its orthogonal polynomials.

    Monic: p_{n+1} = ℓ p_n − β_n p_{n−1} with β_n = π²n⁴/(4n² − 1), where β_1 is the variance
    π²/3. The nodes are eigenvalues of the matrix with √β_n beside its diagonal (Golub and Welsch,
    1969).
    """
    degree = np.arange(1, _LOGISTIC_NODES)
    beside = math.pi * degree**2 / np.sqrt(4.0 * degree**2 - 1.0)
    nodes, vectors = eigh_tridiagonal(np.zeros(_LOGISTIC_NODES), beside)
    return LogisticNodes(nodes, 2 * np.log(np.abs(vectors[0])))


def on_grid(standard_deviation: float, ratio: float = 1.25) -> float:
    """The next power of ``ratio``, so that few quadrature rules are compiled."""
    return ratio ** math.ceil(math.log(standard_deviation) / math.log(ratio) - 1e-9)


def trapezoid_rule(
    largest_standard_deviation: float,
    *,
    distance_to_pole: float,
    tilt: tuple[float, float],
    log_accuracy: float = _LOG_ACCURACY,
) -> QuadratureRule:
    """Trapezoid rule for E g(a + sz), g analytic near the real line.

    A factor e^{tf} in g moves the mass of the integrand by ts standard deviations, so the nodes
    reach from −6 − t₋s to 6 + t₊s.

    Parameters
    ----------
    largest_standard_deviation : float
        The largest s the rule will be used with.
    distance_to_pole : float
        d, how far from the real line g(f) is analytic: π for the logistic function.
    tilt : tuple of float
        (t₋, t₊): g lies between e^{−t₋f} and e^{t₊f}, up to constants.
    log_accuracy : float
        L: the step makes the error e^−L.

    Returns
    -------
    QuadratureRule

    Raises
    ------
    ValueError
        If it would have more than 20,000 nodes.

    Notes
    -----
    With step h in z the error is exp(y²/2 − 2πy/h) for any y ≤ d/s. With the path of
    integration at iy the second term is gained, and the first lost, as the Gaussian grows there.
    The step makes this e^−L, 3e-10 if nothing is said; the mass of the Gaussian beyond 6 is 1e-9.
    """
    offset = min(distance_to_pole / largest_standard_deviation, math.sqrt(2 * log_accuracy))  # y
    step = 2 * math.pi * offset / (log_accuracy + offset**2 / 2)
    below, above = (math.ceil((_REACH + side * largest_standard_deviation) / step) for side in tilt)
    check_number_of_nodes(below + above + 1, largest_standard_deviation)
    nodes = step * np.arange(-below, above + 1)
    log_weights = math.log(step / math.sqrt(2 * math.pi)) - 0.5 * nodes**2
    return QuadratureRule(nodes, log_weights, step=step)


def check_number_of_nodes(number: int, largest_standard_deviation: float) -> None:
    """Raise an error for a rule with too many nodes.

    Raises
    ------
    ValueError
        If it has more than 20,000 nodes.
    """
    if number > _MOST_NODES:
        raise ValueError(
            f"the variance of latent function values is up to {largest_standard_deviation**2:.3g}, "
            f"and integrals over them would take {number:,} nodes; expected at most "
            f"{_MOST_NODES:,}: give the kernel a smaller variance, or a prior that keeps it small"
        )


def log_expected_sigmoid(
    mean: Float[Array, "*batch"],
    standard_deviation: Float[Array, "*batch"],
    rule: QuadratureRule | SigmoidTable,
) -> Float[Array, "*batch"]:
    """log E σ(f) for f ~ N(mean, standard_deviation²), accurate in both tails.

    Where a ≥ −s²/2,

    log E σ(f) = M + log Σ_k w_k / (e^M + e^{M−a} e^{−s z_k}),  M = min(a, 0),

    whose only transcendental per node, e^{−s z_k}, does not depend on the mean: with constant s it
    is evaluated once, before anything is compiled. Where a < −s²/2 the mass is at f far below 0.
    There σ(f) = e^f σ(−f), and e^f moves the Gaussian by s²:

    E σ(a + sz) = e^{a + s²/2} E σ(−a − s² + sz),

    whose mean is above −s²/2. Of rules with nodes of a logistic variable ℓ, E σ(f) is
    Σ_j λ_j Φ((a − ℓ_j)/s) where s is above 4.8.

    Parameters
    ----------
    mean : array
        a.
    standard_deviation : array
        s, not above the one the rule was made for.
    rule : QuadratureRule or SigmoidTable
        A table of these standard deviations saves the exponentials.

    Returns
    -------
    array
        Of the shape of ``mean``, never positive.
    """
    table = rule if isinstance(rule, SigmoidTable) else sigmoid_table(standard_deviation, rule)
    variance = standard_deviation**2
    is_low = mean < -0.5 * variance
    moved = jnp.where(is_low, -mean - variance, mean)
    narrow = _narrowed(standard_deviation, table)
    found = _log_sum_of_sigmoids(moved, narrow, table.decay, table.nodes, table.weights)
    if table.logistic is not None:
        # Both sides of the choice are evaluated where they are good: gradients are finite.
        wide = jnp.maximum(standard_deviation, _WIDE)
        by_logistic = _log_expected_sigmoid_if_wide(moved, wide, table.logistic)
        found = jnp.where(standard_deviation > _WIDE, by_logistic, found)
    return jnp.minimum(found + jnp.where(is_low, mean + 0.5 * variance, 0.0), 0.0)


def _log_expected_sigmoid_if_wide(
    mean: Float[Array, "*batch"], standard_deviation: Float[Array, "*batch"], of: LogisticNodes
) -> Float[Array, "*batch"]:
    """log E σ(f) = log E Φ((a − ℓ)/s), by Gauss' rule for ℓ: Φ is smooth on the scale of ℓ."""
    nodes, log_weights = (jnp.asarray(part, mean.dtype) for part in of)
    cumulative = log_ndtr((mean[..., None] - nodes) / standard_deviation[..., None])
    return logsumexp(cumulative + log_weights, axis=-1)


@jax.custom_jvp
def _log_sum_of_sigmoids(
    mean: Float[Array, "*batch"],
    standard_deviation: Float[Array, "*batch"],
    decay: Float[Array, "K ..."],
    nodes: Float[Array, " K"],
    weights: Float[Array, " K"],
) -> Float[Array, "*batch"]:
    log_scale, scaled_sigmoid = _scaled_sigmoids(mean, decay)
    return jnp.minimum(log_scale + jnp.log(jnp.tensordot(weights, scaled_sigmoid, 1)), 0.0)


@partial(_log_sum_of_sigmoids.defjvp, symbolic_zeros=True)
def _log_sum_of_sigmoids_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Derivatives from the same sigmoids: ∂/∂a = E σ(1 − σ)/E σ, ∂/∂s = E zσ(1 − σ)/E σ.

    The tangent of ``decay`` is that of s; it is passed to avoid computing it twice.
    """
    mean, _, decay, nodes, weights = primals
    log_scale, scaled_sigmoid = _scaled_sigmoids(mean, decay)
    total = jnp.tensordot(weights, scaled_sigmoid, 1)
    squares = (jnp.exp(log_scale) * scaled_sigmoid) * scaled_sigmoid  # the square may overflow
    tangent = jnp.zeros_like(mean)
    if not isinstance(tangents[0], SymbolicZero):
        tangent += (1.0 - jnp.tensordot(weights, squares, 1) / total) * tangents[0]
    if not isinstance(tangents[1], SymbolicZero):
        derivative = jnp.tensordot(weights * nodes, scaled_sigmoid - squares, 1)
        tangent += derivative / total * tangents[1]
    return jnp.minimum(log_scale + jnp.log(total), 0.0), tangent


def _scaled_sigmoids(
    mean: Float[Array, "*batch"], decay: Float[Array, "K ..."]
) -> tuple[Float[Array, "*batch"], Float[Array, "K ..."]]:
    """The log scale M and σ(a + s z_k) e^{−M}."""
    log_scale = jnp.minimum(mean, 0.0)  # M
    return log_scale, 1.0 / (jnp.exp(log_scale) + jnp.exp(log_scale - mean) * decay)


def log_expectation(
    log_integrand: Callable[[Float[Array, "..."]], Float[Array, "..."]],
    mean: Float[Array, "*batch"],
    standard_deviation: Float[Array, "*batch"],
    rule: QuadratureRule,
) -> Float[Array, "*batch"]:
    """log E g(f) for f ~ N(mean, standard_deviation²) and any smooth positive g.

    Parameters
    ----------
    log_integrand : callable
        log g, applied elementwise.
    mean, standard_deviation : array
    rule : QuadratureRule

    Returns
    -------
    array
        Of the shape of ``mean``.
    """
    nodes = jnp.asarray(rule.nodes, dtype=mean.dtype)
    log_weights = jnp.asarray(rule.log_weights, dtype=mean.dtype)
    values = log_integrand(mean[..., None] + standard_deviation[..., None] * nodes)
    return logsumexp(values + log_weights, axis=-1)
