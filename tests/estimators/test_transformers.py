"""Transformers of bags: they learn from training bags alone, and scores are cross-fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from milzoo.datasets import Bags, kernel_pca, load
from milzoo.datasets.bags import Standardization
from milzoo.estimators import (
    BayesianMIL,
    KernelPCA,
    PCAOfInstances,
    ScoreInstances,
    ScoreLearner,
    StandardizeInstances,
    TransformInstances,
)
from milzoo.models import VWSGP, NeighbourScore
from sklearn.base import clone
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedGroupKFold,
    StratifiedKFold,
    cross_val_score,
    cross_validate,
    permutation_test_score,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler

SCORER = ScoreLearner(NeighbourScore(k=2))


@pytest.fixture(scope="module")
def scene():
    return load("kandemir2014")


@pytest.fixture(scope="module")
def parts(scene):
    return scene.split(0.7, seed=0)


def test_instances_are_standardised_by_the_training_bags(parts):
    training, test = parts
    fitted = StandardizeInstances().fit(training)
    expected = (test.instances - training.instances.mean(axis=0)) / training.instances.std(axis=0)
    np.testing.assert_allclose(fitted.transform(test).instances, expected, rtol=1e-12)


@pytest.mark.parametrize("per_feature", [9, 10])
def test_components_are_those_of_the_training_instances(per_feature):
    """Singular vectors of centred training instances, few or many for each feature."""
    rows = np.random.default_rng(0).normal(size=(9, per_feature, 7)) * np.arange(1, 8) + 2.0
    training, test = Bags.from_list(list(rows[:7])), Bags.from_list(list(rows[7:]))
    centre = training.instances.mean(axis=0)
    _, _, vectors = np.linalg.svd(training.instances - centre)
    step = PCAOfInstances(3).fit(training)
    assert (step.transformer_.svd_solver == "covariance_eigh") == (per_feature >= 10)
    found, expected = step.transform(test).instances, (test.instances - centre) @ vectors[:3].T
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-9, atol=1e-11)


def test_whitened_components_have_variance_one(parts):
    training, _ = parts
    white = PCAOfInstances(2, whiten=True).fit_transform(training).instances
    np.testing.assert_allclose(white.var(axis=0, ddof=1), 1.0, rtol=1e-9)


def test_kernel_components_are_those_of_kernel_pca(parts):
    training, test = parts
    _, expected = kernel_pca(training, test, num_components=3, length_scale=1.0)
    found = KernelPCA(3, 1.0).fit(training).transform(test)
    np.testing.assert_array_equal(found.instances, expected.instances)


def test_any_transformer_of_rows_is_applied(parts):
    training, test = parts
    low, high = training.instances.min(axis=0), training.instances.max(axis=0)
    found = TransformInstances(MinMaxScaler()).fit(training).transform(test)
    np.testing.assert_allclose(found.instances, (test.instances - low) / (high - low))
    assert found.names == test.names
    np.testing.assert_array_equal(found.labels, test.labels)


def test_training_bags_are_scored_by_other_folds(scene):
    folds = StratifiedKFold(4)
    found = ScoreInstances(SCORER, folds).fit_transform(scene).instances[:, 0]
    for training, held_out in folds.split(scene.labels, scene.labels):
        others = clone(SCORER).fit(scene.select(training))
        for b in held_out:
            own = scene.bag_index == b
            expected = others.score_instances(scene.select([b]))
            np.testing.assert_allclose(found[own], expected, rtol=1e-12)


def test_new_bags_are_scored_by_all_training_bags(parts):
    training, test = parts
    transformer = ScoreInstances(SCORER, 3, keep_features=True).fit(training)
    found = transformer.transform(test).instances
    np.testing.assert_array_equal(found[:, :-1], test.instances)
    np.testing.assert_allclose(found[:, -1], clone(SCORER).fit(training).score_instances(test))


def test_bad_parameters_are_refused_by_fit(scene, without_type_checks):
    with pytest.raises(ValueError, match="PCAOfInstances num_components is 0; expected an integer"):
        PCAOfInstances(0).fit(scene)
    with pytest.raises(ValueError, match="KernelPCA length_scale is -1; expected a positive"):
        KernelPCA(2, -1).fit(scene)
    with pytest.raises(TypeError, match="StandardizeInstances: X is of type ndarray; expected Bag"):
        StandardizeInstances().fit(scene.instances)


# ---------------------------------------------------------- folds of scikit-learn are bags


def classifier():
    model = BayesianMIL(VWSGP, "coordinate_ascent", seed=0, model__num_inducing=10)
    return Pipeline([("standardize", StandardizeInstances()), ("classify", model)])


@pytest.mark.in_ci
def test_nested_cross_validation_takes_bags(scene):
    grid = {"classify__model__variance": [0.5, 5.0]}
    search = GridSearchCV(classifier(), grid, cv=2, scoring="neg_log_loss")
    scores = cross_val_score(search, scene, scene.labels, cv=2, scoring="roc_auc")
    assert scores.shape == (2,)
    assert (scores > 0.5).all()


def test_groups_and_permutations_take_bags(scene):
    groups = np.arange(len(scene)) // 2
    learner = make_pipeline(StandardizeInstances(), SCORER)
    folds = StratifiedGroupKFold(2)
    scores = cross_val_score(learner, scene, scene.labels, groups=groups, cv=folds)
    found, permuted, p = permutation_test_score(
        learner, scene, scene.labels, cv=2, n_permutations=9, random_state=0
    )
    assert scores.shape == (2,)
    assert found > permuted.max()
    assert p == 0.1


def changes_with_test_bags(estimator, scene) -> bool:
    """Whether predictions of fixed bags change with the bags of the test fold."""
    (training, test), _ = StratifiedKFold(2).split(scene.labels, scene.labels)
    moved = scene.instances.copy()
    moved[np.isin(scene.bag_index, test)] += 3.0
    found = []
    for bags in (scene, replace(scene, instances=moved)):
        SEEN["bags"] = bags
        (fitted,) = cross_validate(
            estimator, bags, bags.labels, cv=[(training, test)], return_estimator=True
        )["estimator"]
        found.append(fitted.decision_function(scene))
    return not np.array_equal(*found)


SEEN = {}


class PeeksAtAllBags(StandardizeInstances):
    """A planted leak."""

    def _fit(self, bags, y):
        self.standardization_ = Standardization.of(SEEN["bags"])


@pytest.mark.in_ci
def test_nothing_of_the_test_fold_is_seen(scene):
    grid = {"classify__model__variance": [0.5, 5.0]}
    assert not changes_with_test_bags(GridSearchCV(classifier(), grid, cv=2), scene)
    peeking = classifier().set_params(standardize=PeeksAtAllBags())
    assert changes_with_test_bags(peeking, scene)
