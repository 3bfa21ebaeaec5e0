"""miGraph: a support vector classifier on a kernel that weighs instances by their neighbours."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from joblib import Memory
from scipy.spatial.distance import cdist
from sklearn.utils.validation import check_memory

from ..datasets.arguments import POSITIVE, optional
from ..datasets.bags import Bags
from .set_kernel_svm import BagKernelSVM, rbf_between_bags

__all__ = ["MiGraph", "weights_by_affinity"]


class MiGraph(BagKernelSVM):
    r"""miGraph: instances that are close together in a bag share one weight in the kernel.

    .. math::
        k_g(X, X') = \frac{\sum_i \sum_j w_i w'_j \, e^{-γ ‖x_i - x'_j‖²}}{\sum_i w_i \sum_j w'_j},
        \qquad w_i = 1 / \sum_u W_{iu}, \qquad W_{iu} = 1(‖x_i - x_u‖ < δ)

    A cluster of instances that are all neighbours, and of no others, has the weight 1 together.

    Parameters
    ----------
    length_scale : float or None
        ℓ of γ = 1/(2ℓ²), in units of the features. None for √(D v/2), with v the variance of all
        numbers of the training instances.
    threshold : float or None
        δ, in units of the features. None for the average distance in each bag.
    penalty : float
        C > 0 of the support vector classifier.
    memory : str, joblib.Memory or None
        Folder in which kernels are kept: a search over C then computes each of them once.

    Attributes
    ----------
    bags_ : Bags
        The training bags.
    svc_ : SVC
        Of scikit-learn, on the kernel between them.
    length_scale_ : float
        ℓ that was used.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    The kernel between all B bags takes O(N²D) time, and the classifier O(B²) to O(B³). The affinity
    of a bag takes O(N_b²) memory. A prediction needs all training bags.

    The paper leaves open which pairs the average distance is of. Here it is of all N_b² pairs, each
    instance with itself among them: two different instances alone in a bag are then no neighbours,
    whereas a rounding error would decide it if the average were of the other pairs. An instance is
    always its own neighbour, also where all are identical and δ is 0. Distances are Euclidean.

    Published: 88.9 % accuracy on musk1, 90.3 on musk2, 86.8 on elephant, 61.6 on fox, by ten folds.

    References
    ----------
    Zhou, Sun and Li (2009), "Multi-instance learning by treating instances as non-i.i.d. samples",
    ICML.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.estimators import MiGraph
    >>> instances = [[0.0], [3.0]], [[2.9], [0.4]], [[0.1], [0.3]], [[-0.2], [0.5]]
    >>> bags = Bags.from_list(instances, labels=[1, 1, 0, 0])
    >>> classifier = MiGraph(length_scale=1.0).fit(bags)
    >>> classifier.predict(Bags.from_list([[[3.1], [0.2]], [[0.2], [0.1]]])).tolist()
    [1, 0]
    """

    _rules = {
        "length_scale": optional(POSITIVE, "for √(D v/2)"),
        "threshold": optional(POSITIVE, "for the average distance in each bag"),
        "penalty": POSITIVE,
    }

    def __init__(
        self,
        length_scale: float | None = None,
        threshold: float | None = None,
        penalty: float = 1.0,
        memory: str | Memory | None = None,
    ) -> None:
        self.length_scale = length_scale
        self.threshold = threshold
        self.penalty = penalty
        self.memory = memory

    def _kernel(self, left: Bags, right: Bags) -> Float[np.ndarray, "P Q"]:
        kernel = check_memory(self.memory).cache(graph_kernel)
        return kernel(left, right, self._gamma, self.threshold)


def graph_kernel(
    left: Bags, right: Bags, gamma: float, threshold: float | None
) -> Float[np.ndarray, "P Q"]:
    """The kernel k_g between each bag of the left and each of the right.

    Parameters
    ----------
    left, right : Bags
    gamma : float
        γ.
    threshold : float or None
        δ; None for the average distance in each bag.

    Returns
    -------
    array (P, Q)
    """
    weights = (weights_by_affinity(bags, threshold) for bags in (left, right))
    return rbf_between_bags(left, right, gamma, *weights)


def weights_by_affinity(bags: Bags, threshold: float | None) -> Float[np.ndarray, " N"]:
    """The weights w_i / Σ w of all instances, which sum to 1 in each bag.

    Parameters
    ----------
    bags : Bags
    threshold : float or None
        δ; None for the average distance in each bag.

    Returns
    -------
    array (N,)
    """
    return np.concatenate([_weights_of_bag(own, threshold) for own in bags.to_list()])


def _weights_of_bag(
    own: Float[np.ndarray, "n D"], threshold: float | None
) -> Float[np.ndarray, " n"]:
    distance = cdist(own, own)
    affinity = distance < (distance.mean() if threshold is None else threshold)
    np.fill_diagonal(affinity, True)
    weight = 1 / affinity.sum(axis=1)
    return weight / weight.sum()
