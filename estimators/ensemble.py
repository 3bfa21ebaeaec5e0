"""Bagging: classifiers of bags that are fitted to bootstrap samples vote on each label."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if

from ..datasets.arguments import WHOLE, Rule, checked_seed
from ..datasets.bags import Bags
from .contract import BagClassifier

__all__ = ["BagEnsemble"]


def _members_score_instances(ensemble: BagEnsemble) -> bool:
    """Whether the classifier labels instances; the error of available_if says so otherwise."""
    if not hasattr(ensemble.classifier, "predict_instances"):
        raise AttributeError(
            f"BagEnsemble has no instance scores: {type(ensemble.classifier).__name__} has none"
        )
    return True


class BagEnsemble(BagClassifier):
    r"""Bagging of any classifier of bags: the majority of its members decides.

    Each member m is a copy of the classifier. It is fitted to as many bags of each label as there
    are, drawn with replacement. The decision value of a bag is the mean of the votes:

    .. math:: f(B) = \frac{1}{M} Σ_m v_m(B), \quad v_m(B) = ±1

    Where members label instances, the decision value of an instance is the mean of these votes.

    Parameters
    ----------
    classifier : estimator
        Of bags, such as `MILES`. Where it has a ``seed``, each member gets another one.
    num_members : int
        M. Of an even number, half of the votes make no majority: the bag is negative.
    seed : int
        Of the bootstrap samples, and of the seeds of the members.

    Attributes
    ----------
    members_ : list of estimators
    samples_ : list of arrays
        Numbers of the training bags that each member is fitted to.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    A fit takes M fits of the classifier to B bags each.

    Zhou and Zhang draw bootstrap samples of all bags. Here they are drawn within each label, so
    that every member sees both. The votes are counted and not the decision values, whose units
    differ between members.

    The method called "Ensemble" by Venkatesan, Chandakkar and Li (2015) is another one, which
    combines the labels of the instances of a bag: `ConceptFractionClassifier`. They report no
    bagging of classifiers of bags.

    References
    ----------
    Zhou and Zhang (2003), "Ensembles of multi-instance learners", European Conference on Machine
    Learning; Breiman (1996), "Bagging predictors", Machine Learning 24.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import MISVM, BagEnsemble
    >>> training, test = load("digits").split(0.7, seed=0)
    >>> training, test = training.standardize(), test.standardize(training)
    >>> classifier = BagEnsemble(MISVM(), num_members=5, seed=0).fit(training)
    >>> classifier.decision_function(test[4:9]).round(1).tolist()  # means of five votes
    [1.0, 0.6, -1.0, -1.0, 1.0]
    >>> round(classifier.score(test), 2)
    0.84
    """

    _rules = {
        "classifier": Rule(
            "an estimator of bags with fit and predict, and no class",
            lambda value: (
                not isinstance(value, type)
                and all(hasattr(value, name) for name in ("fit", "predict", "get_params"))
            ),
            TypeError,
        ),
        "num_members": WHOLE,
    }

    def __init__(self, classifier: Any, num_members: int = 11, *, seed: int) -> None:
        self.classifier = classifier
        self.num_members = num_members
        self.seed = seed

    @available_if(_members_score_instances)
    def score_instances(self, bags: Bags) -> Float[np.ndarray, " N"]:
        """Mean of the votes ±1 of the members on each instance.

        Parameters
        ----------
        bags : Bags
            Their labels are not used.

        Returns
        -------
        array (N,)
        """
        bags = self._checked(bags)
        return np.mean([2.0 * one.predict_instances(bags) - 1 for one in self.members_], axis=0)

    @available_if(_members_score_instances)
    def predict_instances(self, bags: Bags) -> Int[np.ndarray, " N"]:
        """The label of each instance, 1 where most members call it positive, else 0."""
        return self.is_positive(self.score_instances(bags))

    def _fit(self, bags: Bags) -> None:
        random = np.random.default_rng(checked_seed(self.seed))
        labels = np.asarray(bags.labels)
        self.samples_ = [draw_within_labels(labels, random) for _ in range(self.num_members)]
        self.members_ = [
            with_seed(self.classifier, random).fit(bags.select(sample)) for sample in self.samples_
        ]

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return np.mean([2.0 * one.predict(bags) - 1 for one in self.members_], axis=0)


def draw_within_labels(
    labels: Int[np.ndarray, " B"], random: np.random.Generator
) -> Int[np.ndarray, " B"]:
    """A bootstrap sample of bag numbers, with as many of each label as there are."""
    groups = [np.flatnonzero(labels == label) for label in (0, 1)]
    return np.concatenate([random.choice(group, size=len(group)) for group in groups])


def with_seed(classifier: Any, random: np.random.Generator) -> Any:
    """A copy that is not fitted, with another seed where it has one, also in a pipeline."""
    copy = clone(classifier)
    names = [name for name in copy.get_params() if name.split("__")[-1] == "seed"]
    return copy.set_params(**{name: int(random.integers(2**32)) for name in sorted(names)})
