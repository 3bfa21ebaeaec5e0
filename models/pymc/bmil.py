"""PyMC program of BMIL, which uses no formula of the NumPyro program that it checks."""

from __future__ import annotations

import math

from ...datasets.bags import Bags
from ..bmil import BMIL
from .cardinality import padded_rows
from .noisy_or import log_odds_of_bags
from .sparse_gp import check_program, pm, pt

__all__ = ["bmil_program"]


def bmil_program(model: BMIL, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """Build the PyMC program of `BMIL`, to check the NumPyro program and compare speeds.

    .. code-block:: text

        ε            ~ Student-t(2a)                           whitened_weights   (feature)
        w            = ε √(b/a)                                weights            (feature)
        ε_0          ~ N(0, 1)                                 whitened_intercept
        w_0          = m + s ε_0                               intercept
        P(T_b = 1)   = 1 − Π_n (1 − σ(w_0 + wᵀx_n))            bag_label          (bag)

    The program ``"full"`` has a site ``weight_precision``, α ~ Gamma(a, b). There w = ε/√α, with
    ε ~ N(0, I).

    Parameters
    ----------
    model : BMIL
    bags : Bags
    program : {"marginal", "full"}

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        If ``program`` is neither of the two.
    """
    check_program(program)
    shape, rate = float(model.shape), float(model.rate)
    row, is_instance = padded_rows(bags)
    coordinates = {"feature": range(bags.num_features), "bag": range(bags.num_bags)}
    with pm.Model(coords=coordinates) as pymc_model:
        if program == "full":
            precision = pm.Gamma("weight_precision", alpha=shape, beta=rate, dims="feature")
            whitened, scale = pm.Normal("whitened_weights", dims="feature"), precision**-0.5
        else:
            whitened = pm.StudentT("whitened_weights", nu=2 * shape, sigma=1.0, dims="feature")
            scale = math.sqrt(rate / shape)
        weights = pm.Deterministic("weights", scale * whitened, dims="feature")
        deviation = float(model.intercept_scale) * pm.Normal("whitened_intercept")
        intercept = pm.Deterministic("intercept", float(model.intercept_mean) + deviation)
        a = (pt.constant(bags.instances) @ weights + intercept)[row]  # (B, size of the largest bag)
        logit = log_odds_of_bags(-pt.softplus(-a), -pt.softplus(a), is_instance)
        pm.Bernoulli("bag_label", logit_p=logit, observed=bags.labels, dims="bag")
    return pymc_model
