"""Targets of bags: VWSGP beside a Gaussian process on the bags' mean instances.

Kandemir et al. (2016) say in a footnote that targets y_b ~ N(Σ_n f(x_n), noise) take their model to
regression, and show none. Here are two worlds of made-up bags, and in each world one of the two is
right: targets that are sums of a bump at the instances, and targets that are a wave at the mean
instance. Bags have 1 to 20 instances in two dimensions; noise has an sd of 0.3. Hyper-parameters,
the noise too, are learned by the evidence, which is VWSGP's bound here. The third method has the
size of a bag as one more feature.

    python benchmarks/regression.py [--toy] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable

import numpy as np
from milzoo.datasets import Bags
from milzoo.estimators import BayesianMILRegressor
from milzoo.estimators.contract import means_by_bag
from milzoo.models import VWSGP, Gaussian
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import r2_score

NOISE_SD = 0.3
MASS = 0.9


def mean_instances(bags: Bags) -> np.ndarray:
    return means_by_bag(bags.instances, bags)


def sums_of_a_bump(bags: Bags) -> np.ndarray:
    squares = np.sum((bags.instances - 0.8) ** 2, axis=1)
    return np.add.reduceat(np.exp(-squares), bags.starts)


def wave_at_the_mean(bags: Bags) -> np.ndarray:
    return np.sin(3 * mean_instances(bags)[:, 0])


WORLDS = {"sums of a bump": sums_of_a_bump, "a wave at the mean": wave_at_the_mean}


def made_up(
    world: Callable[[Bags], np.ndarray], num_bags: int, random: np.random.Generator
) -> Bags:
    sizes = random.integers(1, 21, num_bags)
    bags = Bags.from_list([random.normal(size=(size, 2)) for size in sizes])
    return bags.with_targets(world(bags) + NOISE_SD * random.normal(size=num_bags))


def by_sums(training: Bags, test: Bags, num_inducing: int) -> tuple[np.ndarray, np.ndarray]:
    """VWSGP: predictions and intervals, (B,) and (2, B)."""
    regressor = BayesianMILRegressor(
        VWSGP,
        "coordinate_ascent",
        seed=0,
        model__likelihood=Gaussian(0.1),
        model__num_inducing=num_inducing,
        engine__learn_hyperparameters=True,
    ).fit(training)
    return regressor.predict(test), regressor.predict_interval(test, MASS)


def by_means(
    training: Bags, test: Bags, features: Callable[[Bags], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian process on features of a bag: predictions and intervals, (B,) and (2, B)."""
    columns = features(training).shape[1]
    kernel = ConstantKernel() * RBF(np.ones(columns)) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(
        kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0
    )
    with warnings.catch_warnings():
        # Of a length scale at its largest value: a feature that is ignored, as it should be.
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(features(training), training.targets)
    mean, sd = process.predict(features(test), return_std=True)
    half = norm.ppf((1 + MASS) / 2) * sd
    return mean, np.stack([mean - half, mean + half])


def with_sizes(bags: Bags) -> np.ndarray:
    return np.column_stack([mean_instances(bags), bags.bag_sizes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="two sets of few bags")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_sets, num_bags, num_inducing = (2, 20, 5) if options.toy else (20, 100, 30)
    methods = {
        "VWSGP": lambda training, test: by_sums(training, test, num_inducing),
        "process on means": lambda *parts: by_means(*parts, mean_instances),
        "process on means and sizes": lambda *parts: by_means(*parts, with_sizes),
    }
    print(f"| targets | method | R² | {MASS:.0%} intervals that cover | their width |")
    print("|---|---|---|---|---|")
    for title, world in WORLDS.items():
        random = np.random.default_rng(options.seed)
        sets = [[made_up(world, num_bags, random) for _ in range(2)] for _ in range(num_sets)]
        for method, predict in methods.items():
            scores = []
            for training, test in sets:
                predicted, (low, high) = predict(training, test)
                covers = (low <= test.targets) & (test.targets <= high)
                row = r2_score(test.targets, predicted), covers.mean(), (high - low).mean()
                scores.append(row)
            mean, sd = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1)
            cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, sd, strict=True)]
            print(f"| {title} | {method} | " + " | ".join(cells) + " |", flush=True)
    print(
        f"\n{num_sets} sets of {num_bags} bags to train on and as many to test on, mean ± sd over "
        f"sets; seed {options.seed}, {os.cpu_count()} cores."
    )


if __name__ == "__main__":
    main()
