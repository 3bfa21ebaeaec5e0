"""Tell which classifiers respect the assumption of multiple-instance learning.

Unit tests after Raff and Holt (2023): in each, positive bags are positive for one reason, and a
poison item marks negative bags in training, positive bags in the test (`milzoo.datasets`,
`standard_assumption`, `threshold_based`, `presence_based`). A classifier that respects the
assumption has the same AUC on fresh bags like those in training and on test bags; one that takes
the poison for a sign of negative bags has less than a half in the test.

Classifiers of the benchmark `comparators` with what it takes without a search, features
standardised by the training bags.

    python benchmarks/mil_unit_tests.py [--toy] [--methods NAME …]
"""

from __future__ import annotations

import argparse
import os
import platform

import pandas as pd
from comparators import methods
from milzoo.datasets import presence_based, standard_assumption, threshold_based
from milzoo.diagnostics.measures.classification import classify
from milzoo.estimators import StandardizeInstances
from sklearn.pipeline import make_pipeline

UNIT_TESTS = {
    "standard": standard_assumption,
    "threshold": threshold_based,
    "presence": presence_based,
}
NUM_FEATURES = 16


def rows_of(chosen: list[str], bags_of_each_label: int) -> pd.DataFrame:
    """AUC of each classifier on fresh bags like those in training, and on test bags."""
    known = methods(NUM_FEATURES)
    drawn = {}
    for name, draw in UNIT_TESTS.items():
        training, test = draw(bags_of_each_label, num_features=NUM_FEATURES, seed=0)
        fresh, _ = draw(bags_of_each_label, num_features=NUM_FEATURES, seed=1)
        drawn[name] = training, fresh, test
    found = {}
    for method in chosen:
        classifier = make_pipeline(StandardizeInstances(), known[method][0])
        found[method] = {}
        for name, (training, *others) in drawn.items():
            classifier.fit(training)
            for which, bags in zip(("fresh", "test"), others, strict=True):
                found[method][name, which] = classify(classifier, bags).scores()["auc"]
    return pd.DataFrame.from_dict(found, orient="index")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=list(methods(1)), default=list(methods(1)))
    parser.add_argument("--toy", action="store_true", help="few bags, three methods")
    given = parser.parse_args()
    chosen = ["VWSGP", "MI-SVM", "Citation-kNN"] if given.toy else given.methods
    print(rows_of(chosen, 10 if given.toy else 60).round(2).to_string())
    print(f"\nSeeds 0 and 1; {os.cpu_count()} cores, {platform.machine()}.")


if __name__ == "__main__":
    main()
