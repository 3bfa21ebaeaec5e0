"""Log odds of probabilities, and what they cost where they are wrong."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

__all__ = ["log_loss", "log_odds"]


def log_odds(probability: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """log p − log(1 − p), finite also where p has been rounded to 0 or 1.

    Parameters
    ----------
    probability : array

    Returns
    -------
    array

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.models.numerics.log_odds import log_odds
    >>> log_odds(np.array([0.0, 0.5, 0.9])).round(1)
    array([-708.4,    0. ,    2.2])
    """
    smallest = np.finfo(float).tiny
    positive, negative = np.maximum(probability, smallest), np.maximum(1 - probability, smallest)
    return np.log(positive) - np.log(negative)


def log_loss(
    log_odds: Float[np.ndarray, "*n"],
    truth: Int[np.ndarray, "*n"] | Bool[np.ndarray, "*n"] | Float[np.ndarray, "*n"],
) -> Float[np.ndarray, "*n"]:
    """Negative log probability of the truth, −log σ(a) where it is 1 and −log σ(−a) where it is 0.

    Parameters
    ----------
    log_odds : array
        a, of 1.
    truth : array
        1 or 0; or a fraction of ones, over which the loss is the mean.

    Returns
    -------
    array

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.models.numerics.log_odds import log_loss
    >>> log_loss(np.array([0.0, 50.0]), np.array([1, 0])).round(3)
    array([ 0.693, 50.   ])
    """
    return truth * np.logaddexp(0, -log_odds) + (1 - truth) * np.logaddexp(0, log_odds)
