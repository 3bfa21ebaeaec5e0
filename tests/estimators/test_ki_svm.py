"""KI-SVM: the whole relaxation by brute force, its decision rule, the search, edges."""

from itertools import product

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators.instance_kernels import SortedBags
from milzoo.estimators.ki_svm import KISVM, KeyInstanceProblem, least_on_simplex
from scipy.optimize import minimize

PENALTY, BALANCE = 5.0, 2.0
SIZES = (3, 2, 2, 3, 1, 3)
LABELS = np.array([1, 0, 1, 1, 0, 0])
NONE = np.empty((0, 3), int)


def make_bags(seed):
    random = np.random.default_rng(seed)
    arrays = [random.normal(size=(size, 2)) for size in SIZES]
    for array, label in zip(arrays, LABELS, strict=True):
        array[-1] += label
    return Bags.from_list(arrays, LABELS)


@pytest.fixture(scope="module", params=[0, 1])
def bags(request):
    return make_bags(request.param)


def between(first, second, kernel):
    if kernel == "linear":
        return first @ second.T + 1
    return np.exp(-((first[:, None] - second) ** 2).sum(axis=2) / 4)  # ℓ² = D = 2


def negative_means(bags, level):
    """Rows of weights on instances: one for each negative constraint."""
    mine = [np.flatnonzero(bags.bag_index == b) for b in np.flatnonzero(LABELS == 0)]
    if level == "bag":
        return [np.isin(np.arange(bags.num_instances), rows) / len(rows) for rows in mine]
    return list(np.eye(bags.num_instances)[np.concatenate(mine)])


def signed_rows(bags, keys, level):
    """What stands for each constraint, as weights on instances times its label."""
    negative = [-row for row in negative_means(bags, level)]
    return np.vstack([np.eye(bags.num_instances)[list(keys)], *negative])


def quadratic_form(bags, keys, level, kernel):
    """YKY + E of one choice of key instances."""
    rows = signed_rows(bags, keys, level)
    ridge = 1 / PENALTY / np.where(np.arange(len(rows)) < len(keys), BALANCE, 1)
    return rows @ between(bags.instances, bags.instances, kernel) @ rows.T + np.diag(ridge)


def every_choice(bags):
    return product(*(np.flatnonzero(bags.bag_index == b) for b in np.flatnonzero(LABELS)))


def whole_relaxation(forms):
    """max over α of −½ max_d αᵀQ_dα, on all choices at once: α and this value."""
    forms = np.array(forms)
    num = forms.shape[1]
    start = np.append(np.full(num, 1 / num), forms.mean(axis=(1, 2)).max())
    found = minimize(
        lambda z: z[-1],
        start,
        jac=lambda z: np.eye(num + 1)[-1],
        bounds=[(0, 1)] * num + [(0, None)],
        constraints=[
            {"type": "eq", "fun": lambda z: z[:-1].sum() - 1},
            {
                "type": "ineq",
                "fun": lambda z: z[-1] - np.einsum("i,dij,j->d", z[:-1], forms, z[:-1]),
                "jac": lambda z: np.column_stack([-2 * forms @ z[:-1], np.ones(len(forms))]),
            },
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success
    return found.x[:-1], -0.5 * found.fun


def fit(bags, level="bag", kernel="rbf", **others):
    return KISVM(level, kernel, penalty=PENALTY, balance=BALANCE, **others).fit(bags)


@pytest.mark.parametrize("level", ["bag", "instance"])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_objective_is_that_of_all_choices(bags, level, kernel):
    classifier = fit(bags, level, kernel, tolerance=1e-6)
    assert classifier.status_.kind == "converged"
    forms = [quadratic_form(bags, keys, level, kernel) for keys in every_choice(bags)]
    _, expected = whole_relaxation(forms)
    np.testing.assert_allclose(classifier.objective_[-1], expected, rtol=1e-5)
    assert (np.diff(classifier.objective_) <= 1e-9).all()


@pytest.mark.parametrize("level", ["bag", "instance"])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_scores_are_the_published_sum(bags, level, kernel):
    """Σ_i α_i y_i Σ_d μ_d φ_i(d)ᵀφ(x), with α by scipy."""
    classifier = fit(bags, level, kernel, tolerance=1e-6)
    weighed = list(zip(classifier.weights_, classifier.keys_, strict=True))
    form = sum(weight * quadratic_form(bags, keys, level, kernel) for weight, keys in weighed)
    support, _ = whole_relaxation([form])
    rows = sum(weight * signed_rows(bags, keys, level) for weight, keys in weighed)
    expected = support @ rows @ between(bags.instances, bags.instances, kernel)
    np.testing.assert_allclose(classifier.score_instances(bags), expected, atol=1e-5)


def test_search_finds_the_choice_of_largest_norm():
    """On nine small problems, among all choices, for random α."""
    random = np.random.default_rng(0)
    for seed in range(9):
        bags = make_bags(seed)
        in_order = SortedBags.of(bags)
        problem = KeyInstanceProblem.of(in_order.positive, in_order.negative, KISVM())
        support = random.dirichlet(np.ones(len(problem.ridge)))
        found = problem.squared_norms(problem.most_violating(NONE, support)[None], support)
        ranges = np.split(np.arange(8), in_order.positive.starts[1:])
        best = problem.squared_norms(np.array(list(product(*ranges))), support).max()
        np.testing.assert_allclose(found, best, rtol=1e-12)


@pytest.mark.parametrize("level", ["bag", "instance"])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_squared_norms_are_quadratic_forms(bags, level, kernel):
    """Of all choices at once, for an α that some negative constraints have no part in."""
    in_order = SortedBags.of(bags)
    problem = KeyInstanceProblem.of(in_order.positive, in_order.negative, KISVM(level, kernel))
    support = np.random.default_rng(0).dirichlet(np.ones(len(problem.ridge)))
    support[-2] = 0.0
    ranges = np.split(np.arange(8), in_order.positive.starts[1:])
    choices = np.array(list(product(*ranges)))
    instances = np.concatenate([in_order.positive.instances, in_order.negative.instances])
    negative = np.eye(len(instances))[8:]
    if level == "bag":
        starts = in_order.negative.starts
        negative = np.add.reduceat(negative, starts) / in_order.negative.bag_sizes[:, None]
    rows = [np.vstack([np.eye(len(instances))[keys], -negative]) for keys in choices]
    combined = np.array([support @ of_choice for of_choice in rows])
    expected = np.sum(combined @ between(instances, instances, kernel) * combined, axis=1)
    np.testing.assert_allclose(problem.squared_norms(choices, support), expected, rtol=1e-10)


@pytest.mark.parametrize("level", ["bag", "instance"])
def test_constraints_sought_on_first_change_nothing(bags, level):
    in_order = SortedBags.of(bags)
    classifier = KISVM(level, penalty=PENALTY, balance=BALANCE)
    problem = KeyInstanceProblem.of(in_order.positive, in_order.negative, classifier)
    keys, weights = np.array([[0, 3, 6], [2, 4, 5]]), np.array([0.3, 0.7])
    backwards = np.arange(len(problem.beyond))[::-1]
    found = [problem.solve(keys, weights, backwards[:num]) for num in range(len(backwards) + 1)]
    assert (found[-1].support[3:] > 0).any()
    for one in found[:-1]:
        np.testing.assert_allclose(one.support, found[-1].support, atol=1e-7)
        np.testing.assert_allclose(one.value, found[-1].value, rtol=1e-9)


def test_least_on_simplex_solves_known_cases():
    np.testing.assert_allclose(least_on_simplex(np.diag([1.0, 2.0, 4.0])), np.array([4, 2, 1]) / 7)
    found = least_on_simplex(np.array([[1.0, 3.0], [3.0, 10.0]]))
    np.testing.assert_allclose(found, [1, 0], atol=1e-9)


def test_bags_of_one_instance_leave_one_choice():
    """Then the two levels are the same."""
    bags = Bags.from_arrays(np.random.default_rng(0).normal(size=(6, 2)), np.arange(6), LABELS)
    one, other = fit(bags, "bag"), fit(bags, "instance")
    np.testing.assert_array_equal(one.keys_, [[0, 2, 3]])
    np.testing.assert_array_equal(one.weights_, [1])
    np.testing.assert_allclose(one.score_instances(bags), other.score_instances(bags), atol=1e-12)


def test_clear_key_instances_are_found():
    random = np.random.default_rng(3)
    arrays = [random.normal(size=(5, 2)) for _ in range(20)]
    for array in arrays[:10]:
        array[2] = 6.0
    bags = Bags.from_list(arrays, [1] * 10 + [0] * 10)
    for level in ("bag", "instance"):
        classifier = fit(bags, level)
        main = classifier.keys_[np.argmax(classifier.weights_)]
        np.testing.assert_array_equal(main, np.arange(10) * 5 + 2)
        assert classifier.score(bags) == 1


def test_bag_decision_is_its_highest_instance(bags):
    classifier = fit(bags)
    scores = classifier.score_instances(bags)
    expected = [scores[bags.bag_index == b].max() for b in range(len(bags))]
    np.testing.assert_array_equal(classifier.decision_function(bags), expected)


def test_order_of_instances_does_not_matter(bags):
    rows = np.random.default_rng(0).permutation(bags.num_instances)
    rows = rows[np.argsort(bags.bag_index[rows], kind="stable")]
    shuffled = Bags.from_arrays(bags.instances[rows], bags.bag_index, bags.labels)
    one, other = fit(bags), fit(shuffled)
    np.testing.assert_array_equal(one.decision_function(bags), other.decision_function(bags))
    np.testing.assert_array_equal(one.keys_, rows[other.keys_])


def test_identical_instances_are_fitted():
    bags = Bags.from_list([np.ones((3, 2))] * 4, [0, 1, 0, 1])
    classifier = fit(bags)
    assert classifier.status_.kind == "converged"
    assert np.isfinite(classifier.decision_function(bags)).all()


def test_too_few_steps_are_reported(bags):
    classifier = fit(bags, tolerance=1e-9, max_steps=1)
    assert classifier.status_.kind == "max_steps" and classifier.num_steps_ == 1
    assert "1 choices of key instances; the next one violates by" in classifier.status_.sentence


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("level", "both", "'both'; expected one of bag, instance"),
        ("kernel", "poly", "'poly'; expected one of linear, rbf"),
        ("penalty", 0.0, "0.0; expected a positive finite number"),
        ("balance", -1.0, "-1.0; expected a positive finite number"),
        ("tolerance", 0.0, "0.0; expected a positive finite number"),
        ("max_steps", 0, "0; expected an integer of at least 1"),
    ],
)
def test_bad_parameters_are_refused(bags, name, value, words):
    with pytest.raises(ValueError, match=f"KISVM {name} is {words}"):
        KISVM(**{name: value}).fit(bags)
