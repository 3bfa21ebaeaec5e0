"""Density and gradient of the PyMC programs against those of the NumPyro programs.

Nothing here is a statistical test: the densities must agree to rounding and quadrature error.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags
from milzoo.models import (
    RBF,
    Cosine,
    Gaussian,
    Linear,
    Logistic,
    Matern32,
    Matern52,
    NegativeBinomial,
    Probit,
    StudentT,
)
from milzoo.models.pymc.vwsgp import vwsgp_program
from milzoo.models.vwsgp import VWSGP
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import graph_inputs
from scipy.special import log_ndtr


@pytest.fixture(scope="module")
def model_for(inducing_points):
    """Function of kernel parameters and fields that gives the model."""

    def of(variance=0.5, length_scale=1.5, **fields):
        return VWSGP(RBF(variance, length_scale), inducing_points, **fields)

    return of


def densities_by_bag(pymc_model, *points):
    """log p of what is observed of each bag, rewritten as samplers do."""
    (log_p,) = pymc_model.logp(vars=pymc_model.observed_RVs, sum=False)
    log_p = rewrite_pregrad(log_p)
    compiled = pymc_model.compile_fn(log_p, inputs=pymc_model.value_vars, mode="FAST_COMPILE")
    return np.squeeze([compiled(point) for point in points])


LIKELIHOODS = [Logistic(), Probit(0.7), Gaussian(0.7), StudentT(4.0, 0.7), NegativeBinomial(3)]


@pytest.fixture(scope="module")
def bags_for(bags):
    """Function of a likelihood that gives bags with what it can have produced."""

    def of(likelihood):
        if isinstance(likelihood, NegativeBinomial):
            return bags.with_targets(np.array([0.0, 2.0, 11.0, 5.0, 1.0, 0.0, 3.0, 8.0]))
        return bags

    return of


in_both_programs = pytest.mark.parametrize("program", ["marginal", "full"])
with_every_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda one: one.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "variance"),
    [
        *((Logistic(), variance) for variance in (0.4, 5.0, 300.0)),  # each has other nodes
        *((likelihood, 5.0) for likelihood in LIKELIHOODS[1:]),
    ],
)
@in_both_programs
def test_density_and_gradient_are_those_of_the_numpyro_program(
    model_for, bags_for, assert_same_density, likelihood, program, variance
):
    model = model_for(variance, likelihood=likelihood)
    assert_same_density(vwsgp_program, model, program, bags_for(likelihood))


@pytest.mark.slow
@with_every_likelihood
@in_both_programs
def test_density_and_gradient_agree_under_priors_on_all_hyperparameters(
    model_for, bags_for, assert_same_density, likelihood, program
):
    prior = dist.InverseGamma(4.0, 3.0)
    inferred = likelihood.with_values(dict.fromkeys(likelihood.hyperparameters, prior))
    model = model_for(dist.LogNormal(0.3, 0.4), dist.Gamma(6.0, 4.0), likelihood=inferred)
    assert_same_density(vwsgp_program, model, program, bags_for(likelihood))


@pytest.mark.in_ci
@pytest.mark.parametrize(
    "kernel",
    [
        Matern32(dist.LogNormal(0.3, 0.4), dist.Gamma(6.0, 4.0)),
        Matern52(0.5, 1.5),
        Cosine(dist.LogNormal(0.3, 0.4)),
        RBF(0.5, dist.LogNormal(np.array([0.3, 0.6, 0.1]), 0.4).to_event(1)),
        RBF(dist.LogNormal(0.3, 0.4), np.array([0.7, 1.5, 4.0])) + Linear(dist.Gamma(6.0, 4.0)),
        Matern52(dist.LogNormal(0.3, 0.4), dist.Gamma(6.0, 4.0)) * Linear(0.4),
    ],
    ids=lambda one: type(one).__name__,
)
def test_density_and_gradient_agree_for_every_kernel(
    inducing_points, bags, assert_same_density, kernel
):
    assert_same_density(vwsgp_program, VWSGP(kernel, inducing_points), "marginal", bags)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@in_both_programs
def test_density_and_gradient_agree_under_a_noise_prior(model_for, assert_same_density, program):
    model = model_for(likelihood=Gaussian(dist.HalfNormal(2.0)))
    assert_same_density(vwsgp_program, model, program)


@pytest.mark.slow_but_first
@with_every_likelihood
def test_the_density_of_each_bag_is_at_hand(bags_for, model_for, random_points, likelihood):
    bags = bags_for(likelihood)
    pymc_model = vwsgp_program(model_for(likelihood=likelihood), bags)
    by_bag = densities_by_bag(pymc_model, random_points(pymc_model)[0])
    assert by_bag.shape == (bags.num_bags,)
    assert (by_bag < 0).all()


@pytest.mark.parametrize(
    ("likelihood", "unknown", "site"),
    [
        (Logistic(), "labels", "bag_label"),
        (Probit(), "labels", "bag_label"),
        (Gaussian(), "targets", "bag_target"),
        (StudentT(), "targets", "bag_target"),
        (NegativeBinomial(), "targets", "bag_target"),
    ],
)
def test_what_is_unknown_of_the_bags_is_a_site(bags, model_for, likelihood, unknown, site):
    pymc_model = vwsgp_program(model_for(likelihood=likelihood), replace(bags, **{unknown: None}))
    assert [v.name for v in pymc_model.free_RVs] == ["whitened_inducing_value", site]


@pytest.mark.slow_but_first
@with_every_likelihood
@in_both_programs
def test_with_a_fixed_kernel_only_bag_sums_are_stored(bags_for, model_for, likelihood, program):
    bags = bags_for(likelihood)
    pymc_model = vwsgp_program(model_for(likelihood=likelihood), bags, program=program)
    looked_up = [v for v in graph_inputs([pymc_model.logp()]) if isinstance(v, SharedVariable)]
    sizes = {v.get_value().size for v in looked_up}
    assert bags.num_bags in sizes
    assert max(sizes) == bags.num_bags * len(model_for().inducing_points)


# ---------------------------------------------------------------- far out


@pytest.mark.slow_but_first
@with_every_likelihood
@in_both_programs
@pytest.mark.parametrize("variance", [0.5, 5000.0])
def test_density_and_gradient_stay_finite_where_latents_overflow(
    bags_for, model_for, pymc_densities, likelihood, program, variance
):
    bags = bags_for(likelihood)
    pymc_model = vwsgp_program(model_for(variance, likelihood=likelihood), bags, program=program)
    points = [
        {name: np.full_like(value, x) for name, value in pymc_model.initial_point().items()}
        for x in (-12.0, 12.0)
    ]
    values, gradients = pymc_densities(pymc_model, points)
    assert np.isfinite(values).all()
    assert all(
        np.isfinite(gradient).all() for by_name in gradients for gradient in by_name.values()
    )


# Two like bags of 2,000 instances that are the one inducing point and 2,000 far away from it:
# s_b ~ N(2,000 u, 100²).
SIZE, VARIANCE = 2000, 5.0
SCALE = np.sqrt(SIZE * VARIANCE)


def log_probabilities_of_a_wide_bag(locations, **fields):
    """log P(T=1) and log P(T=0), (2, K), for given means of the latent value."""
    one = np.repeat([[0.0], [1000.0]], SIZE, axis=0)
    bags = Bags.from_list([one, one], labels=[1, 0])
    model = VWSGP(RBF(VARIANCE, 1.0), np.zeros((1, 1)), jitter=0.0, **fields)
    values = np.asarray(locations) / (SIZE * np.sqrt(VARIANCE))
    points = [{"whitened_inducing_value": np.array([value])} for value in values]
    return densities_by_bag(vwsgp_program(model, bags), *points).T


def test_both_probabilities_of_a_wide_bag_are_accurate():
    locations = np.array([-9500.0, -7000.0, -5000.0, -2000.0, -100.0, 0.0])
    log_positive, _ = log_probabilities_of_a_wide_bag(locations)
    # σ(s) = e^s (1 − σ(s)), and e^s moves a Gaussian: P(T=1 | a) = e^{a + k̄/2} P(T=0 | a + k̄).
    _, log_negative = log_probabilities_of_a_wide_bag(locations + SCALE**2)
    expected = locations + SCALE**2 / 2 + log_negative  # a difference of terms as large as k̄
    np.testing.assert_allclose(log_positive, expected, rtol=0, atol=1e-13 * SCALE**2)


def test_both_probit_probabilities_of_a_wide_bag_are_accurate():
    locations = np.array([-9500.0, -2000.0, -100.0, 0.0, 100.0, 2000.0, 9500.0])
    found = log_probabilities_of_a_wide_bag(locations, likelihood=Probit(0.7))
    argument = locations / np.sqrt(1.7 + SCALE**2)
    np.testing.assert_allclose(found, log_ndtr([argument, -argument]), rtol=1e-10)


# ---------------------------------------------------------------- refusals


def test_an_unknown_program_is_refused(bags, model_for):
    with pytest.raises(ValueError, match="program is 'augmented'; expected 'marginal' or 'full'"):
        vwsgp_program(model_for(), bags, program="augmented")


@pytest.mark.parametrize("name", ["length_scale", "noise", "noise_scale"])
def test_a_prior_without_counterpart_in_pymc_is_refused(bags, model_for, name):
    prior = dist.Weibull(1.0, 2.0)
    kernel = {name: prior} if name == "length_scale" else {}
    likelihood = {"noise": Gaussian, "noise_scale": partial(StudentT, 4.0)}.get(name)
    model = model_for(**kernel, likelihood=Gaussian() if likelihood is None else likelihood(prior))
    with pytest.raises(ValueError, match=rf"prior of {name} is Weibull; expected .* LogNormal"):
        vwsgp_program(model, bags)


def test_bags_of_another_width_are_refused(bags, model_for):
    narrow = replace(bags, instances=bags.instances[:, :2])
    with pytest.raises(ValueError, match=r"bags have 2 features, .* 3"):
        vwsgp_program(model_for(), narrow)
