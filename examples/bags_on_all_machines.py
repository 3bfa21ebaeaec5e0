"""Fit bags that no memory holds on all devices of all machines, and write down predictions.

    python examples/bags_on_all_machines.py DATA --out OUT
    srun python examples/bags_on_all_machines.py DATA --out OUT --cluster

DATA has a folder of Parquet files for each process, 0, 1, …; every process reads its own, and
writes what it predicts of them to ``OUT/predictions-….parquet``. With ``--cluster`` JAX asks the
launcher (SLURM, Open MPI, Kubernetes) who the others are; without one of these, name the first
process and say who this is: ``--coordinator HOST:PORT --processes 2 --process 0``. Started again
after a crash, all go on where they were.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
from milzoo.datasets import stream
from milzoo.inference import coordinate_ascent
from milzoo.models import VGPMIL


def main() -> None:
    """As the first lines say."""
    arguments = _arguments()
    if arguments.cluster:
        jax.distributed.initialize()
    elif arguments.coordinator:
        jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    number = jax.process_index()
    own = stream(arguments.data / str(number))
    # All processes need the same model: all choose inducing points from the same bags.
    first_bags = next(iter(stream(arguments.data / "0")))
    model = VGPMIL.for_bags(first_bags, num_inducing=arguments.inducing)
    fit = coordinate_ascent(
        model,
        own,
        seed=0,
        mesh=jax.make_mesh((jax.device_count(),), ("bags",)),
        checkpoint=arguments.out / f"steps-{number}",
    )
    fit.predict_to_parquet(own, arguments.out / f"predictions-{number}.parquet", mass=0.9)
    if number == 0:
        fit.save(arguments.out / "fit.nc")
        print(f"{fit.status.sentence}; the bound is {fit.elbo[-1]:.2f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--inducing", type=int, default=50)
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--coordinator")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
