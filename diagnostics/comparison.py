"""Posteriors of one model side by side: a table, a sentence for each, pictures, a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from ..datasets.bags import Bags
from ..inference.chains import check_counts
from ..inference.posterior import Posterior
from ..inference.prediction import Prediction, TargetPrediction
from ..models.model import part_of_bags
from . import figures
from .criticism import PredictiveCheck, predictive_check, prior_sensitivity
from .inside_a_bag import plot_bag
from .leave_one_out import all_left_out, leave_one_out_sentences, leave_one_out_table
from .measures import MEASURES, OF_LABELS, OF_NUMBERS
from .report import metrics, write_report
from .sentences import reference_sentence, sentence
from .targets import targets
from .verdict import Verdict, best_sampler, gather, judge

__all__ = ["Comparison", "compare"]

# Instances of a bag whose intervals can be told apart in a picture.
_READABLE = 30


@dataclass(frozen=True)
class Comparison:
    """How far each posterior may be trusted.

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

    def metrics(self) -> dict[str, Any]:
        """Table and sentences as JSON's types.

        None stands where a measure does not apply, and the strings ``"-inf"`` and ``"inf"`` for
        infinite ones, which JSON does not have: k̂ is ``"-inf"`` where an approximation is exact.
        """
        return metrics(self)

    def plot_forest(self, max_sites: int = 12) -> Figure:
        """Means and intervals of the sites on which the posteriors differ most."""
        return figures.forest(self, max_sites)

    def plot_elbo(self) -> Figure:
        """The bound by step, for the engines that have one."""
        return figures.elbo(self)

    def plot_trace(self, engine: str | None = None) -> Figure:
        """Traces of a sampler's worst-mixed sites; of the reference if none is named."""
        return figures.trace(self, self._sampler(engine))

    def plot_rank(self, engine: str | None = None) -> Figure:
        """Ranks of a sampler's worst-mixed sites, by chain; of the reference if none is named."""
        return figures.rank(self, self._sampler(engine))

    def plot_khat(self) -> Figure:
        """PSIS k̂ of each approximation, beside the limits for it."""
        return figures.khat(self)

    def plot_probabilities(self) -> Figure:
        """Probabilities of the test bags, with intervals, against the reference's."""
        return figures.probabilities(self)

    def plot_targets(self) -> Figure:
        """Predicted targets of the test bags, with 90 % predictive intervals, against the truth."""
        return figures.targets(self)

    def plot_calibration(self, of: Literal["bags", "instances"] = "bags") -> Figure:
        """Observed frequency by predicted probability on test bags, by isotonic regression.

        Of instances it is that of those whose label is known.
        """
        return figures.calibration(self, of)

    def plot_marginals(self, max_sites: int = 6) -> Figure:
        """Densities of the sites on which the posteriors differ most, one over the other."""
        return figures.marginals(self, max_sites)

    def plot_left_out(self, engine: str | None = None) -> Figure:
        """k̂ of leaving each bag out; of the reference, or of the first that can, if none is named.

        Raises
        ------
        ValueError
            If the posterior cannot leave a bag out.
        """
        return figures.left_out(self, engine)

    def plot_bag(
        self,
        bag: int | None = None,
        *,
        image_shape: tuple[int, int] | None = None,
        images: Float[np.ndarray, "N P"] | None = None,
    ) -> Figure:
        """Instances of one test bag with intervals; see `milzoo.diagnostics.plot_bag`.

        Parameters
        ----------
        bag : int or None
            Which; None for the positive one whose instances the posteriors see most differently.
        image_shape, images
            As there.
        """
        test = figures.labelled_test_bags(self)
        chosen = self._most_disputed_bag(test) if bag is None else bag
        # The reference in black, as in the other pictures.
        order = sorted(self.predictions, key=lambda name: name != self.reference)
        predictions = {name: self.predictions[name] for name in order}
        return plot_bag(predictions, test, chosen, image_shape=image_shape, images=images)

    def _most_disputed_bag(self, test: Bags) -> int:
        """The bag whose instances the posteriors see most differently: positive, small if any is.

        Without a small positive bag another small one, without a small one any.
        """
        instances = np.array([one.instance_probability for one in self.predictions.values()])
        dispute = np.maximum.reduceat(np.ptp(instances, axis=0), np.asarray(test.starts))
        is_small = np.asarray(test.bag_sizes) <= _READABLE
        is_positive = np.asarray(test.labels) == 1
        # The last key sorts first.
        return int(np.lexsort((dispute, is_small & is_positive, is_small))[-1])

    def save_report(
        self,
        folder: str | PathLike,
        *,
        origin: str = "",
        image_shape: tuple[int, int] | None = None,
        images: Float[np.ndarray, "N P"] | None = None,
    ) -> Path:
        """Write ``report.html``, its figures, ``metrics.json`` and a NetCDF file per posterior.

        Parameters
        ----------
        folder : path
            Made if it is not there.
        origin : str
            What made it (data, split, seed, command), so that it can be made again; put on the
            page and into ``metrics.json`` beside the versions of the packages.
        image_shape, images
            Of the test instances, if they are images; see `plot_bag`.

        Returns
        -------
        Path
            Of the page, which holds its figures and needs no network.

        Raises
        ------
        OSError
            If the folder cannot be written.
        ValueError
            If images have another number of pixels.
        """
        return write_report(self, Path(folder), origin, image_shape=image_shape, images=images)

    def _sampler(self, engine: str | None) -> str:
        samplers = [name for name, posterior in self.posteriors.items() if posterior.is_mcmc]
        chosen = engine or (self.reference if self.reference in samplers else None)
        chosen = chosen or next(iter(samplers), None)
        if chosen not in samplers:
            raise ValueError(
                f"engine is {engine!r}; expected a sampler of this comparison: "
                f"{', '.join(samplers) or 'it has none'}"
            )
        return chosen


def compare(
    posteriors: Mapping[str, Posterior],
    *,
    reference: str | None = None,
    test: Bags | None = None,
    num_draws: int = 4000,
    seed: int | Array = 0,
) -> Comparison:
    """Judge posteriors of one model on the same bags, side by side.

    Errors are measured site by site in the reference's posterior sds and come with their
    Monte-Carlo errors; k̂ is that of the ratios of the exact marginal posterior to the
    approximation; predictions are scored on ``test``.

    Parameters
    ----------
    posteriors : mapping of str to Posterior
        By the name that the table gives them. Other mixing laws, values of hyper-parameters
        (also learned ones) or priors are lawful and are told apart as other targets; other
        inducing points are not.
    reference : str or None
        The one to measure errors against; if left out, the best sampler: of the logistic model if
        there is one, mixed, with the largest smallest effective sample size, in this order.
    test : Bags or None
        Bags that no posterior has seen, features scaled as in training, with what the posteriors
        predict: labels, or targets.
    num_draws : int
        Fresh draws of each approximation, for k̂ and for its errors.
    seed : int or JAX key
        Of these draws. They judge, they are no result: the default makes a report repeatable.

    Returns
    -------
    Comparison

    Raises
    ------
    TypeError
        If the posteriors have no names.
    ValueError
        If the posteriors are not of the same bags or not of comparable models, some predict labels
        and some targets, the reference is none of them, the test bags do not have what is
        predicted, or there are no draws to judge by.
    """
    check_counts(num_draws=num_draws)
    _check(posteriors, reference, test)
    evidence = {
        name: gather(posterior, test=test, num_draws=num_draws, seed=seed)
        for name, posterior in posteriors.items()
    }
    chosen = best_sampler(evidence) if reference is None else reference
    target = targets({name: posterior.model for name, posterior in posteriors.items()})
    verdicts = {
        name: judge(name, evidence, target, reference=chosen, test=test) for name in evidence
    }
    why = reference_sentence(chosen, verdicts, chosen=reference is None)
    return Comparison(dict(posteriors), chosen, why, test, verdicts)


def _check(posteriors: Mapping[str, Posterior], reference: str | None, test: Bags | None) -> None:
    if not isinstance(posteriors, Mapping):
        raise TypeError(
            f"posteriors is a {type(posteriors).__name__}; expected a mapping of names to "
            "posteriors, such as {'nuts': posterior}"
        )
    if not posteriors:
        raise ValueError("posteriors is empty; expected at least one, by name")
    if reference is not None and reference not in posteriors:
        near = get_close_matches(reference, posteriors, n=1, cutoff=0.0)
        raise ValueError(
            f"reference is {reference!r}, none of the posteriors; did you mean {near[0]!r}?"
        )
    (first, one), *rest = posteriors.items()
    for name, other in rest:
        _check_same_kind(first, one, name, other)
    if test is not None and getattr(test, part_of_bags(one.model)) is None:
        raise ValueError(
            f"test bags have no {part_of_bags(one.model)}; compare scores predictions against "
            "them: pass bags that have them, or leave test out"
        )
    for name, other in rest:
        _check_same_bags(first, one.bags, name, other.bags)
        _check_same_sites(first, one, name, other)


def _check_same_kind(first: str, one: Posterior, name: str, other: Posterior) -> None:
    ours, theirs = part_of_bags(one.model), part_of_bags(other.model)
    if ours != theirs:
        raise ValueError(
            f"posterior {first!r} predicts {ours} and {name!r} predicts {theirs}; expected all of "
            "one kind: compare each kind by itself"
        )


def _check_same_bags(first: str, one: Bags, name: str, other: Bags) -> None:
    for part in ("bag_index", "labels", "targets", "instances"):
        ours, theirs = (np.asarray(getattr(bags, part)) for bags in (one, other))
        if not np.array_equal(ours, theirs):
            raise ValueError(
                f"posteriors {first!r} and {name!r} are of different bags (their {part} differ); "
                "expected all of the same training bags"
            )


def _check_same_sites(first: str, one: Posterior, name: str, other: Posterior) -> None:
    if type(one.model) is not type(other.model):
        raise ValueError(
            f"posteriors {first!r} and {name!r} are of different models, {one.model.name} and "
            f"{other.model.name}; expected one model, fitted by several engines"
        )
    for part in fields(one.model):  # type: ignore[arg-type]
        ours, theirs = getattr(one.model, part.name), getattr(other.model, part.name)
        if isinstance(ours, np.ndarray) and not np.array_equal(ours, theirs):
            raise ValueError(
                f"posteriors {first!r} and {name!r} have different {part.name}, so their sites are "
                "different quantities; fit all engines to one model object"
            )
