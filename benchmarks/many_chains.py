"""Many short chains beside four long ones: where an accelerator pays.

    MILZOO_DATA=… python benchmarks/many_chains.py                       # all problems
    MILZOO_DATA=… JAX_PLATFORMS=cpu python benchmarks/many_chains.py     # not on an accelerator
    MILZOO_DATA=… python benchmarks/many_chains.py --problems 2 3 --engines nuts --length 300 1000
    python benchmarks/many_chains.py --toy

`ensemble` with 256 and with 1,024 chains, 16 superchains, 300 + 20 steps, and `nuts` with its four
chains of 500 + 2,000 steps and low-rank mass matrix, or as told by ``--length``, ``--mass-matrix``
and ``--target-accept`` (one after another on each core of a CPU, in lockstep on an accelerator).
All on the marginal program, in a second call, which compiles nothing. ESS is ArviZ's bulk ESS of
the inducing values, and of hyper-parameters that are drawn, over all chains; ESS/s divides the
smallest by the seconds of warm-up and sampling together.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

# JAX reads this once, when it is first imported: one device for each chain that runs at once.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(min(4, os.cpu_count() or 1)))

import arviz as az
import jax
from hyperparameters_by_evidence import with_priors
from milzoo.datasets import Bags, load, simulate, simulate_instances
from milzoo.diagnostics.measures.convergence import convergence
from milzoo.inference import Posterior, ensemble, nuts
from milzoo.models import VGPMIL, VWSGP
from rich.console import Console
from rich.table import Table

COLUMNS = (
    *("model", "engine", "chains", "compile s", "warm-up s", "sampling s", "leapfrogs"),
    *("smallest ESS", "ESS/s", "worst R̂"),
)


def main() -> None:
    arguments = _arguments()
    device = jax.devices()[0]
    table = Table(
        *COLUMNS,
        title=f"{device.platform}, {device.device_kind}, {os.cpu_count()} cores; seed 0",
    )
    for name, model, bags in _problems(arguments):
        for engine, options in _runs(arguments):
            first = engine(model, bags, seed=1, **options)
            posterior = engine(model, bags, seed=0, **options)
            table.add_row(name, *_row(posterior, first.compile_seconds))
    Console(width=140).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=["nuts", "ensemble"])
    parser.add_argument("--problems", nargs="+", type=int, choices=range(4), default=range(4))
    parser.add_argument("--length", nargs=2, type=int, default=[500, 2000], help="of nuts")
    parser.add_argument("--mass-matrix", default="low_rank", help="of nuts")
    parser.add_argument("--target-accept", type=float, default=0.7, help="of nuts")
    parser.add_argument("--chains", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--toy", action="store_true")
    return parser.parse_args()


def _runs(arguments: argparse.Namespace) -> Iterator[tuple[Any, dict[str, Any]]]:
    wanted = arguments.engines or ["nuts", "ensemble"]
    (warmup, samples), chains = arguments.length, arguments.chains
    if arguments.toy:
        warmup, samples, chains = 20, 20, [16]
    if "nuts" in wanted:
        length = {"num_warmup": warmup, "num_samples": samples}
        settings = {"mass_matrix": arguments.mass_matrix, "target_accept": arguments.target_accept}
        yield nuts, length | settings
    if "ensemble" in wanted:
        for number in chains:
            yield ensemble, {"num_chains": number}


def _problems(arguments: argparse.Namespace) -> Iterator[tuple[str, Any, Bags]]:
    if arguments.toy:
        design = simulate_instances(10, 3, num_features=2, seed=0)
        model = VWSGP.as_published(design, num_inducing=5)
        yield "VWSGP, simulated", model, simulate(model, design, seed=0)[0]
        return
    if 0 in arguments.problems:
        train = load("digits").split(0.7, seed=0)[0].standardize()
        yield "VGPMIL, digits", VGPMIL.as_published(train, variance=5.0, mean=-3.0), train
    if {1, 2, 3} & set(arguments.problems):
        bags = load("musk1").standardize()
        if 1 in arguments.problems:
            yield "VWSGP, musk1", VWSGP.as_published(bags), bags
        if 2 in arguments.problems:
            yield "VGPMIL, musk1, priors", with_priors(VGPMIL.as_published(bags)), bags
        if 3 in arguments.problems:
            yield "VWSGP, musk1, priors", with_priors(VWSGP.as_published(bags)), bags


def _row(posterior: Posterior, compile_seconds: float) -> list[str]:
    statistics = posterior.tree["sample_stats"]
    names = [name for name in posterior.model.latent_sites if name in posterior.tree["posterior"]]
    ess = az.ess(posterior.tree["posterior"].to_dataset()[names])
    smallest = min(float(ess[name].min()) for name in names)
    sampling = posterior.sampling_seconds or float("nan")
    return [
        posterior.engine,
        f"{posterior.tree['posterior'].sizes['chain']:,}",
        f"{compile_seconds:.1f}",
        f"{posterior.seconds - sampling:.2f}",
        f"{sampling:.2f}",
        f"{float(statistics['n_steps'].mean()):.1f}",
        f"{smallest:,.0f}",
        f"{smallest / posterior.seconds:,.0f}",
        f"{convergence(posterior).rhat:.4f}",
    ]


if __name__ == "__main__":
    main()
