"""How long it takes to score instances by a neighbourhood score, and how much memory.

As many instances as the reference bags have, in 100 dimensions, beside scikit-learn's search for
the k nearest of all reference instances, whatever their label. Each in a process of its own, whose
highest memory is told above what it held when data and library were there.

    python benchmarks/neighbour_speed.py [--toy] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from milzoo.datasets import Bags
from milzoo.models import NeighbourScore
from sklearn.neighbors import NearestNeighbors

NUM_FEATURES = 100
BAG_SIZE = 10
K = 5
METHODS = ("NeighbourScore", "scikit-learn")


@dataclass(frozen=True)
class Row:
    """Time and memory of one method."""

    method: str
    num_instances: int
    seconds: float
    mebibytes: float  # peak, above what was held before


def data(num_instances: int, seed: int) -> tuple[np.ndarray, Bags]:
    """Points, and as many instances in bags of 10, every other bag positive."""
    random = np.random.default_rng(seed)
    points, instances = random.standard_normal((2, num_instances, NUM_FEATURES))
    bag_index = np.arange(num_instances) // BAG_SIZE
    return points, Bags.from_arrays(instances, bag_index, np.arange(bag_index[-1] + 1) % 2)


def measured(method: str, num_instances: int, seed: int) -> Row:
    """One method in this process."""
    points, bags = data(num_instances, seed)
    small = bags.select(np.arange(20))
    run(method, points[:100], small)  # libraries loaded, and what JAX compiles for few points
    held = forgotten_peak()
    started = time.perf_counter()
    run(method, points, bags)
    seconds = time.perf_counter() - started
    return Row(method, num_instances, seconds, status("VmHWM") - held)


def run(method: str, points: np.ndarray, bags: Bags) -> np.ndarray:
    if method == "NeighbourScore":
        return NeighbourScore(K).scores(points, bags)
    return NearestNeighbors(n_neighbors=K).fit(bags.instances).kneighbors(points)[0]


def forgotten_peak() -> float:
    """MiB held now; what was held before counts for no peak any more."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(name: str) -> float:
    """MiB that Linux tells of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name))) / 1024


def in_a_process_of_its_own(method: str, num_instances: int, seed: int) -> Row:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (method, num_instances, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="2,000 instances at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args()
    sizes = (1_000, 2_000) if options.toy else (25_000, 50_000, 100_000)
    rows = [
        in_a_process_of_its_own(method, size, options.seed) for size in sizes for method in METHODS
    ]
    print("| instances against as many | method | seconds | memory above the data, MiB |")
    print("|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.num_instances:,} | {row.method} | {row.seconds:.1f} | {row.mebibytes:,.0f} |"
        )
    print(
        f"\n{NUM_FEATURES} features, standard normal; bags of {BAG_SIZE}, half of them positive; "
        f"k = {K}: of each label for the score, of all for scikit-learn. "
        f"Seed {options.seed}; {os.cpu_count()} cores."
    )
    if options.json:
        found = {"cores": os.cpu_count(), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
