"""Tables and figures of papers as data: published numbers, and attempts to reproduce them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from ..datasets.bags import Bags
from .protocols import Protocol

__all__ = ["SCORES", "Attempt", "Cell", "Exhibit", "Paper", "Published"]

# Scores of tables, by their names in `milzoo.diagnostics`; and the wall seconds of one fit.
SCORES: dict[str, str] = {
    "accuracy": "accuracy",
    "f1": "F1",
    "auc": "AUC",
    "average_precision": "AP",
    "instance_accuracy": "instance accuracy",
    "instance_f1": "instance F1",
    "instance_auc": "instance AUC",
    "instance_average_precision": "instance AUC-PR",
    "seconds": "seconds",
}

# An estimator of bags, and the grid of settings that a protocol chooses from.
type Choice = tuple[Any, dict[str, list]]
# ``method(bags, memory)``; kernels and transformed bags may be kept in the folder ``memory``.
type Method = Callable[[Bags, str | None], Choice]


@dataclass(frozen=True)
class Published:
    """One published number.

    Parameters
    ----------
    value : float or None
        A fraction, where the paper has per cent, or seconds; None where it has no number for a data
        set, and its protocol is run on it all the same.
    error : float or None
        Its standard error, as printed after ± or from the sd that is; None where the paper has
        neither.

    Examples
    --------
    >>> from milzoo.papers import Published
    >>> printed = Published(0.872, error=0.03)  # 87.2 ± 3.0 %
    >>> f"{printed.value:.1%} ± {printed.error:.1%}"
    '87.2% ± 3.0%'
    """

    value: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class Attempt:
    """A method of a table, to be run under one protocol.

    Parameters
    ----------
    protocol : Protocol
    method : callable
        Of bags and a folder: an estimator, and a grid of its settings.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.estimators import ScoreLearner
    >>> from milzoo.models import NeighbourScore
    >>> from milzoo.papers import Attempt, Protocol
    >>> def halves(name, bags, seed):
    ...     order = np.random.default_rng(seed).permutation(bags.num_bags)
    ...     return [(order[::2], order[1::2])]
    >>> protocol = Protocol("honest", "One half of the bags predicts the other.", halves)
    >>> def nearest(bags, memory):
    ...     return ScoreLearner(NeighbourScore(1)), {}
    >>> attempt = Attempt(protocol, nearest)
    >>> attempt.protocol.sentence
    'One half of the bags predicts the other.'
    """

    protocol: Protocol
    method: Method

    def smaller(self) -> Self:
        """The attempt with two splits and one setting, to see that it runs."""

        def with_one_setting(bags: Bags, memory: str | None) -> Choice:
            estimator, grid = self.method(bags, memory)
            return estimator.set_params(**{name: values[0] for name, values in grid.items()}), {}

        return replace(self, protocol=self.protocol.smaller(), method=with_one_setting)


@dataclass(frozen=True)
class Cell:
    """One method on one data set in a table.

    Parameters
    ----------
    method : str
        As the paper calls it.
    data : str
        A data set, as `milzoo.datasets.load` calls it, or as the paper does if it is not here.
    published : mapping of str to Published
        By score; a key of `SCORES`.
    attempts : tuple of Attempt
    missing : str
        What is missing here, where there is no attempt.
    why : str
        One sentence: why our number differs from the published one.

    Raises
    ------
    ValueError
        If there are attempts and something is missing, or neither; if a score is unknown, or is no
        fraction.

    Examples
    --------
    >>> from milzoo.papers import Cell, exhibits_named
    >>> ((paper, exhibit),) = exhibits_named("castro-macias-2024/table-6")
    >>> cell: Cell = exhibit.cells[0]
    >>> cell.method, cell.data
    ('G-VGPMIL, M = 50', 'musk1')
    >>> {score: published.value for score, published in cell.published.items()}
    {'accuracy': 0.8832, 'f1': 0.8917, 'auc': 0.9607}
    >>> [attempt.protocol.name for attempt in cell.attempts]
    ['as published', 'honest']
    """

    method: str
    data: str
    published: Mapping[str, Published]
    attempts: tuple[Attempt, ...] = ()
    missing: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if bool(self.attempts) == bool(self.missing):
            raise ValueError(
                f"{self.method} on {self.data} has {len(self.attempts)} attempts and is missing "
                f"{self.missing!r}; expected attempts, or what is missing"
            )
        if unknown := set(self.published) - set(SCORES):
            raise ValueError(
                f"{self.method} on {self.data} has the scores {', '.join(sorted(unknown))}; "
                f"expected some of {', '.join(SCORES)}"
            )
        for score, one in self.published.items():
            if score != "seconds" and one.value is not None and not 0 <= one.value <= 1:
                raise ValueError(
                    f"{self.method} on {self.data}: {score} is {one.value}; expected a fraction "
                    "from 0 to 1"
                )

    @property
    def is_timed(self) -> bool:
        """Whether the paper tells the seconds of a fit."""
        return "seconds" in self.published


@dataclass(frozen=True)
class Exhibit:
    """A table or a figure.

    Parameters
    ----------
    name : str
        Such as ``"table-6"``.
    title : str
    cells : tuple of Cell
        Of a table.
    missing : str
        What is missing here, of an exhibit without cells.
    to_do : str
        What is not built yet, of an exhibit that is possible here.
    verdict : {"reproduced", "differs"} or None
        Of an exhibit without cells that is shown here; or of cells none of whose numbers are
        printed, as those of a curve.
    finding : str
        One sentence on what is shown, or on a whole table.
    command : str
        The command that shows an exhibit without cells, or other data in place of what is missing.
    picture : str
        What the command draws, in the folder of the documentation.
    of : tuple of str
        Names of the tables whose numbers a figure shows.
    shows : {"scores", "seconds"}
        What such a figure shows.

    Raises
    ------
    ValueError
        If it has not exactly one of cells, a verdict, tables whose numbers it shows, something that
        is missing and something to do; or a verdict without a finding.

    Examples
    --------
    >>> from milzoo.papers import Exhibit
    >>> figure = Exhibit("figure-1", "The model as a graph", missing="a drawing, without numbers")
    >>> f"{figure.name}, {figure.title}: {figure.missing}"
    'figure-1, The model as a graph: a drawing, without numbers'
    """

    name: str
    title: str
    cells: tuple[Cell, ...] = ()
    missing: str = ""
    to_do: str = ""
    verdict: Literal["reproduced", "differs"] | None = None
    finding: str = ""
    command: str = ""
    picture: str = ""
    of: tuple[str, ...] = ()
    shows: Literal["scores", "seconds"] = "scores"

    def __post_init__(self) -> None:
        has_numbers = any(
            one.value is not None for cell in self.cells for one in cell.published.values()
        )
        judged = self.verdict and (has_numbers or not self.cells)
        given = (self.cells, judged, self.missing, self.to_do, self.of)
        if sum(map(bool, given)) != 1:
            raise ValueError(
                f"{self.name}: expected one of cells, a verdict, tables that it is of, what is "
                "missing, what is to do; or a verdict on cells whose numbers are not printed"
            )
        if self.verdict and not (self.finding and (self.command or self.cells)):
            raise ValueError(f"{self.name}: a verdict needs a finding, and the command to see it")


@dataclass(frozen=True)
class Paper:
    """A paper with all its tables and figures.

    Parameters
    ----------
    name : str
        Such as ``"castro-macias-2024"``.
    citation : str
    exhibits : tuple of Exhibit
        In the order of the paper.
    remarks : str
        What the paper tells of its protocol, and leaves out.

    Examples
    --------
    >>> from milzoo.papers import Exhibit, Paper
    >>> figure = Exhibit("figure-1", "The model as a graph", missing="a drawing, without numbers")
    >>> paper = Paper("our-2026", "We (2026), Our model.", (figure,), remarks="It has no tables.")
    >>> [exhibit.name for exhibit in paper.exhibits]
    ['figure-1']
    """

    name: str
    citation: str
    exhibits: tuple[Exhibit, ...]
    remarks: str


def not_at_hand(
    rows: Mapping[str, Sequence[float]], columns: Sequence[tuple[str, str]], missing: str
) -> tuple[Cell, ...]:
    """Cells of a table whose data is not here.

    Parameters
    ----------
    rows : mapping of str to sequence of float
        Published numbers by method.
    columns : sequence of pairs of str
        The data set and the score of each column.
    missing : str

    Returns
    -------
    tuple of Cell

    Examples
    --------
    >>> from milzoo.papers.exhibits import not_at_hand
    >>> columns = ("scans", "accuracy"), ("scans", "auc")
    >>> (cell,) = not_at_hand({"network": (0.9, 0.95)}, columns, "the scans")
    >>> cell.data, {score: published.value for score, published in cell.published.items()}
    ('scans', {'accuracy': 0.9, 'auc': 0.95})
    """
    cells = []
    for method, numbers in rows.items():
        of_data: dict[str, dict[str, Published]] = {}
        for (data, score), number in zip(columns, numbers, strict=True):
            of_data.setdefault(data, {})[score] = Published(number)
        cells += [Cell(method, data, scores, missing=missing) for data, scores in of_data.items()]
    return tuple(cells)


def binomial_error(proportion: float, num_bags: int) -> float:
    """√(p(1 − p)/B), the standard error of an accuracy on B bags."""
    return math.sqrt(proportion * (1 - proportion) / num_bags)
