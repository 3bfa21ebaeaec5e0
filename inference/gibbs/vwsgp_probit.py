"""The exact conditionals of VWSGP with the probit, the bag evidence integrated out of both.

One sweep, from the inducing values of the last one, v_b = 1 + noise + k̄_b:

.. code-block:: text

    z_b | ε   ~ N(V_bε, v_b), cut off to the side of zero that the label says
    ε   | z   ~ N(P⁻¹ Vᵀ(z/v), P⁻¹),  P = I + Vᵀ diag(1/v) V

with u = Lε (Albert and Chib).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...models.bag_evidence import BagEvidenceModel
from ...models.distributions import draw_above
from ...models.sparse_gp import SparseConditional
from .inducing import draw_white

__all__ = ["VWSGPProbitGibbs", "VWSGPProbitGibbsState"]


class VWSGPProbitGibbsState(NamedTuple):
    """One chain."""

    key: Array
    white: Float[Array, " M"]  # ε
    utility: Float[Array, " B"]  # z


@dataclass(frozen=True)
class VWSGPProbitGibbs:
    """The sweep as pure functions of the state.

    Attributes
    ----------
    accumulated : SparseConditional
        L, V and k̄ of the bags.
    utility_variance : array (B,)
        v.
    sign : array (B,)
        1 for positive bags, −1 for negative ones.
    """

    site_names: ClassVar[tuple[str, ...]] = ("inducing_value", "latent_utility")

    accumulated: SparseConditional
    utility_variance: Float[Array, " B"]
    sign: Float[Array, " B"]

    @classmethod
    def for_model(cls, model: BagEvidenceModel, bags: Bags) -> Self:
        """Pass over the instances once."""
        accumulated = model.accumulated(bags)
        utility_variance = model.utility_variance(accumulated.residual_variance)
        return cls(accumulated, utility_variance, 2.0 * jnp.asarray(bags.labels) - 1.0)

    def init(self, key: Array) -> VWSGPProbitGibbsState:
        """A draw of u from the prior, and of z given it."""
        key, white_key, utility_key = jax.random.split(key, 3)
        projection = self.accumulated.projection
        white = jax.random.normal(white_key, (projection.shape[1],), projection.dtype)
        return VWSGPProbitGibbsState(key, white, self.draw_utility(utility_key, white))

    def step(self, state: VWSGPProbitGibbsState) -> VWSGPProbitGibbsState:
        """One sweep over z, u."""
        key, utility_key, white_key = jax.random.split(state.key, 3)
        utility = self.draw_utility(utility_key, state.white)
        precision = 1.0 / self.utility_variance
        # k̄ is in v already: nothing is left to integrate out.
        nothing = jnp.zeros_like(precision)
        white = draw_white(
            white_key, self.accumulated.projection, nothing, precision, utility * precision
        )
        return VWSGPProbitGibbsState(key, white, utility)

    def draw_utility(self, key: Array, white: Float[Array, " M"]) -> Float[Array, " B"]:
        """z | ε."""
        location, scale = self.accumulated.projection @ white, jnp.sqrt(self.utility_variance)
        above = draw_above(key, -self.sign * location / scale)
        return location + self.sign * scale * above

    def sites(self, state: VWSGPProbitGibbsState) -> dict[str, Array]:
        """The state as sites of the model."""
        return {
            "inducing_value": self.accumulated.cholesky @ state.white,
            "latent_utility": state.utility,
        }
