"""VWSGP in PyMC: written from the paper, sharing no formula with the NumPyro programs."""

from __future__ import annotations

import math

from ...datasets.bags import Bags
from ..vwsgp import VWSGP
from .sparse_gp import (
    REACH,
    Tensor,
    accumulated_process,
    check_program,
    draw_inducing_value,
    log_sum_exp,
    parameter,
    pm,
    pt,
    trapezoid,
)

__all__ = ["pymc_twin"]


def pymc_twin(model: VWSGP, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """The model as a PyMC program, to check the NumPyro programs and to race against them.

    .. code-block:: text

        ε        ~ N(0, I)                                    white_inducing_value
        u        = L ε,  K_ZZ = L Lᵀ                          inducing_value
        η        ~ N(0, I)                                    white_bag_evidence (full only)
        s_b      = a_bᵀu + √k̄_b η_b                           bag_evidence       (full only)
        T_b      ~ Bernoulli(σ(s_b)), or Bernoulli(Φ(Y_b))    bag_label
        Y_b      ~ N(s_b, noise)                              bag_target

    Parameters
    ----------
    model : VWSGP
        Kernel parameters, and the noise of targets, are numbers, or priors that PyMC has too:
        ``Gamma``, ``HalfNormal``, ``InverseGamma``, ``LogNormal``, ``Normal``.
    bags : Bags
        With labels (or targets) to condition on them; without, they are a site.
    program : {"marginal", "full"}
        With the evidence of the bags integrated out, or with it as a site.

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        If ``program`` is neither of the two, if a prior is not one that PyMC has too, or if the
        bags have another number of features than the inducing points.

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
    with pm.Model(coords=coordinates) as twin:
        process = accumulated_process(model, bags)
        location, scale = draw_inducing_value(process), process.scale  # a_bᵀu, √k̄_b
        if program == "full":
            noise = pm.Normal("white_bag_evidence", dims="bag")  # η
            location = pm.Deterministic("bag_evidence", location + scale * noise, dims="bag")
            scale = None
        _observe(model, bags, location, scale)
    return twin


def _observe(model: VWSGP, bags: Bags, location: Tensor, scale: Tensor | None) -> None:
    """Labels or targets where s_b ~ N(location, scale²), or where s_b is the location itself."""
    variance = 0.0 if scale is None else scale**2
    match model.likelihood:
        case "gaussian":
            deviation = pt.sqrt(variance + parameter("noise", model.noise))
            pm.Normal("bag_target", location, deviation, observed=bags.targets, dims="bag")
            return
        case "probit":
            argument = location / pt.sqrt(1.0 + variance + parameter("noise", model.noise))
            log_odds = _log_normal_probability(argument) - _log_normal_probability(-argument)
        case _:
            log_odds = location if scale is None else _log_expected_odds(location, scale)
    pm.Bernoulli("bag_label", logit_p=log_odds, observed=bags.labels, dims="bag")


def _log_expected_odds(location: Tensor, scale: Tensor) -> Tensor:
    """log E σ(s) / E[1 − σ(s)], s ~ N(location, scale²), of which both keep their digits."""
    return _log_expected_sigmoid(location, scale) - _log_expected_sigmoid(-location, scale)


def _log_expected_sigmoid(location: Tensor, scale: Tensor) -> Tensor:
    """log E σ(a + sz), z ~ N(0, 1).

    σ grows like e^{sz} as far as a + sz = 0 and no more, so the mass of the integrand lies at
    z = −a/s, but at least at 0 and at most at s: its mean is less than one sd from there. As the
    integrand falls at least as fast as a Gaussian, the nodes reach no further where s is large.
    """
    centre = pt.clip(-location / scale, 0.0, scale)
    nodes, log_weights = trapezoid(pt.max(scale), math.pi, reach=REACH + 1.0, centre=centre)
    return log_sum_exp(-pt.softplus(-(location + scale * nodes)), log_weights)


def _log_normal_probability(argument: Tensor) -> Tensor:
    """log Φ(x), by erfcx below 0 and by erfc above, each kept from where it would overflow."""
    below, above = pt.minimum(argument, 0.0), pt.maximum(argument, 0.0)
    return pt.switch(
        argument < 0.0,
        pt.log(0.5 * pt.erfcx(-below / math.sqrt(2))) - 0.5 * below**2,
        pt.log1p(-0.5 * pt.erfc(above / math.sqrt(2))),
    )
