"""eMIL: a linear classifier of bags as ellipsoids, whose most positive point counts."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import OptimizeResult, minimize

from ..datasets.arguments import AT_LEAST_ZERO, POSITIVE, WHOLE
from ..datasets.bags import Bags
from ..inference.posterior import Status
from .contract import BagClassifier, means_by_bag

__all__ = ["EllipsoidScores", "EllipsoidalMIL", "direction_of_spreads", "ellipsoid_scores"]

# By the numbers that scipy gives: its line search may fail.
_KINDS: dict[int, Literal["converged", "max_steps", "failed"]] = {
    0: "converged",
    1: "max_steps",
    2: "failed",
}


class EllipsoidalMIL(BagClassifier):
    r"""eMIL: a linear classifier of bags as ellipsoids, whose most positive point counts.

    .. math::
        f_b &= \max_{‖u‖ ≤ 1} w ᵀ(μ_b + κ Σ_b^{1/2} u) + c
             = wᵀμ_b + κ \sqrt{wᵀ Σ_b w} + c \\
        & \min_{w, c} \; ½‖w‖² + C \sum_b \max(0, 1 - y_b f_b)²

    with the mean μ_b and the covariance Σ_b of the instances of bag b, and y_b = ±1. The whole
    ellipsoid of a negative bag must lie on the negative side, and one point of that of a positive
    bag on the positive side. f_b is the mean of wᵀx over the instances of the bag, c, and κ
    standard deviations of it.

    Parameters
    ----------
    radius : float
        κ, in standard deviations; 0 for a support vector classifier of means.
    penalty : float
        C.
    max_steps : int
        Of each search, at most.

    Attributes
    ----------
    weights_ : array (D,)
        w, per unit of each feature.
    intercept_ : float
        c.
    objective_ : float
        At last.
    status_ : Status
        How the search ended.
    num_steps_ : int
        Of all searches.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    The objective is not convex where a bag is positive: √(wᵀΣw) is, and there it has the other
    sign. L-BFGS, a quasi-Newton method as in the paper, starts at the solution for κ = 0, which is
    convex, and in the direction in which positive bags vary most beyond negative ones; the lower
    end is kept. Where means tell nothing the first start is w = 0, at which √(wᵀΣw) has no
    gradient, and the search stays there. A step takes O(ND) time, the second start O(ND² + D³).

    A bag that is random with this mean and covariance is below f_b with probability κ²/(1 + κ²) or
    more, whatever its distribution (Cantelli's inequality). The square of the loss, which gives it
    a gradient at every score, is ours. A bag of one instance is a point.

    References
    ----------
    Krummenacher, Ong and Buhmann (2013), Ellipsoidal multiple instance learning, ICML.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.estimators import EllipsoidalMIL
    >>> instances = [[-2.0], [2.0]], [[-2.5], [2.5]], [[-0.5], [0.5]], [[-1.0], [1.0]]
    >>> bags = Bags.from_list(instances, labels=[1, 1, 0, 0])
    >>> EllipsoidalMIL(radius=0.0, penalty=10.0).fit(bags).score(bags)  # the means tell nothing
    0.5
    >>> EllipsoidalMIL(penalty=10.0).fit(bags).score(bags)
    1.0
    """

    _rules = {"radius": AT_LEAST_ZERO, "penalty": POSITIVE, "max_steps": WHOLE}

    def __init__(self, radius: float = 1.0, penalty: float = 1.0, max_steps: int = 1000) -> None:
        self.radius = radius
        self.penalty = penalty
        self.max_steps = max_steps

    def _fit(self, bags: Bags) -> None:
        nowhere = np.zeros(bags.num_features + 1)
        searches = [self._search(bags, nowhere, radius=0.0)]
        if self.radius > 0:
            starts = (searches[0].x, np.append(direction_of_spreads(bags), 0.0))
            searches += [self._search(bags, start, self.radius) for start in starts]
        found = min(searches[1:] or searches, key=lambda one: one.fun)
        self.weights_, self.intercept_ = found.x[:-1], float(found.x[-1])
        self.objective_ = float(found.fun)
        self.num_steps_ = sum(int(one.nit) for one in searches)
        sentence = f"the gradient is {np.abs(found.jac).max():.1g} after {found.nit} steps"
        self.status_ = Status(_KINDS[found.status], sentence)

    def _search(self, bags: Bags, start: Float[np.ndarray, " P"], radius: float) -> OptimizeResult:
        return minimize(
            objective_and_gradient,
            start,
            args=(bags, radius, self.penalty),
            method="L-BFGS-B",
            jac=True,
            options={"maxiter": self.max_steps, "maxfun": 10 * self.max_steps},
        )

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return ellipsoid_scores(self.weights_, bags, self.radius).of_bags + self.intercept_


def direction_of_spreads(bags: Bags) -> Float[np.ndarray, " D"]:
    """The direction of the largest variance in positive bags beyond that in negative ones.

    Parameters
    ----------
    bags : Bags
        With labels.

    Returns
    -------
    array (D,)
        The eigenvector of Σ_b y_b Σ_b with the largest eigenvalue, at which wᵀx has a variance of 1
        in a mean bag.
    """
    instances, index = np.asarray(bags.instances), np.asarray(bags.bag_index)
    centred = instances - means_by_bag(instances, bags)[index]
    signs = 2.0 * np.asarray(bags.labels) - 1
    weighted = centred * (signs / bags.bag_sizes)[index, None]
    direction = np.linalg.eigh(weighted.T @ centred)[1][:, -1]
    variance = means_by_bag((centred @ direction)[:, None] ** 2, bags).mean()
    return direction / np.sqrt(variance) if variance > 0 else direction


class EllipsoidScores(NamedTuple):
    """The largest wᵀx over each ellipsoid, and where it is reached.

    Attributes
    ----------
    of_bags : array (B,)
        wᵀμ_b + κ √(wᵀΣ_b w).
    instance_weights : array (N,)
        Weights of the instances, adding up to 1 in each bag: their weighted sum is the point of
        the ellipsoid that has this score, and the gradient of it.
    """

    of_bags: Float[np.ndarray, " B"]
    instance_weights: Float[np.ndarray, " N"]


def ellipsoid_scores(
    weights: Float[np.ndarray, " D"], bags: Bags, radius: float
) -> EllipsoidScores:
    """Score each bag by the most positive point of its ellipsoid.

    Parameters
    ----------
    weights : array (D,)
        w.
    bags : Bags
    radius : float
        κ.

    Returns
    -------
    EllipsoidScores
    """
    index, sizes = np.asarray(bags.bag_index), bags.bag_sizes
    projected = np.asarray(bags.instances) @ weights
    mean = means_by_bag(projected[:, None], bags)[:, 0]
    deviation = projected - mean[index]
    sd = np.sqrt(means_by_bag(deviation[:, None] ** 2, bags)[:, 0])
    # A bag whose instances have one score is a point for this w.
    standard = deviation / np.where(sd > 0, sd, 1.0)[index]
    # μ + κ Σw / √(wᵀΣw), with Σ the mean of (x − μ)(x − μ)ᵀ
    return EllipsoidScores(mean + radius * sd, (1 + radius * standard) / sizes[index])


def objective_and_gradient(
    parameters: Float[np.ndarray, " P"], bags: Bags, radius: float, penalty: float
) -> tuple[float, Float[np.ndarray, " P"]]:
    """½‖w‖² + C Σ_b max(0, 1 − y_b f_b)², and its gradient by (w, c)."""
    weights, intercept = parameters[:-1], parameters[-1]
    signs = 2.0 * np.asarray(bags.labels) - 1
    scores = ellipsoid_scores(weights, bags, radius)
    slack = np.maximum(0.0, 1 - signs * (scores.of_bags + intercept))
    by_score = -2 * penalty * signs * slack
    by_instance = by_score[np.asarray(bags.bag_index)] * scores.instance_weights
    gradient = weights + by_instance @ np.asarray(bags.instances)
    objective = 0.5 * weights @ weights + penalty * slack @ slack
    return float(objective), np.append(gradient, by_score.sum())
