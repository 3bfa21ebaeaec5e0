"""Results of attempts, kept as CSV, and how they compare with the published numbers."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, get_type_hints

from .exhibits import Cell, Exhibit, Paper, Published, binomial_error

__all__ = [
    "Comparison",
    "Outcome",
    "Result",
    "compared",
    "outcome_of",
    "outcomes_of",
    "read",
    "reasons",
    "write",
]

# Differences up to so many standard errors count as reproduced.
AS_GOOD_AS_EQUAL = 2.0

_WORSE = {"reproduced": 0, "not possible here": 1, "differs": 2, "not done yet": 3}

type State = Literal["reproduced", "differs", "not possible here", "not done yet"]


@dataclass(frozen=True)
class Result:
    """One score of one attempt, with all that is needed to run it again.

    Attributes
    ----------
    exhibit, method, data, protocol, score : str
        What it is a result of.
    value : float
        The mean or the maximum over splits.
    sd : float
        Over splits; NaN of one split, and of a maximum, whose error it does not tell.
    num_splits, num_tested : int
        Splits, and bags that one value is of: all that are tested, or those of one split where the
        maximum is reported.
    setting : str
        The one that was chosen by the test bags; else empty.
    fingerprint : str
        Of the classifier with its grid, the data set and the protocol: one attempt that stands in
        two tables is run once, and one that has changed is run again.
    seed : int
    seconds, fit_seconds : float
        Wall seconds of the whole attempt, and of one fit with the search inside it (the median).
    date, commit, machine, versions : str

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.estimators import ScoreLearner
    >>> from milzoo.models import NeighbourScore
    >>> from milzoo.papers import Attempt, Cell, Exhibit, Paper, Protocol, Published
    >>> from milzoo.papers import Result, reproduce
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
    >>> result: Result = reproduce(paper, table, None, jobs=1)[0]
    >>> result.method, result.data, result.score
    ('nearest', 'kandemir2014', 'accuracy')
    >>> round(result.value, 1), result.num_splits, result.num_tested
    (1.0, 1, 20)
    """

    exhibit: str
    method: str
    data: str
    protocol: str
    score: str
    value: float
    sd: float
    num_splits: int
    num_tested: int
    setting: str
    fingerprint: str
    seed: int
    seconds: float
    fit_seconds: float
    date: str
    commit: str
    machine: str
    versions: str

    @property
    def error(self) -> float:
        """Standard error of the mean over splits; 0 where there is none."""
        return 0.0 if math.isnan(self.sd) else self.sd / math.sqrt(self.num_splits)

    @property
    def attempt(self) -> tuple[str, str, str]:
        """What is run at once: method, data and protocol."""
        return self.method, self.data, self.protocol


def path_of(folder: Path, paper: Paper, exhibit: Exhibit) -> Path:
    """The file of a table's results."""
    return folder / paper.name / f"{exhibit.name}.csv"


def read(path: Path) -> list[Result]:
    """The results in a file, in their order; none if there is no file.

    Raises
    ------
    ValueError
        If it has other columns.
    """
    if not path.exists():
        return []
    types = get_type_hints(Result)
    with path.open(newline="", encoding="utf-8") as file:
        next(file)  # the command
        rows = csv.DictReader(file)
        if rows.fieldnames != list(types):
            raise ValueError(
                f"{path} has the columns {rows.fieldnames}; expected {list(types)}: it is of "
                "another version of milzoo; move it away and run again"
            )
        return [Result(**{name: types[name](text) for name, text in row.items()}) for row in rows]


def read_all(folder: Path) -> list[Result]:
    """The results of all tables."""
    return [one for path in sorted(folder.glob("*/*.csv")) for one in read(path)]


def write(path: Path, results: Iterable[Result], command: str) -> None:
    """Write a file as a whole: a run that is killed leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    with beside.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {command}\n")
        rows = csv.DictWriter(file, [field.name for field in fields(Result)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(asdict(result) for result in results)
    os.replace(beside, path)


@dataclass(frozen=True)
class Comparison:
    """One published number beside ours.

    Attributes
    ----------
    cell : Cell
    score : str
    published : Published
    ours : dict of str to Result
        By protocol; those that have been run.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.estimators import ScoreLearner
    >>> from milzoo.models import NeighbourScore
    >>> from milzoo.papers import Attempt, Cell, Exhibit, Paper, Protocol, Published
    >>> from milzoo.papers import Comparison, compared, reproduce
    >>> def halves(name, bags, seed):
    ...     order = np.random.default_rng(seed).permutation(bags.num_bags)
    ...     return [(order[::2], order[1::2])]
    >>> protocol = Protocol("honest", "One half of the bags predicts the other.", halves)
    >>> def nearest(bags, memory):
    ...     return ScoreLearner(NeighbourScore(1)), {}
    >>> attempt = Attempt(protocol, nearest)
    >>> cell = Cell("nearest", "kandemir2014", {"accuracy": Published(0.9, 0.05)}, (attempt,))
    >>> table = Exhibit("table-1", "Accuracy", (cell,))
    >>> paper = Paper("our-2026", "We (2026), Our model.", (table,), remarks="")
    >>> one: Comparison
    >>> (one,) = compared(table, reproduce(paper, table, None, jobs=1))
    >>> one.ours["honest"].value, one.published.value
    (1.0, 0.9)
    >>> round(one.difference, 1), one.is_reproduced  # in standard errors
    (2.0, True)
    """

    cell: Cell
    score: str
    published: Published
    ours: dict[str, Result]

    @property
    def compared_protocol(self) -> str | None:
        """The protocol whose result is compared: as published where that was run, else honest."""
        return next((name for name in ("as published", "honest") if name in self.ours), None)

    @property
    def difference(self) -> float:
        """Ours less the published number, in standard errors; NaN without it, or without an error.

        NaN of seconds too: those of two machines differ whatever their errors are.

        The error is the printed one and that of our mean over splits together, √(e² + e'²), where
        one is printed; else the binomial one of an accuracy on as many bags; else that of our mean.
        """
        published = self.published.value
        if self.compared_protocol is None or published is None or self.score == "seconds":
            return math.nan
        ours = self.ours[self.compared_protocol]
        if self.published.error is not None:
            error = math.hypot(self.published.error, ours.error)
        elif self.score == "accuracy":
            error = binomial_error(published, ours.num_tested)
        else:
            error = ours.error
        return (ours.value - published) / error if error > 0 else math.nan

    @property
    def is_reproduced(self) -> bool:
        """Whether the difference is at most two standard errors."""
        return abs(self.difference) <= AS_GOOD_AS_EQUAL


def compared(exhibit: Exhibit, results: Iterable[Result]) -> list[Comparison]:
    """Each published number of a table beside the results, in the order of the table.

    Parameters
    ----------
    exhibit : Exhibit
    results : iterable of Result

    Returns
    -------
    list of Comparison

    Examples
    --------
    >>> from milzoo.papers import compared, exhibits_named
    >>> ((paper, table),) = exhibits_named("castro-macias-2024/table-6")
    >>> first, *others = compared(table, [])
    >>> first.cell.method, first.score, first.published.value, first.ours
    ('G-VGPMIL, M = 50', 'accuracy', 0.8832, {})
    """
    found = {(one.method, one.data, one.score, one.protocol): one for one in results}
    protocols = ("as published", "honest")
    return [
        Comparison(
            cell,
            score,
            published,
            {
                protocol: found[key]
                for protocol in protocols
                if (key := (cell.method, cell.data, score, protocol)) in found
            },
        )
        for cell in exhibit.cells
        for score, published in cell.published.items()
    ]


def reasons(every: Iterable[Comparison]) -> dict[str, list[str]]:
    """Why numbers differ: each reason once, with the methods and data that it is of.

    Parameters
    ----------
    every : iterable of Comparison

    Returns
    -------
    dict of lists of str
    """
    found: dict[str, list[str]] = {}
    for one in every:
        name, why = f"{one.cell.method} on {one.cell.data}", one.cell.why
        if why and not one.is_reproduced and name not in found.setdefault(why, []):
            found[why].append(name)
    return found


@dataclass(frozen=True)
class Outcome:
    """How far an exhibit is reproduced.

    Attributes
    ----------
    state : {"reproduced", "differs", "not possible here", "not done yet"}
    sentence : str
        Counts and reasons.

    Examples
    --------
    >>> from pathlib import Path
    >>> from milzoo.papers import PAPERS, Outcome, outcomes_of
    >>> outcome: Outcome = outcomes_of(PAPERS[0], Path("results"))["figure-1"]
    >>> print(f"{outcome.state}: {outcome.sentence}")
    reproduced: in a scene drawn after the figure DPMIL finds three clusters of negative instances
    and two of positive ones
    """

    state: State
    sentence: str


def outcomes_of(paper: Paper, folder: Path) -> dict[str, Outcome]:
    """How far each exhibit of a paper is reproduced by the results that are kept.

    Parameters
    ----------
    paper : Paper
    folder : Path
        Of the results of all papers.

    Returns
    -------
    dict of Outcome
        By the name of the exhibit. A figure that shows the numbers of tables has their state, the
        worst of several.

    Examples
    --------
    Without results in the folder:

    >>> from pathlib import Path
    >>> from milzoo.papers import PAPERS, outcomes_of
    >>> outcomes = outcomes_of(PAPERS[0], Path("results"))
    >>> {name: outcome.state for name, outcome in outcomes.items()}
    {'figure-1': 'reproduced', 'figure-2': 'not possible here', 'table-1': 'not done yet',
     'table-2': 'not possible here', 'figure-3': 'not possible here',
     'figure-4': 'not possible here', 'figure-5': 'not possible here',
     'figure-6': 'not possible here', 'table-3': 'not done yet'}
    """
    outcomes: dict[str, Outcome] = {}
    for exhibit in sorted(paper.exhibits, key=lambda one: bool(one.of)):
        if exhibit.of:
            outcomes[exhibit.name] = _of_tables({name: outcomes[name] for name in exhibit.of})
        else:
            results = read(path_of(folder, paper, exhibit))
            outcomes[exhibit.name] = outcome_of(exhibit, results)
    return outcomes


def _of_tables(outcomes: Mapping[str, Outcome]) -> Outcome:
    """That of what is drawn from tables: the worst of theirs, and why those that differ do."""
    worst = max(outcomes.values(), key=lambda one: _WORSE[one.state]).state
    named = {name.replace("-", " "): one for name, one in outcomes.items()}
    parts = [f"drawn from the results of {' and '.join(named)}"]
    if worst == "differs":
        parts += [f"{name}: {one.sentence}" for name, one in named.items() if one.state == worst]
    return Outcome(worst, "; ".join(parts))


def outcome_of(exhibit: Exhibit, results: Iterable[Result]) -> Outcome:
    """How far an exhibit is reproduced by its own results.

    Parameters
    ----------
    exhibit : Exhibit
        Not one that shows the numbers of tables.
    results : iterable of Result

    Returns
    -------
    Outcome
        A table differs if one of its numbers does; what is not possible is counted. A verdict on
        numbers that the paper does not print counts when all of them have been run.
    """
    if exhibit.missing:
        parts = filter(None, (exhibit.missing, exhibit.finding))
        return Outcome("not possible here", "; ".join(parts))
    if exhibit.to_do:
        return Outcome("not done yet", exhibit.to_do)
    every = compared(exhibit, results)
    beside = [one for one in every if one.published.value is None]
    every = [one for one in every if one.published.value is not None]
    possible = [one for one in every if one.cell.attempts]
    if not all(one.ours for one in beside):
        return Outcome("not done yet", f"{sum(not one.ours for one in beside)} numbers not run")
    if exhibit.verdict:
        return Outcome(exhibit.verdict, exhibit.finding)
    if not possible:
        reasons = [*dict.fromkeys(one.cell.missing for one in every), exhibit.finding]
        return Outcome("not possible here", "; ".join(filter(None, reasons)))
    run = [one for one in possible if one.ours]
    same = sum(one.is_reproduced for one in run)
    counts = f"{same} of {len(run)} numbers within two standard errors"
    if len(run) < len(every):
        counts += f", {len(every) - len(possible)} not possible"
    if len(run) < len(possible):
        return Outcome("not done yet", f"{counts}, {len(possible) - len(run)} not run")
    sentence = f"{counts}; {exhibit.finding}" if exhibit.finding else counts
    return Outcome("reproduced" if same == len(run) else "differs", sentence)
