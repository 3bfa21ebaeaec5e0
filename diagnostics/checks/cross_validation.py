"""Cross-validate several classifiers on the same folds, and compare them fold by fold."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int
from joblib import Parallel, delayed
from numpy.typing import ArrayLike
from scipy.special import expit
from scipy.stats import t as student_t
from sklearn.base import clone
from sklearn.model_selection import RepeatedStratifiedKFold

from ...datasets.arguments import WHOLE, check, check_probability, checked_seed, look_up
from ...datasets.bags import Bags
from ...inference.runtime.progress import Progress
from ..measures.classification import Classification, classify
from ..measures.reliability import Reliability, reliability

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CrossValidation", "corrected_interval", "cross_validate_bags"]

# Folds differ in size: dimensions without names.
type Fold = tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Scores of several classifiers on the same test folds.

    Attributes
    ----------
    names : tuple of str
        Of the classifiers.
    folds : tuple of pairs of int arrays
        Numbers of the training and of the test bags.
    classifications : dict of tuples of Classification
        By the classifier's name, one for each fold.
    fit_seconds, predict_seconds : dict of (J,) float arrays
        Wall seconds for each fold, with compilation.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.diagnostics import CrossValidation, cross_validate_bags
    >>> from milzoo.estimators import ScoreLearner
    >>> from milzoo.models import NeighbourScore
    >>> classifiers = {f"k = {k}": ScoreLearner(NeighbourScore(k)) for k in (1, 30)}
    >>> found: CrossValidation = cross_validate_bags(
    ...     classifiers, load("kandemir2014"), 4, seed=0, jobs=1
    ... )
    >>> found.differences("accuracy")[["difference", "low", "high", "p"]].round(2)
            difference   low  high     p
    k = 30         0.1 -0.34  0.54  0.53
    """

    names: tuple[str, ...]
    folds: tuple[Fold, ...] = field(repr=False)
    classifications: Mapping[str, tuple[Classification, ...]] = field(repr=False)
    fit_seconds: Mapping[str, Float[np.ndarray, " J"]] = field(repr=False)
    predict_seconds: Mapping[str, Float[np.ndarray, " J"]] = field(repr=False)

    @cached_property
    def by_fold(self) -> pd.DataFrame:
        """Each score of each classifier on each fold; NaN where it does not apply."""
        import pandas as pd

        rows = [
            {"classifier": name, "fold": fold} | classification.scores()
            for name in self.names
            for fold, classification in enumerate(self.classifications[name])
        ]
        return pd.DataFrame(rows).set_index(["classifier", "fold"])

    def table(self) -> pd.DataFrame:
        """One row for each classifier: the mean of each score over folds where it applies.

        Returns
        -------
        pandas.DataFrame
            With ``fit_seconds`` and ``predict_seconds`` of one fold in the mean, and
            ``calibration_error`` of the probabilities of all folds together (see `reliability`).
            Scores that apply to no classifier are left out.
        """
        table = self.by_fold.groupby("classifier").mean().loc[list(self.names)]
        table["calibration_error"] = [self._calibration_error(name) for name in self.names]
        table = table.dropna(axis="columns", how="all")
        table["fit_seconds"] = [self.fit_seconds[name].mean() for name in self.names]
        table["predict_seconds"] = [self.predict_seconds[name].mean() for name in self.names]
        return table

    def differences(
        self, score: str = "accuracy", *, reference: str | None = None, mass: float = 0.95
    ) -> pd.DataFrame:
        """Paired differences of a score from a reference, with corrected resampled t-intervals.

        Training sets of folds overlap, so that differences of folds are correlated, and their
        standard error is not s/√J. Nadeau and Bengio put √(1/J + n_test/n_train) s in its place.

        Parameters
        ----------
        score : str
            Such as ``"accuracy"``, ``"auc"`` or ``"log_loss"``.
        reference : str or None
            A classifier's name; None for the first.
        mass : float
            Of the intervals.

        Returns
        -------
        pandas.DataFrame
            For each other classifier: ``difference`` from the reference, above 0 where it is
            higher; ``low`` and ``high``; ``p`` of no difference; ``p_holm``, corrected for the
            number of comparisons by Holm's method; ``num_folds`` where the score applies to both.

        Raises
        ------
        ValueError
            If a name is unknown.

        References
        ----------
        Nadeau and Bengio (2003), Inference for the generalization error, Machine Learning 52.
        """
        import pandas as pd

        check_probability(mass=mass)
        reference = self.names[0] if reference is None else reference
        look_up("score", score, self.by_fold)
        look_up("reference", reference, self.classifications)
        rows = {}
        for name in self.names:
            if name != reference:
                difference = (self.by_fold.loc[name] - self.by_fold.loc[reference])[score]
                rows[name] = corrected_interval(difference.to_numpy(), self.test_ratio, mass)
        columns = ["difference", "low", "high", "p", "num_folds"]
        table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
        table.insert(4, "p_holm", _holm(table["p"].to_numpy()))
        return table

    def reliability_of(self, name: str) -> Reliability:
        """The calibration curve of the probabilities of all folds together.

        Raises
        ------
        ValueError
            If the classifier is unknown, or gives no probabilities.
        """
        parts = look_up("classifier", name, self.classifications)
        given = [part.log_odds for part in parts if part.log_odds is not None]
        if not given:
            raise ValueError(f"{name} gives no probabilities, so that they have no calibration")
        log_odds, truth = np.concatenate(given), np.concatenate([part.truth for part in parts])
        return reliability(expit(log_odds), truth, log_odds=log_odds)

    @property
    def test_ratio(self) -> float:
        """n_test/n_train, in the mean over folds."""
        return float(np.mean([len(test) / len(training) for training, test in self.folds]))

    def _calibration_error(self, name: str) -> float:
        if self.classifications[name][0].log_odds is None:
            return math.nan
        return self.reliability_of(name).error

    def __str__(self) -> str:
        return self.table().round(3).to_string(na_rep="–")


def cross_validate_bags(
    classifiers: Mapping[str, Any],
    bags: Bags,
    folds: int | ArrayLike | Iterable[tuple[ArrayLike, ArrayLike]] | Any,
    *,
    repeats: int = 1,
    seed: int | None = None,
    jobs: int | None = None,
    progress: bool = False,
) -> CrossValidation:
    """Fit every classifier to the training bags of every fold, and score it on the test bags.

    Parameters
    ----------
    classifiers : mapping of str to object
        By their names: estimators of bags, pipelines, searches; they are cloned for each fold.
        Test bags come without labels to them.
    bags : Bags
        With labels.
    folds : int, (B, R) array of int, splitter, or iterable of pairs
        Number of folds, stratified and drawn by ``seed``; or in which fold each bag is tested, in
        each of R repetitions, as `published_folds` gives it; or a splitter of scikit-learn; or
        pairs of numbers of training and of test bags.
    repeats : int
        Repetitions, where ``folds`` is a number.
    seed : int or None
        Of folds that are drawn, else None.
    jobs : int or None
        Processes; None for one on each core, 1 for none besides this one.
    progress : bool
        Whether a bar is shown.

    Returns
    -------
    CrossValidation

    Raises
    ------
    ValueError
        If there are no classifiers, the bags have no labels, or folds are not what is expected.
    RuntimeError
        If a classifier fails, with its name and the fold.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.diagnostics import cross_validate_bags
    >>> from milzoo.estimators import ScoreLearner
    >>> from milzoo.models import NeighbourScore
    >>> classifiers = {f"k = {k}": ScoreLearner(NeighbourScore(k)) for k in (1, 3)}
    >>> found = cross_validate_bags(classifiers, load("kandemir2014"), 4, seed=0, jobs=1)
    >>> found.table()[["accuracy", "auc"]].round(2)
                accuracy   auc
    classifier
    k = 1           0.88  0.97
    k = 3           0.90  1.00
    """
    if not classifiers:
        raise ValueError("there are no classifiers; expected at least one, by its name")
    if bags.labels is None:
        raise ValueError("bags have no labels; expected bags that are labelled")
    if jobs is not None:
        check("jobs", jobs, WHOLE)
    drawn = tuple(_folds(bags, folds, repeats, seed))
    tasks = [(name, fold) for name in classifiers for fold in range(len(drawn))]
    run = Parallel(n_jobs=jobs or os.cpu_count(), return_as="generator")
    parts: dict[str, list[tuple[Classification, float, float]]] = {name: [] for name in classifiers}
    with Progress("folds", len(tasks), shown=progress) as bar:
        results = run(
            delayed(_fit_and_classify)(name, fold, classifiers[name], bags, drawn[fold])
            for name, fold in tasks
        )
        for (name, _), result in zip(tasks, results, strict=True):
            parts[name].append(result)
            bar.advance(1)
    columns = {name: tuple(zip(*found, strict=True)) for name, found in parts.items()}
    return CrossValidation(
        names=tuple(classifiers),
        folds=drawn,
        classifications={name: column[0] for name, column in columns.items()},
        fit_seconds={name: np.array(column[1]) for name, column in columns.items()},
        predict_seconds={name: np.array(column[2]) for name, column in columns.items()},
    )


def corrected_interval(
    differences: Float[np.ndarray, " J"], test_ratio: float, mass: float
) -> tuple[float, float, float, float, int]:
    """Mean of differences over folds, its corrected resampled t-interval, p, and J.

    Parameters
    ----------
    differences : array (J,)
        NaN where a score does not apply; such folds are left out.
    test_ratio : float
        n_test/n_train.
    mass : float
        Of the interval.

    Returns
    -------
    mean, low, high, p : float
        The interval is NaN of fewer than two folds. Differences that are all the same have an
        interval of no width, and p is 1 if they are 0, else 0.
    J : int
    """
    differences = differences[np.isfinite(differences)]
    num = len(differences)
    if num < 2:
        mean = float(differences[0]) if num else math.nan
        return mean, math.nan, math.nan, math.nan, num
    mean = float(differences.mean())
    # √(1/J + n_test/n_train) s
    error = float(np.sqrt((1 / num + test_ratio) * differences.var(ddof=1)))
    if error == 0:
        return mean, mean, mean, float(mean == 0), num
    half = float(student_t.ppf(0.5 + mass / 2, num - 1)) * error
    p = float(2 * student_t.sf(abs(mean) / error, num - 1))
    return mean, mean - half, mean + half, p, num


def _fit_and_classify(
    name: str, fold: int, classifier: Any, bags: Bags, numbers: Fold
) -> tuple[Classification, float, float]:
    """Predictions for the test bags of a fold, and the seconds of fitting and predicting."""
    training, test = (bags[part] for part in numbers)
    try:
        begun = perf_counter()
        fitted = clone(classifier).fit(training, np.asarray(training.labels))
        done = perf_counter()
        return classify(fitted, test), done - begun, perf_counter() - done
    except Exception as error:
        raise RuntimeError(f"{name} failed on fold {fold}: {error}") from error


def _folds(bags: Bags, folds: Any, repeats: int, seed: int | None) -> Iterator[Fold]:
    """Numbers of training and of test bags, fold by fold."""
    labels = np.asarray(bags.labels)
    if isinstance(folds, int | np.integer):
        splitter = RepeatedStratifiedKFold(
            n_splits=folds, n_repeats=repeats, random_state=checked_seed(seed)
        )
        yield from splitter.split(labels, labels)
    elif hasattr(folds, "split"):
        yield from folds.split(bags, labels)
    elif isinstance(folds, np.ndarray):
        yield from _of_tested_in(folds, len(bags))
    else:
        for training, test in folds:
            yield np.asarray(training), np.asarray(test)


def _of_tested_in(tested_in: np.ndarray, num_bags: int) -> Iterator[Fold]:
    """Folds from the number of the fold in which each bag is tested."""
    if tested_in.shape[:1] != (num_bags,) or tested_in.ndim > 2 or tested_in.dtype.kind != "i":
        raise ValueError(
            f"folds have shape {tested_in.shape} and type {tested_in.dtype}; expected ({num_bags}, "
            "repetitions) integers, the number of the fold in which each bag is tested"
        )
    for repetition in tested_in.reshape(num_bags, -1).T:
        for fold in np.unique(repetition):
            yield np.flatnonzero(repetition != fold), np.flatnonzero(repetition == fold)


def _holm(p: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
    """p-values corrected for their number by Holm's method; NaN stays."""
    order = np.argsort(p)  # NaN last
    num = int(np.isfinite(p).sum())
    corrected = np.full(len(p), np.nan)
    scaled = p[order[:num]] * (num - np.arange(num))
    corrected[order[:num]] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected
