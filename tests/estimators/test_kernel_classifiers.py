"""Classifiers on the cardinality kernel: agreement with scikit-learn, gradients, refusals."""

import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.estimators import CardinalityKernelLearner, CardinalityKernelSVM, kernel_classifiers
from milzoo.estimators.kernel_classifiers import KernelBetweenBags, KernelObjective
from milzoo.inference import maximum_a_posteriori
from milzoo.models import RBF, CardinalityKernel, CardinalityModel, NormalCardinality
from sklearn.svm import SVC

INSTANCE_KERNEL, PENALTY = RBF(1.0, 1.5), 2.0


@pytest.fixture(scope="module")
def bags():
    design = simulate_instances(40, range(1, 7), num_features=3, seed=0)
    return simulate(CardinalityModel(NormalCardinality(0.6, 0.2), 3.0), design, seed=4)[0]


def model_with(prior="normal"):
    return CardinalityModel(NormalCardinality(0.6, 0.2), 1.0, prior, intercept_scale=0.5)


@pytest.fixture(scope="module")
def classifier(bags):
    return CardinalityKernelSVM(model_with(), INSTANCE_KERNEL, PENALTY).fit(bags)


@pytest.mark.slow
def test_classifier_is_scikit_learns_on_the_modes_kernel(bags, classifier):
    mode = maximum_a_posteriori(model_with(), bags, seed=0).stored_draws()
    kernel = CardinalityKernel(
        model_with(), mode["weights"][0], INSTANCE_KERNEL, float(mode["intercept"][0])
    )
    reference = SVC(C=PENALTY, kernel="precomputed", tol=1e-6).fit(kernel(bags, bags), bags.labels)
    few = bags.select([0, 5, 7])
    expected = reference.decision_function(kernel(few, bags))
    np.testing.assert_allclose(classifier.decision_function(few), expected, atol=1e-6)
    np.testing.assert_array_equal(classifier.predict(few), reference.predict(kernel(few, bags)))
    assert classifier.status_.kind == "converged"


class FixedSupport(KernelObjective):
    """T with a fixed α, which no classifier has found."""

    def signed_support(self, kernel):
        return np.random.default_rng(0).normal(size=self.bags.num_bags)


def test_derivative_in_marginals_is_a_finite_difference(bags):
    features = np.asarray(bags.instances)
    apart = ((features[:, None] - features) ** 2).sum(-1)
    between_bags = KernelBetweenBags(np.exp(-apart / 4.0), bags)
    random = np.random.default_rng(0)
    probability = random.uniform(size=bags.num_instances)
    signed = random.normal(size=bags.num_bags)

    def of(probability):
        return -0.5 * signed @ between_bags.at(probability).kernel @ signed

    step = 2e-3  # fourth order
    unit = np.eye(bags.num_instances) * step
    expected = [
        (of(probability - 2 * e) - 8 * of(probability - e))
        - (of(probability + 2 * e) - 8 * of(probability + e))
        for e in unit
    ]
    found = between_bags.at(probability).derivative(signed)
    np.testing.assert_allclose(found, np.array(expected) / (12 * step), rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["normal", "laplace"])
def test_gradient_at_fixed_support_is_a_finite_difference(bags, prior):
    """Of 1ᵀα − ½ αᵀYKYα + r(θ), whose kernel is that of `CardinalityKernel`."""
    start = CardinalityKernel(model_with(prior), np.array([1.0, -2.0, 0.5]), INSTANCE_KERNEL, 0.3)
    objective = FixedSupport.of(start, bags, PENALTY)
    signed = objective.signed_support(None)

    def of(whitened):
        kernel = objective.kernel_at(whitened)(bags, bags)
        size = 0.5 * whitened**2
        if prior == "laplace":
            size[:3] = np.sqrt(whitened[:3] ** 2 + 1e-4) - 1e-2
        return np.abs(signed).sum() - 0.5 * signed @ kernel @ signed + size.sum()

    value, gradient = objective(objective.origin)
    np.testing.assert_allclose(value, of(objective.origin), rtol=1e-12)
    step = 2e-3  # fourth order
    expected = [
        sum(
            w * of(objective.origin + k * step * unit)
            for k, w in ((-2, 1), (-1, -8), (1, 8), (2, -1))
        )
        / (12 * step)
        for unit in np.eye(4)
    ]
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_total_gradient_is_the_gradient_at_fixed_support(bags):
    """Danskin: α moves along, and its first-order change is nothing."""
    start = CardinalityKernel(model_with(), np.array([1.0, -2.0, 0.5]), INSTANCE_KERNEL, 0.3)
    objective = KernelObjective.of(start, bags, PENALTY)
    _, gradient = objective(objective.origin)
    step = 1e-3
    expected = [
        (objective(objective.origin + step * u)[0] - objective(objective.origin - step * u)[0])
        / (2 * step)
        for u in np.eye(4)
    ]
    # The dual is solved to 1e-6, so differences over 2e-3 to 1e-3.
    np.testing.assert_allclose(gradient, expected, atol=2e-3)


@pytest.mark.slow
def test_learning_lowers_the_objective_until_the_gradient_vanishes(bags, classifier):
    learned = CardinalityKernelLearner(model_with(), INSTANCE_KERNEL, PENALTY).fit(bags)
    assert (np.diff(learned.objective_) <= 1e-9).all()
    objective = KernelObjective.of(classifier.kernel_, bags, PENALTY)
    at_start, _ = objective(objective.origin)
    end = KernelObjective.of(learned.kernel_, bags, PENALTY)
    at_end, gradient = end(end.origin)
    np.testing.assert_allclose(at_end, learned.objective_[-1], rtol=1e-6)
    assert at_end < at_start
    # α is found anew, to 1e-6 of the dual: the gradient is known to its root, times C.
    assert np.abs(gradient).max() < 1e-2 + 1e-3 * PENALTY
    assert "steps of L-BFGS" in learned.status_.sentence


@pytest.mark.slow
def test_another_fold_compiles_nothing(bags, compilations):
    learner = CardinalityKernelLearner(model_with(), INSTANCE_KERNEL, PENALTY, max_steps=2)
    learner.fit(bags[:-1]).predict(bags[:-1])
    before = compilations.number
    learner.fit(bags[1:]).predict(bags[1:])
    assert compilations.number == before


@pytest.mark.in_ci
def test_memory_keeps_modes_and_kernels(bags, tmp_path, monkeypatch):
    def classifier(penalty=PENALTY, length_scale=2.0, memory=str(tmp_path)):
        return CardinalityKernelSVM(model_with(), RBF(1.0, length_scale), penalty, memory)

    expected = [
        classifier(*given, memory=None).fit(bags).decision_function(bags)
        for given in ((PENALTY / 5, 2.0), (PENALTY, 1.0))
    ]
    classifier().fit(bags).decision_function(bags)
    monkeypatch.delattr(kernel_classifiers, "maximum_a_posteriori")
    np.testing.assert_array_equal(
        classifier(length_scale=1.0).fit(bags).decision_function(bags), expected[1]
    )
    monkeypatch.setattr(CardinalityKernel, "__call__", None)
    np.testing.assert_array_equal(
        classifier(PENALTY / 5).fit(bags).decision_function(bags), expected[0]
    )
    with pytest.raises(TypeError, match="not callable"):
        classifier(length_scale=0.5).fit(bags)
    with pytest.raises(NameError, match="maximum_a_posteriori"):
        classifier().fit(bags[:30])


# ------------------------------------------------------------------ what they refuse


@pytest.mark.in_ci
@pytest.mark.parametrize("kind", [CardinalityKernelSVM, CardinalityKernelLearner])
def test_bad_input_is_refused(bags, kind):
    with pytest.raises(ValueError, match=f"{kind.__name__} penalty is 0.0; expected a positive"):
        kind(model_with(), INSTANCE_KERNEL, 0.0).fit(bags)
    with pytest.raises(
        ValueError, match=f"weight_scale of the model have priors, but a {kind.__name__}"
    ):
        kind(CardinalityModel(weight_scale=dist.HalfNormal(1.0)), INSTANCE_KERNEL).fit(bags)
    fresh = kind(model_with(), INSTANCE_KERNEL)
    with pytest.raises(ValueError, match=r"bags have one class only, the label 1; .* needs"):
        fresh.fit(bags.select(bags.labels == 1))


def test_bags_without_labels_are_refused():
    design = simulate_instances(3, 2, num_features=3, seed=0)
    with pytest.raises(ValueError, match="bags have no labels; CardinalityKernelSVM needs"):
        CardinalityKernelSVM(model_with(), INSTANCE_KERNEL).fit(design)
