"""Models with default priors on folds, beside three classifiers that are no Bayesian models.

VGPMIL and VWSGP as `for_bags` and as `as_published` make them, by coordinate ascent, and with a
cosine or a linear kernel in place of the RBF; VGPMIL at the defaults by `laplace` too, which has no
factorised augmentation: where it is better the bound is at fault, and what is left is the model's.
ProbitGPMIL, which has no bound on its likelihood, the same three ways. Beside them: a support
vector machine on the set kernel of Gärtner et al. (2002), logistic regression on the means of bags,
and the largest score of an instance by logistic regression on instances that have the labels of
their bags. C of the first two is chosen by five folds inside the training bags; C = 1 of the
third.

Published folds of the first repetition where there are some; else ten folds drawn with seed 0.
Features are scaled by the training bags. M = 50. No method chooses anything by held-out bags, but
the default variance was chosen on these folds of musk1, elephant and fox.

    MILZOO_DATA=… python benchmarks/default_priors.py [--toy] [NAME …] [--methods METHOD …]
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from cross_validation import scores_of_folds, set_kernel
from jaxtyping import Bool, Float
from milzoo.datasets import Bags, load, published_folds
from milzoo.estimators.contract import means_by_bag
from milzoo.inference import coordinate_ascent, laplace
from milzoo.models import VGPMIL, VWSGP, Cosine, Linear, ProbitGPMIL
from milzoo.models.parts.kernels import median_distance
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC

NAMES = ("musk1", "musk2", "elephant", "fox", "newsgroups_comp_graphics")
STRENGTHS = {"C": [0.001, 0.01, 0.1, 1.0, 10.0, 100.0]}
NO_PROBABILITY = "SVM, set kernel"


def by_model(
    make: Callable, engine: Callable, train: Bags, test: Bags, *, num_inducing: int
) -> Float[np.ndarray, " B"]:
    """Probabilities of the test bags by a posterior."""
    model = make(train, num_inducing, seed=0)
    return engine(model, train, seed=0).predict(test.without_labels()).bag_probability


def by_set_kernel(train: Bags, test: Bags) -> Float[np.ndarray, " B"]:
    """Decision function of a support vector machine; ℓ is the median distance."""
    length_scale = median_distance(np.asarray(train.instances))
    found = chosen(SVC(kernel="precomputed"), train.num_bags)
    found.fit(set_kernel(train, train, length_scale), train.labels)
    return found.decision_function(set_kernel(test, train, length_scale))


def chosen(classifier: SVC | LogisticRegression, num_bags: int) -> GridSearchCV:
    """The classifier with the C of the largest AUC in folds of the training bags."""
    folds = StratifiedKFold(5 if num_bags > 20 else 2, shuffle=True, random_state=0)
    return GridSearchCV(classifier, STRENGTHS, scoring="roc_auc", cv=folds)


def by_bag_means(train: Bags, test: Bags) -> Float[np.ndarray, " B"]:
    """Probabilities by logistic regression on the mean of each bag."""

    def mean(bags: Bags) -> Float[np.ndarray, "B D"]:
        return means_by_bag(np.asarray(bags.instances), bags)

    found = chosen(LogisticRegression(max_iter=5000), train.num_bags).fit(mean(train), train.labels)
    return found.predict_proba(mean(test))[:, 1]


def by_largest_instance(train: Bags, test: Bags) -> Float[np.ndarray, " B"]:
    """Probability of the instance that is most likely positive."""
    labels = np.asarray(train.labels)[np.asarray(train.bag_index)]
    found = LogisticRegression(max_iter=5000).fit(train.instances, labels)
    return np.maximum.reduceat(expit(found.decision_function(test.instances)), test.starts)


def methods(num_inducing: int) -> dict[str, Callable[[Bags, Bags], Float[np.ndarray, " B"]]]:
    """By name: training and test bags → scores of the test bags."""
    fit = partial(by_model, num_inducing=num_inducing)
    return {
        "VGPMIL, as published": partial(fit, VGPMIL.as_published, coordinate_ascent),
        "VGPMIL": partial(fit, VGPMIL.for_bags, coordinate_ascent),
        "VGPMIL, laplace": partial(fit, VGPMIL.for_bags, laplace),
        "VGPMIL, cosine": partial(fit, partial(VGPMIL.for_bags, kernel=Cosine), coordinate_ascent),
        "VGPMIL, linear": partial(fit, partial(VGPMIL.for_bags, kernel=Linear), coordinate_ascent),
        "ProbitGPMIL, as published": partial(fit, ProbitGPMIL.as_published, coordinate_ascent),
        "ProbitGPMIL": partial(fit, ProbitGPMIL.for_bags, coordinate_ascent),
        "ProbitGPMIL, laplace": partial(fit, ProbitGPMIL.for_bags, laplace),
        "VWSGP, as published": partial(fit, VWSGP.as_published, coordinate_ascent),
        "VWSGP": partial(fit, VWSGP.for_bags, coordinate_ascent),
        "VWSGP, cosine": partial(fit, partial(VWSGP.for_bags, kernel=Cosine), coordinate_ascent),
        "VWSGP, linear": partial(fit, partial(VWSGP.for_bags, kernel=Linear), coordinate_ascent),
        NO_PROBABILITY: by_set_kernel,
        "logistic regression, bag means": by_bag_means,
        "logistic regression, largest instance": by_largest_instance,
    }


def folds_of(name: str, bags: Bags) -> list[Bool[np.ndarray, " B"]]:
    """Which bags each fold holds out."""
    try:
        number = published_folds(name)[:, 0]
    except FileNotFoundError:
        number = np.empty(bags.num_bags, int)
        split = StratifiedKFold(10, shuffle=True, random_state=0)
        for fold, (_, held_out) in enumerate(split.split(number, bags.labels)):
            number[held_out] = fold
    return [number == fold for fold in np.unique(number)]


def rows_of(
    bags: Bags, held_out: list[Bool[np.ndarray, " B"]], num_inducing: int, names: list[str]
) -> pd.DataFrame:
    """AUC and log loss of the named methods, folds pooled."""
    found, known = {}, methods(num_inducing)
    for name in names:
        started = time.perf_counter()
        scores = scores_of_folds(known[name], bags, held_out)
        seconds = time.perf_counter() - started
        judged = np.isfinite(scores)
        truth, scores = np.asarray(bags.labels)[judged], scores[judged]
        loss = log_loss(truth, np.clip(scores, 1e-12, 1 - 1e-12), labels=[0, 1])
        found[name] = {
            "AUC": roc_auc_score(truth, scores),
            "log loss": np.nan if name == NO_PROBABILITY else loss,
            "seconds": seconds,
        }
    return pd.DataFrame.from_dict(found, orient="index")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--toy", action="store_true", help="digits, two folds, few points")
    known = list(methods(1))
    parser.add_argument("--methods", nargs="+", choices=known, default=known)
    given = parser.parse_args()
    for name in ["digits"] if given.toy else given.names:
        if given.toy:
            bags, _ = load(name).split(0.2, seed=0)
            held_out, num_inducing = [np.arange(bags.num_bags) % 2 == fold for fold in (0, 1)], 4
        else:
            bags, num_inducing = load(name), 50
            held_out = folds_of(name, bags)
        table = rows_of(bags, held_out, num_inducing, given.methods)
        print(f"\n{name}: {len(held_out)} folds, M = {num_inducing}, seed 0")
        print(table.round({"AUC": 3, "log loss": 3, "seconds": 1}).to_string())
    print(f"{platform.machine()}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
