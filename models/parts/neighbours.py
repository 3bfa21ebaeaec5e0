r"""Neighbourhood scores: how much nearer positive bags are than negative ones, at any point.

.. math::
    f_{kNN}(x) &= \sum_{z ∈ k⁻(x)} Ψ(‖x - z‖) - \sum_{z ∈ k⁺(x)} Ψ(‖x - z‖) \\
    f_{Parzen}(x) &= \frac{1}{n} \Big( \sum_{z ∈ X⁺} φ(x - z) - \sum_{z ∈ X⁻} φ(x - z) \Big)

k⁺(x) and k⁻(x) are the k instances of positive and of negative bags that are nearest to x; φ is 1
in a cube around x and 0 elsewhere. Both are high where positive bags have instances and negative
bags have none. They are functions of the labels of all reference bags, not
probability distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors

from ...datasets.arguments import POSITIVE, WHOLE
from ...datasets.bags import Bags
from ...datasets.padding import bucket
from ..numerics.fields import check_fields

__all__ = ["NeighbourScore", "NeighbourhoodScore", "Neighbours", "ParzenScore", "scored"]

# Instances whose neighbours are looked up together.
_ROWS = 4096
_FEWEST_ROWS = 256
# Distances in memory at once: 32 MB.
_PAIRS = 2**22


@runtime_checkable
class NeighbourhoodScore(Protocol):
    """A neighbourhood score: a function of points and of labelled reference bags."""

    def scores(self, points: Float[np.ndarray, "P D"], reference: Bags) -> Float[np.ndarray, " P"]:
        """Scores f of points, from all bags of ``reference``."""
        ...

    def own_scores(self, reference: Bags) -> Float[np.ndarray, " N"]:
        """Scores f of the reference instances, each without its own bag."""
        ...


def scored(
    neighbourhood_scores: Sequence[NeighbourhoodScore], reference: Bags, bags: Bags | None = None
) -> Bags:
    """Bags whose features are neighbourhood scores of their instances.

    Parameters
    ----------
    neighbourhood_scores : sequence of NeighbourhoodScore
        K of them, such as `NeighbourScore` with several k.
    reference : Bags
        Bags with labels, from which the scores are computed.
    bags : Bags or None
        Bags to score. None for ``reference`` itself, each bag without its own instances: an
        instance would be its own nearest neighbour.

    Returns
    -------
    Bags
        With instances (N, K), and all else as before.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.models import NeighbourScore, scored
    >>> bags = Bags.from_list([[[0.0]], [[4.0]], [[1.0]], [[5.0]]], labels=[1, 0, 1, 0])
    >>> scored([NeighbourScore(k=1)], bags).instances.tolist()
    [[3.0], [-2.0], [2.0], [-3.0]]
    """
    if bags is None:
        columns = [
            neighbourhood_score.own_scores(reference)
            for neighbourhood_score in neighbourhood_scores
        ]
        return replace(reference, instances=np.column_stack(columns))
    columns = [
        neighbourhood_score.scores(np.asarray(bags.instances), reference)
        for neighbourhood_score in neighbourhood_scores
    ]
    return replace(bags, instances=np.column_stack(columns))


class Neighbours(NamedTuple):
    """The k nearest instances of negative and of positive bags, for P points."""

    negative: Float[np.ndarray, "P k D"]
    positive: Float[np.ndarray, "P k D"]


@dataclass(frozen=True)
class NeighbourScore:
    r"""f(x) = Σ Ψ(distances to the k nearest negative) − Σ Ψ(those to the k nearest positive).

    Parameters
    ----------
    k : int
    transform : callable or None
        Ψ, an increasing function of an array of distances that JAX can trace; None for
        Ψ(d) = d, the paper's choice.

    Raises
    ------
    ValueError
        If k is less than 1.

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), equation 4.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.models import NeighbourScore
    >>> bags = Bags.from_list([np.array([[0.0], [5.0]]), np.array([[4.0]])], labels=[1, 0])
    >>> NeighbourScore(k=1).scores(np.array([[1.0], [4.5]]), bags).tolist()
    [2.0, 0.0]
    """

    k: Annotated[int, WHOLE] = 3
    transform: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def scores(self, points: Float[np.ndarray, "P D"], reference: Bags) -> Float[np.ndarray, " P"]:
        """Scores f of points.

        Parameters
        ----------
        points : array (P, D)
        reference : Bags
            With labels, and at least k instances in bags of either label.

        Returns
        -------
        array (P,)

        Raises
        ------
        ValueError
            If it has no labels, too few instances of one, or other features.
        """
        searches = self._searches(points, reference)
        parts = (
            self.value(points[rows], Neighbours(*(one.nearest(points[rows]) for one in searches)))
            for rows in _chunks(len(points), _ROWS)
        )
        return np.concatenate(list(parts))

    def own_scores(self, reference: Bags) -> Float[np.ndarray, " N"]:
        """Scores f of the reference instances, each without its own bag.

        Parameters
        ----------
        reference : Bags
            With labels, and at least k instances in bags of either label besides any one bag.

        Returns
        -------
        array (N,)

        Raises
        ------
        ValueError
            If it has no labels, or too few instances of one.
        """
        points = np.asarray(reference.instances)
        searches = self._searches(points, reference)
        for search in searches:
            search.check_others(reference)
        own_bag = np.asarray(reference.bag_index)
        parts = (
            self.value(
                points[rows],
                Neighbours(*(one.nearest(points[rows], own_bag[rows]) for one in searches)),
            )
            for rows in _chunks(len(points), _ROWS)
        )
        return np.concatenate(list(parts))

    def value(
        self, points: Float[np.ndarray, "P D"], neighbours: Neighbours
    ) -> Float[np.ndarray, " P"]:
        """Scores f of points whose neighbours are known."""
        rows = bucket(max(len(points), _FEWEST_ROWS))  # blocks of few sizes share programs
        padded_points, *padded_neighbours = (_with_rows(one, rows) for one in (points, *neighbours))
        with jax.enable_x64(True):
            found = _contrast(self.transform, padded_points, Neighbours(*padded_neighbours))
            return np.asarray(found)[: len(points)]

    def value_and_gradient(
        self, points: Float[np.ndarray, "P D"], neighbours: Neighbours
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P D"]]:
        """Scores f and ∂f/∂x of points whose neighbours are known and locally constant.

        A neighbour at the point itself, where the distance has a kink, contributes no gradient.
        """
        with jax.enable_x64(True):
            value, vector_jacobian_product = jax.vjp(
                partial(_contrast, self.transform), jnp.asarray(points), neighbours
            )
            return np.asarray(value), np.asarray(vector_jacobian_product(jnp.ones_like(value))[0])

    def neighbours(self, points: Float[np.ndarray, "P D"], reference: Bags) -> Neighbours:
        """The k nearest instances of negative and of positive bags."""
        return Neighbours(*(one.nearest(points) for one in self._searches(points, reference)))

    def _searches(self, points: np.ndarray, reference: Bags) -> tuple[_Search, _Search]:
        _check_reference(points, reference)
        negative, positive = (_Search.of(reference, label, self.k) for label in (0, 1))
        return negative, positive


@dataclass(frozen=True)
class _Search:
    """Search for nearest instances among bags of one label."""

    label: int
    k: int
    instances: Float[np.ndarray, "M D"]
    bag_index: Int[np.ndarray, " M"]
    engine: NearestNeighbors

    @classmethod
    def of(cls, reference: Bags, label: int, k: int) -> _Search:
        chosen = np.asarray(reference.labels)[reference.bag_index] == label
        instances = np.asarray(reference.instances)[chosen]
        if len(instances) < k:
            raise ValueError(
                f"k is {k}, but bags with label {label} have {len(instances)} instances; expected "
                "at least k: more bags, or a smaller k"
            )
        # A tree in few dimensions, all distances by blocks in many.
        engine = NearestNeighbors().fit(instances)
        return cls(label, k, instances, np.asarray(reference.bag_index)[chosen], engine)

    def check_others(self, reference: Bags) -> None:
        """Raise an error if fewer than k instances remain without some bag."""
        left = len(self.instances) - np.bincount(self.bag_index, minlength=reference.num_bags)
        if left.min() < self.k:
            bag = int(np.argmin(left))
            name = reference.names[bag] if reference.names else bag
            raise ValueError(
                f"k is {self.k}, but without bag {name!r} {left[bag]} instances are left in bags "
                f"with label {self.label}; expected at least k: more bags, or a smaller k"
            )

    def nearest(
        self,
        points: Float[np.ndarray, "P D"],
        own_bag: Int[np.ndarray, " P"] | None = None,
    ) -> Float[np.ndarray, "P k D"]:
        """The k nearest instances, excluding the point's own bag where that is given."""
        if own_bag is None:
            return self.instances[self._look_up(points, self.k)]
        found = np.empty((len(points), self.k), dtype=int)
        missing, asked = np.arange(len(points)), 2 * self.k
        while missing.size:  # points with too many neighbours of their own bag
            row = self._look_up(points[missing], asked)
            is_own = self.bag_index[row] == own_bag[missing, None]
            others_first = np.argsort(is_own, axis=1, kind="stable")[:, : self.k]
            enough = (~is_own).sum(axis=1) >= self.k
            found[missing[enough]] = np.take_along_axis(row, others_first, axis=1)[enough]
            missing, asked = missing[~enough], 2 * asked
        return self.instances[found]

    def _look_up(self, points: np.ndarray, num: int) -> Int[np.ndarray, "P k"]:
        num = min(num, len(self.instances))
        return self.engine.kneighbors(points, num, return_distance=False)


@partial(jax.jit, static_argnums=0)
def _contrast(
    transform: Callable[[Array], Array] | None,
    points: Float[Array, "P D"],
    neighbours: Neighbours,
) -> Float[Array, " P"]:
    def votes(nearest: Float[Array, "P k D"]) -> Float[Array, " P"]:
        squared = jnp.sum((points[:, None] - nearest) ** 2, axis=-1)
        # The root has no gradient at 0: the inner where keeps an infinite one out of the outer.
        distance = jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 1.0)), 0.0)
        return jnp.sum(distance if transform is None else transform(distance), axis=-1)

    negative, positive = neighbours
    return votes(jnp.asarray(negative)) - votes(jnp.asarray(positive))


@dataclass(frozen=True)
class ParzenScore:
    """Instances of positive bags in a cube around x, less those of negative bags, over n.

    The paper also divides by the volume of the cube, a constant.

    Parameters
    ----------
    width : float
        Half an edge: z counts where ``|x_d − z_d| ≤ width`` in every feature d.

    Raises
    ------
    ValueError
        If it is not a positive finite number.

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), equations 2 and 3; the first sum there runs to ``|k⁻|``
    where ``|k⁺|`` is meant.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.models import ParzenScore
    >>> bags = Bags.from_list([np.array([[0.0], [5.0]]), np.array([[4.0]])], labels=[1, 0])
    >>> ParzenScore(width=0.5).scores(np.array([[0.5], [4.5], [2.0]]), bags).tolist()
    [0.3333333333333333, 0.0, 0.0]
    """

    width: Annotated[float, POSITIVE]

    def __post_init__(self) -> None:
        check_fields(self)

    def scores(self, points: Float[np.ndarray, "P D"], reference: Bags) -> Float[np.ndarray, " P"]:
        """Scores f of points.

        Parameters
        ----------
        points : array (P, D)
        reference : Bags
            With labels.

        Returns
        -------
        array (P,)

        Raises
        ------
        ValueError
            If it has no labels, or other features.
        """
        _check_reference(points, reference)
        instances = np.asarray(reference.instances)
        sign = 2.0 * np.asarray(reference.labels)[reference.bag_index] - 1.0
        # All pairs: in 166 dimensions a tree leaves none out, and takes up to three times as long.
        count = [
            (cdist(points[rows], instances, "chebyshev") <= self.width) @ sign
            for rows in _chunks(len(points), max(1, _PAIRS // len(instances)))
        ]
        return np.concatenate(count) / reference.num_instances

    def own_scores(self, reference: Bags) -> Float[np.ndarray, " N"]:
        """Scores f of the reference instances, each without its own bag.

        The denominator n is the number of all instances, the own bag included.

        Parameters
        ----------
        reference : Bags
            With labels.

        Returns
        -------
        array (N,)

        Raises
        ------
        ValueError
            If it has no labels.
        """
        points = np.asarray(reference.instances)
        own = (
            [
                (cdist(one, one, "chebyshev") <= self.width).sum(axis=1) * (1.0 if label else -1.0)
                for one, label in zip(
                    reference.to_list(), np.asarray(reference.labels), strict=True
                )
            ]
            if reference.labels is not None
            else []
        )
        return self.scores(points, reference) - np.concatenate(own) / reference.num_instances


def _with_rows(array: np.ndarray, num: int) -> np.ndarray:
    """Padded with rows of zeros to so many."""
    padded = np.zeros((num, *array.shape[1:]))
    padded[: len(array)] = array
    return padded


def _check_reference(points: np.ndarray, reference: Bags) -> None:
    if reference.labels is None:
        raise ValueError(
            "bags have no labels; neighbourhood scores need bags with label 0 and with label 1"
        )
    if points.ndim != 2 or points.shape[1] != reference.num_features:
        raise ValueError(
            f"points have shape {points.shape}; expected (P, {reference.num_features}), the "
            "features of the reference bags"
        )


def _chunks(num: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, num, rows))
