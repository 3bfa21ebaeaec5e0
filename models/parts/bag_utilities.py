"""Latent utilities of instances: the largest in a bag has the sign of the bag's label."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import is_prng_key

from .bag_labels import AnyArray, probit_log_odds
from .tilted_gaussians import draw_above, inverse_mills_ratio
from .witnesses import WitnessLabels, log_some_positive, sum_over_bags

__all__ = ["BagUtilities"]


class BagUtilities(Distribution):
    r"""Joint distribution of the utilities of all instances, given the labels of their bags.

    .. math::
        p(g_b) = \frac1{Z_b} \prod_{n \in b} N(g_n; a_n, s_n^2)\; [T_b = [\max_n g_n > 0]], \quad
        Z_b = \begin{cases} \prod Φ(-a_n/s_n) & T_b = 0 \\ 1 - \prod Φ(-a_n/s_n) & T_b = 1
        \end{cases}

    The event is the vector of all N utilities.

    Parameters
    ----------
    location, scale : (N,) array
        a and s.
    bag_index : (N,) integer array
        Non-decreasing.
    bag_label : (B,) integer array
        T, in {0, 1}.

    References
    ----------
    Wang and Pinar (2021); Albert and Chib (1993).
    """

    arg_constraints = {
        "location": constraints.real_vector,
        "scale": constraints.independent(constraints.positive, 1),
        "bag_index": constraints.independent(constraints.nonnegative_integer, 1),
        "bag_label": constraints.independent(constraints.boolean, 1),
    }
    support = constraints.real_vector
    reparametrized_params: list[str] = []
    pytree_data_fields = ("location", "scale", "bag_index", "bag_label")

    def __init__(
        self,
        location: Float[AnyArray, " N"],
        scale: Float[AnyArray, " N"],
        bag_index: Int[AnyArray, " N"],
        bag_label: Int[AnyArray, " B"],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.location, self.scale = location, scale
        self.bag_index, self.bag_label = bag_index, bag_label
        super().__init__((), jnp.shape(bag_index), validate_args=validate_args)

    @property
    def _ratio(self) -> Float[Array, " N"]:
        return jnp.asarray(self.location) / jnp.asarray(self.scale)  # z

    def labels(self) -> WitnessLabels:
        """The signs of the utilities as labels, 1 where one is positive."""
        is_positive = jnp.asarray(self.bag_label) == 1
        in_positive = jnp.take(is_positive, jnp.asarray(self.bag_index))
        known = jnp.where(in_positive, probit_log_odds(self._ratio), -jnp.inf)
        return WitnessLabels(known, self.bag_index, is_positive, is_positive.shape[0])

    def log_normaliser(self) -> Float[Array, " B"]:
        """log Z_b for each bag."""
        ratio, num_bags = self._ratio, jnp.shape(self.bag_label)[0]
        none = sum_over_bags(log_ndtr(-ratio), self.bag_index, num_bags)
        some = log_some_positive(probit_log_odds(ratio), self.bag_index, num_bags)
        return jnp.where(jnp.asarray(self.bag_label) == 1, some, none)

    @property
    def mean(self) -> Float[Array, " N"]:
        """E g_n = a + s [π h(z) − (1 − π) h(−z)], h = φ/Φ, π = P(g_n > 0 | T)."""
        ratio, positive = self._ratio, self.labels().mean
        above, below = inverse_mills_ratio(ratio), inverse_mills_ratio(-ratio)
        scale = jnp.asarray(self.scale)
        excess = positive * above - (1.0 - positive) * below
        return jnp.asarray(self.location) + scale * excess

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draw signs, and utilities given these; array of shape ``sample_shape + (N,)``."""
        assert is_prng_key(key) and key is not None
        keys = jax.random.split(key, math.prod(sample_shape))
        return jax.vmap(self._draw)(keys).reshape(*sample_shape, *self.event_shape)

    def _draw(self, key: Array) -> Float[Array, " N"]:
        label_key, size_key = jax.random.split(key)
        sign = 2.0 * self.labels().sample(label_key) - 1.0
        excess = draw_above(size_key, -sign * self._ratio)
        return jnp.asarray(self.location) + sign * jnp.asarray(self.scale) * excess

    @validate_sample
    def log_prob(self, value: Float[AnyArray, " N"], intermediates: Any = None) -> Float[Array, ""]:
        """Joint log density of the N utilities."""
        by_instance = norm.logpdf(value, self.location, self.scale)
        num_bags = jnp.shape(self.bag_label)[0]
        above = (jnp.asarray(value) > 0).astype(int)
        some = sum_over_bags(above, self.bag_index, num_bags) > 0
        is_allowed = some == (jnp.asarray(self.bag_label) == 1)
        by_bag = jnp.where(is_allowed, -self.log_normaliser(), -jnp.inf)
        return jnp.sum(by_instance) + jnp.sum(by_bag)
