"""Estimators of bags by scikit-learn's contract: any model with any engine, and comparators."""

from .alp_svm import ALPSVM
from .andrews_svm import MISVM, miSVM
from .bayesian import BayesianMIL, BayesianMILRegressor
from .cardinality_gp import CardinalityGPClassifier
from .citation_knn import CitationKNN
from .concept_fraction import ConceptFractionClassifier
from .concepts import EMDD, DiverseDensityLearner
from .dd_svm import DDSVM
from .ellipsoidal_mil import EllipsoidalMIL
from .ensemble import BagEnsemble
from .fisher_vectors import MiFV
from .kernel_classifiers import CardinalityKernelLearner, CardinalityKernelSVM
from .ki_svm import KISVM
from .mi_forest import MIForest
from .mi_graph import MiGraph
from .mil_boost import MILBoost
from .miles import MILES
from .prototypes import PrototypeLearner
from .score_classifiers import Elbow, ScoreLearner, choose_by_elbow
from .set_kernel_svm import MIKernelSVM
from .stick_breaking import StickBreakingClassifier
from .transformers import (
    KernelPCA,
    PCAOfInstances,
    ScoreInstances,
    StandardizeInstances,
    TransformInstances,
)
from .vocabulary_svm import VocabularySVM

__all__ = [
    "ALPSVM",
    "DDSVM",
    "EMDD",
    "KISVM",
    "MILES",
    "MISVM",
    "BagEnsemble",
    "BayesianMIL",
    "BayesianMILRegressor",
    "CardinalityGPClassifier",
    "CardinalityKernelLearner",
    "CardinalityKernelSVM",
    "CitationKNN",
    "ConceptFractionClassifier",
    "DiverseDensityLearner",
    "Elbow",
    "EllipsoidalMIL",
    "KernelPCA",
    "MIForest",
    "MIKernelSVM",
    "MILBoost",
    "MiFV",
    "MiGraph",
    "PCAOfInstances",
    "PrototypeLearner",
    "ScoreInstances",
    "ScoreLearner",
    "StandardizeInstances",
    "StickBreakingClassifier",
    "TransformInstances",
    "VocabularySVM",
    "choose_by_elbow",
    "miSVM",
]
