"""Engines on ProbitGPMIL against quadrature, definitions, and each other.

At most 60 numbers are looked at with |z| ≤ 5 Monte-Carlo standard errors: fewer than one false
alarm in 25,000 runs of this file.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from milzoo.datasets import simulate
from milzoo.inference import coordinate_ascent, gibbs, laplace, nuts
from milzoo.models import RBF, ProbitGPMIL
from scipy.stats import norm


@pytest.fixture(scope="module")
def problem(small_problem):
    """The twelve bags of `small_problem`, with labels drawn from this model."""
    other, design = small_problem
    model = ProbitGPMIL(RBF(2.0, 1.5), other.inducing_points, mean=-0.7)
    return model, simulate(model, replace(design, labels=None), seed=5)[0]


@pytest.fixture(scope="module")
def one_point(problem):
    """With one inducing value, of which the posterior is known."""
    model, bags = problem
    return replace(model, inducing_points=model.inducing_points[:1]), bags


def moments_by_quadrature(model, bags):
    """Mean and sd of u."""
    variance = 2.0 * (1 + model.jitter)
    u, weight = np.linspace(-9.0, 9.0, 4001)[:, None] * np.sqrt(variance), None
    distance = ((bags.instances - model.inducing_points[0]) ** 2).sum(axis=1)
    cross = 2.0 * np.exp(-0.5 * distance / 1.5**2)
    location = model.mean + u * cross / variance
    scale = np.sqrt(1 + 2.0 - cross**2 / variance)
    none = np.multiply.reduceat(norm.cdf(-location / scale), bags.starts, axis=1)
    likelihood = np.where(bags.labels == 1, 1 - none, none).prod(axis=1)
    weight = likelihood * norm.pdf(u[:, 0] / np.sqrt(variance))
    weight /= weight.sum()
    mean = weight @ u[:, 0]
    return np.array([[mean], [np.sqrt(weight @ (u[:, 0] - mean) ** 2)]])


@pytest.mark.in_ci
@pytest.mark.parametrize("engine", [gibbs, nuts])
def test_one_inducing_value_has_the_moments_of_quadrature(one_point, moments, engine):
    posterior = engine(*one_point, seed=0, num_samples=3000)
    found = moments(posterior.tree["posterior"]["inducing_value"])
    assert found.largest_z(moments_by_quadrature(*one_point)) < 5


@pytest.mark.slow
def test_gibbs_agrees_with_nuts_on_the_full_program(problem, moments):
    """In u and f; and utilities have the signs of the labels."""
    model, bags = problem
    keep = ("inducing_value", "latent", "latent_utility")
    sampled = gibbs(model, bags, seed=0, num_samples=6000, keep=keep)
    full = nuts(model, bags, seed=1, program="full", num_samples=3000)
    for name in ("inducing_value", "latent"):
        ours, theirs = (moments(p.tree["posterior"][name]) for p in (sampled, full))
        assert ours.largest_z(theirs) < 5
    utility = sampled.tree["posterior"]["latent_utility"].to_numpy()
    largest = np.maximum.reduceat(utility, bags.starts, axis=-1)
    assert ((largest > 0) == (bags.labels == 1)).all()


@pytest.mark.in_ci
def test_bound_equals_trace_elbo_of_the_guide(problem, trace_elbo_draws):
    model, bags = problem
    posterior = coordinate_ascent(model, bags, seed=0, max_steps=4)
    draws = trace_elbo_draws(posterior, bags)
    error = draws.mean() - posterior.elbo[-1]
    assert abs(error) < 4.5 * draws.std(ddof=1) / np.sqrt(draws.size)


def test_the_bound_rises_to_a_stationary_point(problem, closed_form_start, gradient_of_the_bound):
    with jax.enable_x64(True):
        start = closed_form_start(*problem)
        bounds = [start.after(steps).elbo for steps in (1, 2, 4, 8, 30)]
        assert (np.diff(bounds) > 0).all()
        for gradient in gradient_of_the_bound(start.after(2000)):
            assert np.abs(gradient).max() < 1e-8


def test_the_approximation_is_much_narrower_than_laplace(problem):
    """As if all utilities had been seen: VᵀV/s² of all instances is in its precision."""
    model, bags = problem
    narrow = coordinate_ascent(model, bags, seed=0).approximation.scale_tril
    wide = laplace(model, bags, seed=0).approximation.scale_tril
    assert np.linalg.det(narrow) < 0.5 * np.linalg.det(np.asarray(model.inducing_cholesky()) @ wide)
