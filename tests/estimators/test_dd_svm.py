"""DD-SVM: prototypes of both labels, the features of bags, and the classifier on them."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators import concepts
from milzoo.estimators.dd_svm import DDSVM
from milzoo.estimators.prototypes import instances_of_positive_bags
from scipy.optimize import minimize
from sklearn.svm import SVC

SETTINGS = {"scale": 1.0, "learns_scales": False, "label_noise": 0.05}


@pytest.fixture(scope="module")
def bags():
    """Instances near (3, 3) are in positive bags only, those near (−3, 0) in negative ones."""
    random = np.random.default_rng(0)
    # As many searches for either label: one program is compiled for both.
    tables, labels, sizes = [], np.arange(12) % 2, np.repeat([1, 2, 5, 1, 2, 3], 2)
    for label, size in zip(labels, sizes, strict=True):
        own = random.uniform(-1, 1, size=(size, 2))
        own[0] = ([3, 3] if label else [-3, 0]) + 0.3 * random.standard_normal(2)
        tables.append(own)
    return Bags.from_list(tables, labels)


@pytest.fixture(scope="module")
def fitted(bags):
    return DDSVM(0.5, **SETTINGS).fit(bags)


def log_density(point, bags, labels):
    """The log of noisy-or diverse density with label noise, bag by bag."""
    total = 0.0
    for own, label in zip(bags.to_list(), labels, strict=True):
        negative = np.prod([1 - np.exp(-np.sum((x - point) ** 2)) for x in own])
        total += np.log(0.05 + 0.9 * (1 - negative if label else negative))
    return total


@pytest.mark.in_ci
@pytest.mark.parametrize("label", [0, 1])
def test_prototypes_are_the_higher_maxima_of_density(bags, fitted, label):
    """Another optimiser from every instance of the bags with that label."""
    labels = bags.labels if label else 1 - bags.labels
    starts = bags.instances[labels[bags.bag_index] == 1]
    ends = [
        minimize(lambda x: -log_density(x, bags, labels), start, method="Nelder-Mead", tol=1e-7)
        for start in starts
    ]
    distinct = []
    for end in sorted(ends, key=lambda end: end.fun):
        if all(np.linalg.norm(end.x - other.x) >= 0.5 for other in distinct):
            distinct.append(end)
    half_way = (distinct[0].fun + distinct[-1].fun) / 2
    expected = np.array([end.x for end in distinct if end.fun <= half_way])
    found = fitted.positive_prototypes_ if label else fitted.negative_prototypes_
    assert len(found.points) == len(expected)
    np.testing.assert_allclose(found.points, expected, atol=1e-3)


@pytest.mark.in_ci
def test_highest_prototypes_are_the_concepts(fitted):
    assert np.linalg.norm(fitted.positive_prototypes_.points[0] - [3, 3]) < 0.5
    assert np.linalg.norm(fitted.negative_prototypes_.points[0] - [-3, 0]) < 0.5


@pytest.mark.slow
def test_decisions_are_of_the_nearest_distances(bags, fitted):
    peaks = (fitted.positive_prototypes_, fitted.negative_prototypes_)
    points = [
        (point, scale)
        for some in peaks
        for point, scale in zip(some.points, some.scales, strict=True)
    ]
    features = np.array(
        [
            [min(np.sqrt(np.sum((s * (x - t)) ** 2)) for x in own) for t, s in points]
            for own in bags.to_list()
        ]
    )
    gamma = 1 / (features.shape[1] * features.var())
    expected = SVC(C=1.0, gamma=gamma).fit(features, bags.labels).decision_function(features)
    np.testing.assert_allclose(fitted.decision_function(bags), expected, atol=1e-6)
    assert fitted.score(bags) == 1


def test_the_length_scale_sets_the_kernel(bags):
    given = DDSVM(0.5, **SETTINGS, length_scale=2.0, penalty=3.0).fit(bags)
    assert given.svc_.gamma == 1 / 8
    assert given.svc_.C == 3


def test_memory_keeps_prototypes_for_other_penalties(bags, fitted, tmp_path, monkeypatch):
    DDSVM(0.5, **SETTINGS, memory=str(tmp_path)).fit(bags)
    monkeypatch.delattr(concepts, "instances_of_positive_bags")
    found = DDSVM(0.5, **SETTINGS, penalty=3.0, memory=str(tmp_path)).fit(bags)
    np.testing.assert_array_equal(
        found.positive_prototypes_.points, fitted.positive_prototypes_.points
    )
    assert found.svc_.C == 3
    with pytest.raises(NameError, match="instances_of_positive_bags"):
        DDSVM(0.4, **SETTINGS, memory=str(tmp_path)).fit(bags)


def test_searches_for_either_label_start_in_the_smallest_bags(bags, monkeypatch):
    """Of two bags of one instance each, the first: both searches have one start."""
    starts = []

    def recorded(*arguments):
        starts.append(instances_of_positive_bags(*arguments))
        return starts[-1]

    monkeypatch.setattr(concepts, "instances_of_positive_bags", recorded)
    DDSVM(0.5, **SETTINGS, start_bags=1).fit(bags)
    np.testing.assert_array_equal(starts, [bags[[1]].instances, bags[[0]].instances])


@pytest.mark.slow
def test_learned_scales_leave_a_useless_feature_out(bags):
    """A third feature is uniform, and tells nothing of the label."""
    random = np.random.default_rng(1)
    noise = random.uniform(-5, 5, size=(bags.num_instances, 1))
    wider = replace(bags, instances=np.hstack([bags.instances, noise]))
    learned = DDSVM(0.5, scale=0.5, label_noise=0.05).fit(wider)
    scales = learned.positive_prototypes_.scales[0]
    assert scales[2] < 0.2 * scales[:2].max()


def test_bags_are_predicted_one_by_one(bags, fitted):
    single = np.concatenate([fitted.decision_function(bag) for bag in bags])
    np.testing.assert_allclose(single, fitted.decision_function(bags), atol=1e-12)
    turned = Bags.from_list([own[::-1] for own in bags.to_list()])
    np.testing.assert_array_equal(fitted.decision_function(turned), fitted.decision_function(bags))


def test_a_copy_predicts_the_same(bags, fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.decision_function(bags), fitted.decision_function(bags))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"separation": 0}, "DDSVM separation is 0; expected a positive finite number"),
        ({"label_noise": 0.5}, "DDSVM label_noise is 0.5; expected 0 or more"),
        ({"length_scale": -1.0}, "DDSVM length_scale is -1.0; expected .* or None for one from"),
        ({"start_bags": 0}, "DDSVM start_bags is 0; expected .* or None for all"),
        ({"penalty": 0.0}, "DDSVM penalty is 0.0; expected a positive finite number"),
    ],
)
def test_bad_parameters_are_refused(bags, settings, message):
    with pytest.raises(ValueError, match=message):
        DDSVM(**({"separation": 1.0} | settings)).fit(bags)
