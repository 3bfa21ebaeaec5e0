"""Posterior calibration of every engine at musk1: 200 refits each, compiled once.

VGPMIL with v = 5, ℓ = √D and μ0 = −8, as in ``musk1_label_updates.py``.
Truths are draws of NUTS, and each refit sees the bags twice, with the labels and with a replicate.

    MILZOO_DATA=… python benchmarks/calibration_at_musk1.py [--toy] [--refits N] [ENGINE …]
"""

from __future__ import annotations

import argparse
import time

from milzoo.datasets import load
from milzoo.diagnostics import calibration_power, posterior_calibration
from milzoo.inference import nuts
from milzoo.inference.runtime.programs import Stopwatch
from milzoo.models import VGPMIL

OPTIONS = {
    "nuts": {"num_warmup": 200, "thin": 1},
    "gibbs": {"num_warmup": 200, "thin": 70},
    "coordinate_ascent": {},
    "linear_response": {},
    "laplace": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engines", nargs="*", default=list(OPTIONS))
    parser.add_argument("--refits", type=int, default=200)
    parser.add_argument("--inducing", type=int, default=20)
    parser.add_argument("--toy", action="store_true", help="digits, two engines, four refits")
    given = parser.parse_args()
    if given.toy:
        given.engines, given.refits, given.inducing = ["coordinate_ascent", "laplace"], 4, 3
        bags = load("digits").split(0.2, seed=0)[0].standardize()
    else:
        bags = load("musk1").standardize()
    fields = {"variance": 5.0, "mean": -8.0}
    model = VGPMIL.as_published(bags, num_inducing=given.inducing, seed=0, **fields)
    chains = {"num_warmup": 20, "num_samples": 20} if given.toy else {}
    posterior = nuts(model, bags, seed=0, **chains)
    print(
        f"{bags.num_bags} bags, M = {given.inducing}, seed 0; truths: {posterior.status.sentence}"
    )
    power = calibration_power(given.refits, num_quantities=given.inducing + 1, seed=0)
    print(f"{power.sentence}.")
    for engine in given.engines:
        watch, started = Stopwatch(), time.perf_counter()
        found = posterior_calibration(
            posterior, engine, seed=0, simulations=given.refits, **OPTIONS[engine]
        )
        wall, of_u = time.perf_counter() - started, found.table.iloc[:-1]
        print(
            f"{engine}: {'passes' if found.is_calibrated else 'fails'}; {given.refits} refits in "
            f"{wall:.0f} s, {watch.compile_seconds:.0f} s of them compilation; truth in posterior "
            f"sds: rms {of_u['rms_deviation'].min():.2f} to {of_u['rms_deviation'].max():.2f}, "
            f"mean {of_u['rms_deviation'].mean():.2f}; not uniform: {len(found.not_uniform)} of "
            f"{len(found.pit)}; ESS per draw {found.relative_efficiency:.2f}"
        )
        print(f"  {found.sentences[0]}")


if __name__ == "__main__":
    main()
