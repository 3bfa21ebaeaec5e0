"""Run the attempts of a table: resumable, one result after another."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from ..datasets import load
from ..datasets.arguments import look_up
from ..datasets.bags import Bags
from ..diagnostics import CrossValidation, cross_validate_bags
from ..diagnostics.measures.classification import Classification
from ..estimators.score_classifiers import Threshold
from ..inference.runtime.provenance import provenance
from .exhibits import SCORES, Attempt, Cell, Exhibit, Paper
from .protocols import Split, searched
from .results import Result, path_of, read, read_all, write

__all__ = ["attempts_of", "fingerprint", "reproduce", "scores_by_setting", "scores_of_attempt"]

# Bags of a toy, half of each label.
_TOY_BAGS = 40

type Report = Callable[[str], None]


def reproduce(
    paper: Paper,
    exhibit: Exhibit,
    folder: Path | None,
    *,
    protocols: Iterable[str] = ("as published", "honest"),
    methods: Iterable[str] | None = None,
    data: Iterable[str] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    toy: bool = False,
    again: bool = False,
    report: Report = lambda sentence: None,
) -> list[Result]:
    """Run the attempts of a table that have no result yet, and keep each as soon as it is there.

    Parameters
    ----------
    paper : Paper
    exhibit : Exhibit
    folder : Path or None
        Where results are kept, ``PAPER/EXHIBIT.csv`` below it; None for nowhere.
    protocols : iterable of str
    methods, data : iterable of str or None
        Methods as the paper calls them, and data sets; None for all.
    seed : int
    jobs : int or None
        Processes; None for one on each core.
    toy : bool
        Whether to run each method once on few bags, two splits and one setting, to see that it
        runs.
    again : bool
        Whether to run those again that have a result.
    report : callable
        Takes a sentence on each attempt.

    Returns
    -------
    list of Result
        All that are known, in the order of the table, and of every score that applies.

    Raises
    ------
    FileNotFoundError
        If a data set is not here.
    ValueError
        If a method or a data set is not in the table.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.estimators import ScoreLearner
    >>> from milzoo.models import NeighbourScore
    >>> from milzoo.papers import Attempt, Cell, Exhibit, Paper, Protocol, Published, reproduce
    >>> def halves(name, bags, seed):
    ...     order = np.random.default_rng(seed).permutation(bags.num_bags)
    ...     return [(order[::2], order[1::2])]
    >>> protocol = Protocol("honest", "One half of the bags predicts the other.", halves)
    >>> def nearest(bags, memory):
    ...     return ScoreLearner(NeighbourScore(1)), {}
    >>> attempt = Attempt(protocol, nearest)
    >>> cell = Cell("nearest", "kandemir2014", {"accuracy": Published(0.9)}, (attempt,))
    >>> table = Exhibit("table-1", "Accuracy", (cell,))
    >>> paper = Paper("our-2026", "We (2026), Our model.", (table,), remarks="")
    >>> results = reproduce(paper, table, None, jobs=1, report=lambda sentence: None)
    >>> {one.score: round(one.value, 2) for one in results if one.score in ("accuracy", "auc")}
    {'accuracy': 1.0, 'auc': 1.0}
    """
    path = None if folder is None else path_of(folder, paper, exhibit)
    known = [] if path is None else read(path)
    elsewhere = [] if folder is None or again else read_all(folder)
    chosen = _chosen(exhibit, protocols, methods, data)
    if toy:
        chosen = _one_of_each_method(chosen)
    for number, (cell, attempt) in enumerate(chosen, start=1):
        label = f"[{number}/{len(chosen)}] {cell.method} on {cell.data}, {attempt.protocol.name}"
        bags = _few(load(cell.data)) if toy else load(cell.data)
        mark = fingerprint(cell, attempt, bags, seed)
        key = (cell.method, cell.data, attempt.protocol.name)
        if not again and any(one.attempt == key and one.fingerprint == mark for one in known):
            report(f"{label}: known")
            continue
        taken = {one.score: one for one in elsewhere if one.fingerprint == mark}
        new = [replace(one, exhibit=exhibit.name, method=cell.method) for one in taken.values()]
        if not new:
            new = _results(exhibit, cell, attempt, bags, mark, seed=seed, jobs=jobs)
        known = _in_order(exhibit, [one for one in known if one.attempt != key] + new)
        if path is not None:
            write(path, known, f"milzoo reproduce {paper.name}/{exhibit.name}")
        shown = next((one for one in new if one.score in cell.published), new[0])
        named = SCORES.get(shown.score, shown.score)
        report(f"{label}: {named} {shown.value:.3f} in {shown.seconds:.0f} s")
    return known


def scores_by_setting(
    exhibit: Exhibit,
    *,
    protocols: Iterable[str] = ("as published", "honest"),
    methods: Iterable[str] | None = None,
    data: Iterable[str] | None = None,
    seed: int = 0,
    jobs: int | None = None,
) -> Iterator[tuple[Cell, Attempt, pd.DataFrame]]:
    """Mean scores of every setting that attempts choose from, on the reported test bags.

    They tell whether a difference is one of settings, and are no result of a method.

    Parameters
    ----------
    exhibit : Exhibit
    protocols, methods, data, seed, jobs
        As of `reproduce`.

    Yields
    ------
    Cell
    Attempt
        That has a choice of settings.
    pandas.DataFrame
        A row for each setting, a column for each score.

    Raises
    ------
    FileNotFoundError, ValueError
        As of `reproduce`.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.estimators import ScoreLearner
    >>> from milzoo.models import NeighbourScore
    >>> from milzoo.papers import Attempt, Cell, Exhibit, Protocol, Published, scores_by_setting
    >>> def halves(name, bags, seed):
    ...     order = np.random.default_rng(seed).permutation(bags.num_bags)
    ...     return [(order[::2], order[1::2])]
    >>> protocol = Protocol("honest", "One half of the bags predicts the other.", halves)
    >>> def nearest(bags, memory):
    ...     grid = {"neighbourhood_score": [NeighbourScore(k) for k in (1, 30)]}
    ...     return ScoreLearner(NeighbourScore(1)), grid
    >>> attempt = Attempt(protocol, nearest)
    >>> cell = Cell("nearest", "kandemir2014", {"accuracy": Published(0.9)}, (attempt,))
    >>> table = Exhibit("table-1", "Accuracy", (cell,))
    >>> ((cell, attempt, scores),) = scores_by_setting(table, jobs=1)
    >>> scores["accuracy"].round(1)
    classifier
    neighbourhood_score=NeighbourScore(k=1, transform=None)     1.0
    neighbourhood_score=NeighbourScore(k=30, transform=None)    1.0
    Name: accuracy, dtype: float64
    """
    for cell, attempt in _chosen(exhibit, protocols, methods, data):
        bags = load(cell.data)
        with TemporaryDirectory() as memory:
            estimator, grid = attempt.method(bags, memory)
            if not grid:
                continue
            splits = attempt.protocol.splits(cell.data, bags, seed)
            found = cross_validate_bags(_of_settings(estimator, grid), bags, splits, jobs=jobs)
        by_fold = found.by_fold.dropna(axis="columns", how="all")
        yield cell, attempt, by_fold.groupby("classifier", sort=False).mean()


def _chosen(
    exhibit: Exhibit,
    protocols: Iterable[str],
    methods: Iterable[str] | None,
    data: Iterable[str] | None,
) -> list[tuple[Cell, Attempt]]:
    """Attempts of the protocols, methods and data sets that are named."""
    for kind, named, of_cells in (
        ("method", methods, {cell.method: cell for cell in exhibit.cells}),
        ("data set", data, {cell.data: cell for cell in exhibit.cells}),
    ):
        for name in named or ():
            look_up(kind, name, of_cells)
    return [
        (cell, attempt)
        for cell, attempt in attempts_of(exhibit)
        if attempt.protocol.name in protocols
        and (methods is None or cell.method in methods)
        and (data is None or cell.data in data)
    ]


def _one_of_each_method(chosen: list[tuple[Cell, Attempt]]) -> list[tuple[Cell, Attempt]]:
    """The first attempt of each method, made smaller."""
    first: dict[str, tuple[Cell, Attempt]] = {}
    for cell, attempt in chosen:
        first.setdefault(cell.method, (cell, attempt.smaller()))
    return list(first.values())


def attempts_of(exhibit: Exhibit) -> Iterator[tuple[Cell, Attempt]]:
    """Attempts with their cells, in the order of the table."""
    for cell in exhibit.cells:
        for attempt in cell.attempts:
            yield cell, attempt


def _in_order(exhibit: Exhibit, results: list[Result]) -> list[Result]:
    """In the order of the table, without those of attempts that it has no more."""
    order = {
        (cell.method, cell.data, attempt.protocol.name): number
        for number, (cell, attempt) in enumerate(attempts_of(exhibit))
    }
    return sorted((one for one in results if one.attempt in order), key=lambda x: order[x.attempt])


def fingerprint(cell: Cell, attempt: Attempt, bags: Bags, seed: int) -> str:
    """A digest of all that decides the result of an attempt, except the code.

    Parameters
    ----------
    cell : Cell
    attempt : Attempt
        Of the cell.
    bags : Bags
        Of the cell's data set.
    seed : int

    Returns
    -------
    str
        Twelve hexadecimal digits.
    """
    estimator, grid = attempt.method(bags, None)
    settings = sorted(
        (name, repr(value))
        for name, value in estimator.get_params().items()
        if name.rpartition("__")[2] != "memory"
    )
    protocol = (attempt.protocol.name, attempt.protocol.sentence)
    everything = repr((settings, sorted(grid.items()), cell.data, len(bags), protocol, seed))
    return hashlib.sha256(everything.encode()).hexdigest()[:12]


def _results(
    exhibit: Exhibit,
    cell: Cell,
    attempt: Attempt,
    bags: Bags,
    mark: str,
    *,
    seed: int,
    jobs: int | None,
) -> list[Result]:
    """One result for each score that applies."""
    protocol = attempt.protocol
    splits, started = protocol.splits(cell.data, bags, seed), perf_counter()
    found = scores_of_attempt(attempt, bags, splits, seed=seed, jobs=jobs, is_timed=cell.is_timed)
    seconds = perf_counter() - started
    is_maximum = protocol.reports == "maximum"
    tested = [test for _, test in splits]
    num_tested = round(np.mean([len(test) for test in tested]))
    if not is_maximum:
        num_tested = len(np.unique(np.concatenate(tested)))
    made = provenance()
    by_split = found.by_split.dropna(axis="columns", how="all")
    return [
        Result(
            exhibit=exhibit.name,
            method=cell.method,
            data=cell.data,
            protocol=protocol.name,
            score=str(score),
            value=round(float(column.max() if is_maximum else column.mean()), 6),
            sd=math.nan if is_maximum else round(float(column.std()), 6),
            num_splits=len(splits),
            num_tested=int(num_tested),
            setting=found.setting,
            fingerprint=mark,
            seed=seed,
            seconds=round(seconds, 1),
            fit_seconds=round(found.fit_seconds, 3),
            **made,
        )
        for score, column in by_split.items()
    ]


class Scores(NamedTuple):
    """What an attempt gives.

    Attributes
    ----------
    by_split : pandas.DataFrame
        A row for each split, a column for each score.
    setting : str
        The one that the test bags chose; empty where the training bags choose.
    fit_seconds : float
        Of one fit, with the search inside it: the median over splits, as the first compiles.
    """

    by_split: pd.DataFrame
    setting: str
    fit_seconds: float


def scores_of_attempt(
    attempt: Attempt,
    bags: Bags,
    splits: list[Split],
    *,
    seed: int,
    jobs: int | None,
    is_timed: bool = False,
) -> Scores:
    """Fit an attempt to all splits, and score it on their test bags.

    Where the training bags choose, each split has a search of its own inside them, by accuracy.
    Where the test bags choose, every setting is fitted to every split, and the one with the highest
    accuracy on the test bags is reported: what a paper does that tunes and reports on the same
    folds. Where they set the threshold, accuracy and F1 are those at the best threshold of each
    split.

    Parameters
    ----------
    attempt : Attempt
    bags : Bags
    splits : list of pairs of arrays
    seed : int
        Of the folds inside the training bags.
    jobs : int or None
    is_timed : bool
        Whether seconds are a score: every split is then fitted twice, in one process, and the
        second fit is timed, for which programs are compiled and transformed bags are at hand.

    Returns
    -------
    Scores
    """
    with TemporaryDirectory() as memory:
        estimator, grid = attempt.method(bags, memory)
        if not grid or attempt.protocol.chosen_by == "training bags":
            candidates = {"": searched(estimator, grid, seed)}
        else:
            candidates = _of_settings(estimator, grid)
        found = cross_validate_bags(candidates, bags, splits, jobs=1 if is_timed else jobs)
        if is_timed:
            found = cross_validate_bags(candidates, bags, splits, jobs=1)
    if attempt.protocol.threshold_by == "test bags":
        found = _at_best_thresholds(found)
    accuracy = found.by_fold["accuracy"].groupby("classifier", sort=False).mean()
    best = str(accuracy.idxmax())
    by_split, seconds = found.by_fold.loc[best], found.fit_seconds[best]
    if is_timed:
        by_split = by_split.assign(seconds=seconds)
    return Scores(by_split, best, float(np.median(seconds)))


def _at_best_thresholds(found: CrossValidation) -> CrossValidation:
    """With the labels that have the fewest errors on the test bags of each split."""

    def at_best(one: Classification) -> Classification:
        threshold = Threshold.learn(one.decision, one.truth)
        return replace(one, label=(one.decision >= threshold.value).astype(int))

    classifications = {name: tuple(map(at_best, of)) for name, of in found.classifications.items()}
    return replace(found, classifications=classifications)


def _of_settings(estimator: Any, grid: dict[str, list]) -> dict[str, Any]:
    """The estimator with each setting of the grid, by name."""
    return {
        _in_words(setting): clone(estimator).set_params(**setting)
        for setting in ParameterGrid(grid)
    }


def _in_words(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name.rpartition('__')[2]}={value}" for name, value in setting.items())


def _few(bags: Bags) -> Bags:
    """The first bags of each label."""
    chosen = [np.flatnonzero(bags.labels == label)[: _TOY_BAGS // 2] for label in (0, 1)]
    return bags[np.sort(np.concatenate(chosen))]
