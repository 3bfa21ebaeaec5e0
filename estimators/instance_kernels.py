"""Kernels between instances, and training bags whose instances are in an order of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel
from sklearn.svm import SVC

from ..datasets.arguments import POSITIVE, Rule, one_of, optional
from ..datasets.bags import Bags

__all__ = ["KERNEL", "LENGTH_SCALE", "InstanceKernel", "RowLearner", "SortedBags"]

KERNEL = one_of("linear", "rbf")
LENGTH_SCALE: Rule = optional(POSITIVE, "for the square root of the number of features")

# Of the dual. Labels are signs of f, which a looser solution may get wrong near 0.
_TOLERANCE = 1e-5
# Of the solver in one training. On linear kernels between word counts some trainings do not reach
# the tolerance: libsvm keeps the kernel in 32 bit.
_MOST_UPDATES = 10**6
# Numbers of a kernel between points that are kept, 1 GiB of them.
_MOST_NUMBERS = 2**27


@dataclass(frozen=True)
class InstanceKernel:
    """A kernel k(x, x′) between instances: xᵀx′, or exp(−‖x − x′‖² / (2ℓ²)).

    Attributes
    ----------
    name : str
        "linear" or "rbf".
    length_scale : float
        ℓ; "linear" does not use it.
    """

    name: str
    length_scale: float

    @classmethod
    def of(cls, name: str, length_scale: float | None, num_features: int) -> Self:
        """Make the kernel, with ℓ = √D where no length scale is given."""
        return cls(name, float(np.sqrt(num_features) if length_scale is None else length_scale))

    def __call__(
        self, first: Float[np.ndarray, "N D"], second: Float[np.ndarray, "M D"]
    ) -> Float[np.ndarray, "N M"]:
        """The kernel between all rows of two arrays."""
        if self.name == "linear":
            return linear_kernel(first, second)
        return rbf_kernel(first, second, gamma=self._gamma)

    def classifier(self, penalty: float) -> SVC:
        """An untrained support vector classifier with this kernel and penalty C."""
        return _untrained(penalty, kernel=self.name, gamma=self._gamma)

    @property
    def _gamma(self) -> float:
        return 0.5 / self.length_scale**2


@dataclass(frozen=True)
class RowLearner:
    """Trains support vector classifiers on some of the same points again and again.

    The kernel between the points is computed once, where it is small enough to keep; else the
    solver computes it at each training.

    Attributes
    ----------
    kernel : InstanceKernel
    points : array (n, D)
    penalty : float
        C.
    gram : array (n, n) or None
        The kernel between the points.
    """

    kernel: InstanceKernel
    points: Float[np.ndarray, "n D"]
    penalty: float
    gram: Float[np.ndarray, "n n"] | None

    @classmethod
    def of(cls, kernel: InstanceKernel, points: Float[np.ndarray, "n D"], penalty: float) -> Self:
        """A learner, with the kernel between the points where it is small enough."""
        is_small = len(points) ** 2 <= _MOST_NUMBERS
        return cls(kernel, points, penalty, kernel(points, points) if is_small else None)

    def train(self, rows: Int[np.ndarray, " k"], labels: Int[np.ndarray, " k"]) -> SVC:
        """A classifier trained on some of the points, for `scores`."""
        if self.gram is None:
            return self.kernel.classifier(self.penalty).fit(self.points[rows], labels)
        svc = _untrained(self.penalty, kernel="precomputed")
        return svc.fit(self.gram[np.ix_(rows, rows)], labels)

    def scores(self, svc: SVC, rows: Int[np.ndarray, " k"], number: int) -> Float[np.ndarray, " m"]:
        """Decision values of the first points, by a classifier that was trained on ``rows``."""
        if self.gram is None:
            return svc.decision_function(self.points[:number])
        return svc.decision_function(self.gram[:number, rows])


def _untrained(penalty: float, **settings: Any) -> SVC:
    return SVC(C=penalty, tol=_TOLERANCE, max_iter=_MOST_UPDATES, **settings)


@dataclass(frozen=True)
class SortedBags:
    """Training bags, the instances of each sorted by their features.

    Ties and rounding in a solver then do not depend on the order in which instances came.

    Attributes
    ----------
    bags : Bags
        With labels.
    rows : array (N,)
        The row of each sorted instance among those that came.
    """

    bags: Bags
    rows: Int[np.ndarray, " N"]

    @classmethod
    def of(cls, bags: Bags) -> Self:
        """Sort the instances of each bag by the first feature, then the second, and so on."""
        instances = np.asarray(bags.instances)
        rows = np.lexsort((*instances.T[::-1], np.asarray(bags.bag_index)))
        in_order = replace(bags, instances=instances[rows], instance_labels=None, edges=None)
        return cls(in_order, rows)

    @property
    def positive(self) -> Bags:
        """The positive bags."""
        return self.bags[np.asarray(self.bags.labels) == 1]

    @property
    def negative(self) -> Bags:
        """The negative bags."""
        return self.bags[np.asarray(self.bags.labels) == 0]

    @property
    def positive_rows(self) -> Int[np.ndarray, " P"]:
        """The rows of the instances of positive bags, sorted, among those that came."""
        labels, index = np.asarray(self.bags.labels), np.asarray(self.bags.bag_index)
        return self.rows[labels[index] == 1]
