"""The PyMC program of DPMIL against the NumPyro program, in the coordinates of PyMC.

Densities must agree to rounding, all constants included. The one statistical test is seeded and
looks at 22 means with |z| ≤ 5.5: false alarm below 1e-5.
"""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytest
from jax.scipy.linalg import solve_triangular
from milzoo.datasets import Bags
from milzoo.models import DPMIL
from milzoo.models.pymc.dpmil import dpmil_program
from numpyro.infer.util import compute_log_probs
from pymc.pytensorf import rewrite_pregrad
from scipy.special import logsumexp

LARGEST_Z = 5.5
# Relative to the largest of what is compared. PyMC has its own constants in 32 bit.
DENSITY_TOLERANCE, GRADIENT_TOLERANCE, PRIOR_TOLERANCE = 1e-12, 1e-10, 1e-7

SCALE = np.array([[0.8, -0.3], [-0.3, 0.5]])
FULL = DPMIL(np.array([0.5, -2.0]), SCALE, 3.5, mean_strength=0.4, max_components=3)
DIAGONAL = replace(FULL, scale=np.diagonal(SCALE), degrees_of_freedom=1.3)
KNOWN, NO_WITNESS = {"supervision": "instances"}, {"needs_witness": False}
MODELS = {
    "full": FULL,
    "full, known labels": replace(FULL, **KNOWN, max_components=1, positive_fraction=0.2),
    "full, no witness": replace(FULL, **NO_WITNESS, concentration=0.7),
    "full, known labels, no witness": replace(FULL, **KNOWN, **NO_WITNESS),
    "one feature": replace(
        FULL, center=np.array([0.5]), scale=np.array([[0.7]]), degrees_of_freedom=0.6
    ),
    "diagonal": replace(DIAGONAL, max_components=1),
    "diagonal, known labels": replace(DIAGONAL, **KNOWN),
    "diagonal, no witness": replace(DIAGONAL, **NO_WITNESS),
    "diagonal, known labels, no witness": replace(DIAGONAL, **KNOWN, **NO_WITNESS),
}


@pytest.fixture(scope="module")
def bags() -> Bags:
    """In positive bags: nothing known, a witness, a last hope, a mixture, nothing in a bag of 1."""
    known = [[-1] * 40, [1, -1, 0], [0, 0, -1], [0, -1, -1, -1], [-1], [0, -1, -1], [1], [0]]
    instances = np.random.default_rng(3).normal(size=(sum(map(len, known)), 2)) - [0.0, 1.0]
    parts = np.split(instances, np.cumsum([len(one) for one in known])[:-1])
    labels = [1, 1, 1, 1, 1, 0, 1, 0]
    return Bags.from_list(parts, labels=labels, instance_labels=[np.array(k) for k in known])


def bags_for(model, bags):
    return replace(bags, instances=bags.instances[:, : model.num_features])


# ---------------------------------------------------------------- the two programs


def random_points(pymc_model, number=8):
    """Points of growing sd around the initial point, in unconstrained coordinates."""
    random, start = np.random.default_rng(5), pymc_model.initial_point()
    return [
        {name: value + width * random.normal(size=value.shape) for name, value in start.items()}
        for width in np.geomspace(0.1, 2.0, number)
    ]


class Densities(NamedTuple):
    """log p of the sites, the bag labels and X_b | T_b at a point; gradients of their sum."""

    prior: np.ndarray
    labels: np.ndarray
    evidence: np.ndarray
    gradients: dict[str, np.ndarray]


def densities_of_pymc(pymc_model, points):
    """Densities in PyMC, by PyTensor's interpreter; rewritten first, as samplers do."""
    prior = rewrite_pregrad(pymc_model.logp(pymc_model.free_RVs, jacobian=False))
    evidence, labels = pymc_model.logp(
        [pymc_model["instances"], pymc_model["bag_label"]], sum=False
    )
    evidence = rewrite_pregrad(evidence)
    gradients = pytensor.grad(prior + evidence.sum(), pymc_model.value_vars)
    outputs = [prior, labels.sum(), evidence, *gradients]
    compiled = pymc_model.compile_fn(outputs, inputs=pymc_model.value_vars, mode="FAST_COMPILE")
    names = [variable.name for variable in pymc_model.value_vars]
    return [
        Densities(*values[:3], dict(zip(names, values[3:], strict=True)))
        for values in map(compiled, points)
    ]


def sites_and_jacobian(model, point):
    """Sites of the NumPyro program at a PyMC point, and log |∂ sites/∂ coordinates|."""
    squared, noise = jnp.exp(point["bartlett_diagonal_log__"]), point["whitened_mean"]
    num_features, num_components = model.num_features, 2 * model.max_components
    sites = {}
    if model.max_components > 1:
        sites["stick"] = jax.nn.sigmoid(point["stick_logodds__"])
    if model.covariance == "diagonal":
        precision = jnp.asarray(model.scale) * squared
        sites["precision"] = precision
        sites["mean"] = model.center + noise / jnp.sqrt(model.mean_strength * precision)
        log_jacobian = num_components * np.log(model.scale).sum()
        log_jacobian -= 0.5 * jnp.sum(jnp.log(model.mean_strength * precision))
        return sites, log_jacobian

    diagonal = jnp.sqrt(squared)
    bartlett = diagonal[..., None] * jnp.eye(num_features)
    if num_features > 1:
        row, column = np.tril_indices(num_features, -1)
        bartlett = bartlett.at[..., row, column].set(point["bartlett_below"])
    root_of_scale = np.linalg.cholesky(model.scale)
    root = root_of_scale @ bartlett
    sites["precision_cholesky"] = root
    deviation = solve_triangular(root, noise[..., None], trans="T", lower=True)[..., 0]
    sites["mean"] = model.center + deviation / jnp.sqrt(model.mean_strength)
    # ∂L/∂A: the i-th row of B stands before the i + 1 columns that A has a number in.
    times = 1 + np.arange(num_features)
    log_jacobian = num_components * np.sum(times * np.log(np.diagonal(root_of_scale)))
    log_jacobian -= jnp.sum(jnp.log(2 * diagonal))  # ∂A_ii/∂(A_ii²)
    log_jacobian -= 0.5 * noise.size * np.log(model.mean_strength)  # ∂μ/∂ε
    log_jacobian -= jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)))
    return sites, log_jacobian


def densities_of_program(model, bags, points):
    """The same from the NumPyro program, transformed to the coordinates of the PyMC model."""

    def log_p(point):
        sites, log_jacobian = sites_and_jacobian(model, point)
        terms, drawn = compute_log_probs(model.marginal(), (bags,), {}, sites)
        assert set(terms) == {*model.latent_sites, "bag_label", "instances"}
        evidence = drawn["instances"]["fn"].log_prob_by_bag(drawn["instances"]["value"])
        prior = sum(terms[name] for name in sites) + log_jacobian
        return sum(terms.values()) + log_jacobian, (prior, terms["bag_label"], evidence)

    with jax.enable_x64(True):
        value_and_gradients = jax.jit(jax.value_and_grad(log_p, has_aux=True))
        found = [value_and_gradients(jax.tree.map(jnp.asarray, point)) for point in points]
        return [
            Densities(*map(np.asarray, parts), jax.tree.map(np.asarray, gradients))
            for (_, parts), gradients in found
        ]


def assert_close(ours, theirs, tolerance, what):
    """Compare with a tolerance relative to the largest value."""
    assert np.isfinite(ours).all() and np.isfinite(theirs).all(), what
    atol = tolerance * max(1.0, np.abs(ours).max())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=what)


def assert_same(ours, theirs):
    """Densities and gradients of two programs, point by point, with all constants."""
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one.prior, other.prior, PRIOR_TOLERANCE, "prior")
        assert_close(one.labels, other.labels, PRIOR_TOLERANCE, "labels")
        assert_close(one.evidence, other.evidence, DENSITY_TOLERANCE, "latent")
        assert one.gradients.keys() == other.gradients.keys()
        for name, gradient in one.gradients.items():
            assert_close(gradient, other.gradients[name], GRADIENT_TOLERANCE, name)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("kind", MODELS)
def test_densities_and_gradients_are_those_of_the_numpyro_program(bags, kind):
    model = MODELS[kind]
    bags = bags_for(model, bags)
    pymc_model = dpmil_program(model, bags)
    points = random_points(pymc_model)
    ours = densities_of_program(model, bags, points)
    assert np.ptp([one.evidence.sum() for one in ours]) > 10
    assert_same(ours, densities_of_pymc(pymc_model, points))


@pytest.mark.parametrize("kind", MODELS)
def test_sites_and_dimensions_are_those_of_the_model(bags, kind):
    model = MODELS[kind]
    pymc_model = dpmil_program(model, bags_for(model, bags))
    names = [v.name for v in pymc_model.unobserved_RVs if v.name in model.dims]
    assert sorted(names) == sorted(model.latent_sites)
    for name in names:
        assert pymc_model.named_vars_to_dims[name] == model.dims[name]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("kind", ["full", "one feature", "diagonal"])
def test_sites_have_the_values_that_coordinates_imply(bags, kind):
    model = MODELS[kind]
    pymc_model = dpmil_program(model, bags_for(model, bags))
    (point,) = random_points(pymc_model, 1)
    outputs = pymc_model.replace_rvs_by_values([pymc_model[name] for name in model.latent_sites])
    compiled = pymc_model.compile_fn(outputs, inputs=pymc_model.value_vars, mode="FAST_COMPILE")
    with jax.enable_x64(True):
        sites, _ = sites_and_jacobian(model, jax.tree.map(jnp.asarray, point))
    for name, value in zip(model.latent_sites, compiled(point), strict=True):
        np.testing.assert_allclose(value, sites[name], rtol=1e-12, err_msg=name)


# ---------------------------------------------------------------- far out


def log_evidence_of_all_labellings(negative, positive):
    """log of the mean of Π p(x | r) over all r with a witness, of log p₋ and log p₊."""
    labellings = [r for r in product([False, True], repeat=len(negative)) if any(r)]
    terms = [np.where(r, positive, negative).sum() for r in labellings]
    return logsumexp(terms) - np.log(len(labellings))


@pytest.mark.slow
@pytest.mark.slow_but_first
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_densities_and_gradients_are_accurate_far_away(covariance):
    scale = np.eye(2) if covariance == "full" else np.ones(2)
    model = DPMIL(np.zeros(2), scale, 2.0, max_components=1)
    # At x = 0 and at x = 1, the means of the two classes.
    positions = [np.array(one) for one in ([0] * 5, [1] * 3, [0, 1, 0, 1], [0], [1], [0, 1])]
    parts = [np.stack([x, 0 * x], axis=1) for x in positions]
    bags = Bags.from_list(parts, labels=[1, 1, 1, 1, 1, 0])
    pymc_model = dpmil_program(model, bags)
    # So many deviations apart, log p₊/p₋ is −½d² or ½d²: of 45, 1012.5.
    distances = np.array([1.0, 45.0, 1000.0])
    points = []
    for distance in distances:
        point = {name: np.zeros_like(value) for name, value in pymc_model.initial_point().items()}
        point["bartlett_diagonal_log__"] += 2 * np.log(distance)
        point["whitened_mean"][1, 0, 0] = distance
        points.append(point)
    found = densities_of_pymc(pymc_model, points)
    assert_same(densities_of_program(model, bags, points), found)

    for distance, one in zip(distances, found, strict=True):
        peak = 2 * np.log(distance) - np.log(2 * np.pi)
        expected = [
            log_evidence_of_all_labellings(
                peak - 0.5 * distance**2 * x, peak - 0.5 * distance**2 * (1 - x)
            )
            for x in positions[:-1]
        ]
        atol = 1e-15 * distance**2  # of differences of such size
        np.testing.assert_allclose(one.evidence[:-1], expected, rtol=1e-13, atol=atol)


# ---------------------------------------------------------------- draws


def z_scores(draws, expected):
    """z scores of the means of independent draws."""
    flat = draws.reshape(-1, *np.shape(expected))
    return (flat.mean(0) - expected) / (flat.std(0) / np.sqrt(len(flat)))


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_draws_from_the_prior_have_its_moments(bags, covariance):
    scale = SCALE if covariance == "full" else np.diagonal(SCALE)
    model = replace(FULL, scale=scale, degrees_of_freedom=9.0, max_components=10)
    pymc_model = dpmil_program(model, bags)
    sites = [pymc_model[name] for name in model.latent_sites]
    stick, mean, precision = pm.draw(sites, 1000, random_seed=8, mode="FAST_COMPILE")
    deviation = mean - model.center
    if covariance == "full":
        root = precision
        precision = root @ np.swapaxes(root, -1, -2)
        variance = 9.0 * (SCALE**2 + np.outer(np.diagonal(SCALE), np.diagonal(SCALE)))
        distance = ((deviation[..., None, :] @ root)[..., 0, :] ** 2).sum(-1)
    else:
        variance = 2 * 9.0 * scale**2
        distance = (precision * deviation**2).sum(-1)
    z = [
        z_scores(stick, 1 / 3),
        z_scores(deviation, np.zeros(2)),
        z_scores(precision, 9.0 * scale),
        z_scores((precision - 9.0 * scale) ** 2, variance),
        z_scores(0.4 * distance, 2.0),  # χ² of two degrees of freedom
        z_scores((0.4 * distance) ** 2, 8.0),
    ]
    assert max(np.abs(one).max() for one in z) <= LARGEST_Z


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("program", ["full", "augmented"])
def test_a_program_with_discrete_sites_is_refused(bags, program):
    with pytest.raises(
        ValueError, match=f"program is '{program}'; expected 'marginal': .* are discrete"
    ):
        dpmil_program(FULL, bags, program=program)


def test_bags_without_labels_are_refused(bags):
    with pytest.raises(
        ValueError, match="bags have no labels; dpmil_program needs one for each bag"
    ):
        dpmil_program(FULL, replace(bags, labels=None))


def test_known_labels_that_are_not_there_are_refused(bags):
    with pytest.raises(ValueError, match="bags have no instance labels, and supervision="):
        dpmil_program(MODELS["full, known labels"], replace(bags, instance_labels=None))


def test_a_positive_bag_without_possible_witness_is_refused(bags):
    known = np.where(bags.bag_index == 3, 0, bags.instance_labels)
    with pytest.raises(ValueError, match=r"bag .* is positive, but all its instances are known"):
        dpmil_program(MODELS["full, known labels"], replace(bags, instance_labels=known))


def test_bags_of_another_width_are_refused(bags):
    with pytest.raises(ValueError, match=r"bags have 1 features and the model 2"):
        dpmil_program(FULL, replace(bags, instances=bags.instances[:, :1]))
