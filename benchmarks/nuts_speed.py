"""Effective draws per second of NUTS: mass matrices of NumPyro's, beside nutpie's and PyMC's.

    python benchmarks/nuts_speed.py                                # VGPMIL on digits, M = 50
    MILZOO_DATA=… python benchmarks/nuts_speed.py --model vwsgp --data musk1
    MILZOO_DATA=… python benchmarks/nuts_speed.py --model vwsgp --data elephant
    python benchmarks/nuts_speed.py --toy                          # small, to see that it runs

All run on the same program at the same target acceptance, as many chains at once as there are
cores; ``acceptance`` is the mean that was reached. ESS is ArviZ's bulk ESS of the M inducing values
over all chains; ESS/s divides its median and its minimum by the seconds of sampling, after
compilation and warm-up. nutpie's seconds are split by leapfrog steps. ``step ms`` is what a
leapfrog step takes of a core. A row has the medians of its columns over the seeds; a second seed
compiles no program but PyMC's.
"""

from __future__ import annotations

import argparse
import os

CORES = os.cpu_count() or 1
# JAX reads this once, when it is first imported: one device for each chain that runs at once.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(CORES))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
from milzoo.datasets import Bags, load, simulate, simulate_instances  # noqa: E402
from milzoo.inference import Posterior, nuts  # noqa: E402
from milzoo.inference.pymc_nuts import pymc_nuts  # noqa: E402
from milzoo.models import VGPMIL, VWSGP  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

MODELS = {"vgpmil": (VGPMIL, {"variance": 5.0, "mean": -3.0}), "vwsgp": (VWSGP, {})}
ENGINES = {
    **{
        f"nuts, {name}": (nuts, {"mass_matrix": name})
        for name in ("diagonal", "dense", "low_rank", "laplace", "auto")
    },
    "nutpie, diagonal": (pymc_nuts, {"sampler": "nutpie"}),
    "nutpie, low_rank": (pymc_nuts, {"sampler": "nutpie", "mass_matrix": "low_rank"}),
    "PyMC, diagonal": (pymc_nuts, {"sampler": "pymc"}),
}
COLUMNS = (
    *("engine", "compile s", "warm-up s", "sampling s", "acceptance", "steps/draw"),
    "step ms",
    *("median ESS", "smallest ESS", "median ESS/s", "smallest ESS/s", "to first row's"),
)
FORMATS = (".1f", ".2f", ".2f", ".2f", ".1f", ".3f", ",.0f", ",.0f", ",.0f", ",.0f", ".2f")


def main() -> None:
    arguments = _arguments()
    bags, model = _problem(arguments)
    length = {
        name: getattr(arguments, name) for name in ("num_chains", "num_warmup", "num_samples")
    }
    chosen = {"program": arguments.program, "target_accept": arguments.target}
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    table = Table(
        *COLUMNS,
        title=f"{type(model).__name__}, {arguments.data}: {bags.num_bags} bags, "
        f"{bags.num_instances} instances, M = {len(model.inducing_points)}",
        caption=f"{length['num_chains']} × ({length['num_warmup']} + {length['num_samples']}) "
        f"draws on {CORES} cores, {arguments.program} program, target {arguments.target}; "
        f"medians of seeds {list(seeds)}",
    )
    rows: dict[str, list[float]] = {}
    for name in arguments.engines:
        engine, options = ENGINES[name]
        options = options | length | chosen
        fits = [engine(model, bags, seed=seed, **options) for seed in seeds]
        rows[name] = np.median([_measures(fit) for fit in fits], axis=0).tolist()
        found = {fit.tree["sample_stats"].attrs["mass_matrix"] for fit in fits}
        told = f"{name}: {', '.join(sorted(found))}" if name.endswith("auto") else name
        ratio = rows[name][-1] / next(iter(rows.values()))[-1]
        cells = (f"{x:{form}}" for x, form in zip([*rows[name], ratio], FORMATS, strict=True))
        table.add_row(told, *cells)
    Console(width=170).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "musk1", "elephant"], default="digits")
    parser.add_argument("--model", choices=sorted(MODELS), default="vgpmil")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--program", choices=["marginal", "full"], default="marginal")
    parser.add_argument("--target", type=float, default=0.8, help="acceptance probability")
    parser.add_argument("--toy", action="store_true")
    arguments = parser.parse_args()
    sizes = (2, 100, 50) if arguments.toy else (4, 500, 2000)
    arguments.num_chains, arguments.num_warmup, arguments.num_samples = sizes
    if arguments.toy:
        arguments.data, arguments.seeds = "simulated", 1
        # A program of PyMC takes half a minute to compile.
        arguments.engines = ["nuts, diagonal", "nuts, auto", "nutpie, low_rank"]
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


def _measures(posterior: Posterior) -> list[float]:
    draws = posterior.tree["posterior"].to_dataset()[["inducing_value"]]
    ess = az.ess(draws)["inducing_value"]
    steps = float(posterior.tree["sample_stats"]["n_steps"].mean())
    sampling_seconds = posterior.sampling_seconds or float("nan")
    num_steps = steps * draws.sizes["chain"] * draws.sizes["draw"]
    step_seconds = sampling_seconds * min(CORES, draws.sizes["chain"]) / num_steps
    median, smallest = float(ess.median()), float(ess.min())
    return [
        posterior.compile_seconds,
        posterior.seconds - sampling_seconds,
        sampling_seconds,
        float(posterior.tree["sample_stats"]["acceptance_rate"].mean()),
        steps,
        1000 * step_seconds,
        median,
        smallest,
        median / sampling_seconds,
        smallest / sampling_seconds,
    ]


if __name__ == "__main__":
    main()
