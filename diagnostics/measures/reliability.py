"""Calibration curves of forecast probabilities, by isotonic regression."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import isotonic_regression

from ...datasets.arguments import checked_seed
from ...models.numerics.log_odds import log_loss
from ...models.numerics.log_odds import log_odds as log_odds_of

__all__ = ["Reliability", "reliability"]

# Draws of the truth from the forecasts; fewer where together they would be more numbers than this.
_MOST_DRAWS, _FEWEST_DRAWS, _MOST_NUMBERS = 1000, 100, 10**7
_BAND = (0.05, 0.95)


@dataclass(frozen=True, eq=False)
class Reliability:
    """The calibration curve of binary forecasts, and its error.

    Attributes
    ----------
    probability : array (U,)
        Distinct forecasts, rising; those that are told apart by their log odds alone are repeated.
    frequency : array (U,)
        Observed frequency of 1, by isotonic regression on the forecasts.
    low, high : array (U,)
        Pointwise 90 % band of the frequency, if the forecasts are calibrated.
    error : float
        Calibration error: mean |forecast − frequency| over the cases. Isotonic regression also
        follows chance, so that it is above 0 for perfect forecasts; hence the next.
    error_if_calibrated : float
        Its mean over truths drawn from the forecasts.
    p_value : float
        Fraction of these truths with an error as large: the p-value of a test of calibration,
        where cases are independent.
    log_loss_saved, log_loss_saved_if_calibrated : float
        Mean log loss, less that of the frequencies in place of the forecasts (the miscalibration
        of Dimitriadis et al.), and its mean over the drawn truths.
    """

    probability: Float[np.ndarray, " U"] = field(repr=False)
    frequency: Float[np.ndarray, " U"] = field(repr=False)
    low: Float[np.ndarray, " U"] = field(repr=False)
    high: Float[np.ndarray, " U"] = field(repr=False)
    error: float
    error_if_calibrated: float
    p_value: float
    log_loss_saved: float
    log_loss_saved_if_calibrated: float


def reliability(
    probability: Float[np.ndarray, " K"],
    truth: Int[np.ndarray, " K"] | Bool[np.ndarray, " K"],
    *,
    log_odds: Float[np.ndarray, " K"] | None = None,
    seed: int = 0,
) -> Reliability:
    """Estimate the calibration curve by pooling adjacent violators, without bins.

    Parameters
    ----------
    probability : array (K,)
        Forecasts.
    truth : array (K,)
        1 where it came true, 0 where not.
    log_odds : array (K,) or None
        Of the forecasts, where they are known better than by probabilities, which round to 0 and 1.
    seed : int
        Of the truths that are drawn to estimate the effect of chance.

    Returns
    -------
    Reliability

    Raises
    ------
    ValueError
        If there are no cases.

    References
    ----------
    Dimitriadis, Gneiting and Jordan (2021), stable reliability diagrams for probabilistic
    classifiers.
    """
    if len(probability) == 0:
        raise ValueError("there are no forecasts; expected at least one, and what became of it")
    if log_odds is None:
        log_odds = log_odds_of(probability)
    by_log_odds, first, index, count = np.unique(
        log_odds, return_index=True, return_inverse=True, return_counts=True
    )
    distinct, weight = probability[first], count.astype(float)

    def curve(outcome: np.ndarray) -> tuple[np.ndarray, float]:
        """The regression, and the log loss that it saves."""
        observed = np.bincount(index, outcome, minlength=len(distinct)) / weight
        frequency = isotonic_regression(observed, weights=weight).x
        saved = log_loss(by_log_odds, observed) - log_loss(log_odds_of(frequency), observed)
        return frequency, float(saved @ weight / len(index))

    random = np.random.default_rng(checked_seed(seed))
    num_draws = int(np.clip(_MOST_NUMBERS // len(probability), _FEWEST_DRAWS, _MOST_DRAWS))
    drawn = (random.random(len(probability)) < probability for _ in range(num_draws))
    curves = [curve(outcome.astype(float)) for outcome in drawn]
    if_calibrated = np.array([frequency for frequency, _ in curves])
    low, high = np.quantile(if_calibrated, _BAND, axis=0)
    frequency, saved = curve(np.asarray(truth, dtype=float))
    *errors, found = np.abs(np.vstack([if_calibrated, frequency]) - distinct) @ weight / len(index)
    return Reliability(
        probability=distinct,
        frequency=frequency,
        low=low,
        high=high,
        error=float(found),
        error_if_calibrated=float(np.mean(errors)),
        # The observation counts as a draw, so that the p-value is never 0.
        p_value=float((1 + np.sum(errors >= found)) / (1 + num_draws)),
        log_loss_saved=saved,
        log_loss_saved_if_calibrated=float(np.mean([one for _, one in curves])),
    )
