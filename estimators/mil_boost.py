"""Boost small trees on the log likelihood of bags: any positive instance makes a bag positive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from sklearn.tree import DecisionTreeClassifier

from ..datasets.arguments import POSITIVE, WHOLE, checked_seed
from ..datasets.bags import Bags
from ..inference.posterior import Status
from .contract import ProbabilisticBagClassifier, ScoresInstances

__all__ = ["MILBoost"]

# Steps that the line search tries before it refines the best one.
_TRIED = 33
# Increase of the log likelihood, in nats for each bag, below which a round is the last.
_GAIN = 1e-9
# Logarithm of a rate so low that 1 − exp(−rate) is the rate in all digits.
_LOWEST_LOG_RATE = -100.0


class MILBoost(ScoresInstances, ProbabilisticBagClassifier):
    r"""MILBoost: a sum of small trees, boosted on the log likelihood of noisy-or bags.

    .. math:: f(x) = Σ_m λ_m h_m(x), \quad p_n = σ(f(x_n)), \quad
        P(T_b = 1) = 1 - \prod_{n ∈ b} (1 - p_n)

    Each round weights the instances by the gradient of log L = Σ_b log P(T_b),

    .. math:: w_n = \frac{∂ \log L}{∂ f(x_n)} = p_n \frac{T_b - P(T_b = 1)}{P(T_b = 1)},

    fits a tree h_m with values −1 and 1 to sign(w_n), weighted by \|w_n\|, and searches for the
    step λ_m that maximises log L. The score of an instance is f(x), and the decision value of a bag
    is the log odds of P(T_b = 1).

    Parameters
    ----------
    seed : int
        Of the order in which trees look through the features. It decides between features that
        split equally well, and nothing else.
    max_steps : int
        Of rounds, one tree each. Fewer rounds regularise.
    max_depth : int
        Of each tree; 1 for decision stumps.
    largest_step : float
        The largest λ_m. A tree without errors would have no largest step otherwise.

    Attributes
    ----------
    trees_ : list of DecisionTreeClassifier
        h_m.
    steps_ : array (M,)
        λ_m.
    log_likelihood_ : array (M + 1,)
        log L before the first round and after each one; it never falls.
    status_ : Status
        ``converged`` if another tree does not raise log L.
    num_steps_ : int
        M, the number of trees.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    A round fits one tree, O(DN log N), and evaluates log L about fifty times, O(N) each.

    Choices made here: f starts at 0. Trees minimise the weighted Gini impurity, which is no exact
    maximiser of Σ_n w_n h(x_n); their leaves take the heavier sign, so that the sum is never
    negative and log L does not fall for small steps. log L need not be concave in the step, so the
    line search tries steps evenly spaced from 0 to ``largest_step`` and refines around the best.

    References
    ----------
    Viola, Platt and Zhang (2005), "Multiple instance boosting for object detection", NIPS, the
    noisy-or cost function; compared with by Kandemir and Hamprecht (2014), who give no numbers.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import MILBoost
    >>> training, test = load("digits").split(0.7, seed=0)
    >>> training, test = training.standardize(), test.standardize(training)
    >>> classifier = MILBoost(max_steps=30, seed=0).fit(training)
    >>> (classifier.log_likelihood_[[0, -1]] / len(training)).round(2).tolist()
    [-3.44, -0.14]
    >>> round(classifier.score(test), 2)
    0.76
    """

    _rules = {"max_steps": WHOLE, "max_depth": WHOLE, "largest_step": POSITIVE}

    def __init__(
        self, *, seed: int, max_steps: int = 100, max_depth: int = 1, largest_step: float = 5.0
    ) -> None:
        self.seed = seed
        self.max_steps = max_steps
        self.max_depth = max_depth
        self.largest_step = largest_step

    def _fit(self, bags: Bags) -> None:
        seed = checked_seed(self.seed)
        scores = np.zeros(bags.num_instances)
        self.trees_, steps, trace = [], [], [log_likelihood(scores, bags)]
        self.status_ = Status(
            "max_steps", f"log L still rose in the last of {self.max_steps} rounds"
        )
        for _ in range(self.max_steps):
            tree = self._fit_tree(bags, gradient(scores, bags), seed)
            direction = _votes(tree, bags)
            found = search_line(scores, direction, bags, self.largest_step)
            if found.log_likelihood - trace[-1] <= _GAIN * len(bags):
                self.status_ = Status(
                    "converged", f"no step of another tree raises log L = {trace[-1]:.6g}"
                )
                break
            scores = scores + found.step * direction
            self.trees_.append(tree)
            steps.append(found.step)
            trace.append(found.log_likelihood)
        self.steps_, self.log_likelihood_ = np.array(steps), np.array(trace)
        self.num_steps_ = len(steps)

    def _fit_tree(
        self, bags: Bags, weights: Float[np.ndarray, " N"], seed: int
    ) -> DecisionTreeClassifier:
        tree = DecisionTreeClassifier(max_depth=self.max_depth, random_state=seed)
        size = np.abs(weights)
        signs = np.where(weights > 0, 1, -1)
        return tree.fit(np.asarray(bags.instances), signs, sample_weight=size / size.max())

    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        scores = np.zeros(bags.num_instances)
        for tree, step in zip(self.trees_, self.steps_, strict=True):
            scores += step * _votes(tree, bags)
        return scores

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return bag_log_odds(self._instance_decision(bags), bags)

    def _probability(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return np.exp(_log_probabilities(self._instance_decision(bags), bags).positive)


class LogProbabilities(NamedTuple):
    """Logarithms of P(T_b = 1) and of P(T_b = 0) for each bag."""

    positive: Float[np.ndarray, " B"]
    negative: Float[np.ndarray, " B"]


class Step(NamedTuple):
    """The step that a line search found, and log L after it."""

    step: float
    log_likelihood: float


def log_likelihood(scores: Float[np.ndarray, " N"], bags: Bags) -> float:
    """log L = Σ_b log P(T_b) at the scores f(x_n)."""
    log_probability = _log_probabilities(scores, bags)
    return float(np.sum(np.where(np.asarray(bags.labels) == 1, *log_probability)))


def gradient(scores: Float[np.ndarray, " N"], bags: Bags) -> Float[np.ndarray, " N"]:
    """w_n = ∂ log L / ∂ f(x_n): −p_n in negative bags, p_n over the odds of the bag in others."""
    index = np.asarray(bags.bag_index)
    log_p = -np.logaddexp(0.0, -scores)
    log_weight = log_p - bag_log_odds(scores, bags)[index]
    is_positive = np.asarray(bags.labels)[index] == 1
    return np.where(is_positive, 1.0, -1.0) * np.exp(np.where(is_positive, log_weight, log_p))


def bag_log_odds(scores: Float[np.ndarray, " N"], bags: Bags) -> Float[np.ndarray, " B"]:
    """log P(T_b = 1) − log P(T_b = 0), finite also where a probability is rounded to 0 or 1."""
    log_probability = _log_probabilities(scores, bags)
    return log_probability.positive - log_probability.negative


def search_line(
    scores: Float[np.ndarray, " N"],
    direction: Float[np.ndarray, " N"],
    bags: Bags,
    largest: float,
) -> Step:
    """Search for the step from 0 to the largest that maximises log L(f + λh); 0 if none does."""

    def after(step: float) -> float:
        return log_likelihood(scores + step * direction, bags)

    tried = np.linspace(0.0, largest, _TRIED)
    values = np.array([after(step) for step in tried])
    best = int(np.argmax(values))
    around = tried[max(best - 1, 0)], tried[min(best + 1, _TRIED - 1)]
    refined = minimize_scalar(lambda step: -after(step), bounds=around, method="bounded")
    if -refined.fun > values[best]:
        return Step(float(refined.x), float(-refined.fun))
    return Step(float(tried[best]), float(values[best]))


def _log_probabilities(scores: Float[np.ndarray, " N"], bags: Bags) -> LogProbabilities:
    """From the rate r_b = −Σ log(1 − p_n): log P(T_b = 1) = log(1 − e^−r) and log P(T_b = 0) = −r.

    The logarithm of the rate stays finite where all p_n, and the rate with them, are rounded to 0.
    """
    rates = np.logaddexp(0.0, scores)
    log_rates = np.where(scores < _LOWEST_LOG_RATE, scores, np.log(np.maximum(rates, 1e-300)))
    highest = np.maximum.reduceat(log_rates, bags.starts)
    relative = np.exp(log_rates - highest[np.asarray(bags.bag_index)])
    log_rate = highest + np.log(np.add.reduceat(relative, bags.starts))
    rate = np.exp(np.maximum(log_rate, _LOWEST_LOG_RATE))
    positive = np.where(log_rate < _LOWEST_LOG_RATE, log_rate, np.log(-np.expm1(-rate)))
    return LogProbabilities(positive, -np.exp(log_rate))


def _votes(tree: DecisionTreeClassifier, bags: Bags) -> Float[np.ndarray, " N"]:
    """h(x_n), −1 or 1."""
    return tree.predict(np.asarray(bags.instances)).astype(float)
