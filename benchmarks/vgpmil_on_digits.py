"""VGPMIL and G-VGPMIL on bags of MNIST digits: what the paper leaves open, one by one.

Castro-Macías et al. (2024), tables 4 and 5: when the ascent is halted, where the inducing points
stand, what H is (100 in the paper, 10¹² in published codes), α and β. One of the five splits; 30
principal components, or the pixels, where the points alone are varied; labels are updated with the
maximum plugged in. Scores of test bags by the largest of their instances, accuracies at ½.

    MILZOO_DATA=… python benchmarks/vgpmil_on_digits.py [--pixels] [--toy] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from milzoo.datasets import Bags, load
from milzoo.estimators import PCAOfInstances
from milzoo.inference import coordinate_ascent
from milzoo.models import RBF, VGPMIL, GammaScaleMixture, PolyaGammaScaleMixture
from milzoo.papers.protocols import stratified_folds
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

SCALE_MIXTURES = {
    "logistic": PolyaGammaScaleMixture(),
    "α = 1, β = 2.5": GammaScaleMixture(1.0, 2.5),
    "α = ½, β = 1": GammaScaleMixture(0.5, 1.0),
    "α = ½, β = 4": GammaScaleMixture(0.5, 4.0),
}
STEPS = (2, 5, 12, 25, 200)
SCORES = {
    "accuracy": lambda truth, probability: accuracy_score(truth, probability > 0.5),
    "F1": lambda truth, probability: f1_score(truth, probability > 0.5),
    "AUC": roc_auc_score,
}


class Setting(NamedTuple):
    """What is varied; k-means and H = 100 unless it is said."""

    num_inducing: int
    scale_mixture: str
    points: str = "k-means"
    sharpness: float = 100.0


def settings(options: argparse.Namespace) -> Iterator[Setting]:
    if options.toy:
        yield Setting(5, "α = 1, β = 2.5", points="random")
        return
    if options.pixels:
        for num_inducing in (50, 100, 200):
            for points in ("k-means", "random"):
                for scale_mixture in ("logistic", "α = 1, β = 2.5"):
                    yield Setting(num_inducing, scale_mixture, points)
        return
    for num_inducing in (50, 100, 200):
        for scale_mixture in SCALE_MIXTURES:
            yield Setting(num_inducing, scale_mixture)
        for scale_mixture in ("logistic", "α = 1, β = 2.5"):
            yield Setting(num_inducing, scale_mixture, points="random")
        yield Setting(num_inducing, "logistic", sharpness=1e12)


def model_of(setting: Setting, bags: Bags, seed: int) -> VGPMIL:
    model = VGPMIL.as_published(bags, setting.num_inducing, seed=seed)
    if setting.points == "random":
        random = np.random.default_rng(seed)
        chosen = random.choice(bags.num_instances, setting.num_inducing, replace=False)
        model = replace(model, inducing_points=bags.instances[chosen])
    kernel = RBF(0.5, bags.num_features**0.5)
    scale_mixture = SCALE_MIXTURES[setting.scale_mixture]
    return replace(model, kernel=kernel, sharpness=setting.sharpness, scale_mixture=scale_mixture)


def scores(model: VGPMIL, train: Bags, test: Bags, num_steps: int, seed: int) -> list[float]:
    """Of instances and of bags."""
    posterior = coordinate_ascent(
        model,
        train,
        seed=seed,
        label_update="plug_in_max",
        max_steps=num_steps,
        tolerance=0.0,
        num_draws=100,
    )
    of_instances = posterior.predict(test.without_labels()).instance_probability
    of_bags = np.maximum.reduceat(of_instances, test.starts)
    pairs = ((test.instance_labels, of_instances), (test.labels, of_bags))
    return [float(score(*pair)) for pair in pairs for score in SCORES.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="digits of scikit-learn, one setting")
    parser.add_argument("--pixels", action="store_true", help="table 5 in place of table 4")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    name = "digits" if options.toy else "mnist"
    bags = load(name).standardize() if options.toy else load(name)
    train, test = (bags[one] for one in stratified_folds(5)(name, bags, options.seed)[0])
    if not options.pixels:
        components = PCAOfInstances(5 if options.toy else 30).fit(train)
        train, test = components.transform(train), components.transform(test)
    steps = STEPS[:2] if options.toy else (12,) if options.pixels else STEPS
    columns = ["M", "ψ", "points", "H", "steps"]
    columns += [f"{of} {score}" for of in ("instance", "bag") for score in SCORES]
    print("| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", sep="\n")
    for setting in settings(options):
        model = model_of(setting, train, options.seed)
        for num_steps in steps:
            found = scores(model, train, test, num_steps, options.seed)
            cells = [
                str(setting.num_inducing),
                setting.scale_mixture,
                setting.points,
                f"{setting.sharpness:g}",
                str(num_steps),
                *(f"{one:.3f}" for one in found),
            ]
            print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\nSeed {options.seed}, {os.cpu_count()} cores, {len(train)} bags to train on.")


if __name__ == "__main__":
    main()
