"""PyMC programs of `CoupledVGPMIL`, which average over neighbours by a dense matrix.

The NumPyro programs sum over edges, so that the two check each other.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from ...datasets.bags import Bags
from ..coupled_vgpmil import CoupledVGPMIL
from .sparse_gp import SparseProcess, evaluated, pm, pt, sparse_process
from .vgpmil import vgpmil_program

__all__ = ["coupled_vgpmil_program"]


def coupled_vgpmil_program(
    model: CoupledVGPMIL, bags: Bags, *, program: str = "marginal"
) -> pm.Model:
    """Build the PyMC program of `CoupledVGPMIL`, to check the NumPyro programs and compare speeds.

    .. code-block:: text

        ε        ~ N(0, I)                                    whitened_inducing_value
        u        = L ε,  K_ZZ = L Lᵀ                          inducing_value
        η        ~ N(0, I)                                    whitened_latent (full only)
        f        = μ0 + S K_XZ L⁻ᵀ ε + √((S∘S) k̃) η           latent         (full only)
        T_b      ~ noisy maximum of its instance labels       bag_label

    Parameters
    ----------
    model : CoupledVGPMIL
        Kernel parameters and mean are numbers, or priors with a counterpart in PyMC.
    bags : Bags
        Bag labels are observed if there are any; otherwise they are a site. S is a dense matrix of
        N² numbers.
    program : {"marginal", "full"}
        ``marginal`` integrates the latent values out by quadrature. In ``full`` they are a site.

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        As in `milzoo.models.pymc.vgpmil.vgpmil_program`.

    References
    ----------
    As in `CoupledVGPMIL`.
    """
    return vgpmil_program(model, bags, program=program, process_of=_averaged_process)


def _averaged_process(model: CoupledVGPMIL, bags: Bags) -> SparseProcess:
    """Sparse process of the averaged latent values: S V, and the root of (S∘S) k̃."""
    cholesky, projection, scale = sparse_process(model, bags)
    averages = _averages(model, bags)
    averaged = (
        pt.dot(averages, projection),
        pt.sqrt(pt.dot(averages**2, scale**2)),
    )
    return SparseProcess(cholesky, *(averaged if model.kernel.priors else evaluated(*averaged)))


def _averages(model: CoupledVGPMIL, bags: Bags) -> Float[np.ndarray, "N N"]:
    """Matrix S of weights: 1 − γ for the instance, γ for the mean of its neighbours, if any."""
    averages = np.eye(bags.num_instances)
    if bags.edges is None:
        return averages
    adjacency = bags.edges.as_matrix(bags.num_instances).toarray()
    for instance, weights in enumerate(adjacency):
        if weights.any():
            averages[instance] *= 1 - model.coupling
            averages[instance] += model.coupling * weights / weights.sum()
    return averages
