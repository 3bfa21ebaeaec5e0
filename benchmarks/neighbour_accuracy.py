"""How well a neighbourhood score classifies bags: two protocols, and training labels flipped.

The paper reports 92.4 % on musk1 by ten-fold cross-validation, and 86 and 73.94 % on elephant and
fox where "results are maximized over 15 runs" of a random split, two thirds to train on; k is at an
elbow, and a is 1. Here k and a are chosen inside the training bags of the published folds; beside
that are 15 runs like the paper's and the highest of them (of musk1 too, where the paper does not
say so), and what k and a would give that are chosen by the bags that are tested.

    MILZOO_DATA=… python benchmarks/neighbour_accuracy.py [--toy] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from milzoo.datasets import Bags, load, published_folds
from milzoo.estimators.score_classifiers import Threshold, elbow_of, nth_highest
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.model_selection import StratifiedKFold, train_test_split

NAMES = ("musk1", "musk2", "elephant", "fox")
IN_FOLDS = ("musk1", "musk2")  # of table 1; table 2 has random splits
PAPER = {"musk1": 92.4, "musk2": 86.4, "elephant": 86.0, "fox": 73.94}  # per cent


@dataclass(frozen=True)
class Protocol:
    """What was run: printed under the tables and written to the JSON."""

    names: tuple[str, ...]
    seed: int
    repetitions: int = 5
    folds: int = 10
    inner_folds: int = 5
    k: tuple[int, ...] = tuple(range(1, 11))
    min_positive: tuple[int, ...] = (1, 2, 3)  # a
    runs: int = 15  # of random splits
    flipped: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)

    @classmethod
    def toy(cls, seed: int) -> Protocol:
        fields = {"repetitions": 1, "folds": 2, "inner_folds": 2, "k": (1, 2, 3), "runs": 3}
        return cls(("digits",), seed, min_positive=(1, 2), flipped=(0.0, 0.2), **fields)


class Setting(NamedTuple):
    """What is chosen."""

    k: int
    min_positive: int  # a


# --------------------------------------------------------------------- scores for all k at once


@dataclass(frozen=True)
class Scene:
    """Bags, their features standardised by the training bags, and all distances.

    Attributes
    ----------
    bags : Bags
    distances : array (N, N)
        ∞ between instances of one bag.
    """

    bags: Bags
    distances: Float[np.ndarray, "N N"] = field(repr=False)

    @classmethod
    def of(cls, bags: Bags, training: Bool[np.ndarray, " B"]) -> Scene:
        moved = bags.standardize(bags.select(training))
        distances = euclidean_distances(moved.instances)
        index = np.asarray(bags.bag_index)
        return cls(moved, np.where(index[:, None] == index, np.inf, distances))

    def neighbourhood_scores(
        self, training: Bool[np.ndarray, " B"], labels: Int[np.ndarray, " B"], most: int
    ) -> Float[np.ndarray, "K N"]:
        """f of every instance for k = 1 … K, by training bags and their labels, not by its own."""
        index = np.asarray(self.bags.bag_index)

        def votes(label: int) -> Float[np.ndarray, "N K"]:
            others = self.distances[:, (training & (labels == label))[index]]
            nearest = np.partition(others, most - 1, axis=1)[:, :most]
            return np.cumsum(np.sort(nearest, axis=1), axis=1)

        return (votes(0) - votes(1)).T

    def scores(
        self, neighbourhood_scores: Float[np.ndarray, "K N"], setting: Setting
    ) -> Float[np.ndarray, " B"]:
        """That of the a-th highest instance of each bag; −∞ of smaller bags."""
        return nth_highest(neighbourhood_scores[setting.k - 1], self.bags, setting.min_positive)


def settings_of(protocol: Protocol) -> list[Setting]:
    """The smallest a, and then the smallest k, come first."""
    return [Setting(k, a) for a, k in product(protocol.min_positive, protocol.k)]


def is_right(
    score: Float[np.ndarray, " B"],
    training: Bool[np.ndarray, " B"],
    judged: Bool[np.ndarray, " B"],
    labels: Int[np.ndarray, " B"],
) -> Bool[np.ndarray, " J"]:
    """Whether bags are on the side of their label, of a threshold that others' labels give."""
    threshold = Threshold.learn(score[training], labels[training])
    return (score[judged] >= threshold.value) == (labels[judged] == 1)


# --------------------------------------------------------------------- everything chosen inside


def choose(scene: Scene, training: Bool[np.ndarray, " B"], protocol: Protocol) -> Setting:
    """k and a of the highest accuracy on folds of the training bags; of equals the first."""
    labels = np.asarray(scene.bags.labels)
    splitter = StratifiedKFold(protocol.inner_folds, shuffle=True, random_state=protocol.seed)
    inside, right = np.flatnonzero(training), Counter()
    for learned_from, judged in splitter.split(inside, labels[inside]):
        masks = [np.isin(np.arange(len(labels)), inside[some]) for some in (learned_from, judged)]
        neighbourhood_scores = scene.neighbourhood_scores(masks[0], labels, max(protocol.k))
        for setting in settings_of(protocol):
            score = scene.scores(neighbourhood_scores, setting)
            right[setting] += int(is_right(score, *masks, labels).sum())
    return max(settings_of(protocol), key=right.__getitem__)


@dataclass(frozen=True)
class Honest:
    """Accuracy by repetition, per cent, and how often settings were chosen."""

    accuracy: list[float]
    chosen: Counter[Setting]


def honest(name: str, protocol: Protocol) -> Honest:
    """Cross-validation on the published folds."""
    bags, fold_of = load(name), _folds(name, protocol)
    labels, accuracy, chosen = np.asarray(bags.labels), [], Counter()
    for column in fold_of.T[: protocol.repetitions]:
        right = []
        for fold in range(1, protocol.folds + 1):
            judged = column == fold
            scene = Scene.of(bags, ~judged)
            setting = choose(scene, ~judged, protocol)
            chosen[setting] += 1
            score = scene.scores(scene.neighbourhood_scores(~judged, labels, setting.k), setting)
            right.append(is_right(score, ~judged, judged, labels))
        accuracy.append(100 * float(np.concatenate(right).mean()))
    return Honest(accuracy, chosen)


def _folds(name: str, protocol: Protocol) -> Int[np.ndarray, "B R"]:
    """The published ones; where there are none, some that are drawn."""
    try:
        return published_folds(name)
    except FileNotFoundError:
        bags = load(name)
    splitter = StratifiedKFold(protocol.folds, shuffle=True, random_state=protocol.seed)
    fold_of = np.zeros((bags.num_bags, 1), dtype=int)
    for fold, (_, judged) in enumerate(splitter.split(fold_of, bags.labels), start=1):
        fold_of[judged, 0] = fold
    return fold_of


# --------------------------------------------------------------------- runs, and their maximum


@dataclass(frozen=True)
class Runs:
    """Accuracy of runs, per cent, the threshold being learned from the training bags of each.

    Attributes
    ----------
    by_elbow : list of float
        k at the elbow of the training error, a = 1.
    by_test_bags : list of float
        k and a those of the highest accuracy on the bags that are tested.
    """

    by_elbow: list[float]
    by_test_bags: list[float]


def runs_of(name: str, protocol: Protocol) -> Runs:
    """Runs of random splits, or of ten-fold cross-validation where the paper has that."""
    bags = load(name)
    labels = np.asarray(bags.labels)
    found = [
        runs_on(bags, parts, protocol)
        for parts in (
            _ten_folds(labels, protocol.seed + run)
            if name in IN_FOLDS
            else [_third(labels, protocol.seed + run)]
            for run in range(protocol.runs)
        )
    ]
    return Runs(*(list(column) for column in zip(*found, strict=True)))


def runs_on(
    bags: Bags, parts: list[Bool[np.ndarray, " B"]], protocol: Protocol
) -> tuple[float, float]:
    """Accuracy over parts that all others predict: k by elbow, and by the predicted bags."""
    labels, elbow, best = np.asarray(bags.labels), [], Counter()
    for judged in parts:
        scene = Scene.of(bags, ~judged)
        neighbourhood_scores = scene.neighbourhood_scores(~judged, labels, max(protocol.k))
        scores = {one: scene.scores(neighbourhood_scores, one) for one in settings_of(protocol)}
        right = {one: is_right(score, ~judged, judged, labels) for one, score in scores.items()}
        errors = [
            Threshold.learn(scores[Setting(k, 1)][~judged], labels[~judged]).error
            for k in protocol.k
        ]
        elbow.append(right[Setting(protocol.k[elbow_of(np.array(errors))], 1)])
        best.update({one: int(hits.sum()) for one, hits in right.items()})
    num = sum(int(judged.sum()) for judged in parts)
    return 100 * float(np.concatenate(elbow).mean()), 100 * max(best.values()) / num


def _third(labels: Int[np.ndarray, " B"], seed: int) -> Bool[np.ndarray, " B"]:
    _, judged = train_test_split(np.arange(len(labels)), test_size=1 / 3, random_state=seed)
    return np.isin(np.arange(len(labels)), judged)


def _ten_folds(labels: Int[np.ndarray, " B"], seed: int) -> list[Bool[np.ndarray, " B"]]:
    splitter = StratifiedKFold(10, shuffle=True, random_state=seed)
    parts = splitter.split(labels, labels)
    return [np.isin(np.arange(len(labels)), judged) for _, judged in parts]


# --------------------------------------------------------------------- flipped labels


def accuracy_when_flipped(name: str, fraction: float, protocol: Protocol) -> list[float]:
    """Of each run, per cent: training labels flipped at random, k and a chosen by what is left."""
    bags, found = load(name), []
    truth = np.asarray(bags.labels)
    for run in range(protocol.runs):
        judged = _third(truth, protocol.seed + run)
        random = np.random.default_rng([protocol.seed, run])
        inside = np.flatnonzero(~judged)
        # The bags flipped at a small fraction are among those flipped at a larger one.
        flipped = random.permutation(inside)[: round(fraction * len(inside))]
        labels = np.where(np.isin(np.arange(len(truth)), flipped), 1 - truth, truth)
        scene = Scene.of(Bags.from_arrays(bags.instances, bags.bag_index, labels), ~judged)
        setting = choose(scene, ~judged, protocol)
        score = scene.scores(scene.neighbourhood_scores(~judged, labels, setting.k), setting)
        found.append(100 * float(is_right(score, ~judged, judged, labels).mean()))
    return found


# --------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Row:
    """What was found for one data set, per cent."""

    name: str
    honest: Honest
    runs: Runs
    flipped: dict[float, list[float]]


def rows_of(protocol: Protocol) -> Iterator[Row]:
    for name in protocol.names:
        started = time.perf_counter()
        flipped = {
            fraction: accuracy_when_flipped(name, fraction, protocol)
            for fraction in protocol.flipped
        }
        yield Row(name, honest(name, protocol), runs_of(name, protocol), flipped)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


def with_sd(values: list[float]) -> str:
    sd = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{sd}"


def print_tables(rows: list[Row], protocol: Protocol) -> None:
    print(
        "| bags | honest, % | most chosen k, a (folds) | runs, % | highest | by the test bags, % "
        "| highest | the paper, % |\n|---|---|---|---|---|---|---|---|"
    )
    for row in rows:
        (setting, count), *_ = row.honest.chosen.most_common(1)
        cells = [
            row.name,
            with_sd(row.honest.accuracy),
            f"{setting.k}, {setting.min_positive} ({count})",
            with_sd(row.runs.by_elbow),
            f"{max(row.runs.by_elbow):.1f}",
            with_sd(row.runs.by_test_bags),
            f"{max(row.runs.by_test_bags):.1f}",
            f"{PAPER[row.name]:g}" if row.name in PAPER else "",
        ]
        print("|", " | ".join(cells), "|")
    if not protocol.flipped:
        return
    print("\n| labels flipped |", " | ".join(f"{row.name}, %" for row in rows), "|")
    print("|---|" + "---|" * len(rows))
    for fraction in protocol.flipped:
        print(
            f"| {fraction:.0%} |", " | ".join(with_sd(row.flipped[fraction]) for row in rows), "|"
        )


def print_protocol(protocol: Protocol, seconds: float) -> None:
    print(
        "\nScore Σ d over the k nearest instances of negative bags less that of positive ones; "
        "features with mean 0 and sd 1 over the training bags; the threshold of the fewest errors "
        f"on them. Honest: folds 1–{protocol.folds} of {protocol.repetitions} repetition(s) "
        f"published with MIDatasets.jl, mean ± sd over repetitions; k (1–{max(protocol.k)}) and a "
        f"({', '.join(map(str, protocol.min_positive))}) by accuracy on {protocol.inner_folds} "
        f"stratified folds of the training bags. Runs: {protocol.runs} random splits, two thirds "
        "to train on (musk1 and musk2: ten-fold cross-validations), mean ± sd and the highest; k "
        "at the elbow of the training error with a = 1. The paper has such a maximum for elephant "
        "and fox; those of musk1 and musk2 are ours. By the test bags: k and a are those that do "
        f"best there, which is no estimate of anything. Flipped: {protocol.runs} random splits, "
        "two thirds to train on, k and a by inner folds of the flipped labels, accuracy against "
        "true ones.\n"
        f"Seed {protocol.seed}; {os.cpu_count()} cores; {seconds:.0f} s."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="digits, few runs")
    parser.add_argument("--names", nargs="+", choices=NAMES, default=["musk1", "elephant", "fox"])
    parser.add_argument("--without-flips", action="store_true", help="leave label noise out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write protocol and rows")
    options = parser.parse_args()
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    if beside.is_dir():
        os.environ.setdefault("MILZOO_DATA", str(beside))
    protocol = (
        Protocol.toy(options.seed) if options.toy else Protocol(tuple(options.names), options.seed)
    )
    if options.without_flips:
        protocol = replace(protocol, flipped=())
    started = time.perf_counter()
    try:
        rows = list(rows_of(protocol))
    except FileNotFoundError as error:
        sys.exit(str(error))
    seconds = time.perf_counter() - started
    print_tables(rows, protocol)
    print_protocol(protocol, seconds)
    if options.json:
        result = {
            "protocol": asdict(protocol) | {"seconds": seconds, "cores": os.cpu_count()},
            "rows": [
                {
                    "name": row.name,
                    "honest": row.honest.accuracy,
                    "chosen": [[*setting, n] for setting, n in row.honest.chosen.most_common()],
                    "runs": asdict(row.runs),
                    "flipped": row.flipped,
                }
                for row in rows
            ],
        }
        options.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
