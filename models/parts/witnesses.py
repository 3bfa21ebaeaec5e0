"""Instance labels with at least one witness, a positive instance, in each positive bag.

A bag's labels are independent but for that one condition. Their distribution under it is exact:
with log-odds a_n and ρ_n = σ(a_n),

.. code-block:: text

    P(some r_n = 1)            = 1 − Π(1 − ρ_n) = 1 − e^{−S},    S = Σ softplus(a_n)
    P(r_n = 1 | some r_j = 1)  = ρ_n / (1 − e^{−S})

Where all a_n are far below 0, as in hundreds of dimensions, S underflows and log S is used.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid, softplus
from jaxtyping import Array, Bool, Float, Int, Num
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import is_prng_key

from .bag_labels import AnyArray

__all__ = [
    "LabelRule",
    "WitnessLabels",
    "log_odds_of_some",
    "log_some_by_rates",
    "log_some_positive",
    "log_sum_over_bags",
    "sum_over_bags",
]

# Below, log(1 − e^{−S}) is log S to rounding.
_LOG_TINY = -37.0


def sum_over_bags(
    values: Num[Array, "..."], bag_index: Int[AnyArray, " N"], num_bags: int
) -> Num[Array, "..."]:
    """Sums of the first axis over the instances of each bag."""
    return jax.ops.segment_sum(
        values, jnp.asarray(bag_index), num_segments=num_bags, indices_are_sorted=True
    )


def log_some_positive(
    logits: Float[Array, " N"], bag_index: Int[AnyArray, " N"], num_bags: int
) -> Float[Array, " B"]:
    """log P(some r_n = 1) of each bag, before any condition; −∞ for a bag without instances.

    Parameters
    ----------
    logits : array (N,)
        a; ±∞ where a label is known.
    bag_index : array (N,)
        Non-decreasing.
    num_bags : int

    Returns
    -------
    array (B,)
    """
    return log_some_by_rates(_log_softplus(logits), bag_index, num_bags)


def log_some_by_rates(
    log_rate: Float[Array, "N ..."], bag_index: Int[AnyArray, " N"], num_bags: int
) -> Float[Array, "B ..."]:
    """log(1 − e^{−S}) of each bag, S = Σ_n s_n; −∞ for a bag without instances.

    Parameters
    ----------
    log_rate : array (N, ...)
        log s_n, where e^{−s_n} is the probability of none; −∞ or more.
    bag_index : array (N,)
        Non-decreasing.
    num_bags : int

    Returns
    -------
    array (B, ...)
    """
    has_any, log_total = _log_sum_or_none(log_rate, bag_index, num_bags)  # log S
    is_tiny = log_total < _LOG_TINY
    total = jnp.exp(jnp.where(is_tiny, 0.0, log_total))
    # jax.nn.log1mexp has no gradient where e^{−S} rounds to 1.
    is_large = total > math.log(2)
    exact = jnp.where(
        is_large,
        jnp.log1p(-jnp.exp(-jnp.where(is_large, total, 1.0))),
        jnp.log(-jnp.expm1(-jnp.where(is_large, 0.5, total))),
    )
    return jnp.where(has_any, jnp.where(is_tiny, log_total, exact), -jnp.inf)


def log_sum_over_bags(
    values: Float[Array, "N ..."], bag_index: Int[AnyArray, " N"], num_bags: int
) -> Float[Array, "B ..."]:
    """log Σ_n e^{a_n} over the instances of each bag; −∞ for a bag without instances.

    Parameters
    ----------
    values : array (N, ...)
        a.
    bag_index : array (N,)
        Non-decreasing.
    num_bags : int

    Returns
    -------
    array (B, ...)
    """
    has_any, log_total = _log_sum_or_none(values, bag_index, num_bags)
    return jnp.where(has_any, log_total, -jnp.inf)


def _log_sum_or_none(
    values: Float[Array, "N ..."], bag_index: Int[AnyArray, " N"], num_bags: int
) -> tuple[Bool[Array, "B ..."], Float[Array, "B ..."]]:
    """Whether a bag has a term, and log Σ e^{a_n}; a finite number where it has none."""
    index = jnp.asarray(bag_index)
    largest = jax.ops.segment_max(values, index, num_bags, indices_are_sorted=True)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0.0))
    relative = jnp.exp(values - jnp.take(largest, index, axis=0))
    by_bag = sum_over_bags(relative, bag_index, num_bags)
    has_any = by_bag > 0
    return has_any, largest + jnp.log(jnp.where(has_any, by_bag, 1.0))


def log_odds_of_some(
    logits: Float[Array, " N"], bag_index: Int[AnyArray, " N"], num_bags: int
) -> Float[Array, " B"]:
    """log P(some r_n = 1) − log P(no r_n = 1) of each bag: a noisy-or.

    Parameters
    ----------
    logits : array (N,)
        a; ±∞ where a label is known.
    bag_index : array (N,)
        Non-decreasing.
    num_bags : int

    Returns
    -------
    array (B,)
    """
    log_none = -sum_over_bags(softplus(logits), bag_index, num_bags)
    return log_some_positive(logits, bag_index, num_bags) - log_none


def _log_softplus(logits: Float[Array, " N"]) -> Float[Array, " N"]:
    """log log(1 + e^a): a itself where e^a is negligible beside 1."""
    is_far = logits < _LOG_TINY
    return jnp.where(is_far, logits, jnp.log(softplus(jnp.where(is_far, 0.0, logits))))


class WitnessLabels(Distribution):
    r"""Joint distribution of all instance labels, where some bags must have a positive one.

    .. math::
        p(r) \propto \prod_n e^{r_n a_n} \prod_{b\ \text{must}} [\max_{n \in b} r_n = 1]

    Parameters
    ----------
    logits : (N,) array
        a, log-odds before the condition; ±∞ where a label is known, 0 for the uniform
        distribution over all labellings that are allowed.
    bag_index : (N,) integer array
        Non-decreasing.
    needs_witness : (B,) boolean array
        Which bags must have a positive label that is not known already.
    num_bags : int
        B (static under ``jit``).

    See Also
    --------
    InstanceLabels
        The noisy version; this is its limit H → ∞.
    """

    arg_constraints = {
        "logits": constraints.independent(constraints.real, 1),
        "bag_index": constraints.independent(constraints.nonnegative_integer, 1),
        "needs_witness": constraints.independent(constraints.boolean, 1),
    }
    support = constraints.independent(constraints.boolean, 1)
    reparametrized_params: list[str] = []
    pytree_data_fields = ("logits", "bag_index", "needs_witness")
    pytree_aux_fields = ("num_bags",)

    def __init__(
        self,
        logits: Float[AnyArray, " N"],
        bag_index: Int[AnyArray, " N"],
        needs_witness: Bool[AnyArray, " B"],
        num_bags: int,
    ) -> None:
        self.logits, self.bag_index = logits, bag_index
        self.needs_witness, self.num_bags = needs_witness, num_bags
        # Known labels have infinite log-odds, which NumPyro's checks would refuse.
        super().__init__((), jnp.shape(bag_index), validate_args=False)

    def _log_condition(self) -> Float[Array, " B"]:
        """Log probability of the condition, by bag."""
        some = log_some_positive(jnp.asarray(self.logits), self.bag_index, self.num_bags)
        return jnp.where(jnp.asarray(self.needs_witness), some, 0.0)

    @property
    def mean(self) -> Float[Array, " N"]:
        """P(r_n = 1) under the condition."""
        log_condition = jnp.take(self._log_condition(), jnp.asarray(self.bag_index))
        log_probability = log_sigmoid(jnp.asarray(self.logits)) - log_condition
        # −∞ + ∞ in a bag all of whose labels are known to be 0.
        return jnp.where(jnp.isneginf(self.logits), 0.0, jnp.exp(jnp.minimum(log_probability, 0.0)))

    @property
    def variance(self) -> Float[Array, " N"]:
        """P(r_n = 1) P(r_n = 0)."""
        return self.mean * (1 - self.mean)

    @validate_sample
    def log_prob(
        self, value: Int[AnyArray, " N"] | Bool[AnyArray, " N"], intermediates: Any = None
    ) -> Float[Array, ""]:
        """Joint log probability of the N labels."""
        positive = jnp.asarray(value) > 0
        by_instance = jnp.where(positive, log_sigmoid(self.logits), log_sigmoid(-self.logits))
        has_witness = sum_over_bags(positive.astype(int), self.bag_index, self.num_bags) > 0
        lacks = jnp.asarray(self.needs_witness) & ~has_witness
        by_bag = jnp.where(lacks, -jnp.inf, -self._log_condition())
        return jnp.sum(by_instance) + jnp.sum(by_bag)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        """Draw all labels exactly; array of shape ``sample_shape + (N,)``."""
        assert is_prng_key(key) and key is not None
        keys = jax.random.split(key, math.prod(sample_shape))
        return jax.vmap(self._draw)(keys).reshape(*sample_shape, *self.event_shape)

    def _draw(self, key: Array) -> Int[Array, " N"]:
        """Draw by a race of exponential clocks; labels whose clock rings by time 1 are positive.

        Rates are λ_n = softplus(a_n). Under the condition the first ring is an exponential of rate
        Σλ truncated to [0, 1]. Who rings first, and how much later the others do, does not depend
        on it. Rates are relative to the largest of their bag, so that the race works where all
        underflow.
        """
        free_key, start_key, race_key = jax.random.split(key, 3)
        logits, index = jnp.asarray(self.logits), jnp.asarray(self.bag_index)
        free = jax.random.bernoulli(free_key, jax.nn.sigmoid(logits))

        log_rate = jnp.minimum(_log_softplus(logits), jnp.finfo(logits.dtype).max)
        largest = jax.ops.segment_max(log_rate, index, self.num_bags, indices_are_sorted=True)
        # Where a witness is certain the condition always holds.
        needs = jnp.asarray(self.needs_witness) & (largest < jnp.finfo(logits.dtype).max)
        largest = jnp.where(needs & jnp.isfinite(largest), largest, 0.0)
        smallest = math.sqrt(float(jnp.finfo(logits.dtype).tiny))
        relative = jnp.maximum(jnp.exp(log_rate - jnp.take(largest, index)), smallest)
        rings = jax.random.exponential(race_key, logits.shape, logits.dtype) / relative
        # Fused, XLA would compute the rings twice, and the first of a bag would come 1e-17 late.
        rings = jax.lax.optimization_barrier(rings)
        first = jax.ops.segment_min(rings, index, self.num_bags, indices_are_sorted=True)
        delay = rings - jnp.take(first, index)

        scale = jnp.exp(largest)
        rate = jnp.maximum(sum_over_bags(relative, index, self.num_bags) * scale, smallest)
        uniform = jax.random.uniform(start_key, largest.shape, logits.dtype)
        start = jnp.minimum(-jnp.log1p(uniform * jnp.expm1(-rate)) / rate, 1.0)
        in_time = delay <= jnp.take((1 - start) * scale, index)
        raced = in_time & ~jnp.isneginf(logits)
        return jnp.where(jnp.take(needs, index), raced, free).astype(int)


class LabelRule(NamedTuple):
    """Which labellings the bags allow.

    Attributes
    ----------
    known : array (N,)
        Log-odds where the label is known, −∞ or ∞; 0 where it is not.
    needs_witness : array (B,)
        Positive bags without a known positive instance.
    bag_index : array (N,)
    present : array (B,) or None
        Which bags are there; None where all are.
    """

    known: Float[Array, " N"]
    needs_witness: Bool[Array, " B"]
    bag_index: Int[Array, " N"]
    present: Bool[Array, " B"] | None = None

    @property
    def num_bags(self) -> int:
        """Number B of bags."""
        return self.needs_witness.shape[0]

    def labels(self, logits: Float[Array, " N"] | float = 0.0) -> WitnessLabels:
        """Distribution of the labels, with these log-odds where they are free; uniform without."""
        return WitnessLabels(self.known + logits, self.bag_index, self.needs_witness, self.num_bags)

    def log_evidence(self, log_density: Float[Array, "2 N"]) -> Float[Array, " B"]:
        """log p(X_b | T_b): the mean of Π p(x_n | r_n) over all allowed labellings.

        Parameters
        ----------
        log_density : array (2, N)
            log p(x_n | r_n = −1) and log p(x_n | r_n = +1).
        """
        negative, positive = log_density
        logits = positive - negative
        is_free = self.known == 0
        one = jnp.where(self.known > 0, positive, negative)
        by_instance = jnp.where(is_free, jnp.logaddexp(negative, positive) - math.log(2), one)
        # Free labels: log-odds a; known ones cannot be a new witness.
        with_logits, uniform = (
            log_some_positive(jnp.where(is_free, some, -jnp.inf), self.bag_index, self.num_bags)
            for some in (logits, jnp.zeros_like(logits))
        )
        needs = self.needs_witness
        # Bags without the condition: avoids −∞ − (−∞) and its gradients.
        condition = jnp.where(needs, with_logits, 0.0) - jnp.where(needs, uniform, 0.0)
        found = sum_over_bags(by_instance, self.bag_index, self.num_bags) + condition
        return found if self.present is None else jnp.where(self.present, found, 0.0)
