"""q(v) q(μ, Λ) of DPMIL: what its closed form leaves behind."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.nn import logsumexp
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Float, Int

from ...datasets.bags import Bags
from ...datasets.padding import padded
from ...models.dpmil import DPMIL, Pooling
from ...models.model import Draws, Program
from ...models.numerics.tracing import as_pytree
from ...models.parts.components import Components
from ...models.parts.dp_mixture import gaussian_by_precision
from ...models.parts.normal_wishart import log_predictive
from .. import serialization
from .algorithm import Options, closed_form

__all__ = ["DPMILApproximation", "Sticks"]


class Sticks(NamedTuple):
    """q(v) = Beta(γ¹, γ²)."""

    concentration1: Float[Array, "2 k"]  # γ¹
    concentration0: Float[Array, "2 k"]  # γ²

    def expected_log_weight(self) -> Float[Array, "2 K"]:
        """E log π_k = E log v_k + Σ_{j<k} E log(1 − v_j)."""
        both = digamma(self.concentration1 + self.concentration0)
        none = jnp.zeros((*self.concentration1.shape[:-1], 1))
        left = jnp.concatenate([none, digamma(self.concentration0) - both], axis=-1)
        own = jnp.concatenate([digamma(self.concentration1) - both, none], axis=-1)
        return jnp.cumsum(left, axis=-1) + own

    def divergence_from_prior(self, concentration: float | Array) -> Float[Array, ""]:
        """Σ KL of each from Beta(1, α)."""
        one, zero = self.concentration1, self.concentration0
        both = one + zero
        # By gammaln: jax.scipy.special.betaln, which NumPyro's divergence uses, is off by 1e-6.
        log_beta = gammaln(one) + gammaln(zero) - gammaln(both)
        expected = (one - 1) * digamma(one) + (zero - concentration) * digamma(zero)
        expected += (1 + concentration - both) * digamma(both)
        return jnp.sum(expected - jnp.log(concentration) - log_beta)


@serialization.register
@as_pytree()
@dataclass(frozen=True, eq=False)
class DPMILApproximation:
    """q(v) q(μ, Λ), and with it q(r) q(z | r).

    Attributes
    ----------
    mean : array (2, K, D)
        m.
    strength, degrees_of_freedom : array (2, K)
        β and ν.
    scale_root : array (2, K, D, D) or (2, K, D)
        R, lower triangular with RRᵀ = W; √w where precisions are diagonal.
    concentration1, concentration0 : array (2, K − 1)
        γ¹ and γ².
    label : array (N,) or None
        The labels that a hard update chose; None where they have their exact distribution.
    start_elbo : array (S,)
        Where each start ended.
    """

    mean: Float[np.ndarray, "2 K D"]
    strength: Float[np.ndarray, "2 K"]
    degrees_of_freedom: Float[np.ndarray, "2 K"]
    scale_root: Float[np.ndarray, "2 K ..."]
    concentration1: Float[np.ndarray, "2 k"]
    concentration0: Float[np.ndarray, "2 k"]
    label: Int[np.ndarray, " N"] | None
    start_elbo: Float[np.ndarray, " S"]

    @property
    def num_components(self) -> int:
        """K."""
        return self.mean.shape[1]

    @property
    def expected_weight(self) -> Float[np.ndarray, "2 K"]:
        """E π."""
        on = self.concentration1 / (self.concentration1 + self.concentration0)
        ones = np.ones((2, 1))
        left = np.cumprod(np.concatenate([ones, 1 - on], axis=1), axis=1)
        return left * np.concatenate([on, ones], axis=1)

    def components(self, model: DPMIL) -> Components:
        """Expected components: E π, E μ, the root of E Λ = νW, and β − β0 instances."""
        nu = self.degrees_of_freedom[(..., *[None] * (self.scale_root.ndim - 2))]
        return Components(
            weight=self.expected_weight,
            mean=self.mean,
            root=np.sqrt(nu) * self.scale_root,
            occupancy=self.strength - model.mean_strength,
        )

    @property
    def _global(self) -> DPMILApproximation:
        """Without what has a size of its own for each set of bags."""
        return replace(self, label=None)

    def draws(self, model: DPMIL, bags: Bags | None, key: Array, num_draws: int) -> Draws:
        """Draws of sticks, means and precisions."""
        with jax.enable_x64(True):
            found = _draws(self._global, key, num_draws)
            site = dict(zip(("stick", model.precision_site, "mean"), found, strict=True))
            return {name: np.asarray(site[name]) for name in model.latent_sites}

    def log_density(self, model: DPMIL, bags: Bags | None, draws: Draws) -> Float[np.ndarray, " S"]:
        """log q of each draw."""
        with jax.enable_x64(True):
            sites = {name: np.asarray(draws[name]) for name in model.latent_sites}
            return np.asarray(_log_density(self._global, model, sites))

    def log_density_of_one(self, model: DPMIL, site: dict[str, Array]) -> Float[Array, ""]:
        """log q of one draw."""
        precision = site[model.precision_site]
        total = self.precision_distribution().log_prob(precision)
        total += self.mean_distribution(precision).log_prob(site["mean"])
        if "stick" in site:
            total += self.stick_distribution().log_prob(site["stick"])
        return total

    def guide(self, model: DPMIL) -> Program:
        """q(θ) q(r) q(z | r), the guide of ``model.augmented()`` on the bags learned from."""
        return closed_form(model, Options()).guide(self)

    def label_probability(self, model: DPMIL, bags: Bags) -> Float[np.ndarray, " N"]:
        """q(r_n = 1) of the instances of the bags learned from; 0 or 1 where labels were chosen.

        Parameters
        ----------
        model : DPMIL
        bags : Bags
            With labels.

        Returns
        -------
        array (N,)
        """
        if self.label is not None:
            return self.label.astype(float)
        model.check(bags)
        with jax.enable_x64(True):
            found = _label_probability(self, model, padded(bags))
            return np.asarray(found)[: bags.num_instances]

    def predictive(
        self, model: DPMIL, bags: Bags, *, pooling: Pooling = "bayes"
    ) -> tuple[Float[np.ndarray, " B"], Float[np.ndarray, " N"]]:
        """Probabilities of new bags and their instances, by the Student-t mixtures under q.

        References
        ----------
        Kandemir and Hamprecht (2014), section 3.2 and appendix.
        """
        model.check_width(bags)
        with jax.enable_x64(True):
            given = padded(bags.without_labels())
            found = np.asarray(_log_predictive(self._global, self.expected_weight, given.instances))
        return model.probabilities(found[:, : bags.num_instances], bags, pooling=pooling)

    def stick_distribution(self) -> dist.Distribution:
        """q(v)."""
        one, zero = jnp.asarray(self.concentration1), jnp.asarray(self.concentration0)
        return dist.Beta(one, zero).to_event(2)

    def precision_distribution(self) -> dist.Distribution:
        """q(Λ), of its root where precisions are matrices."""
        nu, root = jnp.asarray(self.degrees_of_freedom), jnp.asarray(self.scale_root)
        if self._is_full:
            return dist.WishartCholesky(nu, scale_tril=root, validate_args=False).to_event(2)
        return dist.Gamma(0.5 * nu[..., None], 0.5 / root**2).to_event(3)

    def mean_distribution(self, precision: Array) -> dist.Distribution:
        """q(μ | Λ)."""
        root = precision if self._is_full else jnp.sqrt(precision)
        mean, strength = jnp.asarray(self.mean), jnp.asarray(self.strength)
        return gaussian_by_precision(mean, root, strength).to_event(2)

    @property
    def _is_full(self) -> bool:
        return self.scale_root.ndim > self.mean.ndim

    def expected_log_components(self, bags: Bags) -> Float[Array, "2 K N"]:
        """log ρ, from the definition: the updates have other coordinates."""
        nu, root = jnp.asarray(self.degrees_of_freedom), jnp.asarray(self.scale_root)
        deviation = jnp.asarray(bags.instances) - jnp.asarray(self.mean)[:, :, None, :]
        num_features = self.mean.shape[-1]
        if self._is_full:
            whitened = jnp.einsum("lknd,lkde->lkne", deviation, root)
            digammas = digamma((nu[..., None] - jnp.arange(num_features)) / 2)
            diagonal = jnp.diagonal(root, axis1=-2, axis2=-1)
        else:
            whitened = deviation * root[:, :, None, :]
            digammas = jnp.broadcast_to(digamma(nu / 2)[..., None], root.shape)
            diagonal = root
        log_determinant = jnp.sum(digammas + math.log(2) + 2 * jnp.log(diagonal), axis=-1)
        constant = Sticks(jnp.asarray(self.concentration1), jnp.asarray(self.concentration0))
        constant = constant.expected_log_weight() + 0.5 * log_determinant
        constant -= 0.5 * num_features * (1 / jnp.asarray(self.strength) + math.log(2 * math.pi))
        return constant[..., None] - 0.5 * nu[..., None] * jnp.sum(whitened**2, axis=-1)


@partial(jax.jit, static_argnames="num_draws")
def _draws(
    approximation: DPMILApproximation, key: Array, num_draws: int
) -> tuple[Array | None, Array, Array]:
    def one(key: Array) -> tuple[Array | None, Array, Array]:
        stick_key, precision_key, mean_key = jax.random.split(key, 3)
        precision = approximation.precision_distribution().sample(precision_key)
        mean = approximation.mean_distribution(precision).sample(mean_key)
        if approximation.num_components == 1:
            return None, precision, mean
        return approximation.stick_distribution().sample(stick_key), precision, mean

    return jax.lax.map(one, jax.random.split(key, num_draws))


@jax.jit
def _log_density(
    approximation: DPMILApproximation, model: DPMIL, sites: dict[str, Array]
) -> Float[Array, " S"]:
    return jax.lax.map(lambda site: approximation.log_density_of_one(model, site), sites)


@jax.jit
def _label_probability(
    approximation: DPMILApproximation, model: DPMIL, bags: Bags
) -> Float[Array, " N"]:
    log_density = logsumexp(approximation.expected_log_components(bags), axis=1)
    return model.label_rule(bags).labels(log_density[1] - log_density[0]).mean


@jax.jit
def _log_predictive(
    approximation: DPMILApproximation,
    weight: Float[Array, "2 K"],
    instances: Float[Array, "N D"],
) -> Float[Array, "2 N"]:
    """log p₋ and log p₊ of new instances: mixtures of Student t distributions."""

    def of_class(given: tuple[Array, ...]) -> Float[Array, " N"]:
        weight, mean, root, strength, degrees_of_freedom = given
        by_component = log_predictive(instances, mean, root, strength, degrees_of_freedom)
        return logsumexp(jnp.log(weight)[:, None] + by_component, axis=0)

    q = approximation
    parts = (weight, q.mean, q.scale_root, q.strength, q.degrees_of_freedom)
    return jax.lax.map(of_class, tuple(map(jnp.asarray, parts)))
