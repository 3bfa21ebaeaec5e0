"""The PyMC twin against the NumPyro programs: the same density, the same slope, at random points.

Nothing here is a statistical test: the densities must agree to rounding and quadrature error.
"""

import subprocess
import sys
import textwrap
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytensor
import pytest
from milzoo.datasets import Bags
from milzoo.models import RBF, VGPMIL, GammaMixing, ScaleMixture
from milzoo.models.twins.vgpmil import pymc_twin
from numpyro.handlers import reparam
from numpyro.infer.util import log_density

NUMBER_OF_POINTS = 20
# Relative; the quadratures of the two programs have other nodes.
DENSITY_TOLERANCE, SLOPE_TOLERANCE = 1e-8, 1e-7
IN_NUMPYRO = {
    "white_inducing_value": "inducing_value_base",
    "white_evidence": "evidence_decentered",
}


@pytest.fixture(scope="module")
def bags():
    """Bags of 1, of 300 and of sizes between, with both labels among the small ones."""
    sizes = np.array([1, 300, 1, 4, 12, 1, 7, 2])
    random = np.random.default_rng(3)
    return Bags.from_arrays(
        random.standard_normal((sizes.sum(), 3)),
        np.repeat(np.arange(len(sizes)), sizes),
        np.array([1, 1, 0, 0, 1, 1, 0, 1]),
    )


def model_for(bags, variance=0.5, length_scale=1.5, **fields):
    # The first inducing points are instances: there k̃ is 0 but for the jitter.
    points = np.concatenate([bags.instances[:3], np.random.default_rng(4).normal(size=(7, 3))])
    return VGPMIL(RBF(variance, length_scale), points, **fields)


def random_points(twin):
    """Values of the twin's variables (positive parameters in logs), from narrow to wide."""
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


def twin_densities(twin, points):
    """log p and its gradient, from PyTensor's own interpreter: nothing to compile."""
    log_p = twin.logp(jacobian=False)
    slopes = pytensor.grad(log_p, twin.value_vars)
    compiled = twin.compile_fn([log_p, *slopes], inputs=twin.value_vars, mode="FAST_COMPILE")
    values = [compiled(point) for point in points]
    names = [variable.name for variable in twin.value_vars]
    return np.array([v[0] for v in values]), [dict(zip(names, v[1:], strict=True)) for v in values]


def numpyro_densities(model, bags, program, points):
    """The same from NumPyro, at the same whitened coordinates."""
    target = reparam(
        model.marginal() if program == "marginal" else model, config=model.reparametrisation
    )

    def log_p(point):
        sites = {
            IN_NUMPYRO.get(name, name.removesuffix("_log__")): (
                jnp.exp(value) if name.endswith("_log__") else value
            )
            for name, value in point.items()
        }
        return log_density(target, (bags,), {}, sites)[0]

    with jax.enable_x64(True):
        value_and_slopes = jax.jit(jax.value_and_grad(log_p))
        results = [value_and_slopes(jax.tree.map(jnp.asarray, point)) for point in points]
        return np.array([float(value) for value, _ in results]), [
            jax.tree.map(np.asarray, slopes) for _, slopes in results
        ]


def assert_same_density(model, bags, program):
    twin = pymc_twin(model, bags, program=program)
    points = random_points(twin)
    ours, our_slopes = numpyro_densities(model, bags, program, points)
    theirs, their_slopes = twin_densities(twin, points)
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


in_both_programs = pytest.mark.parametrize("program", ["marginal", "full"])


@in_both_programs
@pytest.mark.parametrize("variance", [0.4, 5.0, 300.0])
def test_density_and_slope_are_those_of_the_numpyro_program(bags, program, variance):
    assert_same_density(model_for(bags, variance, mean=-0.7, sharpness=30.0), bags, program)


@in_both_programs
def test_density_and_slope_are_the_same_with_priors_on_all_hyperparameters(bags, program):
    model = model_for(
        bags, dist.LogNormal(0.3, 0.4), dist.Gamma(6.0, 4.0), mean=dist.Normal(-1.0, 2.0)
    )
    assert_same_density(model, bags, program)


@pytest.mark.parametrize("prior", [dist.HalfNormal(2.0), dist.InverseGamma(4.0, 3.0)])
def test_density_is_the_same_under_each_prior_that_both_have(bags, prior):
    assert_same_density(model_for(bags, variance=prior), bags, "full")


@in_both_programs
def test_density_and_slope_are_the_same_with_gamma_mixing(bags, program):
    model = model_for(bags, mixing=GammaMixing(alpha=1.5, beta=2.5))
    assert_same_density(model, bags, program)


def test_the_density_of_each_bag_label_is_at_hand(bags):
    twin = pymc_twin(model_for(bags), bags)
    (log_p,) = twin.logp(vars=[twin["bag_label"]], sum=False)
    point = random_points(twin)[0]
    by_bag = twin.compile_fn(log_p, inputs=twin.value_vars, mode="FAST_COMPILE")(point)
    assert by_bag.shape == (bags.num_bags,)
    assert (by_bag < 0).all()


@pytest.mark.parametrize("variance", [200.0, 5000.0])
def test_evidence_that_would_overflow_has_a_finite_density_and_slope(bags, variance):
    twin = pymc_twin(model_for(bags, variance), bags)
    values, slopes = twin_densities(
        twin, [{"white_inducing_value": np.full(10, x)} for x in (-12.0, 12.0)]
    )
    assert np.isfinite(values).all()
    assert all(np.isfinite(s["white_inducing_value"]).all() for s in slopes)


def test_without_labels_the_bag_labels_are_a_site(bags):
    twin = pymc_twin(model_for(bags), replace(bags, labels=None))
    assert [v.name for v in twin.free_RVs] == ["white_inducing_value", "bag_label"]


# ---------------------------------------------------------------- refusals


def test_an_unknown_program_is_refused(bags):
    with pytest.raises(ValueError, match="program is 'augmented'; expected 'marginal' or 'full'"):
        pymc_twin(model_for(bags), bags, program="augmented")


def test_a_prior_that_pymc_may_not_have_is_refused_by_name(bags):
    with pytest.raises(
        ValueError, match=r"prior of length_scale is Weibull; expected .* LogNormal"
    ):
        pymc_twin(model_for(bags, length_scale=dist.Weibull(1.0, 2.0)), bags)


@in_both_programs
def test_a_mixture_given_by_a_jax_function_is_refused(bags, program):
    mixing = ScaleMixture.from_log_density(lambda f: -jnp.sqrt(1 + f**2))
    with pytest.raises(ValueError, match=r"mixing is ScaleMixture; .* sample with nuts instead"):
        pymc_twin(model_for(bags, mixing=mixing), bags, program=program)


def test_bags_of_another_width_are_refused(bags):
    narrow = replace(bags, instances=bags.instances[:, :2])
    with pytest.raises(ValueError, match=r"bags have 2 features, .* 3"):
        pymc_twin(model_for(bags), narrow)


def test_without_pymc_the_message_says_what_to_install():
    program = """
        import sys
        sys.modules["pymc"] = None
        try:
            import milzoo.models.twins.vgpmil
        except ImportError as error:
            print(error)
    """
    outcome = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert outcome.stdout == (
        "pymc is not installed, and the PyMC twin needs it: pip install 'milzoo[pymc]'\n"
    )
