"""What predictions of bags lose by the model, and what by the engine."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from .checks.leave_one_out import HeldOutCalibration
from .verdict import Verdict

__all__ = ["attributed"]

# p-value of calibration below which an error of the model is told.
_RARE = 0.05


def attributed(
    verdicts: Mapping[str, Verdict],
    reference: str | None,
    missed: Collection[str],
    held_out: HeldOutCalibration | None,
) -> list[str]:
    """Say what of the log loss on test bags is the model's, and what each engine adds.

    The reference, if it can judge, has the model's own posterior. So errors of its predictions,
    for test bags or for held-out training bags, are errors of the model. What another posterior
    loses beside it is an error of that engine.

    Parameters
    ----------
    verdicts : dict of Verdict
    reference : str or None
    missed : collection of str
        Posteriors that did not visit a mode.
    held_out : HeldOutCalibration or None
        Of the reference; None where its bags cannot be held out.

    Returns
    -------
    list of str
        Empty where no reference is reliable.
    """
    if reference is None or reference in missed:
        return []
    judge = verdicts[reference]
    if not judge.assessment.can_judge or judge.disputed_by:
        return []
    sentences = [] if judge.scores is None else [_of_the_model(reference, judge)]
    if held_out is not None:
        sentences.append(_of_held_out_bags(reference, judge, held_out))
    return [*sentences, *_of_engines(verdicts, reference)]


def _of_the_model(name: str, judge: Verdict) -> str:
    scores = judge.scores
    assert scores is not None
    start = f"The model: by {name} the log loss is {scores.log_loss:.3f}"
    if math.isnan(scores.calibration_error):
        return f"{start}."
    error, chance = scores.calibration_error, scores.calibration_chance
    known = (
        f"the calibration error is {error:.2f}, {chance:.2f} by chance (p = "
        f"{scores.calibration_p:.2g}); recalibration would save {scores.miscalibration:.3f} nats, "
        f"{scores.miscalibration_chance:.3f} by chance"
    )
    if scores.calibration_p < _RARE:
        return f"{start}, and {known}: that is an error of the model, which no engine corrects."
    return f"{start}, and {known}: these bags show no error of the model."


def _of_held_out_bags(name: str, judge: Verdict, found: HeldOutCalibration) -> str:
    measure = (
        "the distribution function of leave-one-out PIT values is at most"
        if judge.predicts_numbers
        else "the calibration error is"
    )
    unit = " from uniform" if judge.predicts_numbers else ""
    text = (
        f"For training bags held out in turn, by {name}'s weights, {measure} "
        f"{found.error:.2f}{unit}, {found.by_chance:.2f} by chance (p = {found.p_value:.2g})"
    )
    if found.num_influential:
        text += f", {found.num_influential} bags too influential for weights not counted"
    if found.p_value < _RARE:
        return f"{text}: that is an error of the model too."
    return f"{text}: these show no error of the model."


def _of_engines(verdicts: Mapping[str, Verdict], reference: str) -> Iterator[str]:
    added = {
        name: f"{name} {verdict.difference.log_loss:+.3f} ± {verdict.difference.log_loss_error:.3f}"
        for name, verdict in verdicts.items()
        if verdict.difference is not None and not verdict.has_other_target_density
    }
    if added:
        yield f"The engines add to {reference}'s log loss: {', '.join(added.values())} nats."
