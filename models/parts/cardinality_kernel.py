"""A kernel between bags: instances are similar if their features and labels are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, NamedTuple, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ...datasets.arguments import FINITE, instance_of
from ...datasets.bags import Bags
from ...datasets.checks import as_numbers
from ...datasets.padding import bucket
from ..cardinality import CardinalityBags, CardinalityModel, check_width, probabilities
from ..model import Draws
from ..numerics.fields import check_fields
from ..numerics.tracing import as_pytree
from .counting import CountTree
from .kernels import RBF

__all__ = [
    "BagKernel",
    "CardinalityKernel",
    "MeanCardinalityKernel",
    "check_numbers",
    "joint_from",
]

# Rows of the kernel between instances that are in memory at once.
_ROWS = 2048
# Entries of it in memory at once where only kernels within bags are needed.
_OWN_ENTRIES = 2**18
# Numbers of bags that a mean kernel keeps, at least: small folds have as many.
_FEWEST_BAGS = 32


@runtime_checkable
class BagKernel(Protocol):
    """A kernel between bags that is 1 between a bag and itself."""

    def __call__(self, left: Bags, right: Bags) -> Float[np.ndarray, "P Q"]:
        """The kernel between two sets of bags, whose labels are not used."""
        ...

    def check_width(self, bags: Bags) -> None:
        """Raise a ValueError for bags with another number of features than it was made for."""
        ...

    def learned_from_labels_of(self, bags: Bags) -> str:
        """What of the kernel was learned from the labels of these bags; empty if nothing."""
        ...


class _KernelOverDraws:
    """The normalised kernel, averaged over S draws of the probabilities of instance labels."""

    model: CardinalityModel
    instance_kernel: RBF

    def __call__(self, left: Bags, right: Bags) -> Float[np.ndarray, "P Q"]:
        """The kernel between two sets of bags.

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
        is_same = left is right
        own = np.sqrt(np.diagonal(joint, axis1=1, axis2=2) if is_same else self._of_itself(one))
        others = own if is_same else np.sqrt(self._of_itself(other))
        return np.mean(joint / (own[:, :, None] * others[:, None, :]), axis=0)

    def check_width(self, bags: Bags) -> None:
        """Refuse bags with another number of features than there are weights."""
        raise NotImplementedError

    def _probabilities(self, prepared: CardinalityBags) -> Float[np.ndarray, "S N"]:
        """P(y_n = 1 | X) of each draw, padding included."""
        raise NotImplementedError

    def _sides(self, left: Bags, right: Bags) -> tuple[_Side, _Side]:
        """Both sets of bags as programs take them, centred together so that padding is near."""
        for bags in (left, right):
            self.check_width(bags)
        centre = np.mean(right.instances, axis=0)
        one = self._side(left, centre)
        return one, one if left is right else self._side(right, centre)

    def _side(self, bags: Bags, centre: Float[np.ndarray, " D"]) -> _Side:
        prepared = self.model.prepare(bags)
        probability = self._probabilities(prepared)
        there = np.arange(probability.shape[1]) < bags.num_instances
        rows = _Rows(
            np.where(there[:, None], prepared.bags.instances - centre, 0.0),
            np.where(there, np.concatenate([np.ones((1, len(there))), probability - 0.5]), 0.0),
            prepared.tree.bag_index,
        )
        return _Side(rows, prepared.tree, bags.num_bags)

    def _joint(self, left: _Side, right: _Side) -> Float[np.ndarray, "S P Q"]:
        num_rows = min(_ROWS, len(left.rows.bag_index))
        num_left, num_right = min(num_rows, left.tree.num_bags), right.tree.num_bags
        num_draws = len(left.rows.weight) - 1
        total = np.zeros((num_draws, left.tree.num_bags + num_left, num_right))
        with jax.enable_x64(True):
            for rows in left.rows.blocks(num_rows):
                first = rows.bag_index[0]
                block = rows._replace(bag_index=rows.bag_index - first)
                total[:, first : first + num_left] += _joint_kernel(
                    self.instance_kernel, block, right.rows, num_left, num_right
                )
        return total[:, : left.num_bags, : right.num_bags]

    def _of_itself(self, side: _Side) -> Float[np.ndarray, "S P"]:
        """k̃(X, X) of each bag."""
        with jax.enable_x64(True):
            own = _within_bags(self.instance_kernel, side.rows, side.tree)
            return np.asarray(own)[:, : side.num_bags]


@as_pytree()
@dataclass(frozen=True, eq=False)
class CardinalityKernel(_KernelOverDraws):
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

    >>> import numpy as np
    >>> from sklearn.svm import SVC
    >>> from milzoo.datasets import Bags
    >>> from milzoo.models import RBF, CardinalityKernel, CardinalityModel
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
        check_numbers(type(self).__name__, model=self.model, instance_kernel=self.instance_kernel)
        weights = as_numbers(self.weights, "CardinalityKernel weights")
        if weights.ndim != 1 or not np.isfinite(weights).all():
            raise ValueError(
                f"CardinalityKernel weights have shape {weights.shape}"
                f"{'' if weights.ndim != 1 else ' and some that are not finite'}; expected (D,), a "
                "finite number for each feature"
            )
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    def check_width(self, bags: Bags) -> None:
        """Refuse bags with another number of features than there are weights."""
        check_width(len(self.weights), bags)

    def learned_from_labels_of(self, bags: Bags) -> str:
        """The weights, unless all are 0: where they come from is not known."""
        has_weights = np.any(self.weights) or self.intercept != 0
        return "a kernel whose weights may be learned from labels" if has_weights else ""

    def joint(self, left: Bags, right: Bags) -> Float[np.ndarray, "P Q"]:
        """The kernel k̃ (equation 15) before normalisation, which grows with the bag sizes."""
        return self._joint(*self._sides(left, right))[0]

    def instance_probability(self, bags: Bags) -> Float[np.ndarray, " N"]:
        """p_n = P(y_n = 1 | X), bag labels summed out (equation 13)."""
        self.check_width(bags)
        return self._probabilities(self.model.prepare(bags))[0, : bags.num_instances]

    def _probabilities(self, prepared: CardinalityBags) -> Float[np.ndarray, "1 N"]:
        with jax.enable_x64(True):
            found = _marginals(self.model, prepared, self.weights, self.intercept)
            return np.asarray(found)[None]


@as_pytree()
@dataclass(frozen=True, eq=False)
class MeanCardinalityKernel(_KernelOverDraws):
    r"""The mean of cardinality kernels over draws of the weights, the potential and the intercept.

    .. math:: \bar k(X, X') = \frac{1}{S} \sum_s k_{θ_s}(X, X'), \qquad θ_s \sim p(θ \mid D)

    Each k is normalised. The mean is the covariance of a process whose kernel is drawn first. It
    is 1 between a bag and itself. Make it by `of`, from a posterior.

    Parameters
    ----------
    model : CardinalityModel
        Its hyper-parameters may have priors, whose draws are given.
    draws : dict of arrays (S, ...)
        ``weights`` (S, D), and the other sites of the model.
    instance_kernel : RBF
        k_x, with numbers as parameters.
    learned_from : array (B,)
        A hash of each bag whose label the draws were learned from, some more than once; `of`
        computes them.

    Raises
    ------
    ValueError
        If a site has no draws, not the same number as the others, or some that are not finite.

    Notes
    -----
    The kernel between instances is computed once for all draws. A process that is trained on the
    labels of the same bags uses each label twice, so that no bag can be held out. Learn the kernel
    from some bags and train the process on others, as `CardinalityGPClassifier` does in turn.

    References
    ----------
    Hajimirsadeghi and Mori (2017), equations 15 and 16, at one θ; the mean is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.models import RBF, CardinalityModel, MeanCardinalityKernel
    >>> bags = Bags.from_list([np.eye(2), np.ones((1, 2)), -np.eye(2)], labels=[1, 1, 0])
    >>> draws = {"weights": np.array([[1.0, 0.5], [2.0, 1.5]])}  # posterior.draws(2, seed=0)
    >>> kernel = MeanCardinalityKernel.of(CardinalityModel(), draws, bags, RBF(1.0, 1.0))
    >>> kernel(bags, bags).round(1)
    array([[1. , 0.6, 0.3],
           [0.6, 1. , 0.1],
           [0.3, 0.1, 1. ]])
    """

    model: Annotated[CardinalityModel, instance_of(CardinalityModel, expected="a CardinalityModel")]
    draws: Mapping[str, Float[np.ndarray, "S ..."]] = field(repr=False)
    instance_kernel: Annotated[
        RBF, instance_of(RBF, expected="a kernel RBF(variance, length_scale)")
    ]
    learned_from: Int[np.ndarray | Array, " B"] = field(repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        check_numbers(type(self).__name__, instance_kernel=self.instance_kernel)
        sites = self.model.latent_sites
        sizes = {name: len(np.atleast_1d(self.draws.get(name, ()))) for name in sites}
        if 0 in sizes.values() or len(set(sizes.values())) > 1:
            raise ValueError(
                f"MeanCardinalityKernel draws have sizes {sizes}; expected the same number of "
                "draws of each, at least one, such as of posterior.draws(32, seed=0)"
            )
        if not all(np.isfinite(self.draws[name]).all() for name in sites):
            raise ValueError(
                "MeanCardinalityKernel draws have some that are not finite; expected those of a "
                "posterior that did not fail"
            )

    @classmethod
    def of(cls, model: CardinalityModel, draws: Draws, bags: Bags, instance_kernel: RBF) -> Self:
        """The mean over draws of a posterior.

        Parameters
        ----------
        model : CardinalityModel
        draws : dict of arrays (S, ...)
            Such as ``posterior.draws(32, seed=0)``.
        bags : Bags
            Those the draws were learned from: ``posterior.bags``.
        instance_kernel : RBF

        Returns
        -------
        MeanCardinalityKernel
        """
        sites = {name: np.asarray(draws[name]) for name in model.latent_sites if name in draws}
        numbers = _numbers_of_bags(bags)
        # Repeated up to a size of the grid, so that folds share programs.
        repeated = np.resize(numbers, bucket(max(len(numbers), _FEWEST_BAGS)))
        return cls(model, sites, instance_kernel, repeated)

    @property
    def num_draws(self) -> int:
        """Number S of draws."""
        return len(self.draws["weights"])

    def check_width(self, bags: Bags) -> None:
        """Refuse bags with another number of features than there are weights."""
        check_width(self.draws["weights"].shape[1], bags)

    def learned_from_labels_of(self, bags: Bags) -> str:
        """The kernel, if its draws were learned from the label of one of these bags; else empty.

        Bags are the same if their instances are, number for number: the same bags after another
        standardisation are not recognised.
        """
        seen = int(np.isin(_numbers_of_bags(bags), self.learned_from).sum())
        return f"a kernel learned from the labels of {seen} of its bags" if seen else ""

    def _probabilities(self, prepared: CardinalityBags) -> Float[np.ndarray, "S N"]:
        found = self.model.predict(dict(self.draws), prepared.bags)["instance_probability"]
        rest = prepared.bags.num_instances - found.shape[1]
        return np.pad(found, [(0, 0), (0, rest)])


def _numbers_of_bags(bags: Bags) -> Int[np.ndarray, " B"]:
    """A hash of each bag, by its instances in any order."""

    def number(instances: Float[np.ndarray, "N D"]) -> int:
        in_order = np.ascontiguousarray(instances[np.lexsort(instances.T[::-1])], float)
        digest = hashlib.blake2b(in_order.tobytes(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    return np.array([number(np.asarray(one)) for one in bags.to_list()], np.int64)


class _Rows(NamedTuple):
    """Instances as kernel programs take them; padding has weight 0.

    Attributes
    ----------
    instances : array (N, D)
    weight : array (1 + S, N)
        1, and p − ½ under each of S draws.
    bag_index : array (N,)
        The bag of each, non-decreasing.
    """

    instances: Float[np.ndarray | Array, "N D"]
    weight: Float[np.ndarray | Array, "K N"]
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


def check_numbers(name: str, **parts: CardinalityModel | RBF) -> None:
    """Refuse priors in the parts of a kernel that have one value for each parameter.

    Raises
    ------
    ValueError
        If one has a prior.
    """
    for kind, part in parts.items():
        if part.priors:
            raise ValueError(
                f"{', '.join(part.priors)} of the {kind} have priors, but a {name} has one value "
                "for each; give numbers"
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
) -> Float[Array, "S P Q"]:
    """Σ_ij k_x(x_i, x'_j) [p_i p'_j + (1 − p_i)(1 − p'_j)] over the instances of each two bags."""
    between = instance_kernel.covariance(left.instances, right.instances)

    def sums(weights: tuple[Float[Array, " N"], Float[Array, " M"]]) -> Float[Array, "P Q"]:
        of_bags = left.bag_index, right.bag_index, num_left, num_right
        return sums_between_bags(between, *weights, *of_bags)

    found = jax.lax.map(sums, (left.weight, right.weight))  # one by one: each needs N × M numbers
    return joint_from(found[0], found[1:])


@jax.jit
def _within_bags(instance_kernel: RBF, rows: _Rows, tree: CountTree) -> Float[Array, "S B"]:
    """k̃ of each bag with itself, tree by tree; 0 for absent bags."""
    instances = jnp.pad(rows.instances, [(0, 1), (0, 0)])  # a last row for leaves that pad
    weight = jnp.pad(rows.weight, [(0, 0), (0, 1)])

    def of_rows(some: Int[Array, " R"], others: Int[Array, " W"]) -> Float[Array, " K"]:
        between = instance_kernel.covariance(instances[some], instances[others])
        return jnp.sum((weight[:, some] @ between) * weight[:, others], axis=1)

    leaf = jnp.asarray(tree.leaf)
    found, end = [], leaf.shape[0]
    for depth, number in enumerate(tree.num_roots):
        start = end - (number << depth)
        leaves = leaf[start:end].reshape(number, 2**depth)
        found.append(_of_roots(of_rows, leaves, len(weight)))
        end = start
    of_bags = tree.from_roots(found)
    return joint_from(of_bags[0], of_bags[1:])


def _of_roots(of_rows: Callable, leaf: Int[Array, "G W"], num_weights: int) -> Float[Array, "K G"]:
    """Sums over the leaves of each root, in blocks that limit memory."""
    number, width = leaf.shape
    if number == 0:
        return jnp.zeros((num_weights, 0))
    at_once = min(width, max(1, _OWN_ENTRIES // width))
    parts = leaf.reshape(-1, at_once)
    per_root = width // at_once

    def of_part(part: Int[Array, ""]) -> Float[Array, " K"]:
        return of_rows(parts[part], leaf[part // per_root])

    together = max(1, _OWN_ENTRIES // (at_once * width))
    sums = jax.lax.map(of_part, jnp.arange(len(parts)), batch_size=together)
    return jnp.sum(sums.reshape(number, per_root, num_weights), axis=1).T


def joint_from[A: (Array, np.ndarray)](
    regardless: Float[A, "..."], of_labels: Float[A, "..."]
) -> Float[A, "..."]:
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
