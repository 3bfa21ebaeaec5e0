"""Embed bags as histograms of the words nearest to their instances; a classifier on these."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.metrics.pairwise import additive_chi2_kernel
from sklearn.svm import SVC

from ..datasets.arguments import POSITIVE, WHOLE, checked_seed
from ..datasets.bags import Bags
from ..datasets.checks import num_distinct_rows
from ..inference.posterior import Status
from .contract import BagClassifier

__all__ = ["VocabularySVM"]


class VocabularySVM(BagClassifier):
    r"""Bag of words: a support vector classifier on how often each word is in a bag.

    Words :math:`v_k` are the centres that k-means finds among all training instances. The features
    of a bag are the fractions of its instances that are nearest to each word:

    .. math:: h_k(B_i) = \frac{1}{N_i} Σ_j 1\big(k = \operatorname{argmin}_l ‖x_{ij} - v_l‖\big)

    The kernel between two bags is an exponential of their χ² distance:

    .. math:: k(h, h') = \exp\big(-D(h, h') / \bar D\big), \quad
        D(h, h') = Σ_k (h_k - h'_k)² / (h_k + h'_k)

    where :math:`\bar D` is the mean distance between two different training bags.

    Parameters
    ----------
    num_words : int
        Size K of the vocabulary.
    penalty : float
        C of the support vector classifier.
    num_starts : int
        Runs of k-means; the best one is kept.
    max_steps : int
        Of each run of k-means.
    seed : int
        Of the starts of k-means.

    Attributes
    ----------
    words_ : array (K, D)
    histograms_ : array (B, K)
        Of the training bags.
    mean_distance_ : float
        Between training bags; 1 where all have the same histogram.
    svc_ : SVC
        Of scikit-learn, on the kernel between training bags.
    status_ : Status
        How the run of k-means ended.
    num_steps_ : int
        Of that run.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    Each step of k-means takes O(NKD), the kernel O(B²K), and the classifier O(B²) to O(B³).

    The review leaves the number of words and the kernel to the user. The χ² kernel with its mean
    distance was chosen here, so that there is no width to set. No instance scores are defined.

    None of the papers whose tables this library compares with reports this method. VF in
    Kandemir and Hamprecht (2014) is another one, the voting framework of Liu, Wu and Zhou (2012).

    References
    ----------
    Amores (2013), "Multiple instance classification: Review, taxonomy and comparative study",
    Artificial Intelligence 201: vocabulary-based methods with histograms.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.estimators import VocabularySVM
    >>> instances = [[0.0], [3.0]], [[2.9], [0.4]], [[0.1], [0.3]], [[-0.2], [0.5]]
    >>> bags = Bags.from_list(instances, labels=[1, 1, 0, 0])
    >>> classifier = VocabularySVM(num_words=2, seed=0).fit(bags)
    >>> sorted(classifier.words_[:, 0].round(2).tolist())
    [0.18, 2.95]
    >>> classifier.histograms_.max(axis=1).tolist()
    [0.5, 0.5, 1.0, 1.0]
    >>> classifier.predict(Bags.from_list([[[3.1], [0.2]], [[0.2], [0.1]]])).tolist()
    [1, 0]
    """

    _rules = {
        "num_words": WHOLE,
        "penalty": POSITIVE,
        "num_starts": WHOLE,
        "max_steps": WHOLE,
    }

    def __init__(
        self,
        num_words: int = 50,
        penalty: float = 1.0,
        num_starts: int = 10,
        max_steps: int = 300,
        *,
        seed: int,
    ) -> None:
        self.num_words = num_words
        self.penalty = penalty
        self.num_starts = num_starts
        self.max_steps = max_steps
        self.seed = seed

    def _fit(self, bags: Bags) -> None:
        self.words_ = self._find_words(np.asarray(bags.instances))
        self.histograms_ = self._histograms(bags)
        distance = chi_squared(self.histograms_, self.histograms_)
        num_bags = len(distance)
        mean = float(distance.sum()) / (num_bags * (num_bags - 1))
        self.mean_distance_ = mean if mean > 0 else 1.0
        kernel = np.exp(-distance / self.mean_distance_)
        svc = SVC(C=self.penalty, kernel="precomputed")
        self.svc_ = svc.fit(kernel, np.asarray(bags.labels))

    def _decision(self, bags: Bags) -> Float[np.ndarray, " P"]:
        distance = chi_squared(self._histograms(bags), self.histograms_)
        return self.svc_.decision_function(np.exp(-distance / self.mean_distance_))

    def _find_words(self, instances: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "K D"]:
        """Centres of k-means."""
        seed = checked_seed(self.seed)
        num_distinct = num_distinct_rows(instances)
        if num_distinct < self.num_words:
            raise ValueError(
                f"VocabularySVM num_words is {self.num_words}, but only {num_distinct} training "
                "instances differ; expected as many at least"
            )
        means = KMeans(
            self.num_words, n_init=self.num_starts, max_iter=self.max_steps, random_state=seed
        ).fit(instances)
        self.num_steps_ = int(means.n_iter_)
        kind = "converged" if self.num_steps_ < self.max_steps else "max_steps"
        sentence = f"squared distances to words add up to {means.inertia_:.6g}"
        self.status_ = Status(kind, f"{sentence} after {self.num_steps_} steps of k-means")
        return means.cluster_centers_

    def _histograms(self, bags: Bags) -> Float[np.ndarray, "B K"]:
        """Fractions of the instances of each bag that are nearest to each word."""
        word = cdist(np.asarray(bags.instances), self.words_, "sqeuclidean").argmin(axis=1)
        counts = np.zeros((bags.num_bags, len(self.words_)))
        np.add.at(counts, (np.asarray(bags.bag_index), word), 1.0)
        return counts / bags.bag_sizes[:, None]


def chi_squared(
    first: Float[np.ndarray, "P K"], second: Float[np.ndarray, "B K"]
) -> Float[np.ndarray, "P B"]:
    """χ² distances between histograms, 0 for a word that neither has."""
    # Copies, because the kernel takes no read-only arrays.
    return -additive_chi2_kernel(np.array(first), np.array(second))
