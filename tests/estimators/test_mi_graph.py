"""miGraph's kernel by loops over pairs, and its weights where they are known."""

import math

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators import mi_graph
from milzoo.estimators.mi_graph import MiGraph, weights_by_affinity
from milzoo.estimators.set_kernel_svm import MIKernelSVM
from sklearn.svm import SVC

GAMMA = 0.3
LENGTH_SCALE = (0.5 / GAMMA) ** 0.5


@pytest.fixture(scope="module")
def bags():
    random = np.random.default_rng(1)
    sizes = [1, 3, 2, 12, 5, 1, 4, 2, 3, 6]
    labels = np.arange(10) % 2
    rows = [random.normal(0.8 * label, 1, (n, 3)) for n, label in zip(sizes, labels, strict=True)]
    return Bags.from_list(rows, labels)


def mi_graph_kernel(one, other, threshold):
    """Equations of the paper, pair by pair."""

    def weights(rows):
        found = [[math.dist(x, z) for z in rows] for x in rows]
        limit = sum(map(sum, found)) / len(rows) ** 2 if threshold is None else threshold
        near = [
            sum(1 for u, d in enumerate(row) if d < limit or u == i) for i, row in enumerate(found)
        ]
        return [1 / count for count in near]

    w, v = weights(one), weights(other)
    total = sum(
        w[i] * v[j] * math.exp(-GAMMA * math.dist(x, z) ** 2)
        for i, x in enumerate(one)
        for j, z in enumerate(other)
    )
    return total / (sum(w) * sum(v))


@pytest.mark.parametrize("threshold", [None, 1.5])
def test_decision_is_the_svms_on_the_papers_kernel(bags, threshold):
    training, test = bags.select(np.arange(7)), bags.select([8, 3, 9, 7])
    between = [
        np.array([[mi_graph_kernel(a, b, threshold) for b in training.to_list()] for a in side])
        for side in (training.to_list(), test.to_list())
    ]
    reference = SVC(C=2.0, kernel="precomputed", tol=1e-6).fit(between[0], training.labels)
    found = MiGraph(LENGTH_SCALE, threshold, penalty=2.0).fit(training)
    np.testing.assert_allclose(found._kernel(test, training), between[1], rtol=1e-12)
    expected = reference.decision_function(between[1])
    np.testing.assert_allclose(found.decision_function(test), expected, atol=1e-5)


def test_each_cluster_has_the_same_weight():
    bags = Bags.from_list([[[0.0], [0.1], [0.2], [9.0]], [[5.0], [5.0]], [[1.0]]])
    expected = [1 / 6, 1 / 6, 1 / 6, 1 / 2, 1 / 2, 1 / 2, 1]
    for threshold in (1.0, None):  # None: 27.7 / 8 in the first bag, 0 in the others
        np.testing.assert_allclose(weights_by_affinity(bags, threshold), expected, rtol=1e-12)


def test_instance_at_the_threshold_is_no_neighbour():
    bags = Bags.from_list([[[0.0], [1.0], [3.0]]])
    np.testing.assert_allclose(weights_by_affinity(bags, 2.0), [0.25, 0.25, 0.5])
    np.testing.assert_allclose(weights_by_affinity(bags, 2.1), [0.375, 0.25, 0.375])


def test_lonely_instances_make_the_mean_kernel(bags):
    lonely = MiGraph(LENGTH_SCALE, threshold=1e-9).fit(bags).decision_function(bags)
    mean = MIKernelSVM("set", "mean", length_scale=LENGTH_SCALE).fit(bags).decision_function(bags)
    np.testing.assert_allclose(lonely, mean, atol=1e-6)


def test_prediction_ignores_other_bags_and_orders(bags):
    classifier = MiGraph().fit(bags)
    together = classifier.decision_function(bags)
    alone = np.array([classifier.decision_function(bags[b])[0] for b in range(len(bags))])
    np.testing.assert_array_equal(alone, together)
    backwards = Bags.from_list([rows[::-1] for rows in bags.to_list()])
    np.testing.assert_allclose(classifier.decision_function(backwards), together, atol=1e-12)


def test_memory_keeps_kernels_for_other_penalties(bags, tmp_path, monkeypatch):
    expected = MiGraph(penalty=10.0).fit(bags).decision_function(bags)
    MiGraph(memory=str(tmp_path)).fit(bags).decision_function(bags)
    monkeypatch.delattr(mi_graph, "rbf_between_bags")
    found = MiGraph(penalty=10.0, memory=str(tmp_path)).fit(bags).decision_function(bags)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(NameError, match="rbf_between_bags"):
        MiGraph(length_scale=0.5, memory=str(tmp_path)).fit(bags)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            {"length_scale": -1.0},
            "MiGraph length_scale is -1.0; expected a positive .* or None for",
        ),
        ({"threshold": 0.0}, "threshold is 0.0; expected a positive .* average distance in each"),
        ({"penalty": 0.0}, "penalty is 0.0; expected a positive"),
    ],
)
def test_bad_parameters_are_refused(bags, setting, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        MiGraph(**setting).fit(bags)
