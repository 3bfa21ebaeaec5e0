"""Citation-kNN: bags vote that are near a bag, or that the bag is near to."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int

from ..datasets.arguments import PROBABILITY, WHOLE, Rule
from ..datasets.bags import Bags
from .contract import BagClassifier
from .set_kernel_svm import distance_blocks

__all__ = ["CitationKNN", "hausdorff_distances"]


class CitationKNN(BagClassifier):
    r"""Citation-kNN: votes of the R nearest bags, and of bags that rank it among their C nearest.

    .. math::
        h_k(X, X') &= k\text{-th lowest over } x ∈ X \text{ of } \min_{x' ∈ X'} ‖x - x'‖, \qquad
        H_k(X, X') = \max(h_k(X, X'), h_k(X', X)) \\
        \text{reference } X_b &: |\{c : H_k(X, X_c) < H_k(X, X_b)\}| < R \\
        \text{citer } X_b &: |\{c ≠ b : H_k(X_b, X_c) < H_k(X_b, X)\}| < C

    The decision value is the number of votes of positive bags minus that of negative bags. A bag
    that is both a reference and a citer has two votes. A tie is negative, as in the paper.

    Parameters
    ----------
    references : int
        R.
    citers : int
        C: a citer has the bag among its C nearest, itself excluded. There may be any number.
    rank : int or float
        k. A whole number counts from 1, the minimal Hausdorff distance; in a bag with fewer
        instances it is the last, so a number beyond all bag sizes makes the usual, maximal one. A
        fraction f between 0 and 1 takes the ⌈f N_b⌉-th in a bag of N_b instances.

    Attributes
    ----------
    bags_ : Bags
        The training bags.
    reach_ : array (B,)
        Distance from each training bag to its C-th nearest other one, infinite where there are
        fewer: the bags up to it are cited.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    Distances between all N training instances take O(N²D) time, and those of a prediction O(ND)
    for each instance.

    The paper leaves open what happens to bags at equal distances. Here all bags that tie with the
    R-th reference are references, and a bag cites all that tie with its C-th nearest: the order of
    bags does not matter. Whether a training bag cites a bag depends on the training bags and that
    bag, and on no other bag that is predicted with it.

    Published: 92.4 % accuracy on musk1, 86.3 on musk2, by leave-one-out. Venkatesan,
    Chandakkar and Li (2015), table 2, report 79.2 on elephant and 62.5 on fox, by splits of 2/3 and
    1/3.

    References
    ----------
    Wang and Zucker (2000), "Solving the multiple-instance problem: a lazy learning approach", ICML.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.estimators import CitationKNN
    >>> instances = [[0.0], [3.0]], [[2.9], [0.4]], [[0.1], [0.3]], [[-0.2], [0.5]]
    >>> bags = Bags.from_list(instances, labels=[1, 1, 0, 0])
    >>> classifier = CitationKNN(references=1, citers=1).fit(bags)
    >>> new = Bags.from_list([[[3.1], [1.5]], [[0.2], [1.5]]])
    >>> classifier.decision_function(new).tolist()  # votes for minus votes against
    [1.0, -2.0]
    >>> classifier.predict(new).tolist()
    [1, 0]
    """

    _rules = {
        "references": WHOLE,
        "citers": WHOLE,
        "rank": Rule(
            "an integer of at least 1, or a fraction between 0 and 1",
            lambda value: WHOLE.accepts(value) or PROBABILITY.accepts(value),
        ),
    }

    def __init__(self, references: int = 2, citers: int = 4, rank: int | float = 1) -> None:
        self.references = references
        self.citers = citers
        self.rank = rank

    def _fit(self, bags: Bags) -> None:
        distance = hausdorff_distances(bags, bags, self.rank)
        np.fill_diagonal(distance, np.inf)  # itself excluded
        self.reach_ = nth_lowest(distance, self.citers)
        self.bags_ = bags

    def _decision(self, bags: Bags) -> Float[np.ndarray, " P"]:
        distance = hausdorff_distances(bags, self.bags_, self.rank)
        is_reference = distance <= nth_lowest(distance, self.references)[:, None]
        is_citer = distance <= self.reach_
        sign = np.where(np.asarray(self.bags_.labels) == 1, 1.0, -1.0)
        return (is_reference.astype(float) + is_citer) @ sign


def nth_lowest(distance: Float[np.ndarray, "P Q"], n: int) -> Float[np.ndarray, " P"]:
    """The n-th lowest number of each row; infinite where there are fewer."""
    if n > distance.shape[1]:
        return np.full(len(distance), np.inf)
    return np.partition(distance, n - 1, axis=1)[:, n - 1]


def hausdorff_distances(left: Bags, right: Bags, rank: int | float) -> Float[np.ndarray, "P Q"]:
    """The k-th ranked Hausdorff distance H_k between each bag of the left and each of the right.

    Parameters
    ----------
    left, right : Bags
    rank : int or float
        k, a whole number from 1 or a fraction, as of `CitationKNN`.

    Returns
    -------
    array (P, Q)
    """
    places, other_places = places_of(left.bag_sizes, rank), places_of(right.bag_sizes, rank)
    distances = np.empty((left.num_bags, right.num_bags))
    for block in distance_blocks(left, right):
        to_right = np.minimum.reduceat(block.distance, right.starts, axis=1)
        to_left = np.minimum.reduceat(block.distance, block.starts, axis=0).T
        forth = ranked_in_bags(to_right, block.starts, places[block.bags])
        back = ranked_in_bags(to_left, right.starts, other_places).T
        distances[block.bags] = np.maximum(forth, back)
    return distances


def places_of(sizes: Int[np.ndarray, " B"], rank: int | float) -> Int[np.ndarray, " B"]:
    """k in bags of these sizes, from 1 to the size."""
    if WHOLE.accepts(rank):
        return np.minimum(rank, sizes)
    return np.array([math.ceil(rank * size) for size in sizes])


def ranked_in_bags(
    distance: Float[np.ndarray, "M Q"],
    starts: Int[np.ndarray, " P"],
    places: Int[np.ndarray, " P"],
) -> Float[np.ndarray, "P Q"]:
    """The k-th lowest over the rows of each bag, k its place."""
    if (places == 1).all():
        return np.minimum.reduceat(distance, starts, axis=0)
    parts = zip(np.split(distance, starts[1:]), places, strict=True)
    return np.array([np.partition(rows, k - 1, axis=0)[k - 1] for rows, k in parts])
