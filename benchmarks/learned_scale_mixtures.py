"""Hyper-parameters of G-VGPMIL learned as the paper says, and the error of its estimate of log Z.

Castro-Macías et al. (2024), equation 29: with another ψ than the hyperbolic secant the prior p(f)
has a normalising constant Z that depends on v, ℓ and μ0; log Z is estimated from draws of the
Gaussian process, 100 of them, the same in all steps. Beside the bound less this estimate stands the
bound less that of 10,000 other draws at the same values. Digits (all bags) and musk1, features
standardised, M = 50, from v = 0.5 and μ0 = 0 on.

    MILZOO_DATA=… python benchmarks/learned_scale_mixtures.py [--toy] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from milzoo.datasets import Bags, load
from milzoo.inference import coordinate_ascent
from milzoo.models import VGPMIL, GammaScaleMixture, PolyaGammaScaleMixture
from sklearn.metrics import roc_auc_score

LENGTH_SCALES = {"digits": 8.0, "musk1": 166**0.5}
SCALE_MIXTURES = {
    "logistic": PolyaGammaScaleMixture(),
    "Gamma, α = 1, β = 1": GammaScaleMixture(1.0, 1.0),
    "Gamma, α = 1, β = 2.5": GammaScaleMixture(1.0, 2.5),
    "Gamma, α = 1, β = 4": GammaScaleMixture(1.0, 4.0),
    "Gamma, α = ½, β = 1": GammaScaleMixture(0.5, 1.0),
}
COLUMNS = (
    "bags",
    "ψ",
    "hyper-parameters",
    "v",
    "ℓ",
    "μ0",
    "bound less log Z, 100 draws",
    "10,000 others",
    "bag AUC",
    "ended",
)


def rows(name: str, bags: Bags, num_inducing: int, seed: int) -> Iterator[list[str]]:
    options = {"variance": 0.5, "length_scale": LENGTH_SCALES[name], "mean": 0.0, "seed": seed}
    model = VGPMIL.for_bags(bags, num_inducing, **options)
    for label, scale_mixture in SCALE_MIXTURES.items():
        for learns in (False, True):
            yield [
                name,
                label,
                *row(replace(model, scale_mixture=scale_mixture), bags, learns, seed),
            ]


def row(model: VGPMIL, bags: Bags, learns: bool, seed: int) -> list[str]:
    """One fit: hyper-parameters, the bound by two estimates of log Z, AUC by largest instances."""
    posterior = coordinate_ascent(
        model, bags, seed=seed, max_steps=200, learn_hyperparameters=learns
    )
    found, words = posterior.model, "learned" if learns else "fixed"
    values = [f"{float(value):.3g}" for value in found.hyperparameters.values()]
    if posterior.status.kind == "failed":
        return [words, *values, "–", "–", "–", "failed"]
    unnormalised = coordinate_ascent(found, bags, seed=seed, max_steps=200).elbo[-1]
    few, many = (found.log_normaliser(bags, seed=seed + 1, num_draws=n)[0] for n in (100, 10_000))
    return [
        words,
        *values,
        f"{posterior.elbo[-1] if learns else unnormalised - few:,.1f}",
        f"{unnormalised - many:,.1f}",
        f"{auc(posterior.predict(bags.without_labels()).instance_probability, bags):.3f}",
        posterior.status.kind,
    ]


def auc(of_instances: np.ndarray, bags: Bags) -> float:
    return float(roc_auc_score(bags.labels, np.maximum.reduceat(of_instances, bags.starts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="the logistic ψ and one other")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.toy:
        for label in list(SCALE_MIXTURES)[2:]:
            del SCALE_MIXTURES[label]
    print("| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|", sep="\n")
    for name in ("digits",) if options.toy else ("digits", "musk1"):
        bags = load(name).standardize()
        bags = bags[:20] if options.toy else bags
        for cells in rows(name, bags, 5 if options.toy else 50, options.seed):
            print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\nSeed {options.seed}, {os.cpu_count()} cores; scored on the training bags.")


if __name__ == "__main__":
    main()
