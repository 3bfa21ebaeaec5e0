"""Columns of a comparison's table: each measure with its label, its group and its format."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["MEASURES", "OF_LABELS", "OF_NUMBERS", "Measure", "formatted"]


@dataclass(frozen=True)
class Measure:
    """A column of the table.

    Attributes
    ----------
    column : str
        Name in the table.
    label : str
        Name for readers.
    group : str
        The question that it answers.
    pattern : str
        A format specification.
    """

    column: str
    label: str
    group: str
    pattern: str


_RUN = "What was fitted?"
_SAMPLER = "Did the samplers work?"
_ERROR = "How large are the errors?"
_TEST = "Does it matter on test bags?"

MEASURES = (
    Measure("target_density", "target density", _RUN, ""),
    Measure("status", "status", _RUN, ""),
    Measure("seconds", "seconds", _RUN, ",.1f"),
    Measure("compile_seconds", "seconds to compile", _RUN, ",.1f"),
    Measure("wall_seconds", "seconds in all", _RUN, ",.1f"),
    Measure("elbo", "ELBO", _RUN, ",.2f"),
    Measure("rhat", "worst R̂", _SAMPLER, ".3f"),
    Measure("ess_bulk", "smallest bulk ESS", _SAMPLER, ",.0f"),
    Measure("ess_tail", "smallest tail ESS", _SAMPLER, ",.0f"),
    Measure("ess_per_second", "bulk ESS per second", _SAMPLER, ",.0f"),
    Measure("divergences", "divergences", _SAMPLER, ",.0f"),
    Measure("khat", "PSIS k̂", _ERROR, ".2f"),
    Measure("khat_error", "its standard error", _ERROR, ".2f"),
    Measure("mean_error", "mean error (sd)", _ERROR, ".3f"),
    Measure("error_mcse", "its Monte-Carlo error", _ERROR, ".3f"),
    Measure("worst_error", "worst error (sd)", _ERROR, ".3f"),
    Measure("sd_ratio", "sd ratio", _ERROR, ".3f"),
    Measure("sd_ratio_mcse", "Monte-Carlo error of the sd ratio", _ERROR, ".3f"),
    Measure("coverage_90", "probability of its 90 % intervals", _ERROR, ".3f"),
    Measure("coverage_50", "probability of its 50 % intervals", _ERROR, ".3f"),
    Measure("coverage_mcse", "Monte-Carlo error of the 90 % one", _ERROR, ".3f"),
    Measure("largest_z", "largest |z|", _ERROR, ".1f"),
    Measure("own_reference", "sampler of its own target density", _ERROR, ""),
    Measure("own_mean_error", "mean error against it (sd)", _ERROR, ".3g"),
    Measure("own_sd_ratio", "sd ratio to it", _ERROR, ".3g"),
    Measure("size", "mean |value of a site|", _ERROR, ",.3g"),
    Measure("log_loss", "log loss", _TEST, ".3f"),
    Measure("added_log_loss", "of it, added to the reference's", _TEST, "+.3f"),
    Measure("added_log_loss_error", "standard error of that", _TEST, ".3f"),
    Measure("miscalibration", "of it, saved by recalibration", _TEST, ".3f"),
    Measure("miscalibration_chance", "saved by it by chance", _TEST, ".3f"),
    Measure("rmse", "root mean squared error", _TEST, ",.4g"),
    Measure("brier", "Brier score", _TEST, ".3f"),
    Measure("auc", "AUC", _TEST, ".3f"),
    Measure("accuracy", "accuracy", _TEST, ".3f"),
    Measure("calibration_error", "calibration error", _TEST, ".3f"),
    Measure("calibration_chance", "calibration error by chance", _TEST, ".3f"),
    Measure("probability_difference", "mean |ΔP| from reference", _TEST, ".3f"),
    Measure("target_difference", "mean |Δ| from reference (predictive sd)", _TEST, ".3f"),
    Measure("instance_auc", "instance AUC", _TEST, ".3f"),
    Measure("instance_auc_pr", "instance AUC-PR", _TEST, ".3f"),
    Measure("instance_calibration_error", "instance calibration error", _TEST, ".3f"),
    Measure("instance_calibration_chance", "instance calibration error by chance", _TEST, ".3f"),
)

# Scores that only one kind of prediction has.
OF_NUMBERS = ("rmse", "target_difference")
OF_LABELS = (
    *("brier", "auc", "accuracy", "probability_difference"),
    *("miscalibration", "miscalibration_chance"),
    *("calibration_error", "calibration_chance", "instance_auc", "instance_auc_pr"),
    *("instance_calibration_error", "instance_calibration_chance"),
)


def formatted(measure: Measure, value: object) -> str:
    """Format a value for readers; a measure that does not apply is a dash.

    Examples
    --------
    >>> from milzoo.diagnostics.measures.columns import MEASURES, formatted
    >>> formatted(MEASURES[7], 3701.02), formatted(MEASURES[7], float("nan"))
    ('3,701', '–')
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float) or math.isnan(value):
        return "–"
    if value == -math.inf:
        return "−∞"
    return format(value, measure.pattern)
