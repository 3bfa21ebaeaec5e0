"""Effective draws per second of NUTS: NumPyro, nutpie and PyMC side by side.

    python benchmarks/nuts_speed.py          # the demo's VGPMIL on digits, 115 bags, M = 50
    python benchmarks/nuts_speed.py --model vwsgp --data musk1    # needs the file, see load
    python benchmarks/nuts_speed.py --toy    # small, to see that it runs

All run at the same target acceptances, as many chains at once as there are cores, with diagonal
mass matrices. ESS is ArviZ's bulk ESS of the M inducing values over all chains; ESS/s divides its
median and its minimum by the seconds of sampling, after compilation and warm-up. nutpie's seconds
are split by leapfrog steps. ``step ms`` is what a leapfrog step takes of a core.
"""

from __future__ import annotations

import argparse
import os

CORES = os.cpu_count() or 1
# JAX reads this once, when it is first imported: one device for each chain that runs at once.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(CORES))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import arviz as az  # noqa: E402
from milzoo.datasets import Bags, load, simulate, simulate_instances  # noqa: E402
from milzoo.inference import Posterior, nuts  # noqa: E402
from milzoo.inference.pymc_nuts import pymc_nuts  # noqa: E402
from milzoo.models import VGPMIL, VWSGP  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

MODELS = {"vgpmil": (VGPMIL, {"variance": 5.0, "mean": -3.0}), "vwsgp": (VWSGP, {})}
ENGINES = {
    "nuts (NumPyro)": (nuts, {}),
    "pymc_nuts (nutpie)": (pymc_nuts, {"sampler": "nutpie"}),
    "pymc_nuts (PyMC)": (pymc_nuts, {"sampler": "pymc"}),
}
COLUMNS = (
    *("engine", "program", "target", "compile s", "warm-up s", "sampling s", "steps/draw"),
    "step ms",
    *("median ESS", "smallest ESS", "median ESS/s", "smallest ESS/s"),
)


def main() -> None:
    arguments = _arguments()
    bags, model = _problem(arguments)
    chains, warmup, draws = arguments.chains, arguments.warmup, arguments.draws
    table = Table(
        *COLUMNS,
        title=f"{type(model).__name__}, {arguments.data}: {bags.num_bags} bags, "
        f"{bags.num_instances} instances, M = {len(model.inducing_points)}, seed {arguments.seed}",
        caption=f"{chains} × ({warmup} + {draws}) draws on {CORES} cores",
    )
    for name, (engine, options) in ENGINES.items():
        for program, target_accept in arguments.programs:
            posterior = engine(
                model,
                bags,
                seed=arguments.seed,
                num_warmup=warmup,
                num_samples=draws,
                num_chains=chains,
                program=program,
                target_accept=target_accept,
                **options,
            )
            table.add_row(name, program, str(target_accept), *_measures(posterior))
    Console(width=140).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "musk1"], default="digits")
    parser.add_argument("--model", choices=sorted(MODELS), default="vgpmil")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sizes = (2, 100, 50) if arguments.toy else (4, 500, 2000)
    arguments.chains, arguments.warmup, arguments.draws = sizes
    # A program of PyMC takes half a minute to compile.
    programs = (("marginal", 0.7), ("marginal", 0.8), ("full", 0.8))
    arguments.programs = programs[:1] if arguments.toy else programs
    if arguments.toy:
        arguments.data = "simulated"
    return arguments


def _problem(arguments: argparse.Namespace) -> tuple[Bags, VGPMIL | VWSGP]:
    kind, chosen = MODELS[arguments.model]
    if arguments.toy:
        design = simulate_instances(10, 3, num_features=2, seed=arguments.seed)
        model = kind.as_published(design, num_inducing=5)
        return simulate(model, design, seed=arguments.seed)[0], model
    train, _ = load(arguments.data).split(0.7, seed=0)
    train = train.standardize()
    return train, kind.as_published(train, **chosen)


def _measures(posterior: Posterior) -> list[str]:
    draws = posterior.tree["posterior"].to_dataset()[["inducing_value"]]
    ess = az.ess(draws)["inducing_value"]
    steps = float(posterior.tree["sample_stats"]["n_steps"].mean())
    sampling_seconds = posterior.sampling_seconds or float("nan")
    num_steps = steps * draws.sizes["chain"] * draws.sizes["draw"]
    step_seconds = sampling_seconds * min(CORES, draws.sizes["chain"]) / num_steps
    return [
        f"{posterior.compile_seconds:.1f}",
        f"{posterior.seconds - sampling_seconds:.2f}",
        f"{sampling_seconds:.2f}",
        f"{steps:.1f}",
        f"{1000 * step_seconds:.3f}",
        f"{float(ess.median()):,.0f}",
        f"{float(ess.min()):,.0f}",
        f"{float(ess.median()) / sampling_seconds:,.0f}",
        f"{float(ess.min()) / sampling_seconds:,.0f}",
    ]


if __name__ == "__main__":
    main()
