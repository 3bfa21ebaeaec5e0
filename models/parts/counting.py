r"""Sums over all labellings of the instances of a bag, weighted by the number of positive labels.

With weights e^φ_n of positive labels and a potential C of the count,

.. math:: Z = \sum_y C(\sum_n y_n) \prod_n e^{φ_n y_n} = \sum_c C(c) \, e_c,

where e_c, the elementary symmetric polynomials of the e^φ, are the coefficients of
Π(1 + e^{φ_n} x). A binary tree multiplies these factors in pairs, pairs of pairs and so on, for all
bags at once.

`log_symmetric` returns every log e_c. It adds terms in logs, which is accurate for all counts.

`log_partition` returns log Z alone. For large bags it multiplies coefficients without logs, which
is faster. It first tilts φ to φ + t, so that the counts with most weight in Z become the likeliest
ones. Terms that then underflow are negligible if log C is concave. So are the rounding errors of
Fourier transforms, 1e-16 of the largest coefficient.

`log_partition` keeps bags of at most 64 instances in logs, which is faster for them. With
``CountTree.in_logs`` it keeps all bags in logs. Sums in logs never subtract terms, so their
gradients, which are P(y_n = 1), are accurate however small.

`draw_labels` descends the tree of `log_symmetric`. It draws a count for each root, and splits the
count of a node between its halves.

JAX compiles a program for each set of tree shapes. `CountTree.for_bags` with ``present`` rounds the
shapes up, so that bags of similar sizes need no new program. Then some roots have no bag, and some
bags are in larger trees than they need.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ...datasets.padding import bucket
from .witnesses import sum_over_bags

__all__ = [
    "SMALL_BAG",
    "CountTree",
    "draw_labels",
    "log_partition",
    "log_symmetric",
]

# Up to this size, 64 instances, sums in logs are faster than a search for a tilt.
_LOG_DEPTHS = 7
SMALL_BAG = 2 ** (_LOG_DEPTHS - 1)
# Beyond this number of coefficients a Fourier transform is faster than the direct product.
_SHORT = 9
# Steps of bisection to a tilt. It need not be exact, because log Z itself does not depend on it.
_BISECTIONS = 30
# Relative to the largest, coefficients e below this count as 0. Rounding can make them negative,
# and 1/e² would overflow, so that second derivatives would not be a number.
_NEGLIGIBLE = 1e-150
# Numbers of terms: work is little up to the first (some 0.1 ms), and large beyond the second.
_LITTLE, _MUCH = 2**14, 2**20
# Rounding up the roots of a depth adds at most about this fraction of the work. Little work may
# grow by a larger fraction, because compiling another program takes longer.
_SLACK_OF_LITTLE, _SLACK, _SLACK_OF_LARGE = 1 / 4, 1 / 8, 1 / 32
# Trees of little work may have roots for this many bags, so that sets of fewer bags reuse them.
_BAGS_OF_LITTLE = 16


class Part(NamedTuple):
    """Leaves, and number of roots at each depth, of a subset of the bags."""

    leaf: Int[np.ndarray | Array, " L"]
    num_roots: tuple[int, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CountTree:
    """Binary trees of the instances of bags, deepest bags first, padded to powers of two.

    Attributes
    ----------
    leaf : array (L,)
        The instance at each leaf; N at padding leaves.
    bag : array (R,)
        The bag of each root; B at roots without one.
    num_roots : tuple of int
        Number of roots at each depth; a root of that depth has 2^depth leaves.
    in_logs : bool
        Whether `log_partition` keeps all bags in logs, whatever their size.
    bag_index : array (N,)
        The bag of each instance.
    size : array (B,)
        Number of instances of each bag.
    count, count_bag : array (N + B,)
        Every count 0 … N_b of every bag, and its bag. Log potentials have an entry for each.
    """

    leaf: Int[np.ndarray | Array, " L"]
    bag: Int[np.ndarray | Array, " R"]
    bag_index: Int[np.ndarray | Array, " N"]
    size: Int[np.ndarray | Array, " B"]
    count: Int[np.ndarray | Array, " M"]
    count_bag: Int[np.ndarray | Array, " M"]
    num_roots: tuple[int, ...] = jax.tree.static()
    in_logs: bool = jax.tree.static(default=False)

    @classmethod
    def for_bags(
        cls,
        bag_index: Int[np.ndarray, " N"],
        num_bags: int,
        present: Bool[np.ndarray, " B"] | None = None,
        *,
        fewest_leaves: int = 32,
    ) -> Self:
        """Build the binary trees that count the positive labels of bags.

        Parameters
        ----------
        bag_index : array (N,)
            The bag of each instance, non-decreasing. Without ``present`` no bag may be empty.
        num_bags : int
        present : array (B,) or None
            Which bags are present. The others come last and may have any size. They have no root,
            so their log Z is 0, with gradient 0. If given, the numbers of roots are rounded up.
        fewest_leaves : int
            A power of two. Rounded trees of little work have a root of at least this many leaves.

        Returns
        -------
        CountTree
        """
        size = np.bincount(bag_index, minlength=num_bags)
        chosen = np.arange(num_bags) if present is None else np.flatnonzero(present)
        depth = np.ceil(np.log2(size[chosen])).astype(int)
        num_roots = np.bincount(depth)
        if present is not None:
            num_roots = _rounded_up(num_roots, fewest_leaves.bit_length() - 1)
        slot_depth = np.repeat(np.arange(len(num_roots)), num_roots)[::-1]
        bag = np.full(len(slot_depth), num_bags)
        by_depth = np.argsort(-depth, kind="stable")
        is_small = depth[by_depth] < _LOG_DEPTHS
        first_small = np.count_nonzero(slot_depth >= _LOG_DEPTHS)
        for first, some in ((0, by_depth[~is_small]), (first_small, by_depth[is_small])):
            bag[first : first + len(some)] = chosen[some]
        return cls(
            leaf=_leaves(bag, slot_depth, size),
            bag=bag,
            bag_index=np.asarray(bag_index),
            size=size,
            count=np.concatenate([np.arange(n + 1) for n in size]),
            count_bag=np.repeat(np.arange(num_bags), size + 1),
            num_roots=tuple(num_roots.tolist()),
        )

    @property
    def num_bags(self) -> int:
        """Number of bags, B."""
        return self.size.shape[0]

    @property
    def first_count(self) -> Int[Array, " B"]:
        """Index in ``count`` of the first count of each bag."""
        return jnp.cumsum(self.size + 1) - self.size - 1

    def count_positions(self) -> list[Int[Array, "G W"]]:
        """Index in ``count`` of each count of each root, by depth from 0; N + B at padding."""
        found, end = [], self.bag.shape[0]
        size, first_count = jnp.asarray(self.size), self.first_count
        for depth, number in enumerate(self.num_roots):
            bags, end = self.bag[end - number : end], end - number
            count = jnp.arange(2**depth + 1)
            # With size −1 a root without a bag has only padding.
            there = count <= size.at[bags].get(mode="fill", fill_value=-1)[:, None]
            position = first_count.at[bags].get(mode="fill", fill_value=0)[:, None] + count
            found.append(jnp.where(there, position, self.count.shape[0]))
        return found

    def parted(self, depth: int) -> tuple[Part, Part]:
        """Split the trees into those less deep than ``depth`` and the others."""
        small, others = self.num_roots[:depth], self.num_roots[depth:]
        num_leaves = sum(number << k for k, number in enumerate(small))
        first = self.leaf.shape[0] - num_leaves
        deepest = max((k for k, number in enumerate(small) if number), default=-1)
        return (
            Part(self.leaf[first:], small[: deepest + 1]),
            Part(self.leaf[:first], (0,) * len(small) + others),
        )

    def by_root(self, values: Float[Array, "*S M"]) -> list[Float[Array, "..."]]:
        """Arrange log weights of all counts by root: an array for each depth, from 0."""
        padded = _with_zero_weight(values)
        return [padded[..., position] for position in self.count_positions()]

    def from_roots(self, values: list[Float[Array, "..."]]) -> Float[Array, "*S B"]:
        """Arrange values of roots, listed by depth from 0, by bag; 0 for bags without a root."""
        of_roots = jnp.concatenate(values[::-1], axis=-1)
        of_bags = jnp.zeros((*of_roots.shape[:-1], self.num_bags), of_roots.dtype)
        return of_bags.at[..., self.bag].set(of_roots, mode="drop")


def _leaves(
    bag: Int[np.ndarray, " R"], depth: Int[np.ndarray, " R"], size: Int[np.ndarray, " B"]
) -> Int[np.ndarray, " L"]:
    """Find the instance at each leaf of roots of these bags and depths; N at padding leaves."""
    of_bags, starts = np.append(size, 0), np.append(np.cumsum(size) - size, 0)
    width = 2**depth
    within = np.arange(width.sum()) - np.repeat(np.cumsum(width) - width, width)
    there = within < np.repeat(of_bags[bag], width)
    return np.where(there, np.repeat(starts[bag], width) + within, size.sum())


def _rounded_up(num_roots: Int[np.ndarray, " K"], least_depth: int) -> Int[np.ndarray, " J"]:
    """Round up numbers of roots by depth, so that bags of similar sizes have the same tree shapes.

    The number of roots of a depth *or more* is rounded up to a multiple of a power of two. This
    power is larger where a root takes less work. Spare roots of one depth serve bags of the next
    smaller depth. Small bags are rounded apart from large ones, because only in large trees must
    log C be concave. Trees of little work always have a root of the least depth, needed or not.
    """
    work = sum(int(number) * _work(depth) for depth, number in enumerate(num_roots))
    num_bags = int(num_roots.sum()) + 1
    if work <= _LITTLE:
        num_bags = max(num_bags, _BAGS_OF_LITTLE)
        num_roots = np.pad(num_roots, (0, max(0, least_depth + 1 - len(num_roots))))
    step = _steps(work, len(num_roots))
    # Shallow roots are rounded up by many, and more roots than bags would be of no use.
    most = bucket(num_bags)
    found = []
    for part in (slice(_LOG_DEPTHS, None), slice(0, _LOG_DEPTHS)):
        needed = np.cumsum(num_roots[part][::-1])
        if work <= _LITTLE and part.start == 0:
            needed[-1 - least_depth :] = np.maximum(needed[-1 - least_depth :], 1)
        rounded = -(-needed // step[part][::-1]) * step[part][::-1]
        rounded = np.maximum.accumulate(np.maximum(np.minimum(rounded, most), needed))
        found.append(np.diff(rounded, prepend=0)[::-1])
    return np.concatenate(found[::-1])


def _steps(work: int, num_depths: int) -> Int[np.ndarray, " K"]:
    """Find the power of two to whose multiples the number of roots of each depth is rounded."""
    slack = _SLACK if work <= _MUCH else _SLACK_OF_LARGE
    if work <= _LITTLE:
        work, slack = _LITTLE, _SLACK_OF_LITTLE
    spare = slack * 2 ** round(math.log2(work))
    per_root = np.array([_work(depth) for depth in range(num_depths)])
    least = 2.0 if work <= _LITTLE else 1.0
    return 2 ** np.floor(np.log2(np.maximum(spare / per_root, least))).astype(int)


def _work(depth: int) -> int:
    """Approximate number of terms that a root of this depth takes."""
    if depth < _LOG_DEPTHS:
        return 4**depth
    # Products by Fourier transform take nearly linear work.
    return 64 * 2**depth


# ------------------------------------------------------------------ all counts, in logs


@jax.jit
def log_symmetric(tree: CountTree, logits: Float[Array, " N"]) -> Float[Array, " M"]:
    """Log elementary symmetric polynomials of each bag: log e_c = log Σ_{y: Σy = c} Π e^{φ_n y_n}.

    Parameters
    ----------
    tree : CountTree
    logits : array (N,)
        φ; −∞ where a label is known to be 0.

    Returns
    -------
    array (N + B,)
        log e_c in the order of ``tree.count``. Minus Σ log(1 + e^φ) of the bag, it is the log
        probability of c positive labels if labels are independent (Poisson-binomial).

    Notes
    -----
    A bag takes of the order of N_b² exponentials.
    """
    roots = _roots(tree.num_roots, _log_levels(tree, logits))
    found = jnp.full(tree.count.shape[0] + 1, -jnp.inf, roots[0].dtype)
    for values, position in zip(roots, tree.count_positions(), strict=True):
        found = found.at[position].set(values)
    return found[:-1]


@jax.jit
def draw_labels(
    tree: CountTree, key: Array, logits: Float[Array, " N"], log_potential: Float[Array, " M"]
) -> Int[Array, " N"]:
    """Draw the labels of the instances of each bag from p(y) ∝ C(Σy) Π e^{φ_n y_n}.

    Labels of different bags are independent.

    Parameters
    ----------
    tree : CountTree
    key : JAX key
    logits : array (N,)
        φ.
    log_potential : array (N + B,)
        log C of every count of every bag; −∞ where C = 0. Each bag needs a count with C > 0.

    Returns
    -------
    array (N,)
        Labels, 0 or 1.
    """
    levels, weights = _log_levels(tree, logits), tree.by_root(log_potential)
    keys = jax.random.split(key, (len(levels), 2))
    count = jnp.zeros(0, int)  # of the nodes of depth + 1
    for depth in reversed(range(len(levels))):
        root_key, split_key = keys[depth]
        inner = levels[depth].shape[-2] - tree.num_roots[depth]
        log_weight = weights[depth] + levels[depth][inner:]
        of_roots = jax.random.categorical(root_key, log_weight, axis=-1)
        of_children = _split(split_key, levels[depth][:inner], count)
        count = jnp.concatenate([of_children, of_roots])
    labels = jnp.zeros(logits.shape[0] + 1, int).at[tree.leaf].set(count)
    return labels[:-1]


def _split(
    key: Array, children: Float[Array, "twice n"], count: Int[Array, " K"]
) -> Int[Array, " twice"]:
    """Draw the counts of two siblings given their sum, for each pair."""
    one, other = children[0::2], children[1::2]
    rest = count[:, None] - jnp.arange(one.shape[-1])
    of_rest = jnp.take_along_axis(other, jnp.clip(rest, 0, one.shape[-1] - 1), axis=1)
    log_weight = jnp.where((rest >= 0) & (rest < one.shape[-1]), one + of_rest, -jnp.inf)
    first = jax.random.categorical(key, log_weight, axis=-1)
    return jnp.stack([first, count - first], axis=1).reshape(-1)


def _log_levels(part: CountTree | Part, logits: Float[Array, " N"]) -> list[Float[Array, "K n"]]:
    leaf = _with_zero_weight(logits)[part.leaf]
    return _levels(part.num_roots, jnp.stack([jnp.zeros_like(leaf), leaf], axis=-1), _log_product)


def _with_zero_weight(log_weight: Float[Array, "..."]) -> Float[Array, "..."]:
    """Append a log weight of −∞, to which the indices of padding point."""
    zero_weight = jnp.full((*log_weight.shape[:-1], 1), -jnp.inf, log_weight.dtype)
    return jnp.concatenate([log_weight, zero_weight], axis=-1)


def _levels(num_roots: tuple[int, ...], leaves, product) -> list:
    """Multiply leaves up the trees; nodes of each depth, roots last, on the last axis but one."""
    found, nodes = [], leaves
    for number in num_roots:
        found.append(nodes)
        inner = jax.tree.leaves(nodes)[0].shape[-2] - number
        if inner:
            nodes = product(_nodes(nodes, slice(0, inner, 2)), _nodes(nodes, slice(1, inner, 2)))
    return found


def _roots(num_roots: tuple[int, ...], levels: list) -> list:
    return [
        _nodes(level, slice(jax.tree.leaves(level)[0].shape[-2] - number, None))
        for level, number in zip(levels, num_roots, strict=True)
    ]


def _nodes(state, which: slice):
    return jax.tree.map(lambda values: values[..., which, :], state)


def _log_product(one: Float[Array, "*S n"], other: Float[Array, "*S n"]) -> Float[Array, "*S m"]:
    """Multiply polynomials given by the logs of their coefficients."""
    terms = one[..., :, None] + other[..., None, :]
    return _log_sum(_skewed(terms, -jnp.inf), axis=-2)


def _log_sum(terms: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Logsumexp whose gradients are finite where all terms are −∞."""
    largest = jnp.max(terms, axis=axis, keepdims=True)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0.0))
    total = jnp.sum(jnp.exp(terms - largest), axis=axis)
    is_some = total > 0
    return jnp.where(
        is_some, jnp.log(jnp.where(is_some, total, 1.0)) + jnp.squeeze(largest, axis), -jnp.inf
    )


def _skewed(table: Float[Array, "*S n m"], fill: float) -> Float[Array, "*S n l"]:
    """Move row i by i columns to the right, so that antidiagonals become columns."""
    num_rows, num_columns = table.shape[-2:]
    wide = jnp.pad(
        table, [(0, 0)] * (table.ndim - 1) + [(0, num_rows)], constant_values=fill
    ).reshape(*table.shape[:-2], -1)
    return wide[..., :-num_rows].reshape(*table.shape[:-2], num_rows, num_rows + num_columns - 1)


# ------------------------------------------------------------------ one sum, tilted


@jax.jit
def log_partition(
    tree: CountTree, logits: Float[Array, " N"], log_potential: Float[Array, "S M"]
) -> Float[Array, "S B"]:
    """Log normalising constant of each bag, log Z = log Σ_c C(c) e_c, for S potentials at once.

    Parameters
    ----------
    tree : CountTree
    logits : array (N,)
        φ, finite.
    log_potential : array (S, N + B)
        log C of every count of every bag, in the order of ``tree.count``; −∞ where C = 0.

    Returns
    -------
    array (S, B)
        log Z; −∞, with gradient 0, where C = 0 for all counts of a bag. Its gradient with respect
        to ``logits`` is P(y_n = 1 | C).

    Notes
    -----
    In bags of more than 64 instances log C must be concave, as are the potentials of Hajimirsadeghi
    and Mori (2017). Counts far from the mode of C(c) e_c then have negligible weight. Where log C
    is not concave, set ``tree.in_logs``. Without it, Fourier transforms multiply the polynomials of
    these bags: n instances take of the order of n log² n operations.
    """
    has_weight = _has_weight(tree, log_potential)
    log_potential = jnp.where(has_weight[:, tree.count_bag], log_potential, 0.0)
    log_depths = len(tree.num_roots) if tree.in_logs else _LOG_DEPTHS
    small, large = tree.parted(log_depths)
    terms = tree.by_root(log_potential)[:log_depths]
    for depth, log_e in enumerate(_roots(small.num_roots, _log_levels(small, logits))):
        terms[depth] += log_e
    if len(large.leaf):
        terms += _tilted_terms(tree, large, logits, log_potential)
    log_z = tree.from_roots([_log_sum(of_roots, axis=-1) for of_roots in terms])
    return jnp.where(has_weight, log_z, -jnp.inf)


def _tilted_terms(
    tree: CountTree, part: Part, logits: Float[Array, " N"], log_potential: Float[Array, "S M"]
) -> list[Float[Array, "S K n"]]:
    """Compute log C(c) + log e_c of the large bags, by depth; negligible terms may be −∞."""
    fixed = jax.lax.stop_gradient
    tilt = fixed(_tilts(tree, fixed(logits), fixed(log_potential)))  # (S, B)
    leaf = _with_zero_weight(logits + tilt[:, tree.bag_index])[:, part.leaf]
    # The larger of the pair (1, e^φ) is scaled to 1, so that it does not overflow.
    log_scale = jnp.maximum(0.0, fixed(leaf))
    pair = jnp.stack([jnp.exp(-log_scale), jnp.exp(leaf - log_scale)], axis=-1)
    levels = _levels(part.num_roots, (pair, log_scale[..., None]), _scaled_product)
    weights = tree.by_root(log_potential - tree.count * tilt[:, tree.count_bag])
    found = []
    for (coefficients, log_scale), log_c in list(
        zip(_roots(part.num_roots, levels), weights, strict=True)
    )[_LOG_DEPTHS:]:
        is_some = coefficients > _NEGLIGIBLE
        logs = jnp.where(is_some, jnp.log(jnp.where(is_some, coefficients, 1.0)), -jnp.inf)
        found.append(log_c + logs + log_scale)
    return found


def _has_weight(tree: CountTree, log_potential: Float[Array, "S M"]) -> Bool[Array, "S B"]:
    """Find the bags that have a count with C > 0."""
    is_some = (log_potential > -jnp.inf).astype(int)
    return sum_over_bags(is_some.T, tree.count_bag, tree.num_bags).T > 0


def _scaled_product(one, other):
    """Multiply polynomials given by coefficients of at most 1 and the logs of their scales."""
    (first, of_first), (second, of_second) = one, other
    coefficients = _product(first, second)
    largest = jax.lax.stop_gradient(jnp.max(coefficients, axis=-1, keepdims=True))
    return coefficients / largest, of_first + of_second + jnp.log(largest)


def _product(one: Float[Array, "*S n"], other: Float[Array, "*S n"]) -> Float[Array, "*S m"]:
    """Multiply two polynomials with the same number of coefficients."""
    length = one.shape[-1]
    if length <= _SHORT:
        return jnp.sum(_skewed(one[..., :, None] * other[..., None, :], 0.0), axis=-2)
    # The product has 2 length − 1 coefficients, and this size is larger. In trees the length is
    # 2^k + 1, so that the only factors of this size are 2 and 3, which makes transforms fast.
    size = 9 * (length - 1) // 4
    transforms = jnp.fft.rfft(one, size) * jnp.fft.rfft(other, size)
    return jnp.fft.irfft(transforms, size)[..., : 2 * length - 1]


def _tilts(
    tree: CountTree, logits: Float[Array, " N"], log_potential: Float[Array, "S M"]
) -> Float[Array, "S B"]:
    """Find the tilt t of each bag for which the expected count is the mode of C(c) e_c.

    Near the expected count c = Σ σ(φ_n + t), log e_c falls by t per step. So C(c) e_c has its mode
    at c if log C rises there by t per step. If log C is concave, this rise falls as t grows, and
    bisection finds the t that equals it. Then e^{−tc} C(c) has its mode at c too, and does not
    amplify the errors of coefficients elsewhere.
    """
    index, num = tree.bag_index, tree.num_bags
    largest = jax.ops.segment_max(logits, index, num, indices_are_sorted=True)
    smallest = jax.ops.segment_min(logits, index, num, indices_are_sorted=True)
    # An absent bag may be empty, and then its largest and smallest logits are infinite.
    low = jnp.where(jnp.isfinite(largest), -largest - 40.0, 0.0)
    high = jnp.where(jnp.isfinite(smallest), -smallest + 40.0, 0.0)
    shape = (log_potential.shape[0], num)
    ends = _support(tree, log_potential)

    def halve(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        expected = _sum_rows_over_bags(tree, jax.nn.sigmoid(logits + middle[:, index]))
        above = _rise(tree, log_potential, ends, expected) < middle
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    bracket = (jnp.broadcast_to(low, shape), jnp.broadcast_to(high, shape))
    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, bracket)
    return 0.5 * (low + high)


def _support(
    tree: CountTree, log_potential: Float[Array, "S M"]
) -> tuple[Int[Array, "S B"], Int[Array, "S B"]]:
    """Find the least and the largest count of each bag with C > 0."""

    def of_one(log_c: Float[Array, " M"]) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
        in_order = {"num_segments": tree.num_bags, "indices_are_sorted": True}
        is_some = log_c > -jnp.inf
        least = jnp.where(is_some, tree.count, log_c.shape[0])
        largest = jnp.where(is_some, tree.count, -1)
        return (
            jax.ops.segment_min(least, tree.count_bag, **in_order),
            jax.ops.segment_max(largest, tree.count_bag, **in_order),
        )

    return jax.vmap(of_one)(log_potential)


def _rise(
    tree: CountTree,
    log_potential: Float[Array, "S M"],
    support: tuple[Int[Array, "S B"], Int[Array, "S B"]],
    count: Float[Array, "S B"],
) -> Float[Array, "S B"]:
    """Increase of log C from one count to the next; +∞ below the support of C, −∞ above it."""
    least, largest = support
    below = jnp.clip(jnp.floor(count).astype(int), 0, tree.size - 1)
    here = tree.first_count + below
    pair = [jnp.take_along_axis(log_potential, at, axis=1) for at in (here, here + 1)]
    rise = jnp.where(below >= largest, -jnp.inf, pair[1] - pair[0])
    return jnp.where(below < least, jnp.inf, rise)


def _sum_rows_over_bags(tree: CountTree, values: Float[Array, "P N"]) -> Float[Array, "P B"]:
    """Sum each row over the instances of each bag."""
    return sum_over_bags(values.T, tree.bag_index, tree.num_bags).T
