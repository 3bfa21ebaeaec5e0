"""Classify bags by prototypes: local maxima of a function, with a radius each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..datasets.arguments import check_counts
from ..datasets.bags import Bags
from ..models.parts.neighbours import NeighbourMeasure
from .measure_classifiers import Threshold, nth_highest

__all__ = ["Peaks", "PrototypeClassifier", "PrototypeLearner", "gradient_ascent"]

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
    measure: NeighbourMeasure,
    reference: Bags,
    starts: Float[np.ndarray, "P D"],
    *,
    first_step: float,
    max_steps: int = 200,
) -> Peaks:
    """Maximise a measure by gradient ascent, from many points at once.

    Each point moves along ∂f/∂x. The step grows by half where f has risen. Where it has not, the
    step is halved and the point stays.

    Parameters
    ----------
    measure : NeighbourMeasure
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
    nearest = measure.neighbours(points, reference)
    objective, gradients = map(np.array, measure.value_and_gradient(points, nearest))
    for _ in range(max_steps):
        norms = np.linalg.norm(gradients, axis=1)
        moving = (length > _SHORTEST * first_step) & (norms > 0)
        if not moving.any():
            break
        # All of them, also those that stay: another number of points would be compiled anew.
        step = np.where(moving, length / np.where(moving, norms, 1.0), 0.0)
        ahead = points + step[:, None] * gradients
        found, gradient = measure.value_and_gradient(ahead, measure.neighbours(ahead, reference))
        risen = moving & (found > objective)
        points[risen], objective[risen] = ahead[risen], found[risen]
        gradients[risen] = gradient[risen]
        length *= np.where(risen, 1.5, 0.5)
    return Peaks(points, objective, np.ones_like(points)).sorted()


@dataclass(frozen=True)
class PrototypeLearner:
    """Peaks of a measure as prototypes, each with a radius in which instances are positive.

    Parameters
    ----------
    measure : NeighbourMeasure
        With a concave Ψ, such as ``jnp.log1p``. Under Ψ(d) = d the measure goes on rising beyond
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

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), section 3, from equation 10 on.
    """

    measure: NeighbourMeasure
    separation: float
    max_prototypes: int = 10
    min_positive: int = 1
    max_steps: int = 200

    def __post_init__(self) -> None:
        if not 0 < self.separation < np.inf:
            raise ValueError(
                f"PrototypeLearner separation is {self.separation}; expected a positive finite "
                "number, in the units of the features"
            )
        check_counts(
            max_prototypes=self.max_prototypes,
            min_positive=self.min_positive,
            max_steps=self.max_steps,
        )

    def fit(self, bags: Bags) -> PrototypeClassifier:
        """Search from every instance of every positive bag, then find the radii.

        Parameters
        ----------
        bags : Bags
            With labels of both kinds.

        Returns
        -------
        PrototypeClassifier
        """
        peaks = self.find_peaks(bags).select(slice(self.max_prototypes))
        return PrototypeClassifier.learn(peaks, bags, self.min_positive)

    def find_peaks(self, bags: Bags) -> Peaks:
        """Find the local maxima, the highest first."""
        peaks = gradient_ascent(
            self.measure,
            bags,
            instances_of_positive_bags(bags),
            first_step=0.5 * self.separation,
            max_steps=self.max_steps,
        )
        return peaks.suppressed(self.separation)


@dataclass(frozen=True, eq=False)
class PrototypeClassifier:
    """Prototypes and their radii: all that predictions need.

    Attributes
    ----------
    peaks : Peaks
        The prototypes, the highest first.
    radii : array (n,)
        −∞ of a prototype in whose neighbourhood no instance is called positive.
    min_positive : int
    """

    peaks: Peaks
    radii: Float[np.ndarray, " n"]
    min_positive: int

    @classmethod
    def learn(cls, peaks: Peaks, bags: Bags, min_positive: int) -> PrototypeClassifier:
        """Learn the radii that make the fewest errors on labelled bags.

        Parameters
        ----------
        peaks : Peaks
        bags : Bags
        min_positive : int
            a.

        Returns
        -------
        PrototypeClassifier
        """
        distance = peaks.distances(np.asarray(bags.instances))
        radii = find_radii(distance, bags, np.asarray(bags.labels), min_positive)
        return cls(peaks, radii, min_positive)

    def decision_function(self, bags: Bags) -> Float[np.ndarray, " P"]:
        """Depth of each bag's a-th deepest instance in a prototype's radius.

        Parameters
        ----------
        bags : Bags
            Their labels are not used.

        Returns
        -------
        array (P,)
            At least 0 of bags that are classified as positive; in the units of the feature with
            the largest scale there.

        Raises
        ------
        ValueError
            If the bags have another number of features.
        """
        return nth_highest(self._depth(bags), bags, self.min_positive)

    def predict(self, bags: Bags) -> Int[np.ndarray, " P"]:
        """The label, 0 or 1, of each bag."""
        return (self.decision_function(bags) >= 0).astype(int)

    def predict_instances(self, bags: Bags) -> Int[np.ndarray, " N"]:
        """The label of each instance: 1 if it is inside a radius."""
        return (self._depth(bags) >= 0).astype(int)

    def _depth(self, bags: Bags) -> Float[np.ndarray, " N"]:
        num_features = self.peaks.points.shape[1]
        if bags.num_features != num_features:
            raise ValueError(
                f"bags have {bags.num_features} features, but prototypes have {num_features}; pass "
                f"bags with the {num_features} features that were learned from"
            )
        distance = self.peaks.distances(np.asarray(bags.instances))
        # Each in its own scales: over the largest, that of the features again.
        return np.max((self.radii - distance) / self.peaks.scales.max(axis=1), axis=1)


def instances_of_positive_bags(bags: Bags) -> Float[np.ndarray, "P D"]:
    """Instances of positive bags, where searches start.

    Raises
    ------
    ValueError
        If bags have no labels, or none is positive.
    """
    check_some_positive(bags)
    return np.asarray(bags.instances)[np.asarray(bags.labels)[bags.bag_index] == 1]


def check_some_positive(bags: Bags) -> None:
    """Refuse bags of which none is positive.

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
