"""The verdicts in words: a sentence or three for each engine that a statistician would sign."""

from __future__ import annotations

import math

from .accuracy import Accuracy
from .scores import PredictionDifference
from .verdict import Verdict

__all__ = ["reference_sentence", "sentence"]

# Means and sds of two samplers of one posterior differ by more than this in Monte-Carlo standard
# errors once in a million comparisons of a hundred quantities.
_LARGEST_Z = 5.5
_LARGEST_KHAT = 0.7
_EASY_KHAT = 0.5
# Below both, another posterior makes no difference that a user of the predictions would notice.
_SMALL_PROBABILITY = 0.02
_SMALL_LOG_LOSS = 0.01

_FRACTIONS = (
    (0.28, 0.38, "a third as wide as"),
    (0.45, 0.55, "half as wide as"),
    (0.62, 0.71, "two thirds as wide as"),
    (0.72, 0.78, "three quarters as wide as"),
    (0.95, 1.05, "as wide as"),
    (1.90, 2.10, "twice as wide as"),
)


def reference_sentence(reference: str | None, verdicts: dict[str, Verdict], *, chosen: bool) -> str:
    """What all are compared with, and whether it may be."""
    if reference is None:
        return (
            "No sampler is among the posteriors: nothing says how far off they are but k̂; add "
            "nuts or gibbs."
        )
    chains = verdicts[reference].evidence.convergence
    if chains is None:
        return f"The reference is {reference}, itself an approximation: agreement is no proof."
    why = (
        "the sampler with the largest smallest effective sample size "
        f"({min(chains.ess_bulk, chains.ess_tail):,.0f})"
    )
    start = f"The reference is {reference}" + (f", {why}" if chosen else ", as asked for")
    if not chains.mixed:
        return (
            f"{start}; but it has not mixed ({'; '.join(chains.complaints())}): all errors here "
            "are provisional, run longer chains."
        )
    if not chains.is_reference:
        return f"{start}; it has mixed, but with an ESS below 1,000: longer chains would be better."
    return f"{start}."


def sentence(name: str, verdict: Verdict) -> str:
    """What the numbers of one engine mean.

    Parameters
    ----------
    name : str
    verdict : Verdict

    Returns
    -------
    str
    """
    if verdict.evidence.failed:
        return (
            f"{name} failed ({verdict.evidence.posterior.status.sentence}): none of its numbers "
            "means anything."
        )
    parts = [
        _own_quality(name, verdict),
        _distance(name, verdict),
        _own_target(name, verdict),
        _importance(verdict),
        _predictions(verdict),
    ]
    return " ".join(filter(None, parts))


def _own_quality(name: str, verdict: Verdict) -> str:
    """Whether the sampler mixed, or the ascent ended."""
    chains = verdict.evidence.convergence
    if chains is None:
        kind = verdict.evidence.posterior.status.kind
        stopped = verdict.evidence.posterior.status.sentence
        return "" if kind == "converged" else f"{name} stopped before it converged: {stopped}."
    run = f"{chains.num_chains} × {chains.num_draws:,} draws"
    if not chains.mixed:
        faults = "; ".join(chains.complaints())
        if chains.verdict == "too short":
            return f"{name}'s {run} are too few (worst R̂ {chains.rhat:.3f}; {faults})."
        return f"{name}'s {run} have not mixed: {faults}. Do not use them."
    divergent = "" if math.isnan(chains.divergences) else ", no divergence"
    return (
        f"{name}'s {run} have mixed (worst R̂ {chains.rhat:.3f}, smallest ESS {chains.ess_bulk:,.0f}"
        f" bulk and {chains.ess_tail:,.0f} tail{divergent})."
    )


def _distance(name: str, verdict: Verdict) -> str:
    """How far from the reference."""
    error, reference = verdict.accuracy, verdict.reference
    if error is None or reference is None:
        return ""
    if verdict.evidence.convergence is not None and not verdict.has_other_target:
        return _agreement(error, reference)
    if verdict.has_other_target:
        return _error_of_mean(name, error) + (
            f", and its sd {_brief(error.mean_sd_ratio)} times {reference}'s."
        )
    return _error_of_mean(name, error) + (
        f" and its sd is {_brief(error.mean_sd_ratio)} of {reference}'s: intervals from it are "
        f"{_width(error.mean_sd_ratio)} they should be."
    )


def _agreement(error: Accuracy, reference: str) -> str:
    agrees = error.largest_z <= _LARGEST_Z
    return (
        f"It {'agrees' if agrees else 'does not agree'} with {reference}: largest |z| "
        f"{error.largest_z:.1f} Monte-Carlo standard errors over {len(error.z)} means and sds"
        + ("." if agrees else ", so one of the two is wrong or has not mixed.")
    )


def _error_of_mean(name: str, error: Accuracy) -> str:
    worst = f"worst {_brief(error.worst_error)} sd at {error.worst_site}"
    # Without any error of its own, |error| averages √(2/π) ≈ 0.8 Monte-Carlo standard errors.
    noise = "which is noise: " if error.mean_error < error.mean_error_mcse else ""
    return (
        f"{name}'s mean is {_brief(error.mean_error)} sd off on average ({worst}; {noise}"
        f"Monte-Carlo error {_brief(error.mean_error_mcse)})"
    )


def _width(ratio: float) -> str:
    for low, high, words in _FRACTIONS:
        if low <= ratio <= high:
            return words
    return f"{_brief(ratio)} times as wide as"


def _brief(value: float) -> str:
    """Two decimals, or two digits where that would hide the number."""
    return (
        f"{value:.2f}" if 0.1 <= value < 10 else f"{value:.2g}" if value < 10 else f"{value:,.0f}"
    )


def _own_target(name: str, verdict: Verdict) -> str:
    """What to make of a posterior whose model is another than the reference's."""
    if not verdict.has_other_target:
        return ""
    start = f"Its target, {verdict.target}, is another model than {verdict.reference}'s"
    own, own_reference = verdict.own_accuracy, verdict.own_reference
    if own is None:
        return (
            f"{start}: that distance mixes the difference of the models with any error of the "
            f"engine; the typical |value| of its sites is {_brief(verdict.size)}."
        )
    unmixed = "" if verdict.own_reference_mixed else " (but has not mixed)"
    text = (
        f"{start}; against {own_reference}, which samples its own target{unmixed}, its mean is "
        f"{_brief(own.mean_error)} sd off and its sd ratio {_brief(own.mean_sd_ratio)}."
    )
    if not verdict.is_left_behind:
        return text
    return (
        f"{text} That target has run away from it: typical |value| {_brief(verdict.own_size)} "
        f"under {own_reference}, {_brief(verdict.size)} here. {name} stopped at a local optimum "
        "that is no approximation of its own model's posterior."
    )


def _importance(verdict: Verdict) -> str:
    """What k̂ says of an approximation."""
    khat = verdict.evidence.khat
    if verdict.evidence.convergence is not None:
        return ""
    if math.isnan(khat):
        return "k̂ could not be computed: some density is not finite at its own draws."
    if khat > _LARGEST_KHAT:
        return f"k̂ = {khat:.2f}: importance weighting cannot mend it."
    if verdict.is_left_behind:
        return f"k̂ = {khat:.2f} does not see that: it knows only where there are draws."
    how = "easily" if khat <= _EASY_KHAT else "barely"
    return f"k̂ = {khat:.2f}: importance weighting can {how} mend what is wrong where it has draws."


def _predictions(verdict: Verdict) -> str:
    scores, difference = verdict.scores, verdict.difference
    if scores is None:
        return ""
    if difference is None:
        return f"On the test bags its log loss is {scores.log_loss:.3f}."
    change = f"{difference.log_loss:+.3f} ± {difference.log_loss_error:.3f}"
    return (
        f"On the test bags its probabilities are {difference.probability:.3f} from "
        f"{verdict.reference}'s on average (worst {difference.worst_probability:.3f}), its log "
        f"loss {scores.log_loss:.3f} ({change}): {_consequence(difference)}."
    )


def _consequence(difference: PredictionDifference) -> str:
    same_probabilities = difference.probability <= _SMALL_PROBABILITY
    same_loss = abs(difference.log_loss) <= _SMALL_LOG_LOSS
    if same_probabilities and same_loss:
        return "for predictions here it makes no difference"
    if abs(difference.log_loss) <= 2 * difference.log_loss_error:
        return "the probabilities differ, but these bags cannot tell which are better"
    if difference.log_loss > 0:
        return "predictions here are worse for it"
    return "predictions here are better for it, though it is further from the posterior"
