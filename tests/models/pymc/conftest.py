"""Comparison of density and gradient of a PyMC program with those of the NumPyro program.

Nothing here is a statistical test: the densities must agree to rounding and quadrature error.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytest
from milzoo.datasets import Bags
from numpyro.handlers import reparam
from numpyro.infer.util import log_density
from pymc.pytensorf import rewrite_pregrad

NUMBER_OF_POINTS = 20
# Relative; the two programs use different quadrature nodes. Of log E σ the derivative by the mean
# errs by up to 4e-8 (16 Gauss–Hermite nodes at s² = 1) for each of eight bags, of slopes about 2.
DENSITY_TOLERANCE, GRADIENT_TOLERANCE = 1e-8, 2e-7
IN_NUMPYRO = {
    "whitened_inducing_value": "inducing_value_base",
    "whitened_latent": "latent_decentered",
    "whitened_bag_latent": "bag_latent_decentered",
    "whitened_weights": "weights_base",
    "whitened_intercept": "intercept_base",
}
CONSTRAINED = {"log": jnp.exp, "logodds": jax.nn.sigmoid}


@pytest.fixture(scope="session")
def bags() -> Bags:
    """Bags of 1, of 300 and of sizes between, with both labels among the small ones."""
    sizes = np.array([1, 300, 1, 4, 12, 1, 7, 2])
    random = np.random.default_rng(3)
    return Bags.from_arrays(
        random.standard_normal((sizes.sum(), 3)),
        np.repeat(np.arange(len(sizes)), sizes),
        np.array([1, 1, 0, 0, 1, 1, 0, 1]),
    ).with_targets(3.0 * random.standard_normal(len(sizes)))


@pytest.fixture(scope="session")
def inducing_points(bags) -> np.ndarray:
    """The first of them are instances: there k̃ is 0 but for the jitter."""
    return np.concatenate([bags.instances[:3], np.random.default_rng(4).normal(size=(7, 3))])


@pytest.fixture(scope="session")
def random_points():
    """Function of a PyMC model that returns values of its unconstrained variables."""
    return _random_points


@pytest.fixture(scope="session")
def pymc_densities():
    """Function of a PyMC model and points that returns log p and its gradients there."""
    return _pymc_densities


@pytest.fixture(scope="session")
def assert_same_density(bags):
    """Function of a PyMC constructor, a model and a program name that compares random points."""

    def assert_same(make_program, model, program, bags=bags):
        pymc_model = make_program(model, bags, program=program)
        points = _random_points(pymc_model)
        ours, our_gradients = _numpyro_densities(model, bags, program, points)
        theirs, their_gradients = _pymc_densities(pymc_model, points)
        assert np.isfinite(ours).all() and np.ptp(ours) > 10
        difference = ours - theirs
        np.testing.assert_allclose(
            difference, difference[0], rtol=0, atol=DENSITY_TOLERANCE * np.abs(ours).max()
        )
        for one, other in zip(our_gradients, their_gradients, strict=True):
            assert one.keys() == other.keys()
            for name in one:
                scale = np.abs(one[name]).max()
                np.testing.assert_allclose(
                    one[name], other[name], rtol=0, atol=GRADIENT_TOLERANCE * scale, err_msg=name
                )

    return assert_same


def _random_points(pymc_model):
    """Points of growing sd around the initial point."""
    random = np.random.default_rng(5)
    widths = np.geomspace(0.1, 3.0, NUMBER_OF_POINTS)
    start = pymc_model.initial_point()
    return [
        {
            name: value
            + (width if name.startswith("white") else 0.5) * random.normal(size=value.shape)
            for name, value in start.items()
        }
        for width in widths
    ]


def _pymc_densities(pymc_model, points):
    """log p and gradients in PyMC, by PyTensor's interpreter; rewritten, as samplers do."""
    log_p = rewrite_pregrad(pymc_model.logp(jacobian=False))
    gradients = pytensor.grad(log_p, pymc_model.value_vars)
    compiled = pymc_model.compile_fn(
        [log_p, *gradients], inputs=pymc_model.value_vars, mode="FAST_COMPILE"
    )
    values = [compiled(point) for point in points]
    names = [variable.name for variable in pymc_model.value_vars]
    return np.array([v[0] for v in values]), [dict(zip(names, v[1:], strict=True)) for v in values]


def _numpyro_densities(model, bags, program, points):
    """log p and its gradients in NumPyro, at the same whitened coordinates."""
    target = reparam(
        model.marginal() if program == "marginal" else model, config=model.reparametrisation
    )

    def log_p(point):
        sites = {}
        for name, value in point.items():
            site, _, transform = name.removesuffix("__").rpartition("_")
            if name.endswith("__"):
                sites[site] = CONSTRAINED[transform](value)
            else:
                sites[IN_NUMPYRO.get(name, name)] = value
        return log_density(target, (bags,), {}, sites)[0]

    with jax.enable_x64(True):
        value_and_gradients = jax.jit(jax.value_and_grad(log_p))
        results = [value_and_gradients(jax.tree.map(jnp.asarray, point)) for point in points]
        return np.array([float(value) for value, _ in results]), [
            jax.tree.map(np.asarray, gradients) for _, gradients in results
        ]
