"""ψ-VGPMIL in PyMC: written from the paper, sharing no formula with the NumPyro programs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist

from ...datasets.bags import Bags
from ..kernels import Parameter
from ..scale_mixtures import GammaMixing, Mixing, PolyaGammaMixing
from ..vgpmil import VGPMIL

try:
    import pymc as pm
    import pytensor
    import pytensor.tensor
    from pytensor.compile.builders import OpFromGraph
    from pytensor.compile.sharedvalue import shared
except ImportError as error:
    raise ImportError(
        f"{error.name} is not installed, and the PyMC twin needs it: pip install 'milzoo[pymc]'"
    ) from error

__all__ = ["pymc_twin"]

# To type checkers the elementwise functions of PyTensor return None, and its variables have no
# operators.
pt: Any = pytensor.tensor
Tensor = Any

# −log of the relative error of an integral.
_LOG_ACCURACY = 28.0
# Nodes reach this many standard deviations beyond the mass of the integrand: 2e-9 is left out.
_REACH = 6.0
# Largest kernel variance for which e^f is far from overflow everywhere a sampler may look.
_LARGEST_TABLED_VARIANCE = 200.0


def pymc_twin(model: VGPMIL, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """The model as a PyMC program, to check the NumPyro programs and to race against them.

    .. code-block:: text

        ε        ~ N(0, I)                                    white_inducing_value
        u        = L ε,  K_ZZ = L Lᵀ                          inducing_value
        η        ~ N(0, I)                                    white_evidence   (full only)
        f        = μ0 + K_XZ L⁻ᵀ ε + √k̃ η                     evidence         (full only)
        T_b      ~ noisy maximum of its instance labels       bag_label

    Parameters
    ----------
    model : VGPMIL
        Kernel parameters and mean are numbers, or priors that PyMC has too: ``Gamma``,
        ``HalfNormal``, ``InverseGamma``, ``LogNormal``, ``Normal``.
    bags : Bags
        With labels to condition on them; without, the labels are a site.
    program : {"marginal", "full"}
        With the evidence integrated out by quadrature, or with it as a site.

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        If ``program`` is neither of the two, if ψ or a prior is not one that PyMC has too, or if
        the bags have another number of features than the inducing points.

    Notes
    -----
    Densities equal those of the NumPyro programs in the coordinates ε (and η), up to a constant.

    References
    ----------
    Castro-Macías et al. (2024), equations 1–4; Haußmann et al. (2017).
    """
    if program not in ("marginal", "full"):
        raise ValueError(f"program is {program!r}; expected 'marginal' or 'full'")
    expected, found = model.inducing_points.shape[1], bags.num_features
    if expected != found:
        raise ValueError(
            f"bags have {found} features, but the inducing points of this model have {expected}; "
            f"pass bags with the {expected} features that the model was made for"
        )
    with pm.Model(coords=_coordinates(model, bags)) as twin:
        mean = _parameter("mean", model.mean)
        process = _sparse_process(model, bags)
        white = pm.Normal("white_inducing_value", dims="inducing_point")  # ε
        pm.Deterministic("inducing_value", process.cholesky @ white, dims="inducing_point")
        location = mean + process.projection @ white  # μ0 + A u
        if program == "full":
            noise = pm.Normal("white_evidence", dims="instance")  # η
            evidence = pm.Deterministic(
                "evidence", location + process.scale * noise, dims="instance"
            )
            log_negative, log_either = _given_evidence(model.mixing, evidence)
        else:
            log_negative, log_either = _given_inducing_values(model, location, process.scale)
        if log_either is not None:
            pm.Potential("mixing", log_either.sum())
        log_none_positive = _sum_over_bags(log_negative, bags)  # log p0
        pm.Bernoulli(
            "bag_label",
            logit_p=_log_odds(log_none_positive, model.sharpness),
            observed=bags.labels,
            dims="bag",
        )
    return twin


def _coordinates(model: VGPMIL, bags: Bags) -> dict[str, range]:
    return {
        "inducing_point": range(len(model.inducing_points)),
        "instance": range(bags.num_instances),
        "bag": range(bags.num_bags),
    }


def _parameter(name: str, value: Parameter) -> Tensor:
    """A number as it is, a NumPyro distribution as PyMC's distribution of the same law."""
    match value:
        case dist.LogNormal():
            return pm.LogNormal(name, mu=float(value.loc), sigma=float(value.scale))
        case dist.InverseGamma():
            return pm.InverseGamma(name, alpha=float(value.concentration), beta=float(value.rate))
        case dist.Gamma():
            return pm.Gamma(name, alpha=float(value.concentration), beta=float(value.rate))
        case dist.HalfNormal():
            return pm.HalfNormal(name, sigma=float(value.scale))
        case dist.Normal():
            return pm.Normal(name, mu=float(value.loc), sigma=float(value.scale))
        case dist.Distribution():
            raise ValueError(
                f"prior of {name} is {type(value).__name__}; expected one that PyMC has too: "
                "Gamma, HalfNormal, InverseGamma, LogNormal or Normal"
            )
    return pt.constant(float(value))


# ---------------------------------------------------------------- the Gaussian process


class _SparseProcess(NamedTuple):
    """f_n | ε ~ N(μ0 + V_n ε, s_n²), with u = Lε."""

    cholesky: Tensor  # L (M, M)
    projection: Tensor  # V = K_XZ L⁻ᵀ (N, M)
    scale: Tensor  # s = √k̃ (N,)


def _sparse_process(model: VGPMIL, bags: Bags) -> _SparseProcess:
    variance = _parameter("variance", model.kernel.variance)
    length_scale = _parameter("length_scale", model.kernel.length_scale)

    covariance = variance * pm.gp.cov.ExpQuad(bags.num_features, ls=length_scale)
    inducing_points = pt.constant(model.inducing_points)
    jitter = max(model.jitter, 8 * float(np.finfo(float).eps)) * variance
    within = covariance(inducing_points) + jitter * pt.eye(len(model.inducing_points))
    cholesky = pt.linalg.cholesky(within)
    across = covariance(inducing_points, pt.constant(bags.instances))
    projection = pt.linalg.solve_triangular(cholesky, across, lower=True).T
    # k̃_n = k(x_n, x_n) − A_n K_Zn, kept from falling below zero by rounding.
    scale = pt.sqrt(pt.maximum(variance - (projection**2).sum(-1), jitter))
    process = _SparseProcess(cholesky, projection, scale)
    return process if model.kernel.priors else _SparseProcess(*_evaluated(*process))


def _evaluated(*tensors: Tensor) -> list[Tensor]:
    """The values of tensors that hang on no random variable, for a graph to look up."""
    return [shared(tensor.eval(mode="FAST_COMPILE")) for tensor in tensors]


# ---------------------------------------------------------------- instances


def _given_evidence(mixing: Mixing, evidence: Tensor) -> tuple[Tensor, Tensor | None]:
    """log P(y_n = 0 | f_n), and log [ψ(f_n) · 2cosh(f_n/2)] if ψ is not the hyperbolic secant."""
    log_negative = -pt.softplus(evidence)
    if isinstance(mixing, PolyaGammaMixing):
        return log_negative, None
    return log_negative, _log_psi(mixing, evidence) + _log_two_cosh_half(evidence)


def _given_inducing_values(
    model: VGPMIL, location: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor | None]:
    """log of E g_0 / E[g_0 + g_1] and log E[g_0 + g_1] over f_n | u, g_y(f) = ψ(f) e^{(y−½)f}."""
    mixing = model.mixing
    nodes, weights = _trapezoid(pt.max(scale), _distance_to_nearest_pole(mixing))
    if isinstance(mixing, PolyaGammaMixing):  # g_0 = 1 − σ(f), g_0 + g_1 = 1
        if not model.kernel.priors and model.kernel.variance <= _LARGEST_TABLED_VARIANCE:
            table, weights = _evaluated(pt.exp(nodes[:, None] * scale), weights)
            return _log_expected_negative(location, table, weights), None
        evidence = location + nodes[:, None] * scale
        return _log_sum_exp(-pt.softplus(evidence), weights), None
    evidence = location + nodes[:, None] * scale
    log_psi = _log_psi(mixing, evidence)
    log_none = _log_sum_exp(log_psi - 0.5 * evidence, weights)
    log_either = _log_sum_exp(log_psi + _log_two_cosh_half(evidence), weights)
    return log_none - log_either, log_either


def _log_psi(mixing: Mixing, evidence: Tensor) -> Tensor:
    match mixing:
        case PolyaGammaMixing():
            return -_log_two_cosh_half(evidence)
        case GammaMixing():
            return -mixing.alpha * pt.log1p(0.5 * evidence**2 / mixing.beta)
    raise ValueError(
        f"mixing is {type(mixing).__name__}; the PyMC twin knows PolyaGammaMixing and "
        "GammaMixing: sample with nuts instead"
    )


def _log_two_cosh_half(evidence: Tensor) -> Tensor:
    return pt.logaddexp(0.5 * evidence, -0.5 * evidence)


# ---------------------------------------------------------------- integrals over the evidence


def _distance_to_nearest_pole(mixing: Mixing) -> float:
    """Of 1/(1 + e^f): iπ. Of (1 + f²/(2β))^{−α}: i√(2β)."""
    return math.sqrt(2 * mixing.beta) if isinstance(mixing, GammaMixing) else math.pi


def _trapezoid(largest_scale: Tensor, pole: float) -> tuple[Tensor, Tensor]:
    """Nodes z_k and weights w_k with Σ_k w_k g(a + s z_k) ≈ E g(f), f ~ N(a, s²), any s ≤ largest.

    The trapezoid rule with step h errs by exp(y²/2 − 2πy/h), where y is how far the integrand
    can be moved off the real line: to the pole of g, at d/s, or to 2π/h, past which nothing is
    gained. h is such that this is e^−28. Factors between e^{−f} and e^f move the mass of the
    integrand by up to s, and so the nodes reach.
    """
    room = pt.minimum(pole / largest_scale, math.sqrt(2 * _LOG_ACCURACY))  # y
    step = 2 * math.pi * room / (_LOG_ACCURACY + room**2 / 2)  # h
    reach = pt.ceil((_REACH + largest_scale) / step)
    nodes = step * pt.arange(-reach, reach + 1)
    return nodes, step * pt.exp(-0.5 * nodes**2) / math.sqrt(2 * math.pi)


def _log_expected_negative(location: Tensor, table: Tensor, weights: Tensor) -> Tensor:
    """log E[1 − σ(f)] from the table e^{s z_k}: one division for each node, none for the slope.

    With R = 1 − σ(f) = 1/(1 + e^a e^{s z}) and ∂R/∂a = −R(1 − R), the slope of log E R in a is
    E R² / E R − 1.
    """

    def negative(a: Tensor, table: Tensor) -> Tensor:  # R
        return 1.0 / (1.0 + pt.exp(a) * table)

    def pull_back(inputs: list[Tensor], _: list[Tensor], cotangents: list[Tensor]) -> list[Tensor]:
        a, table, weights = inputs
        one, two = pt.dot(weights, negative(a, table)), pt.dot(weights, negative(a, table) ** 2)
        return [cotangents[0] * (two / one - 1.0), pt.zeros_like(table), pt.zeros_like(weights)]

    a, e, w = pt.vector(), pt.matrix(), pt.vector()
    log_expectation = OpFromGraph(
        [a, e, w], [pt.log(pt.dot(w, negative(a, e)))], inline=True, pullback=pull_back
    )
    return log_expectation(location, table, weights)


def _log_sum_exp(log_values: Tensor, weights: Tensor) -> Tensor:
    """log Σ_k w_k g_k."""
    return pt.logsumexp(log_values + pt.log(weights)[:, None], axis=0)


# ---------------------------------------------------------------- bags


def _sum_over_bags(values: Tensor, bags: Bags) -> Tensor:
    return pt.zeros(bags.num_bags)[bags.bag_index].inc(values)


def _log_odds(log_none_positive: Tensor, sharpness: float) -> Tensor:
    """log P(T=1)/P(T=0) = log [H − (H−1) p0] − log [1 + (H−1) p0]."""
    positive = pt.log1p((sharpness - 1) * -pt.expm1(log_none_positive))
    return positive - pt.log1p((sharpness - 1) * pt.exp(log_none_positive))
