"""The verdict on each posterior in one word, with the one number that decides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from scipy.stats import norm

from .checks.dispersed_starts import Missed
from .divergence import Divergence
from .measures.accuracy import Accuracy
from .verdict import Peer, Verdict

__all__ = ["Headline", "headline"]

type Word = Literal[
    "reliable", "overconfident", "underconfident", "wrong place", "cannot tell", "failed"
]

# The reference's probability of central 90 % intervals, on average over sites and of the worst.
_COVERED, _LEAST_COVERED = (0.85, 0.95), 0.75
# Nats of KL(q‖p) up to which no probability has an error above a tenth (Pinsker).
_SMALL_DIVERGENCE = 0.02


class Headline(NamedTuple):
    """A verdict in a word.

    Attributes
    ----------
    word : str
        ``"reliable"``: 90 % intervals hold 85 to 95 % of a judge's draws, or chains have mixed;
        ``"overconfident"`` and ``"underconfident"``: they hold less or more, as they are too narrow
        or too wide; ``"wrong place"``: they hold less as they lie elsewhere; ``"cannot tell"``;
        ``"failed"``.
    reason : str
        The number that decides.
    """

    word: Word
    reason: str


def headline(
    name: str,
    verdict: Verdict,
    *,
    missed: Mapping[str, Missed],
    divergence: Divergence | None,
) -> Headline:
    """Put the verdict on one posterior into one word.

    Parameters
    ----------
    name : str
    verdict : Verdict
    missed : mapping of str to Missed
    divergence : Divergence or None

    Returns
    -------
    Headline
    """
    assessment = verdict.assessment
    if assessment.failed:
        return Headline("failed", assessment.failure)
    if name in missed:
        mass = missed[name].percent
        return Headline("wrong place", f"modes with {mass} of the mass were not visited")
    if verdict.runaway is not None:
        times = verdict.runaway.size / verdict.size
        return Headline("wrong place", f"its own posterior is {times:,.0f} times as far from 0")
    if assessment.is_sampler:
        return _of_chains(verdict)
    if assessment.is_exact:
        return Headline("reliable", "it is exact")
    if assessment.is_point:
        return Headline("cannot tell", "one point has no interval")
    status = assessment.posterior.status
    if status.kind != "converged":
        return Headline("cannot tell", f"its run ended as {status.kind}")
    judge = _judge(verdict, missed)
    return _of_intervals(judge) if judge is not None else _without_a_judge(verdict, divergence)


def _of_chains(verdict: Verdict) -> Headline:
    chains, peer = verdict.assessment.convergence, verdict.reference
    assert chains is not None
    if not chains.mixed:
        return Headline("cannot tell", chains.complaints()[0])
    if verdict.disputed_by or verdict.disputes_reference:
        others = verdict.disputed_by or (peer.name if peer else "",)
        return Headline("cannot tell", f"{' and '.join(others)} disagrees with it")
    return Headline("reliable", f"R̂ {chains.rhat:.3f}, smallest ESS {chains.smallest_ess:,.0f}")


def _judge(verdict: Verdict, missed: Mapping[str, Missed]) -> Peer | None:
    """A reliable posterior of the same target density."""
    peer = verdict.own_reference if verdict.has_other_target_density else verdict.reference
    if peer is None or peer.name in missed or not peer.assessment.can_judge or verdict.disputed_by:
        return None
    return peer


def _of_intervals(judge: Peer) -> Headline:
    error = judge.accuracy
    if error.frozen.any():
        return Headline("wrong place", f"{error.frozen_sites[0]} does not vary")
    covered, worst = error.mean_coverage[0], int(error.coverage_90.argmin())
    reason = f"its 90 % intervals hold {100 * covered:.0f} % of {judge.name}'s draws"
    if covered > _COVERED[1]:
        return Headline("underconfident", reason)
    if covered < _COVERED[0]:
        return Headline(_cause(error), reason)
    if error.coverage_90[worst] < _LEAST_COVERED:
        of_worst = f"that of {error.names[worst]} holds {100 * error.coverage_90[worst]:.0f} %"
        word = _cause_at(abs(error.error[worst]), error.sd_ratio[worst])
        return Headline(word, f"{reason}, but {of_worst}")
    return Headline("reliable", reason)


def _cause(error: Accuracy) -> Word:
    return _cause_at(error.mean_error, error.mean_sd_ratio)


def _cause_at(shift: float, ratio: float) -> Word:
    """Whether Gaussian intervals lose more by being too narrow, or by lying elsewhere."""
    half = norm.isf(0.05)
    if_narrow = 2 * norm.cdf(half * ratio) - 1
    if_shifted = norm.cdf(half - shift) - norm.cdf(-half - shift)
    return "overconfident" if if_narrow < if_shifted else "wrong place"


def _without_a_judge(verdict: Verdict, divergence: Divergence | None) -> Headline:
    """The headline without a reliable posterior to compare with: by KL(q‖p), where known."""
    if divergence is not None:
        kl, error = divergence.kl, divergence.kl_error
        said = f"KL(q‖p) is {max(kl, 0.0):.2f} ± {error:.2f} nats"
        if kl + 2 * error <= _SMALL_DIVERGENCE:
            return Headline("reliable", said)
        return Headline("cannot tell", f"{said}, and no sampler is there to judge intervals")
    khat = verdict.assessment.khat
    told = "" if math.isnan(khat) else f" (k̂ {khat:.2f})"
    return Headline("cannot tell", f"nothing here can judge it{told}: add nuts or gibbs")
