"""ProbitGPMIL in PyMC: no formula shared with NumPyro's."""

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

# log P(T = 0) of a bag that is negative for sure: its derivative must stay finite.
_CLOSEST_TO_ONE = -1e-300


def probit_gpmil_program(model: ProbitGPMIL, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """The model as a PyMC program, to check the NumPyro programs and to compare speeds.

    .. code-block:: text

        ε        ~ N(0, I)                                    whitened_inducing_value
        u        = L ε,  K_ZZ = L Lᵀ                          inducing_value
        η        ~ N(0, I)                                    white_latent   (full only)
        f        = μ0 + K_XZ L⁻ᵀ ε + √k̃ η                     latent         (full only)
        T_b      ~ Bernoulli(1 − Π Φ(−f_n))                   bag_label

    Parameters
    ----------
    model : ProbitGPMIL
        Kernel parameters and mean are numbers, or priors that PyMC has too.
    bags : Bags
        With labels to condition on them; without, the labels are a site.
    program : {"marginal", "full"}
        With the latent values integrated out, Φ(−a/√(1 + k̃)) in the place of Φ(−f), or as a site.

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
