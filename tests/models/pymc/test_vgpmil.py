"""Density and gradient of the PyMC programs against those of the NumPyro programs.

Nothing here is a statistical test: the densities must agree to rounding and quadrature error.
"""

import subprocess
import sys
import textwrap
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.models import RBF, VGPMIL, GammaScaleMixture, ScaleMixture
from milzoo.models.pymc.vgpmil import vgpmil_program


@pytest.fixture(scope="module")
def model_for(inducing_points):
    """Function of kernel parameters and fields that gives the model."""

    def of(variance=0.5, length_scale=1.5, **fields):
        return VGPMIL(RBF(variance, length_scale), inducing_points, **fields)

    return of


in_both_programs = pytest.mark.parametrize("program", ["marginal", "full"])


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@in_both_programs
@pytest.mark.parametrize("variance", [0.4, 5.0, 300.0])
def test_density_and_gradient_are_those_of_the_numpyro_program(
    model_for, assert_same_density, program, variance
):
    model = model_for(variance, mean=-0.7, sharpness=30.0)
    assert_same_density(vgpmil_program, model, program)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@in_both_programs
def test_density_and_gradient_agree_under_priors_on_all_hyperparameters(
    model_for, assert_same_density, program
):
    model = model_for(dist.LogNormal(0.3, 0.4), dist.Gamma(6.0, 4.0), mean=dist.Normal(-1.0, 2.0))
    assert_same_density(vgpmil_program, model, program)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("prior", [dist.HalfNormal(2.0), dist.InverseGamma(4.0, 3.0)])
def test_densities_agree_under_each_prior_of_both_libraries(model_for, assert_same_density, prior):
    assert_same_density(vgpmil_program, model_for(variance=prior), "full")


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@in_both_programs
@pytest.mark.parametrize(("alpha", "beta"), [(1.5, 2.5), (10.0, 0.5)])
def test_density_and_gradient_agree_with_gamma(
    model_for, assert_same_density, program, alpha, beta
):
    model = model_for(scale_mixture=GammaScaleMixture(alpha, beta))
    assert_same_density(vgpmil_program, model, program)


def test_the_density_of_each_bag_label_is_at_hand(bags, model_for, random_points):
    pymc_model = vgpmil_program(model_for(), bags)
    (log_p,) = pymc_model.logp(vars=[pymc_model["bag_label"]], sum=False)
    point = random_points(pymc_model)[0]
    by_bag = pymc_model.compile_fn(log_p, inputs=pymc_model.value_vars, mode="FAST_COMPILE")(point)
    assert by_bag.shape == (bags.num_bags,)
    assert (by_bag < 0).all()


@pytest.mark.slow_but_first
@pytest.mark.parametrize("variance", [200.0, 5000.0])
def test_density_and_gradient_stay_finite_where_latents_overflow(
    bags, model_for, pymc_densities, variance
):
    pymc_model = vgpmil_program(model_for(variance), bags)
    values, gradients = pymc_densities(
        pymc_model, [{"whitened_inducing_value": np.full(10, x)} for x in (-12.0, 12.0)]
    )
    assert np.isfinite(values).all()
    assert all(np.isfinite(s["whitened_inducing_value"]).all() for s in gradients)


def test_without_labels_the_bag_labels_are_a_site(bags, model_for):
    pymc_model = vgpmil_program(model_for(), replace(bags, labels=None))
    assert [v.name for v in pymc_model.free_RVs] == ["whitened_inducing_value", "bag_label"]


# ---------------------------------------------------------------- refusals


def test_an_unknown_program_is_refused(bags, model_for):
    with pytest.raises(ValueError, match="program is 'augmented'; expected 'marginal' or 'full'"):
        vgpmil_program(model_for(), bags, program="augmented")


def test_a_prior_without_counterpart_in_pymc_is_refused(bags, model_for):
    with pytest.raises(
        ValueError, match=r"prior of length_scale is Weibull; expected .* LogNormal"
    ):
        vgpmil_program(model_for(length_scale=dist.Weibull(1.0, 2.0)), bags)


@in_both_programs
def test_a_mixture_given_by_a_jax_function_is_refused(bags, model_for, program):
    scale_mixture = ScaleMixture.from_log_density(lambda f: -jnp.sqrt(1 + f**2))
    with pytest.raises(
        ValueError, match=r"scale_mixture is ScaleMixture; .* sample with nuts instead"
    ):
        vgpmil_program(model_for(scale_mixture=scale_mixture), bags, program=program)


def test_bags_of_another_width_are_refused(bags, model_for):
    narrow = replace(bags, instances=bags.instances[:, :2])
    with pytest.raises(ValueError, match=r"bags have 2 features, .* 3"):
        vgpmil_program(model_for(), narrow)


@pytest.mark.slow
def test_without_pymc_the_message_says_what_to_install():
    program = """
        import sys
        sys.modules["pymc"] = None
        try:
            import milzoo.models.pymc.vgpmil
        except ImportError as error:
            print(error)
    """
    outcome = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert outcome.stdout == (
        "pymc is not installed, and the PyMC program needs it: pip install 'milzoo[pymc]'\n"
    )
