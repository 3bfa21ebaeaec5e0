"""A program: fit bags that several devices or processes share, and write down what was found.

    python fit_in_a_process.py FOLDER --name vgpmil --devices 8
    python fit_in_a_process.py FOLDER --name vgpmil --process 0 --of 2 --port 40000 [--stream]

Process i reads ``FOLDER/i/*.parquet`` and writes ``FOLDER/i/found.npz``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from milzoo.datasets import Bags, simulate_instances, stream
from milzoo.inference import coordinate_ascent
from milzoo.models import RBF, VGPMIL, VWSGP

POINTS = np.array([[-1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [1.0, -1.0], [1.0, 1.0]])
MODELS = {
    "vgpmil": VGPMIL(RBF(3.0, 1.0), POINTS, mean=-1.5),
    "vwsgp": VWSGP(RBF(0.5, 1.0), POINTS),
}


def design() -> Bags:
    """Bags of one to eleven instances."""
    return simulate_instances(50, range(1, 12), 2, seed=1)


def main() -> None:
    """As the first lines say."""
    arguments = _arguments()
    if arguments.process is not None:
        jax.distributed.initialize(
            coordinator_address=f"127.0.0.1:{arguments.port}",
            num_processes=arguments.of,
            process_id=arguments.process,
            initialization_timeout=60,
            heartbeat_timeout_seconds=arguments.heartbeat,
        )
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    folder = arguments.folder / str(arguments.process or 0)
    given = stream(folder, chunk_instances=40)
    if not arguments.stream:
        given = Bags.from_frame(pd.concat([pd.read_parquet(f) for f in folder.glob("*.parquet")]))
    found = coordinate_ascent(
        MODELS[arguments.name],
        given,
        seed=0,
        max_steps=arguments.steps,
        tolerance=0.0,
        num_draws=10,
        mesh=jax.make_mesh((jax.device_count(),), ("bags",)),
        checkpoint=folder / "steps" if arguments.checkpoint else None,
    )
    q = found.approximation
    np.savez(folder / "found.npz", elbo=found.elbo, mean=q.mean, scale_tril=q.scale_tril)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", choices=sorted(MODELS), required=True)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--process", type=int)
    parser.add_argument("--of", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--heartbeat", type=int, default=100)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    return parser.parse_args()


if __name__ == "__main__":
    main()
