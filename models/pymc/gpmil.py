"""GPMIL in PyMC: no formula shared with NumPyro's."""

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

# Nodes of log t. e^{−t} is 0 beyond the last; before the first, t Σ e^f must be small.
_FIRST, _LAST, _STEP = -48.0, 4.0, 0.4
# 1 − this is a number below 1.
_ROUNDING = 1e-15


def gpmil_program(model: GPMIL, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """The model as a PyMC program, to check the NumPyro programs and to compare speeds.

    .. code-block:: text

        ε        ~ N(0, I)                                    whitened_inducing_value
        u        = L ε,  K_ZZ = L Lᵀ                          inducing_value
        η        ~ N(0, I)                                    white_latent   (full only)
        f        = μ0 + K_XZ L⁻ᵀ ε + √k̃ η                     latent         (full only)
        T_b      ~ Bernoulli(σ(log Σ_{n∈b} e^{f_n}))          bag_label

    Parameters
    ----------
    model : GPMIL
        Kernel parameters and mean are numbers, or priors that PyMC has too.
    bags : Bags
        With labels to condition on them; without, the labels are a site.
    program : {"marginal", "full"}
        With the latent values integrated out by quadrature, or as a site. The quadrature evaluates
        e^{−t e^f} at some ten thousand pairs of nodes for each instance: it is for checks.

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
    """log Σ e^{f_n}, each bag about its own maximum."""
    starts = np.append(bags.starts, bags.num_instances)
    own = [values[first:last] for first, last in pairwise(starts)]
    return pt.stack([pt.logsumexp(part) for part in own])


def _integrated(location: Tensor, scale: Tensor, bags: Bags) -> Tensor:
    """log P(T = 1)/P(T = 0), each an integral over t of integrals over the f_n, (B,)."""
    # e^{−e^x} is bounded up to ±iπ/2. It, and one minus it, lie between e^{−f} and e^f.
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
