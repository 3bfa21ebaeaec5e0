"""Classify bags by a measure of their instances and a threshold on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..datasets.arguments import check_counts
from ..datasets.bags import Bags
from ..models.parts.neighbours import Measure

__all__ = ["Elbow", "MeasureClassifier", "MeasureLearner", "Threshold", "choose_by_elbow"]


class Threshold(NamedTuple):
    """The score from which a bag is positive, and the training error.

    Attributes
    ----------
    value : float
        T.
    error : float
        Fraction of the training bags on the wrong side.
    """

    value: float
    error: float

    @classmethod
    def learn(cls, scores: Float[np.ndarray, " B"], labels: Int[np.ndarray, " B"]) -> Threshold:
        """Learn the threshold T with the fewest errors of 1(score ≥ T).

        It is half-way between two scores; of equally good ones, that in the widest gap, and of
        equal gaps the highest. Where none is better than to call all bags positive, or all
        negative, it is the lowest score, or infinite.

        Parameters
        ----------
        scores : array (B,)
            −∞ of bags that are negative whatever T is, ∞ of those that are positive.
        labels : array (B,)

        Returns
        -------
        Threshold

        References
        ----------
        Venkatesan, Chandakkar and Li (2015), equations 7 and 8, which leave ties open.
        """
        values = np.unique(scores[np.isfinite(scores)])
        middle = 0.5 * (values[:-1] + values[1:])
        candidates = np.concatenate([values[:1], middle, [np.inf]])
        gaps = np.concatenate([[0.0] * min(1, len(values)), np.diff(values), [0.0]])
        errors = np.array([np.sum((scores >= one) != (labels == 1)) for one in candidates])
        best = max(range(len(candidates)), key=lambda n: (-errors[n], gaps[n], candidates[n]))
        return cls(float(candidates[best]), float(errors[best]) / len(labels))


@dataclass(frozen=True)
class MeasureLearner:
    """A threshold on a measure: b(X) = 1(at least a instances have f(x) ≥ T).

    Parameters
    ----------
    measure : Measure
        Such as `NeighbourMeasure`.
    min_positive : int
        a.

    Raises
    ------
    ValueError
        If it is less than 1.

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), equations 5 to 9.
    """

    measure: Measure
    min_positive: int = 1

    def __post_init__(self) -> None:
        check_counts(min_positive=self.min_positive)

    def fit(self, bags: Bags) -> MeasureClassifier:
        """Find the threshold of the fewest errors on the bags, each scored without itself.

        Parameters
        ----------
        bags : Bags
            With labels.

        Returns
        -------
        MeasureClassifier
        """
        scores = nth_highest(self.measure.own_scores(bags), bags, self.min_positive)
        threshold = Threshold.learn(scores, np.asarray(bags.labels))
        return MeasureClassifier(self.measure, bags, threshold, self.min_positive)


@dataclass(frozen=True, eq=False)
class MeasureClassifier:
    """A measure and a threshold on it.

    Attributes
    ----------
    measure : Measure
    bags : Bags
        The bags that the measure looks up neighbours in.
    threshold : Threshold
    min_positive : int
    """

    measure: Measure
    bags: Bags = field(repr=False)
    threshold: Threshold
    min_positive: int

    def decision_function(self, bags: Bags) -> Float[np.ndarray, " P"]:
        """Measure of each bag's a-th highest instance less T; −∞ of smaller bags.

        Parameters
        ----------
        bags : Bags
            New ones: those that were learned from would find themselves.

        Returns
        -------
        array (P,)
        """
        scores = self.measure.scores(np.asarray(bags.instances), self.bags)
        return nth_highest(scores, bags, self.min_positive) - self.threshold.value

    def predict(self, bags: Bags) -> Int[np.ndarray, " P"]:
        """The label, 0 or 1, of each bag (equation 6)."""
        return (self.decision_function(bags) >= 0).astype(int)

    def predict_instances(self, bags: Bags) -> Int[np.ndarray, " N"]:
        """The label, 0 or 1, of each instance (equation 9)."""
        scores = self.measure.scores(np.asarray(bags.instances), self.bags)
        return (scores >= self.threshold.value).astype(int)


def nth_highest(scores: Float[np.ndarray, " N"], bags: Bags, rank: int) -> Float[np.ndarray, " B"]:
    """The highest score in each bag for rank 1, the next for 2, …; −∞ where there is none."""
    index = np.asarray(bags.bag_index)
    falling = scores[np.lexsort((-scores, index))]
    row = bags.starts + rank - 1
    is_there = rank <= bags.bag_sizes
    return np.where(is_there, falling[np.where(is_there, row, 0)], -np.inf)


class Elbow(NamedTuple):
    """Errors of several measures, and the measure from which they stop to fall.

    Attributes
    ----------
    measure : Measure
        The one at the elbow.
    errors : array (K,)
        Fraction of the bags on the wrong side of each one's best threshold.
    """

    measure: Measure
    errors: Float[np.ndarray, " K"]


def choose_by_elbow(measures: Sequence[Measure], bags: Bags, *, min_positive: int = 1) -> Elbow:
    """Choose the measure where the training error stops to fall, farthest below its chord.

    Parameters
    ----------
    measures : sequence of Measure
        From the least to the greatest k, or width, in even steps.
    bags : Bags
        With labels; each is scored without itself.
    min_positive : int
        a.

    Returns
    -------
    Elbow
        The first of equals.

    Raises
    ------
    ValueError
        If there are no measures.

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), section 3, where k is picked "by a typical elbow method".
    """
    if not measures:
        raise ValueError("there are no measures to choose from; expected one at least")
    learners = [MeasureLearner(measure, min_positive) for measure in measures]
    errors = np.array([learner.fit(bags).threshold.error for learner in learners])
    return Elbow(measures[elbow_of(errors)], errors)


def elbow_of(errors: Float[np.ndarray, " K"]) -> int:
    """Find the error farthest below the chord from first to last; the first among equals."""
    return int(np.argmax(np.linspace(errors[0], errors[-1], len(errors)) - errors))
