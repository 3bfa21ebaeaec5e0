"""How good are predictions? Proper scores and rankings on labelled test bags."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from sklearn.metrics import average_precision_score, roc_auc_score

from ..datasets.bags import Bags
from ..inference.posterior import Prediction

__all__ = ["PredictionDifference", "Scores", "bag_log_loss", "prediction_difference", "score"]


@dataclass(frozen=True)
class Scores:
    """Scores on test bags; NaN where the truth holds one class only, or is not known.

    Attributes
    ----------
    log_loss : float
        −mean log P(T* = truth).
    brier : float
        Mean squared difference of probability and truth.
    auc, accuracy : float
        Of bags, the latter at probability ½.
    instance_auc, instance_auc_pr : float
        Of instances whose label is known; the latter is the average precision.
    """

    log_loss: float
    brier: float
    auc: float
    accuracy: float
    instance_auc: float
    instance_auc_pr: float


def score(prediction: Prediction, test: Bags) -> Scores:
    """Score predicted probabilities of labelled bags.

    Parameters
    ----------
    prediction : Prediction
        Of ``test``.
    test : Bags
        With labels.

    Returns
    -------
    Scores
    """
    truth, probability = np.asarray(test.labels), prediction.bag_probability
    if test.instance_labels is None:
        known = np.zeros(test.num_instances, bool)
        instance_truth = np.zeros(test.num_instances, int)
    else:
        instance_truth = np.asarray(test.instance_labels)
        known = instance_truth >= 0
    instances = instance_truth[known], prediction.instance_probability[known]
    return Scores(
        log_loss=float(bag_log_loss(prediction, test).mean()),
        brier=float(np.mean((probability - truth) ** 2)),
        auc=_if_two_classes(roc_auc_score, truth, probability),
        accuracy=float(np.mean((probability > 0.5) == (truth == 1))),
        instance_auc=_if_two_classes(roc_auc_score, *instances),
        instance_auc_pr=_if_two_classes(average_precision_score, *instances),
    )


def bag_log_loss(prediction: Prediction, test: Bags) -> Float[np.ndarray, " B"]:
    """−log P(T* = truth) of each bag."""
    probability = np.where(
        np.asarray(test.labels) == 1, prediction.bag_probability, 1 - prediction.bag_probability
    )
    # The model itself never goes below 1/(H + 1); this guards against rounding only.
    return -np.log(np.maximum(probability, np.finfo(float).tiny))


@dataclass(frozen=True)
class PredictionDifference:
    """What the choice of posterior does to predictions.

    Attributes
    ----------
    probability, worst_probability : float
        Mean and largest absolute difference of bag probabilities.
    log_loss : float
        Difference of log losses (positive: worse than the reference).
    log_loss_error : float
        Its standard error over bags, paired.
    """

    probability: float
    worst_probability: float
    log_loss: float
    log_loss_error: float


def prediction_difference(
    prediction: Prediction, reference: Prediction, test: Bags
) -> PredictionDifference:
    """Compare predictions of the same labelled bags.

    Parameters
    ----------
    prediction, reference : Prediction
    test : Bags
        With labels.

    Returns
    -------
    PredictionDifference
    """
    apart = np.abs(prediction.bag_probability - reference.bag_probability)
    loss = bag_log_loss(prediction, test) - bag_log_loss(reference, test)
    error = loss.std(ddof=1) / np.sqrt(len(loss)) if len(loss) > 1 else math.nan
    return PredictionDifference(
        float(apart.mean()), float(apart.max()), float(loss.mean()), float(error)
    )


def _if_two_classes(
    measure, truth: Int[np.ndarray, " K"], probability: Float[np.ndarray, " K"]
) -> float:
    return float(measure(truth, probability)) if len(np.unique(truth)) == 2 else math.nan
