"""Estimators of bags by scikit-learn's contract: any model with any engine, and comparators."""

from .bayesian import BayesianMIL, BayesianMILRegressor
from .concepts import EMDD, DiverseDensityLearner
from .kernel_classifiers import CardinalityKernelLearner, CardinalityKernelSVM
from .measure_classifiers import Elbow, MeasureLearner, choose_by_elbow
from .prototypes import PrototypeLearner
from .transformers import (
    KernelPCA,
    PCAOfInstances,
    ScoreInstances,
    StandardizeInstances,
    TransformInstances,
)

__all__ = [
    "EMDD",
    "BayesianMIL",
    "BayesianMILRegressor",
    "CardinalityKernelLearner",
    "CardinalityKernelSVM",
    "DiverseDensityLearner",
    "Elbow",
    "KernelPCA",
    "MeasureLearner",
    "PCAOfInstances",
    "PrototypeLearner",
    "ScoreInstances",
    "StandardizeInstances",
    "TransformInstances",
    "choose_by_elbow",
]
