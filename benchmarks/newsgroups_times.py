"""Seconds of one training on a newsgroup, as Kandemir and Hamprecht (2014), table 3, have them.

One of ten splits of hockey (nine tenths of 100 bags, 1,982 posts), 100 kernel principal components
of the training bags, which are not counted; one setting of each method and no search. Each is
fitted twice, as the first time compiles; the second is told.

    MILZOO_DATA=… python benchmarks/newsgroups_times.py [--toy] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import time

from milzoo.datasets import load
from milzoo.estimators import KISVM, MISVM, BayesianMIL, KernelPCA, miSVM
from milzoo.papers.protocols import stratified_folds

# The paper's seconds, of text categorization.
METHODS = {
    "DPMIL": (BayesianMIL("dpmil", "coordinate_ascent", seed=0, engine__label_update="hard"), 2.9),
    "KISVM-B": (KISVM("bag"), 11.0),
    "mi-SVM": (miSVM(), 12.2),
    "KISVM-I": (KISVM("instance"), 10.1),
    "GPMIL": (BayesianMIL("gpmil", "laplace", seed=0), 90.5),
    "MISVM": (MISVM(), 4.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="a scene in two dimensions")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    name = "kandemir2014" if options.toy else "newsgroups/rec_sport_hockey"
    bags = load(name)
    train, _ = stratified_folds(10)(name, bags, options.seed)[0]
    training = KernelPCA(2 if options.toy else 100).fit_transform(bags[train])
    print("| method | the paper, s | here, s | first time, s |", "|---" * 4 + "|", sep="\n")
    for method, (classifier, published) in METHODS.items():
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            classifier.fit(training)
            seconds.append(time.perf_counter() - started)
        first, second = seconds
        print(f"| {method} | {published} | {second:.2f} | {first:.2f} |", flush=True)
    print(f"\n{training}. Seed {options.seed}, {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
