"""Posteriors with several modes: tempered SMC and NUTS beside a grid, which has all of them.

    python benchmarks/several_modes.py            # 4 runs of 500 particles, 4 chains of 500 + 1,000
    python benchmarks/several_modes.py --toy      # few of both, for the first posterior
    python benchmarks/several_modes.py --engines grid svi

Three posteriors of two numbers each, so that the grid is exact:

- two concepts: bags with instances at 3 and at −3, and `DiverseDensity`, whose concept is at one;
- three modes: a Gamma scale mixture, p(f) ∝ N(f) Π ψ(f_n)·2cosh(f_n/2), with as much mass at f ≈ 0
  as far out on each side;
- runaway: the same of more instances, where the far mode is 210 nats higher.

Told are the log evidence, and the posterior mass of three regions of one number. `svi` ascends from
eight starts; what its status says of them stands below the table.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from milzoo.datasets import Bags
from milzoo.inference import Posterior, grid, log_evidence, nuts, svi, tempered_smc
from milzoo.models import RBF, VGPMIL, GammaScaleMixture
from milzoo.models.model import Model
from milzoo.references import entry_named
from rich.console import Console
from rich.table import Table

ENGINES = ("grid", "nuts", "svi", "tempered_smc", "tempered_smc, dispersion 1")


@dataclass(frozen=True)
class Problem:
    """A posterior, and a number whose sign and size tell its modes apart."""

    name: str
    model: Model
    bags: Bags
    number_of: Callable[[dict[str, Float[np.ndarray, "S ..."]]], Float[np.ndarray, " S"]]
    far: float

    def regions(self, number: Float[np.ndarray, " S"]) -> dict[str, Bool[np.ndarray, " S"]]:
        """Draws far out on either side, and between."""
        below, above = number < -self.far, number > self.far
        return {"below": below, "between": ~below & ~above, "above": above}


def main() -> None:
    arguments = _arguments()
    table = Table(
        title=f"{arguments.particles} particles, seed {arguments.seed}",
        caption=f"{os.cpu_count()} cores; the error of SMC is that between its runs",
    )
    columns = "posterior", "engine", "log evidence", "below", "between", "above", "status", "s"
    for column in columns:
        table.add_column(column)
    told = []
    for problem in _problems()[: arguments.problems]:
        for name in arguments.engines:
            posterior = _fit(name, problem, arguments)
            table.add_row(problem.name, name, *_row(problem, posterior, arguments.seed))
            if posterior.engine == "svi":
                told.append(f"{problem.name}: {posterior.status.sentence}")
    Console(width=160).print(table, *told, sep="\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.particles, arguments.draws = (20, 20) if arguments.toy else (500, 1000)
    arguments.points, arguments.problems = (41, 1) if arguments.toy else (601, 3)
    arguments.steps = 100 if arguments.toy else 4000
    return arguments


def _problems() -> tuple[Problem, ...]:
    def first_value(sites: dict[str, Float[np.ndarray, "S ..."]]) -> Float[np.ndarray, " S"]:
        return sites["inducing_value"][:, 0]

    return (
        Problem(
            "two concepts",
            *entry_named("diverse-density-two-concepts-2").problem(),
            lambda sites: sites["concept"][:, 0],
            1.0,
        ),
        Problem("three modes", *entry_named("vgpmil-three-modes-2").problem(), first_value, 6.0),
        Problem("runaway", *_runaway(), first_value, 6.0),
    )


def _runaway() -> tuple[Model, Bags]:
    """A Gamma scale mixture on more instances, whose far mode is 210 nats higher."""
    random = np.random.default_rng(1)
    random.normal(size=8)  # kept from when the pairs of the two concepts were drawn first
    bags = Bags.from_list([random.normal(size=(3, 2)) for _ in range(10)], labels=[1] * 3 + [0] * 7)
    kernel, scale_mixture = RBF(4.0, 4.0), GammaScaleMixture(1.0, 3.0)
    return VGPMIL(kernel, bags.instances[[0, -1]], mean=0.0, scale_mixture=scale_mixture), bags


def _fit(name: str, problem: Problem, arguments: argparse.Namespace) -> Posterior:
    model, bags, seed = problem.model, problem.bags, arguments.seed
    particles, draws = arguments.particles, arguments.draws
    match name:
        case "grid":
            return grid(model, bags, seed=seed, num_points=arguments.points)
        case "nuts":
            return nuts(model, bags, seed=seed, num_warmup=draws // 2, num_samples=draws)
        case "svi":
            return svi(model, bags, seed=seed, num_starts=8, max_steps=arguments.steps)
        case "tempered_smc":
            return tempered_smc(model, bags, seed=seed, num_particles=particles)
    return tempered_smc(model, bags, seed=seed, num_particles=particles, dispersion=1.0)


def _row(problem: Problem, posterior: Posterior, seed: int) -> list[str]:
    if posterior.engine == "grid":
        evidence = f"{posterior.elbo[-1]:.2f}"
    else:
        found = log_evidence(posterior, seed=seed)
        evidence = f"{found.value:.2f} ± {found.error:.2f}"
    number = problem.number_of(posterior.draws(4000, seed=seed))
    masses = [f"{one.mean():.3f}" for one in problem.regions(number).values()]
    return [evidence, *masses, posterior.status.kind, f"{posterior.wall_seconds:.1f}"]


if __name__ == "__main__":
    main()
