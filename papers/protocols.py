"""Named protocols: which bags are trained on, what is chosen by which bags, what is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Int
from sklearn.model_selection import (
    BaseCrossValidator,
    GridSearchCV,
    ShuffleSplit,
    StratifiedKFold,
    StratifiedShuffleSplit,
)

from ..datasets import published_folds
from ..datasets.bags import Bags

__all__ = [
    "INNER_FOLDS",
    "Protocol",
    "Split",
    "halves",
    "searched",
    "stratified_folds",
    "thirds",
    "with_published_folds",
]

# Folds of the training bags that an honest protocol chooses by.
INNER_FOLDS = 3

# Numbers of the training bags and of the test bags; of different sizes in different splits.
type Split = tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]
type Splits = Callable[[str, Bags, int], list[Split]]


@dataclass(frozen=True)
class Protocol:
    """How a number in a table is made: the splits, the choice of settings, the reported score.

    Parameters
    ----------
    name : {"as published", "honest"}
    sentence : str
        What is split, and what is chosen how.
    splits : callable
        Name of a data set, bags and a seed → splits into training and test bags.
    chosen_by : {"training bags", "test bags"}
        Which bags settings are chosen by: folds of the training bags, or the bags that the reported
        score is of.
    reports : {"mean", "maximum"}
        Over splits.
    threshold_by : {"training bags", "test bags"}
        Which bags the threshold on decision values is set by: by the classifier itself, or where it
        makes the fewest errors on the test bags of each split.
    peeks : str
        What it sees of the test bags; empty if nothing.

    Raises
    ------
    ValueError
        If it is honest and looks at test bags, or looks at them and does not say so.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import load
    >>> from milzoo.papers import Protocol
    >>> def halves(name, bags, seed):
    ...     order = np.random.default_rng(seed).permutation(bags.num_bags)
    ...     return [(order[::2], order[1::2])]
    >>> protocol = Protocol("honest", "One half of the bags predicts the other.", halves)
    >>> ((training, test),) = protocol.splits("kandemir2014", load("kandemir2014"), seed=0)
    >>> len(training), len(test)
    (20, 20)
    """

    name: Literal["as published", "honest"]
    sentence: str
    splits: Splits
    chosen_by: Literal["training bags", "test bags"] = "training bags"
    reports: Literal["mean", "maximum"] = "mean"
    threshold_by: Literal["training bags", "test bags"] = "training bags"
    peeks: str = ""

    def __post_init__(self) -> None:
        does = "test bags" in (self.chosen_by, self.threshold_by) or self.reports == "maximum"
        if does != bool(self.peeks) or (does and self.name == "honest"):
            raise ValueError(
                f"the protocol {self.name!r} chooses by {self.chosen_by}, sets thresholds by "
                f"{self.threshold_by}, reports the {self.reports} and says that it peeks at "
                f"{self.peeks or 'nothing'!r}; expected that a choice or a threshold by test bags, "
                "or a maximum over them, is said and not called honest"
            )

    def smaller(self) -> Self:
        """The protocol on two splits, to see that it runs."""

        def two_splits(name: str, bags: Bags, seed: int) -> list[Split]:
            return list(StratifiedKFold(2).split(np.zeros(len(bags)), bags.labels))

        return replace(self, splits=two_splits)


def with_published_folds(repetitions: int) -> Splits:
    """The folds published with MIDatasets.jl; ten folds drawn with the seed where there are none.

    Parameters
    ----------
    repetitions : int
        How many of the five.
    """

    def splits(name: str, bags: Bags, seed: int) -> list[Split]:
        try:
            fold_of = published_folds(name)[:, :repetitions]
        except FileNotFoundError:
            splitter = StratifiedKFold(10, shuffle=True, random_state=seed)
            return _drawn(splitter, bags)
        return [
            (np.flatnonzero(column != fold), np.flatnonzero(column == fold))
            for column in fold_of.T
            for fold in np.unique(column)
        ]

    return splits


def thirds(num: int) -> Splits:
    """Random splits: two thirds to train on."""

    def splits(name: str, bags: Bags, seed: int) -> list[Split]:
        return _drawn(ShuffleSplit(num, test_size=1 / 3, random_state=seed), bags)

    return splits


def halves(num: int) -> Splits:
    """Stratified random splits: half of the bags to train on."""

    def splits(name: str, bags: Bags, seed: int) -> list[Split]:
        return _drawn(StratifiedShuffleSplit(num, test_size=0.5, random_state=seed), bags)

    return splits


def stratified_folds(num: int) -> Splits:
    """Stratified folds, drawn with the seed."""

    def splits(name: str, bags: Bags, seed: int) -> list[Split]:
        return _drawn(StratifiedKFold(num, shuffle=True, random_state=seed), bags)

    return splits


def _drawn(
    splitter: BaseCrossValidator | ShuffleSplit | StratifiedShuffleSplit, bags: Bags
) -> list[Split]:
    return list(splitter.split(np.zeros(len(bags)), bags.labels))


def searched(estimator: Any, grid: dict[str, list], seed: int) -> Any:
    """The estimator, with settings from the grid chosen by folds of the training bags."""
    if not grid:
        return estimator
    inner = StratifiedKFold(INNER_FOLDS, shuffle=True, random_state=seed)
    return GridSearchCV(estimator, grid, cv=inner, scoring="accuracy")
