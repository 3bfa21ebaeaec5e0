"""What a step of each engine costs on each family, and what its matrix products alone would.

    python benchmarks/where_the_time_goes.py            # 400 bags of 10, 10 features, M = 50, K = 5
    python benchmarks/where_the_time_goes.py --toy      # small, to see that it runs

A step is a round of all updates (coordinate_ascent), a sweep (gibbs) or a leapfrog (nuts); of
samplers it is the time that it takes of a core, chains running on all of them. The products are
counted as N M² where they are triangular or symmetric, and their time is that at the speed of one
of 2000 × 2000, by all cores or (samplers) by one.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

CORES = os.cpu_count() or 1
# JAX reads this once, when it is first imported: one device for each chain that runs at once.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(CORES))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from milzoo.datasets import Bags, simulate, simulate_instances  # noqa: E402
from milzoo.inference import Posterior, coordinate_ascent, gibbs, nuts  # noqa: E402
from milzoo.models import DPMIL, VGPMIL, VWSGP  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

type Family = VGPMIL | VWSGP | DPMIL


def main() -> None:
    arguments = _arguments()
    design = simulate_instances(arguments.num_bags, 10, arguments.num_features, seed=arguments.seed)
    table = Table(
        *("model", "engine", "a step is", "compilation, s", "a step, ms", "its products, ms"),
        title=f"{design.num_bags} bags, {design.num_instances} instances × {design.num_features}, "
        f"M = {arguments.num_inducing}, K = {arguments.num_components}, {CORES} cores, "
        f"seed {arguments.seed}",
    )
    speed = _matrix_product_speed()
    for model, bags in _families(design, arguments):
        for engine, what, options in _engines(arguments):
            posterior = engine(model, bags, seed=arguments.seed, **options)
            table.add_row(*_row(posterior, what, model, bags, speed))
    Console(width=120).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sizes = (60, 3, 8, 2, 5, 10) if arguments.toy else (400, 10, 50, 5, 200, 200)
    names = ("num_bags", "num_features", "num_inducing", "num_components", "steps", "draws")
    for name, size in zip(names, sizes, strict=True):
        setattr(arguments, name, size)
    return arguments


def _families(design: Bags, arguments: argparse.Namespace) -> Iterator[tuple[Family, Bags]]:
    """Models, with labels drawn from VGPMIL for all that need labels of both kinds."""
    few = {"num_inducing": arguments.num_inducing, "seed": arguments.seed}
    by_labels = VGPMIL.for_bags(design, **few, mean=-1.0)
    bags = simulate(by_labels, design, seed=arguments.seed)[0]
    yield by_labels, bags
    yield VWSGP.for_bags(design, **few), bags
    yield DPMIL.for_bags(bags, arguments.num_components), bags


def _engines(arguments: argparse.Namespace) -> Iterator[tuple[Callable, str, dict[str, Any]]]:
    chains = {"num_chains": CORES, "num_warmup": 100, "num_samples": arguments.draws}
    steps = {"max_steps": arguments.steps, "tolerance": 0.0, "num_draws": 10}
    yield coordinate_ascent, "round", steps
    yield gibbs, "sweep", chains
    yield nuts, "leapfrog", chains


def _row(
    posterior: Posterior, what: str, model: Family, bags: Bags, speed: float
) -> tuple[str, ...]:
    if what == "round":
        seconds = posterior.seconds / len(posterior.elbo)
        # From five starts at once.
        starts, speed_of_one = (5 if isinstance(model, DPMIL) else 1), speed
    else:
        draws = posterior.tree["posterior"].sizes
        steps = draws["draw"]
        if what == "leapfrog":
            by_chain = posterior.tree["sample_stats"]["n_steps"].sum("draw")
            steps = float(by_chain.mean())
        seconds, starts, speed_of_one = posterior.sampling_seconds / steps, 1, speed / CORES
    return (
        type(model).__name__,
        posterior.engine,
        what,
        f"{posterior.compile_seconds:.1f}",
        f"{1e3 * seconds:.3f}",
        f"{1e3 * starts * _operations(what, model, bags) / speed_of_one:.3f}",
    )


def _operations(what: str, model: Family, bags: Bags) -> float:
    """Floating-point operations of the products of a step."""
    if isinstance(model, DPMIL):
        num_positive = int(model.may_be_positive(bags).sum())
        # Those that may be positive are looked at by both mixtures.
        looks = (bags.num_instances + num_positive) * model.max_components
        each = model.num_features**2
        # log ρ and the sums under it; of leapfrogs with the slopes.
        return looks * each * {"round": 2, "sweep": 1, "leapfrog": 3}[what]
    rows = bags.num_bags if isinstance(model, VWSGP) else bags.num_instances
    num_inducing = len(model.inducing_points)
    if what == "leapfrog":  # V ε, and back
        return 4.0 * rows * num_inducing
    # The spread of V ε and the Gram matrix; a sweep has no spread.
    return {"round": 2.0, "sweep": 1.0}[what] * rows * num_inducing**2


def _matrix_product_speed() -> float:
    """FLOP/s of a large dense product on all cores, the best of five."""
    with jax.enable_x64(True):
        square = jnp.asarray(np.random.default_rng(0).normal(size=(2000, 2000)))
        product = jax.jit(jnp.matmul)
        jax.block_until_ready(product(square, square))
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            jax.block_until_ready(product(square, square))
            seconds.append(time.perf_counter() - started)
    return 2 * 2000**3 / min(seconds)


if __name__ == "__main__":
    main()
