"""More than two classes of bags: one binary model for each stick, whose posteriors are exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if

from ..datasets.arguments import Rule
from ..datasets.bags import Bags
from .contract import BagEstimator, as_bags, as_classes

__all__ = ["StickBreakingClassifier"]


def _tells_instances(classifier: StickBreakingClassifier) -> bool:
    return hasattr(classifier.classifier, "predict_instances_proba")


class StickBreakingClassifier(ClassifierMixin, BagEstimator):
    r"""Classify bags into C classes by C − 1 models of two, each given that no earlier one applies.

    .. math::
        P(T = c \mid X) = π_c(X) \prod_{c' < c} [1 - π_{c'}(X)], \quad c < C, \qquad
        P(T = C \mid X) = \prod_{c' < C} [1 - π_{c'}(X)]

    with π_c the probability that a model of two classes gives to a positive label. With `VGPMIL` or
    another model of instance labels this is multiple-instance learning of C classes: every instance
    has a label for each class but the last. The class of a bag is the first one with a positive
    instance. The last class is what remains, such as a background.

    The models have independent priors, and the likelihood is a product over them. So the posterior
    is exactly the product of the posteriors of the C − 1 models. Each is of the bags that no
    earlier class has taken. What is exact for two classes, also the sum over instance labels, is
    exact for C.

    Parameters
    ----------
    classifier : estimator
        Of two classes with ``predict_proba``, such as ``BayesianMIL(VGPMIL, "coordinate_ascent",
        seed=0)``.
    order : sequence or None
        All classes, in the order in which they are looked for. None for the largest first: the
        smallest remains, such as the 0 of negative bags.

    Attributes
    ----------
    order_ : array (C,)
    classifiers_ : list of estimators
        C − 1 of them, one for each class of ``order_`` but the last.
    classes_ : array (C,)
        In rising order.
    n_features_in_ : int

    Notes
    -----
    The order is a part of the model. A softmax has none, but no augmentation known to us leaves
    its posterior a product: Pólya-Gamma variables want one class after the other.

    References
    ----------
    Linderman, Johnson and Adams (2015), Dependent multinomial models made easy: stick breaking with
    the Pólya-Gamma augmentation, NIPS. Kandemir and Hamprecht (2014) and Castro-Macías et al.
    (2024) remark that their models could be taken to several classes.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import BayesianMIL, StickBreakingClassifier
    >>> bags = load("digits").standardize()
    >>> positive = np.add.reduceat(bags.instance_labels, bags.starts)
    >>> classes = np.minimum(positive, 2)  # none, one, or more
    >>> two = BayesianMIL("vwsgp", "coordinate_ascent", seed=0, model__num_inducing=50)
    >>> classifier = StickBreakingClassifier(two).fit(bags[:110], classes[:110])
    >>> classifier.order_.tolist()
    [2, 1, 0]
    >>> classifier.predict_proba(bags[110:112]).round(2).tolist()
    [[0.36, 0.01, 0.63], [0.35, 0.03, 0.62]]
    >>> round(classifier.score(bags[110:], classes[110:]), 2)
    0.74
    """

    _rules = {
        "classifier": Rule(
            "an estimator of bags with fit and predict_proba, and no class",
            lambda value: (
                not isinstance(value, type)
                and all(hasattr(value, name) for name in ("fit", "predict_proba", "get_params"))
            ),
            TypeError,
        ),
    }

    def __init__(self, classifier: Any, order: Sequence | None = None) -> None:
        self.classifier = classifier
        self.order = order

    def fit(self, bags: Bags, y: ArrayLike | None = None) -> Self:
        """Fit to bags with classes.

        Parameters
        ----------
        bags : Bags
            Training bags. Their instance labels are not used.
        y : array (B,) or None
            Their classes; None for the labels of the bags.

        Returns
        -------
        self

        Raises
        ------
        TypeError
            If ``bags`` are no `Bags`.
        ValueError
            If there are no classes, only one, or ``order`` has others.
        """
        self._check_parameters()
        name = type(self).__name__
        bags = as_bags(bags, name)
        self.classes_, codes = np.unique(as_classes(bags, y, name), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"bags have one class only, {self.classes_[0]}; {name} needs bags of two or more"
            )
        self.n_features_in_ = bags.num_features
        sequence = self._sequence()
        self.order_ = self.classes_[sequence]
        bags = replace(bags, labels=None, instance_labels=None)
        self.classifiers_ = []
        remaining = np.arange(len(bags))
        for code in sequence[:-1]:
            is_this = (codes[remaining] == code).astype(int)
            self.classifiers_.append(clone(self.classifier).fit(bags[remaining], is_this))
            remaining = remaining[is_this == 0]
        return self

    def predict_proba(self, bags: Bags) -> Float[np.ndarray, "B C"]:
        """Probabilities of the classes of each bag, in the order of ``classes_``.

        Parameters
        ----------
        bags : Bags
            Their labels are not used.

        Returns
        -------
        array (B, C)
        """
        bags = self._unlabelled(bags)
        return self._broken([one.predict_proba(bags)[:, 1] for one in self.classifiers_])

    @available_if(_tells_instances)
    def predict_instances_proba(self, bags: Bags) -> Float[np.ndarray, "N C"]:
        """Probabilities of the classes of each instance, in the order of ``classes_``.

        That of the last of ``order_`` is the probability that the instance is positive for none.

        Parameters
        ----------
        bags : Bags
            Their labels are not used.

        Returns
        -------
        array (N, C)
        """
        bags = self._unlabelled(bags)
        return self._broken([one.predict_instances_proba(bags)[:, 1] for one in self.classifiers_])

    def predict(self, bags: Bags) -> Shaped[np.ndarray, " B"]:
        """The most probable class of each bag."""
        likeliest = np.argmax(self.predict_proba(bags), axis=1)
        return self.classes_[likeliest]

    def score(self, bags: Bags, y: ArrayLike | None = None) -> float:
        """Accuracy on bags with classes.

        Parameters
        ----------
        bags : Bags
        y : array (B,) or None
            True classes; None for the labels of the bags.

        Returns
        -------
        float
        """
        given = as_classes(bags, y, type(self).__name__)
        return float(accuracy_score(given, self.predict(bags)))

    def _sequence(self) -> Int[np.ndarray, " C"]:
        """Numbers of the classes, in the order in which they are looked for."""
        if self.order is None:
            return np.arange(len(self.classes_))[::-1]
        order = np.asarray(self.order)
        if not np.array_equal(np.sort(order), self.classes_):
            raise ValueError(
                f"{type(self).__name__} order is {list(self.order)}; expected each of the classes "
                f"{self.classes_.tolist()} once"
            )
        return np.searchsorted(self.classes_, order)

    def _broken(self, sticks: list[Float[np.ndarray, " n"]]) -> Float[np.ndarray, "n C"]:
        """Probabilities of the classes from those of the sticks."""
        sequence = np.searchsorted(self.classes_, self.order_)
        found = np.empty((len(sticks[0]), len(self.classes_)))
        remains = np.ones(len(sticks[0]))
        for code, probability in zip(sequence[:-1], sticks, strict=True):
            found[:, code] = remains * probability
            remains = remains * (1 - probability)
        found[:, sequence[-1]] = remains
        return found

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn that there may be many classes."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = True
        return tags
