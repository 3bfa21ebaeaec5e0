"""The closed-form bounds of VWSGP with labels and their coordinate ascent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags, simulate
from milzoo.inference import coordinate_ascent
from milzoo.inference.closed_form.sparse_gp import BagForm, BagRows
from milzoo.inference.runtime.densities import log_likelihood
from milzoo.models import RBF, VWSGP, Logistic, Probit
from scipy import stats
from scipy.optimize import approx_fprime
from scipy.special import logsumexp


def likelihood(name: str, noise: float = 1.0) -> dict:
    """Fields of a `VWSGP` with labels of this kind."""
    return {"likelihood": Probit(noise) if name == "probit" else Logistic()}


@pytest.fixture(scope="module")
def problem(accumulating_problem):
    return accumulating_problem(num_inducing=4, seed=0)


@pytest.fixture(scope="module")
def probit_problem(accumulating_problem):
    return accumulating_problem(num_inducing=4, seed=4, **likelihood("probit", 0.5))


@pytest.fixture(params=["problem", "probit_problem"])
def either_problem(request):
    return request.getfixturevalue(request.param)


# ------------------------------------------------------------------ against other code


@pytest.mark.in_ci
@pytest.mark.slow_but_first
def test_bound_equals_trace_elbo_of_the_guide(either_problem, trace_elbo_draws):
    model, bags = either_problem
    posterior = coordinate_ascent(model, bags, seed=0, max_steps=4)
    draws = trace_elbo_draws(posterior, bags)
    error = draws.mean() - posterior.elbo[-1]
    assert abs(error) < 4.5 * draws.std(ddof=1) / np.sqrt(draws.size)


@pytest.mark.in_ci
def test_steps_equal_the_papers_equations_in_plain_numpy(problem):
    model, bags = problem
    posterior = coordinate_ascent(model, bags, seed=0, max_steps=5, tolerance=0.0)
    mean, covariance = _paper_in_numpy(model, bags, steps=5)
    approximation = posterior.approximation
    np.testing.assert_allclose(approximation.mean, mean, rtol=1e-7, atol=1e-9)
    found = approximation.scale_tril @ approximation.scale_tril.T
    np.testing.assert_allclose(found, covariance, rtol=1e-6, atol=1e-9)


def _paper_in_numpy(model, bags, steps):
    """Section 3 with K⁻¹ and traces as printed, a loop over the bags."""
    kernel, points = model.kernel, model.inducing_points

    def covariance_of(left, right):
        distance = ((left[:, None] - right[None]) ** 2).sum(axis=-1)
        return kernel.variance * np.exp(-0.5 * distance / kernel.length_scale**2)

    K_ZZ = covariance_of(points, points) + model.jitter * kernel.variance * np.eye(len(points))
    inverse = np.linalg.inv(K_ZZ)
    sums, residual = [], []
    for b in range(bags.num_bags):
        K_ZX = covariance_of(points, bags.instances[bags.bag_index == b])
        sums.append(inverse @ K_ZX.sum(axis=1))
        residual.append(K_ZX.shape[1] * kernel.variance - np.trace(K_ZX.T @ inverse @ K_ZX))
    mean, covariance = np.zeros(len(points)), K_ZZ
    for _ in range(steps):
        tilt = np.array(
            [
                np.sqrt(np.trace(np.outer(a, a) @ (np.outer(mean, mean) + covariance)) + rest)
                for a, rest in zip(sums, residual, strict=True)
            ]
        )
        bound = (1 / (1 + np.exp(-tilt)) - 0.5) / (2 * tilt)  # λ(ξ)
        precision = inverse + sum(
            2 * weight * np.outer(a, a) for weight, a in zip(bound, sums, strict=True)
        )
        covariance = np.linalg.inv(precision)
        mean = covariance @ sum(
            (label - 0.5) * a for label, a in zip(bags.labels, sums, strict=True)
        )
    return mean, covariance


@pytest.mark.in_ci
def test_probit_steps_equal_albert_and_chibs_in_plain_numpy(probit_problem):
    model, bags = probit_problem
    posterior = coordinate_ascent(model, bags, seed=0, max_steps=5, tolerance=0.0)
    with jax.enable_x64(True):
        accumulated = jax.tree.map(np.asarray, model.accumulated(bags))
    prior = accumulated.cholesky @ accumulated.cholesky.T
    weights = np.linalg.solve(accumulated.cholesky.T, accumulated.projection.T).T  # a_b
    variance = 1 + model.likelihood.noise + accumulated.residual_variance
    precision = np.linalg.inv(prior) + (weights.T / variance) @ weights
    mean = np.zeros(len(prior))
    for _ in range(5):
        lower, upper = np.where(bags.labels == 1, 0.0, -np.inf), np.where(bags.labels, np.inf, 0.0)
        location, scale = weights @ mean, np.sqrt(variance)
        cut_off = stats.truncnorm(
            (lower - location) / scale, (upper - location) / scale, location, scale
        )
        mean = np.linalg.solve(precision, weights.T @ (cut_off.mean() / variance))
    np.testing.assert_allclose(posterior.approximation.mean, mean, rtol=1e-7, atol=1e-9)
    covariance = posterior.approximation.scale_tril @ posterior.approximation.scale_tril.T
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-6, atol=1e-9)


# ------------------------------------------------------------------ as mathematics


@pytest.mark.in_ci
@pytest.mark.slow_but_first
def test_bound_is_stationary_at_the_fixed_point(
    either_problem, closed_form_start, gradient_of_the_bound
):
    """The auxiliary factors follow from q(u), and are at their optimum on the way."""
    with jax.enable_x64(True):
        begun = closed_form_start(*either_problem)
        gradients = gradient_of_the_bound(begun.after(500))
        elsewhere = gradient_of_the_bound(begun.after(1))
    for gradient in gradients:
        assert np.abs(gradient).max() < 1e-9
    assert np.abs(elsewhere[0]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bernoulli", "probit"])
def test_no_step_lowers_the_bound(name, bounds_of_steps):
    # 1,000 random problems of 12 bags, a fifth with labels all 1 and a fifth with labels all 0.
    random = np.random.default_rng(["bernoulli", "probit"].index(name))
    num_problems, shape = 1000, (1000, 12)
    labels = random.integers(0, 2, size=shape)
    labels[:200], labels[-200:] = 1, 0
    scale = random.choice([0.1, 1.0, 30.0], size=(num_problems, 1, 1))
    rows = BagRows(
        projection=scale * random.normal(size=(*shape, 3)),
        residual_variance=random.gamma(0.5, 20.0, size=shape),
        observed=labels,
        weight=np.ones(shape),
    )
    # So that utilities of the probit have variances from little more than 1 on.
    kind = likelihood(name, 1e-3) if name == "probit" else likelihood(name)
    form = BagForm(VWSGP(RBF(1.0, 1.0), np.zeros((3, 1)), **kind))
    with jax.enable_x64(True):
        forms = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_problems), form)
    traces = bounds_of_steps(forms, rows, num_steps=25)
    assert np.isfinite(traces).all()
    # Rounding, as the bound is a difference of sums larger than itself.
    allowed = 1e-10 * np.maximum(1.0, np.abs(traces[:, :-1]))
    assert (np.diff(traces, axis=1) > -allowed).all()


@pytest.mark.slow
@pytest.mark.parametrize("num_inducing", [1, 2])
@pytest.mark.parametrize("name", ["bernoulli", "probit"])
def test_bound_lies_below_the_log_evidence_by_quadrature(accumulating_problem, num_inducing, name):
    model, bags = accumulating_problem(num_inducing, seed=4, **likelihood(name))
    posterior = coordinate_ascent(model, bags, seed=0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    whitened = np.stack(np.meshgrid(*[nodes] * num_inducing), axis=-1).reshape(-1, num_inducing)
    log_weights = sum(np.meshgrid(*[np.log(weights / weights.sum())] * num_inducing)).ravel()
    with jax.enable_x64(True):
        cholesky = np.asarray(model.accumulated(bags).cholesky)
    draws = {"inducing_value": whitened @ cholesky.T}
    by_node = log_likelihood(model, "marginal", draws, bags).sum(axis=1)
    evidence = logsumexp(by_node + log_weights)
    assert posterior.elbo[-1] < evidence


@pytest.mark.slow
def test_order_of_instances_changes_nothing(either_problem):
    model, bags = either_problem
    order = np.random.default_rng(0).permutation(bags.num_instances)
    moved = Bags.from_arrays(
        bags.instances[order],
        bags.bag_index[order],
        bags.labels[list(dict.fromkeys(bags.bag_index[order]))],
    )
    first, second = (coordinate_ascent(model, one, seed=0) for one in (bags, moved))
    np.testing.assert_allclose(first.elbo, second.elbo, rtol=1e-10)
    np.testing.assert_allclose(first.approximation.mean, second.approximation.mean, atol=1e-9)


# ------------------------------------------------------------------ as an engine


@pytest.mark.slow
def test_learning_hyperparameters_raises_the_bound_and_never_lowers_it(either_problem):
    model, bags = either_problem
    fixed = coordinate_ascent(model, bags, seed=0)
    learned = coordinate_ascent(model, bags, seed=0, learn_hyperparameters=True, max_steps=60)
    assert np.diff(learned.elbo).min() > -1e-9
    assert learned.elbo[-1] > fixed.elbo[-1]
    assert set(learned.model.hyperparameters) == {"variance", "length_scale"}
    again = coordinate_ascent(learned.model, bags, seed=0)
    assert again.elbo[-1] > learned.elbo[-1] - 1e-6


def test_models_without_a_closed_form_are_refused(problem):
    model, bags = problem
    with pytest.raises(ValueError, match="VWSGP has no instance labels to update; leave it out"):
        coordinate_ascent(model, bags, seed=0, label_update="mean_field")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bernoulli", "probit"])
def test_learning_ends_at_a_stationary_point_of_the_bound(name):
    """Of the bound of its own fixed points."""
    random = np.random.default_rng(4)
    design = Bags.from_list([random.normal(size=(s, 2)) for s in [1, 6, 2, 4, 3, 5] * 6])
    model = VWSGP.for_bags(design, 4, variance=4.0, length_scale=1.0, **likelihood(name))
    bags, _ = simulate(model, design, seed=4)
    learned = coordinate_ascent(
        model, bags, seed=0, learn_hyperparameters=True, tolerance=1e-11, max_steps=300
    )
    # All odds even is the bound of a kernel that says nothing: here there is something to learn.
    assert learned.elbo[-1] > -bags.num_bags * np.log(2) + 0.5

    def best_bound(logarithms):
        values = dict(zip(learned.model.hyperparameters, np.exp(logarithms), strict=True))
        moved = model.with_hyperparameters({n: float(v) for n, v in values.items()})
        return coordinate_ascent(moved, bags, seed=0, tolerance=1e-13).elbo[-1]

    found = np.log([float(v) for v in learned.model.hyperparameters.values()])
    np.testing.assert_allclose(best_bound(found), learned.elbo[-1], atol=1e-4)
    gradient = approx_fprime(found, best_bound, 1e-4)
    assert np.abs(gradient).max() < 0.02
