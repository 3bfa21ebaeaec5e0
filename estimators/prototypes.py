"""Classify bags by prototypes: local maxima of a function, with a radius each."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float, Int

from ..datasets.arguments import POSITIVE, WHOLE
from ..datasets.bags import Bags
from ..models.parts.neighbours import NeighbourScore
from .contract import LOWEST, ScoresInstances
from .score_classifiers import Threshold, nth_highest

__all__ = ["Peaks", "PrototypeClassifier", "PrototypeLearner", "Prototypes", "gradient_ascent"]

# A search ends where a step is shorter than this fraction of the first one.
_SHORTEST = 1e-4
# Rounds in which every radius is found anew, the others given.
_ROUNDS = 20


class Peaks(NamedTuple):
    """Local maxima of a function on feature space, the highest first.

    Attributes
    ----------
    points : array (P, D)
    objective : array (P,)
        Values of the function there.
    scales : array (P, D)
        Factors of the features around each point, before distances are taken.
    """

    points: Float[np.ndarray, "P D"]
    objective: Float[np.ndarray, " P"]
    scales: Float[np.ndarray, "P D"]

    def sorted(self) -> Peaks:
        """Sort them, the highest first; of equals the one that came first."""
        return self.select(np.argsort(-self.objective, kind="stable"))

    def suppressed(self, separation: float) -> Peaks:
        """Drop peaks that have a higher one, not dropped itself, closer than ``separation``.

        Distances are taken in the scales of the higher one over its largest: a feature that it
        ignores adds no distance.
        """
        left: list[int] = []
        for n, point in enumerate(self.points):
            higher = self.select(np.array(left, dtype=int))
            relative = higher.scales / higher.scales.max(axis=1, keepdims=True)
            distance = np.linalg.norm(relative * (higher.points - point), axis=1)
            if np.all(distance >= separation):
                left.append(n)
        return self.select(np.array(left, dtype=int))

    def select(self, chosen: Int[np.ndarray, " Q"] | slice) -> Peaks:
        """The chosen peaks."""
        return Peaks(*(part[chosen] for part in self))

    def distances(self, instances: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N P"]:
        """Distances from each instance to each point, √Σ_d s_d² (x_d − t_d)²."""
        return np.stack(
            [
                np.linalg.norm(scale * (instances - point), axis=1)
                for point, scale in zip(self.points, self.scales, strict=True)
            ],
            axis=1,
        )


def gradient_ascent(
    neighbourhood_score: NeighbourScore,
    reference: Bags,
    starts: Float[np.ndarray, "P D"],
    *,
    first_step: float,
    max_steps: int = 200,
) -> Peaks:
    """Maximise a neighbourhood score by gradient ascent, from many points at once.

    Each point moves along ∂f/∂x. The step grows by half where f has risen. Where it has not, the
    step is halved and the point stays.

    Parameters
    ----------
    neighbourhood_score : NeighbourScore
    reference : Bags
        Those that make it, with labels.
    starts : array (P, D)
    first_step : float
        Its length.
    max_steps : int

    Returns
    -------
    Peaks
        As many as starts.

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), equation 10.
    """
    points, length = np.array(starts, dtype=float), np.full(len(starts), float(first_step))
    nearest = neighbourhood_score.neighbours(points, reference)
    objective, gradients = map(np.array, neighbourhood_score.value_and_gradient(points, nearest))
    for _ in range(max_steps):
        norms = np.linalg.norm(gradients, axis=1)
        moving = (length > _SHORTEST * first_step) & (norms > 0)
        if not moving.any():
            break
        # All of them, also those that stay: another number of points would be compiled anew.
        step = np.where(moving, length / np.where(moving, norms, 1.0), 0.0)
        ahead = points + step[:, None] * gradients
        found, gradient = neighbourhood_score.value_and_gradient(
            ahead, neighbourhood_score.neighbours(ahead, reference)
        )
        risen = moving & (found > objective)
        points[risen], objective[risen] = ahead[risen], found[risen]
        gradients[risen] = gradient[risen]
        length *= np.where(risen, 1.5, 0.5)
    return Peaks(points, objective, np.ones_like(points)).sorted()


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Prototypes and their radii.

    Attributes
    ----------
    peaks : Peaks
        The prototypes, the highest first.
    radii : array (n,)
        −∞ of a prototype in whose neighbourhood no instance is called positive.
    """

    peaks: Peaks
    radii: Float[np.ndarray, " n"]

    @classmethod
    def learn(cls, peaks: Peaks, bags: Bags, min_positive: int) -> Self:
        """Learn the radii that make the fewest errors on labelled bags.

        Parameters
        ----------
        peaks : Peaks
        bags : Bags
        min_positive : int
            a.

        Returns
        -------
        Prototypes
        """
        distance = peaks.distances(np.asarray(bags.instances))
        return cls(peaks, find_radii(distance, bags, np.asarray(bags.labels), min_positive))

    def depths(self, bags: Bags) -> Float[np.ndarray, " N"]:
        """How deep each instance is in the radius that it is deepest in; below 0 outside all.

        In the units of the feature with the largest scale there.
        """
        distance = self.peaks.distances(np.asarray(bags.instances))
        # Each in its own scales: over the largest, that of the features again.
        return np.max((self.radii - distance) / self.peaks.scales.max(axis=1), axis=1)


class PrototypeClassifier(ScoresInstances):
    """A classifier of bags by prototypes with a radius each: positive if a instances are inside.

    The decision value of a bag is the depth of its a-th deepest instance in a radius, the lowest
    number of a bag with fewer instances; that of an instance is its depth.

    Attributes
    ----------
    prototypes_ : Prototypes
    classes_ : array (2,)
    n_features_in_ : int
    """

    _zero_is_positive = True

    max_prototypes: int
    min_positive: int
    prototypes_: Prototypes

    @abstractmethod
    def find_peaks(self, bags: Bags) -> Peaks:
        """Find the local maxima, the highest first."""

    def _fit(self, bags: Bags) -> None:
        peaks = self.find_peaks(bags).select(slice(self.max_prototypes))
        self.prototypes_ = Prototypes.learn(peaks, bags, self.min_positive)

    def _decision(self, bags: Bags) -> Float[np.ndarray, " P"]:
        deepest = nth_highest(self.prototypes_.depths(bags), bags, self.min_positive)
        return np.maximum(deepest, LOWEST)

    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        return np.maximum(self.prototypes_.depths(bags), LOWEST)


class PrototypeLearner(PrototypeClassifier):
    """Peaks of a neighbourhood score as prototypes, each with a radius of positive instances.

    Searches start from every instance of every positive bag.

    Parameters
    ----------
    neighbourhood_score : NeighbourScore
        With a concave Ψ, such as ``jnp.log1p``. Under Ψ(d) = d the score goes on rising beyond
        the last instances, towards the end of a ray from negative bags through positive ones, and
        peaks lie where no instance is.
    separation : float
        Of two peaks that are closer, the lower one is suppressed.
    max_prototypes : int
        n: the highest peaks are kept.
    min_positive : int
        a, the number of instances inside radii that a positive bag has.
    max_steps : int
        Of each search.

    Attributes
    ----------
    prototypes_ : Prototypes
    classes_ : array (2,)
    n_features_in_ : int

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), section 3, from equation 10 on.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from milzoo.datasets import standard_assumption
    >>> from milzoo.estimators import PrototypeLearner
    >>> from milzoo.models import NeighbourScore
    >>> training, test = standard_assumption(10, range(4, 8), num_features=2, seed=0)
    >>> classifier = PrototypeLearner(NeighbourScore(5, jnp.log1p), separation=1.0).fit(training)
    >>> classifier.prototypes_.peaks.points[0].round().tolist()  # the concept is at (3, 3)
    [3.0, 3.0]
    >>> classifier.score(test)
    1.0
    """

    _rules = {
        "separation": POSITIVE,
        "max_prototypes": WHOLE,
        "min_positive": WHOLE,
        "max_steps": WHOLE,
    }

    def __init__(
        self,
        neighbourhood_score: NeighbourScore,
        separation: float,
        max_prototypes: int = 10,
        min_positive: int = 1,
        max_steps: int = 200,
    ) -> None:
        self.neighbourhood_score = neighbourhood_score
        self.separation = separation
        self.max_prototypes = max_prototypes
        self.min_positive = min_positive
        self.max_steps = max_steps

    def find_peaks(self, bags: Bags) -> Peaks:
        """Find the local maxima, the highest first."""
        self._check_parameters()
        peaks = gradient_ascent(
            self.neighbourhood_score,
            bags,
            instances_of_positive_bags(bags),
            first_step=0.5 * self.separation,
            max_steps=self.max_steps,
        )
        return peaks.suppressed(self.separation)


def instances_of_positive_bags(
    bags: Bags, most_bags: int | None = None
) -> Float[np.ndarray, "P D"]:
    """Instances of positive bags, where searches start; of so many of the smallest.

    Raises
    ------
    ValueError
        If bags have no labels, or none is positive.
    """
    check_some_positive(bags)
    positive = np.flatnonzero(np.asarray(bags.labels))
    smallest = positive[np.argsort(bags.bag_sizes[positive], kind="stable")][:most_bags]
    return np.asarray(bags.instances)[np.isin(bags.bag_index, smallest)]


def check_some_positive(bags: Bags) -> None:
    """Refuse bags without a positive one.

    Raises
    ------
    ValueError
        If bags have no labels, or none is positive.
    """
    if bags.labels is None or not np.any(bags.labels):
        found = "no labels" if bags.labels is None else "no positive one among them"
        raise ValueError(f"bags have {found}; prototypes are looked for from positive bags")


def find_radii(
    distance: Float[np.ndarray, "N n"],
    bags: Bags,
    labels: Int[np.ndarray, " B"],
    min_positive: int,
) -> Float[np.ndarray, " n"]:
    """Find the radii that make the fewest errors, each in turn with the others given.

    From no radius at all, the highest prototype first; rounds until no radius takes an error away.

    Parameters
    ----------
    distance : array (N, n)
        From each instance to each prototype.
    bags : Bags
    labels : array (B,)
    min_positive : int
        a.

    Returns
    -------
    array (n,)

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), section 3: "maximize a validation accuracy jointly for all
    instance prototypes"; the paper does not say how.
    """
    radii, fewest = np.full(distance.shape[1], -np.inf), np.inf
    for _ in range(_ROUNDS):
        errors_before = fewest
        for n in range(len(radii)):
            others = np.delete(distance <= radii, n, axis=1).any(axis=1)
            # −distance of the instance that would be the a-th inside; ∞ where others suffice.
            score = nth_highest(np.where(others, np.inf, -distance[:, n]), bags, min_positive)
            found = Threshold.learn(score, labels)
            if found.error < fewest:
                radii[n], fewest = -found.value, found.error
        if fewest == errors_before:
            break
    return radii
