"""The mean cardinality kernel, and what it costs to use the labels of the training bags twice.

Four classifiers on published folds, the first repetition, features standardised by the training
bags: the cardinality model by nuts with priors on μ and σ; a Gaussian process on the kernel at the
mode, whose weights have seen the labels that the process is trained on; the same on the mean of the
kernel over draws of the posterior; and the process on the mean kernel whose draws have seen the
labels of other bags alone.

    MILZOO_DATA=… python benchmarks/mean_cardinality_kernel.py [--toy] [NAME …]
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import Any

import numpy as np
import numpyro.distributions as dist
from milzoo.datasets import Bags, load, published_folds
from milzoo.diagnostics import cross_validate_bags
from milzoo.estimators import BayesianMIL, CardinalityGPClassifier, StandardizeInstances
from milzoo.inference import maximum_a_posteriori, nuts
from milzoo.models import (
    RBF,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    MeanCardinalityKernel,
    NormalCardinality,
)
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline

NAMES = ("musk1", "elephant", "fox")
NUM_DRAWS = 32  # of the mean kernel


def with_priors(bags: Bags, seed: int) -> CardinalityModel:
    """μ is anything; σ is about 0.15, within a factor of 2.7 for 95 %."""
    potential = NormalCardinality(dist.Beta(2.0, 2.0), dist.LogNormal(np.log(0.15), 0.5))
    return CardinalityModel.for_bags(bags, potential)


def instance_kernel(bags: Bags) -> RBF:
    return RBF(1.0, float(np.sqrt(bags.num_features)))


def on_the_mode(bags: Bags, seed: int) -> CardinalityGP:
    model = CardinalityModel.for_bags(bags)
    weights = maximum_a_posteriori(model, bags, seed=seed).stored_draws()["weights"][0]
    return CardinalityGP.at_bags(
        CardinalityKernel(model, weights, instance_kernel(bags)), bags, 5.0
    )


def on_the_mean(bags: Bags, seed: int, **sampling: int) -> CardinalityGP:
    posterior = nuts(with_priors(bags, seed), bags, seed=seed, **sampling)
    draws = posterior.draws(NUM_DRAWS, seed=seed)
    kernel = MeanCardinalityKernel.of(posterior.model, draws, bags, instance_kernel(bags))
    return CardinalityGP.at_bags(kernel, bags, 5.0)


def classifiers(sampling: dict[str, int]) -> dict[str, Any]:
    options = {f"engine__{name}": value for name, value in sampling.items()}
    sampled = BayesianMIL(with_priors, "nuts", seed=0, **options)
    ascent = "coordinate_ascent"
    methods = {
        "`CardinalityModel`, nuts": sampled,
        "process, kernel at the mode": BayesianMIL(on_the_mode, ascent, seed=0),
        "process, mean kernel": BayesianMIL(partial(on_the_mean, **sampling), ascent, seed=0),
        "process, mean kernel of other bags": CardinalityGPClassifier(
            sampled, num_draws=NUM_DRAWS, seed=0
        ),
    }
    return {name: make_pipeline(StandardizeInstances(), one) for name, one in methods.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--toy", action="store_true", help="a scene, two folds, few draws")
    given = parser.parse_args()
    length = 20 if given.toy else 300
    sampling = {"num_warmup": length, "num_samples": length, "num_chains": 2}
    for name in ["kandemir2014"] if given.toy else given.names:
        bags = load(name)
        folds: Any = StratifiedKFold(2) if given.toy else published_folds(name)[:, :1]
        found = cross_validate_bags(
            classifiers(sampling), bags, folds, jobs=1, progress=sys.stderr.isatty()
        )
        columns = ["accuracy", "auc", "log_loss", "fit_seconds"]
        print(f"\n{name}: {bags}\n")
        print(found.table().reindex(columns=columns).round(3).to_string(), flush=True)
        print(found.differences("log_loss").round(3).to_string(), flush=True)
    print(f"\nSeed 0; 2 × {length} draws after as many of warm-up; {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
