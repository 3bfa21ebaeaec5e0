"""A kernel between bags: instances are similar if their features and labels are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ...datasets.arguments import FINITE, instance_of
from ...datasets.bags import Bags
from ...datasets.checks import as_numbers
from ..cardinality import CardinalityBags, CardinalityModel, check_width, probabilities
from ..numerics.fields import check_fields
from ..numerics.tracing import as_pytree
from .counting import CountTree
from .kernels import RBF

__all__ = [
    "CardinalityKernel",
    "check_numbers",
    "joint_from",
    "sums_between_bags",
]

# Rows of the kernel between instances that are in memory at once.
_ROWS = 2048
# Entries of it in memory at once where only kernels within bags are needed.
_OWN_ENTRIES = 2**18


@as_pytree()
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
    >>> classifier = SVC(kernel="precomputed").fit(kernel(bags, bags), bags.labels)
    >>> classifier.predict(kernel(bags.select([2]), bags)).tolist()
    [0]
    """

    model: Annotated[CardinalityModel, instance_of(CardinalityModel, expected="a CardinalityModel")]
    weights: Float[np.ndarray, " D"] = field(repr=False)
    instance_kernel: Annotated[
        RBF, instance_of(RBF, expected="a kernel RBF(variance, length_scale)")
    ]
    intercept: Annotated[float, FINITE] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_numbers(type(self).__name__, self.model, self.instance_kernel)
        weights = as_numbers(self.weights, "CardinalityKernel weights")
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
        one, other = self._sides(left, right)
        joint = self._joint(one, other)
        own = np.sqrt(np.diagonal(joint) if left is right else self._of_itself(one))
        others = own if left is right else np.sqrt(self._of_itself(other))
        return joint / np.outer(own, others)

    def joint(self, left: Bags, right: Bags) -> Float[np.ndarray, "P Q"]:
        """The kernel k̃ (equation 15) before normalisation, which grows with the bag sizes."""
        return self._joint(*self._sides(left, right))

    def _sides(self, left: Bags, right: Bags) -> tuple[_Side, _Side]:
        """Both sets of bags as programs take them, centred together so that padding is near."""
        for bags in (left, right):
            check_width(len(self.weights), bags)
        centre = np.mean(right.instances, axis=0)
        one = self._side(left, centre)
        return one, one if left is right else self._side(right, centre)

    def _side(self, bags: Bags, centre: Float[np.ndarray, " D"]) -> _Side:
        prepared = self.model.prepare(bags)
        probability = self._probabilities(prepared)
        there = np.arange(len(probability)) < bags.num_instances
        rows = _Rows(
            np.where(there[:, None], prepared.bags.instances - centre, 0.0),
            np.where(there, np.stack([np.ones(len(there)), probability - 0.5]), 0.0),
            prepared.tree.bag_index,
        )
        return _Side(rows, prepared.tree, bags.num_bags)

    def _joint(self, left: _Side, right: _Side) -> Float[np.ndarray, "P Q"]:
        num_rows = min(_ROWS, len(left.rows.bag_index))
        num_left, num_right = min(num_rows, left.tree.num_bags), right.tree.num_bags
        total = np.zeros((left.tree.num_bags + num_left, num_right))
        with jax.enable_x64(True):
            for rows in left.rows.blocks(num_rows):
                first = rows.bag_index[0]
                block = rows._replace(bag_index=rows.bag_index - first)
                total[first : first + num_left] += _joint_kernel(
                    self.instance_kernel, block, right.rows, num_left, num_right
                )
        return total[: left.num_bags, : right.num_bags]

    def _of_itself(self, side: _Side) -> Float[np.ndarray, " P"]:
        """k̃(X, X) of each bag."""
        with jax.enable_x64(True):
            own = _within_bags(self.instance_kernel, side.rows, side.tree)
            return np.asarray(own)[: side.num_bags]

    def instance_probability(self, bags: Bags) -> Float[np.ndarray, " N"]:
        """p_n = P(y_n = 1 | X), bag labels summed out (equation 13)."""
        check_width(len(self.weights), bags)
        return self._probabilities(self.model.prepare(bags))[: bags.num_instances]

    def _probabilities(self, prepared: CardinalityBags) -> Float[np.ndarray, " N"]:
        with jax.enable_x64(True):
            return np.asarray(_marginals(self.model, prepared, self.weights, self.intercept))


class _Rows(NamedTuple):
    """Instances as kernel programs take them; padding has weight 0.

    Attributes
    ----------
    instances : array (N, D)
    weight : array (2, N)
        1 and p − ½.
    bag_index : array (N,)
        The bag of each, non-decreasing.
    """

    instances: Float[np.ndarray | Array, "N D"]
    weight: Float[np.ndarray | Array, "2 N"]
    bag_index: Int[np.ndarray | Array, " N"]

    def blocks(self, num_rows: int) -> Iterator[_Rows]:
        """Blocks of ``num_rows`` rows; the last is padded with rows of weight 0."""
        rest = -len(self.bag_index) % num_rows
        instances = np.pad(self.instances, [(0, rest), (0, 0)])
        weight = np.pad(self.weight, [(0, 0), (0, rest)])
        bag_index = np.pad(self.bag_index, (0, rest), mode="edge")
        for start in range(0, len(bag_index), num_rows):
            rows = slice(start, start + num_rows)
            yield _Rows(instances[rows], weight[:, rows], bag_index[rows])


class _Side(NamedTuple):
    """Bags as kernel programs take them, with their number."""

    rows: _Rows
    tree: CountTree
    num_bags: int


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
    model: CardinalityModel,
    prepared: CardinalityBags,
    weights: Float[Array, " D"],
    intercept: Float[Array, ""] | float,
) -> Float[Array, " N"]:
    """P(y_n = 1 | X)."""
    logits = jnp.asarray(prepared.bags.instances) @ weights + intercept
    return probabilities(prepared.tree, logits, model.log_potential(prepared))[1]


@partial(jax.jit, static_argnames=("num_left", "num_right"))
def _joint_kernel(
    instance_kernel: RBF, left: _Rows, right: _Rows, num_left: int, num_right: int
) -> Float[Array, "P Q"]:
    """Σ_ij k_x(x_i, x'_j) [p_i p'_j + (1 − p_i)(1 − p'_j)] over the instances of each two bags."""
    between = instance_kernel.covariance(left.instances, right.instances)
    regardless, of_labels = (
        sums_between_bags(between, one, other, left.bag_index, right.bag_index, num_left, num_right)
        for one, other in zip(left.weight, right.weight, strict=True)
    )
    return joint_from(regardless, of_labels)


@jax.jit
def _within_bags(instance_kernel: RBF, rows: _Rows, tree: CountTree) -> Float[Array, " B"]:
    """k̃ of each bag with itself, tree by tree; 0 for absent bags."""
    instances = jnp.pad(rows.instances, [(0, 1), (0, 0)])  # a last row for leaves that pad
    weight = jnp.pad(rows.weight, [(0, 0), (0, 1)])

    def of_rows(some: Int[Array, " R"], others: Int[Array, " W"]) -> Float[Array, ""]:
        between = instance_kernel.covariance(instances[some], instances[others])
        sums = jnp.sum((weight[:, some] @ between) * weight[:, others], axis=1)
        return joint_from(sums[0], sums[1])

    leaf = jnp.asarray(tree.leaf)
    found, end = [], leaf.shape[0]
    for depth, number in enumerate(tree.num_roots):
        start = end - (number << depth)
        found.append(_of_roots(of_rows, leaf[start:end].reshape(number, 2**depth)))
        end = start
    return tree.from_roots(found)


def _of_roots(of_rows: Callable, leaf: Int[Array, "G W"]) -> Float[Array, " G"]:
    """Sums over the leaves of each root, in blocks that limit memory."""
    number, width = leaf.shape
    if number == 0:
        return jnp.zeros(0)
    at_once = min(width, max(1, _OWN_ENTRIES // width))
    parts = leaf.reshape(-1, at_once)
    per_root = width // at_once

    def of_part(part: Int[Array, ""]) -> Float[Array, ""]:
        return of_rows(parts[part], leaf[part // per_root])

    together = max(1, _OWN_ENTRIES // (at_once * width))
    sums = jax.lax.map(of_part, jnp.arange(len(parts)), batch_size=together)
    return jnp.sum(sums.reshape(number, per_root), axis=1)


def joint_from(regardless: Float[Array, "*K"], of_labels: Float[Array, "*K"]) -> Float[Array, "*K"]:
    """k̃ from Σ k_x and Σ k_x (p − ½)(p' − ½), since p p' + (1 − p)(1 − p') = ½ + 2 (p − ½)(p' − ½).

    Where the labels of two bags are certainly opposite the terms cancel up to rounding of Σ k_x.
    As k̃ of a bag with itself is at least ½ Σ k_x, this is rounding after normalisation too.
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
