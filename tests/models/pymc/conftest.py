"""The comparison that every twin has to pass: its density and slope against NumPyro's.

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
# Relative; the quadratures of the two programs have other nodes.
DENSITY_TOLERANCE, SLOPE_TOLERANCE = 1e-8, 1e-7
IN_NUMPYRO = {
    "white_inducing_value": "inducing_value_base",
    "white_evidence": "evidence_decentered",
    "white_bag_evidence": "bag_evidence_decentered",
    "white_weights": "weights_base",
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
    """Function of a twin that gives values of its variables (positive ones in logs, and so on)."""
    return _random_points


@pytest.fixture(scope="session")
def twin_densities():
    """Function of a twin and points that gives log p and its slopes there."""
    return _twin_densities


@pytest.fixture(scope="session")
def assert_same_density(bags):
    """Function of what makes twins, a model and a program that compares at random points."""

    def assert_same(pymc_twin, model, program, bags=bags):
        twin = pymc_twin(model, bags, program=program)
        points = _random_points(twin)
        ours, our_slopes = _numpyro_densities(model, bags, program, points)
        theirs, their_slopes = _twin_densities(twin, points)
        assert np.isfinite(ours).all() and np.ptp(ours) > 10
        difference = ours - theirs
        np.testing.assert_allclose(
            difference, difference[0], rtol=0, atol=DENSITY_TOLERANCE * np.abs(ours).max()
        )
        for one, other in zip(our_slopes, their_slopes, strict=True):
            assert one.keys() == other.keys()
            for name in one:
                scale = np.abs(one[name]).max()
                np.testing.assert_allclose(
                    one[name], other[name], rtol=0, atol=SLOPE_TOLERANCE * scale, err_msg=name
                )

    return assert_same


def _random_points(twin):
    """From narrow to wide."""
    random = np.random.default_rng(5)
    widths = np.geomspace(0.1, 3.0, NUMBER_OF_POINTS)
    start = twin.initial_point()
    return [
        {
            name: value
            + (width if name.startswith("white") else 0.5) * random.normal(size=value.shape)
            for name, value in start.items()
        }
        for width in widths
    ]


def _twin_densities(twin, points):
    """From PyTensor's own interpreter: nothing to compile. Rewritten first, as samplers do."""
    log_p = rewrite_pregrad(twin.logp(jacobian=False))
    slopes = pytensor.grad(log_p, twin.value_vars)
    compiled = twin.compile_fn([log_p, *slopes], inputs=twin.value_vars, mode="FAST_COMPILE")
    values = [compiled(point) for point in points]
    names = [variable.name for variable in twin.value_vars]
    return np.array([v[0] for v in values]), [dict(zip(names, v[1:], strict=True)) for v in values]


def _numpyro_densities(model, bags, program, points):
    """The same from NumPyro, at the same whitened coordinates."""
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
        value_and_slopes = jax.jit(jax.value_and_grad(log_p))
        results = [value_and_slopes(jax.tree.map(jnp.asarray, point)) for point in points]
        return np.array([float(value) for value, _ in results]), [
            jax.tree.map(np.asarray, slopes) for _, slopes in results
        ]
