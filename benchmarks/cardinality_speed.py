"""Time of the exact likelihood of cardinality models: musk2, and one bag of growing size.

    MILZOO_DATA=… python benchmarks/cardinality_speed.py     # musk2; one bag of 10 to 100,000
    python benchmarks/cardinality_speed.py --toy             # the scene; one bag of 10 to 1,000

Log likelihood and its gradient in the weights, in 64 bit, sums over all labellings of all bags.
Medians of repeated calls, compilation told apart. The order is the derivative of log time in log
size, by least squares over the sizes from 1,000 on (100 on at toy size).
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from milzoo.datasets import Bags, load
from milzoo.models import CardinalityModel
from numpyro.infer.util import log_density

NUM_FEATURES = 10


def main() -> None:
    arguments = _arguments()
    name = "kandemir2014" if arguments.toy else "musk2"
    data = load(name).standardize()
    print(
        f"{os.cpu_count()} cores, seed {arguments.seed}; {name}: {data.num_bags} bags of "
        f"{data.bag_sizes.min()} to {data.bag_sizes.max():,}, {data.num_instances:,} instances × "
        f"{data.num_features}\n"
    )
    print(f"| {'bags':12} | compile, s | log likelihood and gradient, ms |\n|---|---|---|")
    print(_row(name, timed(data, arguments.seed, arguments.repeats)))
    found = []
    for timing in curve(arguments.sizes, arguments.seed, arguments.repeats):
        found.append(timing)
        print(_row(f"1 × {timing.size:,}", timing))
    print(f"\norder from {arguments.order_from:,} on: {order(found, arguments.order_from):.2f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    last = 3 if arguments.toy else 5
    arguments.sizes = [k * 10**power for power in range(1, last) for k in (1, 3)] + [10**last]
    arguments.order_from = 100 if arguments.toy else 1000
    arguments.repeats = 3 if arguments.toy else 30
    return arguments


class Timing(NamedTuple):
    """Of one program."""

    size: int  # instances
    compile_seconds: float
    seconds: float


def curve(sizes: list[int], seed: int, repeats: int) -> Iterator[Timing]:
    """One bag of each size."""
    random = np.random.default_rng(seed)
    for size in sizes:
        instances = random.normal(size=(size, NUM_FEATURES))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the only bag's label nothing can be learned
            bags = Bags.from_list([instances], labels=[1])
        yield timed(bags, seed, repeats)


def timed(bags: Bags, seed: int, repeats: int) -> Timing:
    """At weights drawn from the prior."""
    model = CardinalityModel.for_bags(bags)
    drawn = np.random.default_rng(seed).normal(size=bags.num_features)
    with jax.enable_x64(True):
        weights = jnp.asarray(model.weight_scale * drawn)
        started = time.perf_counter()
        compiled = jax.jit(value_and_gradient(model, bags)).lower(weights).compile()
        compile_seconds = time.perf_counter() - started
        value, gradient = compiled(weights)
        assert np.isfinite(value) and np.isfinite(gradient).all()
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            jax.block_until_ready(compiled(weights))
            seconds.append(time.perf_counter() - started)
    return Timing(bags.num_instances, compile_seconds, float(np.median(seconds)))


def value_and_gradient(model: CardinalityModel, bags: Bags) -> Callable:
    """Function of the weights that gives the log joint density and its gradient."""
    return jax.value_and_grad(
        lambda weights: log_density(model, (bags,), {}, {"weights": weights})[0]
    )


def order(timings: list[Timing], first: int) -> float:
    """Of log time in log size."""
    chosen = np.log([(one.size, one.seconds) for one in timings if one.size >= first])
    return float(np.polyfit(*chosen.T, 1)[0])


def _row(name: str, timing: Timing) -> str:
    return f"| {name:12} | {timing.compile_seconds:.1f} | {1e3 * timing.seconds:.3g} |"


if __name__ == "__main__":
    main()
