"""VGPMIL and VWSGP on bags that are read from disk: what a step costs as N grows.

    python benchmarks/scale.py                 # 10⁵, 10⁶ and 10⁷ × 100 in bags of 20, M = 200
    python benchmarks/scale.py --sizes 100000 1000000
    python benchmarks/scale.py --toy           # small, to see that it runs

Instances are made up and written as 32-bit arrays into a temporary folder (4 GB for 10⁷), which
``--folder`` can move. The kernel is in 64 or in 32 bit, sums over instances are in 64. Each row of
the table is a program of its own, so that the peak of its memory is its own. It fits the smallest N
first: what that takes longer than the same again, while JAX starts and memory is new, is told
below the table. Then it fits N, as often as there is time for. Seconds are those of a fit, without
compilation. A machine may have other users, so the best is told of fits and of steps, and of the
products that they are compared with: of two 3000 × 3000 matrices of the kernel's type on all cores,
before the fits and after them. In the fraction of a product the distances are counted as 2 N M D,
and a triangular or symmetric product as N M²; and so are VWSGP's products over bags. At the end one
core is compared with two processes that share the bags, a core for each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from milzoo.datasets import stream
from milzoo.inference import coordinate_ascent
from milzoo.models import RBF, VGPMIL, VWSGP
from rich.console import Console
from rich.table import Table

BAG_SIZE = 20
# Instances that the steps of a fit go through, if 3 to 15 steps do: of short ones there are more.
SUMMED = 2_000_000
# The same of all fits of a row. Of VGPMIL one will do: its steps are several, and they are judged.
FITTED = {"vgpmil": SUMMED, "vwsgp": 10 * SUMMED}
FEWEST_FITS, MOST_FITS = {"vgpmil": 1, "vwsgp": 3}, 10
# Counted as M² an instance beside the distances: V, variances and Gram matrix. VWSGP has norms of V
# for instances, and those three for bags.
PRODUCTS = {"vgpmil": 3, "vwsgp": 1 + 3 / BAG_SIZE}
COLUMNS = (
    *("model", "kernel", "N", "processes × cores", "first pass, s", "a step, s", "µs/instance"),
    *("fraction of a product", "peak, GB"),
)


def main() -> None:
    arguments = _arguments()
    if arguments.fit is not None:
        print(json.dumps(_fit(json.loads(arguments.fit))))
        return
    sizes = [2_000] if arguments.toy else arguments.sizes
    num_features, num_inducing = (5, 10) if arguments.toy else (100, 200)
    console = Console(width=120)
    console.print(
        f"{num_features} features, bags of {BAG_SIZE}, M = {num_inducing}, "
        f"{os.cpu_count()} cores, seed {arguments.seed}"
    )
    table = Table(*COLUMNS)
    starts: list[float] = []
    with TemporaryDirectory(dir=arguments.folder) as folder:
        design = {"num_features": num_features, "num_inducing": num_inducing}
        for size in sizes:
            paths = _written(Path(folder), size, num_features, arguments.seed)
            for model, dtype in product(PRODUCTS, ("float64", "float32")[arguments.toy :]):
                chosen = design | {"model": model, "dtype": dtype}
                row, start = _row(chosen, size, min(sizes), paths[:1], [None])
                table.add_row(*row)
                starts += [start] if size == min(sizes) else []
        size = sizes[min(1, len(sizes) - 1)]
        paths = _written(Path(folder), size, num_features, arguments.seed)
        for model in ["vwsgp"] if arguments.toy else PRODUCTS:
            for cores in [[0], [0, 1]][int(arguments.toy) : os.cpu_count()]:
                given = paths[:1] if len(cores) == 1 else paths[1:]
                chosen = design | {"model": model, "dtype": "float64"}
                table.add_row(*_row(chosen, size, min(sizes), given, cores)[0])
    console.print(table)
    console.print(
        f"A program's first fit of N = {min(sizes):,} took {min(starts):.2f} to {max(starts):.2f} "
        "s longer than the same again"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--folder")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    return parser.parse_args()


def _written(folder: Path, size: int, num_features: int, seed: int) -> list[Path]:
    """Folders with all bags, with the first half of them, and with the second."""
    half = size // BAG_SIZE // 2 * BAG_SIZE
    parts = {f"{size}": (0, size), f"{size}-0": (0, half), f"{size}-1": (half, size)}
    for name, (first, end) in parts.items():
        path = folder / name
        if not path.exists():
            path.mkdir()
            _write(path, first, end, num_features, seed)
    return [folder / name for name in parts]


def _write(path: Path, first: int, end: int, num_features: int, seed: int) -> None:
    """Rows ``first`` to ``end``; what a row holds does not depend on the file."""
    num_bags = (end - first) // BAG_SIZE
    np.save(path / "bag_index.npy", np.repeat(np.arange(num_bags), BAG_SIZE))
    np.save(path / "labels.npy", (np.arange(num_bags) + first // BAG_SIZE) % 2)
    shape = (end - first, num_features)
    rows = np.lib.format.open_memmap(path / "instances.npy", "w+", np.float32, shape)
    for start in range(first, end, BAG_SIZE * 500):
        random = np.random.default_rng([seed, start])
        stop = min(start + BAG_SIZE * 500, end)
        rows[start - first : stop - first] = random.standard_normal(
            (stop - start, num_features), dtype=np.float32
        )
    rows.flush()


def _row(
    design: dict[str, Any],
    size: int,
    smallest: int,
    paths: list[Path],
    cores: Sequence[int | None],
) -> tuple[tuple[str, ...], float]:
    """Fits by as many processes as there are folders; and what starting took, if N is smallest."""
    model = design["model"]
    speeds = [_matrix_product_speed(design["dtype"])]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for number, path in enumerate(paths):
        own = {"path": str(path), "number": number, "of": len(paths), "port": port}
        own["steps"] = int(np.clip(SUMMED / size, 3, 15))
        own["fits"] = int(np.clip(FITTED[model] / size, FEWEST_FITS[model], MOST_FITS))
        own["core"] = cores[number]
        own["before"] = str(path.with_name(path.name.replace(str(size), str(smallest))))
        command = [sys.executable, __file__, "--fit", json.dumps(design | own)]
        devices = os.cpu_count() if cores[number] is None else 1
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        )
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    speeds.append(_matrix_product_speed(design["dtype"]))
    started, first, step = (
        max(one[name] for one in found) for name in ("started", "first", "step")
    )
    # A step of VWSGP is over bags; it is the first pass that is over instances.
    seconds = step if model == "vgpmil" else first
    inducing = design["num_inducing"]
    needed = 2 * inducing * design["num_features"] + PRODUCTS[model] * inducing**2
    used = f"{len(paths)} × {os.cpu_count() if cores[0] is None else 1}"
    row = (
        *(model, design["dtype"], f"{size:,}", used, f"{first:.2f}", f"{step:.2f}"),
        f"{1e6 * seconds / size:.2f}",
        f"{100 * needed * size / seconds / max(speeds):.0f} %",
        f"{max(one['peak'] for one in found):.2f}",
    )
    return row, started - first


def _fit(design: dict[str, Any]) -> dict[str, float]:
    """What a process does."""
    if design["core"] is not None:
        os.sched_setaffinity(0, {design["core"]})
    if design["of"] > 1:
        jax.distributed.initialize(f"127.0.0.1:{design['port']}", design["of"], design["number"])
    before, *found = [
        _seconds(design, path) for path in [design["before"]] + design["fits"] * [design["path"]]
    ]
    first, step = np.min(found, axis=0)
    return {"started": before[0], "first": first, "step": step, "peak": _peak_memory()}


def _seconds(design: dict[str, Any], path: str) -> tuple[float, float]:
    """Of a fit: the first pass, and the best of the steps."""
    mesh = jax.make_mesh((jax.device_count(),), ("bags",))
    points = np.random.default_rng(1).normal(size=(design["num_inducing"], design["num_features"]))
    length_scale = design["num_features"] ** 0.5
    models = {
        "vgpmil": VGPMIL(RBF(0.5, length_scale), points),
        "vwsgp": VWSGP(RBF(1 / BAG_SIZE, length_scale), points),
    }
    with TemporaryDirectory() as folder:
        fit = coordinate_ascent(
            models[design["model"]],
            stream(path),
            seed=0,
            max_steps=design["steps"],
            tolerance=0.0,
            num_draws=10,
            dtype=design["dtype"],
            mesh=mesh,
            checkpoint=folder,
        )
        blocks = sorted(Path(folder).glob("block_*.npz"))
        steps = [float(np.load(block)["second 0"]) for block in blocks]
    return fit.seconds - sum(steps), min(steps)


def _peak_memory() -> float:
    """In GB, of this program; what getrusage tells has that of its parent in it."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1e6


def _matrix_product_speed(dtype: str) -> float:
    """FLOP/s of a large dense product, the best of five."""
    with jax.enable_x64(True):
        square = jnp.asarray(np.random.default_rng(0).normal(size=(3000, 3000)), dtype)
        product = jax.jit(jnp.matmul)
        jax.block_until_ready(product(square, square))
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            jax.block_until_ready(product(square, square))
            seconds.append(time.perf_counter() - started)
    return 2 * 3000**3 / min(seconds)


if __name__ == "__main__":
    main()
