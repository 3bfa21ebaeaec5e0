"""Pathfinder: the density of its mixture, Gaussian posteriors, and paths to several modes."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.inference import coordinate_ascent, log_evidence, pathfinder
from milzoo.inference.gaussian import whitened_program
from milzoo.inference.pathfinder import MixtureApproximation, _best_on_path, _mixture, _Path
from milzoo.models import RBF, VWSGP, DiverseDensity, Gaussian
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(16, range(1, 5), num_features=2, seed=3)
GAUSSIAN = VWSGP(RBF(4.0, 1.0), POINTS, likelihood=Gaussian(0.5))


@pytest.fixture(scope="module")
def targets() -> Bags:
    return simulate(GAUSSIAN, DESIGN, seed=1)[0]


def test_a_mixture_has_the_mean_of_the_densities():
    random = np.random.default_rng(0)
    means, roots = random.normal(size=(3, 2)), np.tril(random.normal(size=(3, 2, 2)))
    roots[:, [0, 1], [0, 1]] = 0.5 + np.abs(roots[:, [0, 1], [0, 1]])
    points = random.normal(size=(5, 2))
    with jax.enable_x64(True):
        found = np.asarray(MixtureApproximation(means, roots).distribution().log_prob(points))
    by_component = [
        multivariate_normal(mean, root @ root.T).logpdf(points)
        for mean, root in zip(means, roots, strict=True)
    ]
    np.testing.assert_allclose(found, logsumexp(by_component, axis=0) - np.log(3), atol=1e-12)


@pytest.mark.in_ci
def test_the_elbo_is_that_of_the_gaussian_returned(targets):
    """Of a path that has not arrived: its gradient is not 0, and the mean is far from the step."""
    with jax.enable_x64(True):
        target = whitened_program(GAUSSIAN, targets)
        found = jax.tree.map(np.asarray, _best_on_path(target, jax.random.key(1), 2))
        density = multivariate_normal(found.mean, found.scale_tril @ found.scale_tril.T)
        draws = density.rvs(20_000, random_state=0)
        log_ratio = np.asarray(jax.vmap(target.log_density)(draws)) - density.logpdf(draws)
    # Of the 25 draws of a step.
    assert found.elbo == pytest.approx(log_ratio.mean(), abs=4 * log_ratio.std() / 25**0.5)
    assert log_ratio.std() < 0.2 * abs(log_ratio.mean())


@pytest.mark.slow
def test_a_step_of_newton_leads_to_the_mean(targets):
    """After two steps, whose position is an sd and more from the mode of a Gaussian posterior."""
    with jax.enable_x64(True):
        target = whitened_program(GAUSSIAN, targets)
        mode = np.asarray(_best_on_path(target, jax.random.key(1), 50).mean)
        early = np.asarray(_best_on_path(target, jax.random.key(1), 2).mean)
        gradient = np.asarray(jax.grad(target.log_density)(mode))
        precision = -np.asarray(jax.hessian(target.log_density)(mode))
    sds = np.linalg.inv(precision).diagonal() ** 0.5
    assert (np.abs(np.linalg.solve(precision, gradient)) < 0.01 * sds).all()
    assert (np.abs(early - mode) < 0.2 * sds).all()


@pytest.mark.in_ci
def test_a_conjugate_posterior_is_found(targets):
    exact = coordinate_ascent(GAUSSIAN, targets, seed=0)
    posterior = pathfinder(GAUSSIAN, targets, seed=0)
    assert posterior.status.sentence.startswith("8 of 8 paths, ELBO")
    found = log_evidence(posterior, seed=1)
    assert found.khat < 0.7
    assert found.value == pytest.approx(exact.elbo[-1], abs=0.1)
    draws, known = (p.draws(4000, seed=2)["inducing_value"] for p in (posterior, exact))
    # The inverse Hessians of L-BFGS come near to the covariance, and no nearer.
    assert (np.abs(draws.mean(axis=0) - known.mean(axis=0)) < 0.3 * known.std(axis=0)).all()
    assert draws.std(axis=0) == pytest.approx(known.std(axis=0), rel=0.25)


@pytest.mark.in_ci
def test_paths_lead_to_both_modes():
    pairs = [np.array([[1.5], [-1.5]])] * 4
    bags = Bags.from_list([*pairs, np.zeros((1, 1))], labels=[1] * 4 + [0])
    model = DiverseDensity(concept_prior=dist.Normal(0.0, 2.0))
    concept = pathfinder(model, bags, seed=0, num_paths=16).draws(1000, seed=1)["concept"]
    assert 0.1 < (concept > 0.5).mean() < 0.9
    assert 0.1 < (concept < -0.5).mean() < 0.9


def test_paths_without_a_finite_bound_are_left_out():
    paths = _Path(np.zeros((3, 2)), np.stack([np.eye(2)] * 3), np.array([-1.0, np.nan, -2.0]))
    mixture, status = _mixture(paths)
    assert len(mixture.means) == 2
    assert status.sentence == "2 of 3 paths, ELBO -2.00 to -1.00"
    _, failed = _mixture(paths._replace(elbo=np.full(3, -np.inf)))
    assert failed.kind == "failed" and "no path has a Gaussian of finite ELBO" in failed.sentence
