"""The numbers and sentences of a comparison, which its pictures and its report are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from ..datasets.bags import Bags
from ..inference.posterior import Posterior
from ..inference.prediction import Prediction, TargetPrediction
from .checks.criticism import PredictiveCheck, predictive_check, prior_sensitivity
from .checks.leave_one_out import all_left_out, leave_one_out_sentences, leave_one_out_table
from .measures.columns import MEASURES, OF_LABELS, OF_NUMBERS
from .sentences import sentence
from .verdict import Verdict

__all__ = ["Compared"]


@dataclass(frozen=True)
class Compared:
    """What is known of posteriors of one model, side by side.

    Attributes
    ----------
    posteriors : dict of Posterior
    reference : str or None
        The posterior that errors are measured against.
    reference_sentence : str
        Which that is, why, and whether it is good enough.
    test : Bags or None
    verdicts : dict of Verdict
        All that was measured.
    """

    posteriors: dict[str, Posterior] = field(repr=False)
    reference: str | None
    reference_sentence: str
    test: Bags | None = field(repr=False)
    verdicts: dict[str, Verdict] = field(repr=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row for each posterior; NaN where a measure does not apply.

        The columns are those of `MEASURES`; the ones about what a posterior is about are there
        only if that differs or its ψ is not the logistic one, and test scores those of what is
        predicted, label or number.
        """
        rows = {name: verdict.row() for name, verdict in self.verdicts.items()}
        table = pd.DataFrame.from_dict(rows, orient="index")[[m.column for m in MEASURES]]
        table.index.name = "engine"
        if not any(verdict.target for verdict in self.verdicts.values()):
            about_targets = ["target", "own_reference", "own_mean_error", "own_sd_ratio", "size"]
            table = table.drop(columns=about_targets)
        return table.drop(columns=list(OF_LABELS if self.predicts_numbers else OF_NUMBERS))

    @cached_property
    def sentences(self) -> dict[str, str]:
        """What the numbers of each posterior mean."""
        return {name: sentence(name, verdict) for name, verdict in self.verdicts.items()}

    @cached_property
    def left_out(self) -> dict[str, Any]:
        """`leave_one_out` of each posterior that allows it, as ArviZ's ``ELPDData``."""
        return all_left_out(self.posteriors)

    @cached_property
    def loo(self) -> pd.DataFrame:
        """What each posterior says of bags left out, best first; see `leave_one_out_table`."""
        return leave_one_out_table(self.left_out)

    @cached_property
    def loo_sentences(self) -> list[str]:
        """Which model predicts bags left out best, and which numbers are provisional."""
        targets = {name: verdict.target for name, verdict in self.verdicts.items()}
        return list(leave_one_out_sentences(self.left_out, targets)) if self.left_out else []

    @property
    def has_one_target(self) -> bool:
        """Whether all posteriors are about one model with the same hyper-parameters."""
        return len({verdict.target for verdict in self.verdicts.values()}) == 1

    @property
    def predicts_numbers(self) -> bool:
        """Whether the posteriors are about real-valued targets of bags, not labels."""
        return any(verdict.predicts_numbers for verdict in self.verdicts.values())

    @property
    def predictions(self) -> dict[str, Prediction]:
        """Of the labels of test bags, by each posterior that did not fail; empty if none."""
        known = {name: verdict.evidence.prediction for name, verdict in self.verdicts.items()}
        return {name: one for name, one in known.items() if isinstance(one, Prediction)}

    @property
    def target_predictions(self) -> dict[str, TargetPrediction]:
        """Of the targets of test bags, by each posterior that did not fail; empty if none."""
        known = {name: verdict.evidence.prediction for name, verdict in self.verdicts.items()}
        return {name: one for name, one in known.items() if isinstance(one, TargetPrediction)}

    @cached_property
    def check(self) -> PredictiveCheck | None:
        """Labels (targets) drawn again under the reference, or the first that has draws.

        None where no posterior can, as of a model that makes no labels.
        """
        posterior = self._posterior_of_the_model
        return None if posterior is None else predictive_check(posterior, seed=0)

    @cached_property
    def sensitivity(self) -> pd.DataFrame | None:
        """`prior_sensitivity` of the posterior that `check` is of."""
        posterior = self._posterior_of_the_model
        return None if posterior is None else prior_sensitivity(posterior)

    @property
    def _posterior_of_the_model(self) -> Posterior | None:
        """The one to judge the model by: not its engine."""
        sound = {
            name: posterior
            for name, posterior in self.posteriors.items()
            if not (self.verdicts[name].evidence.failed or self.verdicts[name].evidence.is_point)
            and not posterior.model.replication_note
        }
        first = next(iter(sound.values()), None)
        return sound.get(self.reference, first) if self.reference else first
