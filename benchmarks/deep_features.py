"""What a Gaussian process adds to features that attention has learned: bags of MNIST digits.

Castro-Macías et al. (2024, section 6.3) train VGPMIL on features of an attention network, on CT
scans that are not at hand. Here the bags are of ten digits, positive with a 2 or a 9 among them;
1,000 random ones to train on and 1,000 others to test on, three times. Four classifiers: VGPMIL on
30 principal components; attention alone; VGPMIL on the 32 features that attention has learned from
the same training bags; and 32 features learned with the Gaussian process (`DeepVGPMIL`), which
begins with the two stages.

    MILZOO_DATA=… python benchmarks/deep_features.py [--toy] [--seed 0]
"""

from __future__ import annotations

import argparse
import os

from milzoo.datasets import load
from milzoo.diagnostics import cross_validate_bags
from milzoo.estimators import BayesianMIL, PCAOfInstances, StandardizeInstances
from milzoo.estimators.deep import AttentionNetwork, DeepVGPMIL
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline

SHOWN = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "instance_auc": "instance AUC",
    "instance_average_precision": "instance AUC-PR",
}


def classifiers(side: int, num_epochs: int, num_components: int, seed: int) -> dict:
    options = {"image_shape": (side, side), "num_epochs": num_epochs, "seed": seed}

    def gaussian_process() -> BayesianMIL:
        return BayesianMIL("vgpmil", "coordinate_ascent", seed=seed, engine__num_draws=100)

    attention = AttentionNetwork(32, **options)
    return {
        "VGPMIL on principal components": make_pipeline(
            PCAOfInstances(num_components), gaussian_process()
        ),
        "attention": attention,
        "VGPMIL on features of attention": make_pipeline(
            AttentionNetwork(32, **options), StandardizeInstances(), gaussian_process()
        ),
        "DeepVGPMIL": DeepVGPMIL(32, num_attention_epochs=num_epochs, **options),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="digits of 8 × 8, one split")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bags = load("digits" if options.toy else "mnist")
    num_bags, num_splits = (60, 1) if options.toy else (1000, 3)
    splitter = StratifiedShuffleSplit(
        num_splits, train_size=num_bags, test_size=num_bags, random_state=options.seed
    )
    side = round(bags.num_features**0.5)
    methods = classifiers(side, 2 if options.toy else 20, 5 if options.toy else 30, options.seed)
    found = cross_validate_bags(methods, bags, list(splitter.split(bags, bags.labels)), jobs=1)
    by_fold = found.by_fold[list(SHOWN)].groupby("classifier", sort=False)
    mean, sd = by_fold.mean(), by_fold.std()
    print(
        "| | " + " | ".join(SHOWN.values()) + " | s a fit |",
        "|---" * (len(SHOWN) + 2) + "|",
        sep="\n",
    )
    for name in methods:
        cells = [f"{mean.loc[name, one]:.3f} ± {sd.loc[name, one]:.3f}" for one in SHOWN]
        print(f"| {name} | " + " | ".join(cells) + f" | {found.fit_seconds[name][-1]:.0f} |")
    print(
        f"\n{num_bags:,} bags to train on and as many to test on, mean ± sd over {num_splits} "
        f"splits; seed {options.seed}, {os.cpu_count()} cores."
    )


if __name__ == "__main__":
    main()
