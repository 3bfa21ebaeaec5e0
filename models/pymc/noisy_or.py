"""Noisy-or of PyMC programs, which uses no formula of the NumPyro programs that it checks."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool

from .sparse_gp import pt

__all__ = ["log_odds_of_bags"]

# Below this log Σ p the squares of p are negligible, so that 1 − Π(1 − p) equals Σ p.
_LOG_FAR = -40.0


def log_odds_of_bags(log_positive: Any, log_negative: Any, is_instance: Bool[np.ndarray, "B L"]):
    """Log odds of a positive bag under a noisy-or, P(T_b = 1) = 1 − Π_n (1 − p_n).

    Parameters
    ----------
    log_positive, log_negative : tensor (B, L)
        log p_n and log(1 − p_n), the bags padded to one length.
    is_instance : array (B, L)
        False at padding.

    Returns
    -------
    tensor (B,)
    """
    log_none = pt.sum(pt.where(is_instance, log_negative, 0.0), axis=1)
    # Where all p are tiny, 1 − Π(1 − p) can round to 0, so Σ p replaces it.
    log_sum = pt.logsumexp(pt.where(is_instance, log_positive, -np.inf), axis=1)
    is_far = log_sum < _LOG_FAR
    exact = pt.log(-pt.expm1(pt.where(is_far, -1.0, log_none)))
    return pt.where(is_far, log_sum, exact) - log_none
