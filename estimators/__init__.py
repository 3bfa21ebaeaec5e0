"""How do I use it, and what else is there? Methods with fit and predict."""

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
