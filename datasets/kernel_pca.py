"""Kernel principal components of instances, found in the training bags alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from .bags import Bags
from .checks import read_only

if TYPE_CHECKING:
    from sklearn.decomposition import KernelPCA

__all__ = ["KernelComponents", "kernel_pca"]

# Distance in length scales beyond which a kernel is negligible: exp(−5²/2) = 4e-6.
_REACH = 5.0
# From this many instances for each component on, Lanczos iterations are quicker.
_MANY = 10


def kernel_pca(
    training: Bags, *others: Bags, num_components: int, length_scale: float | None = None
) -> tuple[Bags, ...]:
    """Bags whose features are kernel principal components, RBF kernel exp(−‖x − x'‖²/(2ℓ²)).

    Components are those of the training instances, in order of falling variance. Feature j of a
    training instance has mean 0 and variance λ_j/N, λ_j an eigenvalue of the centred kernel matrix,
    and its covariances with the others are 0. The sign of each is such that the eigenvector's
    largest entry is positive.

    Parameters
    ----------
    training : Bags
        Their instances are the N that components are found in.
    *others : Bags
        Projected on the components of the training bags; they have no part in finding them.
    num_components : int
        Features of the bags returned, 1 … N − 1.
    length_scale : float or None
        ℓ, in the units of the features. None for √num_components, as in the paper.

    Returns
    -------
    tuple of Bags
        The training bags, then the others; only the instances have changed.

    Raises
    ------
    ValueError
        If the training instances do not have that many components, bags have other features than
        the training bags, or the length scale is not a positive number, or so short that to most
        training instances all others are equally far away.

    Notes
    -----
    The paper reduces 200 features to 100 "with a length scale of √100", and 738 to 30 with √30:
    the number under the root is that of components. It does not say whether the kernel has the 2
    in exp(−‖x − x'‖²/(2ℓ²)); the heuristic that it names, γ = 1/number of features in
    exp(−γ‖x − x'‖²), has none: for that give ℓ = √(num_components/2). Nor does it say whether
    features were standardised first.

    The kernel matrix of all training instances is in memory. Its eigenvectors take O(N³) time, and
    some O(N²) for each component where these are few.

    References
    ----------
    Kandemir and Hamprecht (2014), section 4.1. Schölkopf, Smola and Müller (1998), Neural
    Computation 10.

    Examples
    --------
    >>> from milzoo.datasets import kernel_pca, load
    >>> training, test = load("digits").split(0.2, seed=0)
    >>> training, test = kernel_pca(training, test, num_components=5, length_scale=20.0)
    >>> test.num_features
    5
    """
    project = KernelComponents.of(training, num_components, length_scale)
    for number, bags in enumerate(others):
        if bags.num_features != training.num_features:
            raise ValueError(
                f"others[{number}] has {bags.num_features} features, the training bags "
                f"{training.num_features}; expected the same"
            )
    return tuple(project(bags) for bags in (training, *others))


@dataclass(frozen=True, eq=False)
class KernelComponents:
    """Kernel principal components of training instances; see `kernel_pca`.

    Attributes
    ----------
    components : KernelPCA
        Of scikit-learn, fitted.
    """

    components: KernelPCA

    @classmethod
    def of(cls, training: Bags, num_components: int, length_scale: float | None) -> Self:
        """Find the components in training bags, with the checks of `kernel_pca`."""
        if not 1 <= num_components < training.num_instances:
            raise ValueError(
                f"num_components is {num_components}; expected 1 to {training.num_instances - 1}, "
                f"one less than the {training.num_instances} training instances"
            )
        length_scale = math.sqrt(num_components) if length_scale is None else length_scale
        if not (math.isfinite(length_scale) and length_scale > 0):
            raise ValueError(f"length_scale is {length_scale}; expected a positive number")
        _check_reach(training, length_scale)
        return cls(_fitted(training, num_components, length_scale))

    def __call__(self, bags: Bags) -> Bags:
        """Bags projected on the components."""
        projected = self.components.transform(np.asarray(bags.instances))
        return replace(bags, instances=read_only(projected))


def _check_reach(training: Bags, length_scale: float) -> None:
    """Raise an error if the kernel matrix is nearly the identity."""
    from sklearn.neighbors import NearestNeighbors

    nearest = NearestNeighbors(n_neighbors=1).fit(np.asarray(training.instances)).kneighbors()[0]
    typical = float(np.median(nearest))
    if typical > _REACH * length_scale:
        raise ValueError(
            f"length_scale is {length_scale:g}, and half of the training instances are more than "
            f"{typical:g} from the nearest other: the kernel would be nearly 0 between all; "
            "expected features of smaller variance (bags.standardize()) or a longer length_scale"
        )


def _fitted(training: Bags, num_components: int, length_scale: float) -> KernelPCA:
    from sklearn.decomposition import KernelPCA

    # Both end in the same place, to rounding. Scikit-learn fixes the signs; the start of Lanczos
    # iterations is fixed here.
    is_few = training.num_instances > _MANY * num_components
    components = KernelPCA(
        num_components,
        kernel="rbf",
        gamma=0.5 / length_scale**2,
        eigen_solver="arpack" if is_few else "dense",
        random_state=0,
    ).fit(np.asarray(training.instances))
    found = int(np.sum(components.eigenvalues_ > 0))
    if found < num_components:
        raise ValueError(
            f"num_components is {num_components}, but the training instances vary along {found} "
            f"only, with length_scale={length_scale:g}; repeated instances add none"
        )
    return components
