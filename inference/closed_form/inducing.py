"""q(u), the factor that the closed forms of all sparse GP models share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...models.model import Draws, Model, Program
from .. import serialization
from .algorithm import Options, closed_form

__all__ = ["InducingApproximation", "LabelledApproximation", "unwhitened"]


def unwhitened(
    model: Any,
    mean: Float[np.ndarray | Array, " M"],
    precision_cholesky: Float[np.ndarray | Array, "M M"],
) -> dict[str, Float[np.ndarray, "..."]]:
    """``mean`` and ``scale_tril`` of u = Lε: L m, and the lower factor of (L R⁻ᵀ)(L R⁻ᵀ)ᵀ.

    Parameters
    ----------
    model : Model
        Of u ~ N(0, LLᵀ).
    mean : array (M,)
        m, of ε.
    precision_cholesky : array (M, M)
        R.

    Returns
    -------
    dict of arrays
    """
    found = _unwhitened(model.inducing_cholesky(), mean, precision_cholesky)
    return dict(zip(("mean", "scale_tril"), map(np.asarray, found), strict=True))


@jax.jit
def _unwhitened(
    cholesky: Float[Array, "M M"], mean: Float[Array, " M"], precision_cholesky: Float[Array, "M M"]
) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
    root = solve_triangular(precision_cholesky, cholesky.T, lower=True).T  # L R⁻ᵀ
    return cholesky @ mean, _lower_factor(root)


def _lower_factor(root: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower triangular factor of root rootᵀ, without forming the product."""
    upper = jnp.linalg.qr(root.T, mode="r")
    return (upper * jnp.sign(jnp.diagonal(upper))[:, None]).T


@serialization.register
@dataclass(frozen=True, eq=False)
class InducingApproximation:
    """q(u) = N(m, S), by itself where the other factors follow from it.

    Attributes
    ----------
    mean : array (M,)
        m, of u.
    scale_tril : array (M, M)
        Lower factor of S: the covariance of u is S = scale_tril scale_trilᵀ.
    """

    mean: Float[np.ndarray, " M"]
    scale_tril: Float[np.ndarray, "M M"]

    def inducing_distribution(self) -> dist.MultivariateNormal:
        """q(u) = N(m, S)."""
        return dist.MultivariateNormal(
            jnp.asarray(self.mean), scale_tril=jnp.asarray(self.scale_tril)
        )

    def guide(self, model: Any) -> Program:
        """q(u) and all factors that follow from it, the guide of ``model.augmented()``."""
        return closed_form(model, Options()).guide(self)

    def draws(self, model: Model, bags: Bags | None, key: Array, num_draws: int) -> Draws:
        """Draws of ``inducing_value`` from q(u)."""
        with jax.enable_x64(True):
            return {
                "inducing_value": np.asarray(_draws(self.mean, self.scale_tril, key, num_draws))
            }

    def log_density(self, model: Model, bags: Bags | None, draws: Draws) -> Float[np.ndarray, " S"]:
        """log q(u) of each draw."""
        with jax.enable_x64(True):
            drawn = np.asarray(draws["inducing_value"])
            return np.asarray(_log_density(self.mean, self.scale_tril, drawn))


@serialization.register
@dataclass(frozen=True, eq=False)
class LabelledApproximation(InducingApproximation):
    """q(u) Π q(y_n): independent instance labels, which an update keeps between steps.

    Attributes
    ----------
    label_logits : array (N,)
        η, log odds of q(y_n = 1).
    """

    label_logits: Float[np.ndarray, " N"]


# Compiled once for all fits of one size; by itself each operation of a distribution would be.


@partial(jax.jit, static_argnames="num_draws")
def _draws(
    mean: Float[Array, " M"], scale_tril: Float[Array, "M M"], key: Array, num_draws: int
) -> Float[Array, "S M"]:
    return dist.MultivariateNormal(mean, scale_tril=scale_tril).sample(key, (num_draws,))


@jax.jit
def _log_density(
    mean: Float[Array, " M"], scale_tril: Float[Array, "M M"], draws: Float[Array, "S M"]
) -> Float[Array, " S"]:
    return dist.MultivariateNormal(mean, scale_tril=scale_tril).log_prob(draws)
