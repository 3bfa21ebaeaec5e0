"""Bags of three classes: digits with a nine, else with a two, else with neither.

The 1,797 digits of scikit-learn are dealt into bags of 1 to 8. Sticks are broken in the order nine,
two, neither. Beside them is a softmax regression on the mean instance of a bag and its size, with
its penalty chosen by three inner folds. Instances are scored by the class that they would give a
bag: the regression predicts for bags of one. Five deals, a third of the bags held out of each.

    python benchmarks/several_classes.py [--toy] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from milzoo.datasets import Bags
from milzoo.estimators import BayesianMIL, StickBreakingClassifier
from milzoo.estimators.contract import means_by_bag
from milzoo.models import Linear
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

NEITHER, TWO, NINE = 0, 1, 2


class Part(NamedTuple):
    """Bags with the classes of bags and of instances."""

    bags: Bags
    classes: np.ndarray
    instance_classes: np.ndarray

    def select(self, chosen: np.ndarray) -> Part:
        rows = np.concatenate([np.flatnonzero(self.bags.bag_index == number) for number in chosen])
        return Part(self.bags[chosen], self.classes[chosen], self.instance_classes[rows])


def deals(num_deals: int, num_bags: int | None, seed: int) -> Iterator[tuple[Part, Part]]:
    """Training and test bags of digits dealt anew; the class of a bag is its largest."""
    images, digits = load_digits(return_X_y=True)
    of_digit = np.where(digits == 9, NINE, np.where(digits == 2, TWO, NEITHER))
    random = np.random.default_rng(seed)
    for _ in range(num_deals):
        ends = np.cumsum(random.integers(1, 9, len(digits)))
        order = random.permutation(len(digits))
        index = np.searchsorted(ends, np.arange(len(digits)), side="right")
        bags = Bags.from_arrays(images[order], index)
        everything = Part(bags, np.maximum.reduceat(of_digit[order], bags.starts), of_digit[order])
        shuffled = random.permutation(len(bags))[:num_bags]
        test, training = (
            everything.select(np.sort(part)) for part in np.split(shuffled, [len(shuffled) // 3])
        )
        scaled = test.bags.standardize(training.bags)
        yield training._replace(bags=training.bags.standardize()), test._replace(bags=scaled)


def by_softmax(training: Part, test: Part) -> tuple[np.ndarray, np.ndarray]:
    def features(bags: Bags) -> np.ndarray:
        return np.column_stack([means_by_bag(bags.instances, bags), bags.bag_sizes])

    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    penalties = {"logisticregression__C": [0.001, 0.01, 0.1, 1.0, 10.0]}
    model = GridSearchCV(regression, penalties, cv=3, scoring="neg_log_loss")
    model.fit(features(training.bags), training.classes)
    alone = Bags.from_list(list(np.asarray(test.bags.instances)[:, None]))
    return model.predict_proba(features(test.bags)), model.predict_proba(features(alone))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="two deals of few bags")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_deals, num_bags = (2, 45) if options.toy else (5, None)
    settings = {"seed": 0, "model__num_inducing": 10 if options.toy else 50}
    ascent = "coordinate_ascent"
    models = {
        "sticks of `VGPMIL`": BayesianMIL("vgpmil", ascent, **settings),
        "sticks of `ProbitGPMIL`": BayesianMIL("probit_gpmil", ascent, **settings),
        "sticks of `VWSGP`": BayesianMIL("vwsgp", ascent, **settings),
        "sticks of `VWSGP`, linear": BayesianMIL("vwsgp", ascent, model__kernel=Linear, **settings),
    }

    def by_sticks(name: str, training: Part, test: Part) -> tuple[np.ndarray, np.ndarray]:
        found = StickBreakingClassifier(models[name]).fit(training.bags, training.classes)
        return found.predict_proba(test.bags), found.predict_instances_proba(test.bags)

    rows: dict[str, list] = {name: [] for name in [*models, "softmax of means"]}
    sizes = []
    for training, test in deals(num_deals, num_bags, options.seed):
        sizes.append(f"{len(training.bags)} and {len(test.bags)}")
        for name, scored in rows.items():
            given = training, test
            bag, instance = by_sticks(name, *given) if name in models else by_softmax(*given)
            scored.append(
                [
                    accuracy_score(test.classes, bag.argmax(axis=1)),
                    log_loss(test.classes, bag, labels=[NEITHER, TWO, NINE]),
                    accuracy_score(test.instance_classes, instance.argmax(axis=1)),
                    log_loss(test.instance_classes, instance, labels=[NEITHER, TWO, NINE]),
                ]
            )
    print("| | accuracy | log loss | accuracy, instances | log loss, instances |")
    print("|---|---|---|---|---|")
    for name, scored in rows.items():
        mean, error = np.mean(scored, axis=0), np.std(scored, axis=0, ddof=1) / num_deals**0.5
        cells = (f"{m:.3f} ± {e:.3f}" for m, e in zip(mean, error, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")
    print(
        f"\nMean ± standard error over deals, bags to train and test on: {', '.join(sizes)}; ",
        end="",
    )
    print(f"seed {options.seed}; {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
