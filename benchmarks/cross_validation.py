"""Ten folds of musk1 and elephant: what the first fit takes, and what those behind it take.

    MILZOO_DATA=… python benchmarks/cross_validation.py           # published folds, M = 50
    MILZOO_DATA=… python benchmarks/cross_validation.py --toy     # musk1, three folds, M = 5

    git worktree add ../before 89cc84b
    MILZOO_DATA=… python benchmarks/cross_validation.py --before ../before  # and that checkout

Each fold is fitted and predicted as a user would, by a plain loop: bags are standardised by the
training bags, and so are the inducing points found. Programs are compiled in the first fold; from
then on folds of like size share them. Beside them scikit-learn's support vector machine on the set
kernel of Gärtner et al. (2002): the mean of an RBF kernel over all pairs of instances of two bags,
normalised, with C = 1 and the length scale √D that the models start from. Nothing is chosen.

All folds are run twice: the first time with what they compile, the second time compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
from jaxtyping import Bool, Float
from milzoo.datasets import Bags, load, published_folds
from milzoo.inference import coordinate_ascent, maximum_a_posteriori
from milzoo.models import VGPMIL, VWSGP, CardinalityModel
from rich.console import Console
from rich.table import Table
from scipy.special import expit
from sklearn.metrics import roc_auc_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

WINGS = ("datasets", "models", "inference", "estimators", "diagnostics", "cli")

# Training and test bags → scores of the test bags; bags above ½ are positive.
type Method = Callable[[Bags, Bags], Float[np.ndarray, " B"]]


@dataclass(frozen=True)
class Protocol:
    """The data and the size of the fits."""

    names: tuple[str, ...]
    num_folds: int
    num_inducing: int
    max_steps: int
    seed: int

    @classmethod
    def of(cls, *, toy: bool, seed: int) -> Protocol:
        if toy:
            return cls(("musk1",), 3, 5, 20, seed)
        return cls(("musk1", "elephant"), 10, 50, 1000, seed)

    def methods(self) -> dict[str, Method]:
        """By name."""
        return {
            "VWSGP, coordinate_ascent": self.vwsgp,
            "VGPMIL, coordinate_ascent": self.vgpmil,
            "CardinalityModel, maximum_a_posteriori": self.cardinality,
            "SVC, set kernel": set_kernel_classifier,
        }

    def vwsgp(self, train: Bags, test: Bags) -> Float[np.ndarray, " B"]:
        return self._by_ascent(
            VWSGP.as_published(train, self.num_inducing, seed=self.seed), train, test
        )

    def vgpmil(self, train: Bags, test: Bags) -> Float[np.ndarray, " B"]:
        model = VGPMIL.as_published(train, self.num_inducing, seed=self.seed)
        return self._by_ascent(model, train, test)

    def _by_ascent(self, model: VWSGP | VGPMIL, train: Bags, test: Bags) -> Float[np.ndarray, " B"]:
        posterior = coordinate_ascent(model, train, seed=self.seed, max_steps=self.max_steps)
        return posterior.predict(test).bag_probability

    def cardinality(self, train: Bags, test: Bags) -> Float[np.ndarray, " B"]:
        model = CardinalityModel.for_bags(train)
        mode = maximum_a_posteriori(model, train, seed=self.seed, max_steps=self.max_steps)
        return mode.predict(test).bag_probability


def set_kernel_classifier(train: Bags, test: Bags) -> Float[np.ndarray, " B"]:
    """σ of the decision function, which is ½ where that is 0."""
    length_scale = train.num_features**0.5
    classifier = SVC(C=1.0, kernel="precomputed")
    classifier.fit(set_kernel(train, train, length_scale), train.labels)
    return expit(classifier.decision_function(set_kernel(test, train, length_scale)))


def set_kernel(left: Bags, right: Bags, length_scale: float) -> Float[np.ndarray, "B C"]:
    """Mean kernel of the instances of two bags, 1 for a bag with itself."""

    def means(some: Bags, others: Bags) -> Float[np.ndarray, "B C"]:
        pairs = rbf_kernel(some.instances, others.instances, gamma=0.5 / length_scale**2)
        by_bag = np.add.reduceat(np.add.reduceat(pairs, some.starts), others.starts, axis=1)
        return by_bag / np.outer(some.bag_sizes, others.bag_sizes)

    norms = [np.sqrt(np.diagonal(means(bags, bags))) for bags in (left, right)]
    return means(left, right) / np.outer(*norms)


# --------------------------------------------------------------------- folds


@dataclass
class Row:
    """One method on one data set, folds pooled."""

    name: str
    method: str
    seconds: float  # of all folds: models made, fits, and predictions of the test bags
    seconds_again: float  # the same once more
    compilations: int
    compilations_again: int
    accuracy: float
    auc: float


class Compilations:
    """How many programs XLA has compiled."""

    def __init__(self) -> None:
        self.number = 0
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def _count(self, event: str, duration_secs: float, **_: str | int) -> None:
        self.number += "backend_compile" in event


def rows_of(name: str, protocol: Protocol, compiled: Compilations) -> Iterator[Row]:
    """Every method on the folds of a data set."""
    bags, held_out = load(name), folds_of(name, protocol)
    for method, fit in protocol.methods().items():
        seconds, numbers = [], []
        for _ in range(2):
            started, before = time.perf_counter(), compiled.number
            scores = scores_of_folds(fit, bags, held_out)
            seconds.append(time.perf_counter() - started)
            numbers.append(compiled.number - before)
        judged = np.isfinite(scores)
        truth = np.asarray(bags.labels)[judged]
        accuracy = float(np.mean((scores[judged] > 0.5) == truth))
        auc = float(roc_auc_score(truth, scores[judged]))
        yield Row(name, method, *seconds, *numbers, accuracy, auc)


def scores_of_folds(
    fit: Method, bags: Bags, held_out: list[Bool[np.ndarray, " B"]]
) -> Float[np.ndarray, " B"]:
    """Each bag's score by the fit that has not seen it; NaN of bags that no fold holds out."""
    scores = np.full(bags.num_bags, np.nan)
    for chosen in held_out:
        train = bags.select(~chosen)
        scores[chosen] = fit(train.standardize(), bags.select(chosen).standardize(train))
    return scores


def folds_of(name: str, protocol: Protocol) -> list[Bool[np.ndarray, " B"]]:
    """Which bags are held out: the published folds of the first repetition."""
    number = published_folds(name)[:, 0]
    return [number == fold for fold in range(1, protocol.num_folds + 1)]


def rows_before(folder: Path, arguments: list[str]) -> list[Row]:
    """What the same program says with the package of another checkout."""
    with TemporaryDirectory() as made:
        package = Path(made, "milzoo")
        package.mkdir()
        for wing in (wing for wing in WINGS if (folder / wing).is_dir()):
            (package / wing).symlink_to((folder / wing).resolve())
        # Folders on the path come before installed packages.
        run = subprocess.run(
            [sys.executable, __file__, *arguments, "--json"],
            env=os.environ | {"PYTHONPATH": made},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # XLA's warnings of constant folding
            text=True,
            check=True,
        )
    return [Row(**row) for row in json.loads(run.stdout)]


def table_of(rows: list[Row], protocol: Protocol) -> Table:
    """A line for each method on each data set."""
    table = Table(
        *("bags", "method", "first time, s", "again, s"),
        *("programs compiled", "again", "accuracy", "AUC"),
        title=f"Folds 1–{protocol.num_folds}, M = {protocol.num_inducing}, seed {protocol.seed}",
        caption=f"{os.cpu_count()} cores, {platform.machine()}; JAX {jax.__version__}; "
        "wall seconds of all folds: models made, fits, predictions",
    )
    for row in rows:
        table.add_row(
            row.name,
            row.method,
            f"{row.seconds:.2f}",
            f"{row.seconds_again:.2f}",
            str(row.compilations),
            str(row.compilations_again),
            f"{row.accuracy:.3f}",
            f"{row.auc:.3f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="musk1, three folds, few steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--json", action="store_true", help="the rows as JSON, not as a table")
    options = parser.parse_args()
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    if beside.is_dir():
        os.environ.setdefault("MILZOO_DATA", str(beside))
    protocol = Protocol.of(toy=options.toy, seed=options.seed)
    compiled = Compilations()
    try:
        rows = [row for name in protocol.names for row in rows_of(name, protocol, compiled)]
    except FileNotFoundError as error:
        if not options.toy:
            sys.exit(str(error))
        print(f"skipped: {error}")
        return
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    if options.before is not None:
        arguments = ["--seed", str(options.seed), *(["--toy"] if options.toy else [])]
        for row in rows_before(options.before, arguments):
            row.method += ", before"
            rows.append(row)
    Console(width=140).print(table_of(rows, protocol))


if __name__ == "__main__":
    main()
