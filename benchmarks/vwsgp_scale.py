"""VWSGP on ten million instances that no memory holds: sums over bags, ten updates, predictions.

    python benchmarks/vwsgp_scale.py           # 10,000,000 × 100 in bags of 2,000, M = 250
    python benchmarks/vwsgp_scale.py --toy     # small, to see that it runs

Bags are generated in chunks, which are forgotten when their sums a_b and k̄_b are made; making
them is told apart. The kernel is 32-bit, sums and updates are 64-bit; what 32 bit lose is measured
on the first chunk. Test bags are new, and predicted exactly. The data are made up: in a positive
bag every tenth instance is shifted by a twentieth of a standard deviation in each feature.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from milzoo.datasets import Bags
from milzoo.inference.closed_form.drivers import Limits, repeat_steps
from milzoo.inference.closed_form.sparse_gp import (
    BagForm,
    BagRows,
    InducingFactor,
    InducingStatistics,
)
from milzoo.inference.runtime.programs import Stopwatch
from milzoo.models import RBF, VWSGP
from milzoo.models.numerics.products import squared_norms
from milzoo.models.numerics.quadrature import logistic_rule
from sklearn.metrics import roc_auc_score

FRACTION_SHIFTED, SHIFT = 0.1, 0.05


@dataclass(frozen=True)
class Design:
    """Sizes of the data; a chunk is made from its number alone."""

    num_instances: int
    num_features: int
    bag_size: int
    bags_in_chunk: int
    num_inducing: int
    steps: int
    seed: int

    @property
    def num_chunks(self) -> int:
        """Of one pass."""
        return self.num_instances // (self.bag_size * self.bags_in_chunk)

    def chunk(self, number: int) -> Bags:
        """Whole bags; their labels are by turns 0 and 1."""
        random = np.random.default_rng([self.seed, number])
        size = self.bags_in_chunk * self.bag_size
        instances = random.standard_normal((size, self.num_features), dtype=np.float32)
        labels = np.arange(self.bags_in_chunk) % 2
        is_shifted = random.random(size) < FRACTION_SHIFTED * np.repeat(labels, self.bag_size)
        instances[is_shifted] += SHIFT
        # The plain constructor trusts its arguments, and leaves them in 32 bit.
        return Bags(
            instances=instances,
            bag_index=np.repeat(np.arange(self.bags_in_chunk), self.bag_size),
            labels=labels,
            instance_labels=None,
            names=(),
            num_bags=self.bags_in_chunk,
        )

    def model(self) -> VWSGP:
        """Inducing points among the instances of a chunk that is used for nothing else."""
        points = self.chunk(10**6).instances[: self.num_inducing]
        # ℓ = 20 as in the paper; v such that 2,000 latent values add up to some 10.
        return VWSGP(RBF((10 / self.bag_size) ** 2, 20.0), points)


@dataclass
class Clock:
    """Seconds by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    def time(self, name: str, function, *arguments):
        """The value of the function, waited for; what it took is added under the name."""
        started = time.perf_counter()
        value = jax.block_until_ready(function(*arguments))
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        return value


def main() -> None:
    design = _design()
    print(
        f"{design.num_instances:,} instances × {design.num_features} in bags of "
        f"{design.bag_size:,}, M = {design.num_inducing}, kernel in 32 bit, {os.cpu_count()} "
        f"cores, seed {design.seed}"
    )
    with jax.enable_x64(True):
        clock, model = Clock(), design.model()
        clock.time("compilation", _rows, model, design.chunk(0))
        q = _fitted(design, model, clock)
        truth, probability = _predicted(design, model, q, clock)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        lost = _lost_in_32_bit(model, design.chunk(0))
        speed = _matrix_product_speed()
    # N M D multiply-adds for the distances, and half of N M² for a triangular product.
    size, inducing = design.num_instances, design.num_inducing
    needed = size * (2.0 * inducing * design.num_features + inducing**2) / 1e9
    seconds = clock.seconds
    fitting = seconds["sums over bags"] + seconds["updates"]
    rows = [
        ("compilation", seconds["compilation"] + seconds["compilation of updates"], "s"),
        ("making the training bags", seconds["making training bags"], "s"),
        ("sums over bags", seconds["sums over bags"], "s"),
        (f"{design.steps} updates, bound at each", seconds["updates"], "s"),
        ("sums and updates", fitting, "s"),
        ("making the test bags", seconds["making test bags"], "s"),
        ("predicting them", seconds["predicting"], "s"),
        ("peak memory", peak, "GB"),
        ("speed of a 32-bit product", speed, "GFLOP/s"),
        ("fraction of it, sums over bags", 100 * needed / seconds["sums over bags"] / speed, "%"),
        ("fraction of it, predicting", 100 * needed / seconds["predicting"] / speed, "%"),
        ("test accuracy", np.mean((probability > 0.5) == truth), ""),
        ("test AUC", roc_auc_score(truth, probability), ""),
        ("lost in 32 bit: Σ V_n, largest", lost["projection"], "of the largest entry"),
        ("lost in 32 bit: k̄_b, largest", lost["residual_variance"], "of itself"),
    ]
    for name, value, unit in rows:
        print(f"{name:34s} {value:10.3g} {unit}")


def _design() -> Design:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.toy:
        return Design(20_000, 10, 200, 20, 20, 10, arguments.seed)
    return Design(10_000_000, 100, 2_000, 100, 250, 10, arguments.seed)


def _chunks(design: Design, first: int, clock: Clock, name: str) -> Iterator[Bags]:
    for number in range(design.num_chunks):
        yield clock.time(name, design.chunk, first + number)


def _rows(model: VWSGP, bags: Bags) -> BagRows:
    return BagForm(model, "float32").prepare(bags)


def _fitted(design: Design, model: VWSGP, clock: Clock) -> InducingFactor:
    """One pass over the instances, then updates that never see them."""
    parts = [
        clock.time("sums over bags", _rows, model, bags)
        for bags in _chunks(design, 0, clock, "making training bags")
    ]
    rows = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
    form, watch = BagForm(model, "float32"), Stopwatch()
    start = form.start(lambda rows, at_most: rows(design.chunk(0)), jax.random.key(0))
    start = jax.tree.map(jnp.asarray, start)
    (q, _), elbo, _, seconds = repeat_steps(
        partial(_update, form, rows),
        (start[0], form.initial(rows, start)[0]),
        Limits(design.steps, 0.0),
        form.allowed_fall,
    )
    clock.seconds["updates"] = seconds
    clock.seconds["compilation of updates"] = watch.compile_seconds
    print(f"ELBO {elbo[0]:.2f} after one update, {elbo[-1]:.2f} after {design.steps}")
    return q


@jax.jit
def _update(
    form: BagForm, rows: BagRows, position: tuple[InducingFactor, InducingStatistics], _: int
) -> tuple[tuple[InducingFactor, InducingStatistics], jax.Array]:
    """q(u) at its optimum, the statistics under it, and the ELBO."""
    q = form.m_step(position[1])
    statistics, _ = form.e_step(rows, q, None)
    return (q, statistics), form.elbo(q, statistics)[None]


def _predicted(
    design: Design, model: VWSGP, q: InducingFactor, clock: Clock
) -> tuple[np.ndarray, np.ndarray]:
    """Labels of as many new bags, and their probabilities: s* ~ N(a*ᵀm, a*ᵀS a* + k̄*)."""

    def probability(bags: Bags) -> np.ndarray:
        rows = _rows(model, bags)
        variance = squared_norms(rows.projection, q.covariance_root)
        scale = jnp.sqrt(variance + rows.residual_variance)
        rule = logistic_rule(float(scale.max()))
        predictive = model.likelihood.marginal_distribution(rows.projection @ q.mean, scale, rule)
        return np.asarray(predictive.mean)

    clock.time("compilation", probability, design.chunk(0))
    truth, found = [], []
    for bags in _chunks(design, design.num_chunks, clock, "making test bags"):
        found.append(clock.time("predicting", probability, bags))
        truth.append(bags.labels)
    return np.concatenate(truth), np.concatenate(found)


def _lost_in_32_bit(model: VWSGP, bags: Bags) -> dict[str, float]:
    """How far the sums of one chunk are from those of a 64-bit kernel."""
    narrow, wide = _rows(model, bags), model.accumulated(bags)
    largest = jnp.abs(wide.projection).max()
    apart = jnp.abs(narrow.residual_variance - wide.residual_variance) / wide.residual_variance
    return {
        "projection": float(jnp.abs(narrow.projection - wide.projection).max() / largest),
        "residual_variance": float(apart.max()),
    }


def _matrix_product_speed() -> float:
    """GFLOP/s of a large dense product in 32 bit, the best of five."""
    square = jnp.asarray(np.random.default_rng(0).normal(size=(3000, 3000)), jnp.float32)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(square, square))
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        jax.block_until_ready(product(square, square))
        seconds.append(time.perf_counter() - started)
    return 2 * 3000**3 / min(seconds) / 1e9


if __name__ == "__main__":
    main()
