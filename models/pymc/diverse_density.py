"""PyMC program of `DiverseDensity`; it uses no formula of the NumPyro program that it checks."""

from __future__ import annotations

from ...datasets.bags import Bags
from ..diverse_density import DiverseDensity
from .cardinality import padded_rows
from .noisy_or import log_odds_of_bags
from .sparse_gp import parameter, pm, pt

__all__ = ["diverse_density_program"]

# Smallest squared distance q: at 0 the probability of a negative bag is 0, and its log infinite.
_SMALLEST = 1e-12


def diverse_density_program(
    model: DiverseDensity, bags: Bags, *, program: str = "marginal"
) -> pm.Model:
    """Build the PyMC program of `DiverseDensity`, to check the NumPyro program and compare speeds.

    .. code-block:: text

        t            ~ Normal                                        concept   (feature)
        s            ~ LogNormal                                     scale     (feature)
        P(Y_b = 1)   = 1 − Π_n (1 − exp(−Σ_d s_d² (x_nd − t_d)²))    bag_label (bag)

    Parameters
    ----------
    model : DiverseDensity
        With priors that have a counterpart in PyMC.
    bags : Bags
    program : {"marginal"}

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        If ``program`` is not ``marginal``, or if PyMC has no counterpart of a prior.

    Notes
    -----
    As in `DiverseDensity`, squared distances below 1e−12 count as 1e−12 in P(y_n = 0).
    """
    if program != "marginal":
        raise ValueError(
            f"program is {program!r}; expected 'marginal': the instance labels that it sums out "
            "are discrete, and NUTS could not sample them"
        )
    row, is_instance = padded_rows(bags)
    coordinates = {"feature": range(bags.num_features), "bag": range(bags.num_bags)}
    with pm.Model(coords=coordinates) as pymc_model:
        concept = parameter("concept", model.concept_prior, dims="feature")
        scale = parameter("scale", model.scale_prior, dims="feature")
        offset = pt.constant(bags.instances) - concept
        q = pt.dot(offset**2, scale**2)[row]  # (B, size of the largest bag)
        log_not = pt.log1mexp(-pt.maximum(q, _SMALLEST))  # log P(y_n = 0)
        logit = log_odds_of_bags(-q, log_not, is_instance)
        pm.Bernoulli("bag_label", logit_p=logit, observed=bags.labels, dims="bag")
    return pymc_model
