"""Estimators with fit and predict, without a posterior."""

from .concepts import EMDD, DiverseDensityLearner
from .kernel_classifiers import (
    CardinalityKernelClassifier,
    CardinalityKernelLearner,
    CardinalityKernelSVM,
)
from .measure_classifiers import Elbow, MeasureClassifier, MeasureLearner, choose_by_elbow
from .prototypes import PrototypeClassifier, PrototypeLearner

__all__ = [
    "EMDD",
    "CardinalityKernelClassifier",
    "CardinalityKernelLearner",
    "CardinalityKernelSVM",
    "DiverseDensityLearner",
    "Elbow",
    "MeasureClassifier",
    "MeasureLearner",
    "PrototypeClassifier",
    "PrototypeLearner",
    "choose_by_elbow",
]
