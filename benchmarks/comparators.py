"""Classifiers of bags that the papers compare with, beside the models here, on published folds.

Every method is fitted to the training bags of each fold, with features standardised by them. What
a method leaves to choose is chosen by three folds inside the training bags, by accuracy; no method
sees a test bag. The published accuracy stands beside ours, with the difference in standard errors
of a binomial proportion, √(p(1 − p)/B). Published folds of the first repetition where there are
some; else ten folds drawn with seed 0.

    MILZOO_DATA=… python benchmarks/comparators.py [--toy] [--methods NAME …] [NAME …]
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from milzoo.datasets import Bags, load, published_folds
from milzoo.diagnostics import cross_validate_bags
from milzoo.estimators import (
    ALPSVM,
    DDSVM,
    EMDD,
    KISVM,
    MILES,
    MISVM,
    BagEnsemble,
    BayesianMIL,
    CitationKNN,
    ConceptFractionClassifier,
    DiverseDensityLearner,
    MeasureLearner,
    MIForest,
    MiFV,
    MiGraph,
    MIKernelSVM,
    MILBoost,
    StandardizeInstances,
    VocabularySVM,
    miSVM,
)
from milzoo.models import NeighbourMeasure
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

NAMES = (
    "musk1",
    "musk2",
    "elephant",
    "fox",
    "newsgroups_comp_graphics",
    "newsgroups_rec_sport_hockey",
    "newsgroups_sci_space",
)
INNER_FOLDS = 3
# Of diverse density: a search from every instance of musk2 would take hours.
START_BAGS = 20

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


def methods(num_features: int, memory: str | None = None) -> dict[str, tuple[Any, dict[str, list]]]:
    """By name: an estimator of standardised bags, and the grid that inner folds choose from.

    Kernels between bags are kept in the folder ``memory``: a grid has each of them many times.
    """
    typical = math.sqrt(num_features)  # two standardised instances are √(2D) apart on average
    penalty = {"penalty": [0.1, 1.0, 10.0, 100.0]}
    kernel = {"length_scale": [typical / 2, typical, 2 * typical]} | penalty
    wide = {"length_scale": [typical * root for root in (0.125**0.5, 0.5**0.5, 2**0.5)]} | penalty
    concepts = {"learns_scales": False, "label_noise": 0.01, "start_bags": START_BAGS}
    scale = {"scale": [1 / typical, 2 / typical, 4 / typical]}
    measures = {"measure": [NeighbourMeasure(k) for k in (1, 3, 5, 9)]}
    return {
        "VWSGP": (BayesianMIL("vwsgp", "coordinate_ascent", seed=0), {}),
        "VWSGP, laplace": (BayesianMIL("vwsgp", "laplace", seed=0), {}),
        "VGPMIL": (BayesianMIL("vgpmil", "coordinate_ascent", seed=0), {}),
        "CardinalityModel": (BayesianMIL("cardinality", "maximum_a_posteriori", seed=0), {}),
        "GPMIL-S": (BayesianMIL("gpmil", "laplace", seed=0), {}),
        "BMIL": (BayesianMIL("bmil", "laplace", seed=0), {}),
        "mi-SVM": (miSVM(), kernel),
        "mi-SVM, linear": (miSVM("linear"), {"penalty": [0.01, 0.1, 1.0]}),
        "MI-SVM": (MISVM(), kernel),
        "MI-Kernel": (MIKernelSVM(memory=memory), wide),
        "MI-Kernel, minimax": (MIKernelSVM("minimax"), penalty | {"degree": [1, 2, 3]}),
        "miGraph": (MiGraph(memory=memory), wide),
        "Citation-kNN": (CitationKNN(), {}),
        "MILES": (MILES(typical), {"width": [typical / 2, typical, 2 * typical]} | penalty),
        "DD": (DiverseDensityLearner(typical / 2, **concepts), scale),
        "EM-DD": (EMDD(typical / 2, **concepts), scale),
        "DD-SVM": (DDSVM(typical / 2, **concepts, memory=memory), scale | penalty),
        "concept fraction": (ConceptFractionClassifier(), {"classifier": instance_classifiers()}),
        "neighbourhood score": (MeasureLearner(NeighbourMeasure(3)), measures),
        "Bag-KI-SVM": (KISVM("bag"), kernel),
        "Inst-KI-SVM": (KISVM("instance"), penalty | {"balance": [1.0, 5.0, 25.0]}),
        "ALP-SVM": (ALPSVM(), {"positive_fraction": [0.3, 0.6, 0.9], "penalty": [1.0, 10.0]}),
        "MILBoost": (MILBoost(seed=0), {"max_steps": [30, 100], "max_depth": [1, 2]}),
        "MIForest": (MIForest(seed=0), {"start_temperature": [0.5, 1.0, 2.0, 4.0]}),
        "vocabulary SVM": (VocabularySVM(seed=0), {"num_words": [20, 50, 100]} | penalty),
        "miFV": (MiFV(seed=0), {"num_components": [1, 2, 3]} | penalty),
        "bagging of Citation-kNN": (BagEnsemble(CitationKNN(), seed=0), {}),
    }


def instance_classifiers() -> list[Pipeline]:
    """Classifiers of instances that the concept fraction chooses from."""
    neighbours = [KNeighborsClassifier(k) for k in (3, 5, 10, 20)]
    logistic = [LogisticRegression(C=strength, max_iter=1000) for strength in (0.01, 1.0)]
    return [make_pipeline(StandardScaler(), one) for one in (*neighbours, *logistic)]


def with_choices(estimator: Any, grid: dict[str, list]) -> Any:
    """The estimator on standardised bags; what is in the grid is chosen inside training bags."""
    pipeline = Pipeline([("standardize", StandardizeInstances()), ("classify", estimator)])
    if not grid:
        return pipeline
    inner = StratifiedKFold(INNER_FOLDS, shuffle=True, random_state=0)
    choices = {f"classify__{name}": values for name, values in grid.items()}
    return GridSearchCV(pipeline, choices, cv=inner, scoring="accuracy")


def folds_of(name: str) -> Any:
    """In which fold each bag is tested; ten drawn folds where none are published."""
    try:
        return published_folds(name)[:, :1]
    except FileNotFoundError:
        return StratifiedKFold(10, shuffle=True, random_state=0)


def rows_of(name: str, bags: Bags, folds: Any, chosen: list[str]) -> pd.DataFrame:
    """One row for each method: scores, the published accuracy, and the difference."""
    with TemporaryDirectory() as memory:
        known = methods(bags.num_features, memory)
        classifiers = {method: with_choices(*known[method]) for method in chosen}
        found = cross_validate_bags(classifiers, bags, folds, progress=sys.stderr.isatty())
    table = found.table().reindex(columns=["accuracy", "auc", "log_loss", "fit_seconds"])
    table["published"] = [PUBLISHED.get(method, {}).get(name, math.nan) / 100 for method in chosen]
    error = np.sqrt(table["published"] * (1 - table["published"]) / len(bags))
    table["difference, standard errors"] = (table["accuracy"] - table["published"]) / error
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--methods", nargs="+", choices=list(methods(1)), default=list(methods(1)))
    parser.add_argument("--toy", action="store_true", help="few bags, two folds, four methods")
    given = parser.parse_args()
    for name in ["kandemir2014"] if given.toy else given.names:
        chosen = ["VWSGP", "MI-SVM", "Citation-kNN", "MILES"] if given.toy else given.methods
        bags, folds = load(name), StratifiedKFold(2) if given.toy else folds_of(name)
        print(f"\n{name}: {bags}\n")
        print(rows_of(name, bags, folds, chosen).round(3).to_string(na_rep="–"), flush=True)
    print(f"\nSeed 0; {os.cpu_count()} cores, {platform.machine()}; one process on each core.")


if __name__ == "__main__":
    main()
