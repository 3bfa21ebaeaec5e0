"""A classifier two-sample test: whether draws of two posteriors can be told apart.

Errors of means, sds and quantiles look at one site at a time; a classifier that is trained on some
draws and judged on others looks at all of them at once. The best one there is compares the log
ratio of both densities with a threshold. Where the approximation has a density and the posterior is
known but for a constant, nothing but the threshold is learned, and accuracy is ½ + ½ TV(q, p). Of
two samplers it is linear in coordinates that are whitened by the reference's draws, their products,
and their norm, which knows heavy tails.

References
----------
Lopez-Paz and Oquab (2017), Revisiting classifier two-sample tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import xarray as xr
from arviz_stats.base.array import array_stats
from jaxtyping import Bool, Float, Int
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from sklearn.linear_model import Ridge
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from ...inference.posterior import flat_draws
from ...models.model import Draws
from ..measures.accuracy import site_names

__all__ = [
    "Direction",
    "TwoSampleTest",
    "by_chain",
    "evenly",
    "independent_number",
    "two_sample_test",
]

# Draws of each side: at most, and the fewest that are judged.
_MOST, _FEWEST = 2000, 200
# Contiguous blocks of draws, each held out once. Neighbours of a chain are alike: mixed folds would
# let the classifier recognise draws by their neighbours.
_FOLDS = 5
# Coordinates whose products are looked at; of more, so many random directions.
_MOST_COORDINATES = 50
# Of the ridge, by draws of a fold's training part.
_PENALTY = 0.3
_PERMUTATIONS = 499
# Part of a site's sd that the others do not determine, at least.
_LEAST_FREE = 1e-6

# Labels ±1 (the true ones and permutations) and each row's block → what is predicted of the rows of
# a block when those of the others are learned from.
type Classifier = Callable[[Float[np.ndarray, "S R"], Int[np.ndarray, " S"]], np.ndarray]


class Direction(NamedTuple):
    """The direction in which a posterior differs most from its reference.

    Attributes
    ----------
    site : str
        The scalar site that is most correlated with it under the reference.
    correlation : float
        The size of that correlation.
    distance : float
        Between the means along it, in reference sds.
    sd_ratio : float
        sd along it, over the reference's.
    """

    site: str
    correlation: float
    distance: float
    sd_ratio: float


class TwoSampleTest(NamedTuple):
    """How well a classifier tells draws of a posterior from its reference's.

    Attributes
    ----------
    accuracy : float
        On draws that were held out; ½ if nothing can be told.
    accuracy_error : float
        Its standard deviation if nothing can be told.
    p_value : float
        Of so high an accuracy by chance, over permutations of the labels.
    num_draws : int
        Of each side.
    is_best : bool
        Whether it is the best classifier, by the log ratio of densities.
    direction : Direction
        Found on one half of the draws, measured on the other.
    """

    accuracy: float
    accuracy_error: float
    p_value: float
    num_draws: int
    is_best: bool
    direction: Direction

    @property
    def total_variation(self) -> float:
        """2 · accuracy − 1, of the best classifier the largest error of any event's probability."""
        return max(0.0, 2 * self.accuracy - 1)


def two_sample_test(
    draws: xr.Dataset,
    reference: xr.Dataset,
    *,
    random: np.random.Generator,
    log_ratio: Callable[[Draws], Float[np.ndarray, " K"]] | None = None,
) -> TwoSampleTest | None:
    """Test whether a classifier can tell two sets of draws apart.

    Parameters
    ----------
    draws, reference : Dataset
        The same continuous sites, with dimensions chain and draw. Several chains are thinned to
        their effective size; one is taken as independent draws.
    random : Generator
        Of permutations and of directions.
    log_ratio : callable or None
        Draws of both sides, by name → log density of the reference there, less that of the other
        side, up to a constant. None where these are not known.

    Returns
    -------
    TwoSampleTest or None
        None if a side has fewer than 200 effective draws, or fewer than four for each scalar site;
        if a site follows from others under the reference, or is frozen there alone.
    """
    sides = [by_chain(one) for one in (draws, reference)]
    varies = np.max([_flat(side).std(axis=0) for side in sides], axis=0) > 0
    mean, root = _moments(sides[1][..., varies])
    if root is None:
        return None
    whitened = [_whitened(side[..., varies], mean, root) for side in sides]
    number = min(_MOST, *(independent_number(side) for side in whitened))
    if number < max(_FEWEST, 4 * len(mean)):
        return None
    chosen = [evenly(side, number) for side in whitened]
    kept = [side[:, index] for side, index in zip(whitened, chosen, strict=True)]
    rows = [_flat(side) for side in kept]
    if log_ratio is None:
        features = _features(np.concatenate(rows), random)
        right = _right(kept, partial(_by_ridge, features), random)
    else:
        looked_at = zip((draws, reference), chosen, strict=True)
        ours, theirs = (flat_draws(side.isel(draw=index)) for side, index in looked_at)
        both = {name: np.concatenate([ours[name], theirs[name]]) for name in ours}
        right = _right(kept, partial(_by_threshold, log_ratio(both)), random)
    accuracy, by_chance = float(right[0]), right[1:]
    return TwoSampleTest(
        accuracy=accuracy,
        accuracy_error=float(by_chance.std(ddof=1)),
        p_value=float((1 + np.sum(by_chance >= accuracy)) / (1 + _PERMUTATIONS)),
        num_draws=number,
        is_best=log_ratio is not None,
        direction=_direction(rows, root, np.array(site_names(reference))[varies]),
    )


# ------------------------------------------------------------------ draws


def by_chain(draws: xr.Dataset) -> Float[np.ndarray, "C T Q"]:
    """All scalar sites, in the order of `site_names`."""
    names = sorted(draws, key=str)
    sites = [draws[name].transpose("chain", "draw", ...).to_numpy() for name in names]
    return np.concatenate([site.reshape(*site.shape[:2], -1) for site in sites], axis=-1)


def _flat(chains: Float[np.ndarray, "C T Q"]) -> Float[np.ndarray, "S Q"]:
    """Chains one after another."""
    return chains.reshape(-1, chains.shape[-1])


def _moments(
    values: Float[np.ndarray, "C T Q"],
) -> tuple[Float[np.ndarray, " Q"], Float[np.ndarray, "Q Q"] | None]:
    """Mean, and the lower factor of the covariance; None if a site follows from the others."""
    flat = _flat(values)
    mean, sd = flat.mean(axis=0), flat.std(axis=0, ddof=1)
    if not sd.all():
        return mean, None
    try:
        root = cholesky(np.atleast_2d(np.cov((flat / sd).T)), lower=True)
    except (LinAlgError, ValueError):
        return mean, None
    return mean, None if np.diagonal(root).min() < _LEAST_FREE else sd[:, None] * root


def _whitened(
    values: Float[np.ndarray, "C T Q"],
    mean: Float[np.ndarray, " Q"],
    root: Float[np.ndarray, "Q Q"],
) -> Float[np.ndarray, "C T Q"]:
    return solve_triangular(root, _flat(values - mean).T, lower=True).T.reshape(values.shape)


def independent_number(chains: Float[np.ndarray, "C T Q"]) -> int:
    """The smallest effective size of coordinates, squares and norm; of one chain, its length."""
    num_chains, length, _ = chains.shape
    if num_chains == 1:
        return length
    norm = np.linalg.norm(chains, axis=-1, keepdims=True)
    watched = np.concatenate([chains, chains**2, norm], axis=-1)
    sizes = array_stats.ess(watched, chain_axis=0, draw_axis=1, method="mean")
    return int(min(num_chains * length, np.nanmin(sizes)))  # NaN of what does not vary


def evenly(chains: Float[np.ndarray, "C T Q"], number: int) -> Int[np.ndarray, " K"]:
    """Numbers of draws evenly apart, the same of each chain; ``number`` of all chains together."""
    num_chains, length, _ = chains.shape
    of_chain = min(length, max(1, number // num_chains))
    return np.linspace(0, length - 1, of_chain).astype(int)


# ------------------------------------------------------------------ classifiers


def _right(
    kept: list[Float[np.ndarray, "_ _ Q"]], classify: Classifier, random: np.random.Generator
) -> Float[np.ndarray, " R"]:
    """Accuracy on held-out draws: with the true labels, and with permutations of them."""
    shapes = [side.shape[:2] for side in kept]
    true = np.repeat([-1.0, 1.0], [num * length for num, length in shapes])
    labels = np.stack([true, *(random.permutation(true) for _ in range(_PERMUTATIONS))], axis=1)
    blocks = [np.tile(np.arange(length) * _FOLDS // length, num) for num, length in shapes]
    return (classify(labels, np.concatenate(blocks)) == (labels > 0)).mean(axis=0)


def _by_threshold(
    ratio: Float[np.ndarray, " S"], labels: Float[np.ndarray, "S R"], block: Int[np.ndarray, " S"]
) -> Bool[np.ndarray, "S R"]:
    """Whether the ratio is above the threshold that is best for the other blocks."""
    found = np.empty(labels.shape, bool)
    for held_out in range(_FOLDS):
        is_held_out = block == held_out
        order = np.argsort(ratio[~is_held_out])
        known, ranked = ratio[~is_held_out][order], labels[~is_held_out][order]
        # Above a threshold behind k draws: right of the −1 below it, and of the 1 above it.
        gain = np.concatenate([np.zeros((1, labels.shape[1])), -np.cumsum(ranked, axis=0)])
        best = np.argmax(gain, axis=0)
        limits = np.concatenate([[-np.inf], (known[1:] + known[:-1]) / 2, [np.inf]])
        found[is_held_out] = ratio[is_held_out, None] > limits[best]
    return found


def _by_ridge(
    features: Float[np.ndarray, "S F"],
    labels: Float[np.ndarray, "S R"],
    block: Int[np.ndarray, " S"],
) -> Bool[np.ndarray, "S R"]:
    """The sign of a ridge regression on the labels; all are right-hand sides of one equation."""
    ridge = Ridge(alpha=_PENALTY * len(features) * (1 - 1 / _FOLDS), solver="cholesky")
    return cross_val_predict(ridge, features, labels, cv=PredefinedSplit(block)) > 0


def _features(
    rows: Float[np.ndarray, "S Q"], random: np.random.Generator
) -> Float[np.ndarray, "S F"]:
    """Coordinates, their products and the norm, standardised."""
    looked_at, size = rows, rows.shape[1]
    if size > _MOST_COORDINATES:
        basis = np.linalg.qr(random.normal(size=(size, _MOST_COORDINATES)))[0]
        looked_at = rows @ basis
    first, second = np.triu_indices(looked_at.shape[1])
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    made = np.concatenate([rows, looked_at[:, first] * looked_at[:, second], norm], axis=1)
    return (made - made.mean(axis=0)) / made.std(axis=0)


# ------------------------------------------------------------------ where they differ


def _direction(
    sides: list[Float[np.ndarray, "_ Q"]], root: Float[np.ndarray, "Q Q"], names: np.ndarray
) -> Direction:
    """Along which Gaussians of both sides differ most, by one half of the draws; of the other."""
    (found, theirs), (ours, reference) = ([side[start::2] for side in sides] for start in (0, 1))
    shift = found.mean(axis=0) - theirs.mean(axis=0)
    covariance = np.atleast_2d(np.cov(found.T))
    # Axes of the widths alone, and of widths and means together.
    looked_at = (covariance, covariance + np.outer(shift, shift))
    axes = np.concatenate([np.linalg.eigh(one)[1].T for one in looked_at])
    best = max(axes, key=lambda axis: _divergence(axis @ shift, axis @ covariance @ axis))
    along = root @ best / np.linalg.norm(root, axis=1)
    most = int(np.argmax(np.abs(along)))
    ours, reference = ours @ best, reference @ best
    sd = reference.std(ddof=1)
    return Direction(
        site=str(names[most]),
        correlation=float(abs(along[most])),
        distance=float(abs(ours.mean() - reference.mean()) / sd),
        sd_ratio=float(ours.std(ddof=1) / sd),
    )


def _divergence(shift: float, variance: float) -> float:
    """KL(N(shift, variance) ‖ N(0, 1)), doubled."""
    return variance + shift**2 - 1.0 - np.log(max(variance, np.finfo(float).tiny))
