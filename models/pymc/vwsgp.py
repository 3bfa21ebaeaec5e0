"""PyMC programs of `VWSGP`, written from the paper to check the NumPyro programs.

The programs use different formulas, so that they check each other.
"""

from __future__ import annotations

import math

import numpy as np

from ...datasets.bags import Bags
from ..parts.likelihoods import Gaussian, Logistic, NegativeBinomial, Probit, StudentT
from ..vwsgp import VWSGP
from .sparse_gp import (
    REACH,
    Tensor,
    accumulated_process,
    check_program,
    draw_inducing_value,
    log_normal_probability,
    log_sum_exp,
    parameter,
    pm,
    pt,
    trapezoid,
)

__all__ = ["vwsgp_program"]

# Bisection steps to the mode of an integrand. Nodes need not be centred on it exactly.
_BISECTIONS = 25


def vwsgp_program(model: VWSGP, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """Build the PyMC program of `VWSGP`, to check the NumPyro programs and compare speeds.

    .. code-block:: text

        ε        ~ N(0, I)                                    whitened_inducing_value
        u        = L ε,  K_ZZ = L Lᵀ                          inducing_value
        η        ~ N(0, I)                                    whitened_bag_latent (full only)
        s_b      = a_bᵀu + √k̄_b η_b                           bag_latent       (full only)
        T_b      ~ Bernoulli(σ(s_b)), or Bernoulli(Φ(Y_b))    bag_label
        Y_b      ~ N(s_b, noise), s_b + scale·t_ν, or NB(r)   bag_target

    Parameters
    ----------
    model : VWSGP
        Kernel parameters, and noise or scale of targets, are numbers, or priors with a counterpart
        in PyMC: ``Beta``, ``Gamma``, ``HalfNormal``, ``InverseGamma``, ``LogNormal``, ``Normal``.
    bags : Bags
        Labels (or targets) are observed if there are any; otherwise they are a site.
    program : {"marginal", "full"}
        ``marginal`` integrates the latent values of the bags out. In ``full`` they are a site.

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        If ``program`` is neither of the two, or if PyMC has no counterpart of a prior. Also if bags
        and inducing points have different numbers of features.

    Notes
    -----
    Densities equal those of the NumPyro programs in the coordinates ε (and η), up to a constant.

    References
    ----------
    Kandemir et al. (2016), section 3.
    """
    check_program(program)
    model.check_width(bags)
    coordinates = {
        "inducing_point": range(len(model.inducing_points)),
        "bag": range(bags.num_bags),
    }
    with pm.Model(coords=coordinates) as pymc_model:
        process = accumulated_process(model, bags)
        location, scale = draw_inducing_value(process), process.scale  # a_bᵀu, √k̄_b
        if program == "full":
            noise = pm.Normal("whitened_bag_latent", dims="bag")  # η
            location = pm.Deterministic("bag_latent", location + scale * noise, dims="bag")
            scale = None
        _observe(model, bags, location, scale)
    return pymc_model


def _observe(model: VWSGP, bags: Bags, location: Tensor, scale: Tensor | None) -> None:
    """Observe labels or targets given s_b ~ N(location, scale²), or s_b = location if no scale."""
    match model.likelihood:
        case Logistic():
            log_odds = location if scale is None else _log_expected_odds(location, scale)
        case Probit(noise=noise):
            variance = 1.0 + noise + (0.0 if scale is None else scale**2)
            argument = location / pt.sqrt(variance)
            log_odds = log_normal_probability(argument) - log_normal_probability(-argument)
        case Gaussian() | StudentT() | NegativeBinomial():
            _observe_targets(model.likelihood, bags, location, scale)
            return
        case _:
            raise NotImplementedError(
                f"{type(model.likelihood).__name__} has no PyMC program; sample with nuts"
            )
    pm.Bernoulli("bag_label", logit_p=log_odds, observed=bags.labels, dims="bag")


def _observe_targets(
    likelihood: Gaussian | StudentT | NegativeBinomial,
    bags: Bags,
    location: Tensor,
    scale: Tensor | None,
) -> None:
    observation = {"observed": bags.targets, "dims": "bag"}
    match likelihood:
        case Gaussian(noise=noise):
            variance = parameter("noise", noise) + (0.0 if scale is None else scale**2)
            pm.Normal("bag_target", location, pt.sqrt(variance), **observation)
        case StudentT(degrees_of_freedom=degrees, scale=noise):
            noise = parameter("noise_scale", noise)
            if scale is None:
                pm.StudentT("bag_target", nu=degrees, mu=location, sigma=noise, **observation)
                return
            parameters = (location, scale, np.float64(degrees), noise)
            pm.CustomDist(
                "bag_target",
                *parameters,
                logp=_log_expected_student,
                random=_draw_student,
                **observation,
            )
        case NegativeBinomial(total_count=total):
            if bags.targets is not None:
                observation["observed"] = np.asarray(bags.targets).astype(int)
            if scale is None:
                chance = pt.sigmoid(-location)
                # PyMC counts failures before the r-th success, with probability p of success.
                pm.NegativeBinomial("bag_target", n=total, p=chance, **observation)
                return
            pm.CustomDist(
                "bag_target",
                *(location, scale, np.float64(total)),
                logp=_log_expected_counts,
                random=_draw_counts,
                dtype="int64",
                **observation,
            )


def _log_expected_student(
    target: Tensor, location: Tensor, scale: Tensor, degrees: Tensor, noise: Tensor
) -> Tensor:
    """Log density of a target with Student-t noise: log E t_ν((y − s)/σ)/σ.

    Here s ~ N(location, scale²). The integrand has poles at s = y ± iσ√ν. A Student-t that is
    narrower than this Gaussian moves mass of the integrand to y, however far y is. Beyond 12 sds
    that mass is below e^−72.
    """
    pole = 0.9 * pt.min(noise * pt.sqrt(degrees))
    nodes, log_weights = trapezoid(pt.max(scale), pole, reach=2.0 * REACH)
    squared = ((target - location - scale * nodes) / noise) ** 2
    log_density = (
        pt.gammaln((degrees + 1.0) / 2.0)
        - pt.gammaln(degrees / 2.0)
        - 0.5 * pt.log(degrees * math.pi)
        - pt.log(noise)
        - 0.5 * (degrees + 1.0) * pt.log1p(squared / degrees)
    )
    return log_sum_exp(log_density, log_weights)


def _draw_student(
    location: np.ndarray,
    scale: np.ndarray,
    degrees: np.ndarray,
    noise: np.ndarray,
    rng: np.random.Generator,
    size: tuple[int, ...] | None = None,
) -> np.ndarray:
    latent = rng.normal(location, scale, size=size)
    return latent + noise * rng.standard_t(degrees, size=np.shape(latent))


def _log_expected_counts(count: Tensor, location: Tensor, scale: Tensor, total: Tensor) -> Tensor:
    """Log probability of a count, log E C(y + r − 1, y) σ(s)^y σ(−s)^r, s ~ N(location, scale²).

    The integrand is log-concave and falls from its mode at least as fast as the Gaussian. Nodes are
    therefore centred on the mode, which bisection finds. The path of integration ends half-way to
    the poles at ±iπ, where the integrand has grown by at most 2^(n/2), n = y + r.
    """
    trials = count + total

    def gradient(z: Tensor) -> Tensor:
        return scale * (count - trials * pt.sigmoid(location + scale * z)) - z

    lower, upper = -total * scale, count * scale
    for _ in range(_BISECTIONS):
        middle = 0.5 * (lower + upper)
        is_below = gradient(middle) > 0.0
        lower, upper = pt.switch(is_below, middle, lower), pt.switch(is_below, upper, middle)
    nodes, log_weights = trapezoid(
        pt.max(scale), math.pi / 2, reach=REACH + 1.0, centre=0.5 * (lower + upper)
    )
    latent = location + scale * nodes
    loss = count * pt.softplus(-latent) + total * pt.softplus(latent)
    choices = pt.gammaln(trials) - pt.gammaln(count + 1.0) - pt.gammaln(total)
    return choices + log_sum_exp(-loss, log_weights)


def _draw_counts(
    location: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
    rng: np.random.Generator,
    size: tuple[int, ...] | None = None,
) -> np.ndarray:
    chance = 1.0 / (1.0 + np.exp(rng.normal(location, scale, size=size)))
    return rng.negative_binomial(total, chance)


def _log_expected_odds(location: Tensor, scale: Tensor) -> Tensor:
    """Log odds log E σ(s) / E[1 − σ(s)], s ~ N(location, scale²).

    It takes two integrals, because 1 − E σ(s) would lose digits where it is small.
    """
    return _log_expected_sigmoid(location, scale) - _log_expected_sigmoid(-location, scale)


def _log_expected_sigmoid(location: Tensor, scale: Tensor) -> Tensor:
    """Log expected sigmoid, log E σ(a + sz), z ~ N(0, 1).

    σ grows like e^{sz} up to a + sz = 0 and stays below 1 from there on. The mass of the integrand
    therefore lies near z = −a/s, clipped to at least 0 and at most s. Its mean is less than one sd
    from there. The integrand falls at least as fast as a Gaussian, so that large s needs no wider
    range of nodes.
    """
    centre = pt.clip(-location / scale, 0.0, scale)
    nodes, log_weights = trapezoid(pt.max(scale), math.pi, reach=REACH + 1.0, centre=centre)
    return log_sum_exp(-pt.softplus(-(location + scale * nodes)), log_weights)
