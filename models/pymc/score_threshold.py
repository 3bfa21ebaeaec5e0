"""PyMC program of `ScoreThreshold`, a soft threshold on a neighbourhood score.

It uses no formula of the NumPyro program that it checks.
"""

from __future__ import annotations

import numpy as np

from ...datasets.bags import Bags
from ..score_threshold import ScoreThreshold
from .sparse_gp import parameter, pm, pt

__all__ = ["score_threshold_program"]


def score_threshold_program(
    model: ScoreThreshold, bags: Bags, *, program: str = "marginal"
) -> pm.Model:
    """Build the PyMC program of `ScoreThreshold`, to check the NumPyro program and compare speeds.

    .. code-block:: text

        T            ~ Normal                                        threshold
        s            ~ LogNormal                                     softness
        P_k(Y_b = 0) = Π_n 1/(1 + exp((f_k(x_n) − T)/s))
        Y            ~ (1/K) Σ_k Π_b P_k(Y_b)                        bag_label (a factor)

    Parameters
    ----------
    model : ScoreThreshold
        With priors that have a counterpart in PyMC.
    bags : Bags
        With labels. The features are scores.
    program : {"marginal"}

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        If ``program`` is not ``marginal``, if the bags have no labels, or if PyMC has no
        counterpart of a prior.

    Notes
    -----
    1 − P_k(Y_b = 0) rounds to 0 below 1e−16.
    """
    if program != "marginal":
        raise ValueError(
            f"program is {program!r}; expected 'marginal': the index that it sums out is "
            "discrete, and NUTS could not sample it"
        )
    if bags.labels is None:
        raise ValueError(
            "bags have no labels; in PyMC the labels of all bags are one factor, which cannot be "
            "drawn"
        )
    is_positive = np.asarray(bags.labels) == 1
    in_bag = np.asarray(bags.bag_index) == np.arange(bags.num_bags)[:, None]
    with pm.Model(coords={"bag": range(bags.num_bags)}) as pymc_model:
        threshold = parameter("threshold", model.threshold_prior)
        softness = parameter("softness", model.softness_prior)
        logits = (pt.constant(bags.instances) - threshold) / softness  # (N, K)
        log_none = pt.dot(pt.constant(in_bag.astype(float)), -pt.softplus(logits))  # (B, K)
        by_bag = pt.where(is_positive[:, None], pt.log(-pt.expm1(log_none)), log_none)
        of_score = pt.sum(by_bag, axis=0)
        pm.Potential("bag_label", pt.logsumexp(of_score) - np.log(bags.num_features))
    return pymc_model
