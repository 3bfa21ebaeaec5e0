"""q(u), the factor that the closed forms of all sparse GP models share; whitened, u = Lε."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...models.model import Draws, Model, Program
from .. import archive
from ..products import inverse_transposed, weighted_gram

__all__ = [
    "InducingApproximation",
    "InducingFactor",
    "InducingState",
    "InducingSums",
    "coloured",
    "divergence_from_prior",
    "inducing_posterior",
    "regression_sums",
]


class InducingState(NamedTuple):
    """q(ε) = N(m, S), where all other factors follow from it."""

    mean: Float[Array, " M"]
    precision_cholesky: Float[Array, "M M"]  # R, RRᵀ = S⁻¹

    @classmethod
    def prior(cls, num_inducing: int) -> Self:
        """N(0, I)."""
        return cls(jnp.zeros(num_inducing), jnp.eye(num_inducing))


class InducingFactor(NamedTuple):
    """q(ε) = N(m, S) with the root of S, which sums over many chunks need made once."""

    mean: Float[Array, " M"]
    precision_cholesky: Float[Array, "M M"]  # R
    covariance_root: Float[Array, "M M"]  # R⁻ᵀ, upper triangular; S = R⁻ᵀR⁻¹

    @classmethod
    def of(cls, mean: Float[Array, " M"], precision_cholesky: Float[Array, "M M"]) -> Self:
        """With the root."""
        return cls(mean, precision_cholesky, inverse_transposed(precision_cholesky))


class InducingSums(NamedTuple):
    """Sums over bags: all that the next q(ε) and the bound need of them."""

    gram: Float[Array, "M M"]  # VᵀΘV, with the precisions Θ of the model at hand
    linear: Float[Array, " M"]  # the pull on ε
    bound: Float[Array, ""]  # but for the divergence of q(ε) from its prior


def inducing_posterior(
    gram: Float[Array, "M M"], linear: Float[Array, " M"]
) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
    """Mean and precision factor of q(ε) = N(S linear, S), S = (I + gram)⁻¹."""
    precision = jnp.eye(gram.shape[0], dtype=gram.dtype) + gram
    precision_cholesky = jnp.linalg.cholesky(precision)
    return jax.scipy.linalg.cho_solve((precision_cholesky, True), linear), precision_cholesky


def regression_sums(
    projection: Float[Array, "B M"],
    target: Float[Array, " B"],
    precision: Float[Array, " B"],
) -> tuple[Float[Array, "M M"], Float[Array, " M"]]:
    """Vᵀ diag(1/v) V and Vᵀ(Y/v): of the posterior of ε where Y_b ~ N(V_b ε, v_b)."""
    return weighted_gram(projection, precision), (target * precision) @ projection


def divergence_from_prior(
    mean: Float[Array, " M"], precision_cholesky: Float[Array, "M M"]
) -> Float[Array, ""]:
    """KL(q(ε) ‖ N(0, I)) = ½ [tr S + mᵀm − M − log|S|]."""
    num_inducing = mean.shape[0]
    identity = jnp.eye(num_inducing, dtype=mean.dtype)
    inverse = solve_triangular(precision_cholesky, identity, lower=True)  # S = R⁻ᵀR⁻¹
    log_determinant = 2.0 * jnp.sum(jnp.log(jnp.diagonal(precision_cholesky)))
    trace = jnp.sum(inverse**2)
    return 0.5 * (trace + mean @ mean - num_inducing + log_determinant)


def coloured(
    cholesky: Float[Array, "M M"],
    mean: Float[Array, " M"],
    precision_cholesky: Float[Array, "M M"],
) -> dict[str, Float[np.ndarray, "..."]]:
    """``mean`` and ``scale_tril`` of u = Lε: L m, and the lower factor of (L R⁻ᵀ)(L R⁻ᵀ)ᵀ."""
    found = _coloured(cholesky, mean, precision_cholesky)
    return dict(zip(("mean", "scale_tril"), map(np.asarray, found), strict=True))


@jax.jit
def _coloured(
    cholesky: Float[Array, "M M"], mean: Float[Array, " M"], precision_cholesky: Float[Array, "M M"]
) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
    root = solve_triangular(precision_cholesky, cholesky.T, lower=True).T  # L R⁻ᵀ
    return cholesky @ mean, _lower_factor(root)


def _lower_factor(root: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower triangular factor of root rootᵀ, without forming the product."""
    upper = jnp.linalg.qr(root.T, mode="r")
    return (upper * jnp.sign(jnp.diagonal(upper))[:, None]).T


@archive.register
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

    def inducing_law(self) -> dist.MultivariateNormal:
        """q(u) = N(m, S)."""
        return dist.MultivariateNormal(
            jnp.asarray(self.mean), scale_tril=jnp.asarray(self.scale_tril)
        )

    def guide(self, model: Any) -> Program:
        """q(u), the guide of ``model.marginal()``."""

        def guide(bags: Bags) -> None:
            numpyro.sample("inducing_value", self.inducing_law())

        return guide

    def draws(self, model: Model, bags: Bags | None, key: Array, num_draws: int) -> Draws:
        """Draws of ``inducing_value`` from q(u)."""
        with jax.enable_x64(True):
            return {
                "inducing_value": np.asarray(_draws(self.mean, self.scale_tril, key, num_draws))
            }

    def log_density(self, model: Model, bags: Bags | None, draws: Draws) -> Float[np.ndarray, " S"]:
        """log q(u) of each draw."""
        with jax.enable_x64(True):
            drawn = jnp.asarray(draws["inducing_value"])
            return np.asarray(_log_density(self.mean, self.scale_tril, drawn))


# Compiled once for all fits of one size; by itself each operation of a law would be.


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
