"""Closed form of CoupledVGPMIL: that of VGPMIL, with V' = S V and k̃' = (S∘S) k̃ of averages.

Given u the averaged latent values are independent, f_n ~ N(μ0 + V'_n ε, k̃'_n). So no update and no
term of the ELBO changes. V' is always kept: a block of instances has neighbours in other blocks.
Chunks are whole bags, so that all edges of a chunk are in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from ...datasets.bags import Bags
from ...models.coupled_vgpmil import CoupledVGPMIL
from ...models.numerics.tracing import as_pytree
from ...models.parts.coupling import averaged_rows
from .algorithm import Options, closed_form
from .sparse_gp import LABEL_UPDATES, InstanceForm, InstanceRows

__all__ = ["CoupledForm"]


@as_pytree("dtype", "label_update", "keeps_projection", "longest_bag")
@dataclass(frozen=True)
class CoupledForm(InstanceForm):
    """CoupledVGPMIL: one row for each instance, averaged over its neighbours."""

    model: CoupledVGPMIL
    keeps_projection: bool = True

    def prepare(self, chunk: Bags) -> InstanceRows:
        """V' and k̃', and the labels of the bags."""
        prepared = super().prepare(chunk)
        if chunk.edges is None:
            return prepared
        assert prepared.residual_variance is not None  # V is kept
        projection, residual_variance = averaged_rows(
            jnp.asarray(prepared.rows),
            jnp.asarray(prepared.residual_variance),
            chunk.edges,
            self.model.coupling,
        )
        return prepared._replace(rows=projection, residual_variance=residual_variance)


@closed_form.register
def _(model: CoupledVGPMIL, options: Options) -> CoupledForm:
    update = options.label_update_of(model, LABEL_UPDATES)
    options.refuse_starts(model)
    return CoupledForm(model, options.dtype, update)
