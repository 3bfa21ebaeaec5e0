"""Measure where a coupling of instances along a graph pays, and where it does not.

Bags are those of `milzoo.datasets.patch_on_grid`: positive instances are a patch of a grid, and
single instances are ambiguous. CoupledVGPMIL is fitted with several couplings γ, VGPMIL is γ = 0.
Kernel, inducing points and prior mean are the same for all, those of ``VGPMIL.for_bags``. The last
rows of a table choose γ by three folds of the training bags, by the log loss of held-out bags.

The same once more with edges that are shuffled: each grid is laid over the instances of its bag in
a random order, in training and test. Features and labels stay as they are, so that the graph tells
nothing.

With ``--kernels``, instead, γ = 0 and 0.5 under several variances and length scales, the prior mean
found for each: whether a coupling only corrects a kernel that is badly chosen.

Each seed draws training bags and test bags. Log losses are of test bags and of their instances, and
differences from γ = 0 are means over seeds with standard errors. The last row is the true posterior
of the bag labels, which knows the distribution that bags are drawn from.

    python benchmarks/coupled_labels.py [--toy] [--seeds 10] [--bags 100] [--engine laplace]
        [--kernels]
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from milzoo.datasets import Bags, patch_on_grid, patch_on_grid_log_odds
from milzoo.inference import Posterior, coordinate_ascent, laplace
from milzoo.models import RBF, VGPMIL, CoupledVGPMIL
from scipy.special import expit

SIDE, PATCH, NUM_FEATURES, SHIFT = 6, 3, 4, 0.7
COUPLINGS = (0.0, 0.25, 0.5, 0.75, 0.9)
NUM_FOLDS = 3
# Of ``for_bags``, first: variances, and multiples of its length scale.
VARIANCES, FACTORS = (20.0, 5.0, 1.0), (0.5, 1.0, 2.0)
ENGINES = {"coordinate_ascent": coordinate_ascent, "laplace": laplace}
GRAPHS = ("grid", "shuffled")

type Engine = Callable[..., Posterior]


def log_loss(probability: Float[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> float:
    """Mean −log probability of the labels, in nats."""
    return float(-np.log(np.where(labels == 1, probability, 1 - probability)).mean())


def shuffled(bags: Bags, seed: int) -> Bags:
    """The bags with their graphs laid over the instances in a random order, bag by bag."""
    random = np.random.default_rng(seed)
    graph = bags.edges.as_matrix(bags.num_instances)
    pairs = zip(bags.starts, bags.bag_sizes, strict=True)
    order = np.concatenate([start + random.permutation(size) for start, size in pairs])
    return bags.with_edges(graph[order][:, order])


def coupled(model: VGPMIL, coupling: float) -> CoupledVGPMIL:
    """The model with a coupling, and all else as it is."""
    return CoupledVGPMIL(model.kernel, model.inducing_points, mean=model.mean, coupling=coupling)


def losses(
    engine: Engine, model: CoupledVGPMIL, train: Bags, test: Bags, num_draws: int
) -> tuple[float, float]:
    """Log loss of the test bags, and of their instances."""
    predicted = engine(model, train, seed=0, num_draws=num_draws).predict(test)
    return (
        log_loss(predicted.bag_probability, np.asarray(test.labels)),
        log_loss(predicted.instance_probability, np.asarray(test.instance_labels)),
    )


def chosen_coupling(engine: Engine, model: VGPMIL, train: Bags, num_draws: int) -> float:
    """The coupling of the lowest log loss of held-out bags, by folds of the training bags."""
    folds = list(train.folds(NUM_FOLDS, seed=0))
    found = [
        np.mean([losses(engine, coupled(model, one), *fold, num_draws)[0] for fold in folds])
        for one in COUPLINGS
    ]
    return COUPLINGS[int(np.argmin(found))]


def drawn(seed: int, sizes: dict[str, int]) -> tuple[Bags, Bags]:
    """Training bags and test bags."""
    grids = {"side": SIDE, "patch": PATCH, "num_features": NUM_FEATURES, "shift": SHIFT}
    train = patch_on_grid(sizes["train"], **grids, seed=seed)
    return train, patch_on_grid(sizes["test"], **grids, seed=10_000 + seed)


def of_kernels(engine: Engine, seed: int, sizes: dict[str, int]) -> list[dict[str, Any]]:
    """A row for each kernel, without and with a coupling, on bags of one seed."""
    train, test = drawn(seed, sizes)
    first = VGPMIL.for_bags(train, sizes["num_inducing"])
    rows = []
    for variance, factor in product(VARIANCES, FACTORS):
        kernel = RBF(variance, factor * float(first.kernel.length_scale))
        model = replace(first, kernel=kernel).mean_by_base_rate(train, seed=0)
        for coupling in (0.0, 0.5):
            found = losses(engine, coupled(model, coupling), train, test, sizes["num_draws"])
            rows.append(
                {"seed": seed, "graph": f"v = {variance}, {factor} ℓ", "model": f"γ = {coupling}"}
                | {"bags": found[0], "instances": found[1]}
            )
    return rows


def of_seed(engine: Engine, seed: int, sizes: dict[str, int]) -> list[dict[str, Any]]:
    """A row for each graph and coupling, on training and test bags of one seed."""
    train, test = drawn(seed, sizes)
    model = VGPMIL.for_bags(train, sizes["num_inducing"])
    rows = []
    for graph in GRAPHS:
        if graph == "shuffled":
            train, test = shuffled(train, seed), shuffled(test, 10_000 + seed)
        by_coupling = {
            coupling: losses(engine, coupled(model, coupling), train, test, sizes["num_draws"])
            for coupling in COUPLINGS
        }
        best = chosen_coupling(engine, model, train, sizes["num_draws"])
        named = {f"γ = {coupling}": of for coupling, of in by_coupling.items()}
        named["γ by folds"] = by_coupling[best]
        rows += [
            {"seed": seed, "graph": graph, "model": name, "bags": of[0], "instances": of[1]}
            | {"chosen": best if name == "γ by folds" else np.nan}
            for name, of in named.items()
        ]
    truth = log_loss(expit(patch_on_grid_log_odds(test, PATCH, SHIFT)), np.asarray(test.labels))
    rows.append({"seed": seed, "graph": "", "model": "true posterior", "bags": truth})
    return rows


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, and differences from γ = 0 on the same bags with standard errors."""
    found = {}
    for (graph, model), of in rows.groupby(["graph", "model"], sort=False):
        found[graph, model] = line = {}
        uncoupled = rows[(rows["graph"] == graph) & (rows["model"] == f"γ = {COUPLINGS[0]}")]
        for level in ("bags", "instances"):
            if of[level].isna().all():
                continue
            line[f"log loss of {level}"] = f"{of[level].mean():.3f}"
            if len(uncoupled) and model != f"γ = {COUPLINGS[0]}":
                difference = of[level].to_numpy() - uncoupled[level].to_numpy()
                error = difference.std(ddof=1) / np.sqrt(len(difference))
                line[f"difference of {level}"] = f"{difference.mean():+.3f} ± {error:.3f}"
    return pd.DataFrame.from_dict(found, orient="index").fillna("")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="few bags, two seeds")
    parser.add_argument("--engine", choices=list(ENGINES), default="coordinate_ascent")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--bags", type=int, default=100, help="training bags of each label")
    parser.add_argument("--kernels", action="store_true", help="several kernels, two couplings")
    given = parser.parse_args()
    sizes = {"train": given.bags, "test": 200, "num_inducing": 50, "num_draws": 200}
    if given.toy:
        sizes = {"train": 10, "test": 10, "num_inducing": 10, "num_draws": 50}
    found = []
    for seed in range(2 if given.toy else given.seeds):
        of_one = of_kernels if given.kernels else of_seed
        found += of_one(ENGINES[given.engine], seed, sizes)
        print(f"seed {seed} done", flush=True)
    rows = pd.DataFrame(found)
    print(summary(rows).to_string())
    for graph in () if given.kernels else GRAPHS:
        is_chosen = (rows["graph"] == graph) & (rows["model"] == "γ by folds")
        print(f"γ by folds, {graph}: {rows[is_chosen]['chosen'].tolist()}")
    print(f"{given.engine}; {os.cpu_count()} cores, {platform.machine()}.")


if __name__ == "__main__":
    main()
