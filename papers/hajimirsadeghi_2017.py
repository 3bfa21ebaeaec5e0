"""Hajimirsadeghi and Mori (2017): tables and figures."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from joblib import Memory
from sklearn.preprocessing import MinMaxScaler

from ..datasets.arguments import FLAG
from ..datasets.bags import Bags
from ..estimators import (
    BayesianMIL,
    CardinalityKernelLearner,
    CardinalityKernelSVM,
    TransformInstances,
)
from ..estimators.contract import BagClassifier
from ..models import RBF, CardinalityModel, MajorityCardinality, NormalCardinality
from .comparators import comparator, on_features
from .exhibits import Attempt, Cell, Choice, Exhibit, Paper, Published
from .protocols import Protocol, searched, with_published_folds

__all__ = ["PAPER", "TwoStageKernelSVM"]

SIGMA = 0.1  # of the normal cardinality
MU = tuple(float(tenths) / 10 for tenths in range(1, 11))
# s of λ = 1/2s²
WEIGHT_SCALE = tuple(1 / math.sqrt(2 * one) for one in (0.01, 0.1, 1.0, 10.0))
PENALTY = (0.1, 1.0, 10.0, 100.0, 1000.0)  # C
LENGTH_SCALE = (0.1, 0.2, 0.4, 0.8)  # in units of √D
# μ and s of MICPM that the test bags choose: the settings of its row as published.
BEST_MODEL = {
    "elephant": (0.2, WEIGHT_SCALE[0]),
    "fox": (0.1, WEIGHT_SCALE[1]),
    "musk1": (0.4, WEIGHT_SCALE[0]),
    "musk2": (0.8, WEIGHT_SCALE[1]),
}

HONEST = Protocol(
    "honest",
    "Ten published folds of the first repetition (musk2: ten drawn). Settings are chosen by three "
    "folds inside the training bags.",
    with_published_folds(1),
)
PUBLISHED = Protocol(
    "as published",
    "The same folds; settings are those of the highest accuracy on them.",
    with_published_folds(1),
    chosen_by="test bags",
    peeks="settings are chosen by the accuracy on the folds that is reported",
)


class TwoStageKernelSVM(BagClassifier):
    """A classifier on the kernel of the cardinality model that folds of the training bags choose.

    The paper finds μ for the model alone, and uses it for the kernel. So do we, with λ. The same
    folds then choose C and the length scale by a classifier on the kernel at the mode; and, where
    the kernel is learned with the classifier, λ anew.

    Parameters
    ----------
    learns : bool
        Whether the weights of the kernel are learned with the classifier (MICPKL).
    memory : str, joblib.Memory or None
        Folder in which modes and kernels are kept: the grid has each of them several times.

    Attributes
    ----------
    classifier_ : CardinalityKernelSVM
        With what was chosen.
    classes_ : array (2,)
    n_features_in_ : int
    """

    _rules = {"learns": FLAG}

    def __init__(self, learns: bool = False, memory: str | Memory | None = None) -> None:
        self.learns = learns
        self.memory = memory

    def _fit(self, bags: Bags) -> None:
        model, memory = chosen_model(bags), self.memory
        chosen = best_on_folds(*_on_kernel_of(model, CardinalityKernelSVM, bags, memory), bags)
        if self.learns:
            kernel, penalty = chosen.instance_kernel, chosen.penalty
            learner = CardinalityKernelLearner(model, kernel, penalty, memory=memory)
            models = [replace(model, weight_scale=one) for one in WEIGHT_SCALE]
            chosen = best_on_folds(learner, {"model": models}, bags)
        self.classifier_ = chosen

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return self.classifier_.decision_function(bags)


def chosen_model(bags: Bags) -> CardinalityModel:
    """The model with the μ and λ of the highest accuracy on three folds of the bags."""
    chosen = best_on_folds(*_cardinality_model(), bags).get_params()
    return CardinalityModel(chosen["model__potential"], chosen["model__weight_scale"])


def best_on_folds(classifier: Any, grid: dict[str, list[Any]], bags: Bags) -> Any:
    """The classifier with the highest accuracy on folds of the bags, fitted to all of them."""
    return searched(classifier, grid, seed=0).fit(bags, bags.labels).best_estimator_


def _cardinality_model() -> tuple[BayesianMIL, dict[str, list[Any]]]:
    grid: dict[str, list[Any]] = {
        "model__potential": [NormalCardinality(mu, SIGMA) for mu in MU],
        "model__weight_scale": list(WEIGHT_SCALE),
    }
    return BayesianMIL("cardinality", "maximum_a_posteriori", seed=0), grid


def _from_zero_to_one(classifier: Any, grid: dict[str, list[Any]]) -> Choice:
    return on_features(TransformInstances(MinMaxScaler()), classifier, grid)


def _micpm(bags: Bags, memory: str | None) -> Choice:
    return _from_zero_to_one(*_cardinality_model())


def _by_majority(bags: Bags, memory: str | None) -> Choice:
    """MICPM with equation 4 in place of equation 3, so that λ alone is to be chosen."""
    classifier, grid = _cardinality_model()
    majority = {"model__potential": [MajorityCardinality()]}
    return _from_zero_to_one(classifier, grid | majority)


def _on_kernel_of(
    model: CardinalityModel,
    kind: type[CardinalityKernelSVM],
    bags: Bags,
    memory: str | Memory | None,
) -> tuple[CardinalityKernelSVM, dict[str, list[Any]]]:
    kernels = [RBF(1.0, one * math.sqrt(bags.num_features)) for one in LENGTH_SCALE]
    grid = {"penalty": list(PENALTY), "instance_kernel": kernels}
    return kind(model, kernels[0], memory=memory), grid


def _on_given_kernel(
    model: CardinalityModel, kind: type[CardinalityKernelSVM], bags: Bags, memory: str | None
) -> Choice:
    return _from_zero_to_one(*_on_kernel_of(model, kind, bags, memory))


def _on_chosen_kernel(learns: bool, bags: Bags, memory: str | None) -> Choice:
    return _from_zero_to_one(TwoStageKernelSVM(learns, memory), {})


def _attempts(method: str, data: str) -> tuple[Attempt, ...]:
    """One attempt by the protocol as published, and one by the honest protocol."""
    models = {"MICPM": _micpm, _MAJORITY: _by_majority}
    if method in models:
        return Attempt(PUBLISHED, models[method]), Attempt(HONEST, models[method])
    learns = method == "MICPKL"
    honest = Attempt(HONEST, partial(_on_chosen_kernel, learns))
    mu, weight_scale = BEST_MODEL[data]
    model = CardinalityModel(NormalCardinality(mu, SIGMA), weight_scale)
    kind = CardinalityKernelLearner if learns else CardinalityKernelSVM
    return Attempt(PUBLISHED, partial(_on_given_kernel, model, kind)), honest


_MAJORITY = "MICPM, majority"
_OURS = ("MICPM", "MICPK-SVM", "MICPKL")
_COMPARATORS = {
    "miGraph": "miGraph",
    "ALP-SVM": "ALP-SVM",
    "MILES": "MILES",
    "MI-Kernel": "MI-Kernel",
    "mi-SVM": "mi-SVM",
    "MI-SVM": "MI-SVM",
}
_DATA = ("elephant", "fox", "tiger", "musk1", "musk2")
_ACCURACY = {
    "MICPM": (84, 65, 86, 81, 83),
    "MICPK-SVM": (88, 63, 87, 89, 89),
    "MICPKL": (89, 71, 88, 89, 89),
    "MIMN": (89, 64, 87, 86, 90),
    "MIRealBoost": (83, 63, 73, 91, 77),
    "ClassSetMaxRBM-XOR": (88, 60, 83, 84, 84),
    "MI-CRF": (85, 68, 83, 88, 85),
    "MIGraph": (85, 61, 82, 90, 90),
    "miGraph": (87, 62, 86, 90, 90),
    "ALP-SVM": (84, 66, 86, 86, 86),
    "MILES": (81, 62, 80, 88, 83),
    "MI-Kernel": (84, 60, 84, 88, 89),
    "mi-SVM": (82, 58, 79, 87, 84),
    "MI-SVM": (81, 59, 84, 78, 84),
}
_WHY = {
    ("mi-SVM", "elephant"): "the choice of settings: the best of twelve on the reported folds has "
    "78.0 % (`--by-setting`), what inner folds choose 76.5",
    ("mi-SVM", "musk2"): "the choice of settings: the best of twelve has 84.3 % on the reported "
    "folds (`--by-setting`)",
    ("miGraph", "musk2"): "the scaling of features: scaled to [0, 1] by the training bags the same "
    "search has 85.3 %, which is 1.6 standard errors below what is printed "
    "(`python benchmarks/settings_not_told.py`)",
    (
        "ALP-SVM",
        "elephant",
    ): "its threshold: over six settings on the reported folds the AUC is up to 0.92, and the "
    "accuracy 70 to 79 % (`--by-setting`)",
    ("MILES", "fox"): "the settings of the published figure, which are not told: twelve of them "
    "have 50 to 72 % on the reported folds (`--by-setting`)",
    ("MICPKL", "elephant"): "the paper tunes λ and C on the folds that it reports",
    ("MICPKL", "fox"): "the paper tunes λ and C on the folds that it reports",
}


def _cell(method: str, data: str, accuracy: float) -> Cell:
    published = {"accuracy": Published(accuracy / 100)}
    if data == "tiger":
        return Cell(method, data, published, missing="the tiger images are not at hand")
    why = _WHY.get((method, data), "")
    if method in _OURS:
        return Cell(method, data, published, _attempts(method, data), why=why)
    if method in _COMPARATORS:
        attempts = (Attempt(HONEST, comparator(_COMPARATORS[method])),)
        return Cell(method, data, published, attempts, why=why)
    return Cell(method, data, published, missing=f"{method} is not built here")


def _majority(data: str) -> Cell:
    """Of equation 4 the paper has no accuracy on these sets."""
    return Cell(_MAJORITY, data, {"accuracy": Published()}, _attempts(_MAJORITY, data))


PAPER = Paper(
    name="hajimirsadeghi-2017",
    citation="Hajimirsadeghi and Mori (2017), Multi-instance classification by max-margin training "
    "of cardinality-based Markov networks, IEEE TPAMI 39(9), 1839–1852.",
    remarks="Features are scaled to [0, 1]; σ = 0.1, and μ is found by a grid search for MICPM. λ "
    "and C are “roughly optimized on 10-fold cross-validation accuracy”, which is the accuracy "
    "that is reported. How the length scale of the kernel was found is not told. Here μ and λ of "
    "the kernel are those of MICPM: as published, the best on the reported folds; by the honest "
    "protocol, what inner folds choose. There MICPKL has C and the length scale of MICPK-SVM, and "
    "a λ of its own.",
    exhibits=(
        Exhibit(
            "figure-1",
            "The model as a graph",
            missing="a drawing of the model, without numbers; `CardinalityModel` is that model",
        ),
        Exhibit(
            "table-1",
            "Accuracy on five benchmark sets",
            finding="settings of comparators are chosen inside folds here, or are not told, and "
            "miGraph depends on the scaling of features; with the majority potential MICPM is "
            "about as accurate as with the normal one",
            cells=(
                *(
                    _cell(method, data, accuracy)
                    for method, row in _ACCURACY.items()
                    for data, accuracy in zip(_DATA, row, strict=True)
                ),
                *(_majority(data) for data in _DATA if data != "tiger"),
            ),
        ),
    ),
)
