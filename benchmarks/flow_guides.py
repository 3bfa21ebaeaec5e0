"""How much of a posterior a Gaussian misses, and a flow: what a classifier tells from NUTS.

    python benchmarks/flow_guides.py [--toy]        # the demo: VGPMIL on digits

C2ST is the accuracy of a classifier that is asked whether a draw is of the approximation or of four
chains of NUTS; 0.5 if there is no telling. Long fits take minutes on a CPU and seconds on a GPU.
"""

from __future__ import annotations

import argparse
import os
from functools import partial

# JAX reads this once, when it is first imported: one device for each chain that runs at once.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(min(4, os.cpu_count() or 1)))

import jax
from milzoo.datasets import Bags, load, simulate, simulate_instances
from milzoo.diagnostics import compare
from milzoo.inference import laplace, nuts, svi
from milzoo.models import VGPMIL
from rich.console import Console
from rich.table import Table

# Guide, steps, learning rate, particles.
FITS = (
    ("multivariate_normal", 4_000, 0.02, 8),
    ("flow", 4_000, 0.02, 8),
    ("flow", 12_000, 0.005, 32),
    ("flow", 30_000, 0.003, 64),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    is_toy = parser.parse_args().toy
    model, bags = _toy() if is_toy else _demo()
    length = (100, 200) if is_toy else (500, 2500)
    chains = {"num_warmup": length[0], "num_samples": length[1], "mass_matrix": "auto"}
    posteriors = {
        "nuts": nuts(model, bags, seed=0, **chains),
        "laplace": laplace(model, bags, seed=0),
    }
    fit = partial(svi, model, bags, seed=0, num_draws=4000)
    for guide, steps, rate, particles in FITS[:2] if is_toy else FITS:
        steps = 20 if is_toy else steps
        posteriors[f"{guide}, {steps:,} steps of {rate}, {particles} particles"] = fit(
            guide=guide, max_steps=steps, learning_rate=rate, num_particles=particles
        )
    comparison = compare(posteriors, reference="nuts")
    table = Table(
        *("approximation", "ELBO", "seconds", "C2ST", "± by chance", "k̂"),
        title=f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, seed 0",
    )
    found, measures = comparison.joint_table, comparison.table
    for name in list(posteriors)[1:]:
        numbers = found.loc[name, ["classifier_accuracy", "classifier_error"]]
        row = measures.loc[name]
        cells = (f"{row['elbo']:.2f}", f"{row['seconds']:.1f}")
        table.add_row(name, *cells, *(f"{one:.3f}" for one in numbers), f"{row['khat']:.2f}")
    Console(width=140).print(table)


def _demo() -> tuple[VGPMIL, Bags]:
    bags = load("digits").standardize()
    return VGPMIL.for_bags(bags, variance=5.0, length_scale=8.0, mean=-3.0), bags


def _toy() -> tuple[VGPMIL, Bags]:
    design = simulate_instances(10, 3, num_features=2, seed=0)
    model = VGPMIL.as_published(design, num_inducing=5)
    return model, simulate(model, design, seed=0)[0]


if __name__ == "__main__":
    main()
