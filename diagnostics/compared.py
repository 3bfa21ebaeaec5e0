"""The numbers and sentences of a comparison, which its pictures and its report are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from ..datasets.bags import Bags
from ..inference.posterior import Posterior
from ..inference.prediction import Prediction, TargetPrediction
from .attribution import attributed
from .checks.criticism import PredictiveCheck, predictive_check, prior_sensitivity
from .checks.dispersed_starts import Missed, find_modes
from .checks.leave_one_out import (
    held_out_calibration,
    leave_one_out_of_all,
    leave_one_out_sentences,
    leave_one_out_table,
    why_none_is_held_out,
)
from .checks.prior_predictive import PriorPredictive, prior_predictive
from .divergence import Divergence, divergence_table, divergences
from .headlines import Headline, headline
from .joint import JointTest, joint_sentences, joint_table, joint_tests
from .measures.columns import MEASURES, OF_LABELS, OF_NUMBERS
from .sentences import reference_sentence, sentence
from .verdict import Verdict, names_by_target_density

__all__ = ["Compared"]


@dataclass(frozen=True)
class Compared:
    """Measurements of posteriors of one model, side by side.

    Attributes
    ----------
    posteriors : dict of Posterior
    reference : str or None
        The posterior that errors are measured against.
    is_chosen : bool
        Whether the reference was chosen, not asked for.
    test : Bags or None
    verdicts : dict of Verdict
        All that was measured.
    """

    posteriors: dict[str, Posterior] = field(repr=False)
    reference: str | None
    is_chosen: bool
    test: Bags | None = field(repr=False)
    verdicts: dict[str, Verdict] = field(repr=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row for each posterior; NaN where a measure does not apply.

        The columns are those of `MEASURES`. Those on target densities are there only if these
        differ or ψ is not the logistic one; test scores are those of labels or of numbers.
        """
        rows = {name: verdict.row() for name, verdict in self.verdicts.items()}
        table = pd.DataFrame.from_dict(rows, orient="index")[[m.column for m in MEASURES]]
        table.index.name = "engine"
        if not any(verdict.target_density for verdict in self.verdicts.values()):
            about_target_densities = [
                "target_density",
                "own_reference",
                "own_mean_error",
                "own_sd_ratio",
                "size",
            ]
            table = table.drop(columns=about_target_densities)
        return table.drop(columns=list(OF_LABELS if self.predicts_numbers else OF_NUMBERS))

    @cached_property
    def reference_sentence(self) -> str:
        """Names the reference, why it was chosen, and whether it is good enough."""
        return reference_sentence(
            self.reference, self.verdicts, chosen=self.is_chosen, missed=self.missed
        )

    @cached_property
    def sentences(self) -> dict[str, str]:
        """A verdict in words on each posterior."""
        return {
            name: sentence(name, verdict, missed=self.missed, divergence=self.divergences.get(name))
            for name, verdict in self.verdicts.items()
        }

    @cached_property
    def headlines(self) -> dict[str, Headline]:
        """The verdict on each posterior in one word, with the number that decides."""
        return {
            name: headline(name, verdict, missed=self.missed, divergence=self.divergences.get(name))
            for name, verdict in self.verdicts.items()
        }

    @cached_property
    def missed(self) -> dict[str, Missed]:
        """Modes of its target density with much mass that a posterior did not visit.

        As `find_modes` finds them from dispersed starts; computed when first asked for.
        """
        found = {}
        for names in names_by_target_density(self.verdicts):
            posteriors = {name: self.posteriors[name] for name in names}
            first = next(iter(posteriors.values()))
            draws = {name: one.stored_draws() for name, one in posteriors.items()}
            modes = find_modes(first.model, first.bags, draws, seed=0)
            missed = {name: modes.missed(name) for name in names} if modes else {}
            found |= {name: one for name, one in missed.items() if one is not None}
        return found

    @cached_property
    def divergences(self) -> dict[str, Divergence]:
        """KL(q‖p) and the gap to the evidence, by approximation; computed when first asked for.

        Not of approximations that missed a mode, nor by draws that did: log Z is then unknown.
        """
        known = {n: verdict for n, verdict in self.verdicts.items() if n not in self.missed}
        return divergences(known, seed=0)

    @property
    def divergence_table(self) -> pd.DataFrame:
        """`divergences` in nats, a row for each approximation."""
        return divergence_table(self.divergences)

    @cached_property
    def joint(self) -> dict[str, JointTest]:
        """Tests of all sites at once, by posterior: computed when first asked for, in seconds."""
        return joint_tests(self.verdicts, missed=self.missed, seed=0)

    @property
    def joint_table(self) -> pd.DataFrame:
        """`joint` in numbers, a row for each posterior."""
        return joint_table(self.joint)

    @property
    def joint_sentences(self) -> list[str]:
        """`joint` in words: what can be told apart, and where it differs most."""
        return joint_sentences(self.joint)

    @cached_property
    def attribution(self) -> list[str]:
        """What of the log loss on test bags is an error of the model, and what each engine adds."""
        held_out = None
        if self.reference is not None and self.reference in self.leave_one_out:
            found = self.leave_one_out[self.reference]
            held_out = held_out_calibration(self.posteriors[self.reference], found)
        return attributed(self.verdicts, self.reference, self.missed, held_out)

    @cached_property
    def leave_one_out(self) -> dict[str, Any]:
        """`leave_one_out` of each posterior that allows it, as ArviZ's ``ELPDData``."""
        return leave_one_out_of_all(self.posteriors)

    @cached_property
    def loo(self) -> pd.DataFrame:
        """Predictions of held-out bags by posterior, best first; see `leave_one_out_table`."""
        return leave_one_out_table(self.leave_one_out)

    @cached_property
    def loo_sentences(self) -> list[str]:
        """Which model predicts held-out bags best and how sure that is, or why none can be said."""
        target_densities = {name: verdict.target_density for name, verdict in self.verdicts.items()}
        if not self.leave_one_out:
            return list(why_none_is_held_out(self.posteriors))
        chains = {name: verdict.assessment.convergence for name, verdict in self.verdicts.items()}
        unmixed = [name for name, one in chains.items() if one is not None and not one.mixed]
        return list(leave_one_out_sentences(self.leave_one_out, target_densities, unmixed))

    @property
    def has_one_target_density(self) -> bool:
        """Whether all posteriors are about one model with the same hyper-parameters."""
        return len({verdict.target_density for verdict in self.verdicts.values()}) == 1

    @property
    def predicts_numbers(self) -> bool:
        """Whether the posteriors are about real-valued targets of bags, not labels."""
        return any(verdict.predicts_numbers for verdict in self.verdicts.values())

    @property
    def predictions(self) -> dict[str, Prediction]:
        """Predictions of test labels, by each posterior that did not fail; empty if none."""
        known = {name: verdict.assessment.prediction for name, verdict in self.verdicts.items()}
        return {name: one for name, one in known.items() if isinstance(one, Prediction)}

    @property
    def target_predictions(self) -> dict[str, TargetPrediction]:
        """Predictions of test targets, by each posterior that did not fail; empty if none."""
        known = {name: verdict.assessment.prediction for name, verdict in self.verdicts.items()}
        return {name: one for name, one in known.items() if isinstance(one, TargetPrediction)}

    @cached_property
    def check(self) -> PredictiveCheck | None:
        """Replicated labels (targets) under the reference, or the first posterior with draws.

        None where no posterior has them, such as of a model without a likelihood of labels, or
        whose prior cannot be drawn from.
        """
        posterior = self._posterior_of_the_model
        if posterior is None or not posterior.model.is_normalised:
            return None
        return predictive_check(posterior, seed=0)

    @cached_property
    def prior_predictive(self) -> PriorPredictive | None:
        """Labels (targets) that the model expects before any is seen; None where `check` is."""
        posterior = self._posterior_of_the_model
        if posterior is None or not posterior.model.is_normalised:
            return None
        return prior_predictive(posterior.model, posterior.bags, seed=0)

    @cached_property
    def sensitivity(self) -> pd.DataFrame | None:
        """`prior_sensitivity` of the posterior that `check` is of."""
        posterior = self._posterior_of_the_model
        return None if posterior is None else prior_sensitivity(posterior)

    @property
    def _posterior_of_the_model(self) -> Posterior | None:
        """The posterior to judge the model by: the reference, or the first sound one."""
        sound = {
            name: posterior
            for name, posterior in self.posteriors.items()
            if not (
                self.verdicts[name].assessment.failed or self.verdicts[name].assessment.is_point
            )
            and not posterior.model.replication_note
        }
        first = next(iter(sound.values()), None)
        return sound.get(self.reference, first) if self.reference else first
