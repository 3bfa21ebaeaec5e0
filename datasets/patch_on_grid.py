"""Simulate bags with spatial structure: positive instances of a bag are a patch of a grid.

Features of single instances are ambiguous, and neighbours on the grid mostly have the same label.
A model that knows the grid can average the noise over neighbours. Beside the simulator stands the
true posterior of a bag's label, given its instances: no classifier can have a lower log loss.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from .arguments import POSITIVE, check, check_counts, checked_seed
from .bags import Bags

if TYPE_CHECKING:
    import scipy.sparse

__all__ = ["patch_on_grid", "patch_on_grid_log_odds"]


def patch_on_grid(
    bags_of_each_label: int = 50,
    side: int = 6,
    patch: int = 3,
    num_features: int = 4,
    shift: float = 1.0,
    *,
    seed: int,
) -> Bags:
    r"""Draw bags on grids, in which a square patch of a positive bag has a shifted mean.

    The instances of a bag are the cells of a grid, row by row, with edges of weight 1 between cells
    that share a side. With independent standard normal noise :math:`ε_{nd}`,

    .. math:: x_{nd} = ε_{nd} + \delta \, y_n

    In a positive bag :math:`y_n = 1` in one patch, at a place drawn uniformly, and 0 elsewhere. In
    a negative bag :math:`y_n = 0` throughout.

    Parameters
    ----------
    bags_of_each_label : int
        Positive bags, and negative ones.
    side : int
        A grid has ``side`` × ``side`` instances.
    patch : int
        A patch has ``patch`` × ``patch`` instances, ``patch`` at most ``side``.
    num_features : int
        D.
    shift : float
        δ, in sds of the noise. Densities of a positive and of a negative instance are √D δ sds
        apart.
    seed : int
        Seed of the draw.

    Returns
    -------
    Bags
        In random order, with instance labels and edges.

    Raises
    ------
    ValueError
        If a number is out of range, or the patch is larger than the grid.

    Examples
    --------
    >>> from milzoo.datasets import patch_on_grid
    >>> bags = patch_on_grid(5, side=4, patch=2, seed=0)
    >>> bags.edges.num_edges // 2  # pairs of neighbours
    240
    >>> bags[bags.labels == 1][0].instance_labels.reshape(4, 4)
    array([[0, 0, 0, 0],
           [0, 1, 1, 0],
           [0, 1, 1, 0],
           [0, 0, 0, 0]])
    """
    check_counts(
        bags_of_each_label=bags_of_each_label, side=side, patch=patch, num_features=num_features
    )
    check("shift", shift, POSITIVE)
    _check_patch(patch, side)
    random = np.random.default_rng(checked_seed(seed))
    labels = random.permutation(np.repeat([0, 1], bags_of_each_label))
    is_positive = np.zeros((len(labels), side, side), int)
    for bag in np.flatnonzero(labels):
        top, left = random.integers(side - patch + 1, size=2)
        is_positive[bag, top : top + patch, left : left + patch] = 1
    of_cells = is_positive.reshape(len(labels), -1)
    instances = (
        random.standard_normal((*of_cells.shape, num_features)) + shift * of_cells[..., None]
    )
    bags = Bags.from_list(list(instances), labels=labels, instance_labels=list(of_cells))
    return bags.with_edges([_grid(side)] * len(labels))


def patch_on_grid_log_odds(
    bags: Bags, patch: int = 3, shift: float = 1.0
) -> Float[np.ndarray, " B"]:
    r"""True log odds of a positive label given the instances, for bags of `patch_on_grid`.

    .. math:: \log \frac{1}{L} \sum_{l=1}^{L} \prod_{n ∈ P_l} \frac{N(x_n; \delta, I)}{N(x_n; 0, I)}

    over all L places :math:`P_l` of the patch.

    Parameters
    ----------
    bags : Bags
        Of grids, row by row. Their labels and edges are not used.
    patch, shift
        As in `patch_on_grid`.

    Returns
    -------
    array (B,)
        Positive and negative labels are equally probable before the instances are seen.

    Raises
    ------
    ValueError
        If bags are not square grids of one size, or the patch is larger.

    Examples
    --------
    >>> from sklearn.metrics import roc_auc_score
    >>> from milzoo.datasets import patch_on_grid, patch_on_grid_log_odds
    >>> bags = patch_on_grid(500, num_features=1, seed=0)
    >>> print(f"{roc_auc_score(bags.labels, patch_on_grid_log_odds(bags)):.2f}")
    0.96
    """
    sizes = np.unique(bags.bag_sizes)
    side = math.isqrt(int(sizes[0]))
    if len(sizes) > 1 or side * side != sizes[0]:
        raise ValueError(
            f"bags have {sizes.min()} to {sizes.max()} instances; expected one square number in "
            "all, as patch_on_grid draws them"
        )
    _check_patch(patch, side)
    instances = np.asarray(bags.instances)
    log_ratio = shift * instances.sum(axis=1) - 0.5 * shift**2 * bags.num_features
    cells = log_ratio.reshape(-1, side, side)
    places = np.lib.stride_tricks.sliding_window_view(cells, (patch, patch), axis=(1, 2))
    log_ratio_of_place = places.sum(axis=(-2, -1)).reshape(len(cells), -1)
    return np.logaddexp.reduce(log_ratio_of_place, axis=1) - math.log(log_ratio_of_place.shape[1])


def _grid(side: int) -> scipy.sparse.csr_array:
    """Weight 1 between cells of a square grid that share a side."""
    import scipy.sparse

    line = scipy.sparse.diags_array([np.ones(side - 1)] * 2, offsets=[-1, 1], shape=(side, side))
    cells = scipy.sparse.eye_array(side)
    return scipy.sparse.csr_array(scipy.sparse.kron(line, cells) + scipy.sparse.kron(cells, line))


def _check_patch(patch: int, side: int) -> None:
    if patch > side:
        raise ValueError(f"patch is {patch}; expected at most {side}, the side of the grid")
