"""VGPMIL with correlated instance labels: latent values averaged over neighbours in the bag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from jaxtyping import Array, Float

from ..datasets.arguments import Rule, is_number
from ..datasets.bags import Bags
from .numerics.tracing import as_pytree
from .parts.coupling import averaged
from .parts.sparse_gp import SparseConditional
from .registry import register
from .vgpmil import VGPMIL

__all__ = ["CoupledVGPMIL"]

_COUPLING = Rule(
    "a number of at least 0 and below 1 (0 is VGPMIL)",
    lambda value: is_number(value) and bool(0 <= value < 1),
)


@register
@as_pytree()
@dataclass(frozen=True, eq=False)
class CoupledVGPMIL(VGPMIL):
    """VGPMIL whose latent values are averaged over the neighbours of an instance in its bag.

    .. code-block:: text

        u               ~ N(0, K_ZZ)                               inducing_value (inducing_point)
        g_n             = A_n u + r_n, r_n independent N(0, k̃_n)
        f_n | u         ~ N(μ0 + (S A)_n u, Σ_j S_nj² k̃_j)         latent       (instance)
        y_n | f_n       ~ Bernoulli(σ(f_n))                        instance_label (instance)
        T_b | y_b       = max y_b with probability H/(H + 1)       bag_label      (bag)

    with A and k̃ of VGPMIL and S = (1 − γ) I + γ W, W_nj = w_nj / Σ_j w_nj along the edges of the
    bags (`Bags.with_edges`). An instance without neighbours has f_n = μ0 + g_n. Given u, f_n has
    the mean and the variance of μ0 + (S g)_n. Covariances of the residuals between neighbours are
    left out: given u the latent values are independent, as FITC has it, which is a part of this
    model. So latent values of neighbours are correlated through u alone.

    ===============  ======  =====================================================
    field            symbol  meaning
    ===============  ======  =====================================================
    kernel           k       such as ``RBF(variance, length_scale)``: v and ℓ, of g
    inducing_points  Z       (M, D)
    mean             μ0      constant prior mean of f
    sharpness        H       odds that the bag label is the maximum of its y
    scale_mixture    ψ       ``PolyaGammaScaleMixture()`` is the logistic model above
    coupling         γ       weight of the neighbours; 0 is VGPMIL
    ===============  ======  =====================================================

    The three programs, the bound and the Gibbs sampler are those of `VGPMIL` with V' = S V and
    k̃' = (S∘S) k̃ in the place of V and k̃. Predictions use the edges of the new bags. Bags without
    edges are those of `VGPMIL`.

    Parameters
    ----------
    kernel, inducing_points, mean, sharpness, scale_mixture, jitter
        As in `VGPMIL`.
    coupling : float
        γ, 0 ≤ γ < 1. It is not a hyper-parameter that engines learn: choose it on held-out bags.

    Raises
    ------
    ValueError
        If a field is out of range.

    Notes
    -----
    The paper is about a probit model, whose utilities it couples by a Gaussian factor that it
    likens to the Ising model. In the authors' programs utilities are m | f ~ N(Σ f, Σ) with
    Σ = (I + λC)⁻¹ and a positive semi-definite matrix C of the neighbours: averages along the whole
    graph, with correlated residuals, which their update of q(m) takes as independent. Here averages
    are over direct neighbours, and independence is a part of the model: labels are summed out of a
    bag exactly, for any graph, and all engines of `VGPMIL` run.

    References
    ----------
    Morales-Álvarez, Schmidt, Hernández-Lobato and Molina (2024), Introducing instance label
    correlation in multiple instance learning. Application to cancer detection on histopathological
    images, Pattern Recognition 146; arXiv 2310.19359.

    Examples
    --------
    >>> from milzoo.datasets import patch_on_grid
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import CoupledVGPMIL
    >>> train, test = patch_on_grid(20, seed=0), patch_on_grid(5, seed=1)
    >>> model = CoupledVGPMIL.for_bags(train, num_inducing=10, coupling=0.8)
    >>> prediction = coordinate_ascent(model, train, seed=0).predict(test)
    >>> test.labels[:4], prediction.bag_probability[:4].round(1)
    (array([1, 0, 1, 0]), array([0.7, 0.1, 0.8, 0.4]))
    """

    coupling: Annotated[float | Float[Array, ""], _COUPLING] = 0.5

    name: ClassVar[str] = "coupled_vgpmil"

    def conditional(self, bags: Bags) -> SparseConditional:
        """Conditional distribution of the averaged latent values given the inducing values.

        Raises
        ------
        ValueError
            If the bags have another number of features than the inducing points.
        MemoryError
            If there is not enough memory for K_NZ.
        """
        rows = super().conditional(bags)
        return rows if bags.edges is None else averaged(rows, bags.edges, self.coupling)
