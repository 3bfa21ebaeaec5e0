"""What predictions of test bags lose by the model, and what by the engine."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from .verdict import Verdict

__all__ = ["attributed"]

# p-value of calibration below which an error of the model is told.
_RARE = 0.05


def attributed(
    verdicts: Mapping[str, Verdict], reference: str | None, missed: Collection[str]
) -> list[str]:
    """Say what of the log loss on test bags is the model's, and what each engine adds.

    The reference, if it can judge, has the model's own posterior: what is wrong with its
    predictions is wrong with the model. What others lose beside it is the engine's.

    Parameters
    ----------
    verdicts : dict of Verdict
    reference : str or None
    missed : collection of str
        Posteriors that did not visit a mode.

    Returns
    -------
    list of str
        Empty where no reliable reference predicts test bags.
    """
    if reference is None or reference in missed:
        return []
    judge = verdicts[reference]
    if judge.scores is None or not judge.assessment.can_judge or judge.disputed_by:
        return []
    return [_of_the_model(reference, judge), *_of_engines(verdicts, reference)]


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


def _of_engines(verdicts: Mapping[str, Verdict], reference: str) -> Iterator[str]:
    added = {
        name: f"{name} {verdict.difference.log_loss:+.3f} ± {verdict.difference.log_loss_error:.3f}"
        for name, verdict in verdicts.items()
        if verdict.difference is not None and not verdict.has_other_target
    }
    if added:
        yield f"The engines add to {reference}'s log loss: {', '.join(added.values())} nats."
