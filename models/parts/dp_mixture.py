"""Mixtures of Gaussians for the instances of either class, and bags that are drawn from them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import logsumexp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int
from numpyro.distributions import Distribution, Normal, TransformedDistribution, constraints
from numpyro.distributions.transforms import Transform
from numpyro.util import is_prng_key

from .witnesses import LabelRule

__all__ = ["ByPrecisionRoot", "MixtureBags", "Mixtures", "gaussian_by_precision"]

# Numbers in memory at once while densities are evaluated: 32 MiB in 64 bit.
_BLOCK = 2**22
_LOG_2PI = math.log(2 * math.pi)


class ByPrecisionRoot(Transform):
    """x = μ + L⁻ᵀε/√β: with ε ~ N(0, 1), x ~ N(μ, (βLLᵀ)⁻¹).

    Parameters
    ----------
    loc : array (..., D)
        μ.
    root : array (..., D, D) or (..., D)
        L, lower triangular; or √λ, where the precision is diagonal.
    strength : float or array (...)
        β.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, loc: Array, root: Array, strength: Array | float = 1.0) -> None:
        self.loc, self.root, self.strength = loc, root, strength

    def __call__(self, x: Array) -> Array:
        """Transform noise ε to x."""
        noise = x / jnp.sqrt(jnp.asarray(self.strength))[..., None]
        if not self._is_full:
            return self.loc + noise / self.root
        root = jnp.broadcast_to(self.root, (*noise.shape, noise.shape[-1]))
        return self.loc + solve_triangular(root, noise[..., None], trans="T", lower=True)[..., 0]

    def _inverse(self, y: Array) -> Array:
        deviation = y - self.loc
        if self._is_full:
            whitened = jnp.einsum("...d,...de->...e", deviation, self.root)
        else:
            whitened = deviation * self.root
        return jnp.sqrt(jnp.asarray(self.strength))[..., None] * whitened

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """−log |L| − ½ D log β."""
        diagonal = self.root
        if self._is_full:
            diagonal = jnp.diagonal(diagonal, axis1=-2, axis2=-1)
        half = 0.5 * diagonal.shape[-1] * jnp.log(jnp.asarray(self.strength))
        return jnp.broadcast_to(-jnp.sum(jnp.log(diagonal), axis=-1) - half, x.shape[:-1])

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of x."""
        return jnp.broadcast_shapes(shape, self.loc.shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of ε."""
        return jnp.broadcast_shapes(shape, self.loc.shape)

    def tree_flatten(self) -> tuple[Any, Any]:
        """All fields as leaves of a pytree."""
        return (self.loc, self.root, self.strength), (("loc", "root", "strength"), {})

    @property
    def _is_full(self) -> bool:
        return self.root.ndim > self.loc.ndim


def gaussian_by_precision(
    loc: Array, root: Array, strength: Array | float = 1.0
) -> TransformedDistribution:
    """The Gaussian N(μ, (βΛ)⁻¹), parametrised by a root of its precision.

    Parameters
    ----------
    loc : array (..., D)
        μ.
    root : array (..., D, D) or (..., D)
        L, lower triangular with LLᵀ = Λ; or √λ, where the precision is diagonal.
    strength : float or array (...)
        β.

    Returns
    -------
    TransformedDistribution
        In terms of standard normal noise, for samplers that whiten.
    """
    noise = Normal(jnp.zeros_like(loc), 1.0).to_event(1)
    return TransformedDistribution(noise, ByPrecisionRoot(loc, root, strength), validate_args=False)


class Mixtures(NamedTuple):
    """Two mixtures of Gaussians, the negative class first.

    Attributes
    ----------
    log_weight : array (2, K)
        log π.
    mean : array (2, K, D)
        μ.
    root : array (2, K, D, D) or (2, K, D)
        Of the precisions, as in `gaussian_by_precision`.
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

    def of(self, label: Int[Array, " N"], cluster: Int[Array, " N"]) -> TransformedDistribution:
        """The Gaussians of the components that each instance belongs to."""
        return gaussian_by_precision(self.mean[label, cluster], self.root[label, cluster])


class MixtureBags(Distribution):
    """All instances of all bags given the bag labels, instance labels and clusters summed out.

    Parameters
    ----------
    mixtures : Mixtures
    rule : LabelRule
        Which labellings the bags allow; they are equally likely.
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
        """log p(X | T), summed over bags."""
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
