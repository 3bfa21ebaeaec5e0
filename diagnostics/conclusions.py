"""The conclusion of each picture of a report, in a line of numbers: its heading."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .checks.criticism import PredictiveCheck
from .checks.prior_predictive import PriorPredictive
from .compared import Compared
from .measures.scores import Scores
from .verdict import Verdict

__all__ = [
    "of_bag",
    "of_bound",
    "of_calibration",
    "of_chains",
    "of_check",
    "of_errors",
    "of_khat",
    "of_leave_one_out",
    "of_predictions",
    "of_prior",
    "of_widths",
]


def of_bound(comparison: Compared) -> str:
    """The end of each bound."""
    ends = {
        name: f"{float(posterior.elbo[-1]):,.2f} after {len(posterior.elbo):,} steps"
        for name, posterior in comparison.posteriors.items()
        if posterior.elbo is not None and len(posterior.elbo)
    }
    return f"The bound ends at {_listed(ends)}"


def of_chains(comparison: Compared, name: str) -> str:
    """Whether the chains of a sampler agree."""
    chains = comparison.verdicts[name].assessment.convergence
    assert chains is not None
    if chains.mixed:
        return f"{name} shows no sign of poor mixing: worst R̂ {chains.rhat:.3f}"
    return f"{name} has not mixed: {chains.complaints()[0]}"


def of_errors(comparison: Compared) -> str:
    """The largest error of a mean."""
    worst = _worst(comparison, lambda verdict: _error_of(verdict, "worst_error"))
    if worst is None:
        return "Nothing is there to measure errors by"
    name, size = worst
    peer = comparison.verdicts[name].reference
    assert peer is not None
    return (
        f"The largest error of a mean is {name}'s: {size:.2g} of {peer.name}'s sds at "
        f"{peer.accuracy.worst_site}"
    )


def of_widths(comparison: Compared) -> str:
    """The widths of all posteriors, as fractions of the reference's."""
    ratios = {
        name: f"{_error_of(verdict, 'mean_sd_ratio'):.2f}"
        for name, verdict in comparison.verdicts.items()
        if not math.isnan(_error_of(verdict, "mean_sd_ratio"))
    }
    if not ratios:
        return "Nothing is there to measure widths by"
    return f"Mean sd ratio to {comparison.reference}: {_listed(ratios)}"


def of_khat(comparison: Compared) -> str:
    """The k̂ of each approximation."""
    known = {
        name: verdict.assessment.khat
        for name, verdict in comparison.verdicts.items()
        if not math.isnan(verdict.assessment.khat)
    }
    return f"k̂: {_listed({name: _number(khat) for name, khat in known.items()})}"


def of_predictions(comparison: Compared) -> str:
    """How far predictions are from the reference's."""
    what = "targets" if comparison.predicts_numbers else "probabilities"
    worst = _worst(comparison, _difference)
    if worst is None:
        return f"Predicted {what} of the test bags"
    name, size = worst
    unit = " predictive sds" if comparison.predicts_numbers else ""
    return f"{name}'s {what} are {size:.3f}{unit} from {comparison.reference}'s on average"


def of_calibration(comparison: Compared, of: str = "") -> str:
    """Calibration errors, and what they are by chance; ``of`` is empty, or ``instance_``."""

    def said(scores: Scores) -> str:
        error, chance = (getattr(scores, f"{of}calibration_{what}") for what in ("error", "chance"))
        return f"{error:.2f} ({chance:.2f} by chance)"

    known = {
        name: said(verdict.scores)
        for name, verdict in comparison.verdicts.items()
        if verdict.scores is not None
        and not math.isnan(getattr(verdict.scores, f"{of}calibration_error"))
    }
    whose = "instances" if of else "bags"
    return f"Calibration error on {whose}: {_listed(known)}"


def of_bag(comparison: Compared) -> str:
    """How far apart the posteriors are on one instance."""
    seen = [one.instance_probability for one in comparison.predictions.values()]
    if len(seen) == 1:
        return "Where the witnesses of one bag are"
    return f"On one instance the posteriors are up to {np.ptp(seen, axis=0).max():.2f} apart"


def of_leave_one_out(comparison: Compared) -> str:
    """How many bags are too influential for weights."""
    table = comparison.loo
    name = comparison.reference if comparison.reference in table.index else table.index[0]
    number, worst = int(table.loc[name, "bad_bags"]), float(table.loc[name, "worst_khat"])
    if number == 0:
        return f"Weights of {name} can leave out every bag: worst k̂ {worst:.2f}"
    bags = "one bag" if number == 1 else f"{number} bags"
    return f"Weights of {name} cannot leave out {bags}: worst k̂ {worst:.2f}"


def of_check(check: PredictiveCheck) -> str:
    """Whether the model makes data like those observed."""
    lowest = float(check.table["posterior_p"].min())
    like = "like" if not check.sentences else "not all like"
    return f"Replicated data are {like} those observed: smallest p {lowest:.2g}"


def of_prior(prior: PriorPredictive) -> str:
    """Whether the prior expects data like those observed."""
    lowest = float(prior.table["p"].min())
    are = "are a surprise" if prior.surprises else "are no surprise"
    return f"Under the prior the data {are}: smallest p {lowest:.2g}"


def _error_of(verdict: Verdict, what: str) -> float:
    return getattr(verdict.reference.accuracy, what) if verdict.reference else math.nan


def _difference(verdict: Verdict) -> float:
    return verdict.difference.mean if verdict.difference else math.nan


def _worst(comparison: Compared, measured: Callable[[Verdict], float]) -> tuple[str, float] | None:
    """The posterior with the largest value of a measure, and the value."""
    known = {name: measured(verdict) for name, verdict in comparison.verdicts.items()}
    known = {name: value for name, value in known.items() if not math.isnan(value)}
    return max(known.items(), key=lambda item: item[1]) if known else None


def _number(khat: float) -> str:
    return "−∞" if khat == -math.inf else f"{khat:.2f}"


def _listed(values: dict[str, str]) -> str:
    return ", ".join(f"{value} ({name})" for name, value in values.items())
