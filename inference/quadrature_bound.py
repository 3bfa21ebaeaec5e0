"""The ELBO of a Gaussian q(u) for models of sums of latent values, without sampling from q.

A label depends on u through one number, a_bᵀu, and that is Gaussian under q: its expected log
likelihood is a 1-D integral for each bag (of another one where k̄_b smooths σ). The only noise of
the bound comes from the choice of bags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..datasets.bags import Bags
from ..models.model import observations
from ..models.numerics.quadrature import QuadratureRule, trapezoid_rule
from ..models.numerics.tracing import as_pytree
from ..models.parts.bag_latent import BagLatentModel

__all__ = ["QuadratureBound", "WhitenedGaussian"]

# Values in memory at once: 32 MB in 64 bit.
_NODES = 2**22


class WhitenedGaussian(NamedTuple):
    """q(ε) = N(m, LLᵀ) in unconstrained coordinates."""

    mean: Float[Array, " M"]
    log_diagonal: Float[Array, " M"]
    below_diagonal: Float[Array, "M M"]  # used strictly below it

    @classmethod
    def start(cls, num_inducing: int, scale: float) -> Self:
        """N(0, scale² I)."""
        nothing = jnp.zeros((num_inducing, num_inducing))
        return cls(jnp.zeros(num_inducing), jnp.full(num_inducing, jnp.log(scale)), nothing)

    @property
    def scale_tril(self) -> Float[Array, "M M"]:
        """The Cholesky factor L of the covariance."""
        return jnp.tril(self.below_diagonal, -1) + jnp.diag(jnp.exp(self.log_diagonal))

    @property
    def divergence(self) -> Float[Array, ""]:
        """KL(q(ε) ‖ N(0, I)) = ½ [tr LLᵀ + mᵀm − M − 2 log|L|]."""
        squares = jnp.sum(self.scale_tril**2) + self.mean @ self.mean
        return 0.5 * (squares - self.mean.shape[0]) - jnp.sum(self.log_diagonal)


@as_pytree()
@dataclass(frozen=True, eq=False)
class QuadratureBound:
    """ELBO = Σ_b E_q log P(T_b | a_bᵀu) − KL(q(u) ‖ p(u)).

    Attributes
    ----------
    model : BagLatentModel
    projection : array (B, M)
        V, a_bᵀu = Vε.
    residual_scale : array (B,)
        √k̄_b.
    observed : array (B,)
        Labels or targets.
    inner : QuadratureRule
        Of the latent values given u.
    outer : QuadratureRule
        Of a_bᵀu under q.
    """

    model: BagLatentModel
    projection: Float[Array, "B M"]
    residual_scale: Float[Array, " B"]
    observed: Float[Array, " B"]
    inner: QuadratureRule
    outer: QuadratureRule

    @classmethod
    def of(cls, model: BagLatentModel, bags: Bags) -> Self:
        """Prepare the bound of a model, by one pass over the instances."""
        accumulated = model.accumulated(bags)
        projection, scale = accumulated.projection, accumulated.residual_scale
        # Under the prior: at its best q is narrower, as the likelihood is log-concave or flat.
        distance = model.likelihood.distance_to_singularity(scale**2)
        in_distances = jnp.linalg.norm(projection, axis=1) / distance
        return cls(
            model,
            projection,
            scale,
            jnp.asarray(observations(model, bags, "svi"), float),
            inner=model.likelihood.quadrature_rule(float(np.asarray(scale).max())),
            outer=trapezoid_rule(
                # Singularities more than ten sds away make no step longer.
                max(float(jnp.max(in_distances)), 0.1),
                distance_to_pole=1.0,
                tilt=(0.0, 0.0),
            ),
        )

    def __call__(self, q: WhitenedGaussian) -> Float[Array, ""]:
        """The evidence lower bound of q, over all bags."""
        everyone = jnp.arange(self.projection.shape[0])
        return jnp.sum(self.expected_log_likelihood(q, everyone)) - q.divergence

    def estimate(self, q: WhitenedGaussian, chosen: Int[Array, " K"]) -> Float[Array, ""]:
        """An unbiased estimate of the bound from bags chosen at random; so is its gradient."""
        fraction = chosen.shape[0] / self.projection.shape[0]
        return jnp.sum(self.expected_log_likelihood(q, chosen)) / fraction - q.divergence

    def expected_log_likelihood(
        self, q: WhitenedGaussian, chosen: Int[Array, " K"]
    ) -> Float[Array, " K"]:
        """E_q log P(T_b | a_bᵀu) of the chosen bags; a few at a time, to save memory."""

        @jax.checkpoint  # a gradient recomputes the nodes and stores none
        def one(projection: Array, scale: Array, observed: Array) -> Array:
            sd = jnp.linalg.norm(projection @ q.scale_tril)
            location = projection @ q.mean + jnp.asarray(self.outer.nodes) * sd
            given = self.model.likelihood.marginal_distribution(
                location, jnp.broadcast_to(scale, location.shape), self.inner
            )
            return jnp.exp(self.outer.log_weights) @ given.log_prob(observed)

        nodes = self.outer.nodes.shape[0] * max(1, self.inner.nodes.shape[0])
        parts = (self.projection[chosen], self.residual_scale[chosen], self.observed[chosen])
        return jax.lax.map(lambda row: one(*row), parts, batch_size=max(1, _NODES // nodes))
