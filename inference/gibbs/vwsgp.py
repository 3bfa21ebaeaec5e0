"""The exact conditionals of VWSGP by Pólya-Gamma, the evidence integrated out of the draw of u.

One sweep, from the bag evidence s of the last one:

.. code-block:: text

    ω_b | s_b       ~ PG(1, s_b)
    ε   | ω         ~ N(P⁻¹ Vᵀ(κ/(1 + ωk̄)), P⁻¹),  P = I + Vᵀ diag(ω/(1 + ωk̄)) V
    s_b | ε, ω      ~ N((V_bε + k̄_bκ_b)/(1 + ω_bk̄_b), k̄_b/(1 + ω_bk̄_b))

with u = Lε, κ = T − ½.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...models.bag_evidence import BagEvidenceModel
from ...models.distributions import PolyaGamma
from ...models.sparse_gp import SparseConditional
from .inducing import draw_evidence, draw_white
from .sweep import sweep_of

__all__ = ["VWSGPGibbs", "VWSGPGibbsState"]


class VWSGPGibbsState(NamedTuple):
    """One chain."""

    key: Array
    white: Float[Array, " M"]  # ε
    evidence: Float[Array, " B"]  # s


@dataclass(frozen=True)
class VWSGPGibbs:
    """The sweep as pure functions of the state.

    Attributes
    ----------
    accumulated : SparseConditional
        L, V and k̄ of the bags.
    half_sign : array (B,)
        κ.
    """

    site_names: ClassVar[tuple[str, ...]] = ("inducing_value", "bag_evidence")

    accumulated: SparseConditional
    half_sign: Float[Array, " B"]

    @classmethod
    def for_model(cls, model: BagEvidenceModel, bags: Bags) -> Self:
        """Pass over the instances once."""
        return cls(model.accumulated(bags), jnp.asarray(bags.labels) - 0.5)

    def init(self, key: Array) -> VWSGPGibbsState:
        """A draw of u and s from the Gaussian prior."""
        key, white_key, evidence_key = jax.random.split(key, 3)
        projection, scale = self.accumulated.projection, self.accumulated.residual_scale
        white = jax.random.normal(white_key, (projection.shape[1],), projection.dtype)
        noise = jax.random.normal(evidence_key, scale.shape, scale.dtype)
        return VWSGPGibbsState(key, white, projection @ white + scale * noise)

    def step(self, state: VWSGPGibbsState) -> VWSGPGibbsState:
        """One sweep over ω, u, s."""
        key, mixing_key, white_key, evidence_key = jax.random.split(state.key, 4)
        projection, variance = self.accumulated.projection, self.accumulated.residual_variance
        omega = PolyaGamma(1, state.evidence).sample(mixing_key)
        white = draw_white(white_key, projection, variance, omega, self.half_sign)
        evidence = draw_evidence(evidence_key, projection @ white, variance, omega, self.half_sign)
        return VWSGPGibbsState(key, white, evidence)

    def sites(self, state: VWSGPGibbsState) -> dict[str, Array]:
        """The state as sites of the model."""
        return {
            "inducing_value": self.accumulated.cholesky @ state.white,
            "bag_evidence": state.evidence,
        }


@sweep_of.register
def _(model: BagEvidenceModel, bags: Bags):
    from .vwsgp_probit import VWSGPProbitGibbs

    sweep = VWSGPProbitGibbs if model.likelihood == "probit" else VWSGPGibbs
    return sweep.for_model(model, bags)
