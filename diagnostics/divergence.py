"""Distances in nats: KL(q‖p) on the exact marginal, and the gap between evidence and ELBO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from jaxtyping import Array

from ..inference.evidence import log_evidence, why_not_one_density
from ..inference.importance import FEWEST_DRAWS
from ..models.model import random_key
from .verdict import Assessment, Verdict, names_by_target_density

__all__ = ["Divergence", "divergence_of", "divergence_table", "divergences"]

# Draws of a bridge, and the most evaluations of an instance that it may take.
_BRIDGE_DRAWS, _BRIDGE_WORK = 4000, 4 * 10**8


@dataclass(frozen=True)
class Divergence:
    """How far an approximation is from the posterior, in nats.

    Attributes
    ----------
    log_evidence, log_evidence_error : float
        log Z of the marginal program, and its Monte-Carlo standard error.
    source : str
        The posterior that it was estimated from.
    kl, kl_error : float
        KL(q(u)‖p(u | D)) = log Z − E_q[log p(D, u) − log q(u)], and its standard error.
    elbo : float
        The engine's own bound; NaN if it has none, or one up to a constant.
    """

    log_evidence: float
    log_evidence_error: float
    source: str
    kl: float
    kl_error: float
    elbo: float

    @property
    def gap(self) -> float:
        """Log evidence − ELBO."""
        return self.log_evidence - self.elbo

    @property
    def lost(self) -> float:
        """What the augmentation and its factorisation lose: the gap, less KL(q‖p)."""
        return self.gap - self.kl


def divergences(verdicts: Mapping[str, Verdict], *, seed: int | Array) -> dict[str, Divergence]:
    """Measure KL(q‖p) of each approximation whose own target density has a known evidence.

    The evidence is that of an exact posterior of the target density, else by a bridge from its
    reliable sampler with the largest smallest effective size, else by weights that k̂ says are
    reliable.

    Parameters
    ----------
    verdicts : dict of Verdict
    seed : int or JAX key
        Of the bridges.

    Returns
    -------
    dict of Divergence
        By the name of the approximation; some, or none.
    """
    key, found = random_key(seed), {}
    for names in names_by_target_density(verdicts):
        assessments = {name: verdicts[name].assessment for name in names}
        weighted = [name for name, one in assessments.items() if one.weighted is not None]
        known = _log_evidence(assessments, key) if weighted else None
        if known is not None:
            found |= {name: divergence_of(assessments[name], *known) for name in weighted}
    return {name: found[name] for name in verdicts if name in found}


def _log_evidence(
    assessments: Mapping[str, Assessment], key: Array
) -> tuple[float, float, str] | None:
    """Log evidence of one target density, its error and the posterior it is from."""
    weighted = {
        name: one.weighted
        for name, one in assessments.items()
        if one.weighted is not None and math.isfinite(one.weighted.error)
    }
    best = min(weighted, key=lambda name: weighted[name].error, default=None)
    by_weights = None
    if best is not None:
        by_weights = weighted[best].log_evidence, weighted[best].error, best
        if assessments[best].is_exact:
            return by_weights
    return _bridge(assessments, key) or by_weights


def _bridge(assessments: Mapping[str, Assessment], key: Array) -> tuple[float, float, str] | None:
    """Log evidence by the best sampler, if there is one whose model can be bridged in time."""
    sizes = {
        name: one.convergence.smallest_ess
        for name, one in assessments.items()
        if one.convergence is not None and one.can_judge
    }
    if not sizes:
        return None
    name = max(sizes, key=sizes.__getitem__)
    posterior = assessments[name].posterior
    # The density is evaluated on both sides of a centre, for the draws and as many of a Gaussian.
    num_draws = min(_BRIDGE_DRAWS, _BRIDGE_WORK // (4 * posterior.bags.num_instances))
    if why_not_one_density(posterior.model) or num_draws < FEWEST_DRAWS:
        return None
    found = log_evidence(posterior, seed=key, num_draws=num_draws)
    return found.value, found.error, name


def divergence_of(
    assessment: Assessment, log_z: float, log_z_error: float, source: str
) -> Divergence:
    """Measure an approximation whose target density has a known log evidence.

    Parameters
    ----------
    assessment : Assessment
        With ``weighted``.
    log_z, log_z_error : float
        The log evidence, and its standard error.
    source : str
        What it is from.

    Returns
    -------
    Divergence
    """
    posterior, weighted = assessment.posterior, assessment.weighted
    assert weighted is not None
    elbo = math.nan
    if posterior.model.is_normalised and posterior.elbo is not None and len(posterior.elbo):
        elbo = float(posterior.elbo[-1])
    return Divergence(
        log_evidence=log_z,
        log_evidence_error=log_z_error,
        source=source,
        kl=0.0 if assessment.is_exact else log_z - weighted.bound,
        kl_error=0.0 if assessment.is_exact else math.hypot(log_z_error, weighted.bound_error),
        elbo=elbo,
    )


def divergence_table(found: Mapping[str, Divergence]) -> pd.DataFrame:
    """A row for each approximation, in nats.

    Parameters
    ----------
    found : dict of Divergence

    Returns
    -------
    DataFrame
        Columns ``log_evidence``, ``log_evidence_error``, ``elbo``, ``gap``, ``kl``, ``kl_error``,
        ``lost``; NaN where an engine has no bound.
    """
    columns = ("log_evidence", "log_evidence_error", "elbo", "gap", "kl", "kl_error", "lost")
    rows = {name: [getattr(one, column) for column in columns] for name, one in found.items()}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(columns), dtype=float)
    table.index.name = "engine"
    return table
