"""Importance ratios of an exact posterior and its approximation: k̂, weights, draws by weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from arviz_stats.base.array import array_stats
from jaxtyping import Array, Float
from scipy.special import logsumexp

from ..datasets.bags import Bags
from ..models.model import Draws, Program
from . import serialization
from .runtime.densities import log_joint

__all__ = [
    "EASY_KHAT",
    "FEWEST_DRAWS",
    "ImportanceResampled",
    "WeightedDraws",
    "WeightedEvidence",
    "khat_error",
    "largest_khat",
    "mean_evidence",
    "weighted_evidence",
]

# Up to the first, importance sampling corrects an approximation with few draws; up to the second,
# with many.
EASY_KHAT, _LARGEST_KHAT = 0.5, 0.7
# The tail of fewer ratios has fewer than 20 of them.
FEWEST_DRAWS = 100
# Log ratios this close are one number: no weight differs from another by more than a thousandth.
_ALIKE = 1e-3


def khat_error(khat: float, num_draws: int) -> float:
    """Standard error of k̂, (1 + k̂)/√M for the M largest ratios: that of maximum likelihood.

    Parameters
    ----------
    khat : float
    num_draws : int
        S; M is the smaller of S/5 and 3 √S.

    Returns
    -------
    float
        0 where k̂ is not finite.

    References
    ----------
    Smith (1987), estimating tails of probability distributions.

    Examples
    --------
    >>> from milzoo.inference.importance import khat_error
    >>> round(khat_error(0.5, 4000), 2)
    0.11
    """
    if not math.isfinite(khat):
        return 0.0
    tail = min(num_draws / 5, 3 * math.sqrt(num_draws))
    return (1 + max(khat, -0.5)) / math.sqrt(tail)


def largest_khat(num_draws: int) -> float:
    """Largest k̂ at which weighting so many draws is reliable, min(0.7, 1 − 1/log₁₀ S).

    References
    ----------
    Vehtari et al. (2024), Pareto smoothed importance sampling, section 3.2.4.

    Examples
    --------
    >>> from milzoo.inference.importance import largest_khat
    >>> [round(largest_khat(number), 2) for number in (100, 1000, 4000)]
    [0.5, 0.67, 0.7]
    """
    return min(_LARGEST_KHAT, 1 - 1 / math.log10(num_draws))


class _Smoothed(NamedTuple):
    weights: Float[np.ndarray, " S"]
    khat: float
    log_sum: float


def _smoothed(
    log_target_density: Float[np.ndarray, " S"], log_approximation: Float[np.ndarray, " S"]
) -> _Smoothed:
    """Weights that sum to 1, k̂ and the log of the ratios' sum; equal weights if not finite."""
    log_ratio = log_target_density - log_approximation
    equal = np.full(len(log_ratio), 1.0 / len(log_ratio))
    if not (np.isfinite(log_target_density).all() and np.isfinite(log_approximation).all()):
        return _Smoothed(equal, math.nan, math.nan)
    if np.ptp(log_ratio) < _ALIKE:
        return _Smoothed(equal, -math.inf, float(log_ratio.mean()) + math.log(len(log_ratio)))
    # psislw is written for leave-one-out, where the ratio is 1/likelihood: it negates its input.
    log_weights, khat = map(np.asarray, array_stats.psislw(-log_ratio))
    log_sum = logsumexp(log_weights)
    # Smoothing leaves the smallest ratio as it is: it tells by how much all were shifted.
    smallest = int(np.argmin(log_ratio))
    shift = log_ratio[smallest] - log_weights[smallest]
    return _Smoothed(np.exp(log_weights - log_sum), float(khat), float(log_sum + shift))


class WeightedEvidence(NamedTuple):
    """What importance ratios p̃/q at draws from q say of the integral Z of p̃.

    Attributes
    ----------
    log_evidence : float
        log of their mean, the tail smoothed: an estimate of log Z.
    error : float
        Its standard error; infinite where k̂ says that weights do not work.
    bound : float
        Mean of their logarithms, E_q[log p̃ − log q]: at most log Z.
    bound_error : float
        Its standard error.
    khat : float
    """

    log_evidence: float
    error: float
    bound: float
    bound_error: float
    khat: float


def weighted_evidence(
    log_target_density: Float[np.ndarray, " S"], log_approximation: Float[np.ndarray, " S"]
) -> WeightedEvidence:
    """Estimate log Z of an unnormalised density, and k̂, by draws from an approximation.

    Below a Pareto k̂ of 0.7 (0.5) reweighting the draws by p/q can correct the approximation
    (easily); above, the ratios have so heavy a tail that it cannot. It sees only where q puts its
    draws: a mode of p that q never visits goes unnoticed.

    Parameters
    ----------
    log_target_density : array (S,)
        log p̃.
    log_approximation : array (S,)
        log q.

    Returns
    -------
    WeightedEvidence
        NaN, with infinite errors, if some density is not finite; k̂ is −∞ if all ratios are alike,
        and q is p.

    Raises
    ------
    ValueError
        If there are fewer than 100 draws.

    References
    ----------
    Vehtari et al. (2024), Pareto smoothed importance sampling; Yao et al. (2018), Yes, but did it
    work?

    Examples
    --------
    Draws from a Gaussian three times too narrow miss the tails of the target density; the opposite
    mistake is harmless:

    >>> import numpy as np
    >>> from milzoo.inference.importance import weighted_evidence
    >>> draw = np.random.default_rng(1).standard_normal(4000)
    >>> round(weighted_evidence(-0.5 * (draw / 3) ** 2, -0.5 * draw**2).khat, 1)
    0.9
    >>> round(weighted_evidence(-0.5 * (3 * draw) ** 2, -0.5 * draw**2).khat, 1)
    -1.7
    """
    if len(log_target_density) < FEWEST_DRAWS:
        raise ValueError(
            f"log_target_density is of {len(log_target_density)} draws; expected at least "
            f"{FEWEST_DRAWS}: the tail of fewer ratios says nothing"
        )
    log_ratio, number = log_target_density - log_approximation, len(log_target_density)
    weights, khat, log_sum = _smoothed(log_target_density, log_approximation)
    if math.isnan(khat):
        return WeightedEvidence(math.nan, math.inf, math.nan, math.inf, khat)
    bound, bound_error = float(log_ratio.mean()), float(log_ratio.std(ddof=1) / math.sqrt(number))
    if khat == -math.inf:
        return WeightedEvidence(bound, 0.0, bound, 0.0, khat)
    value = log_sum - math.log(number)
    is_reliable = khat <= largest_khat(number)
    error = math.sqrt(np.sum(weights**2) - 1 / number) if is_reliable else math.inf
    return WeightedEvidence(value, error, bound, bound_error, khat)


def mean_evidence(replicates: Sequence[WeightedEvidence]) -> WeightedEvidence:
    """Mean of independent estimates, with its standard errors.

    Parameters
    ----------
    replicates : sequence of WeightedEvidence

    Returns
    -------
    WeightedEvidence
    """
    values = np.array(replicates)
    mean, number = values.mean(axis=0), len(values)
    errors = np.sqrt((values[:, [1, 3]] ** 2).sum(axis=0)) / number
    return WeightedEvidence(*map(float, (mean[0], errors[0], mean[2], errors[1], mean[4])))


class WeightedDraws(NamedTuple):
    """Draws of an approximation q, with their importance weights for the posterior p.

    Attributes
    ----------
    draws : dict of arrays
        Latent sites, draws first.
    weights : array (S,)
        p/q, their tail smoothed by a generalised Pareto distribution; they sum to 1.
    khat : float
        Shape of that distribution.
    """

    draws: Draws
    weights: Float[np.ndarray, " S"]
    khat: float

    @property
    def effective_size(self) -> float:
        """Effective sample size of the weights, 1/Σ w²."""
        return float(1.0 / np.sum(self.weights**2))


@serialization.register
@dataclass(frozen=True, eq=False)
class ImportanceResampled:
    """An approximation without a density: draws from q, resampled in proportion to p/q.

    Attributes
    ----------
    proposal : Approximation
        q.
    num_proposals : int
        Draws of q behind each set of draws of this.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import importance_resample
    >>> from milzoo.inference import ImportanceResampled, laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> corrected = importance_resample(laplace(model, bags, seed=0), seed=0)
    >>> isinstance(corrected.approximation, ImportanceResampled)
    True
    >>> corrected.approximation.num_proposals
    20000
    >>> corrected.status.kind
    'converged'
    """

    proposal: Any
    num_proposals: int

    def weighted(self, model: Any, bags: Bags, key: Array) -> WeightedDraws:
        """Proposals, with weights that the exact marginal of the model gives them."""
        draws = self.proposal.draws(model, bags, key, self.num_proposals)
        log_target_density = log_joint(model, "marginal", draws, bags)
        log_proposal = self.proposal.log_density(model, bags, draws)
        return WeightedDraws(draws, *_smoothed(log_target_density, log_proposal)[:2])

    def draws(self, model: Any, bags: Bags, key: Array, num_draws: int) -> Draws:
        """Proposals, resampled by their weights; NaN where weights are not finite."""
        weight_key, choose_key = jax.random.split(key)
        found = self.weighted(model, bags, weight_key)
        if np.isnan(found.khat):
            return {
                name: np.full((num_draws, *value.shape[1:]), np.nan)
                for name, value in found.draws.items()
            }
        with jax.enable_x64(True):
            chosen = jax.random.choice(
                choose_key, self.num_proposals, (num_draws,), p=found.weights
            )
        return {name: value[np.asarray(chosen)] for name, value in found.draws.items()}

    def log_density(self, model: Any, bags: Bags, draws: Draws) -> None:
        """None: the approximation is known by its draws alone, without a density."""

    def guide(self, model: Any) -> Program:
        """Raise an error: resampled draws have no guide.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError(
            "resampled draws have no density, and so no guide; take that of the posterior that was "
            "resampled"
        )
