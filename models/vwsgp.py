"""VWSGP: a sparse Gaussian process whose latent function values are summed over a bag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..datasets.bags import Bags
from ..datasets.padding import padded
from .model import Draws
from .numerics.tracing import as_pytree
from .parts.bag_latent import BagLatentModel, FloatType
from .parts.settings import Setting
from .parts.sparse_gp import Projector, SparseConditional, SparseGPModel, accumulated_conditional
from .registry import register

__all__ = ["VWSGP"]

type Accumulation = Literal["joint", "independent_instances"]
ACCUMULATIONS: tuple[Accumulation, ...] = ("joint", "independent_instances")


@register
@as_pytree()
@dataclass(frozen=True, eq=False)
class VWSGP(BagLatentModel, SparseGPModel):
    """Sparse-GP weakly supervised learning: latent function values are summed over a bag.

    .. code-block:: text

        u               ~ N(0, K_ZZ)                               inducing_value (inducing_point)
        f_n | u         ~ N(A_n u, k̃_n)
        s_b             = Σ_{n∈b} f_n ~ N(a_bᵀu, k̄_b)              bag_latent   (bag)
        T_b | s_b       ~ Bernoulli(σ(s_b))                        bag_label      (bag)

    with A = K_XZ K_ZZ⁻¹, k̃_n = k(x_n, x_n) − (A K_ZX)_nn, a_b = Σ_{n∈b} A_n and k̄_b = Σ_{n∈b} k̃_n.
    The instances enter by these sums alone. Other likelihoods replace the last line:

    .. code-block:: text

        Probit            T_b ~ Bernoulli(Φ(Y_b)), Y_b ~ N(s_b, noise)   bag_label    (bag)
        Gaussian          Y_b ~ N(s_b, noise)                            bag_target   (bag)
        StudentT          Y_b = s_b + scale·t_ν                          bag_target   (bag)
        NegativeBinomial  Y_b ~ NB(r, σ(s_b)), mean r·exp(s_b)           bag_target   (bag)

    ===============  ======  =====================================================
    field            symbol  meaning
    ===============  ======  =====================================================
    kernel           k       such as ``RBF(variance, length_scale)``: v and ℓ
    inducing_points  Z       (M, D)
    likelihood               ``Logistic()``, or another object of `milzoo.models`
    ===============  ======  =====================================================

    Calling it runs the paper's program with s_b as sites. ``marginal()`` has them integrated out:
    only u remains. ``augmented()`` has the auxiliary variables of the closed-form ELBO.

    Parameters
    ----------
    kernel : Kernel
        Such as ``RBF(variance, length_scale)``.
    inducing_points : array (M, D)
    likelihood : Likelihood
        Of labels ``Logistic()`` or ``Probit(noise)``; of targets, which is multiple-instance
        regression, ``Gaussian(noise)``, ``StudentT(degrees_of_freedom, scale)`` or
        ``NegativeBinomial(total_count)``.
    jitter : float
        Added to the diagonal of K_ZZ, as a fraction of the average number there.

    Raises
    ------
    ValueError
        If a field is out of range.

    References
    ----------
    Kandemir et al. (2016), Variational weakly supervised Gaussian processes, BMVC: section 3;
    footnote 1 for targets, section 4.3 for the probit.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import VWSGP
    >>> train, test = load("digits").standardize().split(0.7, seed=0)
    >>> prediction = coordinate_ascent(VWSGP.for_bags(train), train, seed=0).predict(test)
    >>> test.labels[:4], prediction.bag_probability[:4].round(1)
    (array([1, 0, 1, 1]), array([0.7, 0.4, 0.8, 0.4]))
    """

    name: ClassVar[str] = "vwsgp"
    instance_note: ClassVar[str] = (
        "an instance's probability is that of a bag that holds it alone; the model has no "
        "instance labels"
    )
    settings: ClassVar[Mapping[str, Setting]] = {
        **SparseGPModel.settings,
        **BagLatentModel.settings,
    }

    def most_terms(self, bags: Bags) -> int:
        """Number of instances of the longest bag."""
        return int(bags.bag_sizes.max())

    def conditional(self, bags: Bags) -> SparseConditional:
        """Conditional distribution of single instances: a bag of one has s_b = f_n."""
        return SparseGPModel.conditional(self, bags)

    def accumulated(
        self, bags: Bags, dtype: FloatType = "float64", projector: Projector | None = None
    ) -> SparseConditional:
        """a_b and k̄_b in whitened coordinates, in one pass over the instances.

        Parameters
        ----------
        bags : Bags
        dtype : {"float64", "float32"}
            Of the kernel; under 64 bit the sums are 64-bit in any case. Kernels in 32 bit have
            errors of about 1e-7, and k̃ by more where K_ZZ is close to singular.
        projector : Projector or None
            As from `projector`, to be used for many chunks; None to compute it here.

        Returns
        -------
        SparseConditional

        Raises
        ------
        ValueError
            If the bags have another number of features than the inducing points.
        """
        self.check_width(bags)
        return accumulated_conditional(projector or self.projector(), bags, dtype)

    def predict(self, draws: Draws, bags: Bags, *, accumulation: Accumulation = "joint") -> Draws:
        """Predict bags and instances under each draw; their latent values are integrated out.

        Parameters
        ----------
        draws : dict of arrays
            ``inducing_value`` (S, M), and (S,) for each hyper-parameter that has a prior.
        bags : Bags
            B bags with N instances; their labels and targets are not used.
        accumulation : {"joint", "independent_instances"}
            How latent values are summed. ``"joint"`` is exact: given u the sum s* of a bag is
            Gaussian, with the covariance of its instances through u. The paper's
            ``"independent_instances"`` takes f*_n ~ N(A_n m, A_n S A_nᵀ + k̃_n) one by one, with m
            and S those of the draws. It neglects covariances, and bags then have one draw, S = 1.

        Returns
        -------
        dict of arrays
            Of labels: ``bag_probability`` (S, B), P(T* = 1 | u); ``instance_probability`` (S, N),
            that of a bag that holds this instance alone, as the model has no instance labels.
            Of targets: ``bag_mean`` and ``bag_scale`` (S, B) of Y* | u; ``instance_mean`` and
            ``instance_scale`` (S, N) of f*_n | u, the term of one instance. Of targets
            that are not Gaussian given u also ``bag_latent_mean`` and ``bag_latent_scale`` (S, B).

        Raises
        ------
        ValueError
            If ``accumulation`` is unknown.
        """
        if accumulation not in ACCUMULATIONS:
            raise ValueError(
                f"accumulation is {accumulation!r}; expected one of {', '.join(ACCUMULATIONS)}"
            )
        predicted = super().predict(draws, bags)
        if accumulation == "independent_instances":
            with jax.enable_x64(True):
                sites = {name: np.asarray(draws[name]) for name in self.latent_sites}
                independent = self._predict_independently(sites, bags)
                predicted |= {name: np.asarray(value) for name, value in independent.items()}
        return predicted

    def _predict_independently(
        self, sites: dict[str, Float[np.ndarray, "S ..."]], bags: Bags
    ) -> dict[str, Float[Array, "1 B"]]:
        """Predict bags as if their instances had independent inducing values, by moments."""
        mean, variance = _instance_moments(self, sites, padded(bags))
        by_bag = partial(np.bincount, np.asarray(bags.bag_index), minlength=bags.num_bags)
        rows = slice(bags.num_instances)
        location = by_bag(np.asarray(mean)[rows])
        scale = np.sqrt(by_bag(np.asarray(variance)[rows]))
        typical = {name: float(np.mean(sites[name])) for name in self.priors}
        model = self.with_hyperparameters(typical)
        rule = self.likelihood.quadrature_rule(float(scale.max()))
        described = model._describe_bags(jnp.asarray(location), jnp.asarray(scale), rule)
        return {name: value[None] for name, value in described.items()}


@jax.jit
def _instance_moments(
    model: VWSGP, sites: dict[str, Float[Array, "S ..."]], bags: Bags
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Mean and variance of f_n over all draws of u: A_n m and A_n S A_nᵀ + k̃_n."""
    fixed = None if model.priors else model.conditional(bags)

    def add(moments: tuple, site: dict[str, Float[Array, "..."]]) -> tuple[tuple, None]:
        rows = fixed or model.with_hyperparameters(site).conditional(bags)
        value, (count, mean, squares, residual) = rows.mean(site["inducing_value"]), moments
        change = value - mean  # Welford: no difference of large sums
        mean = mean + change / (count + 1)
        squares = squares + change * (value - mean)
        return (count + 1, mean, squares, residual + rows.residual_variance), None

    zeros = jnp.zeros(bags.num_instances)
    start = (jnp.zeros(()), zeros, zeros, zeros)
    (count, mean, squares, residual), _ = jax.lax.scan(add, start, sites)
    return mean, (squares + residual) / count
