"""PyMC programs of `GPMIL`, which use no formula of the NumPyro programs that they check."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from ...datasets.bags import Bags
from ..gpmil import GPMIL
from .sparse_gp import (
    REACH,
    Tensor,
    check_program,
    draw_inducing_value,
    draw_latent,
    log_sum_exp,
    parameter,
    pm,
    pt,
    sparse_process,
    sum_over_bags,
    trapezoid,
)

__all__ = ["gpmil_program"]

# Nodes of log t. Beyond the last, e^{−t} is 0 to rounding. The part before the first is negligible
# only if t Σ e^f is small there.
_FIRST, _LAST, _STEP = -48.0, 4.0, 0.4
# Distance from 1 at which the log of one minus a probability is still finite.
_ROUNDING = 1e-15


def gpmil_program(model: GPMIL, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """Build the PyMC program of `GPMIL`, to check the NumPyro programs and compare speeds.

    .. code-block:: text

        ε        ~ N(0, I)                                    whitened_inducing_value
        u        = L ε,  K_ZZ = L Lᵀ                          inducing_value
        η        ~ N(0, I)                                    whitened_latent (full only)
        f        = μ0 + K_XZ L⁻ᵀ ε + √k̃ η                     latent         (full only)
        T_b      ~ Bernoulli(σ(log Σ_{n∈b} e^{f_n}))          bag_label

    Parameters
    ----------
    model : GPMIL
        Kernel parameters and mean are numbers, or priors with a counterpart in PyMC.
    bags : Bags
        Bag labels are observed if there are any; otherwise they are a site.
    program : {"marginal", "full"}
        ``marginal`` integrates the latent values out by quadrature. In ``full`` they are a site.
        The quadrature is slow and meant for checks: it evaluates e^{−t e^f} at some ten thousand
        pairs of nodes for each instance.

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

    References
    ----------
    Kim and De la Torre (2010).
    """
    check_program(program)
    model.check_width(bags)
    coordinates = {
        "inducing_point": range(len(model.inducing_points)),
        "instance": range(bags.num_instances),
        "bag": range(bags.num_bags),
    }
    with pm.Model(coords=coordinates) as pymc_model:
        mean = parameter("mean", model.mean)
        process = sparse_process(model, bags)
        location = mean + draw_inducing_value(process)
        if program == "full":
            log_odds = _log_sum_over_bags(draw_latent(location, process.scale), bags)
        else:
            log_odds = _integrated(location, process.scale, bags)
        pm.Bernoulli("bag_label", logit_p=log_odds, observed=bags.labels, dims="bag")
    return pymc_model


def _log_sum_over_bags(values: Tensor, bags: Bags) -> Tensor:
    """Soft maximum log Σ_{n∈b} e^{f_n} of each bag.

    Each bag subtracts a maximum of its own, so that bags of low values do not underflow.
    """
    starts = np.append(bags.starts, bags.num_instances)
    own = [values[first:last] for first, last in pairwise(starts)]
    return pt.stack([pt.logsumexp(part) for part in own])


def _integrated(location: Tensor, scale: Tensor, bags: Bags) -> Tensor:
    """Log odds of the bag labels, log P(T = 1)/P(T = 0), (B,), with latent values integrated out.

    With S = Σ e^{f_n}, P(T = 0 | f) = 1/(1 + S) is the integral of e^{−t(1 + S)} over t. Given t
    the integrals over the f_n separate.
    """
    # e^{−e^x} is bounded up to ±iπ/2. In each f_n, the log derivatives of 1/(1 + S) and S/(1 + S)
    # lie within ±1. Therefore the mass of an integrand moves by at most s.
    largest = pt.max(scale)
    nodes, log_weights = trapezoid(largest, math.pi / 2, reach=REACH + largest)  # (K, 1)
    log_time = np.arange(_FIRST, _LAST, _STEP)
    log_step = log_time - np.exp(log_time) + math.log(_STEP)
    latent = location + nodes * scale  # (K, N)
    rate = pt.exp(pt.constant(log_time)[:, None, None] + latent)  # t e^f, (J, K, N)
    some = (pt.exp(log_weights) * -pt.expm1(-rate)).sum(1)  # 1 − E exp(−t e^f), (J, N)
    log_none = pt.log1p(-pt.minimum(some, 1 - _ROUNDING))
    none_of_bag = sum_over_bags(log_none.T, bags).T  # (J, B)
    some_of_bag = pt.log(-pt.expm1(none_of_bag))
    steps = pt.constant(log_step)[:, None]
    return log_sum_exp(some_of_bag, steps) - log_sum_exp(none_of_bag, steps)
