"""The exact conditionals of ProbitGPMIL, with f integrated out of the draws of g and u.

One sweep:

.. code-block:: text

    g_b | ε, T   ∝ Π N(g_n; μ0 + V_nε, s_n²) [T_b = [max g_n > 0]],  s_n² = 1 + k̃_n
    ε   | g      ~ N(P⁻¹ Σ V_nᵀ(g_n − μ0)/s_n², P⁻¹),  P = I + Σ V_nV_nᵀ/s_n²
    f_n | ε, g   ~ N((μ0 + V_nε + k̃_ng_n)/s_n², k̃_n/s_n²)

with u = Lε. P is the same in all sweeps.

References
----------
Wang and Pinar (2021), AISTATS; Albert and Chib (1993).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, Int

from ...datasets.bags import Bags
from ...datasets.padding import bag_weight, padded
from ...models.model import observations
from ...models.numerics.products import weighted_gram
from ...models.numerics.tracing import as_pytree
from ...models.parts.bag_utilities import BagUtilities
from ...models.parts.sparse_gp import SparseConditional
from ...models.probit_gpmil import ProbitGPMIL, utility_scale
from .inducing import draw_latent
from .sweep import sweep_of

__all__ = ["ProbitGibbs", "ProbitGibbsState"]


class ProbitGibbsState(NamedTuple):
    """The state of one chain."""

    key: Array
    whitened: Float[Array, " M"]  # ε
    latent: Float[Array, " N"]  # f
    utility: Float[Array, " N"]  # g


@as_pytree()
@dataclass(frozen=True)
class ProbitGibbs:
    """The sweep as pure functions of the state.

    Attributes
    ----------
    conditional : SparseConditional
        L, V and k̃.
    precision_cholesky : array (M, M)
        R, with P = RRᵀ.
    prior_mean : float
        μ0.
    bag_index : array (N,)
    bag_label : array (B,)
        T.
    bag_weight : array (B,)
        1, or 0 of absent bags.
    """

    # Of the class, not a field: a ClassVar would not do for the property of the protocol.
    site_names = ("inducing_value", "latent", "latent_utility")

    conditional: SparseConditional
    precision_cholesky: Float[Array, "M M"]
    prior_mean: Float[Array, ""] | float
    bag_index: Int[np.ndarray | Array, " N"]
    bag_label: Int[np.ndarray | Array, " B"]
    bag_weight: Float[np.ndarray | Array, " B"]

    @classmethod
    def for_model(cls, model: ProbitGPMIL, bags: Bags) -> Self:
        """Evaluate the kernel and P once."""
        labels = observations(model, bags, "gibbs")
        conditional, weight = model.conditional(bags), bag_weight(bags)
        root = _precision_cholesky(conditional, np.asarray(weight)[np.asarray(bags.bag_index)])
        return cls(conditional, root, model.mean, bags.bag_index, labels, weight)

    def init(self, key: Array) -> ProbitGibbsState:
        """Draw u from the prior, and utilities and latent values given it."""
        key, whitened_key = jax.random.split(key)
        projection = self.conditional.projection
        whitened = jax.random.normal(whitened_key, (projection.shape[1],), projection.dtype)
        return self._completed(key, whitened)

    def step(self, state: ProbitGibbsState) -> ProbitGibbsState:
        """One sweep over u, g, f."""
        key, whitened_key = jax.random.split(state.key)
        return self._completed(key, self._draw_whitened(whitened_key, state.utility))

    def sites(self, state: ProbitGibbsState) -> dict[str, Array]:
        """The state as sites of the model."""
        return {
            "inducing_value": self.conditional.cholesky @ state.whitened,
            "latent": state.latent,
            "latent_utility": state.utility,
        }

    def _draw_whitened(self, key: Array, utility: Float[Array, " N"]) -> Float[Array, " M"]:
        """Draw ε | g with f integrated out."""
        weight = jnp.asarray(self.bag_weight)[jnp.asarray(self.bag_index)]
        variance = 1.0 + self.conditional.residual_variance  # s²
        linear = (weight * (utility - self.prior_mean) / variance) @ self.conditional.projection
        noise = jax.random.normal(key, linear.shape, linear.dtype)
        root = self.precision_cholesky
        return cho_solve((root, True), linear) + solve_triangular(
            root, noise, lower=True, trans="T"
        )

    def _completed(self, key: Array, whitened: Float[Array, " M"]) -> ProbitGibbsState:
        """Draw g | ε, T, and f | ε, g."""
        key, utility_key, latent_key = jax.random.split(key, 3)
        location = self.prior_mean + self.conditional.projection @ whitened
        scale = utility_scale(self.conditional.residual_scale)
        utility = BagUtilities(location, scale, self.bag_index, self.bag_label).sample(utility_key)
        variance, one = self.conditional.residual_variance, jnp.ones_like(location)
        latent = draw_latent(latent_key, location, variance, one, utility)  # g ~ N(f, 1)
        return ProbitGibbsState(key, whitened, latent, utility)


@jax.jit
def _precision_cholesky(
    conditional: SparseConditional, weight: Float[np.ndarray | Array, " N"]
) -> Float[Array, "M M"]:
    variance = 1.0 + conditional.residual_variance
    gram = weighted_gram(conditional.projection, jnp.asarray(weight) / variance)
    return jnp.linalg.cholesky(jnp.eye(gram.shape[0], dtype=gram.dtype) + gram)


@sweep_of.register
def _(model: ProbitGPMIL, bags: Bags) -> ProbitGibbs:
    return ProbitGibbs.for_model(model, padded(bags))
