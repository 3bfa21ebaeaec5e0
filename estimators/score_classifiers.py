"""Classify bags by a neighbourhood score of their instances and a threshold on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..datasets.arguments import WHOLE
from ..datasets.bags import Bags
from ..models.parts.neighbours import NeighbourhoodScore
from .contract import LOWEST, ScoresInstances

__all__ = ["Elbow", "ScoreLearner", "Threshold", "choose_by_elbow"]


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


class ScoreLearner(ScoresInstances):
    """A threshold on a neighbourhood score: b(X) = 1(at least a instances have f(x) ≥ T).

    T makes the fewest errors on the training bags, each scored without itself. The decision value
    of a bag is the score of its a-th highest instance less T, the lowest number of a bag with fewer
    instances; that of an instance is its score less T.

    Parameters
    ----------
    neighbourhood_score : NeighbourhoodScore
        Such as `NeighbourScore`.
    min_positive : int
        a.

    Attributes
    ----------
    bags_ : Bags
        The training bags, which the score looks up neighbours in.
    threshold_ : Threshold
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    Each score is a search among all N training instances: O(ND).

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), equations 5 to 9.

    Examples
    --------
    >>> from milzoo.datasets import standard_assumption
    >>> from milzoo.estimators import ScoreLearner
    >>> from milzoo.models import NeighbourScore
    >>> training, test = standard_assumption(20, range(4, 8), num_features=2, seed=0)
    >>> classifier = ScoreLearner(NeighbourScore(k=3)).fit(training)
    >>> round(classifier.threshold_.value, 1), classifier.threshold_.error
    (4.1, 0.0)
    >>> classifier.score(test)
    1.0
    """

    _zero_is_positive = True
    _rules = {"min_positive": WHOLE}

    def __init__(self, neighbourhood_score: NeighbourhoodScore, min_positive: int = 1) -> None:
        self.neighbourhood_score = neighbourhood_score
        self.min_positive = min_positive

    def _fit(self, bags: Bags) -> None:
        scores = nth_highest(self.neighbourhood_score.own_scores(bags), bags, self.min_positive)
        self.threshold_ = Threshold.learn(scores, np.asarray(bags.labels))
        self.bags_ = bags

    def _decision(self, bags: Bags) -> Float[np.ndarray, " P"]:
        highest = nth_highest(self._instance_decision(bags), bags, self.min_positive)
        return np.maximum(highest, LOWEST)

    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        scores = self.neighbourhood_score.scores(np.asarray(bags.instances), self.bags_)
        return np.maximum(scores - self.threshold_.value, LOWEST)


def nth_highest(scores: Float[np.ndarray, " N"], bags: Bags, rank: int) -> Float[np.ndarray, " B"]:
    """The highest score in each bag for rank 1, the next for 2, …; −∞ where there is none."""
    index = np.asarray(bags.bag_index)
    falling = scores[np.lexsort((-scores, index))]
    row = bags.starts + rank - 1
    is_there = rank <= bags.bag_sizes
    return np.where(is_there, falling[np.where(is_there, row, 0)], -np.inf)


class Elbow(NamedTuple):
    """Errors of several neighbourhood scores, and the score after which they stop falling.

    Attributes
    ----------
    neighbourhood_score : NeighbourhoodScore
        The one at the elbow.
    errors : array (K,)
        Fraction of the bags on the wrong side of each one's best threshold.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import Elbow, choose_by_elbow
    >>> from milzoo.models import NeighbourScore
    >>> training, _ = load("digits").split(0.3, seed=0)
    >>> elbow = choose_by_elbow([NeighbourScore(k) for k in range(1, 7)], training)
    >>> isinstance(elbow, Elbow)
    True
    >>> elbow.neighbourhood_score.k, elbow.errors[elbow.neighbourhood_score.k - 1].round(2).item()
    (2, 0.14)
    """

    neighbourhood_score: NeighbourhoodScore
    errors: Float[np.ndarray, " K"]


def choose_by_elbow(
    neighbourhood_scores: Sequence[NeighbourhoodScore], bags: Bags, *, min_positive: int = 1
) -> Elbow:
    """Choose the score where the training error stops falling, farthest below its chord.

    Parameters
    ----------
    neighbourhood_scores : sequence of NeighbourhoodScore
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
        If there are no neighbourhood scores.

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), section 3, where k is picked "by a typical elbow method".

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import choose_by_elbow
    >>> from milzoo.models import NeighbourScore
    >>> training, _ = load("digits").split(0.3, seed=0)
    >>> elbow = choose_by_elbow([NeighbourScore(k) for k in range(1, 7)], training)
    >>> elbow.errors.round(2).tolist()
    [0.22, 0.14, 0.12, 0.1, 0.1, 0.1]
    >>> elbow.neighbourhood_score.k
    2
    """
    if not neighbourhood_scores:
        raise ValueError("there are no neighbourhood scores to choose from; expected one at least")
    learners = [
        ScoreLearner(neighbourhood_score, min_positive)
        for neighbourhood_score in neighbourhood_scores
    ]
    errors = np.array([learner.fit(bags).threshold_.error for learner in learners])
    return Elbow(neighbourhood_scores[elbow_of(errors)], errors)


def elbow_of(errors: Float[np.ndarray, " K"]) -> int:
    """Find the error farthest below the chord from first to last; the first among equals."""
    return int(np.argmax(np.linspace(errors[0], errors[-1], len(errors)) - errors))
