"""Scores of predictions: proper scores and rankings on labelled test bags."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score

from ...datasets.bags import Bags
from ...inference.prediction import Prediction, TargetPrediction
from ...models.numerics.log_odds import log_loss
from .reliability import reliability

__all__ = ["PredictionDifference", "Scores", "bag_log_loss", "prediction_difference", "score"]


@dataclass(frozen=True)
class Scores:
    """Scores on test bags; NaN where they do not apply or the truth holds one class only.

    Attributes
    ----------
    log_loss : float
        −mean log P(T* = truth), or −mean log p(Y* = truth).
    brier : float
        Mean squared difference of probability and truth.
    auc, accuracy : float
        Of bags, the latter at probability ½.
    calibration_error, calibration_chance : float
        Of bags: mean |probability − frequency|, the latter by isotonic regression, and what it
        would be in the mean by chance, were the probabilities right; see `reliability`.
    calibration_p : float
        Probability of so large an error of bags by chance.
    miscalibration, miscalibration_chance : float
        Log loss of bags that recalibration by isotonic regression would save, and what it would in
        the mean by chance.
    instance_auc, instance_auc_pr : float
        Of instances whose label is known; the latter is the average precision. A model without
        instance labels says in its ``instance_note`` what it ranks.
    instance_calibration_error, instance_calibration_chance : float
        The same of these instances.
    rmse : float
        √ of the mean squared error of predicted targets, in their units.
    """

    log_loss: float
    brier: float = math.nan
    auc: float = math.nan
    accuracy: float = math.nan
    calibration_error: float = math.nan
    calibration_chance: float = math.nan
    calibration_p: float = math.nan
    miscalibration: float = math.nan
    miscalibration_chance: float = math.nan
    instance_auc: float = math.nan
    instance_auc_pr: float = math.nan
    instance_calibration_error: float = math.nan
    instance_calibration_chance: float = math.nan
    rmse: float = math.nan


def score(prediction: Prediction | TargetPrediction, test: Bags) -> Scores:
    """Score predicted probabilities of labelled bags, or predictive distributions of targets.

    Parameters
    ----------
    prediction : Prediction or TargetPrediction
        Of ``test``.
    test : Bags
        With labels, or targets.

    Returns
    -------
    Scores
    """
    loss = float(bag_log_loss(prediction, test).mean())
    if isinstance(prediction, TargetPrediction):
        error = prediction.bag_target - np.asarray(test.targets)
        return Scores(log_loss=loss, rmse=float(np.sqrt(np.mean(error**2))))
    truth, probability = np.asarray(test.labels), prediction.bag_probability
    if test.instance_labels is None:
        known = np.zeros(test.num_instances, bool)
        instance_truth = np.zeros(test.num_instances, int)
    else:
        instance_truth = np.asarray(test.instance_labels)
        known = instance_truth >= 0
    # Those of a predictive differ also where its probabilities round to 0 or 1.
    instances = instance_truth[known], prediction.instance_log_odds[known]
    calibration = reliability(probability, truth, log_odds=prediction.bag_log_odds)
    of_instances = None
    if known.any():
        forecast = prediction.instance_probability[known]
        of_instances = reliability(forecast, instances[0], log_odds=instances[1])
    return Scores(
        log_loss=loss,
        brier=float(np.mean((probability - truth) ** 2)),
        auc=_if_two_classes(roc_auc_score, truth, prediction.bag_log_odds),
        accuracy=float(np.mean((probability > 0.5) == (truth == 1))),
        calibration_error=calibration.error,
        calibration_chance=calibration.error_if_calibrated,
        calibration_p=calibration.p_value,
        miscalibration=calibration.log_loss_saved,
        miscalibration_chance=calibration.log_loss_saved_if_calibrated,
        instance_auc=_if_two_classes(roc_auc_score, *instances),
        instance_auc_pr=_if_two_classes(average_precision_score, *instances),
        instance_calibration_error=of_instances.error if of_instances else math.nan,
        instance_calibration_chance=of_instances.error_if_calibrated if of_instances else math.nan,
    )


def bag_log_loss(prediction: Prediction | TargetPrediction, test: Bags) -> Float[np.ndarray, " B"]:
    """−log P(T* = truth), or −log p(Y* = truth), of each bag."""
    if isinstance(prediction, TargetPrediction):
        return -prediction.log_density(np.asarray(test.targets))
    return log_loss(prediction.bag_log_odds, np.asarray(test.labels))


@dataclass(frozen=True)
class PredictionDifference:
    """Differences between predictions of two posteriors.

    Attributes
    ----------
    mean, worst : float
        Mean and largest absolute difference of bag probabilities; or of predicted targets, in the
        reference's predictive sds (half of its 68.3 % intervals where these are infinite).
    log_loss : float
        Difference of log losses (positive: worse than the reference).
    log_loss_error : float
        Its standard error over bags, paired.
    """

    mean: float
    worst: float
    log_loss: float
    log_loss_error: float


def prediction_difference(
    prediction: Prediction | TargetPrediction,
    reference: Prediction | TargetPrediction,
    test: Bags,
) -> PredictionDifference:
    """Compare predictions of the same bags.

    Parameters
    ----------
    prediction, reference : Prediction or TargetPrediction
        Both of one kind.
    test : Bags
        With labels, or targets.

    Returns
    -------
    PredictionDifference
    """
    loss = bag_log_loss(prediction, test) - bag_log_loss(reference, test)
    error = loss.std(ddof=1) / np.sqrt(len(loss)) if len(loss) > 1 else math.nan
    apart = np.abs(_centre(prediction) - _centre(reference)) / _unit(reference)
    return PredictionDifference(
        float(apart.mean()), float(apart.max()), float(loss.mean()), float(error)
    )


def _centre(prediction: Prediction | TargetPrediction) -> Float[np.ndarray, " B"]:
    if isinstance(prediction, TargetPrediction):
        return prediction.bag_target
    return prediction.bag_probability


def _unit(reference: Prediction | TargetPrediction) -> Float[np.ndarray, " B"]:
    """Unit of differences: predictive sds of targets, or 1 of probabilities.

    Where an sd is infinite it is half the interval that would be two sds wide of a Gaussian.
    """
    if not isinstance(reference, TargetPrediction):
        return np.ones(reference.bag_draws.shape[1])
    sd = np.sqrt((reference.bag_scale**2).mean(axis=0) + reference.bag_mean.var(axis=0))
    if np.isfinite(sd).all():
        return sd
    lower, upper = reference.bag_interval(2.0 * norm.cdf(1.0) - 1.0)
    return np.where(np.isfinite(sd), sd, 0.5 * (upper - lower))


def _if_two_classes(
    measure, truth: Int[np.ndarray, " K"], log_odds: Float[np.ndarray, " K"]
) -> float:
    return float(measure(truth, log_odds)) if len(np.unique(truth)) == 2 else math.nan
