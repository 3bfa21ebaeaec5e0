"""mi-SVM and MI-SVM: fixed points by brute force, the published loops, cycles, edges."""

from itertools import product

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators import instance_kernels
from milzoo.estimators.andrews_svm import MISVM, ended, highest_rows, miSVM
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

PENALTY = 2.0
# A gradient of the dual that is right to 1e-5 leaves a gap of that times Σα at most.
GAP = 1e-5 * PENALTY
SIZES = (3, 1, 4, 2, 3, 2, 1, 3)
LABELS = np.array([1, 1, 1, 0, 1, 0, 0, 0])


@pytest.fixture(scope="module", params=[0, 1, 2])
def bags(request):
    """Small bags; one instance in each positive bag lies apart."""
    random = np.random.default_rng(request.param)
    arrays = [random.normal(size=(size, 2)) for size in SIZES]
    for array, label in zip(arrays, LABELS, strict=True):
        array[0] += 1.5 * label
    return Bags.from_list(arrays, LABELS)


def gram(first, second, kernel):
    if kernel == "linear":
        return first @ second.T
    squares = ((first[:, None] - second) ** 2).sum(axis=2)
    return np.exp(-squares / 4)  # ℓ² = D = 2


def by_scipy(rows, labels, kernel):
    """The objective and f of an SVM by its dual: an optimiser that knows nothing of SVMs."""
    y = 2.0 * labels - 1
    product_matrix = np.outer(y, y) * gram(rows, rows, kernel)
    found = minimize(
        lambda a: 0.5 * a @ product_matrix @ a - a.sum(),
        np.full(len(y), PENALTY / 2) * np.where(y > 0, (y < 0).sum(), (y > 0).sum()) / len(y),
        jac=lambda a: product_matrix @ a - 1,
        bounds=[(0, PENALTY)] * len(y),
        constraints={"type": "eq", "fun": lambda a: a @ y, "jac": lambda a: y},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert found.success
    return -found.fun


def objective(classifier, rows, labels, kernel):
    """½‖w‖² + C Σ hinge of a trained classifier."""
    svc = classifier.svc_
    support = svc.support_vectors_
    norm = svc.dual_coef_[0] @ gram(support, support, kernel) @ svc.dual_coef_[0]
    margins = (2 * labels - 1) * svc.decision_function(rows)
    return 0.5 * norm + PENALTY * np.maximum(0, 1 - margins).sum()


def hinge(scores, labels):
    return np.maximum(0, 1 - (2 * labels - 1) * scores).sum()


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_imputed_labels_are_best_of_all_labellings(bags, kernel):
    """Given f; and f is best given them, by scipy."""
    classifier = miSVM(kernel, penalty=PENALTY).fit(bags)
    assert classifier.status_.kind == "converged"
    scores, labels = classifier.score_instances(bags), classifier.instance_labels_
    for bag, label in enumerate(bags.labels):
        mine = bags.bag_index == bag
        allowed = [np.array(y) for y in product((0, 1), repeat=mine.sum()) if max(y) == label]
        best = min(hinge(scores[mine], y) for y in allowed)
        assert any(np.array_equal(labels[mine], y) for y in allowed)
        np.testing.assert_allclose(hinge(scores[mine], labels[mine]), best, atol=1e-12)
    found = objective(classifier, bags.instances, labels, kernel)
    best = by_scipy(bags.instances, labels, kernel)
    np.testing.assert_allclose(found, best, atol=GAP * len(labels))


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_witnesses_are_highest_under_their_own_classifier(bags, kernel):
    """And f is best given them, by scipy."""
    classifier = MISVM(kernel, penalty=PENALTY).fit(bags)
    assert classifier.status_.kind == "converged"
    scores = classifier.score_instances(bags)
    expected = [
        np.flatnonzero(bags.bag_index == b)[np.argmax(scores[bags.bag_index == b])]
        for b in np.flatnonzero(LABELS)
    ]
    np.testing.assert_array_equal(classifier.witnesses_, expected)
    is_negative = LABELS[bags.bag_index] == 0
    rows = np.concatenate([bags.instances[expected], bags.instances[is_negative]])
    labels = np.repeat([1, 0], [len(expected), is_negative.sum()])
    found = objective(classifier, rows, labels, kernel)
    np.testing.assert_allclose(found, by_scipy(rows, labels, kernel), atol=GAP * len(rows))


def test_first_step_of_misvm_learns_from_means(bags):
    classifier = MISVM("linear", penalty=PENALTY, max_steps=1).fit(bags)
    means = [bags.instances[bags.bag_index == b].mean(axis=0) for b in np.flatnonzero(LABELS)]
    negative = bags.instances[LABELS[bags.bag_index] == 0]
    labels = np.repeat([1, 0], [len(means), len(negative)])
    reference = SVC(C=PENALTY, kernel="linear", tol=1e-8).fit(np.vstack([means, negative]), labels)
    np.testing.assert_allclose(classifier.svc_.coef_, reference.coef_, atol=1e-4)
    np.testing.assert_array_equal(classifier.witnesses_, [-1] * len(means))
    assert classifier.status_.kind == "max_steps" and classifier.num_steps_ == 1


def test_one_step_of_mi_svm_learns_from_bag_labels(bags):
    classifier = miSVM("rbf", 1.5, penalty=PENALTY, max_steps=1).fit(bags)
    reference = SVC(C=PENALTY, gamma=0.5 / 1.5**2, tol=1e-8)
    reference.fit(bags.instances, LABELS[bags.bag_index])
    expected = reference.decision_function(bags.instances)
    np.testing.assert_allclose(classifier.score_instances(bags), expected, atol=1e-3)
    np.testing.assert_array_equal(classifier.instance_labels_, LABELS[bags.bag_index])


@pytest.mark.parametrize("kind", [miSVM, MISVM])
def test_bag_decision_is_its_highest_instance(bags, kind):
    classifier = kind(penalty=PENALTY).fit(bags)
    scores = classifier.score_instances(bags)
    expected = [scores[bags.bag_index == b].max() for b in range(len(bags))]
    np.testing.assert_array_equal(classifier.decision_function(bags), expected)
    np.testing.assert_array_equal(classifier.predict(bags), np.greater(expected, 0))


@pytest.mark.parametrize("kind", [miSVM, MISVM])
def test_order_of_instances_does_not_matter(bags, kind):
    rows = np.random.default_rng(0).permutation(bags.num_instances)
    rows = rows[np.argsort(bags.bag_index[rows], kind="stable")]
    shuffled = Bags.from_arrays(bags.instances[rows], bags.bag_index, bags.labels)
    one, other = kind().fit(bags), kind().fit(shuffled)
    np.testing.assert_array_equal(one.decision_function(bags), other.decision_function(bags))
    if kind is miSVM:
        np.testing.assert_array_equal(one.instance_labels_[rows], other.instance_labels_)
    else:
        np.testing.assert_array_equal(one.witnesses_, rows[other.witnesses_])


@pytest.mark.parametrize("kind", [miSVM, MISVM])
def test_clearly_positive_instances_are_found(kind):
    random = np.random.default_rng(3)
    arrays = [random.normal(size=(5, 2)) for _ in range(30)]
    for array in arrays[:15]:
        array[2] = 6.0
    classifier = kind().fit(Bags.from_list(arrays, [1] * 15 + [0] * 15))
    expected = np.tile([0, 0, 1, 0, 0], 15)
    found = classifier.predict_instances(Bags.from_list(arrays[:15]))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [miSVM, MISVM])
def test_identical_instances_are_fitted(kind):
    """Nothing separates the bags: one instance stays positive in each positive bag."""
    classifier = kind().fit(Bags.from_list([np.ones((3, 2))] * 4, [0, 1, 0, 1]))
    assert np.isfinite(classifier.decision_function(Bags.from_list([np.ones((1, 2))]))).all()
    if kind is miSVM:
        np.testing.assert_array_equal(classifier.instance_labels_.reshape(4, 3)[[1, 3], 0], 1)


def test_highest_row_is_the_first_among_equals():
    bags = Bags.from_list([np.zeros((3, 1)), np.zeros((1, 1)), np.zeros((2, 1))])
    scores = np.array([1.0, 2.0, 2.0, -5.0, 0.0, 0.0])
    np.testing.assert_array_equal(highest_rows(scores, bags), [1, 3, 4])


@pytest.mark.parametrize(
    ("returned_to", "kind", "words"),
    [
        (5, "converged", "a fixed point after 5 steps"),
        (3, "max_steps", "the choice of step 3: a cycle of 3 steps"),
        (None, "max_steps", "still changed in step 5, the last allowed"),
    ],
)
def test_status_says_how_steps_ended(returned_to, kind, words):
    status = ended(5, returned_to)
    assert status.kind == kind and words in status.sentence


@pytest.mark.parametrize("kind", [miSVM, MISVM])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_a_kernel_too_large_to_keep_changes_nothing(bags, kind, kernel, monkeypatch):
    kept = kind(kernel).fit(bags)
    monkeypatch.setattr(instance_kernels, "_MOST_NUMBERS", 0)
    other = kind(kernel).fit(bags)
    assert kept.num_steps_ == other.num_steps_
    np.testing.assert_array_equal(kept.decision_function(bags), other.decision_function(bags))


class Alternating(miSVM):
    """Labels that go to and fro, whatever f is."""

    def _choose(self, scores, positive):
        self.calls_ = getattr(self, "calls_", 0) + 1
        return (np.arange(len(scores)) % 3 > self.calls_ % 2).astype(int)


@pytest.mark.parametrize("most_numbers", [0, 2**27])
def test_a_training_without_end_warns_and_stops(bags, most_numbers, monkeypatch):
    monkeypatch.setattr(instance_kernels, "_MOST_NUMBERS", most_numbers)
    monkeypatch.setattr(instance_kernels, "_MOST_UPDATES", 5)
    with pytest.warns(ConvergenceWarning, match="max_iter=5"):
        classifier = miSVM("linear", penalty=PENALTY, max_steps=1).fit(bags)
    assert classifier.svc_.n_iter_ == 5


def test_a_cycle_ends_the_steps(bags):
    classifier = Alternating(max_steps=40).fit(bags)
    assert classifier.num_steps_ == 3
    assert "step 3 returned to the choice of step 2: a cycle of 2" in classifier.status_.sentence


@pytest.mark.parametrize("kind", [miSVM, MISVM])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("kernel", "poly", "'poly'; expected one of linear, rbf"),
        ("length_scale", -1.0, "-1.0; expected a positive finite number, or None for the square"),
        ("penalty", 0.0, "0.0; expected a positive finite number"),
        ("max_steps", 0, "0; expected an integer of at least 1"),
    ],
)
def test_bad_parameters_are_refused(bags, kind, name, value, words):
    with pytest.raises(ValueError, match=f"{kind.__name__} {name} is {words}"):
        kind(**{name: value}).fit(bags)
