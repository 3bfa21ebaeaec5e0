"""Samplers of a plain log density as engines: what they are told, and what comes back."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.diagnostics import compare
from milzoo.inference import coordinate_ascent, flat_density, flat_engine
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import RBF, VWSGP, Gaussian


@pytest.fixture(scope="module")
def problem():
    """Targets with Gaussian errors: a Gaussian posterior, which the closed form has exactly."""
    bags = Bags.from_list([np.eye(2), np.ones((1, 2)), -np.eye(2)]).with_targets([1.0, 0.3, -2.0])
    return VWSGP(RBF(1.0, 1.0), np.eye(2), likelihood=Gaussian(0.5)), bags


def newton(target):
    """Draws of the Gaussian with the mode and curvature of a quadratic log density."""
    start = np.zeros(target.dimension)
    precision = -np.asarray(jax.hessian(target.log_density)(start))
    mode = np.linalg.solve(precision, target.gradient(start))
    random = np.random.default_rng(target.seed)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    return mode + random.normal(size=(4, 500, target.dimension)) @ root.T


def test_draws_of_the_density_are_the_posterior(problem):
    found = flat_engine(newton)(*problem, seed=1)
    exact = coordinate_ascent(*problem, seed=0)
    judged = compare({"newton": found, "exact": exact}, reference="exact").verdicts["newton"]
    assert judged.reference.accuracy.agrees
    assert (found.engine, found.status.kind) == ("newton", "converged")


def test_a_sampler_is_told_dimension_budget_and_seed(problem):
    told = []

    def listens(target):
        told.append((target.dimension, target.budget, target.seed))
        return np.zeros((1, 4, target.dimension))

    flat_engine(listens, budget=7)(*problem, seed=3)
    assert told == [(2, 7, 3)]


def test_density_and_gradient_belong_together_in_64_bit(problem):
    """Also in threads, to which the context of the caller does not reach."""

    def checks(target):
        vector, step = np.array([0.3, -0.2]), 1e-6
        with ThreadPoolExecutor(1) as pool:
            gradient = pool.submit(target.gradient, vector).result()
        assert gradient.dtype == np.float64
        for n, unit in enumerate(np.eye(2)):
            sides = [float(target.log_density(vector + sign * step * unit)) for sign in (1, -1)]
            assert gradient[n] == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-6)
        return np.zeros((1, 4, 2))

    flat_engine(checks)(*problem, seed=0)


def test_a_second_run_compiles_nothing(problem, compilations):
    run = flat_engine(newton)
    run(*problem, seed=0)
    before = compilations.number

    def evaluates(target):
        value = target.log_density(np.zeros(2)), target.gradient(np.zeros(2))
        return np.full((4, 500, 2), float(value[0]))

    flat_engine(evaluates)(*problem, seed=1)
    assert compilations.number == before


def test_a_key_in_place_of_a_seed_is_refused(problem, without_type_checks):
    """Samplers from elsewhere take integers."""
    with pytest.raises(TypeError, match="expected an integer"):
        flat_engine(newton)(*problem, seed=jax.random.key(0))


def test_draws_of_another_shape_are_refused(problem):
    with pytest.raises(ValueError, match=r"flat returned .* shape \(10, 2\).*\(chains, draws, 2\)"):
        flat_engine(flat)(*problem, seed=0)


def flat(target):
    return np.zeros((10, target.dimension))


def test_densities_differ_from_the_joint_by_whitening_alone(problem):
    """log p(v, data) = log p(u, data) + log |du/dv|, and u = Lv."""
    target = flat_density(*problem, seed=0)
    vectors = np.array([[[0.0, 0.0], [0.5, -1.0]], [[2.0, 1.0], [-0.3, 0.2]]])
    values = target.sites(vectors)["inducing_value"]
    assert values.shape == (2, 2, 2)
    model, bags = problem
    joint = log_joint(model, "marginal", {"inducing_value": values.reshape(4, 2)}, bags)
    root = np.asarray(model.inducing_cholesky())
    np.testing.assert_allclose(values, vectors @ root.T, atol=1e-12)
    found = [float(target.log_density(vector)) for vector in vectors.reshape(4, 2)]
    np.testing.assert_allclose(found, joint + np.log(np.diagonal(root)).sum(), rtol=1e-12)
