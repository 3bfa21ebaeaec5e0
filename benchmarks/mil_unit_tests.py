"""Tell which classifiers respect the assumption of multiple-instance learning.

Unit tests after Raff and Holt (2023): in each, positive bags are positive for one reason, and a
poison item marks negative bags in training, positive bags in the test (`milzoo.datasets`,
`standard_assumption`, `threshold_based`, `presence_based`). A classifier that respects the
assumption has the same AUC on fresh bags like those in training and on test bags; one that takes
the poison for a sign of negative bags has less than a half in the test.

Beside it, for classifiers that give probabilities: their Bayes regret, in nats, with its standard
error over bags. The truth is the posterior by the distribution that the bags were drawn from, that
of training or that of the test. With so many features it is certain of the label. Two rows are
truths themselves: the posterior of training bags, which trusts the poison, and the one to which the
poison tells nothing.

Classifiers of `milzoo.papers.comparators` with what it takes without a search, features
standardised by the training bags.

    python benchmarks/mil_unit_tests.py [--toy] [--methods NAME …]
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Mapping

import pandas as pd
from milzoo.datasets import (
    presence_based,
    presence_based_log_odds,
    standard_assumption,
    standard_assumption_log_odds,
    threshold_based,
    threshold_based_log_odds,
)
from milzoo.diagnostics.measures.classification import (
    BayesRegret,
    bayes_regret,
    classify,
)
from milzoo.estimators import StandardizeInstances
from milzoo.papers.comparators import comparators
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

UNIT_TESTS = {
    "standard": (standard_assumption, standard_assumption_log_odds),
    "threshold": (threshold_based, threshold_based_log_odds),
    "presence": (presence_based, presence_based_log_odds),
}
NUM_FEATURES = 16
# Which bags have the poison, of fresh bags like those in training and of test bags.
POISONED = {"fresh": "negative", "test": "positive"}
TRUTHS = {"true posterior in training": "negative", "true posterior without poison": "either"}


def rows_of(chosen: list[str], bags_of_each_label: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """AUC and Bayes regret of each classifier, on fresh bags like those in training and test bags.

    The last rows are of the truths.
    """
    known = comparators(NUM_FEATURES)
    auc, regret = {}, {}
    for name, (draw, true_log_odds) in UNIT_TESTS.items():
        training, test = draw(bags_of_each_label, num_features=NUM_FEATURES, seed=0)
        fresh, _ = draw(bags_of_each_label, num_features=NUM_FEATURES, seed=1)
        classifiers = {}
        for method in chosen:
            classifiers[method] = make_pipeline(StandardizeInstances(), known[method][0])
            classifiers[method].fit(training)
        for which, bags in (("fresh", fresh), ("test", test)):
            truth = {"true_log_odds": true_log_odds(bags, poisoned=POISONED[which])}
            for method, classifier in classifiers.items():
                found = classify(classifier, bags)
                auc[method, name, which] = found.scores()["auc"]
                if found.log_odds is not None:
                    regret[method, name, which] = bayes_regret(log_odds=found.log_odds, **truth)
            for said, poisoned in TRUTHS.items():
                log_odds = true_log_odds(bags, poisoned=poisoned)
                auc[said, name, which] = roc_auc_score(bags.labels, log_odds)
                regret[said, name, which] = bayes_regret(log_odds=log_odds, **truth)
    written = {place: in_words(found) for place, found in regret.items()}
    return as_table(auc, [*chosen, *TRUTHS]).round(2), as_table(written, [*chosen, *TRUTHS])


def in_words(found: BayesRegret) -> str:
    """The regret and its standard error, in nats."""
    digits = 2 if found.mean < 100 else 0
    return f"{found.mean:.{digits}f} ± {found.standard_error:.{digits}f}"


def as_table(found: Mapping[tuple[str, str, str], float | str], rows: list[str]) -> pd.DataFrame:
    """A row for each method that has values, a column for each unit test and kind of bags."""
    table = pd.Series(found).unstack([1, 2])
    return table.reindex([row for row in rows if row in table.index])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--methods", nargs="+", choices=list(comparators(1)), default=list(comparators(1))
    )
    parser.add_argument("--toy", action="store_true", help="few bags, three methods")
    given = parser.parse_args()
    chosen = ["VWSGP", "MI-SVM", "Citation-kNN"] if given.toy else given.methods
    auc, regret = rows_of(chosen, 10 if given.toy else 60)
    print(f"AUC\n\n{auc.to_string()}\n\nBayes regret, nats\n\n{regret.to_string()}")
    print(f"\nSeeds 0 and 1; {os.cpu_count()} cores, {platform.machine()}.")


if __name__ == "__main__":
    main()
