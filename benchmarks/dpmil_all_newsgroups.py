"""DPMIL on all newsgroups at hand, and how much its α matters.

Kandemir and Hamprecht (2014), table 1, on the ten sets at hand. Instances of nine have no labels
here, so that bags are ranked; of hockey instances too. Five folds drawn with the seed, kernel
principal components of the training bags, hard labels, K = 20, five starts: 20 components with
α = 0.5, 2 (the paper's) and 8, and 100 components, the paper's number, with α = 2. Beside it stands
MI-Kernel on standardised features, with settings by three folds inside the training bags.

    MILZOO_DATA=… python benchmarks/dpmil_all_newsgroups.py [--toy] [--seed 0] [--jobs 2] [NAME …]
"""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

import pandas as pd
from milzoo.datasets import available, load
from milzoo.diagnostics import cross_validate_bags
from milzoo.estimators import BayesianMIL, KernelPCA
from milzoo.papers.comparators import comparator
from milzoo.papers.protocols import searched, stratified_folds
from sklearn.pipeline import make_pipeline


def classifiers(bags: Any, is_toy: bool, seed: int) -> dict[str, Any]:
    settings = [(2, 2.0)] if is_toy else [(20, 0.5), (20, 2.0), (20, 8.0), (100, 2.0)]
    found = {
        f"{num_components}, α = {alpha:g}": make_pipeline(
            KernelPCA(num_components),
            BayesianMIL(
                "dpmil",
                "coordinate_ascent",
                seed=seed,
                model__concentration=alpha,
                engine__label_update="hard",
                engine__max_steps=100,
            ),
        )
        for num_components, alpha in settings
    }
    if not is_toy:
        found["MI-Kernel"] = searched(*comparator("MI-Kernel")(bags, None), seed)
    return found


def rows_of(name: str, by_fold: pd.DataFrame) -> list[str]:
    """A row for each score that a set has: mean ± standard error over the folds."""
    rows = []
    for score, words in (("auc", "bag AUC"), ("instance_average_precision", "AUC-PR")):
        by_method = by_fold.groupby("classifier", sort=False)[score]
        told = by_method.agg(["mean", "sem"])
        if told["mean"].notna().any():
            cells = [_cell(mean, error) for mean, error in told.to_numpy()]
            rows.append(f"| {name} | {words} | {' | '.join(cells)} |")
    return rows


def _cell(mean: float, error: float) -> str:
    """A score, or a dash for a method that says nothing of instances."""
    return "–" if math.isnan(mean) else f"{mean:.3f} ± {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="newsgroups/…, all at hand by default")
    parser.add_argument("--toy", action="store_true", help="a scene, two folds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    newsgroups = [name for name in available() if name.startswith("newsgroups/")]
    names, num_folds = (["kandemir2014"], 2) if options.toy else (options.names or newsgroups, 5)
    for number, name in enumerate(names):
        bags = load(name)
        methods = classifiers(bags, options.toy, options.seed)
        splits = stratified_folds(num_folds)(name, bags, options.seed)
        found = cross_validate_bags(methods, bags, splits, jobs=options.jobs).by_fold
        if number == 0:
            print("| bags | scores | " + " | ".join(methods) + " |")
            print("|---" * (len(methods) + 2) + "|")
        print("\n".join(rows_of(name, found)), flush=True)
    print(
        f"\n{num_folds} folds, mean ± standard error over them; seed {options.seed}, "
        f"{os.cpu_count()} cores."
    )


if __name__ == "__main__":
    main()
