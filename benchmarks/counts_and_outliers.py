"""Likelihoods of targets on real images: counts of digits, and targets with errors among them.

The 1,640 digits of ``load("digits")`` are dealt into bags of 1 to 20; the target of a bag is the
number of its twos and nines. In the second table a tenth of the training targets are ten times too
large, as after a slip of the decimal point; test targets are right. Inducing points 50,
hyper-parameters learned by the bound; r of the negative binomial is the one of 1, 4, 16 and 64 with
the highest bound. Five deals, a third of the bags held out of each.

    python benchmarks/counts_and_outliers.py [--toy] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator

import numpy as np
from milzoo.datasets import Bags, load
from milzoo.estimators import BayesianMILRegressor
from milzoo.estimators.contract import means_by_bag
from milzoo.models import VWSGP, Gaussian, NegativeBinomial, StudentT
from scipy.stats import norm, poisson
from sklearn.linear_model import BayesianRidge, PoissonRegressor
from sklearn.metrics import mean_absolute_error, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

MASS = 0.9
WRONG = 0.1  # of the training targets

# Predicted mean, log density at the true targets, and interval, (B,), (B,), (2, B).
type Predicted = tuple[np.ndarray, np.ndarray, np.ndarray]
type Method = Callable[[Bags, Bags], Predicted]


def deals(num_deals: int, num_bags: int | None, seed: int) -> Iterator[tuple[Bags, Bags]]:
    """Training and test bags of digits dealt anew, with counts for targets."""
    digits, random = load("digits"), np.random.default_rng(seed)
    instances, labels = np.asarray(digits.instances), np.asarray(digits.instance_labels)
    for _ in range(num_deals):
        ends = np.cumsum(random.integers(1, 21, len(labels)))
        order = random.permutation(len(labels))
        index = np.searchsorted(ends, np.arange(len(labels)), side="right")
        counts = np.bincount(index, labels[order])
        bags = Bags.from_arrays(instances[order], index)[:num_bags].with_targets(counts[:num_bags])
        shuffled = random.permutation(len(bags))
        test, training = np.split(shuffled, [len(bags) // 3])
        yield bags[training].standardize(), bags[test].standardize(bags[training])


def with_wrong_targets(bags: Bags, random: np.random.Generator) -> Bags:
    targets = np.array(bags.targets)
    wrong = random.random(len(targets)) < WRONG
    return bags.with_targets(np.where(wrong, 10 * targets, targets))


def by_process(training: Bags, test: Bags, *likelihoods: object, num_inducing: int) -> Predicted:
    """VWSGP with the likelihood that has the highest bound."""
    fitted = [
        BayesianMILRegressor(
            VWSGP,
            "coordinate_ascent",
            seed=0,
            model__likelihood=likelihood,
            model__num_inducing=num_inducing,
            engine__learn_hyperparameters=True,
        ).fit(training)
        for likelihood in likelihoods
    ]
    best = max(fitted, key=lambda one: one.posterior_.elbo[-1])
    density = best.posterior_.predict(test).log_density(test.targets)
    return best.predict(test), density, best.predict_interval(test, MASS)


def summed(bags: Bags) -> np.ndarray:
    return np.add.reduceat(np.asarray(bags.instances), bags.starts, axis=0)


def by_poisson_regression(training: Bags, test: Bags) -> Predicted:
    """On the means of bags and the logarithms of their sizes."""

    def features(bags: Bags) -> np.ndarray:
        return np.column_stack([means_by_bag(bags.instances, bags), np.log(bags.bag_sizes)])

    model = make_pipeline(StandardScaler(), PoissonRegressor(alpha=0.1, max_iter=1000))
    mean = model.fit(features(training), training.targets).predict(features(test))
    tails = (1 - MASS) / 2
    interval = np.stack([poisson.ppf(tails, mean), poisson.ppf(1 - tails, mean)])
    return mean, poisson.logpmf(test.targets, mean), interval


def by_ridge(training: Bags, test: Bags) -> Predicted:
    """Bayesian ridge regression on the sums of instances, and sizes."""

    def features(bags: Bags) -> np.ndarray:
        return np.column_stack([summed(bags), bags.bag_sizes])

    model = make_pipeline(StandardScaler(), BayesianRidge())
    mean, sd = model.fit(features(training), training.targets).predict(
        features(test), return_std=True
    )
    half = norm.ppf((1 + MASS) / 2) * sd
    return mean, norm.logpdf(test.targets, mean, sd), np.stack([mean - half, mean + half])


def scores(test: Bags, predicted: Predicted) -> list[float]:
    mean, density, (low, high) = predicted
    covers = (low <= test.targets) & (test.targets <= high)
    errors = mean_absolute_error(test.targets, mean), r2_score(test.targets, mean)
    return [*errors, density.mean(), covers.mean(), (high - low).mean()]


def show(title: str, sets: list[tuple[Bags, Bags]], methods: dict[str, Method]) -> None:
    print(f"\n| {title} | mean absolute error | R² | log density | covered | width |")
    print("|---|---|---|---|---|---|")
    for name, method in methods.items():
        rows = np.array([scores(test, method(training, test)) for training, test in sets])
        mean, error = rows.mean(axis=0), rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
        cells = (f"{m:.2f} ± {e:.2f}" for m, e in zip(mean, error, strict=True))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="two deals of few bags")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_deals, num_bags, num_inducing = (2, 24, 5) if options.toy else (5, None, 50)

    def process(*likelihoods: object) -> Method:
        return lambda *parts: by_process(*parts, *likelihoods, num_inducing=num_inducing)

    binomials = [NegativeBinomial(r) for r in ((1, 16) if options.toy else (1, 4, 16, 64))]
    methods = {
        "`Gaussian`": process(Gaussian(0.5)),
        "`StudentT`, ν = 4": process(StudentT(4.0, 0.5)),
        "`NegativeBinomial`": process(*binomials),
        "Poisson regression": by_poisson_regression,
        "Bayesian ridge": by_ridge,
    }
    right = list(deals(num_deals, num_bags, options.seed))
    random = np.random.default_rng(options.seed)
    wrong = [(with_wrong_targets(training, random), test) for training, test in right]
    show("counts", right, methods)
    show("a tenth wrong", wrong, methods)
    sizes = ", ".join(f"{len(training)} and {len(test)}" for training, test in right)
    print(f"\nMean ± standard error over deals, bags to train and test on: {sizes}; ", end="")
    print(f"{MASS:.0%} intervals; seed {options.seed}; {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
