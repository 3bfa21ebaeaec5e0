"""The bound of every closed form against its definition, by sums and quadrature in plain NumPy.

`Trace_ELBO` compares guide and program of this package: it cannot see what both have wrong, nor an
error below its Monte-Carlo noise. Here E_q[log p(y, u, …) − log q] is formed from the formulas of
the models alone. Of the approximations only q(u), or q(θ) of DPMIL, and label logits are read.
Every factor of q that is not kept is at its optimum, where the bound is
log ∫ exp(E log joint) over that factor's variable.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.inference import coordinate_ascent
from milzoo.models import (
    DPMIL,
    RBF,
    VGPMIL,
    VWSGP,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    CoupledVGPMIL,
    GammaScaleMixture,
    Gaussian,
    Logistic,
    NormalCardinality,
    PolyaGammaScaleMixture,
    Probit,
    ProbitGPMIL,
)
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.legendre import leggauss
from scipy.sparse import csr_array
from scipy.special import betaln, expit, logsumexp, multigammaln
from scipy.stats import gamma as gamma_distribution
from scipy.stats import multivariate_normal, norm

# Rounding: bounds of size 10 are sums of some hundred terms in 64 bit.
TOLERANCE = 1e-10
# The error of central differences is step² times third derivatives: 1.3e-6 at most here.
DIFFERENCE, GRADIENT_TOLERANCE = 1e-4, 1e-5
Q_U = ("mean", "scale_tril")
# From the start, and where nothing moves any more.
STEPS = [3, 300]

# ------------------------------------------------------------------ problems and fits

SIZES = [2, 1, 3]
LABELS = np.array([0, 1, 1])
TARGETS = np.array([-0.4, 1.3, 2.1])
INDUCING_POINTS = np.array([[-0.6, 0.4], [0.9, -0.3]])
KERNEL = {"variance": 1.8, "length_scale": 1.3}
SHARPNESS = 9.0
NOISE = 0.6
LABEL_UPDATES = ["exact", "mean_field", "plug_in_max"]
ALPHA, BETA = 1.3, 2.2
SCALE_MIXTURES = {"sech": PolyaGammaScaleMixture(), "gamma": GammaScaleMixture(ALPHA, BETA)}
LIKELIHOODS = {
    "bernoulli": {"likelihood": Logistic()},
    "probit": {"likelihood": Probit(NOISE)},
    "gaussian": {"likelihood": Gaussian(NOISE)},
}
COVARIANCES = ["full", "diagonal"]


def problem_bags() -> Bags:
    """Three bags of two features, with labels and targets."""
    random = np.random.default_rng(4)
    instances = [random.normal(size=(size, 2)) for size in SIZES]
    return Bags.from_list(instances, labels=LABELS).with_targets(TARGETS)


@cache
def fitted(model, steps, label_update=None):
    """Posterior after so many steps from the start."""
    options = {} if label_update is None else {"label_update": label_update}
    # A bound may stop moving before the last step.
    return coordinate_ascent(
        model, problem_bags(), seed=0, max_steps=steps, tolerance=0.0, num_draws=2, **options
    )


@cache
def vgpmil(scale_mixture: str, mean: float) -> VGPMIL:
    return VGPMIL(
        RBF(**KERNEL),
        INDUCING_POINTS,
        mean=mean,
        sharpness=SHARPNESS,
        scale_mixture=SCALE_MIXTURES[scale_mixture],
    )


@cache
def vwsgp(likelihood: str) -> VWSGP:
    return VWSGP(RBF(**KERNEL), INDUCING_POINTS, **LIKELIHOODS[likelihood])


# ------------------------------------------------------------------ u and what depends on it


class Rows(NamedTuple):
    """u ~ N(0, K), and r | u ~ N(a_r u, k̃_r) of instances or bags; their prior mean is apart."""

    covariance: np.ndarray  # (M, M)
    weights: np.ndarray  # (R, M)
    residual: np.ndarray  # (R,)

    @property
    def scale_tril(self) -> np.ndarray:
        return np.linalg.cholesky(self.covariance)


def instance_rows(model: VGPMIL | VWSGP | ProbitGPMIL) -> Rows:
    """FITC, with the jitter that the models state."""
    variance, length_scale = KERNEL["variance"], KERNEL["length_scale"]

    def kernel(left, right):
        distance = ((left[:, None] - right[None]) ** 2).sum(axis=-1)
        return variance * np.exp(-0.5 * distance / length_scale**2)

    points = INDUCING_POINTS
    covariance = kernel(points, points) + model.jitter * variance * np.eye(len(points))
    cross = kernel(problem_bags().instances, points)
    weights = np.linalg.solve(covariance, cross.T).T
    return Rows(covariance, weights, variance - (weights * cross).sum(axis=1))


def bag_rows(model: VWSGP) -> Rows:
    """Sums over the instances of each bag."""
    rows, starts = instance_rows(model), problem_bags().starts
    return Rows(
        rows.covariance,
        np.add.reduceat(rows.weights, starts),
        np.add.reduceat(rows.residual, starts),
    )


def tensor(nodes: np.ndarray, weights: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (S, dimension) and weights (S,) of a product rule."""
    points = np.array(list(product(nodes, repeat=dimension))).reshape(-1, dimension)
    products = np.array(list(product(weights, repeat=dimension))).reshape(-1, dimension)
    return points, products.prod(axis=1)


def gauss_hermite(dimension: int, order: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """For N(0, I); polynomials up to degree 2·order − 1 are integrated exactly."""
    nodes, weights = hermegauss(order)
    return tensor(nodes, weights / np.sqrt(2 * np.pi), dimension)


def even_nodes(dimension: int, step: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """For N(0, I) and smooth functions: beyond all powers of the step."""
    nodes = np.arange(-9.0, 9.0 + step / 2, step)
    return tensor(nodes, step * norm.pdf(nodes), dimension)


class Approximation(NamedTuple):
    """Nodes and weights of q(u), where E log-joint is a polynomial in u."""

    values: np.ndarray  # (S, M)
    weights: np.ndarray  # (S,)
    divergence: float  # KL(q(u) ‖ p(u))

    @classmethod
    def of(cls, approximation, rows: Rows):
        mean = np.asarray(approximation.mean)
        scale_tril = np.asarray(approximation.scale_tril)
        nodes, weights = gauss_hermite(len(mean))
        values = mean + nodes @ scale_tril.T
        log_q = multivariate_normal.logpdf(values, mean, scale_tril @ scale_tril.T)
        log_p = multivariate_normal.logpdf(values, np.zeros_like(mean), rows.covariance)
        return cls(values, weights, weights @ (log_q - log_p))

    def moments(self, rows: Rows, prior_mean: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """E r and E r² of each row, over q(u) p(r | u)."""
        noise, weights = gauss_hermite(1)
        location = prior_mean + self.values @ rows.weights.T  # (S, R)
        values = location[:, None] + np.sqrt(rows.residual) * noise
        both = self.weights[:, None] * weights
        return np.einsum("st,str->r", both, values), np.einsum("st,str->r", both, values**2)


def largest_gradient(bound: Callable, approximation, fields: tuple[str, ...]) -> float:
    """Largest |∂ bound/∂ entry| of an approximation, by central differences.

    Entries that are 0, above the diagonal of a triangle, stay 0.
    """
    gradients = []
    for name in fields:
        value = np.asarray(getattr(approximation, name))
        for index in zip(*np.nonzero(value), strict=True):
            step = np.zeros_like(value)
            step[index] = DIFFERENCE
            ends = [bound(replace(approximation, **{name: value + d})) for d in (step, -step)]
            gradients.append((ends[0] - ends[1]) / (2 * DIFFERENCE))
    return float(np.abs(gradients).max())


def log_evidence(rows: Rows, log_likelihood: Callable[[np.ndarray], np.ndarray]) -> float:
    """log ∫ p(u) exp(log_likelihood(u)) du."""
    nodes, weights = even_nodes(len(rows.covariance))
    return logsumexp(log_likelihood(nodes @ rows.scale_tril.T), b=weights)


def expected_over_rows(
    rows: Rows, values: np.ndarray, function: Callable[[np.ndarray], np.ndarray], mean: float = 0.0
) -> np.ndarray:
    """E[function(r) | u] of each row, at each of the values (S, M) of u."""
    noise, weights = even_nodes(1)
    location, scale = mean + values @ rows.weights.T, np.sqrt(rows.residual)
    total = np.zeros_like(location)
    for z, weight in zip(noise[:, 0], weights, strict=True):
        total += weight * function(location + scale * z)
    return total


# ------------------------------------------------------------------ augmentation


def log_polya_gamma(omega: np.ndarray) -> np.ndarray:
    """log PG(ω | 1, 0) by the two series of Devroye for J* = 4ω, each where it converges fast."""
    x, terms = 4 * omega, np.arange(12)[:, None]
    odd, sign = terms + 0.5, (-1.0) ** terms
    left = np.log(np.pi / 2) + 1.5 * np.log(2 / (np.pi * x)) - 0.5 / x
    left_series = np.sum(sign * 2 * odd * np.exp(-2 * (odd**2 - 0.25) / x), axis=0)
    right = np.log(np.pi / 2) - np.pi**2 * x / 8
    right_series = np.sum(sign * 2 * odd * np.exp(-0.5 * np.pi**2 * (odd**2 - 0.25) * x), axis=0)
    small = x < 0.64
    return np.log(4) + np.where(
        small,
        left + np.log(np.where(small, left_series, 1)),
        right + np.log(np.where(small, 1, right_series)),
    )


def log_gamma(omega: np.ndarray) -> np.ndarray:
    return gamma_distribution.logpdf(omega, ALPHA, scale=1 / BETA)


LOG_SCALE_MIXTURE = {"sech": log_polya_gamma, "gamma": log_gamma}
# P(y | f) = ½ e^{(y − ½)f} E e^{−ωf²/2} with the Pólya-Gamma; a Gamma makes a factor without the ½.
LOG_CONSTANT = {"sech": np.log(0.5), "gamma": 0.0}


def augmentation_at_optimum(scale_mixture: str, second_moment: np.ndarray) -> np.ndarray:
    """log ∫ p(ω) exp(−½ω E f²) dω: what ω adds to the bound with q(ω) at its optimum."""
    log_omega, step = np.linspace(-35.0, 8.0, 1500, retstep=True)
    omega = np.exp(log_omega)
    log_measure = LOG_SCALE_MIXTURE[scale_mixture](omega) + log_omega + np.log(step)
    log_joint = log_measure - 0.5 * second_moment[:, None] * omega
    return logsumexp(log_joint, axis=1) + LOG_CONSTANT[scale_mixture]


@pytest.mark.parametrize("tilt", [0.0, 0.3, 2.0, 9.0])
def test_oracle_integrates_the_polya_gamma_density(tilt):
    found = augmentation_at_optimum("sech", np.array([tilt**2]))
    np.testing.assert_allclose(found, -np.log(2 * np.cosh(tilt / 2)), rtol=1e-12)


# ------------------------------------------------------------------ VGPMIL


def labellings(size: int) -> np.ndarray:
    return np.array(list(product([0, 1], repeat=size)))


def log_noisy_maximum(labels: np.ndarray, bag_label: int) -> np.ndarray:
    agrees = labels.max(axis=1) == bag_label
    return np.log(np.where(agrees, SHARPNESS, 1.0) / (SHARPNESS + 1.0))


def instances_by_bag() -> list[slice]:
    return [
        slice(start, start + size) for start, size in zip(problem_bags().starts, SIZES, strict=True)
    ]


def vgpmil_bound(
    approximation, rows: Rows, scale_mixture: str, mean: float, label_update: str
) -> float:
    """By the sum over all labellings of each bag."""
    q = Approximation.of(approximation, rows)
    first, second = q.moments(rows, mean)
    bound = augmentation_at_optimum(scale_mixture, second).sum() - q.divergence
    for bag, instances in enumerate(instances_by_bag()):
        labels = labellings(SIZES[bag])
        log_joint = (labels - 0.5) @ first[instances] + log_noisy_maximum(labels, LABELS[bag])
        if label_update == "exact":
            bound += logsumexp(log_joint)
        else:
            chance = expit(np.asarray(approximation.label_logits)[instances])
            probability = np.where(labels, chance, 1 - chance).prod(axis=1)
            bound += probability @ (log_joint - np.log(probability))
    return bound


def vgpmil_log_evidence(rows: Rows, scale_mixture: str, mean: float) -> float:
    """Of the density that the bound is about: with ψ of a Gamma it is not normalised over f."""

    def psi(f):
        if scale_mixture == "sech":
            return 1 / (2 * np.cosh(f / 2))
        return (1 + 0.5 * f**2 / BETA) ** -ALPHA

    def log_likelihood(values):
        negative, positive = (
            expected_over_rows(rows, values, lambda f, y=y: psi(f) * np.exp((y - 0.5) * f), mean)
            for y in (0, 1)
        )
        total = np.zeros(len(values))
        for bag, instances in enumerate(instances_by_bag()):
            labels = labellings(SIZES[bag])
            factors = np.where(labels, positive[:, None, instances], negative[:, None, instances])
            total += np.log(factors.prod(axis=2) @ np.exp(log_noisy_maximum(labels, LABELS[bag])))
        return total

    return log_evidence(rows, log_likelihood)


every_scale_mixture = pytest.mark.parametrize("scale_mixture", SCALE_MIXTURES)
every_mean = pytest.mark.parametrize("mean", [0.0, -0.8])
every_label_update = pytest.mark.parametrize("label_update", LABEL_UPDATES)
every_length = pytest.mark.parametrize("steps", STEPS)


@pytest.mark.slow_but_first
@every_length
@every_mean
@every_scale_mixture
@every_label_update
def test_vgpmil_bound_equals_brute_force(label_update, scale_mixture, mean, steps):
    model = vgpmil(scale_mixture, mean)
    posterior = fitted(model, steps, label_update)
    rows = instance_rows(model)
    expected = vgpmil_bound(posterior.approximation, rows, scale_mixture, mean, label_update)
    assert posterior.elbo[-1] == pytest.approx(expected, abs=TOLERANCE, rel=0)


@pytest.mark.slow
@every_mean
@every_scale_mixture
@every_label_update
def test_vgpmil_bound_is_below_the_log_evidence(label_update, scale_mixture, mean):
    model = vgpmil(scale_mixture, mean)
    posterior = fitted(model, max(STEPS), label_update)
    assert posterior.elbo[-1] < vgpmil_log_evidence(instance_rows(model), scale_mixture, mean)


@pytest.mark.in_ci
@every_scale_mixture
@pytest.mark.parametrize("label_update", ["exact", "mean_field"])
def test_vgpmil_converges_where_the_brute_force_bound_is_stationary(label_update, scale_mixture):
    mean = -0.8
    model = vgpmil(scale_mixture, mean)
    approximation = fitted(model, max(STEPS), label_update).approximation
    rows = instance_rows(model)

    def bound(moved):
        return vgpmil_bound(moved, rows, scale_mixture, mean, label_update)

    fields = Q_U if label_update == "exact" else (*Q_U, "label_logits")
    assert largest_gradient(bound, approximation, fields) < GRADIENT_TOLERANCE


# ------------------------------------------------------------------ CoupledVGPMIL

COUPLING = 0.6
# Weights of two edges of a bag of three, and of one of a bag of two.
NEIGHBOURS = np.zeros((6, 6))
for one, other, weight in ((0, 1, 1.0), (3, 4, 2.0), (4, 5, 0.5)):
    NEIGHBOURS[one, other] = NEIGHBOURS[other, one] = weight


@cache
def coupled_vgpmil(scale_mixture: str) -> CoupledVGPMIL:
    fields = {
        "sharpness": SHARPNESS,
        "scale_mixture": SCALE_MIXTURES[scale_mixture],
        "coupling": COUPLING,
    }
    return CoupledVGPMIL(RBF(**KERNEL), INDUCING_POINTS, mean=-0.8, **fields)


def averaged_rows(model: CoupledVGPMIL) -> Rows:
    """S A, and the diagonal of S K̃ Sᵀ."""
    covariance, weights, residual = instance_rows(model)
    total = NEIGHBOURS.sum(axis=1, keepdims=True)
    of_neighbours = np.divide(NEIGHBOURS, total, out=np.eye(6), where=total > 0)
    averages = (1 - COUPLING) * np.eye(6) + COUPLING * of_neighbours
    return Rows(covariance, averages @ weights, np.diag(averages @ np.diag(residual) @ averages.T))


@cache
def coupled_fit(scale_mixture: str, steps: int, label_update: str):
    bags = problem_bags().with_edges(csr_array(NEIGHBOURS))
    options = {"max_steps": steps, "tolerance": 0.0, "label_update": label_update}
    return coordinate_ascent(coupled_vgpmil(scale_mixture), bags, seed=0, num_draws=2, **options)


@pytest.mark.slow_but_first
@every_length
@every_scale_mixture
@every_label_update
def test_coupled_vgpmil_bound_equals_brute_force(label_update, scale_mixture, steps):
    posterior = coupled_fit(scale_mixture, steps, label_update)
    rows = averaged_rows(coupled_vgpmil(scale_mixture))
    expected = vgpmil_bound(posterior.approximation, rows, scale_mixture, -0.8, label_update)
    assert posterior.elbo[-1] == pytest.approx(expected, abs=TOLERANCE, rel=0)


@pytest.mark.in_ci
@every_scale_mixture
@pytest.mark.parametrize("label_update", ["exact", "mean_field"])
def test_coupled_vgpmil_ends_where_the_bound_is_stationary(label_update, scale_mixture):
    approximation = coupled_fit(scale_mixture, max(STEPS), label_update).approximation
    rows = averaged_rows(coupled_vgpmil(scale_mixture))

    def bound(moved):
        return vgpmil_bound(moved, rows, scale_mixture, -0.8, label_update)

    fields = Q_U if label_update == "exact" else (*Q_U, "label_logits")
    assert largest_gradient(bound, approximation, fields) < GRADIENT_TOLERANCE


@pytest.mark.slow
@every_scale_mixture
def test_coupled_vgpmil_bound_is_below_the_log_evidence(scale_mixture):
    model = coupled_vgpmil(scale_mixture)
    log_evidence = vgpmil_log_evidence(averaged_rows(model), scale_mixture, -0.8)
    assert coupled_fit(scale_mixture, max(STEPS), "exact").elbo[-1] < log_evidence


# ------------------------------------------------------------------ ProbitGPMIL


@cache
def probit_gpmil(mean: float) -> ProbitGPMIL:
    return ProbitGPMIL(RBF(**KERNEL), INDUCING_POINTS, mean=mean)


def probit_gpmil_bound(approximation, rows: Rows, mean: float) -> float:
    """log ∫ exp(E log Π N(g; μ0 + a_nᵀu, s_n²)) dg of each bag, of all g or of g < 0."""
    q = Approximation.of(approximation, rows)
    location, scale = mean + q.values @ rows.weights.T, np.sqrt(1 + rows.residual)
    nodes, weights = leggauss(200)
    length = np.abs(location).max() + 12 * scale
    utility = 0.5 * length * (1 + nodes[:, None])  # (G, N)
    sides = []
    for signed in (-utility, utility):
        log_joint = np.einsum("s,sgn->gn", q.weights, norm.logpdf(signed, location[:, None], scale))
        sides.append(logsumexp(log_joint, b=0.5 * length * weights[:, None], axis=0))
    negative, any_sign = sides[0], logsumexp(sides, axis=0)
    bound = -q.divergence
    for bag, instances in enumerate(instances_by_bag()):
        none = negative[instances].sum()
        everything = any_sign[instances].sum()
        some = everything + np.log1p(-np.exp(none - everything))
        bound += some if LABELS[bag] else none
    return bound


def probit_gpmil_log_evidence(rows: Rows, mean: float) -> float:
    def log_likelihood(values):
        negative = expected_over_rows(rows, values, lambda f: norm.cdf(-f), mean)
        none = np.multiply.reduceat(negative, problem_bags().starts, axis=1)
        some = np.maximum(1 - none, 1e-300)  # rounding, nine sds away
        return np.log(np.where(LABELS, some, none)).sum(axis=1)

    return log_evidence(rows, log_likelihood)


@every_length
@every_mean
def test_probit_gpmil_bound_equals_brute_force(mean, steps):
    model = probit_gpmil(mean)
    posterior = fitted(model, steps)
    expected = probit_gpmil_bound(posterior.approximation, instance_rows(model), mean)
    assert posterior.elbo[-1] == pytest.approx(expected, abs=TOLERANCE, rel=0)


@pytest.mark.in_ci
@every_mean
def test_probit_gpmil_bound_is_below_the_log_evidence(mean):
    model = probit_gpmil(mean)
    log_evidence = probit_gpmil_log_evidence(instance_rows(model), mean)
    assert fitted(model, max(STEPS)).elbo[-1] < log_evidence


@pytest.mark.in_ci
def test_probit_gpmil_ends_where_the_bound_is_stationary():
    mean = -0.8
    model = probit_gpmil(mean)
    rows, approximation = instance_rows(model), fitted(model, max(STEPS)).approximation

    def bound(moved):
        return probit_gpmil_bound(moved, rows, mean)

    assert largest_gradient(bound, approximation, Q_U) < GRADIENT_TOLERANCE


# ------------------------------------------------------------------ models of bag sums


def row_bound(approximation, rows: Rows, likelihood: str) -> float:
    q = Approximation.of(approximation, rows)
    return BAG_TERMS[likelihood](q, rows).sum() - q.divergence


def logistic_terms(q: Approximation, rows: Rows) -> np.ndarray:
    first, second = q.moments(rows)
    return (LABELS - 0.5) * first + augmentation_at_optimum("sech", second)


def probit_terms(q: Approximation, rows: Rows) -> np.ndarray:
    """log ∫ exp(E log N(z; a_bᵀu, v_b)) dz over the side of zero that the label says."""
    location, scale = q.values @ rows.weights.T, np.sqrt(1 + NOISE + rows.residual)
    nodes, weights = leggauss(200)
    length = np.abs(location).max() + 12 * scale
    utility = 0.5 * length * (1 + nodes[:, None])  # (Z, B)
    signed = np.where(LABELS, utility, -utility)
    log_joint = np.einsum("s,szb->zb", q.weights, norm.logpdf(signed, location[:, None], scale))
    return logsumexp(log_joint, b=0.5 * length * weights[:, None], axis=0)


def gaussian_terms(q: Approximation, rows: Rows) -> np.ndarray:
    scale = np.sqrt(NOISE + rows.residual)
    return q.weights @ norm.logpdf(TARGETS, q.values @ rows.weights.T, scale)


BAG_TERMS = {"bernoulli": logistic_terms, "probit": probit_terms, "gaussian": gaussian_terms}


def bag_log_evidence(rows: Rows, likelihood: str) -> float:
    """With the sum of a bag integrated out given u, and then u."""

    def log_likelihood(values):
        sign = 2 * LABELS - 1
        if likelihood == "bernoulli":
            chance = expected_over_rows(rows, values, lambda s: expit(sign * s))
        elif likelihood == "probit":
            chance = expected_over_rows(
                rows, values, lambda s: norm.cdf(sign * s / np.sqrt(1 + NOISE))
            )
        else:
            chance = norm.pdf(TARGETS, values @ rows.weights.T, np.sqrt(NOISE + rows.residual))
        return np.log(chance).sum(axis=1)

    return log_evidence(rows, log_likelihood)


@pytest.mark.slow_but_first
@every_length
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_vwsgp_bound_equals_brute_force(likelihood, steps):
    model = vwsgp(likelihood)
    posterior = fitted(model, steps)
    expected = row_bound(posterior.approximation, bag_rows(model), likelihood)
    assert posterior.elbo[-1] == pytest.approx(expected, abs=TOLERANCE, rel=0)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_vwsgp_converges_where_the_brute_force_bound_is_stationary(likelihood):
    model = vwsgp(likelihood)
    rows, approximation = bag_rows(model), fitted(model, max(STEPS)).approximation

    def bound(moved):
        return row_bound(moved, rows, likelihood)

    assert largest_gradient(bound, approximation, Q_U) < GRADIENT_TOLERANCE


@pytest.mark.in_ci
@pytest.mark.parametrize("likelihood", ["bernoulli", "probit"])
def test_vwsgp_bound_is_below_the_log_evidence(likelihood):
    model = vwsgp(likelihood)
    assert fitted(model, max(STEPS)).elbo[-1] < bag_log_evidence(bag_rows(model), likelihood)


def test_gaussian_bound_is_the_log_evidence():
    model = vwsgp("gaussian")
    expected = bag_log_evidence(bag_rows(model), "gaussian")
    assert fitted(model, 1).elbo[-1] == pytest.approx(expected, abs=TOLERANCE, rel=0)


# ------------------------------------------------------------------ CardinalityGP

MADE_AT = [np.array([[0.3, -1.0], [1.2, 0.4]]), np.array([[-0.7, 0.2]])]
WEIGHTS, INTERCEPT = np.array([0.9, -0.5]), 0.3
MU, SIGMA = 0.6, 0.4
PROCESS_VARIANCE = 2.3
INSTANCE_KERNEL = {"variance": 1.0, "length_scale": 0.9}


@cache
def cardinality_gp() -> CardinalityGP:
    model = CardinalityModel(NormalCardinality(MU, SIGMA))
    kernel = CardinalityKernel(model, WEIGHTS, RBF(**INSTANCE_KERNEL), INTERCEPT)
    made_at = Bags.from_list(MADE_AT)
    return CardinalityGP.at_bags(kernel, made_at, PROCESS_VARIANCE, **LIKELIHOODS["bernoulli"])


def positive_probability(instances: np.ndarray) -> np.ndarray:
    """P(y_n = 1 | X) by the sum over instance and bag labels."""
    labels = labellings(len(instances))
    fraction = labels.mean(axis=1)
    potential = sum(np.exp(-0.5 * ((fraction - mu) / SIGMA) ** 2) for mu in (0.0, MU))
    weight = potential * np.exp(labels @ (instances @ WEIGHTS + INTERCEPT))
    return weight @ labels / weight.sum()


def cardinality_kernel(left: np.ndarray, right: np.ndarray) -> float:
    p, r = positive_probability(left)[:, None], positive_probability(right)
    distance = ((left[:, None] - right[None]) ** 2).sum(axis=-1)
    alike = np.exp(-0.5 * distance / INSTANCE_KERNEL["length_scale"] ** 2)
    return float(np.sum(alike * (p * r + (1 - p) * (1 - r))))


def cardinality_rows(model: CardinalityGP) -> Rows:
    def kernel(left, right):
        return np.array(
            [
                [
                    cardinality_kernel(one, other)
                    / np.sqrt(cardinality_kernel(one, one) * cardinality_kernel(other, other))
                    for other in right
                ]
                for one in left
            ]
        )

    cross = kernel(problem_bags().to_list(), MADE_AT)
    correlation = kernel(MADE_AT, MADE_AT) + model.jitter * np.eye(len(MADE_AT))
    weights = np.linalg.solve(correlation, cross.T).T
    residual = PROCESS_VARIANCE * (1 - (weights * cross).sum(axis=1))
    return Rows(PROCESS_VARIANCE * correlation, weights, residual)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@every_length
def test_cardinality_gp_bound_equals_brute_force(steps):
    model = cardinality_gp()
    posterior = fitted(model, steps)
    expected = row_bound(posterior.approximation, cardinality_rows(model), "bernoulli")
    assert posterior.elbo[-1] == pytest.approx(expected, abs=TOLERANCE, rel=0)


@pytest.mark.in_ci
def test_cardinality_gp_bound_is_below_the_log_evidence():
    model = cardinality_gp()
    expected = bag_log_evidence(cardinality_rows(model), "bernoulli")
    assert fitted(model, max(STEPS)).elbo[-1] < expected


# ------------------------------------------------------------------ DPMIL

CENTER = np.array([0.2, -0.1])
SCALES = {"full": np.array([[0.7, 0.2], [0.2, 0.4]]), "diagonal": np.array([0.7, 0.4])}
DEGREES_OF_FREEDOM, STRENGTH, CONCENTRATION, POSITIVE_FRACTION = 4.5, 0.7, 1.7, 0.4
NUM_COMPONENTS = 2


@cache
def dpmil(covariance: str) -> DPMIL:
    return DPMIL(
        CENTER,
        SCALES[covariance],
        degrees_of_freedom=DEGREES_OF_FREEDOM,
        mean_strength=STRENGTH,
        concentration=CONCENTRATION,
        max_components=NUM_COMPONENTS,
        positive_fraction=POSITIVE_FRACTION,
    )


class NormalWishart(NamedTuple):
    """Λ ~ Wishart(W, ν) and μ | Λ ~ N(m, (βΛ)⁻¹)."""

    mean: np.ndarray  # m, (D,)
    strength: float  # β
    root: np.ndarray  # R with W = RRᵀ, (D, D)
    freedom: float  # ν

    def log_density(self, mu: np.ndarray, precision: np.ndarray) -> np.ndarray:
        """At μ (S, D) and Λ (S, D, D)."""
        dimension, log_determinant = len(self.mean), np.linalg.slogdet(precision)[1]
        inverse = np.linalg.inv(self.root @ self.root.T)
        log_wishart = 0.5 * (self.freedom - dimension - 1) * log_determinant
        log_wishart -= 0.5 * np.einsum("ij,sij->s", inverse, precision)
        log_wishart -= 0.5 * self.freedom * (
            dimension * np.log(2) - np.linalg.slogdet(inverse)[1]
        ) + multigammaln(0.5 * self.freedom, dimension)
        return log_wishart + log_gaussian(mu, self.mean, self.strength * precision)

    def nodes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """μ, Λ and weights, by Bartlett's factor: χ² by a trapezoid in logs, Gaussians exactly."""
        dimension = len(self.mean)
        log_chi, step = np.linspace(-24.0, 6.0, 121, retstep=True)
        diagonal = [
            step * np.exp(log_chi) * gamma_distribution.pdf(np.exp(log_chi), half, scale=2)
            for half in 0.5 * (self.freedom - np.arange(dimension))
        ]
        num_below = dimension * (dimension - 1) // 2
        noise, noise_weights = gauss_hermite(num_below + dimension, order=2)
        chosen = np.array(list(product(range(len(log_chi)), repeat=dimension)))
        weights = np.prod([diagonal[d][chosen[:, d]] for d in range(dimension)], axis=0)
        kept = weights > 1e-20
        chosen, weights = chosen[kept], weights[kept]
        bartlett = np.zeros((len(chosen), len(noise), dimension, dimension))
        bartlett[..., *np.diag_indices(dimension)] = np.exp(0.5 * log_chi[chosen])[:, None]
        bartlett[..., *np.tril_indices(dimension, -1)] = noise[:, :num_below]
        factor = self.root @ bartlett.reshape(-1, dimension, dimension)
        standard = np.tile(noise[:, num_below:], (len(chosen), 1))
        deviation = np.linalg.solve(factor.mT, standard[..., None])[..., 0]
        mu = self.mean + deviation / np.sqrt(self.strength)
        return mu, factor @ factor.mT, np.outer(weights, noise_weights).ravel()


def log_gaussian(value: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> np.ndarray:
    deviation = value - mean
    quadratic = np.einsum("...i,...ij,...j->...", deviation, precision, deviation)
    log_determinant = np.linalg.slogdet(precision)[1]
    return 0.5 * (log_determinant - quadratic - value.shape[-1] * np.log(2 * np.pi))


def gaussian_terms_of(q: NormalWishart, prior: NormalWishart, instances: np.ndarray):
    """E log N(x; μ, Λ⁻¹) of each instance, and KL(q ‖ p)."""
    mu, precision, weights = q.nodes()
    log_density = [weights @ log_gaussian(x, mu, precision) for x in instances]
    log_ratio = q.log_density(mu, precision) - prior.log_density(mu, precision)
    return np.array(log_density), weights @ log_ratio


def component_terms(covariance: str, q: NormalWishart, instances: np.ndarray):
    """The same of a component; with diagonal precisions its features are independent."""
    scale = SCALES[covariance]
    if covariance == "full":
        prior = NormalWishart(CENTER, STRENGTH, np.linalg.cholesky(scale), DEGREES_OF_FREEDOM)
        return gaussian_terms_of(q, prior, instances)
    log_density, divergence = 0.0, 0.0
    for d in range(len(CENTER)):
        prior = NormalWishart(
            CENTER[[d]], STRENGTH, np.sqrt(scale[d])[None, None], DEGREES_OF_FREEDOM
        )
        of_feature = NormalWishart(q.mean[[d]], q.strength, q.root[d][None, None], q.freedom)
        one, kl = gaussian_terms_of(of_feature, prior, instances[:, [d]])
        log_density, divergence = log_density + one, divergence + kl
    return log_density, divergence


def stick_terms(concentration1: float, concentration0: float) -> tuple[np.ndarray, float]:
    """E log v and E log(1 − v) under q(v), and its KL from Beta(1, α)."""
    logit, step = np.linspace(-45.0, 45.0, 1801, retstep=True)
    log_v, log_rest = -np.logaddexp(0, -logit), -np.logaddexp(0, logit)

    def log_density(one, zero):
        return (one - 1) * log_v + (zero - 1) * log_rest - betaln(one, zero)

    log_q = log_density(concentration1, concentration0)
    weights = step * np.exp(log_q + log_v + log_rest)
    log_ratio = log_q - log_density(1.0, CONCENTRATION)
    return np.array([weights @ log_v, weights @ log_rest]), weights @ log_ratio


Q_THETA = (
    "mean",
    "strength",
    "scale_root",
    "degrees_of_freedom",
    "concentration1",
    "concentration0",
)


def dpmil_fields(approximation) -> tuple[np.ndarray, ...]:
    """m, β, R, ν (2, K, …), and the parameters of Beta for v and 1 − v (2, K − 1)."""
    return tuple(np.asarray(getattr(approximation, name)) for name in Q_THETA)


def dpmil_bound(approximation, covariance: str, label_update: str) -> float:
    """By the sum over all labellings and components of each bag."""
    mean, strength, root, freedom, one, zero = dpmil_fields(approximation)
    instances = problem_bags().instances
    log_joint = np.empty((2, NUM_COMPONENTS, len(instances)))
    divergence = 0.0
    for kind in (0, 1):
        log_weight, kl = stick_terms(one[kind, 0], zero[kind, 0])
        divergence += kl
        for k in range(NUM_COMPONENTS):
            q = NormalWishart(mean[kind, k], strength[kind, k], root[kind, k], freedom[kind, k])
            log_density, kl = component_terms(covariance, q, instances)
            log_joint[kind, k] = log_weight[k] + log_density
            divergence += kl
    chosen = np.asarray(approximation.label) if label_update == "hard" else None
    bound = -divergence
    for bag, own in enumerate(instances_by_bag()):
        labels = allowed(bag)
        if chosen is not None:
            labels = labels[(labels == chosen[own]).all(axis=1)]
            assert len(labels) == 1, "the labels chosen are not allowed"
        terms = [
            log_joint[r, z, np.arange(SIZES[bag]) + own.start].sum()
            for r in labels
            for z in np.array(list(product(range(NUM_COMPONENTS), repeat=SIZES[bag])))
        ]
        bound += log_label_prior(bag) + logsumexp(terms)
    return float(bound)


def allowed(bag: int) -> np.ndarray:
    """The labellings that a bag label allows."""
    labels = labellings(SIZES[bag])
    return labels[labels.max(axis=1) == LABELS[bag]]


def log_label_prior(bag: int) -> float:
    """log p(T) p(r | T), uniform over what is allowed."""
    fraction = POSITIVE_FRACTION if LABELS[bag] else 1 - POSITIVE_FRACTION
    return np.log(fraction) - np.log(len(allowed(bag)))


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@every_length
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("label_update", ["soft", "hard"])
def test_dpmil_bound_equals_brute_force(label_update, covariance, steps):
    posterior = fitted(dpmil(covariance), steps, label_update)
    expected = dpmil_bound(posterior.approximation, covariance, label_update)
    assert posterior.elbo[-1] == pytest.approx(expected, abs=TOLERANCE, rel=0)


@pytest.mark.slow
@pytest.mark.parametrize("field", Q_THETA)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_dpmil_converges_where_the_brute_force_bound_is_stationary(covariance, field):
    """Along one direction of each field: an evaluation of the bound takes a second."""
    approximation = fitted(dpmil(covariance), max(STEPS), "soft").approximation
    value = np.asarray(getattr(approximation, field))
    direction = DIFFERENCE * np.random.default_rng(0).normal(size=value.shape) * (value != 0)
    low, high = (
        dpmil_bound(replace(approximation, **{field: value + step}), covariance, "soft")
        for step in (-direction, direction)
    )
    assert abs(high - low) / (2 * DIFFERENCE) < GRADIENT_TOLERANCE


def dpmil_log_evidence(covariance: str) -> float:
    """Over all labellings and components of all instances; parameters by conjugacy."""
    instances = problem_bags().instances
    by_bag = [list(allowed(bag)) for bag in range(len(SIZES))]
    components = np.array(list(product(range(NUM_COMPONENTS), repeat=len(instances))))
    terms = []
    for labels in product(*by_bag):
        label = np.concatenate(labels)
        log_prior = sum(log_label_prior(bag) for bag in range(len(SIZES)))
        terms += [
            log_prior
            + sum(log_class_evidence(covariance, instances, z, label == kind) for kind in (0, 1))
            for z in components
        ]
    return logsumexp(terms)


def log_class_evidence(covariance, instances, component, own) -> float:
    counts = np.array([np.sum(own & (component == k)) for k in range(NUM_COMPONENTS)])
    total = betaln(1 + counts[0], CONCENTRATION + counts[1]) - betaln(1, CONCENTRATION)
    for k in range(NUM_COMPONENTS):
        total += log_component_evidence(covariance, instances[own & (component == k)])
    return total


def log_component_evidence(covariance, instances) -> float:
    """That of a normal-Wishart distribution, or of one for each feature."""
    scale = SCALES[covariance]
    if covariance == "full":
        return log_marginal(instances - CENTER, np.linalg.inv(scale))
    columns = (instances - CENTER).T
    return sum(
        log_marginal(x[:, None], 1 / w[None, None]) for x, w in zip(columns, scale, strict=True)
    )


def log_marginal(deviation: np.ndarray, scatter: np.ndarray) -> float:
    number, dimension = deviation.shape
    strength, freedom = STRENGTH + number, DEGREES_OF_FREEDOM + number
    total = deviation.sum(axis=0)
    after = scatter + deviation.T @ deviation - np.outer(total, total) / strength
    return (
        multigammaln(0.5 * freedom, dimension)
        - multigammaln(0.5 * DEGREES_OF_FREEDOM, dimension)
        + 0.5 * DEGREES_OF_FREEDOM * np.linalg.slogdet(scatter)[1]
        - 0.5 * freedom * np.linalg.slogdet(after)[1]
        + 0.5 * dimension * (np.log(STRENGTH / strength) - number * np.log(np.pi))
    )


@pytest.mark.slow
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("label_update", ["soft", "hard"])
def test_dpmil_bound_is_below_the_log_evidence(label_update, covariance):
    posterior = fitted(dpmil(covariance), max(STEPS), label_update)
    assert posterior.elbo[-1] < dpmil_log_evidence(covariance)
