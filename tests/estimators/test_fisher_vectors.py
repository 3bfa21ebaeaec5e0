"""Fisher vectors as finite differences of the log likelihood; the classifier on them."""

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators.fisher_vectors import MiFV, fisher_vectors, improved
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.decomposition import PCA
from sklearn.svm import LinearSVC


@pytest.fixture(scope="module")
def bags():
    random = np.random.default_rng(3)
    sizes = random.integers(1, 6, size=24)
    sizes[5] = 30
    labels = np.arange(24) % 2
    centres = np.array([[0.0, 0.0, 0.0], [1.5, -1.0, 0.5]])
    rows = [
        centres[random.integers(0, 2, n) * label] + random.normal(size=(n, 3))
        for n, label in zip(sizes, labels, strict=True)
    ]
    return Bags.from_list(rows, labels)


def mean_log_likelihood(rows, weights, means, sds):
    parts = [
        np.log(weight) + norm.logpdf(rows, mean, sd).sum(axis=1)
        for weight, mean, sd in zip(weights, means, sds, strict=True)
    ]
    return logsumexp(parts, axis=0).mean()


def normalised_gradient(rows, weights, means, sds, step=1e-4):
    """By central differences, in units of √F: F is π/σ² for a mean, and 2π/σ² for an sd."""
    found = []
    for k in range(len(weights)):
        for parameter, information in ((means, weights[k]), (sds, 2 * weights[k])):
            for d in range(means.shape[1]):
                ends = []
                for sign in (1, -1):
                    value = parameter[k, d]
                    parameter[k, d] = value + sign * step
                    ends.append(mean_log_likelihood(rows, weights, means, sds))
                    parameter[k, d] = value
                gradient = (ends[0] - ends[1]) / (2 * step)
                found.append(gradient * sds[k, d] / np.sqrt(information))
    return found


@pytest.mark.parametrize("num_components", [1, 3])
def test_fisher_vector_is_a_finite_difference(bags, num_components):
    mixture = MiFV(num_components, seed=0).fit(bags).mixture_
    sds = np.sqrt(mixture.covariances_)
    expected = [
        normalised_gradient(rows, mixture.weights_, mixture.means_.copy(), sds.copy())
        for rows in bags.to_list()
    ]
    found = fisher_vectors(np.asarray(bags.instances), bags, mixture)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_improved_vectors_are_signed_roots_of_length_one():
    found = improved(np.array([[9.0, -16.0], [0.0, 0.0], [0.0, -3.0]]))
    np.testing.assert_allclose(found, [[0.6, -0.8], [0.0, 0.0], [0.0, -1.0]])


def test_decision_is_liblinears_on_improved_vectors(bags):
    """That of the dual problem, which another algorithm solves."""
    classifier = MiFV(2, penalty=0.5, seed=0).fit(bags)
    vectors = improved(fisher_vectors(np.asarray(bags.instances), bags, classifier.mixture_))
    dual = LinearSVC(C=0.5, dual=True, tol=1e-8, max_iter=100_000, random_state=1)
    expected = dual.fit(vectors, bags.labels).decision_function(vectors)
    np.testing.assert_allclose(classifier.decision_function(bags), expected, atol=1e-4)
    assert classifier.status_.kind == "converged"
    assert classifier.num_steps_ >= 1


def test_components_keep_the_variance_asked_for(bags):
    classifier = MiFV(2, variance_kept=0.8, seed=0).fit(bags)
    values = np.linalg.eigvalsh(np.cov(bags.instances.T))[::-1]
    needed = int(np.argmax(np.cumsum(values) / values.sum() >= 0.8)) + 1
    assert classifier.mixture_.means_.shape == (2, needed)
    projected = Bags.from_list(
        [PCA(needed).fit(bags.instances).transform(rows) for rows in bags.to_list()], bags.labels
    )
    by_hand = MiFV(2, seed=0).fit(projected)
    np.testing.assert_allclose(by_hand.score(projected), classifier.score(bags))


def test_a_seed_ignores_the_order_of_instances_and_bags(bags):
    classifier = MiFV(3, seed=0).fit(bags)
    expected = classifier.decision_function(bags)
    backwards = Bags.from_list([rows[::-1] for rows in bags.to_list()][::-1], bags.labels[::-1])
    again = MiFV(3, seed=0).fit(backwards)
    np.testing.assert_allclose(again.decision_function(bags), expected, atol=1e-6)
    np.testing.assert_allclose(classifier.decision_function(backwards), expected[::-1], atol=1e-9)


def test_a_bag_is_predicted_as_it_is_alone(bags):
    classifier = MiFV(3, seed=0).fit(bags)
    alone = np.array([classifier.decision_function(bags[b])[0] for b in range(len(bags))])
    np.testing.assert_allclose(alone, classifier.decision_function(bags), atol=1e-9)


@pytest.mark.parametrize("variance_kept", [None, 0.9])
def test_identical_instances_have_finite_decisions(variance_kept):
    bags = Bags.from_list([np.ones((2, 3)), np.ones((1, 3))], [0, 1])
    classifier = MiFV(2, variance_kept, seed=0).fit(bags)
    assert np.isfinite(classifier.decision_function(bags)).all()


def test_too_few_steps_are_reported(bags):
    status = MiFV(3, max_steps=1, seed=0).fit(bags).status_
    assert status.kind == "max_steps"
    assert "EM reached max_steps" in status.sentence


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_components": 0}, "MiFV num_components is 0; expected an integer of at least 1"),
        ({"variance_kept": 1.0}, "variance_kept is 1.0; expected a number between 0 and 1, or Non"),
        ({"penalty": 0.0}, "penalty is 0.0; expected a positive"),
        ({"variance_floor": 0.0}, "variance_floor is 0.0; expected a positive"),
        ({"max_steps": 0}, "max_steps is 0; expected an integer of at least 1"),
    ],
)
def test_bad_parameters_are_refused(bags, setting, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        MiFV(**setting, seed=0).fit(bags)


def test_no_seed_is_refused(bags, without_type_checks):
    with pytest.raises(TypeError, match="seed is None; expected an integer"):
        MiFV(seed=None).fit(bags)
