"""Closed form of ProbitGPMIL: q(u) and the utilities of the instances, cut by the bag labels.

Given u = Lε a utility is g_n ~ N(μ0 + V_n ε, s_n²), s_n² = 1 + k̃_n, with f integrated out. So

.. code-block:: text

    q(g_b) ∝ Π N(g_n; μ0 + V_n m, s_n²) [T_b = [max g_n > 0]]       (BagUtilities)
    S = (I + Σ V_n V_nᵀ/s_n²)⁻¹,    m = S Σ V_nᵀ (E g_n − μ0)/s_n²

and S is known before any step. There is no bound on the likelihood: the ELBO is

.. code-block:: text

    Σ_b log Z_b − ½ tr(S Σ V_n V_nᵀ/s_n²) − KL(q(ε) ‖ N(0, I))

with Z_b the probability of the label under E f.

References
----------
Wang and Pinar (2021), The multiple instance learning Gaussian process probit model, AISTATS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float, Int

from ...datasets.bags import Bags
from ...datasets.padding import bag_weight
from ...models.model import Program
from ...models.numerics import products
from ...models.numerics.tracing import as_pytree
from ...models.parts.bag_latent import FloatType
from ...models.parts.bag_utilities import BagUtilities
from ...models.probit_gpmil import ProbitGPMIL, utility_scale
from .algorithm import Options, closed_form
from .sparse_gp import (
    InducingApproximation,
    InducingFactor,
    InducingForm,
    InducingStatistics,
    moments_under,
)

__all__ = ["ProbitForm", "ProbitRows"]


class ProbitRows(NamedTuple):
    """Instances in units of the sd of their utility, with the labels of their bags."""

    projection: Float[Array, "N M"]  # V_n/s_n
    prior_mean: Float[Array, " N"]  # μ0/s_n
    gram: Float[Array, "M M"]  # Σ V_n V_nᵀ/s_n²
    bag_index: Int[Array, " N"]
    bag_label: Int[Array, " B"]  # T
    bag_weight: Float[Array, " B"]  # 1, or 0 of an absent bag


@as_pytree("dtype")
@dataclass(frozen=True)
class ProbitForm(InducingForm):
    """ProbitGPMIL: one row for each instance, whose precision no step changes."""

    model: ProbitGPMIL
    dtype: FloatType = "float64"

    def numbers_kept(self, bags: Bags) -> int:
        """The entries of V."""
        return bags.num_instances * self.model.num_inducing

    def prepare(self, chunk: Bags) -> ProbitRows:
        """V, s and the Gram matrix."""
        project, index = self.instance_projection(), jnp.asarray(chunk.bag_index)
        weight = jnp.asarray(bag_weight(chunk))
        _, (projection, variance) = products.in_row_blocks(
            lambda rows: ((), project(rows)), jnp.asarray(chunk.instances)
        )
        scale = utility_scale(jnp.sqrt(variance))
        projection = (projection / scale[:, None]).astype(projection.dtype)
        return ProbitRows(
            projection,
            self.model.mean / scale,
            products.weighted_gram(projection, weight[index]),
            index,
            jnp.asarray(chunk.labels),
            weight,
        )

    def e_step(
        self, prepared: ProbitRows, q: InducingFactor, local: None
    ) -> tuple[InducingStatistics, None]:
        """Utilities at their optimum under q(u), and expected sufficient statistics under them."""
        prior_mean, gram, weight = prepared.prior_mean, prepared.gram, prepared.bag_weight
        wide, narrow_mean = prior_mean.dtype, jnp.asarray(q.mean, prepared.projection.dtype)
        location = prior_mean + (prepared.projection @ narrow_mean).astype(wide)
        utilities = BagUtilities(
            location, jnp.ones_like(location), prepared.bag_index, prepared.bag_label
        )
        linear = weight[prepared.bag_index] * (utilities.mean - prior_mean)
        root = jnp.asarray(q.covariance_root)
        trace = jnp.sum(root * (gram @ root))  # tr(S gram)
        log_likelihood = weight @ utilities.log_normaliser() - 0.5 * trace
        linear_term = products.weighted_sum(prepared.projection, linear)
        return InducingStatistics(gram, linear_term, log_likelihood), None

    def guide(self, approximation: InducingApproximation) -> Program:
        """q(u) with the utilities, which follow from it."""
        model = self.model

        def guide(bags: Bags) -> None:
            rows = model.conditional(bags)
            numpyro.sample("inducing_value", approximation.inducing_distribution())
            mean, _ = moments_under(approximation, rows)
            index, labels = jnp.asarray(bags.bag_index), jnp.asarray(bags.labels)
            scale = utility_scale(rows.residual_scale)
            numpyro.sample("latent_utility", BagUtilities(model.mean + mean, scale, index, labels))

        return guide


@closed_form.register
def _(model: ProbitGPMIL, options: Options) -> ProbitForm:
    options.label_update_of(model, ())
    options.refuse_starts(model)
    return ProbitForm(model, options.dtype)
