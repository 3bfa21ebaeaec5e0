"""miFV: a linear classifier on the Fisher vector of each bag under a Gaussian mixture."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Float
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.svm import LinearSVC

from ..datasets.arguments import POSITIVE, PROBABILITY, WHOLE, checked_seed, optional
from ..datasets.bags import Bags
from ..inference.posterior import Status
from .contract import BagClassifier, means_by_bag

__all__ = ["MiFV", "fisher_vectors", "improved"]


class MiFV(BagClassifier):
    r"""miFV: a linear support vector classifier on improved Fisher vectors of bags.

    .. math::
        f_{μ_k}(X) &= \frac{1}{|X| \sqrt{π_k}} \sum_{x ∈ X} r_k(x) \frac{x - μ_k}{σ_k}, \qquad
        f_{σ_k}(X) = \frac{1}{|X| \sqrt{2 π_k}} \sum_{x ∈ X} r_k(x)
        \Big[\frac{(x - μ_k)²}{σ_k²} - 1\Big] \\
        f &← \operatorname{sign}(f) \sqrt{|f|}, \qquad f ← f / ‖f‖

    r_k(x) is the responsibility of component k of a mixture of K Gaussians with diagonal
    covariances, fitted to all training instances. f is the gradient of the mean log likelihood of a
    bag, in units of the square root of the Fisher information.

    Parameters
    ----------
    num_components : int
        K.
    variance_kept : float or None
        Fraction of the variance that principal components of the training instances keep before
        the mixture is fitted, the paper's PCA energy; None for the features as they are.
    penalty : float
        C > 0 of the support vector classifier, with squared hinge loss.
    variance_floor : float
        Added to the variances σ² of the mixture, in squared units of the features.
    max_steps : int
        Of EM.
    seed : int
        Of the k-means clustering that EM starts at.

    Attributes
    ----------
    components_ : PCA or None
        Of scikit-learn.
    mixture_ : GaussianMixture
        Of scikit-learn.
    svc_ : LinearSVC
        Of scikit-learn, on the improved Fisher vectors.
    status_ : Status
        How EM and the classifier ended.
    num_steps_ : int
        Of EM.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    A step of EM and the Fisher vectors take O(NKD) time, and the classifier is linear in B and in
    the 2KD numbers of a vector. Training bags are not needed for a prediction.

    The Fisher information is that of well separated components, as in the paper. The paper leaves
    the constant under the variances open. Rows are sorted before the mixture is fitted, so that
    the seed means the same whatever the order of instances and bags.

    References
    ----------
    Wei, Wu and Zhou (2014), "Scalable multi-instance learning", ICDM; Wei, Wu and Zhou (2017),
    "Scalable algorithms for multi-instance learning", IEEE Transactions on Neural Networks and
    Learning Systems.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import MiFV
    >>> training, test = load("digits").split(0.7, seed=0)
    >>> training, test = training.standardize(), test.standardize(training)
    >>> classifier = MiFV(num_components=3, seed=0).fit(training)
    >>> classifier.svc_.n_features_in_  # derivatives by 3 means and 3 sds of 64 features
    384
    >>> round(classifier.score(test), 2)
    0.76
    """

    _rules = {
        "num_components": WHOLE,
        "variance_kept": optional(PROBABILITY, "for the features as they are"),
        "penalty": POSITIVE,
        "variance_floor": POSITIVE,
        "max_steps": WHOLE,
    }

    def __init__(
        self,
        num_components: int = 3,
        variance_kept: float | None = None,
        penalty: float = 1.0,
        variance_floor: float = 1e-3,
        max_steps: int = 200,
        *,
        seed: int,
    ) -> None:
        self.num_components = num_components
        self.variance_kept = variance_kept
        self.penalty = penalty
        self.variance_floor = variance_floor
        self.max_steps = max_steps
        self.seed = seed

    def _fit(self, bags: Bags) -> None:
        seed = checked_seed(self.seed)
        rows = np.asarray(bags.instances)
        rows = rows[np.lexsort(rows.T)]
        self.components_ = None if self.variance_kept is None else self._fit_components(rows)
        self.mixture_ = GaussianMixture(
            self.num_components,
            covariance_type="diag",
            reg_covar=self.variance_floor,
            max_iter=self.max_steps,
            random_state=seed,
        )
        # The primal problem has one solution, which no random order of bags leads to.
        self.svc_ = LinearSVC(C=self.penalty, dual=False, tol=1e-6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # status_ tells
            self.mixture_.fit(self._projected(rows))
            self.svc_.fit(self._vectors(bags), np.asarray(bags.labels))
        self.num_steps_ = int(self.mixture_.n_iter_)
        self.status_ = self._find_status()

    def _fit_components(self, rows: Float[np.ndarray, "N D"]) -> PCA:
        with np.errstate(invalid="ignore"):  # identical rows: one component of variance 0
            return PCA(self.variance_kept, svd_solver="full").fit(rows)

    def _find_status(self) -> Status:
        num = int(np.max(self.svc_.n_iter_))
        sentence = f"EM took {self.num_steps_} steps, the linear classifier {num}"
        if not self.mixture_.converged_:
            return Status("max_steps", f"{sentence}: EM reached max_steps")
        if num >= self.svc_.max_iter:
            return Status("max_steps", f"{sentence}: the classifier reached its limit")
        return Status("converged", sentence)

    def _decision(self, bags: Bags) -> Float[np.ndarray, " P"]:
        return self.svc_.decision_function(self._vectors(bags))

    def _vectors(self, bags: Bags) -> Float[np.ndarray, "B P"]:
        rows = self._projected(np.asarray(bags.instances))
        return improved(fisher_vectors(rows, bags, self.mixture_))

    def _projected(self, rows: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N d"]:
        return rows if self.components_ is None else self.components_.transform(rows)


def fisher_vectors(
    rows: Float[np.ndarray, "N D"], bags: Bags, mixture: GaussianMixture
) -> Float[np.ndarray, "B P"]:
    """The Fisher vectors (f_μ1, f_σ1, …, f_μK, f_σK) of bags, before they are improved.

    Parameters
    ----------
    rows : array (N, D)
        The instances as the mixture takes them.
    bags : Bags
        Which instance is in which bag.
    mixture : GaussianMixture
        With diagonal covariances.

    Returns
    -------
    array (B, 2KD)
    """
    responsibility = mixture.predict_proba(rows)
    parts = []
    for k, weight in enumerate(mixture.weights_):
        standard = (rows - mixture.means_[k]) / np.sqrt(mixture.covariances_[k])
        own = responsibility[:, k, None]
        parts.append(means_by_bag(own * standard, bags) / np.sqrt(weight))
        parts.append(means_by_bag(own * (standard**2 - 1), bags) / np.sqrt(2 * weight))
    return np.hstack(parts)


def improved(vectors: Float[np.ndarray, "B P"]) -> Float[np.ndarray, "B P"]:
    """Signed square roots, scaled to length 1; a vector of zeros stays.

    Parameters
    ----------
    vectors : array (B, P)

    Returns
    -------
    array (B, P)
    """
    roots = np.sign(vectors) * np.sqrt(np.abs(vectors))
    length = np.linalg.norm(roots, axis=1, keepdims=True)
    return roots / np.where(length > 0, length, 1.0)
