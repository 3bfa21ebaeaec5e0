"""Mixtures of Gaussians for the instances of either class, and bags that are drawn from them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import logsumexp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int
from numpyro.distributions import Distribution, constraints
from numpyro.util import is_prng_key

from .witnesses import LabelRule

__all__ = ["GaussianByPrecision", "MixtureBags", "Mixtures"]

# Numbers held at once while densities are evaluated: 32 MiB in 64 bit.
_BLOCK = 2**22
_LOG_2PI = math.log(2 * math.pi)


class GaussianByPrecision(Distribution):
    """x ~ N(μ, (βΛ)⁻¹), the precision by its root.

    Parameters
    ----------
    loc : array (..., D)
        μ.
    root : array (..., D, D) or (..., D)
        L, lower triangular with LLᵀ = Λ; or √λ, where the precision is diagonal.
    strength : float or array (...)
        β.
    """

    support = constraints.real_vector
    arg_constraints: dict[str, Any] = {}
    reparametrized_params: list[str] = ["loc", "root", "strength"]
    pytree_data_fields = ("loc", "root", "strength")
    pytree_aux_fields = ("is_full",)

    def __init__(
        self, loc: Float[Array, "..."], root: Float[Array, "..."], strength: Array | float = 1.0
    ) -> None:
        self.loc, self.root, self.strength = loc, root, strength
        self.is_full = root.ndim > loc.ndim
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=False)

    def log_prob(self, value: Float[Array, "..."], intermediates: Any = None) -> Array:
        """Log density of each vector."""
        strength = jnp.asarray(self.strength)[..., None]
        deviation = value - self.loc
        if self.is_full:
            whitened = jnp.einsum("...d,...de->...e", deviation, self.root)
            diagonal = jnp.diagonal(self.root, axis1=-2, axis2=-1)
        else:
            whitened, diagonal = deviation * self.root, self.root
        each = jnp.log(diagonal) + 0.5 * jnp.log(strength) - 0.5 * strength * whitened**2
        return jnp.sum(each - 0.5 * _LOG_2PI, axis=-1)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of each vector."""
        assert is_prng_key(key) and key is not None
        shape = (*sample_shape, *self.batch_shape, *self.event_shape)
        noise = jax.random.normal(key, shape, jnp.result_type(float))
        noise = noise / jnp.sqrt(jnp.asarray(self.strength))[..., None]
        if not self.is_full:
            return self.loc + noise / self.root
        root = jnp.broadcast_to(self.root, (*shape, shape[-1]))
        return self.loc + solve_triangular(root, noise[..., None], trans="T", lower=True)[..., 0]


class Mixtures(NamedTuple):
    """Two mixtures of Gaussians, the negative class first.

    Attributes
    ----------
    log_weight : array (2, K)
        log π.
    mean : array (2, K, D)
        μ.
    root : array (2, K, D, D) or (2, K, D)
        Of the precisions, as in `GaussianByPrecision`.
    """

    log_weight: Float[Array, "2 K"]
    mean: Float[Array, "2 K D"]
    root: Float[Array, "2 K ..."]

    def log_components(self, instances: Float[Array, "N D"]) -> Float[Array, "2 K N"]:
        """log π_lk N(x_n; μ_lk, Λ_lk⁻¹)."""
        is_full = self.root.ndim > self.mean.ndim

        def of_one(component: tuple[Array, Array]) -> Float[Array, " N"]:
            mean, root = component
            # One product with the root for all instances.
            whitened = (instances - mean) @ root if is_full else (instances - mean) * root
            diagonal = jnp.diagonal(root) if is_full else root
            return jnp.sum(jnp.log(diagonal)) - 0.5 * jnp.sum(whitened**2, axis=1)

        flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), (self.mean, self.root))
        together = min(max(1, _BLOCK // instances.size), self.log_weight.size)
        log_normal = jax.lax.map(of_one, flat, batch_size=together)
        log_normal = log_normal.reshape(*self.log_weight.shape, -1)
        return self.log_weight[..., None] + log_normal - 0.5 * instances.shape[1] * _LOG_2PI

    def log_density(self, instances: Float[Array, "N D"]) -> Float[Array, "2 N"]:
        """log p(x_n | r_n) of either class."""
        return logsumexp(self.log_components(instances), axis=1)

    def of(self, label: Int[Array, " N"], cluster: Int[Array, " N"]) -> GaussianByPrecision:
        """The Gaussians of the components that each instance belongs to."""
        return GaussianByPrecision(self.mean[label, cluster], self.root[label, cluster])


class MixtureBags(Distribution):
    """All instances of all bags given the bag labels, instance labels and clusters summed out.

    Parameters
    ----------
    mixtures : Mixtures
    rule : LabelRule
        Which labellings the bags allow; all of these are equally likely.
    """

    support = constraints.independent(constraints.real, 2)
    arg_constraints: dict[str, Any] = {}
    reparametrized_params: list[str] = []
    pytree_data_fields = ("mixtures", "rule")

    def __init__(self, mixtures: Mixtures, rule: LabelRule) -> None:
        self.mixtures, self.rule = mixtures, rule
        shape = (rule.bag_index.shape[0], mixtures.mean.shape[-1])
        super().__init__((), shape, validate_args=False)

    def log_prob_by_bag(self, value: Float[Array, "N D"]) -> Float[Array, " B"]:
        """log p(X_b | T_b) of each bag."""
        return self.rule.log_evidence(self.mixtures.log_density(value))

    def log_prob(self, value: Float[Array, "N D"], intermediates: Any = None) -> Float[Array, ""]:
        """Their sum."""
        return jnp.sum(self.log_prob_by_bag(value))

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """One draw of all N instances.

        Raises
        ------
        ValueError
            If several are asked for at once; use ``jax.vmap``.
        """
        assert is_prng_key(key) and key is not None
        if sample_shape != ():
            raise ValueError(f"sample_shape is {sample_shape}; expected (), one draw of all bags")
        label_key, cluster_key, instance_key = jax.random.split(key, 3)
        label = self.rule.labels().sample(label_key)
        cluster = jax.random.categorical(cluster_key, self.mixtures.log_weight[label])
        return self.mixtures.of(label, cluster).sample(instance_key)
