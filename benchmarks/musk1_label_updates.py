"""The accuracy of label updates on musk1: three closed-form updates beside NUTS.

Rows: the exact joint distribution of a bag's labels, the paper's mean field, the plugged-in maximum
that the published codes run, and NUTS on the marginal model. Columns: bags ranked and decided by
the model's own P(T* = 1) (a noisy-or) and by the largest of their instance probabilities, and the
ELBO. Two kernels, each with μ0 = 0 and with a μ0 chosen inside the training folds.

    MILZOO_DATA=… python benchmarks/musk1_label_updates.py [--toy] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")  # one for each chain; read when JAX starts

import jax
import numpy as np
from milzoo.datasets import Bags, load, published_folds
from milzoo.inference import nuts
from milzoo.inference.closed_form.drivers import Limits, ascend_in_memory
from milzoo.inference.closed_form.sparse_gp import InducingFactor, InstanceForm, LabelUpdate
from milzoo.models import VGPMIL
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

CLOSED_FORM = ("exact", "mean_field", "plug_in_max")
ENGINES = (*CLOSED_FORM, "nuts")
PUBLISHED_SHARPNESS = 1e12  # H of the published codes; the paper prints 100
# plug_in_max ascends nothing, so that it is stopped, as in the published codes, by a count.
PLUG_IN_STEPS = 200
KERNELS = {"v=0.5, ℓ=0.3√D": (0.5, 0.3), "v=5, ℓ=√D": (5.0, 1.0)}  # v, ℓ/√D


@dataclass(frozen=True)
class Protocol:
    """What was run: printed under the table and written to the JSON."""

    repetitions: int
    nuts_repetitions: int
    folds: int
    kernels: tuple[str, ...]
    engines: tuple[str, ...]
    prior_means: tuple[float, ...]
    inner_folds: int
    num_inducing: int
    num_draws: int
    num_warmup: int
    num_samples: int
    seed: int

    @classmethod
    def full(cls, repetitions: int, nuts_repetitions: int, seed: int) -> Protocol:
        return cls(
            repetitions=repetitions,
            nuts_repetitions=min(nuts_repetitions, repetitions),
            folds=10,
            kernels=tuple(KERNELS),
            engines=ENGINES,
            prior_means=(0.0, -2.0, -4.0, -6.0, -8.0, -12.0, -16.0),
            inner_folds=3,
            num_inducing=50,
            num_draws=500,
            num_warmup=300,
            num_samples=500,
            seed=seed,
        )

    @classmethod
    def toy(cls, seed: int) -> Protocol:
        return replace(
            cls.full(1, 1, seed),
            folds=2,
            kernels=("v=5, ℓ=√D",),
            prior_means=(0.0, -6.0),
            inner_folds=2,
            num_inducing=15,
            num_draws=50,
            num_warmup=30,
            num_samples=30,
        )


# --------------------------------------------------------------------- the closed-form fits


class Fit(NamedTuple):
    """q(u) in whitened coordinates, and its ELBO on the bags learned from."""

    q: InducingFactor
    bound: float


def fit(
    model: VGPMIL,
    bags: Bags,
    held_out: np.ndarray,
    label_update: LabelUpdate,
    *,
    seed: int,
    tolerance: float = 1e-8,
) -> Fit:
    """Coordinate ascent on the bags that are not held out, and the ELBO with H = 100.

    Bags that are held out are absent: so all folds have the same shapes, and mean-field labels the
    same start.
    """
    present = replace(bags, present=~held_out)
    limits = Limits(1000, tolerance)
    fitted = model
    if label_update == "plug_in_max":
        limits = Limits(PLUG_IN_STEPS, 0.0)
        fitted = replace(model, sharpness=PUBLISHED_SHARPNESS)
    form = InstanceForm(fitted, label_update=label_update)
    key = jax.random.key(seed)
    ascent = ascend_in_memory(form, present, limits, key=key)
    bound = ascent.elbo[-1]
    if label_update == "plug_in_max":
        honest = replace(form, model=model).in_memory(present)
        bound = bound_given_labels(honest, honest.chunk(present), ascent.q, ascent.local)
    return Fit(ascent.q, float(bound))


@jax.jit
def bound_given_labels(
    form: InstanceForm, bags: Bags, q: InducingFactor, logits: jax.Array
) -> jax.Array:
    """ELBO of q(u) and independent labels, tilts at their optimum.

    For ``plug_in_max`` the mean-field bound, since its labels are independent too.
    """
    statistics, _ = form.e_step(form.prepare(bags), q, logits, updates_labels=False)
    return form.elbo(q, statistics)


def draws_of(model: VGPMIL, q: InducingFactor, standard: np.ndarray) -> dict:
    """Draws of u = L(m + R⁻ᵀz)."""
    deviation = np.asarray(q.covariance_root) @ standard.T
    whitened = np.asarray(q.mean)[:, None] + deviation
    return {"inducing_value": (np.asarray(model.inducing_cholesky()) @ whitened).T}


# --------------------------------------------------------------------- one fold


@dataclass(frozen=True)
class Fold:
    """One test fold; all bags are standardised by the training bags, in which Z is found too."""

    bags: Bags
    held_out: np.ndarray  # (B,) bool
    model: VGPMIL  # with μ0 = 0
    seed: int

    @classmethod
    def of(cls, bags: Bags, held_out: np.ndarray, kernel: str, protocol: Protocol) -> Fold:
        variance, scale = KERNELS[kernel]
        bags = bags.standardize(reference=bags.select(~held_out))
        model = VGPMIL.for_bags(
            bags.select(~held_out),
            num_inducing=protocol.num_inducing,
            variance=variance,
            length_scale=scale * math.sqrt(bags.num_features),
            mean=0.0,
            seed=protocol.seed,
        )
        return cls(bags, held_out, model, protocol.seed)

    def standard(self, num_draws: int) -> np.ndarray:
        """Standard normal numbers, the same for every fit of this fold."""
        size = (num_draws, len(self.model.inducing_points))
        return np.random.default_rng(self.seed).standard_normal(size)

    def best_prior_mean(self, protocol: Protocol) -> float:
        """μ0 by the bag log loss of inner cross-validation of the exact fit, training bags only."""
        losses = {mean: self.inner_loss(mean, protocol) for mean in protocol.prior_means}
        return min(losses, key=losses.__getitem__)

    def inner_loss(self, prior_mean: float, protocol: Protocol) -> float:
        model = replace(self.model, mean=prior_mean)
        train = np.flatnonzero(~self.held_out)
        labels = np.asarray(self.bags.labels)
        split = StratifiedKFold(protocol.inner_folds, shuffle=True, random_state=self.seed)
        total = 0.0
        for _, chosen in split.split(train, labels[train]):
            held_out = self.held_out.copy()
            held_out[train[chosen]] = True
            fitted = fit(model, self.bags, held_out, "exact", seed=self.seed, tolerance=1e-6)
            draws = draws_of(model, fitted.q, self.standard(min(100, protocol.num_draws)))
            probability = model.predict(draws, self.bags)["bag_probability"].mean(axis=0)
            truth = labels[train[chosen]] == 1
            found = probability[train[chosen]]
            total -= np.log(np.where(truth, found, 1 - found)).sum()
        return float(total)

    def run(self, engine: str, prior_mean: float, protocol: Protocol) -> Outcome:
        model = replace(self.model, mean=prior_mean)
        if engine == "nuts":
            posterior = nuts(
                model,
                self.bags.select(~self.held_out),
                seed=self.seed,
                num_warmup=protocol.num_warmup,
                num_samples=protocol.num_samples,
                num_chains=2,
            )
            draws, bound = posterior.stored_draws(), math.nan
        else:
            q, bound = fit(model, self.bags, self.held_out, engine, seed=self.seed)
            draws = draws_of(model, q, self.standard(protocol.num_draws))
        found = model.predict(draws, self.bags)
        instance = found["instance_probability"].mean(axis=0)
        return Outcome(
            self.held_out,
            found["bag_probability"].mean(axis=0)[self.held_out],
            np.maximum.reduceat(instance, self.bags.starts)[self.held_out],
            bound,
        )


@dataclass(frozen=True)
class Outcome:
    """What one engine says of one test fold, and its bound on the training bags."""

    held_out: np.ndarray
    noisy_or: np.ndarray
    maximum: np.ndarray
    bound: float


# --------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    """One line of the table: values by repetition, folds pooled."""

    kernel: str
    prior_mean: str
    engine: str
    auc_noisy_or: list[float]
    auc_maximum: list[float]
    accuracy_noisy_or: list[float]
    accuracy_maximum: list[float]
    elbo: float | None


def rows_of(bags: Bags, protocol: Protocol, report: Callable[[str], None]) -> Iterator[Row]:
    """Every engine on every fold; each kernel once with μ0 = 0 and once with the chosen one."""
    numbers = published_folds("musk1")
    for kernel in protocol.kernels:
        outcomes: dict[tuple[str, str], list[list[Outcome]]] = {}
        chosen: Counter[float] = Counter()
        for repetition in range(protocol.repetitions):
            for number in range(1, protocol.folds + 1):
                started = time.perf_counter()
                fold = Fold.of(bags, numbers[:, repetition] == number, kernel, protocol)
                best = fold.best_prior_mean(protocol)
                chosen[best] += 1
                for engine in protocol.engines:
                    if engine == "nuts" and repetition >= protocol.nuts_repetitions:
                        continue
                    at = {mean: fold.run(engine, mean, protocol) for mean in {0.0, best}}
                    for block, mean in (("0", 0.0), ("chosen", best)):
                        by_repetition = outcomes.setdefault((block, engine), [])
                        if len(by_repetition) == repetition:
                            by_repetition.append([])
                        by_repetition[repetition].append(at[mean])
                seconds = time.perf_counter() - started
                report(f"{kernel}: repetition {repetition + 1}, fold {number}: {seconds:.1f} s")
        times = ", ".join(f"{mean:g} ({n}×)" for mean, n in sorted(chosen.items(), reverse=True))
        for (block, engine), by_repetition in sorted(outcomes.items(), key=_in_order):
            label = "0" if block == "0" else f"chosen inside: {times}"
            yield _row(kernel, label, engine, by_repetition, np.asarray(bags.labels))


def _in_order(item: tuple[tuple[str, str], list]) -> tuple[bool, int]:
    (block, engine), _ = item
    return block != "0", ENGINES.index(engine)


def _row(
    kernel: str,
    prior_mean: str,
    engine: str,
    by_repetition: list[list[Outcome]],
    labels: np.ndarray,
) -> Row:
    columns: dict[str, list[float]] = {
        f"{score}_{rule}": [] for score in ("auc", "accuracy") for rule in ("noisy_or", "maximum")
    }
    for folds in by_repetition:
        truth = np.concatenate([labels[fold.held_out] for fold in folds])
        for rule in ("noisy_or", "maximum"):
            found = np.concatenate([getattr(fold, rule) for fold in folds])
            columns[f"auc_{rule}"].append(float(roc_auc_score(truth, found)))
            columns[f"accuracy_{rule}"].append(float(np.mean((found > 0.5) == (truth == 1))))
    bound = float(np.mean([fold.bound for folds in by_repetition for fold in folds]))
    return Row(kernel, prior_mean, engine, **columns, elbo=None if math.isnan(bound) else bound)


def print_table(rows: list[Row]) -> None:
    header = f"{'':<14}{'AUC noisy-or':>15}{'AUC maximum':>15}"
    header += f"{'acc. noisy-or':>15}{'acc. maximum':>15}{'ELBO':>9}"
    block = None
    for row in rows:
        if (row.kernel, row.prior_mean) != block:
            block = (row.kernel, row.prior_mean)
            print(f"\n{row.kernel}, μ0 {'= 0' if row.prior_mean == '0' else row.prior_mean}")
            print(header)
        values = (row.auc_noisy_or, row.auc_maximum, row.accuracy_noisy_or, row.accuracy_maximum)
        bound = "" if row.elbo is None else f"{row.elbo:.1f}"
        print(f"{row.engine:<14}" + "".join(f"{_spread(v):>15}" for v in values) + f"{bound:>9}")


def _spread(values: list[float]) -> str:
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.3f}"


def print_protocol(protocol: Protocol, seconds: float) -> None:
    print(
        f"\nmusk1, published folds 1–{protocol.folds} of {protocol.repetitions} repetition(s), "
        f"standardised by the training bags; scores pooled over the folds of a repetition, mean ± "
        f"sd over repetitions (nuts: the first {protocol.nuts_repetitions} only); accuracy at ½.\n"
        f"M = {protocol.num_inducing}, H = 100, jitter 1e-6; plug_in_max fitted with "
        f"H = {PUBLISHED_SHARPNESS:.0e} in {PLUG_IN_STEPS} rounds, as the published codes do. "
        "ELBO: of each q under the model with H = 100, mean over folds.\n"
        f"μ0 from {protocol.prior_means} by {protocol.inner_folds}-fold bag log loss of the exact "
        "fit inside the training bags, for all rows alike.\n"
        f"{protocol.num_draws} draws of q; nuts 2 × ({protocol.num_warmup} + "
        f"{protocol.num_samples}); seed {protocol.seed}; {os.cpu_count()} cores; {seconds:.0f} s."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="one repetition, two folds, few draws")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--nuts-repetitions", type=int, default=1)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--kernels",
        nargs="+",
        type=int,
        choices=range(len(KERNELS)),
        default=[0, 1],
        help=f"numbers of {', '.join(KERNELS)}",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write protocol and rows")
    options = parser.parse_args()
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    if beside.is_dir():
        os.environ.setdefault("MILZOO_DATA", str(beside))
    try:
        published_folds("musk1")
    except FileNotFoundError as error:
        if not options.toy:
            sys.exit(str(error))
        print(f"skipped: {error}")
        return
    protocol = (
        Protocol.toy(options.seed)
        if options.toy
        else replace(
            Protocol.full(options.repetitions, options.nuts_repetitions, options.seed),
            kernels=tuple(list(KERNELS)[k] for k in options.kernels),
            engines=tuple(options.engines),
        )
    )
    started = time.perf_counter()
    with jax.enable_x64(True):
        report = partial(print, file=sys.stderr, flush=True)
        rows = list(rows_of(load("musk1"), protocol, report))
    seconds = time.perf_counter() - started
    print_table(rows)
    print_protocol(protocol, seconds)
    if options.json:
        result = {
            "protocol": asdict(protocol) | {"seconds": seconds, "cores": os.cpu_count()},
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
