"""PyMC programs of `ProbitGPMIL`; they use no formula of the NumPyro programs that they check."""

from __future__ import annotations

from ...datasets.bags import Bags
from ..probit_gpmil import ProbitGPMIL
from .sparse_gp import (
    check_program,
    draw_inducing_value,
    draw_latent,
    log_normal_probability,
    parameter,
    pm,
    pt,
    sparse_process,
    sum_over_bags,
)

__all__ = ["probit_gpmil_program"]

# Largest log P(T = 0): at 0 the log odds are infinite, and their derivative is not finite.
_CLOSEST_TO_ONE = -1e-300


def probit_gpmil_program(model: ProbitGPMIL, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """Build the PyMC program of `ProbitGPMIL`, to check the NumPyro programs and compare speeds.

    .. code-block:: text

        ε        ~ N(0, I)                                    whitened_inducing_value
        u        = L ε,  K_ZZ = L Lᵀ                          inducing_value
        η        ~ N(0, I)                                    whitened_latent (full only)
        f        = μ0 + K_XZ L⁻ᵀ ε + √k̃ η                     latent         (full only)
        T_b      ~ Bernoulli(1 − Π Φ(−f_n))                   bag_label

    Parameters
    ----------
    model : ProbitGPMIL
        Kernel parameters and mean are numbers, or priors with a counterpart in PyMC.
    bags : Bags
        Bag labels are observed if there are any; otherwise they are a site.
    program : {"marginal", "full"}
        In ``marginal`` the latent values are integrated out: Φ(−a/√(1 + k̃)) replaces Φ(−f), where
        a is the mean of f given ε. In ``full`` they are a site.

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
    Wang and Pinar (2021).
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
            ratio = draw_latent(location, process.scale)
        else:
            ratio = location / pt.sqrt(1.0 + process.scale**2)
        log_negative = log_normal_probability(-ratio)
        log_none = pt.minimum(sum_over_bags(log_negative, bags), _CLOSEST_TO_ONE)
        log_odds = pt.log1mexp(log_none) - log_none
        pm.Bernoulli("bag_label", logit_p=log_odds, observed=bags.labels, dims="bag")
    return pymc_model
