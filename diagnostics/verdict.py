"""Measurements of one posterior: its chains or its k̂, its errors, its predictions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import arviz as az
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from ..datasets.bags import Bags
from ..inference.grid import GridApproximation
from ..inference.importance import (
    FEWEST_DRAWS,
    ImportanceResampled,
    WeightedEvidence,
    khat_error,
    mean_evidence,
    weighted_evidence,
)
from ..inference.maximum_a_posteriori import PointApproximation
from ..inference.posterior import Posterior
from ..inference.prediction import Prediction, TargetPrediction
from ..inference.runtime.densities import log_joint
from ..models.model import Draws, random_key
from .measures.accuracy import Accuracy, accuracy, independent_fraction
from .measures.convergence import Convergence, convergence, estimand_sites
from .measures.scores import PredictionDifference, Scores, prediction_difference, score
from .measures.target_densities import is_logistic, is_same_model

__all__ = [
    "Assessment",
    "Peer",
    "Verdict",
    "best_reference",
    "gather",
    "judge",
    "names_by_target_density",
]

# Sites this many times larger than an approximation has them: another region altogether.
_RUNAWAY = 10.0
# Approximations that k̂ cannot judge: a point, and draws that k̂ has judged before.
_WITHOUT_DENSITY = (PointApproximation, ImportanceResampled)
# Fresh draws of an approximation take no more memory.
_FRESH_BYTES = 2**30
# k̂ is the mean of so many, each of draws of its own, where instances × draws of all are not more.
_KHAT_REPLICATES, _KHAT_WORK = 4, 10**8


@dataclass(frozen=True)
class Assessment:
    """Measurements of one posterior by itself, before it is compared with another.

    Attributes
    ----------
    posterior : Posterior
    draws : Dataset
        Of its continuous sites, dimensions chain and draw: a sampler's stored ones, fresh
        independent ones of an approximation (stored ones if it failed).
    convergence : Convergence or None
        Of a sampler.
    khat, khat_error : float
        Of an approximation, against the exact marginal of its own model, and its standard error;
        NaN for a sampler.
    num_weighted : int
        Draws behind each k̂; ``khat`` may be a mean of several. 0 for a sampler.
    weighted : WeightedEvidence or None
        Log evidence by the same weights, and E_q[log p(D, u) − log q(u)]; None where there is no
        k̂.
    prediction : Prediction, TargetPrediction or None
        Of the test bags, if there are any and the engine did not fail.
    """

    posterior: Posterior
    draws: xr.Dataset = field(repr=False)
    convergence: Convergence | None
    khat: float
    khat_error: float
    num_weighted: int
    weighted: WeightedEvidence | None
    prediction: Prediction | TargetPrediction | None = field(repr=False)

    @property
    def failure(self) -> str:
        """The reason of a failure, from the engine or from infinite draws; empty if none."""
        return _failure(self.posterior, self.draws)

    @property
    def failed(self) -> bool:
        """Whether the engine says so, or a draw is not finite."""
        return bool(self.failure)

    @property
    def is_sampler(self) -> bool:
        """Whether the posterior is a sampler's."""
        return self.posterior.is_mcmc

    @property
    def is_point(self) -> bool:
        """Whether the posterior is the mode alone."""
        return _is_point(self.posterior)

    @property
    def has_density(self) -> bool:
        """Whether the posterior is an approximation with a density, which k̂ can judge."""
        approximation = self.posterior.approximation
        return not (self.is_sampler or isinstance(approximation, _WITHOUT_DENSITY))

    @property
    def independent_fraction(self) -> float:
        """Effective size over number of draws, where these are resampled; else 1."""
        is_resampled = isinstance(self.posterior.approximation, ImportanceResampled)
        return independent_fraction(self.draws) if is_resampled else 1.0

    @property
    def is_exact(self) -> bool:
        """Whether the posterior is the exact one: summed up on a grid, or conjugate."""
        is_grid = isinstance(self.posterior.approximation, GridApproximation)
        return not self.failed and (is_grid or self.khat == -math.inf)

    @property
    def can_judge(self) -> bool:
        """Whether it can judge others: it is exact, or its chains are reliable."""
        return self.is_exact or (self.convergence is not None and self.convergence.is_reference)


def _failure(posterior: Posterior, draws: xr.Dataset) -> str:
    if posterior.status.kind == "failed":
        return posterior.status.sentence
    finite = all(bool(np.isfinite(site).all()) for site in draws.data_vars.values())
    return "" if finite else "a draw is not finite"


@dataclass(frozen=True)
class Peer:
    """Another posterior, as a measure for this one.

    Attributes
    ----------
    name : str
    target_density : str
        As from `target_densities`.
    assessment : Assessment
    accuracy : Accuracy
        Of this posterior against it.
    size : float
        Mean |value| of the compared sites under it.
    """

    name: str
    target_density: str
    assessment: Assessment
    accuracy: Accuracy
    size: float


@dataclass(frozen=True)
class Verdict:
    """Measurements of a posterior, compared with others.

    Attributes
    ----------
    assessment : Assessment
    target_density : str
        Its model, described by the differences from the others, or of its ψ from the logistic
        one; empty if there are none.
    reference : Peer or None
        The reference of the comparison; None if there is none, it is this one, or one of them
        failed.
    own_reference : Peer or None
        A sampler of this posterior's own target density, where the reference has another one.
    runaway : Peer or None
        A sampler of this posterior's own target density that lies elsewhere, at values many
        times larger.
    size : float
        Mean |value| of the compared sites.
    scores : Scores or None
        On the test bags.
    difference : PredictionDifference or None
        From the reference's predictions.
    disputed_by : tuple of str
        Reliable samplers that disagree with the reference, itself a sampler's.
    """

    assessment: Assessment
    target_density: str
    reference: Peer | None
    own_reference: Peer | None
    runaway: Peer | None
    size: float
    scores: Scores | None
    difference: PredictionDifference | None
    disputed_by: tuple[str, ...] = ()

    def row(self) -> dict[str, object]:
        """The row of the table, by column."""
        posterior, chains = self.assessment.posterior, self.assessment.convergence
        error = self.reference.accuracy if self.reference else None
        own, scores, is_same = self.own_reference, self.scores, not self.has_other_target_density
        difference = self.difference.mean if self.difference else math.nan
        return {
            "target_density": self.target_density,
            "status": self.status,
            "seconds": posterior.seconds,
            "compile_seconds": posterior.compile_seconds,
            "wall_seconds": posterior.wall_seconds,
            "elbo": _last(posterior.elbo),
            "rhat": chains.rhat if chains else math.nan,
            "ess_bulk": chains.ess_bulk if chains else math.nan,
            "ess_tail": chains.ess_tail if chains else math.nan,
            "ess_per_second": chains.ess_per_second if chains else math.nan,
            "divergences": chains.divergences if chains else math.nan,
            "khat": self.assessment.khat,
            "khat_error": self.assessment.khat_error,
            "mean_error": error.mean_error if error else math.nan,
            "worst_error": error.worst_error if error else math.nan,
            "error_mcse": error.mean_error_mcse if error else math.nan,
            "sd_ratio": error.mean_sd_ratio if error else math.nan,
            "sd_ratio_mcse": error.mean_sd_ratio_mcse if error else math.nan,
            "coverage_90": error.mean_coverage[0] if error else math.nan,
            "coverage_50": error.mean_coverage[1] if error else math.nan,
            "coverage_mcse": error.mean_coverage_mcse if error else math.nan,
            "largest_z": error.largest_z if error and chains and is_same else math.nan,
            "own_reference": own.name if own else "",
            "own_mean_error": own.accuracy.mean_error if own else math.nan,
            "own_sd_ratio": own.accuracy.mean_sd_ratio if own else math.nan,
            "size": self.size,
            **{
                name.name: getattr(scores, name.name) if scores else math.nan
                for name in fields(Scores)
            },
            "added_log_loss": self.difference.log_loss if self.difference else math.nan,
            "added_log_loss_error": (
                self.difference.log_loss_error if self.difference else math.nan
            ),
            "probability_difference": math.nan if self.predicts_numbers else difference,
            "target_difference": difference if self.predicts_numbers else math.nan,
        }

    @property
    def predicts_numbers(self) -> bool:
        """Whether the model predicts real numbers for bags, not labels."""
        return self.assessment.posterior.model.observed_site == "bag_target"

    @property
    def has_other_target_density(self) -> bool:
        """Whether the reference has another model, or other hyper-parameters of this one."""
        return self.reference is not None and self.reference.target_density != self.target_density

    @property
    def has_other_model(self) -> bool:
        """Whether the reference has another model: more than other hyper-parameters."""
        if self.reference is None:
            return False
        mine, theirs = self.assessment.posterior.model, self.reference.assessment.posterior.model
        return not is_same_model(mine, theirs)

    @property
    def disputes_reference(self) -> bool:
        """Whether it is a reliable sampler's that disagrees with a sampled reference."""
        peer = self.reference
        return (
            peer is not None
            and not self.has_other_target_density
            and not peer.assessment.is_exact
            and peer.assessment.can_judge
            and self.assessment.is_sampler
            and self.assessment.can_judge
            and not peer.accuracy.agrees
        )

    @property
    def is_left_behind(self) -> bool:
        """Whether its own model's posterior lies elsewhere, at values many times larger."""
        return self.runaway is not None

    @property
    def status(self) -> str:
        """The engine's own status; of a sampler that ran to its end, whether its chains mixed."""
        if self.assessment.failed:
            return "failed"
        chains = self.assessment.convergence
        if chains is None:
            return self.assessment.posterior.status.kind
        return chains.verdict


def _last(elbo: Float[np.ndarray, " T"] | None) -> float:
    return math.nan if elbo is None or len(elbo) == 0 else float(elbo[-1])


def gather(
    posterior: Posterior, *, test: Bags | None, num_draws: int, seed: int | Array
) -> Assessment:
    """Judge one posterior by itself.

    Parameters
    ----------
    posterior : Posterior
    test : Bags or None
    num_draws : int
        Fresh draws of an approximation.
    seed : int or JAX key
        Of these draws.

    Returns
    -------
    Assessment
    """
    # An approximation that failed may have no density to draw from.
    if posterior.is_mcmc or posterior.status.kind == "failed":
        draws = estimand_sites(posterior.draws_with_estimands, posterior.model)
        khat = _ReplicatedKhat(math.nan, math.nan, 0, None)
    else:
        draws, khat = _fresh_draws(posterior, num_draws, seed)
    prediction = None
    if test is not None and not _failure(posterior, draws):
        prediction = posterior.predict(test)
    return Assessment(
        posterior=posterior,
        draws=draws,
        convergence=convergence(posterior) if posterior.is_mcmc else None,
        khat=khat.khat,
        khat_error=khat.error,
        num_weighted=khat.num_draws,
        weighted=khat.weighted,
        prediction=prediction,
    )


def _is_point(posterior: Posterior) -> bool:
    return isinstance(posterior.approximation, PointApproximation)


def _fresh_draws(
    posterior: Posterior, num_draws: int, seed: int | Array
) -> tuple[xr.Dataset, _ReplicatedKhat]:
    """Independent draws of an approximation as one chain, and its k̂ by them and more."""
    model, bags = posterior.model, posterior.bags
    stored = posterior.stored_draws()  # a draw made to be weighed would be another program
    size = sum(value.nbytes / len(value) for value in stored.values())
    wanted = 1 if _is_point(posterior) else min(num_draws, int(_FRESH_BYTES / size))
    fresh = posterior.draws(max(1, wanted), seed=seed)
    everything = fresh | model.estimands_of(fresh, bags)
    one_chain = {name: value[None] for name, value in everything.items()}
    dims = {name: list(names) for name, names in model.dims.items() if name in everything}
    tree = az.from_dict({"posterior": one_chain}, dims=dims)
    khat = _replicated_khat(posterior, fresh, seed)
    return estimand_sites(tree["posterior"].to_dataset(), model), khat


class _ReplicatedKhat(NamedTuple):
    khat: float
    error: float
    num_draws: int
    weighted: WeightedEvidence | None


def _replicated_khat(posterior: Posterior, fresh: Draws, seed: int | Array) -> _ReplicatedKhat:
    """Mean k̂ of replicates, the first by the draws that are there."""
    num_draws = len(next(iter(fresh.values())))
    replicates = _KHAT_WORK // (num_draws * posterior.bags.num_instances)
    replicates = min(max(1, replicates), _KHAT_REPLICATES)
    found: list[WeightedEvidence] = []
    for replicate in range(replicates if num_draws >= FEWEST_DRAWS else 0):
        if replicate > 0:
            key = jax.random.fold_in(random_key(seed), replicate)
            fresh = posterior.draws(num_draws, seed=key)
        log_approximation = posterior.log_density(fresh)
        if log_approximation is None:
            return _ReplicatedKhat(math.nan, math.nan, num_draws, None)
        log_target_density = log_joint(posterior.model, "marginal", fresh, posterior.bags)
        found.append(weighted_evidence(log_target_density, log_approximation))
    # −∞ says that the ratios of one replicate are alike: of all, or q is not p.
    known = [one.khat for one in found if one.khat != -math.inf]
    khat = float(np.mean(known)) if known else min((one.khat for one in found), default=math.nan)
    error = khat_error(khat, num_draws) / math.sqrt(max(1, len(known)))
    return _ReplicatedKhat(khat, error, num_draws, mean_evidence(found) if found else None)


def judge(
    name: str,
    assessments: dict[str, Assessment],
    target_densities: dict[str, str],
    *,
    reference: str | None,
    test: Bags | None,
) -> Verdict:
    """Compare one posterior with the reference, and with a sampler of its own target density.

    Parameters
    ----------
    name : str
    assessments : dict of Assessment
        Of all posteriors.
    target_densities : dict of str
        As from `target_densities`.
    reference : str or None
    test : Bags or None

    Returns
    -------
    Verdict
    """
    mine = assessments[name]
    sites = sorted(
        set.intersection(*(set(map(str, e.draws.data_vars)) for e in assessments.values()))
    )

    def peer(other: str | None) -> Peer | None:
        if other is None or other == name or mine.failed or assessments[other].failed:
            return None
        theirs = assessments[other].draws[sites]
        fractions = mine.independent_fraction, assessments[other].independent_fraction
        error = accuracy(mine.draws[sites], theirs, fractions=fractions)
        return Peer(other, target_densities[other], assessments[other], error, _size(theirs))

    size = _size(mine.draws[sites])
    siblings = {
        other: known
        for other, known in assessments.items()
        if other != name and target_densities[other] == target_densities[name]
    }
    samplers = {other: known for other, known in siblings.items() if known.is_sampler}
    far = [o for o, known in samplers.items() if _size(known.draws[sites]) > _RUNAWAY * size]
    has_other_target_density = (
        reference is not None and target_densities[reference] != target_densities[name]
    )
    compared = peer(reference)
    scores = difference = None
    if test is not None and mine.prediction is not None:
        scores = score(mine.prediction, test)
        if compared is not None and compared.assessment.prediction is not None:
            difference = prediction_difference(
                mine.prediction, compared.assessment.prediction, test
            )
    return Verdict(
        assessment=mine,
        target_density=target_densities[name],
        reference=compared,
        own_reference=peer(best_reference(siblings, target_densities))
        if has_other_target_density
        else None,
        runaway=peer(next(iter(far), None)),
        size=size,
        scores=scores,
        difference=difference,
    )


def best_reference(
    assessments: dict[str, Assessment], target_densities: dict[str, str]
) -> str | None:
    """The exact posterior or the sampler to judge others by; None if there is none.

    One of the logistic model if there is one, then an exact posterior, then a sampler whose chains
    have mixed, then the one with the largest smallest effective sample size, then the one whose
    target density most others have.
    """
    rank: dict[str, tuple[bool, bool, bool, float, int]] = {}
    of_target_density = Counter(target_densities[name] for name in assessments)
    for name, known in assessments.items():
        first, chains = is_logistic(known.posterior.model), known.convergence
        alike = of_target_density[target_densities[name]]
        if known.is_exact:
            rank[name] = (first, True, True, math.inf, alike)
        elif chains is not None and not known.failed:
            rank[name] = (first, False, chains.mixed, chains.smallest_ess, alike)
    return max(rank, key=lambda name: rank[name]) if rank else None


def names_by_target_density(verdicts: Mapping[str, Verdict]) -> list[list[str]]:
    """Names of the posteriors that did not fail, those of one target density together."""
    by_target_density: dict[str, list[str]] = {}
    for name, verdict in verdicts.items():
        if not verdict.assessment.failed:
            by_target_density.setdefault(verdict.target_density, []).append(name)
    return list(by_target_density.values())


def _size(draws: xr.Dataset) -> float:
    values = np.concatenate([np.abs(site.to_numpy()).ravel() for site in draws.data_vars.values()])
    return float(values.mean())
