"""Diverse density in PyMC: sharing no formula with the NumPyro one."""

from __future__ import annotations

import numpy as np

from ...datasets.bags import Bags
from ..diverse_density import DiverseDensity
from .sparse_gp import parameter, pm, pt

__all__ = ["pymc_twin"]


def pymc_twin(model: DiverseDensity, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """The model as a PyMC program, to check the NumPyro program and to race against it.

    .. code-block:: text

        t            ~ Normal                                        concept   (feature)
        s            ~ LogNormal                                     scale     (feature)
        P(Y_b = 1)   = 1 − Π_n (1 − exp(−Σ_d s_d² (x_nd − t_d)²))    bag_label (bag)

    Parameters
    ----------
    model : DiverseDensity
        With priors that PyMC has too.
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
        If ``program`` is another, or a prior is not one that PyMC has too.

    Notes
    -----
    1 − P(Y_b = 1) is lost below 1e−16.
    """
    if program != "marginal":
        raise ValueError(
            f"program is {program!r}; expected 'marginal': what it sums out, the instance labels, "
            "are discrete, and NUTS could not sample them"
        )
    in_bag = np.asarray(bags.bag_index) == np.arange(bags.num_bags)[:, None]
    coordinates = {"feature": range(bags.num_features), "bag": range(bags.num_bags)}
    with pm.Model(coords=coordinates) as twin:
        concept = parameter("concept", model.concept_prior, dims="feature")
        scale = parameter("scale", model.scale_prior, dims="feature")
        offset = pt.constant(bags.instances) - concept
        near = pt.exp(-pt.dot(offset**2, scale**2))  # P(y_n = 1)
        log_none = pt.dot(pt.constant(in_bag.astype(float)), pt.log1p(-near))
        logit = pt.log(pt.expm1(-log_none))
        pm.Bernoulli("bag_label", logit_p=logit, observed=bags.labels, dims="bag")
    return twin
