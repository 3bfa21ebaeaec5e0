"""Scikit-learn's own checks of every estimator, and what they must do with bags."""

from __future__ import annotations

import functools
import inspect

import milzoo.estimators
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators import (
    ALPSVM,
    DDSVM,
    EMDD,
    KISVM,
    MILES,
    MISVM,
    BagEnsemble,
    BayesianMIL,
    BayesianMILRegressor,
    CardinalityGPClassifier,
    CardinalityKernelLearner,
    CardinalityKernelSVM,
    CitationKNN,
    ConceptFractionClassifier,
    DiverseDensityLearner,
    EllipsoidalMIL,
    KernelPCA,
    MIForest,
    MiFV,
    MiGraph,
    MIKernelSVM,
    MILBoost,
    PCAOfInstances,
    PrototypeLearner,
    ScoreInstances,
    ScoreLearner,
    StandardizeInstances,
    StickBreakingClassifier,
    TransformInstances,
    VocabularySVM,
    miSVM,
)
from milzoo.estimators.deep import AttentionNetwork, DeepVGPMIL
from milzoo.models import RBF, VWSGP, CardinalityModel, NeighbourScore, NormalCardinality
from milzoo.models.parts.likelihoods import Gaussian
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_array

COUNTED = CardinalityModel(NormalCardinality(0.6, 0.2))

QUICK = [
    BayesianMIL(VWSGP, "coordinate_ascent", seed=0, model__num_inducing=10),
    ScoreLearner(NeighbourScore(k=2)),
    KernelPCA(2, length_scale=2.0),
    PCAOfInstances(2),
    ScoreInstances(ScoreLearner(NeighbourScore(k=2)), cv=2),
    StandardizeInstances(),
    TransformInstances(MinMaxScaler()),
    miSVM(),
    MISVM(),
    MIKernelSVM(),
    MiGraph(),
    CitationKNN(),
    ConceptFractionClassifier(),
    MILES(width=2.0),
    EllipsoidalMIL(),
]
# They compile programs for the shapes of each check.
SLOW = [
    BayesianMILRegressor(
        VWSGP,
        "coordinate_ascent",
        seed=0,
        model__num_inducing=10,
        model__variance=10.0,
        model__likelihood=Gaussian(0.1),
    ),
    CardinalityGPClassifier(BayesianMIL(COUNTED, "laplace", seed=0), 1.5, num_draws=3, seed=0),
    CardinalityKernelSVM(COUNTED, RBF(1.0, 1.5)),
    CardinalityKernelLearner(COUNTED, RBF(1.0, 1.5), max_steps=2),
    DiverseDensityLearner(1.0, learns_scales=False, label_noise=0.01),
    EMDD(1.0, learns_scales=False, label_noise=0.01),
    PrototypeLearner(NeighbourScore(k=2), separation=1.0, max_steps=10),
    ALPSVM(),
    BagEnsemble(CitationKNN(), num_members=3, seed=0),
    DDSVM(1.0, learns_scales=False, label_noise=0.01),
    KISVM(),
    KISVM(level="instance"),
    MIForest(seed=0, num_trees=10),
    MiFV(seed=0),
    MILBoost(seed=0, max_steps=20),
    StickBreakingClassifier(
        BayesianMIL(VWSGP, "coordinate_ascent", seed=0, model__num_inducing=10)
    ),
    VocabularySVM(num_words=5, seed=0),
    AttentionNetwork(4, num_epochs=30, learning_rate=1e-2, seed=0),
    DeepVGPMIL(3, 10, num_epochs=30, learning_rate=1e-2, seed=0),
]

_WORDING = "the message names num_inducing or num_components, and not the one sample or feature"

_SETTING = "check_do_not_raise_errors_in_init_or_set_params"
_NAMES = "settings are given by their names, and one called settings is refused"


def what_does_not_apply(estimator):
    """Checks of scikit-learn that an estimator cannot pass, with the reason."""
    match type(estimator).__name__:
        case "BayesianMIL":
            return {_SETTING: _NAMES}
        case "BayesianMILRegressor":
            return {_SETTING: _NAMES, "check_fit2d_1sample": _WORDING}
        case "KernelPCA":
            return {"check_fit2d_1sample": _WORDING}
        case "PCAOfInstances":
            return {"check_fit2d_1sample": _WORDING, "check_fit2d_1feature": _WORDING}
        case "ScoreInstances":
            crossed = "fit_transform scores training bags by cross-fitting, and transform does not"
            names = ("check_transformer_general", "check_transformer_data_not_an_array")
            return dict.fromkeys(names, crossed)
    return {}


def on_rows(estimator):
    """The estimator, which takes each row of an array for a bag of one instance."""
    return class_on_rows(type(estimator))(**estimator.get_params(deep=False))


@functools.cache  # pickle wants one class of each name
def class_on_rows(kind):
    """A subclass that makes bags of the rows of an array."""

    def by_rows(method):
        @functools.wraps(method)
        def wrapped(self, X, *labels, **kwargs):
            if not isinstance(X, Bags):
                rows = check_array(X, estimator=self)
                X = Bags.from_arrays(rows, np.arange(len(rows)))
            if labels and isinstance(self, ScoreInstances):  # transformers get any kind of y
                labels = (np.unique(labels[0], return_inverse=True)[1] % 2,)
            found = method(self, X, *labels, **kwargs)
            return np.asarray(found.instances) if isinstance(found, Bags) else found

        return wrapped

    methods = {
        name: by_rows(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and list(inspect.signature(method).parameters)[1:2] == ["bags"]
    }

    def tags(self):
        found = kind.__sklearn_tags__(self)
        found.input_tags.two_d_array = True  # else scikit-learn has nothing to check
        return found

    methods |= {"__sklearn_tags__": tags, "__module__": __name__}
    adapted = type(kind.__name__, (kind,), methods)
    # pickle looks classes up by name
    adapted.__qualname__ = f"{kind.__name__}OnRows"
    globals()[adapted.__qualname__] = adapted
    return adapted


@pytest.mark.in_ci
@parametrize_with_checks(
    [on_rows(one) for one in QUICK], expected_failed_checks=what_does_not_apply
)
def test_scikit_learns_check_passes(estimator, check, without_type_checks):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([on_rows(one) for one in SLOW], expected_failed_checks=what_does_not_apply)
def test_scikit_learns_check_passes_with_programs(estimator, check, without_type_checks):
    check(estimator)


def test_every_estimator_is_checked():
    """A new one is added to a list above."""
    public = {
        getattr(module, name)
        for module in (milzoo.estimators, milzoo.estimators.deep)
        for name in module.__all__
    }
    estimators = {one for one in public if isinstance(one, type) and hasattr(one, "fit")}
    assert estimators == {type(one) for one in [*QUICK, *SLOW]}
