"""VWSGP beside what its paper compares with, on the sets at hand, by the paper's protocol.

Kandemir et al. (2016), table 3: twenty random splits, half of the bags to train on; accuracy and
average precision of bags. The two medical sets are not at hand; here it is musk1, elephant and fox.
Models with an RBF kernel have 50 inducing points and ℓ = √D, v = 0.5, features are standardised by
the training bags, and nothing is searched for. e-MIL is not built here.

    MILZOO_DATA=… python benchmarks/vwsgp_halves.py [--toy] [--seed 0] [--jobs 2] [NAME …]
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from milzoo.datasets import load
from milzoo.diagnostics import cross_validate_bags
from milzoo.estimators import BayesianMIL, MiFV, StandardizeInstances
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline

NAMES = ("musk1", "elephant", "fox")
SCORES = {"accuracy": "accuracy", "average_precision": "average precision", "log_loss": "log loss"}


def classifiers(num_features: int, num_inducing: int) -> dict[str, Any]:
    kernel: dict[str, Any] = {
        "seed": 0,
        "model__num_inducing": num_inducing,
        "model__variance": 0.5,
        "model__length_scale": num_features**0.5,
    }
    every = {
        "VWSGP": BayesianMIL("vwsgp", "coordinate_ascent", **kernel),
        "GPMIL-S": BayesianMIL("gpmil", "laplace", **kernel),
        "VGPMIL": BayesianMIL("vgpmil", "coordinate_ascent", **kernel),
        "BMIL": BayesianMIL("bmil", "laplace", seed=0),
        "mi-FV": MiFV(seed=0),
    }
    return {name: make_pipeline(StandardizeInstances(), one) for name, one in every.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--toy", action="store_true", help="two splits of a scene")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = ("kandemir2014",) if options.toy else options.names
    num_splits, num_inducing = (2, 5) if options.toy else (20, 50)
    print("| bags | method | " + " | ".join(SCORES.values()) + " | AP less VWSGP's |")
    print("|---" * (len(SCORES) + 3) + "|")
    for name in names:
        bags = load(name)
        splitter = StratifiedShuffleSplit(num_splits, test_size=0.5, random_state=options.seed)
        splits = list(splitter.split(bags, bags.labels))
        methods = classifiers(bags.num_features, num_inducing)
        if options.toy:
            methods = {method: methods[method] for method in ("VWSGP", "mi-FV")}
        found = cross_validate_bags(methods, bags, splits, jobs=options.jobs)
        against = found.differences("average_precision")
        by_fold = found.by_fold[list(SCORES)].groupby("classifier", sort=False)
        mean, sd = by_fold.mean(), by_fold.std()
        for method in methods:
            cells = [f"{mean.loc[method, s]:.3f} ± {sd.loc[method, s]:.3f}" for s in SCORES]
            difference = ""
            if method in against.index:
                one = against.loc[method]
                difference = f"{one.difference:+.3f} ({one.low:+.3f} to {one.high:+.3f})"
            cells = [cell.replace("nan ± nan", "–") for cell in (*cells, difference)]
            print(f"| {name} | {method} | " + " | ".join(cells) + " |", flush=True)
    print(
        f"\n{num_splits} splits, mean ± sd over them; differences with 95 % intervals that know of "
        f"the overlap of splits; seed {options.seed}, {os.cpu_count()} cores."
    )


if __name__ == "__main__":
    main()
