"""Classifiers of bags that the papers compare with, beside the models here, on published folds.

Every method is fitted to the training bags of each fold, with features standardised by them. What
a method leaves to choose is chosen by three folds inside the training bags, by accuracy; no method
sees a test bag. The published accuracy stands beside ours, with the difference in standard errors
of a binomial proportion, √(p(1 − p)/B). Published folds of the first repetition where there are
some; else ten folds drawn with seed 0. With --folds 2 the seconds are known soon, of the first two
folds; their scores are of few bags.

    MILZOO_DATA=… python benchmarks/comparators.py [--toy] [--methods NAME …] [--folds J] [NAME …]
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from milzoo.datasets import Bags, load, published_folds
from milzoo.diagnostics import cross_validate_bags
from milzoo.papers.comparators import comparator, comparators
from milzoo.papers.protocols import searched
from sklearn.model_selection import PredefinedSplit, StratifiedKFold

NAMES = (
    "musk1",
    "musk2",
    "elephant",
    "fox",
    "newsgroups_comp_graphics",
    "newsgroups_rec_sport_hockey",
    "newsgroups_sci_space",
)

# Accuracy in per cent, as the papers report it. Who and by which protocol: docs/comparators.md.
PUBLISHED = {
    "VGPMIL": {"musk1": 90.2, "musk2": 88.0},
    "mi-SVM": {"musk1": 87.4, "musk2": 83.6, "elephant": 82.2, "fox": 58.2},
    "MI-SVM": {"musk1": 77.9, "musk2": 84.3, "elephant": 81.4, "fox": 57.8},
    "MI-Kernel": {"musk1": 88.0, "musk2": 89.3, "elephant": 84.3, "fox": 60.3},
    "miGraph": {"musk1": 88.9, "musk2": 90.3, "elephant": 86.8, "fox": 61.6},
    "Citation-kNN": {"musk1": 92.4, "musk2": 86.3},
    "MILES": {"musk1": 86.3, "musk2": 87.7, "elephant": 81.0, "fox": 62.0},
    "DD": {"musk1": 88.9, "musk2": 82.5},
    "EM-DD": {"musk1": 84.8, "musk2": 84.9},
    "DD-SVM": {"musk1": 85.8, "musk2": 91.3},
    "ALP-SVM": {"musk1": 87.9, "musk2": 86.6, "elephant": 84.0, "fox": 66.0},
    "MIForest": {"musk1": 85.0, "musk2": 82.0, "elephant": 84.0, "fox": 64.0},
    "concept fraction": {"musk1": 89.2, "musk2": 85.0},
}


def folds_of(name: str, bags: Bags, first: int | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test bags of the first folds; ten drawn folds where none are published."""
    try:
        folds: Any = PredefinedSplit(published_folds(name)[:, 0])
    except FileNotFoundError:
        folds = StratifiedKFold(10, shuffle=True, random_state=0)
    return list(islice(folds.split(bags, bags.labels), first))


def rows_of(name: str, bags: Bags, folds: Any, chosen: list[str]) -> pd.DataFrame:
    """One row for each method: scores, the published accuracy, and the difference."""
    with TemporaryDirectory() as memory:
        choices = {method: comparator(method)(bags, memory) for method in chosen}
        classifiers = {method: searched(*choice, seed=0) for method, choice in choices.items()}
        found = cross_validate_bags(classifiers, bags, folds, progress=sys.stderr.isatty())
    table = found.table().reindex(columns=["accuracy", "auc", "log_loss", "fit_seconds"])
    table["published"] = [PUBLISHED.get(method, {}).get(name, math.nan) / 100 for method in chosen]
    error = np.sqrt(table["published"] * (1 - table["published"]) / len(bags))
    table["difference, standard errors"] = (table["accuracy"] - table["published"]) / error
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    known = list(comparators(1))
    parser.add_argument("--methods", nargs="+", choices=known, default=known)
    parser.add_argument("--folds", type=int, help="so many folds, the first; all by default")
    parser.add_argument("--toy", action="store_true", help="few bags, two folds, four methods")
    given = parser.parse_args()
    for name in ["kandemir2014"] if given.toy else given.names:
        chosen = ["VWSGP", "MI-SVM", "Citation-kNN", "MILES"] if given.toy else given.methods
        bags = load(name)
        folds = folds_of(name, bags, 2 if given.toy else given.folds)
        print(f"\n{name}: {bags}\n")
        print(rows_of(name, bags, folds, chosen).round(3).to_string(na_rep="–"), flush=True)
    print(f"\nSeed 0; {os.cpu_count()} cores, {platform.machine()}; one process on each core.")


if __name__ == "__main__":
    main()
