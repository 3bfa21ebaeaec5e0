"""Early stopping: the step of an ascent with the highest score, and when to look no further."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..posterior import Status
from .drivers import Ascent

__all__ = ["EarlyStop"]


class EarlyStop:
    """Keeps the ascent of the highest score, and ends it where that is no longer raised.

    It is called after each step, and remembers: one for each ascent.

    Parameters
    ----------
    score : callable
        Of the ascent up to a step.
    patience : int
        Steps in a row that may fail to raise the score.
    keep_best : bool
        Whether the ascent is taken back to the highest score at the end.
    """

    def __init__(
        self, score: Callable[[Ascent], float], patience: int, keep_best: bool = True
    ) -> None:
        self._score, self._patience, self._keep_best = score, patience, keep_best
        self._highest, self._best, self._num_steps = -math.inf, None, 0

    def __call__(self, ascent: Ascent) -> Status | None:
        """Look at the ascent after one more step; a status where it is the last.

        Raises
        ------
        ValueError
            If the score is no number.
        """
        self._num_steps = len(ascent.elbo)
        value = float(self._score(ascent))
        if math.isnan(value):
            raise ValueError(
                f"callback returned {value} after step {self._num_steps}; expected a number"
            )
        if value > self._highest:
            self._highest, self._best = value, ascent
        if self._best is not None and self._num_steps - len(self._best.elbo) >= self._patience:
            return Status("max_steps", "stopped early")
        return None

    def kept(self, last: Ascent) -> Ascent:
        """The ascent that is kept, with the seconds of all steps.

        Parameters
        ----------
        last : Ascent
            The whole one.

        Returns
        -------
        Ascent
            The whole one if it failed.
        """
        if self._best is None or last.status.kind == "failed":
            return last
        sentence = (
            f"stopped early: the callback returned {self._highest:.4g} after step "
            f"{len(self._best.elbo)}, the highest of {self._num_steps}"
        )
        kept = self._best
        if not self._keep_best:
            kept, sentence = last, f"{sentence}; the last is kept"
        return replace(kept, status=Status("max_steps", sentence), seconds=last.seconds)
