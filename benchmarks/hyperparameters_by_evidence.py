"""VGPMIL on published folds: hyper-parameters given, learned by bound or evidence, or sampled.

The bound charges for what is unknown, so that its own choice of the prior variance may switch the
features off. Each fold is fitted with the hyper-parameters of the paper; with those that coordinate
ascent learns by its bound; with those that `laplace` learns by the evidence, by Laplace and by
coordinate ascent there; and by NUTS with priors on all three, the judge. Features are scaled by the
training bags. The log evidence at the learned values is compared with bridge sampling's
from NUTS at these values, on the first fold.

    MILZOO_DATA=… python benchmarks/hyperparameters_by_evidence.py [--toy] [--folds N] [NAME …]
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from milzoo.datasets import Bags, load, published_folds
from milzoo.inference import Posterior, coordinate_ascent, laplace, log_evidence, nuts
from milzoo.models import VGPMIL, VWSGP
from numpyro.distributions import LogNormal, Normal
from sklearn.metrics import log_loss, roc_auc_score

NAMES = ("musk1", "elephant")


@dataclass(frozen=True)
class Run:
    """Sizes of a run."""

    num_inducing: int = 50
    warmup: int = 200
    samples: int = 200
    steps: int = 200


TOY = Run(num_inducing=4, warmup=10, samples=10, steps=5)


def as_published(bags: Bags, run: Run) -> VGPMIL:
    """The model with the values of the paper."""
    return VGPMIL.as_published(bags, num_inducing=run.num_inducing, seed=0)


def with_priors[Model: (VGPMIL, VWSGP)](model: Model) -> Model:
    """Weak priors on variance, length scale (around the published one) and any prior mean."""
    log_scale = float(np.log(float(model.kernel.length_scale)))
    return model.with_hyperparameters(
        {
            "variance": LogNormal(1.0, 1.0),
            "length_scale": LogNormal(log_scale, 0.5),
            "mean": Normal(-4.0, 3.0),
        }
    )


def fits(bags: Bags, run: Run) -> Iterator[tuple[str, Posterior]]:
    """Every way to the hyper-parameters, and the posterior there."""
    model = as_published(bags, run)
    ascend = partial(coordinate_ascent, bags=bags, seed=0, max_steps=run.steps)
    yield "as published, coordinate ascent", ascend(model)
    yield "learned by the bound", ascend(model, learn_hyperparameters=True)
    learned = laplace(with_priors(model), bags, seed=0, learn_hyperparameters=True)
    yield "by the evidence, laplace", learned
    yield "by the evidence, coordinate ascent", ascend(learned.model)
    chains = {"num_warmup": run.warmup, "num_samples": run.samples, "num_chains": 2}
    yield "by NUTS over all", nuts(with_priors(model), bags, seed=0, **chains)


def values_of(posterior: Posterior) -> dict[str, float]:
    """The hyper-parameters, or their posterior means."""
    drawn = posterior.stored_draws()
    return {
        name: float(np.mean(drawn[name])) if name in drawn else float(value)
        for name, value in posterior.model.hyperparameters.items()
    }


def on_fold(bags: Bags, is_test: np.ndarray, run: Run, fold: int) -> Iterator[dict[str, object]]:
    """A row for each way, with the predictions of the fold's bags."""
    train, test = bags.select(np.flatnonzero(~is_test)), bags.select(np.flatnonzero(is_test))
    train, test = train.standardize(), test.standardize(train)
    for way, posterior in fits(train, run):
        probability = posterior.predict(test.without_labels()).bag_probability
        yield {
            "way": way,
            "fold": fold,
            "status": posterior.status.kind,
            "seconds": posterior.wall_seconds,
            "probability": probability,
            "label": np.asarray(test.labels),
            **values_of(posterior),
        }


def evidence_sentence(bags: Bags, is_test: np.ndarray, run: Run) -> str:
    """Laplace's log evidence at its optimum, and by a bridge from NUTS at these values."""
    train = bags.select(np.flatnonzero(~is_test)).standardize()
    learned = laplace(
        with_priors(as_published(train, run)), train, seed=0, learn_hyperparameters=True
    )
    by_weights = log_evidence(learned, seed=0)
    chains = nuts(
        learned.model, train, seed=0, num_warmup=2 * run.warmup, num_samples=2 * run.samples
    )
    bridge = log_evidence(chains, seed=0)
    return (
        f"first fold, at the learned values: {learned.status.sentence}; by its weights "
        f"{by_weights.value:.2f} ± {by_weights.error:.2f} (k̂ {by_weights.khat:.2f}), by a bridge "
        f"{bridge.value:.2f} ± {bridge.error:.2f}"
    )


def table(rows: list[dict[str, object]]) -> pd.DataFrame:
    """Scores of the pooled folds, medians of the learned values, mean seconds."""
    found = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in rows if row["way"] == way]
        label, probability = (
            np.concatenate([row[name] for row in mine]) for name in ("label", "probability")
        )
        clipped = np.clip(probability, 1e-12, 1 - 1e-12)
        found[way] = {
            "log loss": log_loss(label, clipped, labels=[0, 1]),
            "AUC": roc_auc_score(label, probability),
            **{
                name: np.median([row[name] for row in mine])
                for name in ("variance", "length_scale", "mean")
            },
            "collapsed": sum(row["status"] == "collapsed" for row in mine),
            "seconds": np.mean([row["seconds"] for row in mine]),
        }
    return pd.DataFrame.from_dict(found, orient="index")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--folds", type=int, default=10, help="folds of the first repetition")
    parser.add_argument("--toy", action="store_true", help="digits, one fold, few points")
    given = parser.parse_args()
    run = TOY if given.toy else Run()
    for name in ["digits"] if given.toy else given.names:
        started = time.perf_counter()
        if given.toy:
            bags, _ = load(name).split(0.2, seed=0)
            folds, count = np.arange(bags.num_bags) % 2 + 1, 1
        else:
            bags, folds = load(name), published_folds(name)[:, 0]
            count = min(given.folds, int(folds.max()))
        rows = [
            row for fold in range(1, count + 1) for row in on_fold(bags, folds == fold, run, fold)
        ]
        print(f"\n{name}: {count} folds, {run.num_inducing} inducing points, seed 0")
        print(table(rows).round(3).to_string())
        print(evidence_sentence(bags, folds == 1, run))
        print(f"{time.perf_counter() - started:.0f} s, {platform.machine()}, 2 cores at most")


if __name__ == "__main__":
    main()
