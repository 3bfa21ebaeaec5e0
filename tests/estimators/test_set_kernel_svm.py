"""Kernels between bags by loops over pairs, their normalisation, and scikit-learn's classifier."""

import math

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators import set_kernel_svm
from milzoo.estimators.set_kernel_svm import (
    DistancesTo,
    MIKernelSVM,
    distance_blocks,
    minima_and_maxima,
)
from sklearn.svm import SVC

GAMMA = 0.3
LENGTH_SCALE = (0.5 / GAMMA) ** 0.5


@pytest.fixture(scope="module")
def bags():
    """Bags of 1 to 5 instances and one of 40, with two identical instances in one of them."""
    random = np.random.default_rng(0)
    sizes = [1, 3, 2, 40, 5, 1, 4, 2, 3, 5]
    labels = np.arange(10) % 2
    rows = [random.normal(0.8 * label, 1, (n, 3)) for n, label in zip(sizes, labels, strict=True)]
    rows[2][1] = rows[2][0]
    return Bags.from_list(rows, labels)


@pytest.fixture
def in_small_blocks(monkeypatch):
    monkeypatch.setattr(set_kernel_svm, "_ENTRIES", 5 * 66)


def pair_sum(one, other):
    return sum(
        math.exp(-GAMMA * sum((a - b) ** 2 for a, b in zip(x, z, strict=True)))
        for x in one
        for z in other
    )


def set_kernel(one, other, normalization):
    """As the paper has it."""
    if normalization == "mean":
        return pair_sum(one, other) / (len(one) * len(other))
    return pair_sum(one, other) / math.sqrt(pair_sum(one, one) * pair_sum(other, other))


def minimax_kernel(one, other, normalization, degree=2):
    def joint(one, other):
        total = 0.0
        for d in range(3):
            total += min(x[d] for x in one) * min(x[d] for x in other)
            total += max(x[d] for x in one) * max(x[d] for x in other)
        return (GAMMA * total + 1) ** degree

    norm = math.sqrt(joint(one, one) * joint(other, other)) if normalization == "kernel" else 1.0
    return joint(one, other) / norm


@pytest.mark.parametrize("normalization", ["kernel", "mean"])
@pytest.mark.parametrize(("name", "kernel_of"), [("set", set_kernel), ("minimax", minimax_kernel)])
def test_decision_is_the_svms_on_the_papers_kernel(
    bags, in_small_blocks, name, kernel_of, normalization
):
    training, test = bags.select(np.arange(7)), bags.select([8, 3, 9, 7])
    between = [
        np.array(
            [[kernel_of(a, b, normalization) for b in training.to_list()] for a in side.to_list()]
        )
        for side in (training, test)
    ]
    reference = SVC(C=2.0, kernel="precomputed", tol=1e-6).fit(between[0], training.labels)
    classifier = MIKernelSVM(name, normalization, LENGTH_SCALE, degree=2, penalty=2.0)
    found = classifier.fit(training)
    np.testing.assert_allclose(found._kernel(test, training), between[1], rtol=1e-12)
    expected = reference.decision_function(between[1])
    np.testing.assert_allclose(found.decision_function(test), expected, atol=1e-5)


def test_blocks_have_every_distance_once(bags, in_small_blocks):
    others = bags.select([4, 0, 3])
    blocks = list(distance_blocks(bags, others))
    assert len(blocks) > 2
    distance = np.concatenate([block.distance for block in blocks])
    expected = np.linalg.norm(bags.instances[:, None] - others.instances, axis=2)
    np.testing.assert_allclose(distance, expected, rtol=1e-12, atol=1e-12)
    rows = [block.starts + block.rows.start for block in blocks]
    np.testing.assert_array_equal(np.concatenate(rows), bags.starts)


def test_products_give_distances_far_from_the_origin(bags):
    rows, others = bags.instances + 1e6, bags.instances[::3] + 1e6
    expected = np.sum((others[:, None] - rows) ** 2, axis=2)
    np.testing.assert_allclose(DistancesTo.of(rows).squared(others), expected, atol=1e-12)


def test_identical_rows_are_at_distance_zero(bags):
    itself = np.diag(DistancesTo.of(bags.instances).squared(bags.instances))
    assert (itself >= 0).all()
    np.testing.assert_allclose(itself, 0, atol=1e-13)


def test_minimax_tells_bags_by_their_extremes():
    bags = Bags.from_list([[[1.0, -2.0], [3.0, 0.0]], [[5.0, 6.0]]])
    assert minima_and_maxima(bags).tolist() == [[1.0, -2.0, 3.0, 0.0], [5.0, 6.0, 5.0, 6.0]]


def test_copies_of_instances_change_nothing(bags):
    """Of all instances of a bag: f(X) grows along."""
    doubled = Bags.from_list([np.repeat(rows, 2, axis=0) for rows in bags.to_list()], bags.labels)
    for setting in ({}, {"normalization": "mean"}, {"kernel": "minimax"}):
        classifier = MIKernelSVM(**setting).fit(bags)
        np.testing.assert_allclose(
            classifier.decision_function(doubled), classifier.decision_function(bags), atol=1e-12
        )


@pytest.mark.parametrize("kernel", ["set", "minimax"])
def test_default_length_scale_is_scikit_learns(bags, kernel):
    rows = bags.instances if kernel == "set" else minima_and_maxima(bags)
    reference = SVC(gamma="scale").fit(rows, np.arange(len(rows)) % 2)
    assert MIKernelSVM(kernel).fit(bags)._gamma == pytest.approx(reference._gamma, rel=1e-12)


def test_constant_features_still_have_a_length_scale():
    bags = Bags.from_list([np.ones((2, 4)), np.ones((1, 4))], [0, 1])
    classifier = MIKernelSVM().fit(bags)
    assert classifier.length_scale_ == pytest.approx(2**0.5)
    assert np.isfinite(classifier.decision_function(bags)).all()


def test_prediction_ignores_other_bags_and_orders(bags):
    classifier = MIKernelSVM(length_scale=LENGTH_SCALE).fit(bags)
    together = classifier.decision_function(bags)
    alone = np.array([classifier.decision_function(bags[b])[0] for b in range(len(bags))])
    np.testing.assert_array_equal(alone, together)
    backwards = Bags.from_list([rows[::-1] for rows in bags.to_list()])
    np.testing.assert_allclose(classifier.decision_function(backwards), together, atol=1e-12)


def test_memory_keeps_kernels_for_other_penalties(bags, tmp_path, monkeypatch):
    expected = MIKernelSVM(penalty=10.0).fit(bags).decision_function(bags)
    MIKernelSVM(memory=str(tmp_path)).fit(bags).decision_function(bags)
    monkeypatch.delattr(set_kernel_svm, "rbf_between_bags")
    found = MIKernelSVM(penalty=10.0, memory=str(tmp_path)).fit(bags).decision_function(bags)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(NameError, match="rbf_between_bags"):
        MIKernelSVM(length_scale=0.5, memory=str(tmp_path)).fit(bags)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"kernel": "sum"}, "MIKernelSVM kernel is 'sum'; expected one of set, minimax"),
        ({"normalization": "size"}, "normalization is 'size'; expected one of kernel, mean"),
        (
            {"length_scale": 0.0},
            "length_scale is 0.0; expected a positive finite number, or None for",
        ),
        ({"degree": 1.5}, "degree is 1.5; expected an integer of at least 1"),
        ({"penalty": -1.0}, "penalty is -1.0; expected a positive"),
    ],
)
def test_bad_parameters_are_refused(bags, setting, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        MIKernelSVM(**setting).fit(bags)
