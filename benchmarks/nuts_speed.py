"""Effective draws per second: NUTS by mass matrix, beside nutpie's, PyMC's and other samplers.

    python benchmarks/nuts_speed.py                                # VGPMIL on digits, M = 50
    MILZOO_DATA=… python benchmarks/nuts_speed.py --model vwsgp --data musk1
    MILZOO_DATA=… python benchmarks/nuts_speed.py --model vwsgp --data elephant
    python benchmarks/nuts_speed.py --toy                          # small, to see that it runs
    python benchmarks/nuts_speed.py --keep docs/nuts_speed    # a CSV of every run, too
    python benchmarks/nuts_speed.py --draw docs/nuts_speed    # tables and picture of those

All run on the same program, NUTS at the same target acceptance, as many chains at once as there are
cores; ``acceptance`` is the mean that was reached. ESS is ArviZ's bulk ESS of the M inducing values
over all chains; ESS/s divides its minimum by the seconds of sampling, after compilation and
warm-up, and ``with warm-up`` by those of both, as samplers need that do little else. nutpie's
seconds are split by leapfrog steps. ``step ms`` is what a leapfrog step takes of a core. A row has
the medians of its columns over the seeds; a second seed compiles no program but PyMC's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

CORES = os.cpu_count() or 1
# JAX reads this once, when it is first imported: one device for each chain that runs at once.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(CORES))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from milzoo.datasets import Bags, load, simulate, simulate_instances  # noqa: E402
from milzoo.inference import Posterior, ensemble, gibbs, nuts, tempered_smc  # noqa: E402
from milzoo.inference.pymc_nuts import pymc_nuts  # noqa: E402
from milzoo.inference.runtime.provenance import provenance  # noqa: E402
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
    "gibbs": (gibbs, {}),
    "gibbs, interweaved": (gibbs, {"interweave": True}),
    "ensemble": (ensemble, {"num_chains": 64}),
    "tempered_smc": (tempered_smc, {}),
}
FORMATS = {
    "compile s": ".1f",
    "warm-up s": ".2f",
    "sampling s": ".2f",
    "acceptance": ".2f",
    "steps/draw": ".1f",
    "step ms": ".3f",
    "median ESS": ",.0f",
    "smallest ESS": ",.0f",
    "smallest ESS/s": ",.0f",
    "to first row's": ".2f",
    "with warm-up": ",.0f",
}


def main() -> None:
    arguments = _arguments()
    if arguments.draw:
        kept = pd.concat(map(pd.read_csv, sorted(arguments.draw.glob("*.csv"))))
        for problem, runs in kept.groupby("problem", sort=False):
            print(f"\n{problem}\n\n{markdown(medians(runs))}")
        picture(kept).savefig(arguments.draw / "ess_per_second.png", dpi=110)
        return
    bags, model = _problem(arguments)
    runs = pd.DataFrame(_runs(arguments, bags, model))
    _print(arguments, medians(runs), bags, model)
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        told = {"problem": f"{type(model).__name__}, {arguments.data}", **provenance()}
        runs = pd.concat([pd.DataFrame(told, index=runs.index), runs], axis=1)
        path = arguments.keep / f"{arguments.model}-{arguments.data}.csv"
        kept = beside(runs, pd.read_csv(path)) if path.exists() else runs
        kept.to_csv(path, index=False, float_format="%.5g")


def beside(runs: pd.DataFrame, earlier: pd.DataFrame) -> pd.DataFrame:
    """Runs, and earlier ones of engines that are not among them, in the order of the engines."""
    others = earlier[~earlier["engine"].isin(runs["engine"])]
    order = {name: place for place, name in enumerate(ENGINES)}
    return pd.concat([others, runs]).sort_values(
        "engine", key=lambda engines: engine_of(engines).map(order), kind="stable"
    )


def engine_of(told: pd.Series) -> pd.Series:
    """The engine's name, without the mass matrix that "auto" chose."""
    return told.str.partition(":")[0]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "musk1", "elephant"], default="digits")
    parser.add_argument("--model", choices=sorted(MODELS), default="vgpmil")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES))
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--program", choices=["marginal", "full"], default="marginal")
    parser.add_argument("--target", type=float, default=0.8, help="acceptance probability")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="write runs into a CSV; engines left out keep theirs",
    )
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="of the CSVs there, no run")
    parser.add_argument("--toy", action="store_true")
    arguments = parser.parse_args()
    sizes = (2, 100, 50) if arguments.toy else (4, 500, 2000)
    if arguments.engines is None:
        missing = "gibbs, interweaved" if arguments.model == "vwsgp" else None
        arguments.engines = [name for name in ENGINES if name != missing]
    arguments.num_chains, arguments.num_warmup, arguments.num_samples = sizes
    if arguments.toy:
        arguments.data, arguments.seeds = "simulated", 1
        # A program of PyMC takes half a minute to compile.
        arguments.engines = [
            "nuts, diagonal",
            "nuts, auto",
            "nutpie, low_rank",
            "gibbs, interweaved",
        ]
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


def _runs(arguments: argparse.Namespace, bags: Bags, model: VGPMIL | VWSGP) -> list[dict]:
    """A row for every engine and seed."""
    runs = []
    for name in arguments.engines:
        engine, options = ENGINES[name]
        if engine in (nuts, pymc_nuts, gibbs):
            lengths = ("num_chains", "num_warmup", "num_samples")
            options = options | {length: getattr(arguments, length) for length in lengths}
        if engine in (nuts, pymc_nuts):
            options = options | {"program": arguments.program, "target_accept": arguments.target}
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            posterior = engine(model, bags, seed=seed, **options)
            told = name
            if name.endswith("auto"):
                told = f"{name}: {posterior.tree['sample_stats'].attrs['mass_matrix']}"
            runs.append({"engine": told, "seed": seed, **measures(posterior)})
    return runs


def measures(posterior: Posterior) -> dict[str, float]:
    """What was seen of one run; nan for what its sampler does not have."""
    draws = posterior.tree["posterior"].to_dataset()[["inducing_value"]]
    ess = az.ess(draws)["inducing_value"]
    statistics = posterior.tree.get("sample_stats", {})
    acceptance, steps = (
        float(statistics[name].mean()) if name in statistics else float("nan")
        for name in ("acceptance_rate", "n_steps")
    )
    sampling_seconds = posterior.sampling_seconds or float("nan")
    num_steps = steps * draws.sizes["chain"] * draws.sizes["draw"]
    return {
        "compile s": posterior.compile_seconds,
        "seconds": posterior.seconds,
        "sampling s": sampling_seconds,
        "acceptance": acceptance,
        "steps/draw": steps,
        "step ms": 1000 * sampling_seconds * min(CORES, draws.sizes["chain"]) / num_steps,
        "median ESS": float(ess.median()),
        "smallest ESS": float(ess.min()),
    }


def medians(runs: pd.DataFrame) -> pd.DataFrame:
    """Medians over the seeds of what is measured and of what follows from it, by engine."""
    derived = runs.assign(
        **{
            "warm-up s": runs["seconds"] - runs["sampling s"],
            "smallest ESS/s": runs["smallest ESS"] / runs["sampling s"],
            "with warm-up": runs["smallest ESS"] / runs["seconds"],
        }
    )
    table = derived.groupby("engine", sort=False).median(numeric_only=True)
    table["to first row's"] = table["smallest ESS/s"] / table["smallest ESS/s"].iloc[0]
    return table


def _print(
    arguments: argparse.Namespace, rows: pd.DataFrame, bags: Bags, model: VGPMIL | VWSGP
) -> None:
    table = Table(
        "engine",
        *FORMATS,
        title=f"{type(model).__name__}, {arguments.data}: {bags.num_bags} bags, "
        f"{bags.num_instances} instances, M = {len(model.inducing_points)}",
        caption=f"{arguments.num_chains} × ({arguments.num_warmup} + {arguments.num_samples}) "
        f"draws on {CORES} cores, {arguments.program} program, target {arguments.target}; "
        f"medians of {arguments.seeds} seeds from {arguments.seed}",
    )
    for engine, row in rows.iterrows():
        table.add_row(str(engine), *_cells(row))
    Console(width=170).print(table)


def markdown(rows: pd.DataFrame) -> str:
    """The table of the docs."""
    lines = [["engine", *FORMATS], *([str(name), *_cells(row)] for name, row in rows.iterrows())]
    header, *others = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([header, "|" + "---|" * (1 + len(FORMATS)), *others])


def _cells(row: pd.Series) -> list[str]:
    return [
        f"{row[name]:{form}}" if np.isfinite(row[name]) else "–" for name, form in FORMATS.items()
    ]


def picture(kept: pd.DataFrame) -> Figure:
    """Smallest ESS per second of warm-up and sampling: a panel a problem, a dot a seed."""
    rates = kept["smallest ESS"] / kept["seconds"]
    problems = list(kept["problem"].unique())
    # Not by pyplot, which would keep the figure open for whoever runs next in this process.
    figure = Figure(figsize=(4.2 * len(problems), 4.4), layout="constrained")
    panels = figure.subplots(1, len(problems), sharex=True, sharey=True, squeeze=False)[0]
    told = engine_of(kept["engine"])
    engines = [name for name in ENGINES if name in set(told)]
    for panel, problem in zip(panels, problems, strict=True):
        for height, engine in enumerate(engines):
            here = (kept["problem"] == problem) & (told == engine)
            seeds = np.full(here.sum(), height)
            panel.plot(rates[here], seeds, "o", color="#0072B2", alpha=0.35)
            panel.plot(rates[here].median(), height, "|", color="#0072B2", markersize=16, mew=2.5)
        panel.set(xscale="log", title=problem, xlabel="smallest ESS per second")
        panel.grid(axis="x", color="0.9")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(engines)), engines)
    panels[0].invert_yaxis()
    return figure


if __name__ == "__main__":
    main()
