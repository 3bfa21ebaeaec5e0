"""Laplace's approximation against quadrature and plain optimisation, and the Gaussian it leaves.

The Monte-Carlo tests are seeded single looks at 4.5 standard errors: 7e-6 each.
"""

from dataclasses import replace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags
from milzoo.inference import laplace
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import RBF, VWSGP, GammaScaleMixture, Logistic, Probit
from numpyro.infer import Predictive, Trace_ELBO
from scipy import stats
from scipy.special import expit
from sklearn.gaussian_process import GaussianProcessClassifier, kernels

PRIORS = {"variance": dist.LogNormal(0.5, 0.3), "length_scale": dist.LogNormal(0.4, 0.2)}


@pytest.fixture(scope="module")
def open_problem(small_problem):
    """The small problem with priors on both kernel parameters."""
    model, bags = small_problem
    return replace(model, kernel=RBF(**PRIORS)), bags


@pytest.fixture(scope="module")
def posterior(open_problem):
    return laplace(*open_problem, seed=0)


# ------------------------------------------------------------------ the mode and its curvature


@pytest.mark.slow
def test_mode_and_curvature_are_those_of_quadrature(one_inducing_point, exact_posterior):
    posterior = laplace(*one_inducing_point, seed=0)
    whitened, log_density = exact_posterior.whitened, exact_posterior.log_density
    # A quartic through the points around the mode of an independent density has its derivatives.
    near = slice(np.argmax(log_density) - 8, np.argmax(log_density) + 9)
    centre = whitened[np.argmax(log_density)]
    quartic = np.polynomial.Polynomial.fit(whitened[near] - centre, log_density[near], 4)
    derivative = quartic.deriv()
    mode = min((root.real for root in derivative.roots() if abs(root.imag) < 1e-9), key=abs)
    deviation = 1 / np.sqrt(-derivative.deriv()(mode))
    approximation = posterior.approximation
    assert approximation.mean == pytest.approx([centre + mode], abs=1e-6)
    assert approximation.scale_tril == pytest.approx(np.array([[deviation]]), rel=1e-5)
    assert posterior.status.kind == "converged"
    # It is no more than that: the exact posterior is skewed, and its mean lies elsewhere.
    exact_mean = exact_posterior.moments[0, 0] / exact_posterior.scale
    assert abs(exact_mean - (centre + mode)) > 0.05


@pytest.mark.slow
def test_density_is_stationary_at_the_mode(open_problem, posterior):
    """Its Hessian there is the precision."""
    # By central differences of log p(site values) + log |d sites / d vector|.
    model, bags = open_problem
    mode, scale = posterior.approximation.mean, posterior.approximation.scale_tril
    step = 1e-3

    steps = step * np.eye(mode.size)
    both = (steps[:, None] + steps[None, :]).reshape(-1, mode.size)
    vectors = mode + np.concatenate([np.zeros((1, mode.size)), steps, -steps, both])
    sites, log_jacobian = sites_of(model, vectors)
    log_density = log_joint(model, "marginal", sites, bags) + log_jacobian
    here, up, down, both = np.split(log_density, np.cumsum([1, mode.size, mode.size]))
    np.testing.assert_allclose((up - down) / (2 * step), 0.0, atol=1e-5)
    hessian = (both.reshape(mode.size, -1) - up[:, None] - up[None, :] + here) / step**2
    precision = np.linalg.inv(scale @ scale.T)
    np.testing.assert_allclose(-hessian, precision, atol=5e-3)


def sites_of(model, vectors):
    """Sites behind whitened vectors (ε, log ℓ, log v), and log |d sites / d vector|, in NumPy."""
    whitened, log_length_scale, log_variance = vectors[:, :-2], vectors[:, -2], vectors[:, -1]
    choleskys = np.stack(
        [
            cholesky_factor(model, v, ell)
            for v, ell in np.exp(np.stack([log_variance, log_length_scale], axis=1))
        ]
    )
    sites = {
        "inducing_value": np.einsum("smk,sk->sm", choleskys, whitened),
        "variance": np.exp(log_variance),
        "length_scale": np.exp(log_length_scale),
    }
    log_determinant = np.log(np.diagonal(choleskys, axis1=1, axis2=2)).sum(axis=1)
    return sites, log_determinant + log_variance + log_length_scale


def cholesky_factor(model, variance, length_scale):
    points = model.inducing_points
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    kernel = variance * np.exp(-0.5 * distance / length_scale**2)
    return np.linalg.cholesky(kernel + model.jitter * variance * np.eye(len(points)))


# ------------------------------------------------------------------ the density of its draws


@pytest.mark.slow
def test_log_density_is_the_gaussian_over_the_jacobian(open_problem, posterior):
    model, _ = open_problem
    gaussian = posterior.approximation
    random = np.random.default_rng(1)
    vectors = gaussian.mean + random.normal(size=(50, gaussian.mean.size)) @ gaussian.scale_tril.T
    sites, log_jacobian = sites_of(model, vectors)
    approximation = stats.multivariate_normal(
        gaussian.mean, gaussian.scale_tril @ gaussian.scale_tril.T
    )
    expected = approximation.logpdf(vectors) - log_jacobian
    np.testing.assert_allclose(posterior.log_density(sites), expected, rtol=1e-9, atol=1e-7)


@pytest.mark.slow
def test_density_integrates_to_one_over_the_sites(one_inducing_point):
    # Over u and v themselves, on a plain grid: the Jacobian of u = √v ε is in the density.
    model, bags = one_inducing_point
    open_model = replace(model, kernel=RBF(PRIORS["variance"], 2.0))
    posterior = laplace(open_model, bags, seed=0)
    inducing_value, value_step = np.linspace(-11.0, 11.0, 81, retstep=True)
    variance, variance_step = np.linspace(0.2, 7.0, 81, retstep=True)
    grid = np.stack(np.meshgrid(inducing_value, variance, indexing="ij"), axis=-1).reshape(-1, 2)
    log_q = posterior.log_density({"inducing_value": grid[:, :1], "variance": grid[:, 1]})
    assert np.exp(log_q).sum() * value_step * variance_step == pytest.approx(1.0, abs=2e-3)


# ------------------------------------------------------------------ the guide, in 32 bit


@pytest.mark.slow
def test_trace_elbo_is_the_mean_log_ratio(open_problem, posterior):
    model, bags = open_problem
    draws = posterior.draws(4000, seed=2)
    log_ratio = log_joint(model, "marginal", draws, bags) - posterior.log_density(draws)
    program, guide = model.marginal(), posterior.guide
    one = Trace_ELBO(1).loss
    assert not jax.config.jax_enable_x64
    keys = jax.random.split(jax.random.key(3), 4000)
    losses = jax.jit(lambda k: jax.lax.map(lambda k: one(k, {}, program, guide, bags), k))(keys)
    assert losses.dtype == np.float32
    elbo = -np.asarray(losses, float)
    error = np.sqrt((elbo.var(ddof=1) + log_ratio.var(ddof=1)) / 4000)
    assert abs(elbo.mean() - log_ratio.mean()) < 4.5 * error
    assert 0 < log_ratio.std() < 3  # neither a constant nor a few draws that say everything


@pytest.mark.slow
def test_guide_serves_predictive_in_32_bit(open_problem, posterior):
    model, bags = open_problem
    drawn = Predictive(posterior.guide, num_samples=3000)(jax.random.key(4), bags)
    assert {"inducing_value", "variance", "length_scale"} <= set(drawn)
    ours = posterior.draws(3000, seed=5)
    for name in ("inducing_value", "variance", "length_scale"):
        theirs, values = np.asarray(drawn[name], float), ours[name]
        error = np.sqrt((theirs.var(axis=0) + values.var(axis=0)) / 3000)
        assert (np.abs(theirs.mean(axis=0) - values.mean(axis=0)) < 4.5 * error).all()
    assert drawn["variance"].dtype == np.float32
    # What the guide drew can stand in for the sites of the program.
    again = Predictive(model.marginal(), posterior_samples=drawn)(
        jax.random.key(6), replace(bags, labels=None)
    )
    assert again["bag_label"].shape == (3000, bags.num_bags)


# ------------------------------------------------------------------ how it ends


def test_labels_that_say_nothing_leave_the_prior_exactly(small_problem):
    model, bags = small_problem
    posterior = laplace(replace(model, sharpness=1.0), bags, seed=0)
    np.testing.assert_allclose(posterior.approximation.mean, 0.0, atol=1e-6)
    np.testing.assert_allclose(posterior.approximation.scale_tril, np.eye(4), atol=1e-6)


def test_too_few_steps_are_admitted(small_problem):
    posterior = laplace(*small_problem, seed=0, max_steps=1, num_draws=5)
    assert posterior.status.kind == "max_steps"
    assert "gradient still" in posterior.status.sentence


@pytest.mark.slow
def test_an_end_that_is_no_mode_is_a_failure(small_problem):
    # ψ nearly constant: log 2cosh(f/2) pushes latent values away from 0, where the search starts.
    model, bags = small_problem
    hollow = replace(
        model, kernel=RBF(40.0, 1.5), mean=0.0, scale_mixture=GammaScaleMixture(1.0, 1000.0)
    )
    posterior = laplace(hollow, bags, seed=0, max_steps=1, num_draws=5)
    assert posterior.status.kind == "failed"
    assert "not positive definite: no mode" in posterior.status.sentence


def test_bags_without_labels_are_refused(small_problem):
    model, bags = small_problem
    with pytest.raises(ValueError, match="bags have no labels; laplace needs one for each bag"):
        laplace(model, replace(bags, labels=None), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [Logistic(), Probit()])
def test_mode_of_accumulated_latents_is_that_of_a_grid(accumulating_problem, likelihood):
    model, bags = accumulating_problem(num_inducing=1, seed=4, likelihood=likelihood)
    posterior = laplace(model, bags, seed=0)
    assert posterior.status.kind == "converged"
    grid = np.linspace(-4, 4, 8001)[:, None]
    density = log_joint(model, "marginal", {"inducing_value": grid}, bags)
    found = posterior.draws(40_000, seed=0)["inducing_value"]
    mode = int(np.argmax(density))
    curvature = np.diff(density[[mode - 200, mode, mode + 200]], n=2)[0] / (200 * 0.001) ** 2
    deviation = 1 / np.sqrt(-curvature)
    assert abs(found.mean() - grid[mode, 0]) < 4.5 * deviation / 200 + 0.001
    np.testing.assert_allclose(found.std(), deviation, rtol=0.03)


@pytest.mark.slow
def test_bags_of_one_give_scikit_learns_classifier():
    """With all instances as inducing points."""
    random = np.random.default_rng(2)
    places = random.normal(size=(25, 2))
    labels = (places[:, 0] + 0.5 * random.normal(size=25) > 0).astype(int)
    bags = Bags.from_arrays(places, np.arange(25), labels)
    model = VWSGP(RBF(2.5, 0.7), places, jitter=0.0)
    kernel = kernels.ConstantKernel(2.5, "fixed") * kernels.RBF(0.7, "fixed")
    theirs = GaussianProcessClassifier(kernel, optimizer=None).fit(places, labels).base_estimator_
    q = laplace(model, bags, seed=0).approximation
    with jax.enable_x64(True):
        cholesky = np.asarray(model.conditional(bags).cholesky)
    mode, root = cholesky @ q.mean, cholesky @ q.scale_tril
    # Both stop their search for the mode by tolerances of their own, at 1e-6 or better.
    np.testing.assert_allclose(expit(mode), theirs.pi_, atol=1e-5)
    precision = np.linalg.inv(kernel(places)) + np.diag(theirs.pi_ * (1 - theirs.pi_))
    np.testing.assert_allclose(root @ root.T @ precision, np.eye(25), atol=1e-4)
