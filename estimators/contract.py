"""Scikit-learn's contract for estimators of bags: labels, checks, and what each method returns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from ..datasets.arguments import Rule, check
from ..datasets.bags import Bags
from ..models.numerics.log_odds import log_odds
from ..models.numerics.representation import as_text

__all__ = [
    "LOWEST",
    "BagClassifier",
    "BagEstimator",
    "BagRegressor",
    "ProbabilisticBagClassifier",
    "ScoresInstances",
    "as_bags",
    "as_classes",
    "means_by_bag",
    "two_columns",
    "with_labels",
]

# In place of −∞, which scikit-learn's metrics refuse.
LOWEST = float(np.finfo(float).min)


class BagEstimator(BaseEstimator):
    """An estimator that is fitted on `Bags`, with rules for its parameters.

    Parameters are checked by `fit`, as scikit-learn asks: a search may set them one by one.
    """

    # By the names of parameters; those that are not listed are not checked here.
    _rules: ClassVar[Mapping[str, Rule]] = {}

    n_features_in_: int

    def _check_parameters(self) -> None:
        """Raise an error for a parameter that breaks its rule, with its name."""
        for name, rule in self._rules.items():
            check(f"{type(self).__name__} {name}", getattr(self, name), rule, as_text=as_text)

    def _checked(self, bags: Any) -> Bags:
        """Bags to predict for, of as many features as were fitted on.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If they are no `Bags`, or have another number of features.
        """
        check_is_fitted(self)
        bags = as_bags(bags, type(self).__name__)
        if bags.num_features != self.n_features_in_:
            raise ValueError(
                f"X has {bags.num_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input: pass bags with the features that it was "
                "fitted on"
            )
        return bags

    def _unlabelled(self, bags: Any) -> Bags:
        """The same without labels and targets, so that no prediction depends on them."""
        return self._checked(bags).without_labels()

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn that X is no array."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        return tags


class BagClassifier(ClassifierMixin, BagEstimator):
    """A classifier of bags into two classes.

    Attributes
    ----------
    classes_ : array (2,)
        The labels, that of positive bags last.
    n_features_in_ : int
        D.
    """

    # Whether a decision value of exactly 0 is positive, as where thresholds are reached by ≥.
    _zero_is_positive: ClassVar[bool] = False

    classes_: Shaped[np.ndarray, " 2"]

    def fit(self, bags: Bags, y: ArrayLike | None = None) -> Self:
        """Fit to labelled bags.

        Parameters
        ----------
        bags : Bags
            Training bags.
        y : array (B,) or None
            Their labels, any two values; the larger is positive. None for those of the bags. Where
            they are not those of the bags, instance labels are not used.

        Returns
        -------
        self

        Raises
        ------
        TypeError
            If ``bags`` are no `Bags`.
        ValueError
            If there are no labels, not two classes, or a parameter is out of range.
        """
        self._check_parameters()
        bags = as_bags(bags, type(self).__name__)
        labelled, self.classes_ = with_labels(bags, y, type(self).__name__)
        self.n_features_in_ = bags.num_features
        self._fit(labelled)
        return self

    def decision_function(self, bags: Bags) -> Float[np.ndarray, " B"]:
        """Decision value of each bag: the larger, the more positive.

        Parameters
        ----------
        bags : Bags
            Their labels are not used.

        Returns
        -------
        array (B,)
        """
        return self._decision(self._unlabelled(bags))

    def predict(self, bags: Bags) -> Shaped[np.ndarray, " B"]:
        """The label of each bag, one of ``classes_``."""
        decision = self.decision_function(bags)
        return self.classes_[self.is_positive(decision)]

    def score(self, bags: Bags, y: ArrayLike | None = None) -> float:
        """Accuracy on bags with labels.

        Parameters
        ----------
        bags : Bags
        y : array (B,) or None
            True labels; None for those of the bags, 0 and 1 in place of ``classes_``.

        Returns
        -------
        float
        """
        if y is None:
            y = self.classes_[_known(bags, "labels", type(self).__name__)]
        return float(accuracy_score(np.asarray(y), self.predict(bags)))

    def is_positive(self, decision: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Which decision values mean a positive label, of bags or of instances.

        Parameters
        ----------
        decision : array (n,)

        Returns
        -------
        array (n,)
            1 where they do, else 0.
        """
        return (decision >= 0 if self._zero_is_positive else decision > 0).astype(int)

    @abstractmethod
    def _fit(self, bags: Bags) -> None:
        """Fit to bags with labels 0 and 1, both among them."""

    @abstractmethod
    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        """Decision value of each bag."""

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn that there are two classes."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class ScoresInstances(BagClassifier):
    """A classifier of bags that scores their instances too."""

    def score_instances(self, bags: Bags) -> Float[np.ndarray, " N"]:
        """Decision value of each instance: the larger, the more positive.

        Parameters
        ----------
        bags : Bags
            Their labels are not used.

        Returns
        -------
        array (N,)
        """
        return self._instance_decision(self._unlabelled(bags))

    def predict_instances(self, bags: Bags) -> Int[np.ndarray, " N"]:
        """The label of each instance, 1 where it is positive, else 0."""
        return self.is_positive(self.score_instances(bags))

    @abstractmethod
    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        """Decision value of each instance."""


class ProbabilisticBagClassifier(BagClassifier):
    """A classifier that gives the probability of a positive label; its log odds decide."""

    def predict_proba(self, bags: Bags) -> Float[np.ndarray, "B 2"]:
        """Probabilities of the labels of each bag, in the order of ``classes_``.

        Parameters
        ----------
        bags : Bags
            Their labels are not used.

        Returns
        -------
        array (B, 2)
        """
        return two_columns(self._probability(self._unlabelled(bags)))

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        """Log odds, and nothing else in a subclass either: `cross_validate_bags` scores them."""
        return log_odds(self._probability(bags))

    @abstractmethod
    def _probability(self, bags: Bags) -> Float[np.ndarray, " B"]:
        """Probability of a positive label."""


class BagRegressor(RegressorMixin, BagEstimator):
    """An estimator of a real number for each bag."""

    def fit(self, bags: Bags, y: ArrayLike | None = None) -> Self:
        """Fit to bags with targets.

        Parameters
        ----------
        bags : Bags
            Training bags.
        y : array (B,) or None
            Their targets; None for those of the bags.

        Returns
        -------
        self

        Raises
        ------
        TypeError
            If ``bags`` are no `Bags`.
        ValueError
            If there are no targets, or a parameter is out of range.
        """
        self._check_parameters()
        bags = as_bags(bags, type(self).__name__)
        if y is None:
            y = _known(bags, "targets", type(self).__name__)
        targets = _as_vector(bags, y).astype(float)
        self.n_features_in_ = bags.num_features
        self._fit(replace(bags.without_labels(), targets=targets))
        return self

    def predict(self, bags: Bags) -> Float[np.ndarray, " B"]:
        """Predicted target of each bag.

        Parameters
        ----------
        bags : Bags
            Their targets are not used.

        Returns
        -------
        array (B,)
        """
        return self._predict(self._unlabelled(bags))

    def score(self, bags: Bags, y: ArrayLike | None = None) -> float:
        """R² on bags with targets.

        Parameters
        ----------
        bags : Bags
        y : array (B,) or None
            True targets; None for those of the bags.

        Returns
        -------
        float
        """
        if y is None:
            y = _known(bags, "targets", type(self).__name__)
        return float(r2_score(np.asarray(y), self.predict(bags)))

    @abstractmethod
    def _fit(self, bags: Bags) -> None:
        """Fit to bags with targets."""

    @abstractmethod
    def _predict(self, bags: Bags) -> Float[np.ndarray, " B"]:
        """Predicted target of each bag."""


def with_labels(
    bags: Bags, y: ArrayLike | None, name: str
) -> tuple[Bags, Shaped[np.ndarray, " 2"]]:
    """Bags with labels 0 and 1 for the two values of ``y``, and these values.

    Parameters
    ----------
    bags : Bags
    y : array (B,) or None
        None for the labels of the bags.
    name : str
        Of the estimator, for messages.

    Returns
    -------
    Bags
        The same if their labels are ``y``; else without instance labels, which might contradict it.
    array (2,)
        In rising order.

    Raises
    ------
    ValueError
        If there are no labels, not one for each bag, or not two classes.
    """
    classes, codes = np.unique(as_classes(bags, y, name), return_inverse=True)
    if len(classes) > 2:
        raise ValueError(
            "Only binary classification is supported. The type of the target is "
            f"{type_of_target(classes)}: {name} found {len(classes)} classes"
        )
    if len(classes) < 2:
        raise ValueError(
            f"bags have one class only, the label {classes[0]}; {name} needs bags of both"
        )
    if bags.labels is None or not np.array_equal(codes, bags.labels):
        bags = replace(bags, labels=codes, instance_labels=None)
    return bags, classes


def as_classes(bags: Bags, y: ArrayLike | None, name: str) -> Shaped[np.ndarray, " B"]:
    """The class of each bag: ``y``, or the labels of the bags where that is None.

    Raises
    ------
    ValueError
        If there are none, not one for each bag, or numbers that are no classes.
    """
    given = _as_vector(bags, _known(bags, "labels", name) if y is None else y)
    check_classification_targets(given)
    return given


def means_by_bag(rows: Float[np.ndarray, "N K"], bags: Bags) -> Float[np.ndarray, "B K"]:
    """The mean of the rows of each bag."""
    return np.add.reduceat(rows, bags.starts, axis=0) / bags.bag_sizes[:, None]


def two_columns(probability: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n 2"]:
    """Columns 1 − p and p."""
    return np.column_stack([1 - probability, probability])


def as_bags(bags: Any, name: str) -> Bags:
    """Raise an error for what is no `Bags`; ``name`` is that of the estimator."""
    if not isinstance(bags, Bags):
        raise TypeError(
            f"{name}: X is of type {type(bags).__name__}; expected Bags, such as "
            "Bags.from_list(arrays, labels)"
        )
    return bags


def _known(bags: Bags, what: str, name: str) -> np.ndarray:
    """Labels or targets of the bags.

    Raises
    ------
    ValueError
        If they have none.
    """
    known = getattr(bags, what)
    if known is None:
        raise ValueError(
            f"bags have no {what}; {name} needs them where y is None: it requires y to be passed, "
            "but the target y is None"
        )
    return np.asarray(known)


def _as_vector(bags: Bags, y: ArrayLike) -> Shaped[np.ndarray, " B"]:
    """``y`` as an array with one value for each bag, none of them NaN or infinite."""
    y = np.asarray(column_or_1d(y, warn=True))
    check_consistent_length(bags, y)
    assert_all_finite(y, input_name="y")
    return y
