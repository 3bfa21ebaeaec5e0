"""Distributions of the labels of bags and of their instances.

============  ===========================================  ==========================
Symbol        Meaning                                      Code name
============  ===========================================  ==========================
T_b           label of bag b, in {0, 1}                    ``bag_label``
y_n           label of instance n, in {0, 1}               ``value`` of `InstanceLabels`
μ_n           log-odds of instance n being positive        ``logits``
p₀            P(no positive instance in the bag)           ``exp(log_none_positive)``
H             odds that T_b = max y_n                      ``sharpness``
logit P(T_b)  log odds of a positive label                 ``logits`` of `LogOddsLabel`
============  ===========================================  ==========================

All of them work in 32 and in 64 bit, under ``jit`` and ``vmap``.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, lax
from jax.scipy.special import log_ndtr
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Shaped
from numpyro.distributions import BernoulliLogits, Distribution, constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import is_prng_key, not_jax_tracer

from ...datasets.bags import Bags
from ..model import given_labels, plate_of_bags
from .polya_gamma import PolyaGamma, log_cosh

AnyArray = Array | np.ndarray


class TiltedPolyaGamma(PolyaGamma):
    r"""PG(b, c) with its density taken relative to PG(b, 0), which is known for every b.

    .. math::
        \log \frac{\mathrm{PG}(\omega \mid b, c)}{\mathrm{PG}(\omega \mid b, 0)}
        = b \log\cosh(c/2) - c^2 \omega / 2

    A program and its guide must take densities relative to the same measure: the ELBO is then the
    same as with ordinary densities.
    """

    @validate_sample
    def log_prob(
        self, value: ArrayLike, intermediates: list[Any] | None = None
    ) -> Float[Array, "..."]:
        """Log density relative to PG(b, 0)."""
        tilt = jnp.asarray(self.tilt)
        concentration = jnp.asarray(self.concentration).astype(tilt.dtype)
        return concentration * log_cosh(tilt / 2) - tilt**2 * jnp.asarray(value) / 2


# --------------------------------------------------------------------------------------
# Labels by their log odds
# --------------------------------------------------------------------------------------
class LogOddsLabel(BernoulliLogits):
    """Label in {0, 1} with log P(T=1)/P(T=0) given, with a log probability that is smooth at 0.

    In NumPyro 0.22 its derivatives at log odds 0 are 0 and 1, not ±½: an optimiser that starts at
    u = 0 never leaves it.

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


def probit_log_odds(ratio: Float[Array, "*K"]) -> Float[Array, "*K"]:
    """log Φ(z) − log Φ(−z), the log odds that a normal of mean z and sd 1 is positive.

    Parameters
    ----------
    ratio : array
        z.

    Returns
    -------
    array
    """
    return log_ndtr(ratio) - log_ndtr(-ratio)


def observe_log_odds(log_odds: Float[Array, " B"], bags: Bags) -> None:
    """Sample the site ``bag_label`` with given log odds.

    Parameters
    ----------
    log_odds : array (B,)
        ±∞ where a label is certain.
    bags : Bags
        Their labels, if there are any, are observed.
    """
    with plate_of_bags(bags):
        distribution = LogOddsLabel(log_odds, validate_args=False)
        numpyro.sample("bag_label", distribution, obs=given_labels(bags))


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
        log p₀ for each bag; with latent values f it is −Σ_n softplus(f_n). Its shape is the batch
        shape.
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
        """log P(T = 1) − log P(T = 0); both log probabilities are accurate through it."""
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
    r"""Joint distribution of all instance labels given the bag labels, under a noisy maximum.

    .. math::
        p(y_b) \propto \prod_{n \in b} e^{y_n \mu_n} \; H^{[T_b = \max_{n \in b} y_n]},
        \qquad \log Z_b = \log w_b + \sum_{n \in b} \log(1 + e^{\mu_n})

    with :math:`w_b = H - (H-1) p_0` for T_b = 1 and :math:`1 + (H-1) p_0` for T_b = 0,
    :math:`p_0 = \prod_{n \in b} (1 - \sigma(\mu_n))`. Bags are independent; the labels within
    one are not. The event is the vector of all N labels.

    Parameters
    ----------
    logits : (..., N) array
        μ, the log-odds of each instance before the bag label is known. Leading axes are batch axes.
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
    As `NoisyMaximum`. The paper approximates this distribution by independent labels. The sum
    over a bag's labels in the two groups max y = 0 and max y = 1 is exact.
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
        # A JAX array: NumPy indices stay 64-bit, which 32-bit programs reject.
        return jnp.take(values, jnp.asarray(self.bag_index), axis=-1)

    @property
    def _bag_sharpness(self) -> Array:
        return jnp.asarray(self.sharpness)[..., None]

    @property
    def log_none_positive(self) -> Float[Array, "... B"]:
        """log p₀ = −Σ softplus(μ_n), per bag: no label positive, before T is known."""
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
        the others do, does not depend on it. So the race is run once and its start is then moved.
        """
        assert is_prng_key(key) and key is not None
        positive_key, start_key, race_key = jax.random.split(key, 3)
        shape = tuple(sample_shape) + self.batch_shape
        logits = jnp.asarray(self.logits)
        some_positive = jax.random.bernoulli(
            positive_key, self.positive_probability(), (*shape, self.num_bags)
        )
        # The floor keeps rings finite; it is far below the resolution of a uniform.
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
