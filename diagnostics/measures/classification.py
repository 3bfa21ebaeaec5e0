"""Scores of a classifier's labels, decision values and probabilities, and its Bayes regret."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    roc_auc_score,
)
from sklearn.pipeline import Pipeline

from ...datasets.bags import Bags
from ...estimators.contract import (
    BagClassifier,
    ProbabilisticBagClassifier,
    ScoresInstances,
)
from ...models.numerics.log_odds import log_loss
from ...models.numerics.log_odds import log_odds as log_odds_of

__all__ = ["SCORES", "BayesRegret", "Classification", "bayes_regret", "classify"]

SCORES = (
    "accuracy",
    "balanced_accuracy",
    "f1",
    "auc",
    "average_precision",
    "log_loss",
    "brier",
    "instance_accuracy",
    "instance_f1",
    "instance_auc",
    "instance_average_precision",
)


@dataclass(frozen=True, eq=False)
class Classification:
    """What a classifier says of test bags, beside the truth.

    Attributes
    ----------
    truth, label : array (B,)
        True and predicted labels, 0 or 1.
    decision : array (B,)
        Decision values: the larger, the more positive.
    log_odds : array (B,) or None
        Of T* = 1; None of a classifier that gives no probabilities.
    instance_truth, instance_label, instance_decision : array (K,)
        Of the instances whose label is known; empty of a classifier that does not score instances.
    """

    truth: Int[np.ndarray, " B"]
    label: Int[np.ndarray, " B"]
    decision: Float[np.ndarray, " B"]
    log_odds: Float[np.ndarray, " B"] | None
    instance_truth: Int[np.ndarray, " K"]
    instance_label: Int[np.ndarray, " K"]
    instance_decision: Float[np.ndarray, " K"]

    @property
    def probability(self) -> Float[np.ndarray, " B"] | None:
        """P(T* = 1), where the classifier gives one."""
        return None if self.log_odds is None else expit(self.log_odds)

    def scores(self) -> dict[str, float]:
        """Scores by name; NaN where they do not apply.

        Balanced accuracy is the mean recall of the two classes, F1 the harmonic mean of precision
        and recall. Rankings (``auc``, ``average_precision``) need both classes among the truths.
        ``log_loss`` and ``brier`` need probabilities; the former is by their log odds, so that one
        of `ProbabilisticBagClassifier` that rounds to 0 or 1 costs no more than it says.

        Returns
        -------
        dict of float
        """
        found = dict.fromkeys(SCORES, math.nan)
        found |= {"accuracy": float(accuracy_score(self.truth, self.label))}
        found |= {"f1": _f1(self.truth, self.label)}
        found |= _rankings(self.truth, self.decision)
        if len(np.unique(self.truth)) == 2:
            balanced = balanced_accuracy_score(self.truth, self.label)
            found |= {"balanced_accuracy": float(balanced)}
        if self.log_odds is not None:
            found |= {"log_loss": float(log_loss(self.log_odds, self.truth).mean())}
            found |= {"brier": float(np.mean((expit(self.log_odds) - self.truth) ** 2))}
        if len(self.instance_truth):
            of_instances = _rankings(self.instance_truth, self.instance_decision)
            right = accuracy_score(self.instance_truth, self.instance_label)
            of_instances |= {"accuracy": float(right)}
            of_instances |= {"f1": _f1(self.instance_truth, self.instance_label)}
            found |= {f"instance_{name}": value for name, value in of_instances.items()}
        return found


def classify(classifier: Any, bags: Bags) -> Classification:
    """Classify labelled bags, which the classifier is shown without their labels.

    Parameters
    ----------
    classifier : object
        Fitted to labels 0 and 1, such as `BayesianMIL`, a pipeline that ends in one, or a search.
    bags : Bags
        With labels; instance labels where they are known.

    Returns
    -------
    Classification

    Raises
    ------
    ValueError
        If the bags have no labels.
    """
    if bags.labels is None:
        raise ValueError("bags have no labels; expected those that predictions are compared with")
    last, prepared = _unwrapped(classifier, bags.without_labels())
    decision, log_odds = _decision_and_log_odds(last, prepared)
    known = np.zeros(bags.num_instances, dtype=bool)
    if bags.instance_labels is not None and hasattr(last, "score_instances"):
        known = np.asarray(bags.instance_labels) >= 0
    of_instances: tuple[Any, Any, Any] = (np.empty(0, int), np.empty(0, int), np.empty(0))
    if known.any():
        labels, scores = _labels_and_scores_of_instances(last, prepared)
        of_instances = np.asarray(bags.instance_labels)[known], labels[known], scores[known]
    # A class that has a rule of its own is asked.
    if getattr(type(last), "predict", None) is BagClassifier.predict:
        label = last.is_positive(decision)
    else:
        label = np.asarray(last.predict(prepared)).astype(int)
    return Classification(np.asarray(bags.labels), label, decision, log_odds, *of_instances)


def _labels_and_scores_of_instances(
    classifier: Any, bags: Bags
) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Both by one prediction where scores decide by the usual rule."""
    scores = np.asarray(classifier.score_instances(bags), dtype=float)
    usual = ScoresInstances.predict_instances
    if getattr(type(classifier), "predict_instances", None) is usual:
        return classifier.is_positive(scores), scores
    return np.asarray(classifier.predict_instances(bags)), scores


def _decision_and_log_odds(
    classifier: Any, bags: Bags
) -> tuple[Float[np.ndarray, " B"], Float[np.ndarray, " B"] | None]:
    """Decision values, and log odds where the classifier gives probabilities."""
    if isinstance(classifier, ProbabilisticBagClassifier):
        decision = classifier.decision_function(bags)
        return decision, decision
    log_odds = None
    if hasattr(classifier, "predict_proba"):
        log_odds = log_odds_of(np.asarray(classifier.predict_proba(bags), dtype=float)[:, 1])
    if hasattr(classifier, "decision_function"):
        decision = classifier.decision_function(bags)
    else:
        decision = classifier.predict(bags) if log_odds is None else log_odds
    return np.asarray(decision, dtype=float), log_odds


def _unwrapped(classifier: Any, bags: Bags) -> tuple[Any, Bags]:
    """The classifier at the end of searches and pipelines, and the bags as it gets them."""
    while isinstance(classifier, Pipeline) or hasattr(classifier, "best_estimator_"):
        if isinstance(classifier, Pipeline):
            if len(classifier) > 1:
                bags = classifier[:-1].transform(bags)
            classifier = classifier[-1]
        else:
            classifier = classifier.best_estimator_
    return classifier, bags


def _f1(truth: Int[np.ndarray, " n"], label: Int[np.ndarray, " n"]) -> float:
    return float(f1_score(truth, label, zero_division=np.nan))


def _rankings(truth: Int[np.ndarray, " n"], decision: Float[np.ndarray, " n"]) -> dict[str, float]:
    if len(np.unique(truth)) < 2:
        return {}
    return {
        "auc": float(roc_auc_score(truth, decision)),
        "average_precision": float(average_precision_score(truth, decision)),
    }


class BayesRegret(NamedTuple):
    """What a classifier's log loss exceeds that of the truth by, in nats per bag.

    Attributes
    ----------
    mean : float
        Of the regret, over bags; at least 0.
    standard_error : float
        Of the mean, from the sd over bags; NaN for one bag.
    bayes_log_loss : float
        Expected log loss of the true probabilities: the mean over bags of their entropy. With
        ``mean`` it adds up to the expected log loss of the classifier.
    """

    mean: float
    standard_error: float
    bayes_log_loss: float


def bayes_regret(
    *,
    probability: ArrayLike | None = None,
    log_odds: ArrayLike | None = None,
    true_probability: ArrayLike | None = None,
    true_log_odds: ArrayLike | None = None,
) -> BayesRegret:
    r"""Bayes regret: how much worse than the true probabilities a classifier's are, in nats.

    .. math:: \frac{1}{B} Σ_b \mathrm{KL}\bigl(\mathrm{Bernoulli}(p^*_b) \,\|\,
        \mathrm{Bernoulli}(\hat p_b)\bigr) = \mathrm{E}[\text{log loss}] - \text{Bayes log loss}

    Parameters
    ----------
    probability, log_odds : array (B,)
        One of them: P(T = 1) by the classifier, or log p̂ − log(1 − p̂).
    true_probability, true_log_odds : array (B,)
        One of them: P(T = 1 | bag) by the distribution that the bags were drawn from, such as
        `milzoo.datasets.standard_assumption_log_odds`.

    Returns
    -------
    BayesRegret

    Raises
    ------
    ValueError
        If not one of each pair is given, they are no vectors of one length, a probability is not in
        [0, 1], or log odds are not finite.

    Notes
    -----
    A probability of 0 or 1 is taken to be 2·10⁻³⁰⁸ from it. It costs 708 nats where it is wrong,
    where log odds cost no more than they say.
    """
    said = _as_log_odds(probability=probability, log_odds=log_odds)
    true = _as_log_odds(true_probability=true_probability, true_log_odds=true_log_odds)
    if said.shape != true.shape:
        raise ValueError(
            f"the classifier speaks of {len(said)} bags and the truth of {len(true)}; expected one "
            "value of each for every bag"
        )
    entropy = _cross_entropy(true, true)
    regret = np.maximum(_cross_entropy(true, said) - entropy, 0.0)  # below by rounding alone
    error = regret.std(ddof=1) / math.sqrt(len(regret)) if len(regret) > 1 else math.nan
    return BayesRegret(float(regret.mean()), float(error), float(entropy.mean()))


def _as_log_odds(**given: ArrayLike | None) -> Float[np.ndarray, " B"]:
    """Log odds from the one that is given, first of probabilities and then of log odds.

    Raises
    ------
    ValueError
        With the name of what is wrong.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise ValueError(f"{len(named)} of {' and '.join(given)} are given; expected one of them")
    ((name, value),) = named.items()
    values = np.asarray(value, dtype=float)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{name} has shape {values.shape}; expected (B,), one for each bag")
    if name.endswith("log_odds"):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} are not all finite; expected log p − log(1 − p) of each bag")
        return values
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"{name} is not in [0, 1] in every bag; expected probabilities")
    return log_odds_of(values)


def _cross_entropy(
    true: Float[np.ndarray, " B"], said: Float[np.ndarray, " B"]
) -> Float[np.ndarray, " B"]:
    """−p* log p̂ − (1 − p*) log(1 − p̂), of log odds."""
    return expit(true) * np.logaddexp(0, -said) + expit(-true) * np.logaddexp(0, said)
