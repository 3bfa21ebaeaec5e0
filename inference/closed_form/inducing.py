"""q(u), the factor that the closed forms of all sparse GP models share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy.linalg
from jaxtyping import Array, Float
from scipy.stats import norm

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
    # By NumPy: what stands beside a program is not worth another one.
    cholesky = np.asarray(model.inducing_cholesky())
    precision_root = np.asarray(precision_cholesky)
    root = scipy.linalg.solve_triangular(
        precision_root, cholesky.T, lower=True, check_finite=False
    ).T  # L R⁻ᵀ
    return {"mean": cholesky @ np.asarray(mean), "scale_tril": _lower_factor(root)}


def _lower_factor(root: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "M M"]:
    """Lower triangular factor of root rootᵀ, without forming the product."""
    upper = np.linalg.qr(root.T, mode="r")
    return (upper * np.sign(np.diagonal(upper))[:, None]).T


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
        # By NumPy: JAX would compile a program for each number of draws.
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        noise = random.standard_normal((num_draws, len(self.mean)))
        return {"inducing_value": self.mean + noise @ self.scale_tril.T}

    def log_density(self, model: Model, bags: Bags | None, draws: Draws) -> Float[np.ndarray, " S"]:
        """log q(u) of each draw."""
        centred = np.asarray(draws["inducing_value"]) - self.mean
        whitened = scipy.linalg.solve_triangular(
            self.scale_tril, centred.T, lower=True, check_finite=False
        )
        log_scale = np.sum(np.log(np.diagonal(self.scale_tril)))
        return norm.logpdf(whitened).sum(axis=0) - log_scale


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
