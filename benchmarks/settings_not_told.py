"""Settings that papers do not tell, on the test bags that are reported.

Three sentences of the papers' pages name a scaling of features or a base classifier. Here are their
experiments: miGraph on musk2 with features scaled to [0, 1] by the training bags, and the ensemble
of Li et al., our concept fraction, with thirteen classifiers of instances. Folds are those of
`milzoo reproduce venkatesan-2015`. "On reported folds" shows what a setting does, and chooses none;
"chosen inside" is by three folds of the training bags.

    MILZOO_DATA=… python benchmarks/settings_not_told.py [--toy] [--seed 0] [--jobs 2]
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from milzoo.datasets import Bags, load
from milzoo.estimators import ConceptFractionClassifier, StandardizeInstances, TransformInstances
from milzoo.papers import Attempt, Cell, Exhibit, Published, scores_by_setting
from milzoo.papers.comparators import comparators, on_features
from milzoo.papers.exhibits import Choice
from milzoo.papers.reproduction import scores_of_attempt
from milzoo.papers.venkatesan_2015 import HONEST
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import MinMaxScaler
from sklearn.tree import DecisionTreeClassifier


def base_classifiers(seed: int) -> list[Any]:
    """Thirteen classifiers of instances."""
    return [
        *(KNeighborsClassifier(k) for k in (3, 5, 10, 20)),
        *(LogisticRegression(C=strength, max_iter=1000) for strength in (0.01, 1.0)),
        LinearDiscriminantAnalysis(),
        GaussianNB(),
        DecisionTreeClassifier(random_state=seed),
        RandomForestClassifier(random_state=seed),
        ExtraTreesClassifier(random_state=seed),
        AdaBoostClassifier(random_state=seed),
        GradientBoostingClassifier(random_state=seed),
    ]


def ensemble(classifiers: list[Any], bags: Bags, memory: str | None) -> Choice:
    """The concept fraction, and classifiers of instances as its grid."""
    grid = {"classifier": classifiers}
    return on_features(StandardizeInstances(), ConceptFractionClassifier(), grid)


def graphs_from_zero_to_one(bags: Bags, memory: str | None) -> Choice:
    """miGraph on features scaled to [0, 1], and its grid."""
    estimator, grid = comparators(bags.num_features, memory)["miGraph"]
    return on_features(TransformInstances(MinMaxScaler()), estimator, grid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="a scene, two folds and two classifiers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    classifiers = base_classifiers(options.seed)
    methods = (
        ("Ensemble", "musk1", partial(ensemble, classifiers)),
        ("Ensemble", "fox", partial(ensemble, classifiers)),
        ("miGraph from 0 to 1", "musk2", graphs_from_zero_to_one),
    )
    protocol = HONEST
    if options.toy:
        methods = (("Ensemble", "kandemir2014", partial(ensemble, classifiers[:2])),)
        protocol = HONEST.smaller()
    print("| method | data | settings | accuracy on reported folds, % | chosen inside, % |")
    print("|---" * 5 + "|")
    for method, data, choice in methods:
        attempt = Attempt(protocol, choice)
        cell = Cell(method, data, {"accuracy": Published()}, (attempt,))
        table = Exhibit("settings", "Settings that are not told", cells=(cell,))
        ((_, _, scores),) = scores_by_setting(table, seed=options.seed, jobs=options.jobs)
        accuracy = 100 * scores["accuracy"]
        bags = load(data)
        splits = protocol.splits(data, bags, options.seed)
        found = scores_of_attempt(attempt, bags, splits, seed=options.seed, jobs=options.jobs)
        chosen = 100 * found.by_split["accuracy"].mean()
        limits = f"{accuracy.min():.1f} to {accuracy.max():.1f}"
        print(f"| {method} | {data} | {len(scores)} | {limits} | {chosen:.1f} |", flush=True)
    print(f"\nMeans over folds; seed {options.seed}; {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
