"""What a step of each engine costs on each family, and what its matrix products alone would.

    python benchmarks/where_the_time_goes.py            # 400 bags of 10, 10 features, M = 50, K = 5
    python benchmarks/where_the_time_goes.py --inside   # of a sweep and a leapfrog, by part
    python benchmarks/where_the_time_goes.py --parts    # what an instance from disk costs, by part
    python benchmarks/where_the_time_goes.py --toy      # small, to see that it runs

A step is a round of all updates (coordinate_ascent), a sweep (gibbs) or a leapfrog (nuts); of
samplers it is the time that it takes of a core, chains running on all of them. The products are
counted as N M² where they are triangular or symmetric, and their time is that at the speed of one
of 2000 × 2000, by all cores or (samplers) by one.

What is inside a sweep or a leapfrog is timed on one core, each part by itself, on the states of a
chain that has left its start; "the rest" is what the whole takes longer than its parts.

The parts of a pass are those over bags of 20 on disk, 100 features in 32 bit and M = 200, each by
itself on one core, in blocks of 512 as in a fit. A pass of VWSGP is made of all but the variances
and the Gram matrix, one of VGPMIL of all but the sums by bag.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CORES = os.cpu_count() or 1
# JAX reads this once, when it is first imported: one device for each chain that runs at once.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(CORES))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import Array  # noqa: E402
from milzoo.datasets import Bags, simulate, simulate_instances, stream  # noqa: E402
from milzoo.inference import Posterior, coordinate_ascent, gibbs, nuts  # noqa: E402
from milzoo.inference.gibbs.dpmil import DPMILGibbs, DPMILGibbsState  # noqa: E402
from milzoo.inference.gibbs.inducing import draw_latent, draw_whitened  # noqa: E402
from milzoo.inference.gibbs.sweep import sweep_of  # noqa: E402
from milzoo.inference.gibbs.vgpmil import VGPMILGibbs  # noqa: E402
from milzoo.inference.nuts import NUTSChain  # noqa: E402
from milzoo.inference.runtime.chunks import AlternatingBuffers, ChunkBuffers, padded_chunks  # noqa: E402
from milzoo.inference.runtime.devices import Devices  # noqa: E402
from milzoo.models import DPMIL, RBF, VGPMIL, VWSGP  # noqa: E402
from milzoo.models.dpmil import draw_labels, log_stick_weights  # noqa: E402
from milzoo.models.numerics.products import gram_panels, squared_norms, whole_blocks  # noqa: E402
from milzoo.models.parts.dp_mixture import Mixtures  # noqa: E402
from milzoo.models.parts.polya_gamma import PolyaGamma  # noqa: E402
from milzoo.models.parts.sparse_gp import Projector  # noqa: E402
from numpyro.handlers import reparam  # noqa: E402
from numpyro.infer.util import potential_energy  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

type Family = VGPMIL | VWSGP | DPMIL


def main() -> None:
    arguments = _arguments()
    if arguments.toy or not (arguments.parts or arguments.inside):
        Console(width=120).print(_steps(arguments))
    if arguments.toy or arguments.parts or arguments.inside:
        os.sched_setaffinity(0, {0})
    if arguments.toy or arguments.inside:
        Console(width=120).print(_inside(arguments))
    if arguments.toy or arguments.parts:
        Console(width=120).print(_parts(arguments))


def _steps(arguments: argparse.Namespace) -> Table:
    design = _design(arguments)
    table = Table(
        *("model", "engine", "a step is", "compilation, s", "a step, ms", "its products, ms"),
        title=_title(design, arguments, CORES),
    )
    speed = _matrix_product_speed()
    for model, bags in _families(design, arguments):
        for engine, what, options in _engines(arguments):
            posterior = engine(model, bags, seed=arguments.seed, **options)
            table.add_row(*_row(posterior, what, model, bags, speed))
    return table


def _design(arguments: argparse.Namespace) -> Bags:
    return simulate_instances(arguments.num_bags, 10, arguments.num_features, seed=arguments.seed)


def _title(design: Bags, arguments: argparse.Namespace, cores: int) -> str:
    return (
        f"{design.num_bags} bags, {design.num_instances} instances × {design.num_features}, "
        f"M = {arguments.num_inducing}, K = {arguments.num_components}, {cores} core(s), "
        f"seed {arguments.seed}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--parts", action="store_true")
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
    by_labels = VGPMIL.as_published(design, **few, mean=-1.0)
    bags = simulate(by_labels, design, seed=arguments.seed)[0]
    yield by_labels, bags
    yield VWSGP.as_published(design, **few), bags
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
        # log ρ and the sums under it; of leapfrogs with the gradients.
        return looks * each * {"round": 2, "sweep": 1, "leapfrog": 3}[what]
    rows = bags.num_bags if isinstance(model, VWSGP) else bags.num_instances
    num_inducing = len(model.inducing_points)
    if what == "leapfrog":  # V ε, and back
        return 4.0 * rows * num_inducing
    # The variances of V ε and the Gram matrix; a sweep has no variances.
    return {"round": 2.0, "sweep": 1.0}[what] * rows * num_inducing**2


# ------------------------------------------------------------------ inside a sweep, or a leapfrog


def _inside(arguments: argparse.Namespace) -> Table:
    design = _design(arguments)
    table = Table(*("model", "of a", "part", "ms"), title=_title(design, arguments, 1))
    with jax.enable_x64(True):
        for model, bags in _families(design, arguments):
            sweep, chain = sweep_of(model, bags), NUTSChain.for_model(model, bags, num_warmup=100)
            states = _states(sweep.init, sweep.step, arguments)
            parts = dict(_parts_of_a_sweep(sweep, states))
            _add_rows(table, model, "sweep", _ms(sweep.step, states), parts)
            states = _states(chain.init, chain.step, arguments)
            leapfrogs = float(np.mean(states.trajectory.num_steps))
            program = reparam(model.marginal(), config=model.reparametrisation)
            gradient = jax.value_and_grad(partial(potential_energy, program, (chain.given,), {}))
            parts = {"log density and its gradient": _ms(gradient, states.trajectory.z)}
            _add_rows(table, model, "leapfrog", _ms(chain.step, states) / leapfrogs, parts)
    return table


def _add_rows(
    table: Table, model: Family, what: str, whole: float, parts: dict[str, float]
) -> None:
    names = [type(model).__name__, *len(parts) * [""]]
    parts = parts | {"the rest": whole - sum(parts.values())}
    for name, (part, milliseconds) in zip(names, parts.items(), strict=True):
        table.add_row(name, what if name else "", part, f"{milliseconds:.3f}")


def _states(init: Callable, step: Callable, arguments: argparse.Namespace) -> Any:
    """Of a chain, one behind another."""

    def again(state: Any, _: None) -> tuple[Any, Any]:
        following = step(state)
        return following, following

    @jax.jit
    def chain(key: Array) -> Any:
        start = jax.lax.fori_loop(0, 100, lambda _, state: step(state), init(key))
        return jax.lax.scan(again, start, length=arguments.draws)[1]

    return jax.block_until_ready(chain(jax.random.key(arguments.seed)))


def _parts_of_a_sweep(sweep: Any, states: Any) -> Iterator[tuple[str, float]]:
    if isinstance(sweep, DPMILGibbs):
        mixtures = jax.vmap(_mixtures)(states)
        yield "densities", _ms(lambda m: m.log_components(sweep.instances), mixtures)
        keys_and_densities = (
            states.key,
            jax.vmap(lambda m: m.log_components(sweep.instances))(mixtures),
        )
        yield "labels, components", _ms(lambda s: draw_labels(*s, sweep.rule), keys_and_densities)
        return
    has_labels = isinstance(sweep, VGPMILGibbs)
    rows = sweep.conditional if has_labels else sweep.accumulated
    conditional = sweep.scale_mixture.conditional if has_labels else partial(PolyaGamma, 1)
    if has_labels:
        labels = _ms(lambda s: sweep.label_distribution(s.latent).sample(s.key), states)
        yield "instance labels", labels
    yield "precisions ω", _ms(lambda s: conditional(s.latent).sample(s.key), states)
    omega = jax.lax.map(lambda s: conditional(s.latent).sample(s.key), states)
    V, variance = rows.projection, rows.residual_variance

    def half_sign(state: Any) -> Array:
        return (state.label if has_labels else sweep.observed) - 0.5

    def inducing(given: Any) -> Array:
        state, omega = given
        return draw_whitened(state.key, V, variance, omega, half_sign(state))

    def latent(given: Any) -> Array:
        state, omega = given
        return draw_latent(state.key, V @ state.whitened, variance, omega, half_sign(state))

    yield "inducing values", _ms(inducing, (states, omega))
    yield "latent values", _ms(latent, (states, omega))


def _mixtures(state: DPMILGibbsState) -> Mixtures:
    return Mixtures(log_stick_weights(state.stick), state.mean, state.precision)


def _ms(function: Callable, states: Any) -> float:
    """Milliseconds of a call, states being gone through one after another; the median of 15."""
    num_states = len(jax.tree.leaves(states)[0])
    return 1e3 * _seconds_of_all(function, states) / num_states


# ------------------------------------------------------------------ parts of a pass


def _parts(arguments: argparse.Namespace) -> Table:
    shape = {"num_blocks": 1, "num_features": 5, "num_inducing": 10}
    if not arguments.toy:
        shape = {"num_blocks": 32, "num_features": 100, "num_inducing": 200}
    parts = {bits: dict(_parts_in(f"float{bits}", **shape)) for bits in (64, 32)}
    speeds = {bits: _matrix_product_speed(f"float{bits}") for bits in parts}
    table = Table(
        *("part", "64 bit, µs", "at a product's speed", "32 bit, µs", "at a product's speed"),
        title=f"One instance from disk, one core, seed {arguments.seed}",
    )
    for name in parts[64]:
        cells = []
        for bits, speed in speeds.items():
            seconds, operations = parts[bits][name]
            ideal = f"{1e6 * operations / speed:.2f}" if operations else "–"
            cells += [f"{1e6 * seconds:.2f}", ideal]
        table.add_row(name, *cells)
    return table


def _parts_in(
    dtype: str, *, num_blocks: int, num_features: int, num_inducing: int
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Name, seconds an instance, and operations of its product with N M² for a triangle."""
    random, rows, bag_size = np.random.default_rng(0), 512, 20
    instances = random.normal(size=(num_blocks, rows, num_features)).astype(np.float32)
    points = random.normal(size=(num_inducing, num_features))
    bag = np.arange(num_blocks * rows).reshape(num_blocks, rows) // bag_size
    with jax.enable_x64(True):
        projector = Projector.of(RBF(0.05, num_features**0.5), points, 1e-6)
        projector = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), projector)
        cross = jax.jit(lambda blocks: jax.lax.map(projector.cross, blocks))(instances)
        product = _seconds(lambda x: x.astype(dtype) @ projector.inducing_points.T, instances)
        yield "distances, a product", (product, 2.0 * num_inducing * num_features)
        yield "the rest of the kernel", (_seconds(projector.cross, instances) - product, 0.0)
        triangle = float(num_inducing**2)
        panels = _seconds(
            lambda x, k: projector.residual_variance(x, *projector.panels(k)), instances, cross
        )
        yield "V and its norms", (panels, triangle)
        variances = _seconds(lambda v: squared_norms(v, projector.whitener), cross)
        yield "variances", (variances, triangle)
        gram = _seconds(lambda v: gram_panels(v, v[:, 0]), cross)
        yield "Gram matrix", (gram, triangle)
        sums = jnp.zeros((1 + int(bag.max()), num_inducing))
        by_bag = _seconds(lambda k, b: sums.at[b].add(k, indices_are_sorted=True), cross, bag)
        yield "sums by bag", (by_bag, 0.0)
        yield "reading and filling", (_seconds_of_reading(instances, bag.ravel()), 0.0)


def _seconds(function: Callable, *blocks: Any) -> float:
    """Of an instance, blocks being gone through one after another; the median of 15."""
    blocks = jax.tree.map(jnp.asarray, blocks)
    seconds = _seconds_of_all(lambda block: function(*block), blocks)
    return seconds / (blocks[0].shape[0] * blocks[0].shape[1])


def _seconds_of_all(function: Callable, inputs: Any) -> float:
    """Of all calls, one behind another; the median of 15."""

    def add(total: Any, given: Any) -> tuple[Any, None]:
        # All that a call gives is worked out, and little of it kept.
        leaves = jax.tree.leaves(jax.lax.optimization_barrier(function(given)))
        numbers = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.number)]
        return total + sum(leaf.ravel()[0] for leaf in numbers), None

    program = jax.jit(lambda inputs: jax.lax.scan(add, jnp.zeros(()), inputs)[0])
    return float(np.median(_timed(lambda: jax.block_until_ready(program(inputs)), 15)))


def _seconds_of_reading(instances: np.ndarray, bag: np.ndarray) -> float:
    """From files to what a device can be given; the median of 15 passes."""
    devices = Devices(None)
    with TemporaryDirectory() as folder:
        np.save(Path(folder) / "instances.npy", instances.reshape(len(bag), -1))
        np.save(Path(folder) / "bag_index.npy", bag)
        np.save(Path(folder) / "labels.npy", np.arange(1 + bag.max()) % 2)
        bags = stream(folder)

        buffer, length = AlternatingBuffers(), whole_blocks(bags.chunk_instances)
        read_to = ChunkBuffers(length, 3)
        filled = partial(padded_chunks, num_instances=length, num_parts=1, read_to=read_to)

        def once() -> None:
            for chunk in bags.read_to(read_to):
                jax.block_until_ready(devices.put(filled([chunk], buffer=buffer.next_turn())))

        return float(np.median(_timed(once, 15))) / len(bag)


def _timed(function: Callable[[], Any], times: int) -> list[float]:
    """Seconds of each call but the first."""
    function()
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return seconds


def _matrix_product_speed(dtype: str = "float64") -> float:
    """FLOP/s of a large dense product on all cores that there are, the best of five."""
    with jax.enable_x64(True):
        square = jnp.asarray(np.random.default_rng(0).normal(size=(2000, 2000)), dtype)
        product = jax.jit(jnp.matmul)
        seconds = _timed(lambda: jax.block_until_ready(product(square, square)), 5)
    return 2 * 2000**3 / min(seconds)


if __name__ == "__main__":
    main()
