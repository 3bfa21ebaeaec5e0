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
from typing import Any

import jax
import numpy as np
from milzoo.datasets import Bags
from milzoo.inference.closed_form.dpmil import (
    LABEL_UPDATES,
    DPMILForm,
    LabelUpdate,
    MixtureChunk,
    MixtureStatistics,
)
from milzoo.models import DPMIL
from milzoo.models.numerics.threads import one_lapack_thread
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
        width = 3 / np.sqrt(self.num_features)
        centres = random.normal(0, width, (2, NUM_CLUSTERS, self.num_features))
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
    fit: str
    start: float | None  # k-means, and the first q that follows from it
    compilation: float | None  # of a round
    rounds: int | None
    seconds: float | None  # of the rounds
    total: float


def rows_of(design: Design, seed: int) -> Iterator[Row]:
    bags = design.bags(seed)
    data = f"{design.name}, {design.num_instances:,} × {design.num_features}"
    for label_update in LABEL_UPDATES:
        yield _ours(data, design, bags, label_update, seed)
    yield _scikit_learn(data, design, bags, seed)
    if design.paper_seconds is not None:
        yield Row(data, "the paper, on its machine", *[None] * 4, design.paper_seconds)


def _ours(data: str, design: Design, bags: Bags, label_update: LabelUpdate, seed: int) -> Row:
    """What ``coordinate_ascent`` does, but all rounds: it would stop where the bound stands still.

    On data as plain as these that is soon.
    """
    model = DPMIL.for_bags(bags, max_components=design.max_components)
    form = DPMILForm(model, label_update, num_starts=1).in_memory(bags)
    with jax.enable_x64(True), one_lapack_thread():
        times = [time.perf_counter()]
        centers = form.start(lambda rows, at_most: rows(bags), jax.random.key(seed))
        prepared, position = jax.block_until_ready(_begin(form, form.chunk(bags), centers))
        times.append(time.perf_counter())
        one_round = _one_round.lower(form, prepared, position).compile()
        times.append(time.perf_counter())
        for _ in range(design.num_rounds):
            position, bound = one_round(form, prepared, position)
            assert np.isfinite(bound).all()  # waits for it, as the engine does
        times.append(time.perf_counter())
    start, compilation, seconds = np.diff(times)
    fit, total = f"milzoo, {label_update} labels", times[-1] - times[0]
    return Row(data, fit, start, compilation, design.num_rounds, seconds, total)


# Statistics, and the labels that the hard update keeps.
type _Position = tuple[MixtureStatistics, jax.Array | None]


@jax.jit
def _begin(form: DPMILForm, chunk: Any, centers: jax.Array) -> tuple[MixtureChunk, _Position]:
    prepared = form.prepare(chunk)
    return prepared, form.initial(prepared, centers)


@jax.jit
def _one_round(
    form: DPMILForm, prepared: MixtureChunk, position: _Position
) -> tuple[_Position, jax.Array]:
    q = form.m_step(position[0])
    position = form.e_step(prepared, q, position[1])
    return position, form.elbo(q, position[0])


def _scikit_learn(data: str, design: Design, bags: Bags, seed: int) -> Row:
    """A fit of one round, which has k-means, and a warm start from there.

    The prior is that of `DPMIL.for_bags`; W0 and m0 are what scikit-learn takes by itself.
    """
    instances = np.asarray(bags.instances)
    mixture = BayesianGaussianMixture(
        n_components=design.max_components,
        covariance_type="full",
        weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=2.0,
        mean_precision_prior=1.0,
        degrees_of_freedom_prior=design.num_features + 1.0,
        warm_start=True,
        tol=0.0,
        random_state=seed,
    )
    start = _seconds_of_mixture(mixture, instances, 1)
    seconds = _seconds_of_mixture(mixture, instances, design.num_rounds)
    fit = "scikit-learn, one mixture"
    return Row(data, fit, start, None, design.num_rounds, seconds, start + seconds)


def _seconds_of_mixture(
    mixture: BayesianGaussianMixture, instances: np.ndarray, num_rounds: int
) -> float:
    mixture.set_params(max_iter=num_rounds)
    started = time.perf_counter()
    with warnings.catch_warnings():
        # It is to stop by the count, and with tolerance 0 always does.
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(instances)
    seconds = time.perf_counter() - started
    assert mixture.n_iter_ == num_rounds, f"stopped after {mixture.n_iter_} rounds"
    return seconds


def print_table(rows: list[Row]) -> None:
    print("| data | fit | start, s | compilation, s | rounds | rounds, s | a round, ms | all, s |")
    print("|---" * 8 + "|")
    for row in rows:
        by_round = None if row.rounds is None else 1e3 * row.seconds / row.rounds
        numbers = (row.start, row.compilation, row.rounds, row.seconds, by_round, row.total)
        cells = " | ".join("" if number is None else f"{number:.3g}" for number in numbers)
        print(f"| {row.data} | {row.fit} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    designs = TOY if arguments.toy else FULL
    rows = [row for design in designs for row in rows_of(design, arguments.seed)]
    print_table(rows)
    print(
        f"\nMade-up data; K = {designs[0].max_components}; one start. Start: k-means, of milzoo "
        "with compilation (its first row bears most), of scikit-learn with the first round. "
        "Scikit-learn: BayesianGaussianMixture, the same prior, one mixture on all instances, "
        "where DPMIL has one for each class. The paper: Table 3, one data split of its own data.\n"
        f"64 bit; {os.cpu_count()} cores; seed {arguments.seed}."
    )


if __name__ == "__main__":
    main()
