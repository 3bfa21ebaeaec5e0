"""Methods on hockey by settings that Kandemir and Hamprecht (2014) do not tell.

Table 1: AUC-PR of instances, 100 kernel principal components of the training bags, ten folds drawn
with the seed, as `milzoo reproduce kandemir-2014/table-1` has them. Most components of most posts
are near 0, so that the median distance, the default of GPMIL-S, is far below the distances that
matter. All settings are scored on the test folds: this shows what a setting does, and chooses none.

    MILZOO_DATA=… python benchmarks/hockey_by_setting.py [--toy] [--seed 0] [--jobs 2]
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from milzoo.datasets import Bags, load
from milzoo.diagnostics import cross_validate_bags
from milzoo.estimators import KISVM, MISVM, BayesianMIL, KernelPCA, miSVM
from milzoo.papers.protocols import Split, stratified_folds
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

LENGTH_SCALES = (0.1, 0.3, 1.0, 10.0)
PENALTIES = (0.1, 1.0, 10.0, 100.0)


class Method(NamedTuple):
    """With the paper's name and number."""

    name: str
    machine: Any
    published: float


METHODS = (
    Method("B-KISVM", KISVM("bag"), 0.66),
    Method("I-KISVM", KISVM("instance"), 0.64),
    Method("MISVM", MISVM(), 0.75),
    Method("miSVM", miSVM(), 0.27),
)


class Folds(NamedTuple):
    """Bags, their folds, and a folder for components, which all settings share."""

    bags: Bags
    splits: list[Split]
    num_components: int
    folder: str
    jobs: int

    def scores(self, classifiers: Mapping[str, Any]) -> dict[str, str]:
        """AUC-PR of instances of each, mean and standard error over folds."""
        pipelines = {
            setting: make_pipeline(KernelPCA(self.num_components), classifier, memory=self.folder)
            for setting, classifier in classifiers.items()
        }
        found = cross_validate_bags(pipelines, self.bags, self.splits, jobs=self.jobs).by_fold
        by_setting = found["instance_average_precision"].groupby("classifier", sort=False)
        mean, error = by_setting.mean(), by_setting.std() / math.sqrt(len(self.splits))
        return {setting: f"{mean[setting]:.3f} ± {error[setting]:.3f}" for setting in mean.index}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="a scene, two folds, one machine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    name = "kandemir2014" if options.toy else "newsgroups/rec_sport_hockey"
    num_components, num_folds = (2, 2) if options.toy else (100, 10)
    few = 1 if options.toy else None
    bags = load(name)
    splits = stratified_folds(num_folds)(name, bags, options.seed)
    with TemporaryDirectory() as folder:
        folds = Folds(bags, splits, num_components, folder, options.jobs)
        for method in METHODS[:few]:
            print_machine(method, LENGTH_SCALES[:few], PENALTIES[:few], folds)
        print_process(options.seed, (None, *LENGTH_SCALES[:3])[:few], folds)
    print(f"\nMean ± standard error over folds ({len(splits)}); seed {options.seed}; ", end="")
    print(f"{os.cpu_count()} cores.")


def print_machine(
    method: Method, length_scales: Sequence[float], penalties: Sequence[float], folds: Folds
) -> None:
    """A row for each length scale and a column for each penalty."""
    settings = {
        f"{scale:g}, {penalty:g}": clone(method.machine).set_params(
            length_scale=scale, penalty=penalty
        )
        for scale in length_scales
        for penalty in penalties
    }
    shown = folds.scores(settings)
    columns = " | ".join(f"C = {penalty:g}" for penalty in penalties)
    print(f"\n| {method.name}, ℓ (paper {method.published}) | {columns} |")
    print("|---" * (1 + len(penalties)) + "|")
    for scale in length_scales:
        row = " | ".join(shown[f"{scale:g}, {penalty:g}"] for penalty in penalties)
        print(f"| {scale:g} | {row} |", flush=True)


def print_process(seed: int, length_scales: Sequence[float | None], folds: Folds) -> None:
    """A row for each length scale of GPMIL-S."""
    shown = folds.scores(
        {
            "median distance" if scale is None else f"{scale:g}": BayesianMIL(
                "gpmil", "laplace", seed=seed, model__length_scale=scale
            )
            for scale in length_scales
        }
    )
    print("\n| GPMIL-S, ℓ (paper 0.43) | AUC-PR of instances |", "|---|---|", sep="\n")
    for setting, score in shown.items():
        print(f"| {setting} | {score} |")


if __name__ == "__main__":
    main()
