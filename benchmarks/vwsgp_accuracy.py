"""How well VWSGP classifies bags: musk1, elephant and fox on their published folds.

Coordinate ascent, the kernel's variance and length scale learned by the bound on the training bags,
beside the kernel that `VWSGP.for_bags` starts from. Where the bound is highest at v → 0 the learned
model is the null model, which gives every bag the probability ½ (within rounding): the table counts
these folds.

    MILZOO_DATA=… python benchmarks/vwsgp_accuracy.py [--toy] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float
from milzoo.datasets import Bags, load, published_folds
from milzoo.inference import Posterior, coordinate_ascent
from milzoo.inference.closed_form.sparse_gp import InducingApproximation
from milzoo.inference.runtime.programs import Stopwatch, compile_seconds
from milzoo.models import RBF, VWSGP
from milzoo.models.numerics.quadrature import log_expected_sigmoid, logistic_rule
from milzoo.models.numerics.threads import one_lapack_thread
from sklearn.metrics import log_loss, roc_auc_score

NAMES = ("musk1", "elephant", "fox")
JITTER = 1e-6
# A learned variance below this is on its way to 0.
NULL_VARIANCE = 1e-3


@dataclass(frozen=True)
class Protocol:
    """What was run: printed under the table and written to the JSON."""

    names: tuple[str, ...]
    repetitions: int
    folds: int
    num_inducing: int
    start_variances: tuple[float, ...]
    start_length_scales: tuple[float, ...]  # in units of √D
    max_steps: int
    tolerance: float
    seed: int

    @classmethod
    def full(cls, repetitions: int, num_inducing: int, seed: int) -> Protocol:
        return cls(
            names=NAMES,
            repetitions=repetitions,
            folds=10,
            num_inducing=num_inducing,
            start_variances=(0.001, 0.01, 0.1, 1.0, 10.0),
            start_length_scales=(0.5, 1.0, 2.0, 4.0),
            max_steps=1000,
            tolerance=1e-6,
            seed=seed,
        )

    @classmethod
    def toy(cls, seed: int) -> Protocol:
        return replace(
            cls.full(repetitions=1, num_inducing=15, seed=seed),
            names=("musk1",),
            folds=2,
            start_variances=(1.0,),
            start_length_scales=(1.0, 2.0),
            max_steps=20,
        )

    @property
    def kernels(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """Where each row starts from, v and ℓ/√D: "default" stays there, "learned" moves on."""
        starts = tuple(product(self.start_variances, self.start_length_scales))
        return {"learned": starts, "default": ((0.5, 1.0),)}


# --------------------------------------------------------------------- the closed form on a fold


class Fold(NamedTuple):
    """One test fold.

    Attributes
    ----------
    bags : Bags
        All of them, standardised by the training bags.
    held_out : array (B,)
        Which are tested.
    inducing_points : array (M, D)
        Z, k-means centres of the training bags.
    """

    bags: Bags
    held_out: Bool[np.ndarray, " B"]
    inducing_points: Float[np.ndarray, "M D"]

    @classmethod
    def of(cls, bags: Bags, held_out: np.ndarray, num_inducing: int, seed: int) -> Fold:
        train = bags.select(~held_out)
        model = VWSGP.as_published(train.standardize(), num_inducing=num_inducing, seed=seed)
        return cls(bags.standardize(train), held_out, model.inducing_points)

    def ascend(self, kernel: RBF, **options: Any) -> Posterior:
        """Coordinate ascent on the training bags, from this kernel."""
        model = VWSGP(kernel, self.inducing_points, jitter=JITTER)
        train = self.bags.select(~self.held_out)
        return coordinate_ascent(model, train, seed=0, num_draws=1, **options)


class Fit(NamedTuple):
    """The result of a fit of one fold."""

    kernel: RBF
    bound: float  # of the training bags
    steps: int
    evidence_mean: Float[Array, " B"]  # of s_b of all bags under q
    evidence_scale: Float[Array, " B"]
    independent_scale: Float[Array, " B"]  # of s_b, were the f_n independent under q

    def bag_probability(self) -> np.ndarray:
        """P(T_b = 1) = E σ(s_b), the integral over q(u) done exactly."""
        return _probability(self.evidence_mean, self.evidence_scale)

    def independent_probability(self) -> np.ndarray:
        """The paper's: f_n drawn one by one from their marginals, their covariances dropped."""
        return _probability(self.evidence_mean, self.independent_scale)


def _probability(mean: Float[Array, " B"], scale: Float[Array, " B"]) -> np.ndarray:
    return np.exp(log_expected_sigmoid(mean, scale, logistic_rule(float(scale.max()))))


def fit_given_kernel(fold: Fold, starts: list[RBF], *, max_steps: int, tolerance: float) -> Fit:
    """The bound raised by q(u) alone, under the first of the kernels."""
    return _fit(fold, fold.ascend(starts[0], max_steps=max_steps, tolerance=tolerance))


def fit_learned(fold: Fold, starts: list[RBF], *, max_steps: int, tolerance: float) -> Fit:
    """The bound raised by the kernel too.

    Parameters
    ----------
    fold : Fold
    starts : list of RBF
        The ascent starts from the kernel whose bound, raised by q(u) alone, is the highest.
    max_steps : int
    tolerance : float

    Returns
    -------
    Fit
    """

    def bound_at(kernel: RBF) -> float:
        posterior = fold.ascend(kernel, max_steps=max_steps, tolerance=1e-5)
        assert posterior.elbo is not None
        return float(posterior.elbo[-1])

    options = {"max_steps": max_steps, "tolerance": tolerance, "learn_hyperparameters": True}
    return _fit(fold, fold.ascend(max(starts, key=bound_at), **options))


FITS = {"learned": fit_learned, "default": fit_given_kernel}


def _fit(fold: Fold, posterior: Posterior) -> Fit:
    assert isinstance(posterior.approximation, InducingApproximation)
    assert isinstance(posterior.model, VWSGP)
    assert posterior.elbo is not None
    q = posterior.approximation
    moments = _evidence_under(posterior.model, fold.bags, q.mean, q.scale_tril)
    return Fit(posterior.model.kernel, float(posterior.elbo[-1]), len(posterior.elbo), *moments)


@jax.jit
def _evidence_under(
    model: VWSGP, bags: Bags, mean: Float[Array, " M"], scale_tril: Float[Array, "M M"]
) -> tuple[Float[Array, " B"], Float[Array, " B"], Float[Array, " B"]]:
    """Mean and sd of s_b under q(u), and the sd were the f_n independent."""
    rows, alone = model.accumulated(bags), model.conditional(bags)
    root = solve_triangular(rows.cholesky, scale_tril, lower=True)
    variance = jnp.sum((rows.projection @ root) ** 2, axis=1)
    by_instance = jnp.sum((alone.projection @ root) ** 2, axis=1)
    independent = jnp.zeros_like(variance).at[bags.bag_index].add(by_instance)
    return (
        rows.mean(mean),
        jnp.sqrt(variance + rows.residual_variance),
        jnp.sqrt(independent + rows.residual_variance),
    )


# --------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Outcome:
    """One test fold."""

    held_out: np.ndarray
    probability: np.ndarray  # of the bags held out
    independent_probability: np.ndarray
    variance: float
    length_scale: float  # in units of √D
    gain: float
    steps: int
    seconds: float


@dataclass(frozen=True)
class Row:
    """One line of the table: scores by repetition, folds pooled; the rest by fold."""

    name: str
    kernel: str
    accuracy: list[float]
    auc: list[float]
    log_loss: list[float]
    independent_log_loss: list[float]
    gain: list[float]  # of the bound over that of the null model, in nats
    variance: list[float]
    length_scale: list[float]  # in units of √D
    steps: list[int]
    seconds: list[float]  # k-means and compilation apart
    compile_seconds: float

    @property
    def null_folds(self) -> int:
        """Where the bound has sent v to 0."""
        return int(np.sum(np.array(self.variance) < NULL_VARIANCE))


def rows_of(name: str, protocol: Protocol, report: Callable[[str], None]) -> Iterator[Row]:
    """Every kernel on every fold of a data set."""
    bags, numbers = load(name), published_folds(name)
    for kernel, starts in protocol.kernels.items():
        scale = float(np.sqrt(bags.num_features))
        kernels = [RBF(variance, length * scale) for variance, length in starts]
        compiled = compile_seconds()
        by_repetition: list[list[Outcome]] = []
        for repetition in range(protocol.repetitions):
            outcomes = []
            for number in range(1, protocol.folds + 1):
                held_out = numbers[:, repetition] == number
                fold = Fold.of(bags, held_out, protocol.num_inducing, protocol.seed)
                outcomes.append(_outcome(kernel, fold, kernels, protocol))
            by_repetition.append(outcomes)
            seconds = sum(outcome.seconds for outcome in outcomes)
            report(f"{name}, {kernel}: repetition {repetition + 1}: {seconds:.1f} s")
        compiled = compile_seconds() - compiled
        yield _row(name, kernel, by_repetition, np.asarray(bags.labels), compiled)


def _outcome(kernel: str, fold: Fold, starts: list[RBF], protocol: Protocol) -> Outcome:
    started = Stopwatch.now()
    limits = {"max_steps": protocol.max_steps, "tolerance": protocol.tolerance}
    fit = jax.block_until_ready(FITS[kernel](fold, starts, **limits))
    seconds = Stopwatch.now() - started
    # Without data s_b is 0 and each label a coin.
    null_bound = -np.log(2.0) * np.sum(~fold.held_out)
    return Outcome(
        held_out=fold.held_out,
        probability=fit.bag_probability()[fold.held_out],
        independent_probability=fit.independent_probability()[fold.held_out],
        variance=float(fit.kernel.variance),
        length_scale=float(fit.kernel.length_scale) / np.sqrt(fold.bags.num_features),
        gain=float(fit.bound - null_bound),
        steps=int(fit.steps),
        seconds=seconds,
    )


def _row(
    name: str,
    kernel: str,
    by_repetition: list[list[Outcome]],
    labels: np.ndarray,
    compile_seconds: float,
) -> Row:
    accuracy, auc, loss, independent_loss = [], [], [], []
    for outcomes in by_repetition:
        truth = np.concatenate([labels[outcome.held_out] for outcome in outcomes])
        found = np.concatenate([outcome.probability for outcome in outcomes])
        accuracy.append(float(np.mean((found > 0.5) == (truth == 1))))
        auc.append(float(roc_auc_score(truth, found)))
        loss.append(float(log_loss(truth, found, labels=[0, 1])))
        alone = np.concatenate([outcome.independent_probability for outcome in outcomes])
        independent_loss.append(float(log_loss(truth, alone, labels=[0, 1])))
    folds = [outcome for outcomes in by_repetition for outcome in outcomes]
    return Row(
        name=name,
        kernel=kernel,
        accuracy=accuracy,
        auc=auc,
        log_loss=loss,
        independent_log_loss=independent_loss,
        gain=[fold.gain for fold in folds],
        variance=[fold.variance for fold in folds],
        length_scale=[fold.length_scale for fold in folds],
        steps=[fold.steps for fold in folds],
        seconds=[fold.seconds for fold in folds],
        compile_seconds=compile_seconds,
    )


def print_table(rows: list[Row]) -> None:
    print(
        "| bags | kernel | accuracy | AUC | log loss | log loss, independent instances "
        "| ELBO above null | v | ℓ/√D | null folds | steps | s a fold | compile, s |"
    )
    print("|---" * 13 + "|")
    for row in rows:
        by_repetition = (row.accuracy, row.auc, row.log_loss, row.independent_log_loss)
        scores = " | ".join(_spread(values) for values in by_repetition)
        print(
            f"| {row.name} | {row.kernel} | {scores} | {np.mean(row.gain):.1f} "
            f"| {np.median(row.variance):.3g} | {np.median(row.length_scale):.3g} "
            f"| {row.null_folds} of {len(row.variance)} | {np.median(row.steps):g} "
            f"| {np.mean(row.seconds):.2f} | {row.compile_seconds:.1f} |"
        )


def _spread(values: list[float]) -> str:
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.3f}"


def print_protocol(protocol: Protocol, seconds: float) -> None:
    print(
        f"\nPublished folds 1–{protocol.folds} of {protocol.repetitions} repetition(s), "
        "standardised by the training bags; scores pooled over the folds of a repetition, mean ± "
        "sd over repetitions; accuracy at ½. The integral over q(u) is done exactly, without "
        f"draws.\nM = {protocol.num_inducing} k-means centres of the training bags, jitter "
        f"{JITTER:g}. Learned: coordinate ascent in q and the kernel by turns until the bound "
        f"moves by less than {protocol.tolerance:g} of its size, at most {protocol.max_steps} "
        f"steps, from the best of v in {protocol.start_variances} and ℓ/√D in "
        f"{protocol.start_length_scales} by the bound. Default: v = 0.5, ℓ = √D. Null folds: "
        f"v < {NULL_VARIANCE:g}. v, ℓ and steps are medians over folds, ELBO and seconds means.\n"
        f"Seed {protocol.seed}; {os.cpu_count()} cores; {seconds:.0f} s."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="musk1, two folds, few steps")
    parser.add_argument("--names", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--num-inducing", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write protocol and rows")
    options = parser.parse_args()
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    if beside.is_dir():
        os.environ.setdefault("MILZOO_DATA", str(beside))
    protocol = (
        Protocol.toy(options.seed)
        if options.toy
        else replace(
            Protocol.full(options.repetitions, options.num_inducing, options.seed),
            names=tuple(options.names),
        )
    )
    try:
        for name in protocol.names:
            published_folds(name)
    except FileNotFoundError as error:
        if not options.toy:
            sys.exit(str(error))
        print(f"skipped: {error}")
        return
    started = time.perf_counter()
    report = partial(print, file=sys.stderr, flush=True)
    with jax.enable_x64(True), one_lapack_thread():
        rows = [row for name in protocol.names for row in rows_of(name, protocol, report)]
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
