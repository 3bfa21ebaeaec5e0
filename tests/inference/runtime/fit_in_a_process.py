"""A program: fit bags that several devices or processes share, and write down what was found.

    python fit_in_a_process.py FOLDER --name vgpmil --devices 8
    python fit_in_a_process.py FOLDER --name vgpmil --process 0 --of 2 --port 40000 [--stream]

Process i reads ``FOLDER/i/*.parquet`` and writes ``FOLDER/i/found.npz``.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from milzoo.datasets import Bags, simulate_instances, stream
from milzoo.inference import Posterior, coordinate_ascent, gibbs, natural_gradient, nuts
from milzoo.inference.closed_form import dpmil
from milzoo.models import DPMIL, RBF, VGPMIL, VWSGP

POINTS = np.array([[-1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [1.0, -1.0], [1.0, 1.0]])
MODELS = {
    "vgpmil": VGPMIL(RBF(3.0, 1.0), POINTS, mean=-1.5),
    "vwsgp": VWSGP(RBF(0.5, 1.0), POINTS),
    "dpmil": DPMIL(np.zeros(2), np.eye(2), 3.0, max_components=3),
}
CHAINS = {"num_chains": 6, "num_warmup": 120, "num_samples": 130}
# Of some 300 instances every third, so that who is chosen depends on what others have.
MAX_SAMPLE = 100


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
    dpmil.MAX_SAMPLE = MAX_SAMPLE
    folder = arguments.folder / str(arguments.process or 0)
    if arguments.chains:
        np.savez(folder / "draws.npz", **_chains(arguments, folder).stored_draws())
        return
    given = stream(folder, chunk_instances=40)
    if not arguments.stream:
        given = _in_memory(folder)
    common = {
        "seed": 0,
        "max_steps": arguments.steps,
        "num_draws": 10,
        "mesh": jax.make_mesh((jax.device_count(),), ("bags",)),
        "checkpoint": folder / "steps" if arguments.checkpoint else None,
    }
    if arguments.batches:
        found = natural_gradient(MODELS[arguments.name], given, batch_instances=60, **common)
    else:
        found = coordinate_ascent(MODELS[arguments.name], given, tolerance=0.0, **common)
    q = {name: value for name, value in asdict(found.approximation).items() if value is not None}
    np.savez(folder / "found.npz", elbo=found.elbo, **q)


def _in_memory(folder: Path) -> Bags:
    return Bags.from_frame(pd.concat([pd.read_parquet(file) for file in folder.glob("*.parquet")]))


def _chains(arguments: argparse.Namespace, folder: Path) -> Posterior:
    return {"nuts": nuts, "gibbs": gibbs}[arguments.chains](
        MODELS[arguments.name],
        _in_memory(folder),
        seed=0,
        **CHAINS,
        mesh=jax.make_mesh((jax.device_count(),), ("bags",)),
        checkpoint=folder / "steps" if arguments.checkpoint else None,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", choices=sorted(MODELS), required=True)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--process", type=int)
    parser.add_argument("--of", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--heartbeat", type=int, default=100)
    parser.add_argument("--chains", choices=["nuts", "gibbs"])
    parser.add_argument("--batches", action="store_true")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    return parser.parse_args()


if __name__ == "__main__":
    main()
