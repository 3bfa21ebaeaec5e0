"""Transformers of bags for scikit-learn's pipelines: they learn from training bags alone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import TransformerMixin, clone
from sklearn.decomposition import PCA
from sklearn.model_selection import check_cv
from sklearn.utils import Tags

from ..datasets.arguments import FLAG, POSITIVE, WHOLE, optional
from ..datasets.bags import Bags, Standardization
from ..datasets.checks import read_only
from ..datasets.kernel_pca import KernelComponents
from .contract import BagEstimator, as_bags, with_labels

__all__ = [
    "BagTransformer",
    "KernelPCA",
    "PCAOfInstances",
    "ScoreInstances",
    "StandardizeInstances",
    "TransformInstances",
]


class BagTransformer(TransformerMixin, BagEstimator):
    """A transformer from bags to bags, of instances one by one."""

    def fit(self, bags: Bags, y: ArrayLike | None = None) -> Self:
        """Fit to training bags.

        Parameters
        ----------
        bags : Bags
        y : array (B,) or None
            Not used, unless the class says so.

        Returns
        -------
        self

        Raises
        ------
        TypeError
            If ``bags`` are no `Bags`.
        ValueError
            If a parameter is out of range.
        """
        self._check_parameters()
        bags = as_bags(bags, type(self).__name__)
        self.n_features_in_ = bags.num_features
        self._fit(bags, y)
        return self

    def transform(self, bags: Bags) -> Bags:
        """The bags with transformed features; labels, targets and names stay.

        Parameters
        ----------
        bags : Bags

        Returns
        -------
        Bags
        """
        return self._transform(self._checked(bags))

    @abstractmethod
    def _fit(self, bags: Bags, y: ArrayLike | None) -> None:
        """Learn from training bags."""

    @abstractmethod
    def _transform(self, bags: Bags) -> Bags:
        """Bags with transformed features."""

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn that labels are not needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags


class StandardizeInstances(BagTransformer):
    """Centre and scale each feature by its mean and sd over the instances of training bags.

    A feature that is constant there keeps its scale. It is `Bags.standardize` with the training
    bags as reference.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.estimators import StandardizeInstances
    >>> training = Bags.from_list([[[1.0], [3.0]], [[5.0]]], labels=[1, 0])
    >>> step = StandardizeInstances().fit(training)
    >>> step.transform(training).instances[:, 0].round(2).tolist()
    [-1.22, 0.0, 1.22]
    >>> step.transform(Bags.from_list([[[3.0]], [[7.0]]])).instances[:, 0].round(2).tolist()
    [0.0, 2.45]
    """

    def _fit(self, bags: Bags, y: ArrayLike | None) -> None:
        self.standardization_ = Standardization.of(bags)

    def _transform(self, bags: Bags) -> Bags:
        return self.standardization_(bags)


class TransformInstances(BagTransformer):
    """Any transformer of scikit-learn, fitted to the instances of training bags.

    Parameters
    ----------
    transformer : object
        From (N, D) arrays to arrays of as many rows; it is cloned, and does not see labels.

    Attributes
    ----------
    transformer_ : object
        Fitted.
    n_features_in_ : int

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import TransformInstances
    >>> from sklearn.preprocessing import MinMaxScaler
    >>> bags = load("digits")
    >>> scaled = TransformInstances(MinMaxScaler()).fit_transform(bags)
    >>> bags.instances.max().item(), scaled.instances.max().item()
    (16.0, 1.0)
    """

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def _fit(self, bags: Bags, y: ArrayLike | None) -> None:
        instances = np.asarray(bags.instances)
        self.transformer_ = clone(self._unfitted(instances)).fit(instances)

    def _transform(self, bags: Bags) -> Bags:
        transformed = self.transformer_.transform(np.asarray(bags.instances))
        return replace(bags, instances=read_only(np.asarray(transformed, dtype=float)))

    def _unfitted(self, instances: Float[np.ndarray, "N D"]) -> Any:
        return self.transformer


class PCAOfInstances(TransformInstances):
    """Principal components of the instances of training bags, by an exact decomposition.

    It is that of the covariance if there are at least ten times as many instances as features, and
    of the centred instances otherwise.

    Parameters
    ----------
    num_components : int
    whiten : bool
        Whether components are scaled to variance 1.

    Attributes
    ----------
    transformer_ : PCA
        Of scikit-learn, fitted.
    n_features_in_ : int

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import PCAOfInstances
    >>> training, test = load("digits").split(0.7, seed=0)
    >>> step = PCAOfInstances(10).fit(training)
    >>> step.transform(test).num_features
    10
    >>> step.transformer_.explained_variance_ratio_.sum().round(2).item()
    0.74
    """

    _rules = {"num_components": WHOLE, "whiten": FLAG}

    def __init__(self, num_components: int, *, whiten: bool = False) -> None:
        self.num_components = num_components
        self.whiten = whiten

    def _unfitted(self, instances: Float[np.ndarray, "N D"]) -> PCA:
        # Of many instances the covariance is much the cheaper. Squares of singular values lose
        # digits of the smallest, so that few instances keep their own decomposition.
        num_instances, num_features = instances.shape
        solver = "covariance_eigh" if num_instances >= 10 * num_features else "full"
        return PCA(self.num_components, whiten=self.whiten, svd_solver=solver)


class KernelPCA(BagTransformer):
    """Kernel principal components of the instances of training bags, as `kernel_pca` finds them.

    Parameters
    ----------
    num_components : int
    length_scale : float or None
        ℓ of the RBF kernel; None for √num_components.

    Attributes
    ----------
    components_ : KernelComponents
    n_features_in_ : int

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import MISVM, KernelPCA
    >>> from sklearn.pipeline import make_pipeline
    >>> training, test = load("digits").split(0.7, seed=0)
    >>> classifier = make_pipeline(KernelPCA(10, length_scale=20.0), MISVM(length_scale=0.5))
    >>> round(classifier.fit(training).score(test), 2)
    0.9
    """

    _rules = {
        "num_components": WHOLE,
        "length_scale": optional(POSITIVE, "for the root of num_components"),
    }

    def __init__(self, num_components: int, length_scale: float | None = None) -> None:
        self.num_components = num_components
        self.length_scale = length_scale

    def _fit(self, bags: Bags, y: ArrayLike | None) -> None:
        self.components_ = KernelComponents.of(bags, self.num_components, self.length_scale)

    def _transform(self, bags: Bags) -> Bags:
        return self.components_(bags)


class ScoreInstances(BagTransformer):
    """The score of each instance, by a classifier of bags, as its feature.

    A classifier is sure of instances that it was fitted on. ``fit_transform``, and with it a
    pipeline's ``fit``, therefore scores the training bags by cross-fitting: those of each fold by a
    classifier that was fitted to the other folds. It is not ``fit`` followed by ``transform``.

    Parameters
    ----------
    classifier : object
        With ``score_instances``, such as `MISVM`; it is cloned.
    cv : int or splitter
        Folds of the cross-fitting, as scikit-learn's ``check_cv`` reads them.
    keep_features : bool
        Whether the score follows the features, or replaces them.

    Attributes
    ----------
    classifier_ : object
        Fitted to all training bags; it scores new ones.
    n_features_in_ : int

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import MISVM, ScoreInstances
    >>> training, test = load("digits").split(0.7, seed=0)
    >>> training, test = training.standardize(), test.standardize(training)
    >>> step = ScoreInstances(MISVM())
    >>> score = step.fit_transform(training).instances[:, 0]  # by cross-fitting
    >>> is_positive = training.instance_labels == 1
    >>> [score[group].mean().round(1).item() for group in (is_positive, ~is_positive)]
    [-0.4, -1.3]
    """

    _rules = {"keep_features": FLAG}

    def __init__(self, classifier: Any, cv: Any = 5, *, keep_features: bool = False) -> None:
        self.classifier = classifier
        self.cv = cv
        self.keep_features = keep_features

    def fit_transform(self, bags: Bags, y: ArrayLike | None = None) -> Bags:
        """Fit to labelled bags, and score them by cross-fitting.

        Parameters
        ----------
        bags : Bags
        y : array (B,) or None
            None for the labels of the bags.

        Returns
        -------
        Bags
            The training bags, with the labels that they had.
        """
        self.fit(bags, y)
        labelled, _ = with_labels(bags, y, type(self).__name__)
        scores = np.empty(bags.num_instances)
        folds = check_cv(self.cv, labelled.labels, classifier=True)
        for training, held_out in folds.split(labelled, labelled.labels):
            scorer = clone(self.classifier).fit(labelled[training])
            rows = np.isin(bags.bag_index, held_out)
            scores[rows] = scorer.score_instances(labelled[np.sort(held_out)])
        return self._with(scores, bags)

    def _fit(self, bags: Bags, y: ArrayLike | None) -> None:
        labelled, _ = with_labels(bags, y, type(self).__name__)
        self.classifier_ = clone(self.classifier).fit(labelled)

    def _transform(self, bags: Bags) -> Bags:
        return self._with(self.classifier_.score_instances(bags), bags)

    def _with(self, scores: Float[np.ndarray, " N"], bags: Bags) -> Bags:
        columns = [np.asarray(bags.instances)] if self.keep_features else []
        return replace(bags, instances=read_only(np.column_stack([*columns, scores])))

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn that labels are needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
