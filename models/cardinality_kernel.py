"""A kernel between bags: instances are alike if they look alike and have one label."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..datasets.bags import Bags
from .cardinality import CardinalityModel, check_width, probabilities
from .counting import CountTree
from .kernels import RBF

__all__ = [
    "CardinalityKernel",
    "check_numbers",
    "joint_from",
    "joint_kernel",
    "sums_between_bags",
]

# Rows of the kernel between instances that are held at once.
_ROWS = 2048
# The same where it is wanted within bags alone.
_OWN_ROWS = 256


@dataclass(frozen=True, eq=False)
class CardinalityKernel:
    r"""The multi-instance cardinality potential (MICP) kernel between bags.

    .. math::
        \tilde k(X, X') &= \sum_{i, j} k_x(x_i, x'_j) \, [p_i p'_j + (1 - p_i)(1 - p'_j)], \qquad
        p_i = P(y_i = 1 \mid X) \\
        k(X, X') &= \tilde k(X, X') / \sqrt{\tilde k(X, X) \, \tilde k(X', X')}

    the mean of Σ k_x(x_i, x'_j) 1(y_i = y'_j) over the labels of the instances of two bags.

    Parameters
    ----------
    model : CardinalityModel
        With numbers as hyper-parameters.
    weights : array (D,)
        θ, such as the mode that `maximum_a_posteriori` finds.
    instance_kernel : RBF
        k_x, with numbers as parameters.
    intercept : float
        θ₀.

    Raises
    ------
    ValueError
        If the model or the instance kernel has a prior where a number is wanted, or the weights are
        not a vector of finite numbers.

    References
    ----------
    Hajimirsadeghi and Mori (2017), equations 15 and 16.

    Examples
    --------
    As a precomputed kernel of scikit-learn:

    >>> from sklearn.svm import SVC
    >>> bags = Bags.from_list([np.eye(2), np.ones((1, 2)), -np.eye(2)], labels=[1, 1, 0])
    >>> kernel = CardinalityKernel(CardinalityModel(), np.ones(2), RBF(1.0, 1.0))
    >>> machine = SVC(kernel="precomputed").fit(kernel(bags, bags), bags.labels)
    >>> machine.predict(kernel(bags.select([2]), bags)).tolist()
    [0]
    """

    model: CardinalityModel
    weights: Float[np.ndarray, " D"] = field(repr=False)
    instance_kernel: RBF
    intercept: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(type(self).__name__, self.model, self.instance_kernel)
        weights = np.array(self.weights, dtype=np.float64)
        if weights.ndim != 1 or not np.isfinite(weights).all():
            raise ValueError(
                f"CardinalityKernel weights have shape {weights.shape}"
                f"{'' if weights.ndim != 1 else ' and some that are not finite'}; expected (D,), a "
                "finite number for each feature"
            )
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    def __call__(self, left: Bags, right: Bags) -> Float[np.ndarray, "P Q"]:
        """The normalised kernel (equation 16) between two sets of bags.

        Parameters
        ----------
        left, right : Bags
            Their labels are not used.

        Returns
        -------
        array (P, Q)

        Raises
        ------
        ValueError
            If bags have another number of features than there are weights.
        """
        share = self.instance_probability(left)
        other = share if left is right else self.instance_probability(right)
        joint = self._joint(left, share, right, other)
        own = np.sqrt(np.diagonal(joint) if left is right else self._of_itself(left, share))
        others = own if left is right else np.sqrt(self._of_itself(right, other))
        return joint / np.outer(own, others)

    def joint(self, left: Bags, right: Bags) -> Float[np.ndarray, "P Q"]:
        """k̃ (equation 15), which is larger the more instances there are."""
        shares = (self.instance_probability(bags) for bags in (left, right))
        return self._joint(left, next(shares), right, next(shares))

    def _joint(
        self,
        left: Bags,
        share: Float[np.ndarray, " N"],
        right: Bags,
        other: Float[np.ndarray, " M"],
    ) -> Float[np.ndarray, "P Q"]:
        total = np.zeros((left.num_bags, right.num_bags))
        with jax.enable_x64(True):
            for start in range(0, left.num_instances, _ROWS):
                rows = slice(start, start + _ROWS)
                index = left.bag_index[rows]
                first, last = int(index[0]), int(index[-1]) + 1
                total[first:last] += joint_kernel(
                    self.instance_kernel.covariance(left.instances[rows], right.instances),
                    jnp.asarray(share[rows]),
                    jnp.asarray(other),
                    jnp.asarray(index - first),
                    jnp.asarray(right.bag_index),
                    last - first,
                    right.num_bags,
                )
        return total

    def _of_itself(self, bags: Bags, share: Float[np.ndarray, " N"]) -> Float[np.ndarray, " P"]:
        """k̃(X, X) of each bag, of as many together as have about ``_OWN_ROWS`` instances."""
        total, group = np.empty(bags.num_bags), bags.starts // _OWN_ROWS
        for number in np.unique(group):
            chosen = group == number
            own = share[chosen[bags.bag_index]]
            some = bags.select(chosen)
            total[chosen] = np.diagonal(self._joint(some, own, some, own))
        return total

    def instance_probability(self, bags: Bags) -> Float[np.ndarray, " N"]:
        """p_n = P(y_n = 1 | X), bag labels summed out (equation 13)."""
        check_width(len(self.weights), bags)
        tree, unlabelled = self.model.tree(bags), replace(bags, labels=None)
        with jax.enable_x64(True):
            logits = jnp.asarray(bags.instances @ self.weights + self.intercept)
            return np.asarray(_marginals(tree, logits, self.model.log_potential(tree, unlabelled)))


def check_numbers(name: str, model: CardinalityModel, instance_kernel: RBF) -> None:
    """Refuse priors where numbers are wanted.

    Raises
    ------
    ValueError
        If the model or the kernel has one.
    """
    of_parts = {"model": model.priors, "instance_kernel": instance_kernel.priors}
    for kind, priors in of_parts.items():
        if priors:
            raise ValueError(
                f"{', '.join(priors)} of the {kind} have priors, but a {name} has one value for "
                "each; give numbers"
            )


@jax.jit
def _marginals(
    tree: CountTree, logits: Float[Array, " N"], log_potential: Float[Array, "2 M"]
) -> Float[Array, " N"]:
    return probabilities(tree, logits, log_potential)[1]


@partial(jax.jit, static_argnames=("num_left", "num_right"))
def joint_kernel(
    between: Float[Array, "N M"],
    left: Float[Array, " N"],
    right: Float[Array, " M"],
    left_index: Int[Array, " N"],
    right_index: Int[Array, " M"],
    num_left: int,
    num_right: int,
) -> Float[Array, "P Q"]:
    """Σ_ij k_x(x_i, x'_j) [p_i p'_j + (1 − p_i)(1 − p'_j)] over the instances of each two bags.

    Parameters
    ----------
    between : array (N, M)
        k_x.
    left, right : array (N,), (M,)
        p, p'.
    left_index, right_index : array (N,), (M,)
        The bag of each instance, non-decreasing.
    num_left, num_right : int

    Returns
    -------
    array (P, Q)

    References
    ----------
    Hajimirsadeghi and Mori (2017), equation 15.
    """
    sums = partial(
        sums_between_bags,
        left_index=left_index,
        right_index=right_index,
        num_left=num_left,
        num_right=num_right,
    )
    regardless = sums(between, jnp.ones_like(left), jnp.ones_like(right))
    return joint_from(regardless, sums(between, left - 0.5, right - 0.5))


def joint_from(
    regardless: Float[Array, "P Q"], of_labels: Float[Array, "P Q"]
) -> Float[Array, "P Q"]:
    """k̃ from Σ k_x and Σ k_x (p − ½)(p' − ½), since p p' + (1 − p)(1 − p') = ½ + 2 (p − ½)(p' − ½).

    Where the labels of two bags are surely opposite the parts cancel, but for the rounding of
    Σ k_x; as k̃ of a bag with itself is at least ½ Σ k_x, that is rounding after normalisation too.
    """
    return 0.5 * regardless + 2.0 * of_labels


def sums_between_bags(
    between: Float[Array, "N M"],
    left: Float[Array, " N"],
    right: Float[Array, " M"],
    left_index: Int[Array, " N"] | Int[np.ndarray, " N"],
    right_index: Int[Array, " M"] | Int[np.ndarray, " M"],
    num_left: int,
    num_right: int,
) -> Float[Array, "P Q"]:
    """Σ_ij k_x(x_i, x'_j) l_i r_j over the instances of each two bags.

    Parameters
    ----------
    between : array (N, M)
    left, right : array (N,), (M,)
        l, r.
    left_index, right_index : array (N,), (M,)
        The bag of each instance, non-decreasing.
    num_left, num_right : int

    Returns
    -------
    array (P, Q)
    """
    add = partial(jax.ops.segment_sum, indices_are_sorted=True)
    by_left = add(left[:, None] * between, left_index, num_left)  # (P, M)
    return add((by_left * right).T, right_index, num_right).T
