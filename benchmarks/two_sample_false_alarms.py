"""How often the classifier test tells two NUTS runs of one posterior apart.

The demo: VGPMIL on 70 % of the bags of digits (seed 0), v = 5, ℓ = 8, μ0 = −3, M = 50. NUTS with
seeds 0, 1, …; each run is tested against the next two, in a circle, by `two_sample_test` as
`compare` uses it: whitened coordinates of all sites, chains thinned to their effective size. Then
what `compare` says of SVI, Laplace and coordinate ascent beside the first run, where the ratio of
the densities is a classifier too.

    python benchmarks/two_sample_false_alarms.py [--toy] [--runs 100]
"""

from __future__ import annotations

import argparse
import os
import platform
import time

import numpy as np
import xarray as xr
from milzoo.datasets import load
from milzoo.diagnostics import compare
from milzoo.diagnostics.checks.two_sample import two_sample_test
from milzoo.inference import coordinate_ascent, laplace, nuts, svi
from milzoo.models import VGPMIL

LEVELS = (0.05, 0.01)


def of_pairs(draws: list[xr.Dataset]) -> tuple[list[float], list[float]]:
    """p-values of each run against the next two, where it can be tested, and seconds."""
    p, seconds = [], []
    for first in range(len(draws)):
        for second in (first + 1, first + 2):
            started = time.perf_counter()
            random = np.random.default_rng([first, second])
            found = two_sample_test(draws[first], draws[second % len(draws)], random=random)
            seconds.append(time.perf_counter() - started)
            if found is not None:
                p.append(found.p_value)
    return p, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--toy", action="store_true", help="three short runs")
    given = parser.parse_args()
    runs, chains = (3, {"num_samples": 200}) if given.toy else (given.runs, {})
    bags = load("digits").split(0.7, seed=0)[0].standardize()
    model = VGPMIL.for_bags(
        bags, num_inducing=5 if given.toy else 50, variance=5.0, length_scale=8.0, mean=-3.0
    )
    posteriors = [nuts(model, bags, seed=seed, **chains) for seed in range(runs)]
    p, seconds = of_pairs([one.tree["posterior"].to_dataset() for one in posteriors])
    print(f"{platform.machine()}, {os.cpu_count()} cores; {runs} NUTS runs, seeds 0 to {runs - 1}")
    print(
        f"{len(p)} of {2 * runs} pairs could be tested, {np.median(seconds):.1f} s each (up to "
        f"{max(seconds):.1f})"
    )
    for level in LEVELS:
        rate = np.mean(np.array(p) <= level) if p else np.nan
        print(f"false alarms at p ≤ {level}: {100 * rate:.1f} %")
    others = {one.__name__: one(model, bags, seed=0) for one in (svi, laplace, coordinate_ascent)}
    comparison = compare({"nuts": posteriors[0], **others})
    started = time.perf_counter()
    tested = comparison.joint
    print(
        f"both tests of {len(tested)}: {time.perf_counter() - started:.1f} s, with dispersed starts"
    )
    print(*comparison.joint_sentences, sep="\n")


if __name__ == "__main__":
    main()
