"""The exact conditionals of VWSGP and CardinalityGP, for every likelihood.

One sweep, from the inducing values and the latent values s of the bags in the last one:

.. code-block:: text

    auxiliary | s  or  | ε    exactly                                  (the likelihood's own)
    ε   | auxiliary           ~ N(P⁻¹ Vᵀ(p/(1 + ωk̄)), P⁻¹),  P = I + Vᵀ diag(ω/(1 + ωk̄)) V
    s_b | ε, auxiliary        ~ N((V_bε + k̄_bp_b)/(1 + ω_bk̄_b), k̄_b/(1 + ω_bk̄_b))

with u = Lε, where the likelihood given its auxiliary variable is e^{ps − ωs²/2} in s. s is
integrated out of the draw of ε, and of that of the probit's latent utility.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ...datasets.bags import Bags
from ...datasets.padding import bag_weight, padded
from ...models.model import observations, part_of_bags
from ...models.numerics.tracing import as_pytree
from ...models.parts.bag_latent import BagLatentModel
from ...models.parts.likelihoods import Likelihood
from ...models.parts.sparse_gp import SparseConditional
from .inducing import draw_latent, draw_whitened
from .sweep import sweep_of

__all__ = ["BagLatentGibbs", "BagLatentGibbsState"]


class BagLatentGibbsState(NamedTuple):
    """The state of one chain."""

    key: Array
    whitened: Float[Array, " M"]  # ε
    latent: Float[Array, " B"]  # s
    auxiliary: Float[Array, " B"]


@as_pytree()
@dataclass(frozen=True)
class BagLatentGibbs:
    """The sweep as pure functions of the state.

    Attributes
    ----------
    accumulated : SparseConditional
        L, V and k̄ of the bags.
    likelihood : Likelihood
    observed : array (B,)
        Labels or targets.
    weight : array (B,)
        1, or 0 of absent bags.
    """

    accumulated: SparseConditional
    likelihood: Likelihood
    observed: Float[np.ndarray | Array, " B"] | Int[np.ndarray | Array, " B"]
    weight: Float[np.ndarray | Array, " B"]

    @classmethod
    def for_model(cls, model: BagLatentModel, bags: Bags) -> Self:
        """Prepare the sweep of a model, by one pass over the instances."""
        observations(model, bags, "gibbs")
        observed = getattr(bags, part_of_bags(model))
        return cls(model.accumulated(bags), model.likelihood, observed, bag_weight(bags))

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the sites of a state."""
        auxiliary = self.likelihood.auxiliary_site
        return ("inducing_value", "bag_latent", *(() if auxiliary is None else (auxiliary,)))

    def init(self, key: Array) -> BagLatentGibbsState:
        """Draw u and s from the Gaussian prior, and the auxiliary variables given them."""
        key, whitened_key, latent_key, auxiliary_key = jax.random.split(key, 4)
        projection, scale = self.accumulated.projection, self.accumulated.residual_scale
        whitened = jax.random.normal(whitened_key, (projection.shape[1],), projection.dtype)
        noise = jax.random.normal(latent_key, scale.shape, scale.dtype)
        latent = projection @ whitened + scale * noise
        auxiliary = self._draw_auxiliary(auxiliary_key, whitened, latent)
        return BagLatentGibbsState(key, whitened, latent, auxiliary)

    def step(self, state: BagLatentGibbsState) -> BagLatentGibbsState:
        """One sweep over the auxiliary variables, u and s."""
        key, auxiliary_key, whitened_key, latent_key = jax.random.split(state.key, 4)
        projection, variance = self.accumulated.projection, self.accumulated.residual_variance
        auxiliary = self._draw_auxiliary(auxiliary_key, state.whitened, state.latent)
        terms = self.likelihood.gaussian_terms(self.observed, auxiliary)
        weight = jnp.asarray(self.weight)
        weighted = (weight * of for of in terms)
        whitened = draw_whitened(whitened_key, projection, variance, *weighted)
        latent = draw_latent(latent_key, projection @ whitened, variance, *terms)
        return BagLatentGibbsState(key, whitened, latent, auxiliary)

    def _draw_auxiliary(
        self, key: Array, whitened: Float[Array, " M"], latent: Float[Array, " B"]
    ) -> Float[Array, " B"]:
        return self.likelihood.draw_auxiliary(
            key,
            self.observed,
            latent,
            self.accumulated.projection @ whitened,
            self.accumulated.residual_variance,
        )

    def sites(self, state: BagLatentGibbsState) -> dict[str, Array]:
        """The state as sites of the model."""
        sites = {
            "inducing_value": self.accumulated.cholesky @ state.whitened,
            "bag_latent": state.latent,
        }
        auxiliary = self.likelihood.auxiliary_site
        return sites if auxiliary is None else sites | {auxiliary: state.auxiliary}


@sweep_of.register
def _(model: BagLatentModel, bags: Bags) -> BagLatentGibbs:
    return BagLatentGibbs.for_model(model, padded(bags))
