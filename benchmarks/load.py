"""What 2,000,000 instances ask of time and memory, in memory and as a stream.

    python benchmarks/load.py            # 2,000,000 × 20 in bags of 20, M = 200
    python benchmarks/load.py --toy      # small, to see that it runs

Instances are made up and written as 64-bit arrays into a temporary folder, which ``--folder`` can
move. Each row is a program of its own: it makes a model of the first 1,000 bags, reads the data, or
opens the stream, fits ten steps of coordinate ascent and writes predictions to a Parquet file.
Memory is the peak above what the program has when the fit, or the prediction, begins: above the
data, therefore. Seconds are those that a caller waits for, compilation included.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from milzoo.datasets import Bags, stream
from milzoo.inference import coordinate_ascent
from milzoo.models import VGPMIL, VWSGP
from rich.console import Console
from rich.table import Table

BAG_SIZE, NUM_FEATURES, STEPS = 20, 20, 10
MODELS = {"vgpmil": VGPMIL, "vwsgp": VWSGP}
COLUMNS = ("model", "bags", "fit, s", "above, GB", "predict, s", "above, GB")


def main() -> None:
    arguments = _arguments()
    if arguments.row is not None:
        print(json.dumps(_measured(**json.loads(arguments.row))))
        return
    size, num_inducing, num_draws = (
        (4_000, 10, 10) if arguments.toy else (arguments.size, 200, arguments.draws)
    )
    console = Console(width=100)
    console.print(
        f"{size:,} × {NUM_FEATURES}, bags of {BAG_SIZE}, M = {num_inducing}, {STEPS} steps, "
        f"{num_draws} draws, {os.cpu_count()} cores, seed {arguments.seed}"
    )
    table = Table(*COLUMNS)
    with TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = str(Path(temporary) / "bags")
        _write(Path(folder), size, arguments.seed)
        for model in ["vwsgp"] if arguments.toy else MODELS:
            for source in ("in memory", "stream"):
                given = {"folder": folder, "model": model, "source": source}
                given |= {"num_inducing": num_inducing, "num_draws": num_draws}
                command = [sys.executable, __file__, "--row", json.dumps(given)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                table.add_row(model, source, *(f"{number:.2f}" for number in found))
    console.print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=2_000_000)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--folder")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser.parse_args()


def _write(folder: Path, size: int, seed: int) -> None:
    random, num_bags = np.random.default_rng(seed), size // BAG_SIZE
    folder.mkdir()
    np.save(folder / "instances.npy", random.normal(size=(size, NUM_FEATURES)))
    np.save(folder / "bag_index.npy", np.repeat(np.arange(num_bags), BAG_SIZE))
    np.save(folder / "labels.npy", random.integers(0, 2, num_bags))


def _measured(
    folder: str, model: str, source: str, num_inducing: int, num_draws: int
) -> tuple[float, ...]:
    """Seconds and gigabytes of a fit, and of predictions."""
    first = next(iter(stream(folder, chunk_instances=BAG_SIZE * 1000)))
    made = MODELS[model].for_bags(first, num_inducing, seed=0)
    bags: Any = _in_memory(Path(folder)) if source == "in memory" else stream(folder)
    del first
    options = {"max_steps": STEPS, "tolerance": 0.0, "num_draws": num_draws}
    posterior, *of_fit = _watched(lambda: coordinate_ascent(made, bags, seed=0, **options))
    file = Path(folder).parent / "predictions.parquet"
    _, *of_predictions = _watched(lambda: posterior.predict_to_parquet(bags, file))
    return *of_fit, *of_predictions


def _in_memory(folder: Path) -> Bags:
    arrays = (np.load(folder / f"{name}.npy") for name in ("instances", "bag_index", "labels"))
    return Bags.from_arrays(*arrays)


def _watched(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call returns, its seconds, and its peak of memory above that at its begin, in GB."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, begin = _memory("VmRSS"), time.perf_counter()
    found = call()
    return found, time.perf_counter() - begin, _memory("VmHWM") - before


def _memory(kind: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{kind}:\s+(\d+) kB", status).group(1)) / 1e6


if __name__ == "__main__":
    main()
