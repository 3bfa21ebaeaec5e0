"""Classifiers of bags that the papers compare with, and the settings that are chosen."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from ..datasets.bags import Bags
from ..estimators import (
    ALPSVM,
    DDSVM,
    EMDD,
    KISVM,
    MILES,
    MISVM,
    BagEnsemble,
    BayesianMIL,
    CitationKNN,
    ConceptFractionClassifier,
    DiverseDensityLearner,
    EllipsoidalMIL,
    MIForest,
    MiFV,
    MiGraph,
    MIKernelSVM,
    MILBoost,
    ScoreLearner,
    StandardizeInstances,
    VocabularySVM,
    miSVM,
)
from ..estimators.instance_kernels import InstanceKernel
from ..models import (
    RBF,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    Cosine,
    Linear,
    NeighbourScore,
)
from ..models.parts.sparse_gp import USUAL_VARIANCE
from .exhibits import Choice, Method

__all__ = ["comparator", "comparators", "on_features"]

# Of diverse density: a search from every instance of musk2 would take hours.
START_BAGS = 20


def on_features(
    transformer: Any, estimator: Any, grid: dict[str, list], memory: str | None = None
) -> Choice:
    """An estimator behind a transformer of features, which sees the training bags alone.

    Parameters
    ----------
    transformer : object
        Such as `StandardizeInstances`.
    estimator : object
    grid : dict of lists
        Its settings by name.
    memory : str or None
        Folder for transformed bags, which all settings of a grid share. Without it each setting
        has the transformer fitted again.

    Returns
    -------
    Pipeline
    dict of lists
        The grid by the names of the pipeline.
    """
    pipeline = Pipeline([("features", transformer), ("classify", estimator)], memory=memory)
    return pipeline, {f"classify__{name}": values for name, values in grid.items()}


def comparator(name: str) -> Method:
    """A method of `comparators` on standardised features, for an `Attempt`."""
    return partial(_comparator, name)


def _comparator(name: str, bags: Bags, memory: str | None) -> Choice:
    return on_features(StandardizeInstances(), *comparators(bags.num_features, memory)[name])


def comparators(num_features: int, memory: str | None = None) -> dict[str, Choice]:
    """By name: an estimator of standardised bags, and the grid that inner folds choose from.

    Kernels between bags are kept in the folder ``memory``: a grid has each of them many times.
    """
    typical = math.sqrt(num_features)  # two standardised instances are √(2D) apart on average
    penalty = {"penalty": [0.1, 1.0, 10.0, 100.0]}
    kernel = {"length_scale": [typical / 2, typical, 2 * typical]} | penalty
    wide = {"length_scale": [typical * root for root in (0.125**0.5, 0.5**0.5, 2**0.5)]} | penalty
    concepts = {"learns_scales": False, "label_noise": 0.01, "start_bags": START_BAGS}
    scale = {"scale": [1 / typical, 2 / typical, 4 / typical]}
    ascent = "coordinate_ascent"
    neighbourhood_scores = {"neighbourhood_score": [NeighbourScore(k) for k in (1, 3, 5, 9)]}
    return {
        "VWSGP": (BayesianMIL("vwsgp", ascent, seed=0), {}),
        "VWSGP, laplace": (BayesianMIL("vwsgp", "laplace", seed=0), {}),
        "VWSGP, linear kernel": (BayesianMIL("vwsgp", ascent, seed=0, model__kernel=Linear), {}),
        "VGPMIL": (BayesianMIL("vgpmil", ascent, seed=0), {}),
        "VGPMIL, cosine kernel": (BayesianMIL("vgpmil", ascent, seed=0, model__kernel=Cosine), {}),
        "ProbitGPMIL": (BayesianMIL("probit_gpmil", ascent, seed=0), {}),
        "CardinalityGP, set kernel": (
            BayesianMIL(process_on_set_kernel, ascent, seed=0),
            {"model__length_scale": wide["length_scale"]},
        ),
        "CardinalityModel": (BayesianMIL("cardinality", "maximum_a_posteriori", seed=0), {}),
        "GPMIL-S": (BayesianMIL("gpmil", "laplace", seed=0), {}),
        "BMIL": (BayesianMIL("bmil", "laplace", seed=0), {}),
        "mi-SVM": (miSVM(), kernel),
        "mi-SVM, linear": (miSVM("linear"), {"penalty": [0.01, 0.1, 1.0]}),
        "MI-SVM": (MISVM(), kernel),
        "MI-Kernel": (MIKernelSVM(memory=memory), wide),
        "MI-Kernel, minimax": (MIKernelSVM("minimax"), penalty | {"degree": [1, 2, 3]}),
        "miGraph": (MiGraph(memory=memory), wide),
        "Citation-kNN": (CitationKNN(), {}),
        "MILES": (MILES(typical), {"width": [typical / 2, typical, 2 * typical]} | penalty),
        "DD": (DiverseDensityLearner(typical / 2, **concepts), scale),
        "EM-DD": (EMDD(typical / 2, **concepts), scale),
        "DD-SVM": (DDSVM(typical / 2, **concepts, memory=memory), scale | penalty),
        "concept fraction": (ConceptFractionClassifier(), {"classifier": instance_classifiers()}),
        "neighbourhood score": (ScoreLearner(NeighbourScore(3)), neighbourhood_scores),
        "Bag-KI-SVM": (KISVM("bag"), kernel),
        "Inst-KI-SVM": (KISVM("instance"), penalty | {"balance": [1.0, 5.0, 25.0]}),
        "ALP-SVM": (ALPSVM(), {"positive_fraction": [0.3, 0.6, 0.9], "penalty": [1.0, 10.0]}),
        "MILBoost": (MILBoost(seed=0), {"max_steps": [30, 100], "max_depth": [1, 2]}),
        "MIForest": (MIForest(seed=0), {"start_temperature": [0.5, 1.0, 2.0, 4.0]}),
        "vocabulary SVM": (VocabularySVM(seed=0), {"num_words": [20, 50, 100]} | penalty),
        "eMIL": (EllipsoidalMIL(), {"radius": [0.5, 1.0, 2.0], "penalty": [0.01, 0.1, 1.0]}),
        "miFV": (MiFV(seed=0), {"num_components": [1, 2, 3]} | penalty),
        "bagging of Citation-kNN": (BagEnsemble(CitationKNN(), seed=0), {}),
    }


def process_on_set_kernel(
    bags: Bags, seed: int, length_scale: float | None = None
) -> CardinalityGP:
    """A process on the normalised set kernel: the cardinality kernel with weights of 0.

    Every instance is then positive with the same probability whatever its features, and the kernel
    is, up to terms that bag sizes make, the mean of k_x over pairs of instances.
    """
    instance_kernel = InstanceKernel.of("rbf", length_scale, bags.num_features)
    weights = np.zeros(bags.num_features)
    between = RBF(1.0, instance_kernel.length_scale)
    kernel = CardinalityKernel(CardinalityModel(), weights, between)
    return CardinalityGP.at_bags(kernel, bags, USUAL_VARIANCE)


def instance_classifiers() -> list[Pipeline]:
    """Classifiers of instances that the concept fraction chooses from."""
    neighbours = [KNeighborsClassifier(k) for k in (3, 5, 10, 20)]
    logistic = [LogisticRegression(C=strength, max_iter=1000) for strength in (0.01, 1.0)]
    return [make_pipeline(StandardScaler(), one) for one in (*neighbours, *logistic)]
