"""The exact posterior and evidence of VWSGP with targets, against dense Gaussian algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags
from milzoo.inference import Posterior, coordinate_ascent, laplace, nuts
from milzoo.inference.closed_form.sparse_gp import InducingFactor
from milzoo.models import RBF, VWSGP, Cosine, Gaussian, Linear
from milzoo.models.numerics.products import inverse_transposed
from numpyro.infer import Trace_ELBO
from scipy import stats
from scipy.optimize import approx_fprime
from sklearn.linear_model import Ridge


def gaussian(noise: float) -> dict:
    """Fields of a `VWSGP` of targets."""
    return {"likelihood": Gaussian(noise)}


@pytest.fixture(scope="module")
def problem(accumulating_problem):
    return accumulating_problem(num_inducing=4, seed=0, **gaussian(0.3))


@pytest.fixture(scope="module")
def posterior(problem):
    return coordinate_ascent(*problem, seed=0)


def covariance(kernel, left, right):
    distance = ((left[:, None] - right[None]) ** 2).sum(axis=-1)
    return kernel.variance * np.exp(-0.5 * distance / kernel.length_scale**2)


def dense_parts(model, bags):
    """K_ZZ, a (B, M) and k̄ (B,), by inverse matrices and a loop over the bags."""
    points, kernel = model.inducing_points, model.kernel
    prior = covariance(kernel, points, points)
    prior += model.jitter * kernel.variance * np.eye(len(points))
    sums, residual = [], []
    for b in range(bags.num_bags):
        across = covariance(kernel, bags.instances[bags.bag_index == b], points)
        weights = across @ np.linalg.inv(prior)
        sums.append(weights.sum(axis=0))
        residual.append(np.sum(kernel.variance - (weights * across).sum(axis=1)))
    return prior, np.array(sums), np.array(residual)


def dense_distribution_of_targets(model, bags):
    """N(0, aᵀK_ZZ a + diag k̄ + noise)."""
    prior, sums, residual = dense_parts(model, bags)
    whole = sums @ prior @ sums.T + np.diag(residual + model.likelihood.noise)
    return stats.multivariate_normal(cov=whole)


def test_linear_kernel_is_regression_on_sums_of_instances(problem):
    """s_b = wᵀΣx_n with w ~ N(0, v I), of which D inducing points know everything."""
    _, bags = problem
    points = np.eye(bags.num_features) + 0.3
    model = VWSGP(Linear(0.4), points, **gaussian(0.3), jitter=1e-9)
    posterior = coordinate_ascent(model, bags, seed=0)
    sums = np.array([bags.instances[bags.bag_index == b].sum(0) for b in range(bags.num_bags)])
    whole = stats.multivariate_normal(cov=0.4 * sums @ sums.T + 0.3 * np.eye(len(sums)))
    assert posterior.elbo[-1] == pytest.approx(whole.logpdf(bags.targets), abs=1e-5)
    regression = Ridge(alpha=0.3 / 0.4, fit_intercept=False).fit(sums, bags.targets)
    np.testing.assert_allclose(
        np.asarray(posterior.approximation.mean), regression.predict(points), atol=1e-5
    )


def test_cosine_kernel_is_linear_regression_on_directions(problem):
    """f(x) = wᵀx/‖x‖ with w ~ N(0, v I), of which D inducing points know everything."""
    _, bags = problem
    directions = np.eye(bags.num_features) + 0.3
    model = VWSGP(Cosine(1.4), directions, **gaussian(0.3), jitter=1e-9)
    posterior = coordinate_ascent(model, bags, seed=0)
    unit = bags.instances / np.linalg.norm(bags.instances, axis=1, keepdims=True)
    sums = np.array([unit[bags.bag_index == b].sum(axis=0) for b in range(bags.num_bags)])
    whole = stats.multivariate_normal(cov=1.4 * sums @ sums.T + 0.3 * np.eye(len(sums)))
    assert posterior.elbo[-1] == pytest.approx(whole.logpdf(bags.targets), abs=1e-5)
    # What w would be by regression, seen through u = Z/‖z‖ w.
    slopes = np.linalg.solve(
        sums.T @ sums / 0.3 + np.eye(sums.shape[1]) / 1.4, sums.T @ bags.targets / 0.3
    )
    lengths = np.linalg.norm(directions, axis=1)
    np.testing.assert_allclose(
        np.asarray(posterior.approximation.mean), directions @ slopes / lengths, atol=1e-5
    )


@pytest.mark.in_ci
def test_bound_is_the_log_density_of_the_dense_gaussian(problem, posterior):
    model, bags = problem
    expected = dense_distribution_of_targets(model, bags).logpdf(bags.targets)
    np.testing.assert_allclose(posterior.elbo, expected, rtol=1e-8)


def test_posterior_is_the_conditional_of_the_dense_gaussian(problem, posterior):
    model, bags = problem
    prior, sums, _ = dense_parts(model, bags)
    across, whole = prior @ sums.T, dense_distribution_of_targets(model, bags).cov
    gain = np.linalg.solve(whole, across.T).T
    q = posterior.approximation
    np.testing.assert_allclose(q.mean, gain @ bags.targets, rtol=1e-8)
    np.testing.assert_allclose(
        q.scale_tril @ q.scale_tril.T, prior - gain @ across.T, rtol=1e-7, atol=1e-9
    )


@pytest.mark.slow
def test_inducing_points_at_all_instances_give_the_full_process():
    random = np.random.default_rng(0)
    sizes = np.array([3, 1, 4, 2, 5])
    places = random.permuted(np.linspace(-4, 4, 30).reshape(15, 2), axis=0)
    bags = Bags.from_arrays(places, np.repeat(np.arange(5), sizes)).with_targets(
        random.normal(size=5)
    )
    model = VWSGP(RBF(1.7, 0.4), places, jitter=0.0, **gaussian(0.2))
    members = (bags.bag_index == np.arange(5)[:, None]).astype(float)  # (B, N)
    whole = members @ covariance(model.kernel, places, places) @ members.T + 0.2 * np.eye(5)
    posterior = coordinate_ascent(model, bags, seed=0)
    expected = stats.multivariate_normal(cov=whole).logpdf(bags.targets)
    np.testing.assert_allclose(posterior.elbo[-1], expected, rtol=1e-8)
    # Of a sum over two new places: the mean that kriging gives.
    new = places[[2, 7]] + 0.1
    across = covariance(model.kernel, new, places).sum(axis=0) @ members.T
    with jax.enable_x64(True):
        sums = model.accumulated(Bags.from_list([new]))
        found = float(sums.mean(jnp.asarray(posterior.approximation.mean))[0])
    np.testing.assert_allclose(found, across @ np.linalg.solve(whole, bags.targets), rtol=1e-8)


def test_every_draw_of_trace_elbo_is_the_evidence(problem, posterior):
    # q(u) is the posterior, so that log p(u, Y) − log q(u) does not depend on u.
    model, bags = problem
    with jax.enable_x64(True):
        for key in jax.random.split(jax.random.key(0), 5):
            loss = Trace_ELBO().loss(key, {}, model.augmented(), posterior.guide, bags)
            np.testing.assert_allclose(-loss, posterior.elbo[-1], rtol=1e-9)


def test_any_other_gaussian_has_a_lower_bound(problem, closed_form_start):
    with jax.enable_x64(True):
        end = closed_form_start(*problem).after(1)
        best, size = end.q, len(end.q.mean)
        prior = InducingFactor(jnp.zeros(size), jnp.eye(size), jnp.eye(size))
        moved = best._replace(mean=best.mean + 0.1)
        root = 0.9 * best.precision_cholesky
        wider = InducingFactor(best.mean, root, inverse_transposed(root))
        for other in (prior, moved, wider):
            statistics, _ = end.form.e_step(end.prepared, other, None)
            assert end.form.elbo(other, statistics) < end.elbo - 1e-3


@pytest.mark.slow
def test_laplace_finds_the_same_gaussian(problem, posterior):
    model, bags = problem
    other = laplace(model, bags, seed=0)
    draws = posterior.draws(5, seed=0)
    np.testing.assert_allclose(other.log_density(draws), posterior.log_density(draws), rtol=1e-5)


@pytest.mark.slow
def test_learning_ends_where_the_dense_evidence_is_stationary(problem):
    model, bags = problem
    learned = coordinate_ascent(model, bags, seed=0, learn_hyperparameters=True, tolerance=1e-12)
    assert np.diff(learned.elbo).min() > -1e-9
    assert set(learned.model.hyperparameters) == {"variance", "length_scale", "noise"}
    found = np.log([float(v) for v in learned.model.hyperparameters.values()])

    def evidence(logarithms):
        values = dict(zip(learned.model.hyperparameters, np.exp(logarithms), strict=True))
        moved = model.with_hyperparameters(values)
        return dense_distribution_of_targets(moved, bags).logpdf(bags.targets)

    assert np.abs(approx_fprime(found, evidence, 1e-6)).max() < 1e-3
    assert evidence(found) > evidence(np.log([2.0, 1.5, 0.3]))


def test_saved_posterior_is_restored(problem, posterior, tmp_path):
    model, bags = problem
    posterior.save(tmp_path / "posterior.nc")
    again = Posterior.load(tmp_path / "posterior.nc")
    np.testing.assert_array_equal(again.bags.targets, bags.targets)
    np.testing.assert_array_equal(again.predict(bags).bag_mean, posterior.predict(bags).bag_mean)
    assert again.model.likelihood == model.likelihood


def test_bags_without_targets_are_refused(problem):
    model, bags = problem
    bare = Bags.from_arrays(bags.instances, bags.bag_index)
    with pytest.raises(ValueError, match="bags have no targets; the closed form of VWSGP needs"):
        coordinate_ascent(model, bare, seed=0)


@pytest.mark.slow
def test_nuts_on_priors_has_the_exact_moments(problem, moments):
    # Four numbers at 5.5 standard errors: a false alarm in 2e-7 of all seeds.
    model, bags = problem
    priors = {"variance": dist.LogNormal(0.5, 0.5), "noise": dist.LogNormal(-1.0, 0.7)}
    sampled = nuts(model.with_hyperparameters(priors), bags, seed=0, num_samples=2000)
    grid = np.linspace(-5, 5, 61)
    logarithms = np.stack(np.meshgrid(0.5 + 0.5 * grid, -1.0 + 0.7 * grid), axis=-1).reshape(-1, 2)
    prior = -0.5 * (((logarithms - [0.5, -1.0]) / [0.5, 0.7]) ** 2).sum(axis=1)
    evidence = [
        dense_distribution_of_targets(
            model.with_hyperparameters({"variance": variance, "noise": noise}), bags
        ).logpdf(bags.targets)
        for variance, noise in np.exp(logarithms)
    ]
    weight = np.exp(prior + evidence - np.max(prior + evidence))
    mean = weight @ logarithms / weight.sum()
    deviation = np.sqrt(weight @ (logarithms - mean) ** 2 / weight.sum())
    draws = sampled.tree["posterior"]
    found = moments(np.log(np.stack([draws["variance"], draws["noise"]], axis=-1)))
    assert found.largest_z(np.stack([mean, deviation])) < 5.5
