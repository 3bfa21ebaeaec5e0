"""Label instances by re-weighted posteriors, and bags by the fraction that is of the concept."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..datasets.arguments import Rule, is_whole
from ..datasets.bags import Bags
from ..models.numerics.log_odds import log_odds
from .contract import ProbabilisticBagClassifier, ScoresInstances

__all__ = ["ConceptFractionClassifier"]

# Numbers of the bags to fit to, and of those to predict, in rising order.
type _Fold = tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]

_NEIGHBOURS = 5


class ConceptFractionClassifier(ScoresInstances, ProbabilisticBagClassifier):
    r"""Count the instances that a standard classifier assigns to the concept; threshold the count.

    Instances of positive bags are drawn from a mixture of concept and non-concept, those of
    negative bags from the non-concept alone:

    .. math:: p_+(x) = γ p_c(x) + (1 - γ) p_n(x), \quad p_-(x) = p_n(x).

    A classifier of instances by the label of their bag gives π(x). With :math:`w = N_+ / N`, the
    fraction of the training instances that are in positive bags, the ratio of the densities is

    .. math:: r(x) = \frac{p_+(x)}{p_-(x)} = \frac{π(x)}{1 - π(x)} \frac{1 - w}{w}.

    The posteriors of concept and non-concept are π and 1 − π, re-weighted:

    .. math:: P(n ∣ x) = (1 - π) \Bigl(1 + (1 - γ) \frac{w}{1 - w}\Bigr), \quad
        P(c ∣ x) = 1 - P(n ∣ x) = π \Bigl(1 - \frac{1 - γ}{r}\Bigr).

    An instance is called concept if P(c | x) > ½, which is r > 1/w + 1 − 2γ. Let instances of
    positive and of negative bags be called concept at the rates q₊ and q₋. Of k among n instances,

    .. math:: \log \frac{P(T = 1 ∣ k, n)}{P(T = 0 ∣ k, n)} = \log \frac{B_+}{B_-}
        + k \log \frac{q_+}{q_-} + (n - k) \log \frac{1 - q_+}{1 - q_-},

    and a bag is positive where this is above 0: a threshold on the fraction k/n. The decision value
    of an instance is :math:`\log r - \log(1/w + 1 - 2γ)`.

    Parameters
    ----------
    classifier : estimator or None
        Any classifier of scikit-learn with ``predict_proba``, of instances. Its probabilities are
        taken to be for the class frequencies of its training set: no ``class_weight``. None for
        the five nearest neighbours among standardised features. They are fast, and they find a
        concept that is a small region, which no half-space separates.
    num_folds : int
        Of bags, for out-of-fold posteriors, from which γ and the rates are estimated. No more than
        there are bags of a label. If one label has one bag, posteriors are of the training set.

    Attributes
    ----------
    concept_fraction_ : float
        γ.
    rates_ : Rates
        q₊ and q₋.
    log_prior_odds_ : float
        log(B₊ / B₋), of training bags.
    log_ratio_threshold_ : float
        log(1/w + 1 − 2γ).
    density_ratio_ : DensityRatio
        The classifier, fitted to all training instances.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    A fit takes ``num_folds`` + 1 fits of the classifier to N instances, and O(N log N).

    This is derived from the abstract of the paper, which was not at hand. The abstract states the
    mixture, the re-weighting, the threshold on the fraction, and that there are estimators for two
    parameters. Everything else is chosen here:

    - Negative bags have no concept instances. Those called concept there are errors, at rate q₋.
    - 1 − γ is the infimum of r. Where π is miscalibrated, r is too. Its order is not, and the
      infimum over t of P₊(r ≤ t) / P₋(r ≤ t) is the same number, by order alone. Each ratio is
      taken one standard error high, so that γ is rather too low (`lowest_ratio`).
    - The rates are pooled over all instances of a label, with ½ added to both counts. Where q₊
      would be below q₋, both are the pooled rate, and the prior decides.

    Instances of one bag are taken to be independent given its label. They rarely are, so that
    probabilities of large bags are too close to 0 and 1.

    Where concept instances are few and not well apart, no r is high enough: k is 0 in every bag,
    and the prior decides.

    Published, as "Ensemble" of Venkatesan, Chandakkar and Li (2015): 89.22 % accuracy on musk1 and
    85.04 on musk2 (table 1, ten folds); 84.25 on elephant, 63.05 on fox and 79.30 on tiger (table
    2, two thirds for training). The table names no base classifier.

    References
    ----------
    Li, Tax, Duin and Loog (2013), "Multiple-instance learning as a classifier combining problem",
    Pattern Recognition 46, abstract. The infimum over thresholds: after Blanchard, Lee and Scott
    (2010), "Semi-supervised novelty detection", Journal of Machine Learning Research 11.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import ConceptFractionClassifier
    >>> training, test = load("digits").split(0.3, seed=0)
    >>> classifier = ConceptFractionClassifier().fit(training)
    >>> round(classifier.concept_fraction_, 2)
    0.25
    >>> in_positive = training.labels[training.bag_index] == 1
    >>> training.instance_labels[in_positive].mean().round(2).item()  # the true fraction
    0.24
    >>> round(classifier.score(test), 2)
    0.66
    """

    _rules = {
        "classifier": Rule(
            "a classifier of scikit-learn with fit and predict_proba, and no class; or None for "
            "five nearest neighbours",
            lambda value: (
                value is None
                or (
                    not isinstance(value, type)
                    and all(hasattr(value, name) for name in ("fit", "predict_proba", "get_params"))
                )
            ),
            TypeError,
        ),
        "num_folds": Rule(
            "an integer of at least 2", lambda value: is_whole(value) and bool(value >= 2)
        ),
    }

    def __init__(self, classifier: Any = None, num_folds: int = 10) -> None:
        self.classifier = classifier
        self.num_folds = num_folds

    def _fit(self, bags: Bags) -> None:
        folds = _folds(bags, self.num_folds)
        classifier = self._instance_classifier(bags, folds)
        is_positive = _of_positive_bags(bags)
        log_ratios = out_of_fold_log_ratios(classifier, bags, folds)
        self.concept_fraction_ = 1 - lowest_ratio(log_ratios, is_positive)
        fraction_of_instances = float(np.mean(is_positive))
        self.log_ratio_threshold_ = float(
            np.log(1 / fraction_of_instances + 1 - 2 * self.concept_fraction_)
        )
        self.rates_ = Rates.learn(log_ratios > self.log_ratio_threshold_, is_positive)
        num_negative, num_positive = np.bincount(np.asarray(bags.labels))
        self.log_prior_odds_ = float(np.log(num_positive) - np.log(num_negative))
        self.density_ratio_ = DensityRatio.learn(classifier, bags)

    def _instance_classifier(self, bags: Bags, folds: list[_Fold]) -> Any:
        if self.classifier is not None:
            return self.classifier
        fewest = min(int(bags.bag_sizes[training].sum()) for training, _ in folds)
        return make_pipeline(StandardScaler(), KNeighborsClassifier(min(_NEIGHBOURS, fewest)))

    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        return self.density_ratio_.log_ratios(bags) - self.log_ratio_threshold_

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        is_concept = self._instance_decision(bags) > 0
        counts = np.add.reduceat(is_concept.astype(int), bags.starts)
        return self.log_prior_odds_ + self.rates_.log_odds(counts, bags.bag_sizes)

    def _probability(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return expit(self._decision(bags))


class DensityRatio(NamedTuple):
    """A fitted classifier of instances, as the ratio of two densities.

    Attributes
    ----------
    classifier : estimator
        Of instances, by the label of their bag.
    log_odds : float
        log(N₊ / N₋), of the instances that it was fitted to.
    """

    classifier: Any
    log_odds: float

    @classmethod
    def learn(cls, classifier: Any, bags: Bags) -> Self:
        """Fit a copy of the classifier to the instances, each with the label of its bag."""
        is_positive = _of_positive_bags(bags)
        fitted = clone(classifier).fit(np.asarray(bags.instances), is_positive.astype(int))
        return cls(fitted, float(np.log(is_positive.sum()) - np.log((~is_positive).sum())))

    def log_ratios(self, bags: Bags) -> Float[np.ndarray, " N"]:
        """Log r(x) = log π − log(1 − π) − log(N₊ / N₋), finite also where π is 0 or 1."""
        probability = np.asarray(self.classifier.predict_proba(np.asarray(bags.instances)))
        return log_odds(probability[:, 1].astype(float)) - self.log_odds


class Rates(NamedTuple):
    """How often instances are called concept.

    Attributes
    ----------
    positive, negative : float
        q₊ and q₋, of instances in positive and in negative bags; q₊ ≥ q₋.
    """

    positive: float
    negative: float

    @classmethod
    def learn(cls, is_concept: Bool[np.ndarray, " N"], is_positive: Bool[np.ndarray, " N"]) -> Self:
        """Rates of each label with ½ added to both counts; the pooled rate twice if they cross."""
        positive, negative = _rate(is_concept[is_positive]), _rate(is_concept[~is_positive])
        if positive < negative:
            return cls(*[_rate(is_concept)] * 2)
        return cls(positive, negative)

    def log_odds(
        self, counts: Int[np.ndarray, " B"], sizes: Int[np.ndarray, " B"]
    ) -> Float[np.ndarray, " B"]:
        """Log likelihood ratio of Binomial(n, q₊) to Binomial(n, q₋) at k of n instances."""
        of_concept = np.log(self.positive) - np.log(self.negative)
        of_others = np.log1p(-self.positive) - np.log1p(-self.negative)
        return counts * of_concept + (sizes - counts) * of_others


def lowest_ratio(log_ratios: Float[np.ndarray, " N"], is_positive: Bool[np.ndarray, " N"]) -> float:
    """1 − γ: the lowest P₊(r ≤ t) / P₋(r ≤ t) over t, each one standard error high; at most 1.

    Both probabilities are fractions of instances, with ½ added to both counts. The numerator is
    one standard error up and the denominator one down, which keeps a low t with few instances
    below it from giving a low ratio by chance.
    """
    thresholds = np.unique(log_ratios)
    below = [
        np.searchsorted(np.sort(log_ratios[label]), thresholds, side="right")
        for label in (is_positive, ~is_positive)
    ]
    totals = is_positive.sum(), (~is_positive).sum()
    upper, lower = ((count + 0.5) / (total + 1) for count, total in zip(below, totals, strict=True))
    upper = upper + np.sqrt(upper * (1 - upper) / totals[0])
    lower = lower - np.sqrt(lower * (1 - lower) / totals[1])
    is_sure = lower > 0
    return float(min(1.0, np.min(upper[is_sure] / lower[is_sure], initial=1.0)))


def out_of_fold_log_ratios(
    classifier: Any, bags: Bags, folds: list[_Fold]
) -> Float[np.ndarray, " N"]:
    """Log r of each training instance, by a classifier that was not fitted to its bag."""
    log_ratios = np.empty(bags.num_instances)
    for training, test in folds:
        learned = DensityRatio.learn(classifier, bags.select(training))
        is_in_test = np.isin(np.asarray(bags.bag_index), test)
        log_ratios[is_in_test] = learned.log_ratios(bags.select(test))
    return log_ratios


def _folds(bags: Bags, num_folds: int) -> list[_Fold]:
    """Bags to fit to and bags to predict; all bags for both if a label has one bag only."""
    labels = np.asarray(bags.labels)
    num_folds = min(num_folds, int(np.bincount(labels).min()))
    if num_folds == 1:
        return [(np.arange(len(bags)), np.arange(len(bags)))]
    return list(StratifiedKFold(num_folds).split(labels, labels))


def _of_positive_bags(bags: Bags) -> Bool[np.ndarray, " N"]:
    """Whether the bag of each instance is positive."""
    return np.asarray(bags.labels)[np.asarray(bags.bag_index)] == 1


def _rate(is_concept: Bool[np.ndarray, " n"]) -> float:
    return float((np.sum(is_concept) + 0.5) / (len(is_concept) + 1))
