"""Time of the closed-form updates of VGPMIL, beside the same updates written plainly in NumPy.

    python benchmarks/vgpmil_steps.py            # 70,000 × 30 in 7,000 bags, M = 200, 64 bit
    python benchmarks/vgpmil_steps.py --toy      # small, to see that it runs

First what a user waits for: `VGPMIL.for_bags`, and `coordinate_ascent` from the call to its return,
after a first call, beside NumPy's kernel and steps: five times in turn, and the median is
printed. Then steps alone.

All start at q(u) = p(u), do the exact label update, and compute the bound at every step, milzoo on
one of JAX's devices, whose threads share the cores, and on a mesh with a device for each core. The
inducing means and the bounds they arrive at are compared. Compilation is told apart. Peak memory is
that of milzoo, before NumPy and the mesh have their turn.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np
from milzoo.datasets import Bags
from milzoo.inference import coordinate_ascent
from milzoo.inference.closed_form import Options, closed_form
from milzoo.inference.closed_form.drivers import Ascent, Limits, ascend_in_memory
from milzoo.inference.runtime.programs import Stopwatch
from milzoo.models import RBF, VGPMIL
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import expit


def main() -> None:
    arguments = _arguments()
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    bags, model = _problem(arguments)
    print(
        f"{bags.num_instances:,} instances × {bags.num_features} in {bags.num_bags:,} bags, "
        f"M = {arguments.inducing}, 64 bit, {os.cpu_count()} cores, seed {arguments.seed}"
    )
    waits = _waits(model, bags, arguments)
    with jax.enable_x64(True):
        seconds = _seconds(model, bags, arguments.steps)
        speed = _matrix_product_speed()
    on_mesh = _seconds_on_a_mesh(model, bags, arguments.steps)

    # Two products of N M² multiply-adds a step; the symmetric and the triangular one need half.
    needed = 2.0 * bags.num_instances * arguments.inducing**2 / 1e9
    step = seconds["steps"] / arguments.steps
    rows = [
        ("VGPMIL.for_bags", waits["for_bags"], "s"),
        ("coordinate_ascent, second call", waits["wall"], "s"),
        ("NumPy, kernel and steps", waits["NumPy"], "s"),
        ("NumPy / coordinate_ascent", waits["NumPy"] / waits["wall"], ""),
        ("wall_seconds / seconds", waits["wall"] / waits["seconds"], ""),
        ("kernel and start", seconds["start"], "s"),
        ("compilation", seconds["compile"], "s"),
        (f"milzoo, {arguments.steps} steps", seconds["steps"], "s"),
        (f"NumPy, {arguments.steps} steps", waits["NumPy's steps"], "s"),
        ("milzoo, per step", 1e3 * step, "ms"),
        ("milzoo on a mesh, per step", 1e3 * on_mesh, "ms"),
        ("NumPy, per step", 1e3 * waits["NumPy's steps"] / arguments.steps, "ms"),
        ("peak memory of milzoo", waits["peak"], "GB"),
        ("speed of a 2000 × 2000 product", speed, "GFLOP/s"),
        ("fraction of it (N M² a product)", 100 * needed / step / speed, "%"),
        ("fraction of it on a mesh", 100 * needed / on_mesh / speed, "%"),
        ("largest difference of the means", waits["difference of means"], ""),
        ("relative difference of the bounds", waits["difference of bounds"], ""),
    ]
    for name, value, unit in rows:
        print(f"{name:35s} {value:10.3g} {unit}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    toy = arguments.toy
    arguments.bags, arguments.inducing = (300, 20) if toy else (7000, 200)
    arguments.steps, arguments.rounds = (5, 1) if toy else (50, 5)
    return arguments


def _problem(arguments: argparse.Namespace) -> tuple[Bags, VGPMIL]:
    random = np.random.default_rng(arguments.seed)
    bag_ids = np.repeat(np.arange(arguments.bags), 10)
    instances = random.normal(size=(bag_ids.size, 30))
    bags = Bags.from_arrays(instances, bag_ids, random.integers(0, 2, arguments.bags))
    chosen = random.choice(bag_ids.size, arguments.inducing, replace=False)
    return bags, VGPMIL(RBF(0.5, 30**0.5), instances[chosen])


def _waits(model: VGPMIL, bags: Bags, arguments: argparse.Namespace) -> dict[str, float]:
    """What a user waits for, who asks for no more than the defaults give; and who writes NumPy."""
    started = time.perf_counter()
    VGPMIL.as_published(bags, arguments.inducing)
    waits = {"for_bags": time.perf_counter() - started}
    options = {"seed": 0, "max_steps": arguments.steps, "tolerance": 0.0}
    coordinate_ascent(model, bags, **options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    rounds = []
    for _ in range(arguments.rounds):
        watch = Stopwatch()
        posterior = coordinate_ascent(model, bags, **options)
        wall, watch = watch.wall_seconds, Stopwatch()
        mean, bound, of_steps = _plain_numpy(model, bags, arguments.steps)
        rounds.append((wall, posterior.seconds, watch.wall_seconds, of_steps))
    medians = np.median(rounds, axis=0).tolist()
    waits |= dict(zip(("wall", "seconds", "NumPy", "NumPy's steps"), medians, strict=True))
    with jax.enable_x64(True):
        means = posterior.approximation.mean - np.asarray(model.inducing_cholesky()) @ mean
    difference = {"means": np.abs(means).max(), "bounds": abs(posterior.elbo[-1] / bound - 1)}
    return waits | {"peak": peak} | {f"difference of {name}": d for name, d in difference.items()}


def _ours(model: VGPMIL, bags: Bags, steps: int) -> Ascent:
    """The loop of ``coordinate_ascent``: every step with its bound."""
    form = closed_form(model, Options("exact"))
    return ascend_in_memory(form, bags, Limits(steps, 0.0), key=jax.random.key(0))


def _seconds(model: VGPMIL, bags: Bags, steps: int) -> dict[str, float]:
    """Of compilation, of all before the first step, and of steps: what more of them take longer."""
    watch = Stopwatch()
    _ours(model, bags, 1)
    compilation = watch.compile_seconds
    one, more = (_ours(model, bags, number).seconds for number in (1, 1 + steps))
    of_steps = more - one
    return {"start": one - of_steps / steps, "compile": compilation, "steps": of_steps}


def _seconds_on_a_mesh(model: VGPMIL, bags: Bags, steps: int) -> float:
    """Of a step: what a fit of more steps takes longer."""
    mesh = jax.make_mesh((jax.device_count(),), ("bags",))

    def seconds(max_steps: int) -> float:
        options = {"max_steps": max_steps, "tolerance": 0.0, "mesh": mesh, "num_draws": 10}
        return coordinate_ascent(model, bags, seed=0, **options).seconds

    return (seconds(5 + steps) - seconds(5)) / steps


def _plain_numpy(model: VGPMIL, bags: Bags, steps: int) -> tuple[np.ndarray, float, float]:
    """The updates as one would write them down, in the same whitened coordinates."""
    kernel, points = model.kernel, model.inducing_points
    identity = np.eye(len(points))
    root = cholesky(
        _rbf(kernel, points, points) + model.jitter * kernel.variance * identity, lower=True
    )
    projection = solve_triangular(root, _rbf(kernel, points, bags.instances), lower=True).T
    residual = kernel.variance - np.sum(projection**2, axis=1)
    latent, tilt = np.zeros(len(residual)), np.full(len(residual), kernel.variance**0.5)
    mean, bound = np.zeros(len(points)), -np.inf
    started = time.perf_counter()
    probability, _ = _labels(model, bags, latent)
    for _ in range(steps):
        theta = np.tanh(tilt / 2) / (2 * tilt)
        precision = identity + projection.T @ (theta[:, None] * projection)
        factor = cholesky(precision, lower=True)
        mean = cho_solve((factor, True), projection.T @ (probability - 0.5))
        latent = projection @ mean
        variance = np.sum(solve_triangular(factor, projection.T, lower=True) ** 2, axis=0)
        tilt = np.sqrt(latent**2 + variance + residual)
        probability, log_normaliser = _labels(model, bags, latent)
        trace = np.sum(solve_triangular(factor, identity, lower=True) ** 2)
        divergence = 0.5 * (trace + mean @ mean - len(mean)) + np.log(np.diag(factor)).sum()
        of_instances = -np.logaddexp(tilt / 2, -tilt / 2) - 0.5 * latent
        bound = log_normaliser + of_instances.sum() - divergence
    return mean, bound, time.perf_counter() - started


def _labels(model: VGPMIL, bags: Bags, latent: np.ndarray) -> tuple[np.ndarray, float]:
    """q(y_n = 1), and what labels add to the bound."""
    log_all = np.add.reduceat(np.logaddexp(0.0, latent), bags.starts)
    none, sharpness = np.exp(-log_all), model.sharpness
    is_positive = bags.labels == 1
    match = np.where(is_positive, sharpness - (sharpness - 1) * none, 1 + (sharpness - 1) * none)
    boost = np.where(is_positive, sharpness, 1.0) / match
    log_normaliser = np.sum(log_all + np.log(match)) - bags.num_bags * np.log1p(sharpness)
    return expit(latent) * boost[bags.bag_index], log_normaliser


def _rbf(kernel: RBF, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    distance = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2 * left @ right.T
    return kernel.variance * np.exp(-0.5 * np.maximum(distance, 0) / kernel.length_scale**2)


def _matrix_product_speed() -> float:
    """GFLOP/s of a large dense product in 64 bit, the best of five."""
    square = jnp.asarray(np.random.default_rng(0).normal(size=(2000, 2000)))
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(square, square))
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        jax.block_until_ready(product(square, square))
        seconds.append(time.perf_counter() - started)
    return 2 * 2000**3 / min(seconds) / 1e9


if __name__ == "__main__":
    main()
