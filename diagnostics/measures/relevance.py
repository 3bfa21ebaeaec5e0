"""How much single instances of a bag matter: by their labels, and by their presence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import entr

from ...datasets.arguments import PROBABILITY, check
from ...datasets.bags import Bags
from ...inference.posterior import Posterior
from ...inference.prediction import Prediction

__all__ = ["Relevance", "expected_information", "relevance", "rows_of_bag"]

# Bags up to this size have all subsets tried.
_MOST_FOR_ALL_SUBSETS = 10


@dataclass(frozen=True, eq=False)
class Relevance:
    """Relevance of the instances of one bag.

    Attributes
    ----------
    rows : array (n,)
        Positions of the instances among those of all bags.
    expected_information : array (n,)
        Nats about the posterior that the label of each would tell on average.
    may_go : array (n,)
        Whether each is in the largest subset that can go with the prediction of the bag on the same
        side of the threshold; of subsets of one size, the one that changes it least.
    bag_probability, probability_without : float
        P(T* = 1) of the bag, and of what is left of it.
    is_exact : bool
        Whether all subsets were tried; else instances were taken out one by one, so that a larger
        subset may exist.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import Relevance, relevance
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> found: Relevance = relevance(laplace(model, bags, seed=0), bags, 0)
    >>> found.rows, found.may_go
    (array([0, 1]), array([ True, False]))
    >>> found.expected_information.round(1)
    array([0.1, 0.1])
    """

    rows: Int[np.ndarray, " n"]
    expected_information: Float[np.ndarray, " n"]
    may_go: Bool[np.ndarray, " n"]
    bag_probability: float
    probability_without: float
    is_exact: bool


def expected_information(prediction: Prediction) -> Float[np.ndarray, " N"]:
    r"""Nats about the posterior that the label of each instance would tell, on average.

    The mutual information of the label y and the unknowns θ given the data,

    .. math:: I(y_n; θ) = H(\mathrm{E}\, p_n) - \mathrm{E}\, H(p_n),

    with H the entropy of a label and p_n = P(y_n = 1 | θ), over the draws of θ. It is 0 where all
    draws agree, be the label as uncertain as it may; at most log 2.

    Parameters
    ----------
    prediction : Prediction
        With several draws.

    Returns
    -------
    array (N,)

    Raises
    ------
    ValueError
        If there is one draw.

    References
    ----------
    Houlsby, Huszár, Ghahramani and Lengyel (2011), Bayesian active learning for classification.

    Examples
    --------
    A label between the inducing points tells little of the values there:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import expected_information
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = laplace(model, bags, seed=0)
    >>> prediction = posterior.predict(Bags.from_list([[[0.0], [1.5], [3.0]]]))
    >>> expected_information(prediction).round(1)
    array([0.1, 0. , 0.1])
    """
    draws = np.asarray(prediction.instance_draws, float)
    if len(draws) < 2:
        raise ValueError(
            "prediction has one draw, which knows of no uncertainty; expected that of a posterior"
        )
    return _entropy(draws.mean(axis=0)) - _entropy(draws).mean(axis=0)


def _entropy(probability: np.ndarray) -> np.ndarray:
    return entr(probability) + entr(1 - probability)


def relevance(posterior: Posterior, bags: Bags, bag: int, *, threshold: float = 0.5) -> Relevance:
    """Measure how much each instance of a bag matters: by its label, and by its presence.

    A counterfactual explanation of a prediction: without the instances of ``may_go`` the bag is
    still on its side of the threshold, so that the others are enough for it.

    Parameters
    ----------
    posterior : Posterior
        Of a model of bag labels.
    bags : Bags
    bag : int
        Which.
    threshold : float
        P(T* = 1) from which on a bag counts as positive.

    Returns
    -------
    Relevance
        ``may_go`` by all subsets of a bag of at most ten instances.

    Raises
    ------
    ValueError
        If there is no such bag, the threshold is no probability, or the model is one of targets.

    Examples
    --------
    The bag has a witness at 3, and is positive without its other instance:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import relevance
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> found = relevance(laplace(model, bags, seed=0), bags, 0)
    >>> bags.instances[found.rows[~found.may_go]]  # all that it needs
    array([[3.]])
    >>> round(found.bag_probability, 1), round(found.probability_without, 1)
    (0.7, 0.8)
    """
    check("threshold", threshold, PROBABILITY)
    rows = rows_of_bag(bags, bag)
    alone = bags.select([bag]).without_labels()
    instances, edges = np.asarray(alone.instances), alone.edges

    def probabilities(kept: Bool[np.ndarray, "K n"]) -> Float[np.ndarray, " K"]:
        parts = Bags.from_list([instances[of] for of in kept])
        if edges is not None:
            each = [edges.among(np.flatnonzero(of)).as_matrix(int(of.sum())) for of in kept]
            parts = parts.with_edges(each)
        return _predicted(posterior, parts).bag_probability

    prediction = _predicted(posterior, alone)
    whole = float(prediction.bag_probability[0])
    is_exact = len(rows) <= _MOST_FOR_ALL_SUBSETS
    search = _best_subset if is_exact else removed_one_by_one
    kept, left = search(probabilities, len(rows), whole, threshold)
    return Relevance(rows, expected_information(prediction), ~kept, whole, left, is_exact)


def rows_of_bag(bags: Bags, bag: int) -> Int[np.ndarray, " n"]:
    """Where the instances of a bag are among all.

    Raises
    ------
    ValueError
        If there is no such bag, or none in it.
    """
    rows = np.flatnonzero(np.asarray(bags.bag_index) == bag)
    if not len(rows):
        raise ValueError(
            f"bag is {bag}; expected the number, 0 to {bags.num_bags - 1}, of a bag with instances"
        )
    return rows


def _predicted(posterior: Posterior, bags: Bags) -> Prediction:
    prediction = posterior.predict(bags)
    if not isinstance(prediction, Prediction):
        raise ValueError(
            f"posterior is of {posterior.model.name} for targets, which has no sides to stay on; "
            "expected one of a model of bag labels"
        )
    return prediction


type _Probabilities = Callable[[Bool[np.ndarray, "K n"]], Float[np.ndarray, " K"]]


def _best_subset(
    probabilities: _Probabilities, size: int, whole: float, threshold: float
) -> tuple[Bool[np.ndarray, " n"], float]:
    """The smallest subset on the side of the whole, all of them tried; and its probability."""
    kept = np.array(
        [
            np.isin(np.arange(size), chosen)
            for number in range(1, size + 1)
            for chosen in combinations(range(size), number)
        ]
    )
    found = probabilities(kept)
    is_same = (found >= threshold) == (whole >= threshold)
    number = np.where(is_same, kept.sum(axis=1), size + 1)
    smallest = np.flatnonzero(number == number.min())
    best = smallest[np.argmin(np.abs(found[smallest] - whole))]
    return kept[best], float(found[best])


def removed_one_by_one(
    probabilities: _Probabilities, size: int, whole: float, threshold: float
) -> tuple[Bool[np.ndarray, " n"], float]:
    """Leave out the instance that moves the prediction least, as long as the side stays."""
    kept, left = np.ones(size, bool), whole
    while kept.sum() > 1:
        places = np.flatnonzero(kept)
        without = np.repeat(kept[None], len(places), axis=0)
        without[np.arange(len(places)), places] = False
        found = probabilities(without)
        is_same = (found >= threshold) == (whole >= threshold)
        if not is_same.any():
            break
        best = np.argmin(np.where(is_same, np.abs(found - whole), np.inf))
        kept, left = without[best], float(found[best])
    return kept, left
