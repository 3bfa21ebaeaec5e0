"""ALP-SVM: labels of instances by deterministic annealing, with a given fraction of positives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import brentq
from scipy.special import entr, expit
from sklearn.svm import SVC

from ..datasets.arguments import AT_LEAST_ZERO, POSITIVE, PROBABILITY, WHOLE, Rule, is_number
from ..datasets.bags import Bags
from ..inference.posterior import Status
from .contract import ScoresInstances
from .instance_kernels import KERNEL, LENGTH_SCALE, InstanceKernel, SortedBags

__all__ = ["ALPSVM"]

# C of a classifier whose slacks are in the kernel: never reached.
_NO_BOUND = 1e10
# Of the dual.
_DUAL_TOLERANCE = 1e-5
# Examples of less weight are left out.
_NO_WEIGHT = 1e-7
# Halvings of a bracket: more than the digits of a number.
_HALVINGS = 200


class ALPSVM(ScoresInstances):
    r"""ALP-SVM: labels in positive bags by deterministic annealing, a given fraction positive.

    .. math:: \min_{p} \min_{f} \; ½‖w‖² + C Σ_{n ∈ N₋} ℓ(-f_n)
        + C Σ_{n ∈ N₊} \big(p_n ℓ(f_n) + (1 - p_n) ℓ(-f_n)\big) - C T Σ_{n ∈ N₊} H(p_n)

    with the squared hinge loss ℓ(f) = max(0, 1 − f)², the entropy H, and the instances N₊ of
    positive bags and N₋ of negative ones. The probabilities p add up to r times the number of
    instances in N₊, and to at least 1 in each positive bag. Steps in f, a weighted support vector
    classifier, and in p take turns while the temperature T falls. At fixed f

    .. math:: p_n = σ\big((ν_b - ℓ(f_n) + ℓ(-f_n)) / T\big), \quad ν_b = \max(μ, λ_b),

    where λ_b makes the p of bag b add up to 1, and μ makes all of them add up as they must. A bag
    is positive where max_n f(x_n) > 0.

    Parameters
    ----------
    positive_fraction : float
        r, the expected fraction of positive instances in positive bags. The sum of p is the nearest
        integer to ``r |N₊|``, and at least the number of positive bags.
    kernel : str
        "linear" or "rbf", exp(−‖x − x′‖² / (2ℓ²)).
    length_scale : float or None
        ℓ; None for √D.
    penalty : float
        C.
    temperature : float
        T at first, in units of the loss.
    cooling : float
        The factor by which T is divided.
    coldest : float
        T at last is the first one that is not above it.
    tolerance : float
        T falls once no p changes by more than it.
    max_steps : int
        Steps at each temperature, at most.

    Attributes
    ----------
    kernel_ : InstanceKernel
    instances_ : array (S, D)
        The training instances that f sums over.
    coefficients_ : array (S,)
        Of the kernel between each of them and x.
    intercept_ : float
    probabilities_ : array (N,)
        p of the training instances, 0 in negative bags.
    objective_ : float
        At last, with the entropy.
    entropy_ : float
        Mean H(p) over N₊ at last, in nats; near 0 where labels are decided.
    status_ : Status
        ``converged`` where p stood still at the last temperature.
    num_steps_ : int
        How often f was trained.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    Each step trains on N₋ + 2 N₊ weighted instances, O(N²) to O(N³), with the kernel between them
    in memory; a step in p takes O(N). No step at one temperature raises the objective. With T → 0,
    and without r, it is that of mi-SVM but for the square of the loss.

    The square is needed: with the hinge loss and r < ½, f = −1 and p = r in all positive bags is a
    fixed point at every temperature. A squared loss is a ridge on the kernel, with which
    scikit-learn's classifier has no bound on α.

    The balance is over all positive bags together, as in transductive classifiers; the sum of at
    least 1 in each bag is the constraint of multiple-instance learning in expectation. T is in
    units of C, so that the same temperatures serve any penalty. Identical instances share their p,
    which stays between 0 and 1 where only some of them can be positive.

    Published: 87.9 % accuracy on musk1 and 86.6 on musk2, 84 on elephant and 69 on fox (as
    Venkatesan et al., 2015, report it); 86, 86, 84 and 66 (as Hajimirsadeghi and Mori, 2017,
    report it).

    References
    ----------
    Gehler and Chapelle (2007), Deterministic annealing for multiple-instance learning, AISTATS.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.estimators import ALPSVM
    >>> instances = [[0.0], [3.0]], [[2.9], [0.4]], [[0.1], [0.3]], [[-0.2], [0.5]]
    >>> bags = Bags.from_list(instances, labels=[1, 1, 0, 0])
    >>> classifier = ALPSVM(positive_fraction=0.5, length_scale=1.0).fit(bags)
    >>> classifier.probabilities_.round(2).tolist()  # of the instances
    [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    >>> classifier.predict(Bags.from_list([[[3.1]], [[0.2]]])).tolist()
    [1, 0]
    """

    _rules = {
        "positive_fraction": PROBABILITY,
        "kernel": KERNEL,
        "length_scale": LENGTH_SCALE,
        "penalty": POSITIVE,
        "temperature": POSITIVE,
        "cooling": Rule(
            "a finite number above 1", lambda value: is_number(value) and 1 < value < np.inf
        ),
        "coldest": POSITIVE,
        "tolerance": AT_LEAST_ZERO,
        "max_steps": WHOLE,
    }

    def __init__(
        self,
        positive_fraction: float = 0.5,
        kernel: str = "rbf",
        length_scale: float | None = None,
        penalty: float = 1.0,
        temperature: float = 10.0,
        cooling: float = 2.0,
        coldest: float = 1e-3,
        tolerance: float = 1e-2,
        max_steps: int = 10,
    ) -> None:
        self.positive_fraction = positive_fraction
        self.kernel = kernel
        self.length_scale = length_scale
        self.penalty = penalty
        self.temperature = temperature
        self.cooling = cooling
        self.coldest = coldest
        self.tolerance = tolerance
        self.max_steps = max_steps

    def _fit(self, bags: Bags) -> None:
        in_order = SortedBags.of(bags)
        positive, negative = in_order.positive, in_order.negative
        self.kernel_ = InstanceKernel.of(self.kernel, self.length_scale, bags.num_features)
        rows = np.concatenate([positive.instances, negative.instances])
        learner = WeightedLearner(self.kernel_(rows, rows), positive.num_instances, self.penalty)
        total = expected_positives(positive, self.positive_fraction)
        undecided = np.zeros(positive.num_instances)
        probability = label_probabilities(undecided, positive, total, self.temperature)
        temperature, self.num_steps_ = self.temperature, 0
        while True:
            found, probability, change = self._anneal(
                learner, probability, temperature, positive, total
            )
            if temperature <= self.coldest:
                break
            temperature /= self.cooling
        self.entropy_ = float(entropy(probability).mean())
        self.objective_ = learner.objective(found, probability, temperature)
        self.status_ = self._ended(temperature, change)
        self.probabilities_ = np.zeros(bags.num_instances)
        self.probabilities_[in_order.positive_rows] = probability
        is_used = found.coefficients != 0
        self.instances_, self.coefficients_ = rows[is_used], found.coefficients[is_used]
        self.intercept_ = found.intercept

    def _anneal(
        self,
        learner: WeightedLearner,
        probability: Float[np.ndarray, " P"],
        temperature: float,
        positive: Bags,
        total: int,
    ) -> tuple[Scorer, Float[np.ndarray, " P"], float]:
        """Steps in f and in p at one temperature: f and p at last, and the last change of p."""
        for step in range(1, self.max_steps + 1):
            found = learner.train(probability)
            self.num_steps_ += 1
            scores = learner.scores(found)[: len(probability)]
            cost = loss(scores) - loss(-scores)
            before, probability = (
                probability,
                label_probabilities(cost, positive, total, temperature),
            )
            change = float(np.abs(probability - before).max())
            if change <= self.tolerance or step == self.max_steps:
                return found, probability, change
        raise AssertionError("max_steps is at least 1")

    def _ended(self, temperature: float, change: float) -> Status:
        sentence = (
            f"T = {temperature:.1g} after {self.num_steps_} steps, mean entropy "
            f"{self.entropy_:.1g}; the last step changed p by {change:.1g}"
        )
        return Status("converged" if change <= self.tolerance else "max_steps", sentence)

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return np.maximum.reduceat(self._instance_decision(bags), bags.starts)

    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        kernel = self.kernel_(np.asarray(bags.instances), self.instances_)
        return kernel @ self.coefficients_ + self.intercept_


# ------------------------------------------------------------------ the step in f


class Scorer(NamedTuple):
    """f as a sum over the training instances.

    Attributes
    ----------
    coefficients : array (N,)
    intercept : float
    """

    coefficients: Float[np.ndarray, " N"]
    intercept: float


@dataclass(frozen=True)
class WeightedLearner:
    """Trains f where each instance of positive bags is a positive and a negative example.

    Attributes
    ----------
    gram : array (N, N)
        The kernel between the training instances, those of positive bags first.
    num_positive : int
        |N₊|.
    penalty : float
        C.
    """

    gram: Float[np.ndarray, "N N"]
    num_positive: int
    penalty: float

    def train(self, probability: Float[np.ndarray, " P"]) -> Scorer:
        """Minimise the objective over f, for fixed p."""
        rows, labels, weights = self._examples(probability)
        ridge = np.diag(0.5 / (self.penalty * weights))
        svc = SVC(C=_NO_BOUND, kernel="precomputed", tol=_DUAL_TOLERANCE)
        svc.fit(self.gram[np.ix_(rows, rows)] + ridge, labels)
        coefficients = np.bincount(rows[svc.support_], svc.dual_coef_[0], len(self.gram))
        return Scorer(coefficients, float(svc.intercept_[0]))

    def scores(self, found: Scorer) -> Float[np.ndarray, " N"]:
        """f of the training instances."""
        return self.gram @ found.coefficients + found.intercept

    def objective(
        self, found: Scorer, probability: Float[np.ndarray, " P"], temperature: float
    ) -> float:
        """The objective that is annealed."""
        norm = found.coefficients @ self.gram @ found.coefficients
        rows, labels, weights = self._examples(probability)
        expected = weights @ loss((2 * labels - 1) * self.scores(found)[rows])
        expected -= temperature * entropy(probability).sum()
        return float(0.5 * norm + self.penalty * expected)

    def _examples(
        self, probability: Float[np.ndarray, " P"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Rows, labels and weights of the examples that have a weight."""
        positive, negative = np.split(np.arange(len(self.gram)), [self.num_positive])
        rows = np.concatenate([positive, positive, negative])
        labels = np.repeat([1, 0, 0], [len(positive), len(positive), len(negative)])
        weights = np.concatenate([probability, 1 - probability, np.ones(len(negative))])
        has_weight = weights > _NO_WEIGHT
        return rows[has_weight], labels[has_weight], weights[has_weight]


def loss(scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The squared hinge loss max(0, 1 − f)² of positive examples."""
    return np.maximum(0.0, 1 - scores) ** 2


def entropy(probability: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The entropy of each label, in nats."""
    return entr(probability) + entr(1 - probability)


# ------------------------------------------------------------------ the step in p


def expected_positives(positive: Bags, fraction: float) -> int:
    """The sum of p: the nearest integer to r |N₊|, at least one for each bag."""
    return max(len(positive), round(fraction * positive.num_instances))


def label_probabilities(
    cost: Float[np.ndarray, " P"], bags: Bags, total: int, temperature: float
) -> Float[np.ndarray, " P"]:
    """Minimise Σ_n (c_n p_n − T H(p_n)) with Σ p as given, and at least 1 in each bag.

    Parameters
    ----------
    cost : array (P,)
        c, of a positive label over a negative one.
    bags : Bags
        Positive bags.
    total : int
        Σ p, from the number of bags to that of instances.
    temperature : float
        T > 0.

    Returns
    -------
    array (P,)
    """
    if total == len(cost):
        return np.ones(len(cost))
    cost, index = cost / temperature, np.asarray(bags.bag_index)
    least = offsets_of_one(cost, bags)

    def at(offset: float) -> Float[np.ndarray, " P"]:
        return expit(np.maximum(offset, least)[index] - cost)

    lowest = cost.min() - np.log(len(cost))
    # One more than where the sum is at least as given, against rounding.
    highest = cost.max() + np.log(total / (len(cost) - total)) + 1
    # Of as many positive labels as bags, each bag has one.
    if total == len(bags) or at(lowest).sum() >= total:
        return at(-np.inf)
    return at(brentq(lambda offset: at(offset).sum() - total, lowest, highest, xtol=1e-13))


def offsets_of_one(cost: Float[np.ndarray, " P"], bags: Bags) -> Float[np.ndarray, " B"]:
    """Find λ_b, where the sum of σ(λ_b − c) over bag b is 1; infinite in a bag of one instance."""
    index, starts, sizes = np.asarray(bags.bag_index), bags.starts, bags.bag_sizes
    # At the lowest cost less log N the sum is below 1, and at the highest at least N/2.
    low = np.minimum.reduceat(cost, starts) - np.log(sizes)
    high = np.maximum.reduceat(cost, starts)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        is_less = np.add.reduceat(expit(middle[index] - cost), starts) < 1
        low, high = np.where(is_less, middle, low), np.where(is_less, high, middle)
    return np.where(sizes == 1, np.inf, high)
