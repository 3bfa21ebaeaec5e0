"""Time of DPMIL's updates at the sizes of the paper's two data sets, beside scikit-learn's mixture.

    python benchmarks/dpmil_speed.py            # 3,600 × 100 and 14,303 × 30, K = 20, 50 rounds
    python benchmarks/dpmil_speed.py --toy      # small, to see that it runs

The data are made up: two mixtures, one for each class of instances. Scikit-learn's mixture is a
single one of K components on all instances, with the same prior; DPMIL has two, and weighs the
instances of positive bags in both. milzoo computes its bound at every round too.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from milzoo.datasets import Bags
from milzoo.inference import coordinate_ascent
from milzoo.models import DPMIL
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture

NUM_CLUSTERS = 5  # of each class, in the data


@dataclass(frozen=True)
class Design:
    """Sizes of the data and of the fit."""

    name: str
    num_instances: int
    num_features: int
    num_bags: int
    positive_bags: int
    positive_share: float  # of the instances of a positive bag
    paper_seconds: float | None
    max_components: int = 20
    num_rounds: int = 50

    def bags(self, seed: int) -> Bags:
        """Bags of sizes as equal as can be, negative ones first, with a positive instance each."""
        random = np.random.default_rng(seed)
        bag_index = np.sort(np.arange(self.num_instances) % self.num_bags)
        bag_label = (np.arange(self.num_bags) >= self.num_bags - self.positive_bags).astype(int)
        is_first = np.diff(bag_index, prepend=-1) == 1
        size = self.num_instances / self.num_bags
        share_of_others = (self.positive_share * size - 1) / (size - 1)
        is_chosen = is_first | (random.random(self.num_instances) < share_of_others)
        label = bag_label[bag_index] * is_chosen
        # Clusters about four standard deviations apart, whatever the number of features.
        spread = 3 / np.sqrt(self.num_features)
        centres = random.normal(0, spread, (2, NUM_CLUSTERS, self.num_features))
        cluster = random.integers(NUM_CLUSTERS, size=self.num_instances)
        instances = random.standard_normal((self.num_instances, self.num_features))
        instances += centres[label, cluster]
        return Bags.from_arrays(instances, bag_index, bag_label, label)


# The text data sets: 50 of 100 bags positive, 3 % of their instances; the Barrett's cancer images:
# 143 of 210 bags, and 53.4 % of all instances, which is 78 % of those in positive bags.
FULL = (
    Design("text", 3_600, 100, 100, 50, 0.03, 2.9),
    Design("Barrett's cancer", 14_303, 30, 210, 143, 0.534 * 210 / 143, 44.7),
)
TOY = (Design("toy", 300, 4, 20, 10, 0.3, None, max_components=3, num_rounds=5),)


@dataclass(frozen=True)
class Row:
    """One fit; seconds that are not known are None."""

    data: str
    engine: str
    rounds: int | None
    seconds: float | None  # of the rounds
    compile_seconds: float | None
    whole_seconds: float | None  # with k-means, compilation and all else


def rows_of(design: Design, seed: int) -> Iterator[Row]:
    bags = design.bags(seed)
    data = f"{design.name}, {design.num_instances:,} × {design.num_features}"
    for label_update in ("hard", "soft"):
        yield _ours(data, design, bags, label_update, seed)
    yield _scikit_learn(data, design, bags, seed)
    if design.paper_seconds is not None:
        yield Row(data, "the paper, on its machine", None, None, None, design.paper_seconds)


def _ours(data: str, design: Design, bags: Bags, label_update: str, seed: int) -> Row:
    model = DPMIL.for_bags(bags, max_components=design.max_components)
    started = time.perf_counter()
    posterior = coordinate_ascent(
        model,
        bags,
        seed=seed,
        label_update=label_update,
        max_steps=design.num_rounds,
        tolerance=0.0,
        num_starts=1,
        num_draws=1,
    )
    whole = time.perf_counter() - started
    return Row(
        data,
        f"milzoo, {label_update} labels",
        len(posterior.elbo),
        posterior.seconds,
        posterior.compile_seconds,
        whole,
    )


def _scikit_learn(data: str, design: Design, bags: Bags, seed: int) -> Row:
    """All rounds less the first, which is timed with k-means by a fit of its own."""
    instances = np.asarray(bags.instances)
    first, whole = (
        _seconds_of_mixture(instances, design, rounds, seed) for rounds in (1, design.num_rounds)
    )
    return Row(data, "scikit-learn, one mixture", design.num_rounds - 1, whole - first, None, whole)


def _seconds_of_mixture(instances: np.ndarray, design: Design, num_rounds: int, seed: int) -> float:
    """The prior of `DPMIL.for_bags`; W0 and m0 are what scikit-learn takes by itself."""
    mixture = BayesianGaussianMixture(
        n_components=design.max_components,
        covariance_type="full",
        weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=2.0,
        mean_precision_prior=1.0,
        degrees_of_freedom_prior=design.num_features + 1.0,
        max_iter=num_rounds,
        tol=0.0,
        random_state=seed,
    )
    started = time.perf_counter()
    with warnings.catch_warnings():
        # It is to stop by the count, as with tolerance 0 it always does.
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(instances)
    seconds = time.perf_counter() - started
    assert mixture.n_iter_ == num_rounds, f"stopped after {mixture.n_iter_} rounds"
    return seconds


def print_table(rows: list[Row]) -> None:
    print("| data | fit | rounds | rounds, s | a round, ms | compilation, s | whole call, s |")
    print("|---" * 7 + "|")
    for row in rows:
        by_round = None if row.rounds is None else 1e3 * row.seconds / row.rounds
        numbers = (row.seconds, by_round, row.compile_seconds, row.whole_seconds)
        cells = " | ".join("" if number is None else f"{number:.3g}" for number in numbers)
        print(f"| {row.data} | {row.engine} | {row.rounds or ''} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    designs = TOY if arguments.toy else FULL
    rows = [row for design in designs for row in rows_of(design, arguments.seed)]
    print_table(rows)
    print(
        f"\nMade-up data of two mixtures; K = {designs[0].max_components}; one start; tolerance 0, "
        f"at most {designs[0].num_rounds} rounds (milzoo stops sooner where the bound no longer "
        "moves at all). Scikit-learn: BayesianGaussianMixture, the same prior, one mixture on all "
        "instances, where DPMIL has one for each class; the round that comes with its k-means is "
        "not among its rounds. Whole call: with k-means, compilation and the posterior made. The "
        "paper's: Table 3, one data split of its own data.\n"
        f"64 bit; {os.cpu_count()} cores; seed {arguments.seed}."
    )


if __name__ == "__main__":
    main()
