"""The verdicts in words: a few sentences on each engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ..inference.grid import GridApproximation
from ..inference.importance import EASY_KHAT, FEWEST_DRAWS, largest_khat
from .checks.dispersed_starts import Missed
from .divergence import Divergence
from .measures.accuracy import Accuracy
from .measures.convergence import Convergence
from .measures.scores import PredictionDifference
from .measures.target_densities import is_logistic
from .verdict import Peer, Verdict

__all__ = ["reference_sentence", "sentence"]

# A mean over sites describes the width of intervals where no site's width differs from it by more
# than this factor.
_SAME_WIDTH = 1.25
# Below all of these, another posterior makes no difference to a user of the predictions.
_SMALL_PROBABILITY = 0.02
_SMALL_WORST_PROBABILITY = 0.05
# Of targets, in predictive sds: an error of d adds d²/2 to the log loss if the reference is right,
# 0.005 and 0.03 here, and 90 % intervals hold 89.8 % and 88.9 % of the truths.
_SMALL_ERROR = 0.1
_SMALL_WORST_ERROR = 0.25
_SMALL_LOG_LOSS = 0.01

# Nats that an ELBO may lose beside KL(q‖p) without a word.
_SMALL_LOSS = 0.5

_FAULTS = {
    "too short": "is too short",
    "one chain": "has one chain, too few for R̂",
    "divergent": "has regions that it does not enter",
    "not mixed": "has not mixed",
}

_FRACTIONS = (
    (0.28, 0.38, "a third as wide as"),
    (0.45, 0.55, "half as wide as"),
    (0.62, 0.71, "two thirds as wide as"),
    (0.72, 0.78, "three quarters as wide as"),
    (0.95, 1.05, "as wide as"),
    (1.90, 2.10, "twice as wide as"),
)


def reference_sentence(
    reference: str | None,
    verdicts: dict[str, Verdict],
    *,
    chosen: bool,
    missed: Mapping[str, Missed],
) -> str:
    """Name the reference, say whether it is reliable, and name an unusual target density of all."""
    first = next(iter(verdicts.values())).assessment.posterior.model
    note = first.estimand_note
    named = {verdict.target_density for verdict in verdicts.values()}
    target_density = named.pop() if len(named) == 1 else ""
    about = f" All are about {target_density}, not the logistic model, and say nothing of that one."
    reason = _reference(reference, verdicts, chosen=chosen) + (about if target_density else "")
    if reference is not None and reference in missed:
        reason += f" But {_missed(reference, missed[reference])} It judges no other."
    return f"{reason} {note}".strip()


def _reference(reference: str | None, verdicts: dict[str, Verdict], *, chosen: bool) -> str:
    if reference is None:
        has_sampler = any(verdict.assessment.is_sampler for verdict in verdicts.values())
        return (
            f"{'Every sampler failed' if has_sampler else 'No sampler is among the posteriors'}: "
            "nothing but k̂ judges the error of an approximation; add nuts or gibbs."
        )
    assessment = verdicts[reference].assessment
    chains = assessment.convergence
    start = f"The reference is {reference}"
    if assessment.failed:
        return f"{start}, as asked for; but it failed ({assessment.failure}): there are no errors."
    if chains is None:
        if isinstance(assessment.posterior.approximation, GridApproximation):
            return f"{start}, the exact posterior, summed up on a grid."
        if assessment.is_exact:
            return f"{start}, the exact posterior: its density is the model's at every draw."
        return f"{start}, itself an approximation: agreement is no proof."
    start += f", {_why_chosen(reference, verdicts, chains)}" if chosen else ", as asked for"
    if not chains.mixed:
        remedy = "" if chains.num_chains == 1 else ", run longer chains"
        return (
            f"{start}; but it {_FAULTS[chains.verdict]} ({'; '.join(chains.complaints())}): all "
            f"errors here are provisional{remedy}."
        )
    disputed_by = verdicts[reference].disputed_by
    if disputed_by:
        return (
            f"{start}; but {' and '.join(disputed_by)}, without a sign of poor mixing, disagrees "
            "with it: until it is known which of them is wrong, errors here may be the reference's "
            "own."
        )
    if not chains.is_reference:
        return f"{start}; its chains agree, but with an ESS below 1,000: run longer ones."
    return f"{start}."


def _why_chosen(reference: str, verdicts: dict[str, Verdict], chains: Convergence) -> str:
    logistic = {name: is_logistic(v.assessment.posterior.model) for name, v in verdicts.items()}
    preferred = logistic[reference] and not all(logistic.values())
    return (
        f"the sampler{' of the logistic model' if preferred else ''} with the largest smallest "
        f"effective sample size ({chains.smallest_ess:,.0f})"
        f"{' of those that show no sign of poor mixing' if chains.mixed else ''}"
    )


def sentence(
    name: str,
    verdict: Verdict,
    *,
    missed: Mapping[str, Missed] = MappingProxyType({}),
    divergence: Divergence | None = None,
) -> str:
    """Put the verdict on one engine into words.

    Parameters
    ----------
    name : str
    verdict : Verdict
    missed : mapping of str to Missed
        Modes that posteriors did not visit, its own or its reference's among them.
    divergence : Divergence or None
        Of this one from its target density.

    Returns
    -------
    str
    """
    if verdict.assessment.failed:
        return f"{name} failed ({verdict.assessment.failure}): none of its numbers means anything."
    peer = verdict.reference
    is_judged = peer is not None and peer.name not in missed and _is_judged_by(peer, verdict)
    parts = [
        _own_quality(name, verdict),
        _missed(name, missed[name]) if name in missed else "",
        _distance(name, verdict, is_judged=is_judged),
        _other_target_density(verdict),
        _runaway(name, verdict),
        "It is one point, without any interval." if verdict.assessment.is_point else "",
        "" if verdict.assessment.is_exact else _nats(divergence),
        _importance(verdict, has_missed=name in missed),
        _predictions(verdict, is_judged=is_judged),
    ]
    return " ".join(filter(None, parts))


def _own_quality(name: str, verdict: Verdict) -> str:
    """Whether the sampler mixed, or the ascent ended."""
    chains = verdict.assessment.convergence
    if chains is None:
        kind = verdict.assessment.posterior.status.kind
        stopped = verdict.assessment.posterior.status.sentence
        if kind == "collapsed":
            return f"{name} ignores the features: {stopped}."
        if kind == "disagreed":
            return f"{name} depends on where it starts: {stopped}."
        return "" if kind == "converged" else f"{name} stopped before it converged: {stopped}."
    run = f"{chains.num_chains} × {chains.num_draws:,} draws"
    if not chains.mixed:
        faults = "; ".join(chains.complaints())
        if chains.verdict == "too short":
            return f"{name}'s {run} are too few (worst R̂ {chains.rhat:.3f}; {faults})."
        if chains.verdict == "one chain":
            return f"R̂ cannot judge {name}'s {run}: {faults}."
        if chains.verdict == "divergent":
            return (
                f"{name}'s {run} miss part of the posterior: {faults}; raise target_accept. Do not "
                "use them."
            )
        return f"{name}'s {run} have not mixed: {faults}. Do not use them."
    return (
        f"{name}'s {run} show no sign of poor mixing (worst R̂ {chains.rhat:.3f}, smallest ESS "
        f"{chains.ess_bulk:,.0f} bulk and {chains.ess_tail:,.0f} tail{_divergences(chains)})."
    )


def _missed(name: str, missed: Missed) -> str:
    """Modes that were not visited, and where they are."""
    return (
        f"{name} did not visit modes that hold {missed.percent} of the mass found from dispersed "
        f"starts: typical |value| {_brief(missed.size)} there, {_brief(missed.own_size)} here."
    )


def _nats(divergence: Divergence | None) -> str:
    """KL(q‖p), and what more the ELBO loses."""
    if divergence is None:
        return ""
    kl, error = divergence.kl, divergence.kl_error
    digits = 1 if error >= 0.05 else 2 if error >= 0.005 else 3
    said = f"{max(kl, 0.0):.{digits}f} ± {error:.{digits}f}"
    if math.isnan(divergence.elbo) or divergence.lost < max(3 * error, _SMALL_LOSS):
        return f"KL(q‖p) is {said} nats."
    return (
        f"Its ELBO is {divergence.gap:.1f} nats below the log evidence: {said} are KL(q‖p), the "
        f"other {divergence.lost:.1f} are lost by the augmentation."
    )


def _divergences(chains: Convergence) -> str:
    """Say how many divergences chains without fault have: none, or few."""
    if math.isnan(chains.divergences):
        return ""
    if chains.divergences == 0:
        return ", no divergence"
    return f", {chains.divergences:,.0f} divergence{'s' if chains.divergences > 1 else ''}"


def _distance(name: str, verdict: Verdict, *, is_judged: bool) -> str:
    """The errors against the reference."""
    peer = verdict.reference
    if peer is None:
        return ""
    if verdict.assessment.is_sampler and not verdict.has_other_target_density:
        return f"It {_agreement(verdict, peer)}"
    if verdict.assessment.is_point:
        return f"{_error_of_mean(name, peer.accuracy, what='mode')}."
    error, ratio = _error_of_mean(name, peer.accuracy), _brief(peer.accuracy.mean_sd_ratio)
    if verdict.has_other_target_density:
        return f"{error}, and its sd on average {ratio} times {peer.name}'s."
    than = "they should be" if is_judged else f"{peer.name}'s"
    return (
        f"{error} and its sd is on average {ratio} ± {peer.accuracy.mean_sd_ratio_mcse:.1g} of "
        f"{peer.name}'s. {_intervals(peer, than)}"
    )


def _intervals(peer: Peer, than: str) -> str:
    """Widths of intervals, and how much of the reference they hold."""
    error = peer.accuracy
    coverage, inner = (100 * share for share in error.mean_coverage)
    return (
        f"Its 90 % intervals are {_width(error)} {than} and hold {coverage:.0f} ± "
        f"{100 * error.mean_coverage_mcse:.1f} % of {peer.name}'s draws, its 50 % ones "
        f"{inner:.0f} %."
    )


def _is_judged_by(peer: Peer, verdict: Verdict) -> bool:
    """Whether the reference is reliable enough to judge by."""
    return peer.assessment.can_judge and not (verdict.is_left_behind or verdict.disputed_by)


def _agreement(verdict: Verdict, peer: Peer) -> str:
    error, chains = peer.accuracy, verdict.assessment.convergence
    largest = (
        f"largest |z| {error.largest_z:.1f} of at most {error.z_limit:.1f} by chance over "
        f"{len(error.z)} means, sds and quantiles"
    )
    if not error.agrees:
        how = _frozen(error) if error.frozen.any() else largest
        return f"does not agree with {peer.name}: {how}, {_why_not(chains, peer)}."
    if not _have_mixed(chains, peer):
        return (
            f"cannot be said to agree with {peer.name}, as they have not both mixed; errors of "
            f"{_brief(error.largest_possible_error)} sd would not show."
        )
    return (
        f"agrees with {peer.name}: {largest}, which excludes errors of a mean above "
        f"{_brief(error.largest_possible_error)} sd."
    )


def _have_mixed(chains: Convergence | None, peer: Peer) -> bool:
    """Whether all chains of a sampler and of its reference have mixed."""
    theirs = peer.assessment.convergence
    return all(one is None or one.mixed for one in (chains, theirs))


def _frozen(error: Accuracy) -> str:
    """Sites that vary on one side alone, in words."""
    first, *others = error.frozen_sites
    more = f" (and {len(others)} more of {len(error.names)})" if others else ""
    return f"{first}{more} varies under one of the two alone"


def _why_not(chains: Convergence | None, peer: Peer) -> str:
    """Two posteriors of one target density that differ, the first a sampler's."""
    if peer.assessment.is_exact:
        return f"and {peer.name} is exact"
    if not peer.assessment.is_sampler:
        return f"but {peer.name} is an approximation"
    if peer.assessment.can_judge and chains is not None and chains.mixed:
        return "so one of the two is wrong"
    return "but they have not both mixed for long enough to say which is right"


def _error_of_mean(name: str, error: Accuracy, what: str = "mean") -> str:
    if error.frozen.any():
        return f"{name}'s {what} has an infinite error: {_frozen(error)}"
    worst = f"worst {_brief(error.worst_error)} sd at {error.worst_site}"
    # Without any error of its own, |error| averages √(2/π) ≈ 0.8 Monte-Carlo standard errors.
    noise = "which is noise: " if error.mean_error < error.mean_error_mcse else ""
    return (
        f"{name}'s {what} has an error of {_brief(error.mean_error)} sd on average ({worst}; "
        f"{noise}Monte-Carlo error {_brief(error.mean_error_mcse)})"
    )


def _width(error: Accuracy) -> str:
    """Width of 90 % intervals, in words where sites are alike."""
    mean, low, high = (of(error.width_ratio) for of in (np.mean, np.min, np.max))
    if low < mean / _SAME_WIDTH or high > mean * _SAME_WIDTH:
        return f"{_brief(low)} to {_brief(high)} times as wide as"
    for least, most, words in _FRACTIONS:
        if least <= mean <= most:
            return words
    return f"{_brief(mean)} times as wide as"


def _brief(value: float) -> str:
    """Two decimals, or two digits where that would hide the number."""
    return (
        f"{value:.2f}" if 0.1 <= value < 10 else f"{value:.2g}" if value < 10 else f"{value:,.0f}"
    )


def _other_target_density(verdict: Verdict) -> str:
    """The verdict on a posterior that has another target density than the reference."""
    peer, own = verdict.reference, verdict.own_reference
    if peer is None or not verdict.has_other_target_density:
        return ""
    if verdict.has_other_model:
        start = f"Its target density, {verdict.target_density}, is another model than {peer.name}'s"
    else:
        how = "given" if verdict.assessment.is_sampler else "learned or given"
        start = (
            f"Its hyper-parameters, {verdict.target_density}, were {how} otherwise than "
            f"{peer.name}'s, {peer.target_density}"
        )
    if own is None:
        return (
            f"{start}: that distance mixes the difference of the target densities with any error "
            f"of the engine; the typical |value| of its sites is {_brief(verdict.size)}."
        )
    if verdict.assessment.is_sampler:
        return f"{start}. On its own target density it {_agreement(verdict, own)}"
    chains = own.assessment.convergence
    fault = "" if chains is None or chains.mixed else f" (but {_FAULTS[chains.verdict]})"
    return (
        f"{start}; against {own.name}, which samples its own target density{fault}, its mean has "
        f"an error of {_brief(own.accuracy.mean_error)} sd and its sd ratio is "
        f"{_brief(own.accuracy.mean_sd_ratio)}, on average."
    )


def _runaway(name: str, verdict: Verdict) -> str:
    """Whether the posterior of its own model is in another region."""
    far = verdict.runaway
    if far is None:
        return ""
    target_density = (
        f"Its target density, {verdict.target_density},"
        if verdict.target_density
        else "Its target density"
    )
    start = "That target density" if verdict.has_other_target_density else target_density
    return (
        f"{start} has run away from it: typical "
        f"|value| {_brief(far.size)} under {far.name}, {_brief(verdict.size)} here. "
    ) + (
        f"{name}'s chains agree with each other, but never came there."
        if verdict.assessment.is_sampler
        else f"{name} stopped at a local optimum that is no approximation of its own model's "
        "posterior."
    )


def _importance(verdict: Verdict, *, has_missed: bool) -> str:
    """The verdict of k̂ on an approximation."""
    assessment = verdict.assessment
    khat, doubt = assessment.khat, 2 * assessment.khat_error
    if not assessment.has_density or isinstance(
        assessment.posterior.approximation, GridApproximation
    ):
        return ""
    if assessment.num_weighted < FEWEST_DRAWS:
        return (
            f"k̂ needs at least {FEWEST_DRAWS} draws of it, and there are {assessment.num_weighted}."
        )
    if math.isnan(khat):
        return "k̂ could not be computed: some density is not finite at its own draws."
    if khat == -math.inf:
        return "Its density is that of the exact posterior at every draw."
    said = f"k̂ = {khat:.2f} ± {assessment.khat_error:.2f}"
    largest = largest_khat(assessment.num_weighted)
    if khat - doubt > largest:
        return f"{said}: importance weighting cannot correct it."
    if verdict.is_left_behind or has_missed:
        return f"{said} does not see that: it knows only where there are draws."
    if khat + doubt > largest:
        return f"{said}: borderline, importance weighting corrects it up to {largest:.2f}."
    where = "correct it where it has draws"
    if khat + doubt <= EASY_KHAT:
        return f"{said}: importance weighting can easily {where}."
    return f"{said}: importance weighting can reliably {where}, given more of them."


def _predictions(verdict: Verdict, *, is_judged: bool) -> str:
    scores, difference = verdict.scores, verdict.difference
    if scores is None:
        return ""
    if difference is None or verdict.reference is None:
        return f"On the test bags its log loss is {scores.log_loss:.3f}."
    error = difference.log_loss_error
    change = f"{difference.log_loss:+.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}")
    unit = " predictive sds" if verdict.predicts_numbers else ""
    consequence = _consequence(verdict, difference, is_judged=is_judged)
    return (
        f"On the test bags its {_predicted(verdict)} are {difference.mean:.3f}{unit} from "
        f"{verdict.reference.name}'s on average (worst {difference.worst:.3f}), its "
        f"log loss {scores.log_loss:.3f} ({change}): {consequence}."
    )


def _predicted(verdict: Verdict) -> str:
    return "targets" if verdict.predicts_numbers else "probabilities"


def _consequence(verdict: Verdict, difference: PredictionDifference, *, is_judged: bool) -> str:
    if math.isnan(difference.log_loss_error):
        return "one bag cannot tell which is better"
    small, small_worst = _SMALL_PROBABILITY, _SMALL_WORST_PROBABILITY
    if verdict.predicts_numbers:
        small, small_worst = _SMALL_ERROR, _SMALL_WORST_ERROR
    if difference.mean <= small and abs(difference.log_loss) <= _SMALL_LOG_LOSS:
        if difference.worst <= small_worst:
            return "for predictions here it makes no difference"
        return "on average it makes no difference, but it does for some bags"
    if abs(difference.log_loss) <= 2 * difference.log_loss_error:
        return f"the {_predicted(verdict)} differ, but these bags cannot tell which are better"
    if difference.log_loss > 0:
        return "predictions here are worse for it"
    has_larger_error = (
        is_judged and not verdict.assessment.is_sampler and not verdict.has_other_target_density
    )
    although = ", though its posterior has the larger error" if has_larger_error else ""
    return f"predictions here are better for it{although}"
