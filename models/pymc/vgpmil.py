"""PyMC programs of ψ-VGPMIL, written from the paper to check the NumPyro programs.

The programs use different formulas, so that they check each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...datasets.bags import Bags
from ..parts.scale_mixtures import GammaScaleMixture, GaussianScaleMixture, PolyaGammaScaleMixture
from ..vgpmil import VGPMIL
from .sparse_gp import (
    REACH,
    SparseProcess,
    Tensor,
    check_program,
    draw_inducing_value,
    draw_latent,
    evaluated,
    log_expected_negative,
    log_sum_exp,
    parameter,
    pm,
    pt,
    sparse_process,
    sum_over_bags,
    trapezoid,
)

__all__ = ["vgpmil_program"]

# Up to this kernel variance e^f is far from overflow at all values that a sampler may visit.
_LARGEST_TABLED_VARIANCE = 200.0


def vgpmil_program(
    model: VGPMIL,
    bags: Bags,
    *,
    program: str = "marginal",
    process_of: Callable[[Any, Bags], SparseProcess] = sparse_process,
) -> pm.Model:
    """Build the PyMC program of `VGPMIL`, to check the NumPyro programs and compare speeds.

    .. code-block:: text

        ε        ~ N(0, I)                                    whitened_inducing_value
        u        = L ε,  K_ZZ = L Lᵀ                          inducing_value
        η        ~ N(0, I)                                    whitened_latent (full only)
        f        = μ0 + K_XZ L⁻ᵀ ε + √k̃ η                     latent         (full only)
        T_b      ~ noisy maximum of its instance labels       bag_label

    Parameters
    ----------
    model : VGPMIL
        Kernel parameters and mean are numbers, or priors with a counterpart in PyMC: ``Beta``,
        ``Gamma``, ``HalfNormal``, ``InverseGamma``, ``LogNormal``, ``Normal``.
    bags : Bags
        Bag labels are observed if there are any; otherwise they are a site.
    program : {"marginal", "full"}
        ``marginal`` integrates the latent values out by quadrature. In ``full`` they are a site.
    process_of : callable
        Function of the model and the bags that returns the process of the latent values.

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        If ``program`` is neither of the two, or if PyMC programs have no counterpart of ψ or of a
        prior. Also if bags and inducing points have different numbers of features.

    Notes
    -----
    Densities equal those of the NumPyro programs in the coordinates ε (and η), up to a constant.

    References
    ----------
    Castro-Macías et al. (2024), equations 1–4; Haußmann et al. (2017).
    """
    check_program(program)
    model.check_width(bags)
    with pm.Model(coords=_coordinates(model, bags)) as pymc_model:
        mean = parameter("mean", model.mean)
        process = process_of(model, bags)
        location = mean + draw_inducing_value(process)  # μ0 + A u
        if program == "full":
            latent = draw_latent(location, process.scale)
            log_negative, log_either = _given_latent(model.scale_mixture, latent)
        else:
            log_negative, log_either = _given_inducing_values(model, location, process.scale)
        if log_either is not None:
            pm.Potential("scale_mixture", log_either.sum())
        log_none_positive = sum_over_bags(log_negative, bags)  # log p0
        pm.Bernoulli(
            "bag_label",
            logit_p=_log_odds(log_none_positive, float(model.sharpness)),
            observed=bags.labels,
            dims="bag",
        )
    return pymc_model


def _coordinates(model: VGPMIL, bags: Bags) -> dict[str, range]:
    return {
        "inducing_point": range(len(model.inducing_points)),
        "instance": range(bags.num_instances),
        "bag": range(bags.num_bags),
    }


# ---------------------------------------------------------------- instances


def _given_latent(
    scale_mixture: GaussianScaleMixture, latent: Tensor
) -> tuple[Tensor, Tensor | None]:
    """log P(y_n = 0 | f_n), and log [ψ(f_n) · 2cosh(f_n/2)] if ψ is not a hyperbolic secant."""
    log_negative = -pt.softplus(latent)
    if isinstance(scale_mixture, PolyaGammaScaleMixture):
        return log_negative, None
    return log_negative, _log_psi(scale_mixture, latent) + _log_two_cosh_half(latent)


def _given_inducing_values(
    model: VGPMIL, location: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Log probability log E g_0 / E[g_0 + g_1] of a negative label, and log E[g_0 + g_1].

    Expectations are over f_n | u, and g_y(f) = ψ(f) e^{(y−½)f}. The second is None where it is 0.
    """
    scale_mixture, largest = model.scale_mixture, pt.max(scale)
    # A factor whose log derivative in f lies within ±t moves the mass of the integrand by at most
    # ts standard deviations.
    nodes, log_weights = trapezoid(
        largest,
        _distance_to_nearest_pole(scale_mixture),
        reach=REACH + _largest_log_derivative(scale_mixture) * largest,
    )
    if isinstance(scale_mixture, PolyaGammaScaleMixture):  # g_0 = 1 − σ(f), g_0 + g_1 = 1
        if not model.kernel.priors and model.largest_variance(None, {}) <= _LARGEST_TABLED_VARIANCE:
            table, weights = evaluated(pt.exp(nodes * scale), pt.exp(log_weights[:, 0]))
            return log_expected_negative(location, table, weights), None
        return log_sum_exp(-pt.softplus(location + nodes * scale), log_weights), None
    latent = location + nodes * scale
    log_psi = _log_psi(scale_mixture, latent)
    log_none = log_sum_exp(log_psi - 0.5 * latent, log_weights)
    log_either = log_sum_exp(log_psi + _log_two_cosh_half(latent), log_weights)
    return log_none - log_either, log_either


def _log_psi(scale_mixture: GaussianScaleMixture, latent: Tensor) -> Tensor:
    match scale_mixture:
        case PolyaGammaScaleMixture():
            return -_log_two_cosh_half(latent)
        case GammaScaleMixture():
            return -scale_mixture.alpha * pt.log1p(0.5 * latent**2 / scale_mixture.beta)
    raise ValueError(
        f"scale_mixture is {type(scale_mixture).__name__}; the PyMC program knows "
        "PolyaGammaScaleMixture and GammaScaleMixture: sample with nuts instead"
    )


def _log_two_cosh_half(latent: Tensor) -> Tensor:
    return pt.logaddexp(0.5 * latent, -0.5 * latent)


def _distance_to_nearest_pole(scale_mixture: GaussianScaleMixture) -> float:
    """How far from the real line an integrand stays small.

    1/(1 + e^f) has a pole at iπ. (1 + f²/(2β))^{−α} has a branch point at i√(2β); nearer than that
    it has grown to e³.
    """
    if not isinstance(scale_mixture, GammaScaleMixture):
        return math.pi
    alpha, beta = scale_mixture.alpha, scale_mixture.beta
    return math.sqrt(2 * beta * (1 - math.exp(-3 / alpha)))


def _largest_log_derivative(scale_mixture: GaussianScaleMixture) -> float:
    """Bound on |d log g/df| for g = ψ(f) e^{±f/2}: 1, or ½ + α/√(2β) of a Gamma scale mixture."""
    if not isinstance(scale_mixture, GammaScaleMixture):
        return 1.0
    return 0.5 + scale_mixture.alpha / math.sqrt(2 * scale_mixture.beta)


# ---------------------------------------------------------------- bags


def _log_odds(log_none_positive: Tensor, sharpness: float) -> Tensor:
    """Log odds log P(T=1)/P(T=0) = log [H − (H−1) p0] − log [1 + (H−1) p0]."""
    positive = pt.log1p((sharpness - 1) * -pt.expm1(log_none_positive))
    return positive - pt.log1p((sharpness - 1) * pt.exp(log_none_positive))
