"""Venkatesan, Chandakkar and Li (2015): tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import clone

from ..datasets.arguments import AT_LEAST_ZERO, POSITIVE, WHOLE
from ..datasets.bags import Bags
from ..estimators import PrototypeLearner, ScoreLearner, StandardizeInstances, choose_by_elbow
from ..estimators.contract import BagClassifier
from ..models import NeighbourScore, ParzenScore
from .comparators import comparator, on_features
from .exhibits import Attempt, Cell, Choice, Exhibit, Method, Paper, Published, not_at_hand
from .protocols import Protocol, searched, thirds, with_published_folds

__all__ = ["PAPER", "ElbowLearner", "FlippedLabels", "LogPrototypes"]

HONEST = Protocol(
    "honest",
    "Ten published folds of the first repetition (musk2: ten drawn). Settings are chosen by three "
    "folds inside the training bags.",
    with_published_folds(1),
)
# Of the method that the paper proposes, where splits vary more than bags.
HONEST_REPEATED = Protocol(
    "honest",
    "Ten published folds of five repetitions (musk2: ten drawn). k and a are chosen by three folds "
    "inside the training bags.",
    with_published_folds(5),
)
_THRESHOLD = (
    "k is at the elbow of the training error, and a is 1. The threshold is learned “by maximizing "
    "the validation accuracy”: that of the tested bags of each split."
)
_PEEKS = "the threshold is the best on the tested bags of each split"
FOLDS = Protocol(
    "as published",
    f"Ten published folds of the first repetition (musk2: ten drawn). {_THRESHOLD}",
    with_published_folds(1),
    threshold_by="test bags",
    peeks=_PEEKS,
)
RUNS = Protocol(
    "as published",
    "Fifteen random splits, two thirds to train on; the highest accuracy of the fifteen. "
    + _THRESHOLD,
    thirds(15),
    reports="maximum",
    threshold_by="test bags",
    peeks=f"{_PEEKS}, and the best of fifteen splits is reported",
)
# Of labels that are flipped, which the paper has as curves.
HONEST_RUNS = Protocol(
    "honest",
    "Fifteen random splits, two thirds to train on; the mean. Of the training labels some are "
    "flipped at random, and settings are chosen by three folds inside the flipped training bags.",
    thirds(15),
)

_TIGER = "the tiger images are not at hand"
_NOT_BUILT = {
    "MILIS": "MILIS is not built here",
    "ISD": "instance-specific distance learning is not built here",
    "MIC-Bundle": "MIC-Bundle is not built here",
}


class ElbowLearner(BagClassifier):
    """A threshold on a neighbourhood score, with k at the elbow of the training error.

    Parameters
    ----------
    most : int
        The largest k.

    Attributes
    ----------
    learner_ : ScoreLearner
        With the chosen score, and a = 1.
    classes_ : array (2,)
    n_features_in_ : int
    """

    _zero_is_positive = True
    _rules = {"most": WHOLE}

    def __init__(self, most: int = 10) -> None:
        self.most = most

    def _fit(self, bags: Bags) -> None:
        neighbourhood_scores = [NeighbourScore(k) for k in range(1, self.most + 1)]
        self.learner_ = ScoreLearner(
            choose_by_elbow(neighbourhood_scores, bags).neighbourhood_score
        ).fit(bags)

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return self.learner_.decision_function(bags)


class LogPrototypes(BagClassifier):
    """Peaks of the neighbourhood score with Ψ(d) = log(1 + d), each with a radius.

    Under Ψ(d) = d, which the paper has, peaks lie where no instance is. A class of its own, so that
    its settings are numbers: a function as a setting has another fingerprint in each process.

    Parameters
    ----------
    k : int
        Neighbours.
    separation : float
        Of two peaks that are closer, the lower one is suppressed.

    Attributes
    ----------
    learner_ : PrototypeLearner
    classes_ : array (2,)
    n_features_in_ : int
    """

    _zero_is_positive = True
    _rules = {"k": WHOLE, "separation": POSITIVE}

    def __init__(self, k: int, separation: float) -> None:
        self.k = k
        self.separation = separation

    def _fit(self, bags: Bags) -> None:
        neighbourhood_score = NeighbourScore(self.k, jnp.log1p)
        self.learner_ = PrototypeLearner(neighbourhood_score, self.separation).fit(bags)

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return self.learner_.decision_function(bags)


class FlippedLabels(BagClassifier):
    """A classifier that is trained on bags with some labels flipped.

    Parameters
    ----------
    classifier : object
        With its search inside it, so that what is chosen is chosen by flipped labels.
    fraction : float
        Of the training bags, whose labels are flipped. Those that a smaller fraction flips are
        among them.
    seed : int

    Attributes
    ----------
    classifier_ : object
    classes_ : array (2,)
    n_features_in_ : int

    References
    ----------
    Venkatesan, Chandakkar and Li (2015), section 4.5.
    """

    _zero_is_positive = True
    _rules = {"fraction": AT_LEAST_ZERO}

    def __init__(self, classifier: Any, fraction: float, *, seed: int) -> None:
        self.classifier = classifier
        self.fraction = fraction
        self.seed = seed

    def _fit(self, bags: Bags) -> None:
        labels = np.array(bags.labels)
        order = np.random.default_rng(self.seed).permutation(len(labels))
        flipped = order[: round(self.fraction * len(labels))]
        labels[flipped] = 1 - labels[flipped]
        noisy = replace(bags, labels=labels, instance_labels=None)
        self.classifier_ = clone(self.classifier).fit(noisy, labels)

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return self.classifier_.decision_function(bags)


def _by_elbow(bags: Bags, memory: str | None) -> Choice:
    """The proposed score, as the paper finds k."""
    return on_features(StandardizeInstances(), ElbowLearner(), {})


def _neighbours(bags: Bags, memory: str | None) -> Choice:
    """The proposed score; k and a to be chosen."""
    learner = ScoreLearner(NeighbourScore(1))
    grid: dict[str, list[Any]] = {
        "neighbourhood_score": [NeighbourScore(k) for k in (1, 2, 3, 5, 8)],
        "min_positive": [1, 2, 3],
    }
    return on_features(StandardizeInstances(), learner, grid)


def _windows(bags: Bags, memory: str | None) -> Choice:
    """The Parzen score; half an edge of its window to be chosen, in sds of a feature."""
    learner = ScoreLearner(ParzenScore(1.0))
    widths = [ParzenScore(width) for width in (1.0, 1.5, 2.0, 3.0, 4.0)]
    return on_features(StandardizeInstances(), learner, {"neighbourhood_score": widths})


def _prototypes(bags: Bags, memory: str | None) -> Choice:
    """Prototypes and their radii; k to be chosen."""
    half_of_typical = 0.5 * math.sqrt(2 * bags.num_features)
    return on_features(StandardizeInstances(), LogPrototypes(1, half_of_typical), {"k": [1, 3]})


def _on_flipped(method: Method, fraction: float, bags: Bags, memory: str | None) -> Choice:
    """A method that is trained, with its choice of settings, on flipped labels."""
    return FlippedLabels(searched(*method(bags, memory), seed=0), fraction, seed=0), {}


def _cells(
    rows: Mapping[str, tuple[float | None, ...]],
    data: tuple[str, ...],
    names: Mapping[str, str],
    why: Mapping[tuple[str, str], str],
) -> tuple[Cell, ...]:
    """Cells of comparators; what is not built or not at hand has the reason."""
    cells = []
    for method, accuracies in rows.items():
        for name, accuracy in zip(data, accuracies, strict=True):
            if accuracy is None:
                continue
            missing = _TIGER if name == "tiger" else _NOT_BUILT.get(method, "")
            attempts = () if missing else (Attempt(HONEST, comparator(names[method])),)
            published = {"accuracy": Published(accuracy / 100)}
            reason = why.get((method, name), "")
            cells.append(Cell(method, name, published, attempts, missing, reason))
    return tuple(cells)


_NAMES = {
    "DD": "DD",
    "EM-DD": "EM-DD",
    "citation k-NN": "Citation-kNN",
    "mi-SVM": "mi-SVM",
    "MI-SVM": "MI-SVM",
    "DD-SVM": "DD-SVM",
    "MILES": "MILES",
    "MIforest": "MIForest",
    "ALP-SVM": "ALP-SVM",
    "Ensemble": "concept fraction",
}

_MUSK = {
    "DD": (88.9, 82.5),
    "EM-DD": (84.8, 84.9),
    "citation k-NN": (92.4, 86.3),
    "mi-SVM": (87.4, 83.6),
    "MI-SVM": (77.9, 84.3),
    "DD-SVM": (85.8, 91.3),
    "MILES": (86.3, 87.7),
    "MIforest": (85.0, 82.0),
    "MILIS": (88.6, 91.1),
    "ISD": (85.3, 79.0),
    "ALP-SVM": (87.9, 86.6),
    "MIC-Bundle": (84.0, 85.2),
    "Ensemble": (89.22, 85.04),
}

_IMAGES = {
    "citation k-NN": (79.2, 62.5, 82.6),
    "mi-SVM": (79.7, 62.9, 79.0),
    "MILES": (70.0, 56.0, 62.0),
    "MIforest": (84.0, 64.0, 82.0),
    "ISD": (77.9, 63.0, 85.3),
    "ALP-SVM": (84.0, 69.0, 86.0),
    "MIC-Bundle": (80.5, 58.3, 79.11),
    "Ensemble": (84.25, 63.05, 79.30),
}

_COREL = {
    "mi-SVM": (0.764, 0.537),
    "MI-SVM": (0.751, 0.551),
    "MILES": (0.823, 0.687),
    "DD-SVM": (0.815, 0.675),
    "MILIS": (0.838, 0.701),
    "Proposed": (0.873, 0.719),
}
_FUNDUS_IMAGES = "the diabetic-retinopathy data, which the authors put together"
_FUNDUS = {
    "DD": (0.6129,),
    "EM-DD": (0.735,),
    "citation k-NN": (0.787,),
    "mi-SVM": (0.7032,),
    "MILES": (0.71,),
    "Proposed": (0.813,),
}

_WHY_MUSK = {
    ("DD", "musk1"): "the paper learns a scale for each feature, where our searches with 166 of "
    "them do not end near the instances: all features have one scale here, and the best of three "
    "on the reported folds has 79 % (`--by-setting`)",
    ("EM-DD", "musk1"): "one scale for all features, as for DD, and the choice of it: the best of "
    "three on the reported folds has 78 % (`--by-setting`)",
    ("DD-SVM", "musk1"): "the choice of settings: the best of twelve on the reported folds has "
    "82 % (`--by-setting`)",
    ("DD-SVM", "musk2"): "the choice of settings for a part: the best of twelve on the reported "
    "folds has 84 % (`--by-setting`)",
    ("Ensemble", "musk1"): "the published table does not name the base classifier; thirteen of "
    "them, with their defaults, have 67 to 87 % on the reported folds "
    "(`python benchmarks/settings_not_told.py`)",
    ("mi-SVM", "musk2"): "the choice of settings: the best of twelve has 84.3 % on the reported "
    "folds (`--by-setting`)",
}
_WHY_IMAGES = {
    ("Ensemble", "fox"): "the published table does not name the base classifier; thirteen of them "
    "have 47.0 to 68.5 % on the reported folds (`python benchmarks/settings_not_told.py`)",
    (
        "ALP-SVM",
        "elephant",
    ): "its threshold: over six settings on the reported folds the AUC is up to 0.92, and the "
    "accuracy 70 to 79 % (`--by-setting`)",
    ("MILES", "elephant"): "the settings, which the paper does not tell: twelve of them have 50 to "
    "84 % on the reported folds (`--by-setting`); Hajimirsadeghi and Mori (2017) report 81 %",
    ("MILES", "fox"): "the settings, which the paper does not tell: twelve of them have 50 to 72 % "
    "on the reported folds (`--by-setting`); Hajimirsadeghi and Mori (2017) report 62 %",
}


def _proposed(data: str, accuracy: float, published: Protocol) -> Cell:
    attempts = (Attempt(published, _by_elbow), Attempt(HONEST_REPEATED, _neighbours))
    return Cell("Proposed", data, {"accuracy": Published(accuracy / 100)}, attempts)


# Of labels that are flipped; the text speaks of a fifth and a third.
_FRACTIONS = (0.0, 0.1, 0.2, 1 / 3, 0.4)


def _of_other_score(method: str, data: str) -> Cell:
    """The Parzen score or prototypes, for which the paper has no accuracies."""
    by_name = {"Parzen score": _windows, "Prototypes": _prototypes}
    attempts = (Attempt(HONEST, by_name[method]),)
    return Cell(method, data, {"accuracy": Published()}, attempts)


def _flipped(name: str, data: str, fraction: float, **methods: Method) -> Cell:
    """A method on flipped labels, by its protocols."""
    protocols = {"published": RUNS, "honest": HONEST_RUNS}
    attempts = tuple(
        Attempt(protocols[protocol], partial(_on_flipped, method, fraction))
        for protocol, method in methods.items()
    )
    label = f"{name}, {fraction:.0%} flipped"
    return Cell(label, data, {"accuracy": Published()}, attempts)


PAPER = Paper(
    name="venkatesan-2015",
    citation="Venkatesan, Chandakkar and Li (2015), Simpler non-parametric methods provide as "
    "good or better results to multiple-instance learning, ICCV.",
    remarks="Table 1 has ten-fold cross-validations, table 2 results that are “maximized over 15 "
    "runs of validation”. Figures of other methods are from their papers, with the protocols of "
    "these. How k is found by the elbow, and what a is, the paper does not tell.",
    exhibits=(
        Exhibit(
            "figure-1",
            "A fundus image as a bag",
            missing="the photographs of the diabetic-retinopathy data are not at hand; the figure "
            "has no numbers",
        ),
        Exhibit(
            "figure-2",
            "A scene of four clusters of positive instances",
            verdict="reproduced",
            finding="the scene is simulated after its description; four clusters of positive "
            "instances stand between those of negative bags",
            command="python examples/prototypes_of_a_scene.py --out docs",
            picture="venkatesan2015_peaks.png",
        ),
        Exhibit(
            "figure-3",
            "The Parzen score over the scene",
            verdict="reproduced",
            finding="the four highest instances of positive bags stand in the four clusters",
            command="python examples/prototypes_of_a_scene.py --out docs",
            picture="venkatesan2015_peaks.png",
        ),
        Exhibit(
            "figure-4",
            "The k-NN score over the scene",
            verdict="reproduced",
            finding="the score has peaks at all four clusters of positive instances",
            command="python examples/prototypes_of_a_scene.py --out docs",
            picture="venkatesan2015_peaks.png",
        ),
        Exhibit(
            "table-1",
            "Accuracy on musk1 and musk2",
            finding="settings and base classifiers are not told, and DD and EM-DD have one scale "
            "for all features here; the proposed score comes back where the tested bags set its "
            "threshold, as the paper says that they did",
            cells=(
                *_cells(_MUSK, ("musk1", "musk2"), _NAMES, _WHY_MUSK),
                _proposed("musk1", 92.4, FOLDS),
                _proposed("musk2", 86.4, FOLDS),
                *map(partial(_of_other_score, "Parzen score"), ("musk1", "musk2")),
                *map(partial(_of_other_score, "Prototypes"), ("musk1", "musk2")),
            ),
        ),
        Exhibit(
            "table-2",
            "Accuracy on elephant, fox and tiger",
            finding="settings and base classifiers are not told",
            cells=(
                *_cells(_IMAGES, ("elephant", "fox", "tiger"), _NAMES, _WHY_IMAGES),
                _proposed("elephant", 86.0, RUNS),
                _proposed("fox", 73.94, RUNS),
                Cell("Proposed", "tiger", {"accuracy": Published(0.857)}, missing=_TIGER),
                *map(partial(_of_other_score, "Parzen score"), ("elephant", "fox")),
                *map(partial(_of_other_score, "Prototypes"), ("elephant", "fox")),
            ),
        ),
        Exhibit(
            "table-3",
            "Accuracy on Corel",
            not_at_hand(
                _COREL,
                (("Corel-1k", "accuracy"), ("Corel-2k", "accuracy")),
                "the Corel images and their features",
            ),
        ),
        Exhibit(
            "table-4",
            "Accuracy on diabetic retinopathy",
            not_at_hand(_FUNDUS, (("diabetic retinopathy", "accuracy"),), _FUNDUS_IMAGES),
        ),
        Exhibit(
            "figure-5",
            "Accuracy against the fraction of flipped labels",
            verdict="reproduced",
            finding="in the mean over three sets 4.6 points are lost with a fifth of the labels "
            "flipped and 8.6 with a third, where the paper says about 5 and 10; that is of the "
            "best of fifteen splits with a threshold by their tested bags, and in the mean over "
            "splits, with one by the training bags, 11.6 and 15.0 are lost",
            cells=tuple(
                _flipped("Proposed", data, fraction, published=_by_elbow, honest=_neighbours)
                for data in ("musk1", "elephant", "fox")
                for fraction in _FRACTIONS
            ),
        ),
        Exhibit(
            "figure-6",
            "Loss of accuracy of MILES and of the score, by the fraction of flipped labels",
            verdict="reproduced",
            finding="on musk1 and elephant the score loses 15.1 points with a fifth of the labels "
            "flipped and 19.9 with a third, and MILES 12.9 and 21.6: the same trend, as the paper "
            f"says of {_FUNDUS_IMAGES}",
            cells=tuple(
                _flipped(name, data, fraction, honest=method)
                for data in ("musk1", "elephant")
                for name, method in (("Proposed", _neighbours), ("MILES", comparator("MILES")))
                for fraction in (0.0, 0.2, 1 / 3)
            ),
        ),
    ),
)
