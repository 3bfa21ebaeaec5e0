"""The exact conditionals of augmented ψ-VGPMIL, with f integrated out of the draw of u.

One sweep, from the latent function values f of the last one:

.. code-block:: text

    y_b | f, T      exactly, all labels of a bag together              (InstanceLabels)
    ω_n | f_n       ~ q(ω | c = f_n)                                   (Pólya-Gamma or Gamma)
    ε   | ω, y      ~ N(P⁻¹ Vᵀ((κ − ωμ0)/(1 + ωk̃)), P⁻¹),  P = I + Vᵀ diag(ω/(1 + ωk̃)) V
    f_n | ε, ω, y   ~ N((μ0 + V_nε + k̃_nκ_n)/(1 + ω_nk̃_n), k̃_n/(1 + ω_nk̃_n))

with u = Lε, κ = y − ½.
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
from ...models.model import observations
from ...models.numerics.tracing import as_pytree
from ...models.parts.bag_labels import InstanceLabels
from ...models.parts.scale_mixtures import GaussianScaleMixture
from ...models.parts.sparse_gp import SparseConditional
from ...models.vgpmil import VGPMIL
from .inducing import draw_latent, draw_whitened
from .sweep import sweep_of

__all__ = ["VGPMILGibbs", "VGPMILGibbsState"]


class VGPMILGibbsState(NamedTuple):
    """The state of one chain."""

    key: Array
    whitened: Float[Array, " M"]  # ε
    latent: Float[Array, " N"]  # f
    label: Int[Array, " N"]  # y


@as_pytree()
@dataclass(frozen=True)
class VGPMILGibbs:
    """The sweep as pure functions of the state.

    Attributes
    ----------
    conditional : SparseConditional
        L, V and k̃.
    prior_mean, sharpness : float
        μ0, H.
    bag_index : array (N,)
    bag_label : array (B,)
        T.
    bag_weight : array (B,)
        1, or 0 of absent bags.
    scale_mixture : GaussianScaleMixture
    """

    # Of the class, not a field: a ClassVar would not do for the property of the protocol.
    site_names = ("inducing_value", "latent", "instance_label")

    conditional: SparseConditional
    prior_mean: Float[Array, ""] | float
    sharpness: Float[Array, ""] | float
    bag_index: Int[np.ndarray | Array, " N"]
    bag_label: Int[np.ndarray | Array, " B"]
    bag_weight: Float[np.ndarray | Array, " B"]
    scale_mixture: GaussianScaleMixture

    @classmethod
    def for_model(cls, model: VGPMIL, bags: Bags) -> Self:
        """Evaluate the kernel once."""
        return cls(
            conditional=model.conditional(bags),
            prior_mean=model.mean,
            sharpness=model.sharpness,
            bag_index=bags.bag_index,
            bag_label=observations(model, bags, "gibbs"),
            bag_weight=bag_weight(bags),
            scale_mixture=model.scale_mixture,
        )

    @property
    def instance_weight(self) -> Float[Array, " N"]:
        """1, or 0 of instances of absent bags."""
        return jnp.asarray(self.bag_weight)[jnp.asarray(self.bag_index)]

    def init(self, key: Array) -> VGPMILGibbsState:
        """Draw u and f from the Gaussian prior."""
        key, whitened_key, latent_key = jax.random.split(key, 3)
        projection, variance = self.conditional.projection, self.conditional.residual_variance
        whitened = jax.random.normal(whitened_key, (projection.shape[1],), projection.dtype)
        noise = jax.random.normal(latent_key, variance.shape, variance.dtype)
        latent = self.prior_mean + projection @ whitened + jnp.sqrt(variance) * noise
        return VGPMILGibbsState(key, whitened, latent, jnp.zeros(variance.shape, int))

    def step(self, state: VGPMILGibbsState) -> VGPMILGibbsState:
        """One sweep over y, ω, u, f."""
        key, label_key, omega_key, whitened_key, latent_key = jax.random.split(state.key, 5)
        label = self.label_distribution(state.latent).sample(label_key)
        omega = self.scale_mixture.conditional(state.latent).sample(omega_key)
        whitened = self.draw_whitened(whitened_key, label, omega)
        latent = self.draw_latent(latent_key, whitened, label, omega)
        return VGPMILGibbsState(key, whitened, latent, label)

    def log_density_given_noise(
        self, state: VGPMILGibbsState, whitened: Float[Array, " M"]
    ) -> Float[Array, ""]:
        """log p(ε | η, T), with ω and y summed out, up to a constant.

        Given f these leave Σ_y Π ψ(f_n) e^{(y_n − ½)f_n} H^{[T = max y]}: of each bag the sum Z_b
        that normalises its labels, and of each instance ψ(f_n) e^{−f_n/2}.
        """
        latent = self.with_noise_kept(state, whitened).latent
        by_bag = self.label_distribution(latent).log_normaliser()
        by_instance = self.scale_mixture.log_density(latent) - 0.5 * latent
        by_bag = jnp.asarray(self.bag_weight) @ by_bag
        return by_bag + self.instance_weight @ by_instance - 0.5 * whitened @ whitened

    def with_noise_kept(
        self, state: VGPMILGibbsState, whitened: Float[Array, " M"]
    ) -> VGPMILGibbsState:
        """A state with other ε, and f − Vε as it was."""
        change = self.conditional.projection @ (whitened - state.whitened)
        return state._replace(whitened=whitened, latent=state.latent + change)

    def sites(self, state: VGPMILGibbsState) -> dict[str, Array]:
        """The state as sites of the model."""
        return {
            "inducing_value": self.conditional.cholesky @ state.whitened,
            "latent": state.latent,
            "instance_label": state.label,
        }

    def label_distribution(self, latent: Float[Array, " N"]) -> InstanceLabels:
        """The distribution of y | f, T."""
        return InstanceLabels(
            latent, self.bag_index, self.bag_label, self.sharpness, self.bag_label.shape[0]
        )

    def draw_whitened(
        self, key: Array, label: Int[Array, " N"], omega: Float[Array, " N"]
    ) -> Float[Array, " M"]:
        """Draw ε | ω, y with f integrated out."""
        projection, variance = self.conditional.projection, self.conditional.residual_variance
        # In f − μ0, the log likelihood (y − ½)f − ωf²/2 has the linear term κ − ωμ0.
        linear = label - 0.5 - omega * self.prior_mean
        weight = self.instance_weight
        return draw_whitened(key, projection, variance, weight * omega, weight * linear)

    def draw_latent(
        self,
        key: Array,
        whitened: Float[Array, " M"],
        label: Int[Array, " N"],
        omega: Float[Array, " N"],
    ) -> Float[Array, " N"]:
        """Draw f | u, ω, y, independently over instances."""
        location = self.prior_mean + self.conditional.projection @ whitened
        return draw_latent(key, location, self.conditional.residual_variance, omega, label - 0.5)


@sweep_of.register
def _(model: VGPMIL, bags: Bags) -> VGPMILGibbs:
    model.scale_mixture.conditional(jnp.zeros(1))  # raises where p(ω) is not known
    return VGPMILGibbs.for_model(model, padded(bags))
