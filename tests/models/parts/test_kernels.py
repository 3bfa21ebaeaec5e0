"""Kernels against a double loop and scikit-learn, and the numbers that they take and refuse."""

import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import tinygp
from milzoo.datasets import Bags
from milzoo.inference import coordinate_ascent, laplace
from milzoo.inference.serialization import decode, encode
from milzoo.models import (
    GPMIL,
    RBF,
    VGPMIL,
    VWSGP,
    Cosine,
    Gaussian,
    Linear,
    Matern32,
    Matern52,
    Product,
    Sum,
    TinyGPKernel,
)
from milzoo.models.parts.kernels import median_distance
from scipy.spatial.distance import pdist
from scipy.special import expit
from sklearn.gaussian_process import kernels as of_scikit_learn
from sklearn.metrics.pairwise import cosine_similarity

# What scikit-learn calls them, for a length scale.
OF_SCIKIT_LEARN = {
    RBF: of_scikit_learn.RBF,
    Matern32: lambda length_scale: of_scikit_learn.Matern(length_scale, nu=1.5),
    Matern52: lambda length_scale: of_scikit_learn.Matern(length_scale, nu=2.5),
}
SIMPLE = [RBF(2.5, 1.5), Matern32(2.5, 1.5), Matern52(2.5, 1.5), Cosine(2.5), Linear(2.5)]
LEARNERS = (coordinate_ascent, laplace)
KERNELS = [
    *SIMPLE,
    pytest.param(Matern32(2.5, np.array([1.5, 0.7])), id="Matern32 by feature"),
    RBF(2.0, 1.5) + Linear(0.5),
    RBF(2.0, 1.5) * Linear(0.5),
]


def name_of(kernel):
    return type(kernel).__name__


with_every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=name_of)
with_every_simple_kernel = pytest.mark.parametrize("kernel", SIMPLE, ids=name_of)
with_every_length_scale = pytest.mark.parametrize("kind", OF_SCIKIT_LEARN)


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def points(number, num_features, seed=0):
    return np.random.default_rng(seed).normal(size=(number, num_features))


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_covariance_equals_the_formula_pair_by_pair(shift):
    left, right = points(7, 3) + shift, points(5, 3, seed=1) + shift
    kernel = RBF(variance=1.7, length_scale=0.8)
    expected = np.empty((7, 5))
    for i, x in enumerate(left):
        for j, z in enumerate(right):
            squared_distance = sum((a - b) ** 2 for a, b in zip(x, z, strict=True))
            expected[i, j] = 1.7 * math.exp(-squared_distance / (2 * 0.8**2))
    # The shift itself costs log10(1e4) of 16 digits in the differences.
    np.testing.assert_allclose(kernel.covariance(left, right), expected, rtol=1e-13 * (1 + shift))


@with_every_length_scale
def test_covariance_is_that_of_scikit_learn(kind):
    left, right = points(7, 3), points(5, 3, seed=1)
    expected = 1.7 * OF_SCIKIT_LEARN[kind](0.8)(left, right)
    np.testing.assert_allclose(kind(1.7, 0.8).covariance(left, right), expected, rtol=1e-12)


def test_cosine_is_that_of_scikit_learn_also_of_zeros():
    left, right = points(7, 3), points(5, 3, seed=1)
    left[2] = 0.0
    expected = 1.7 * cosine_similarity(left, right)
    np.testing.assert_allclose(Cosine(1.7).covariance(left, right), expected, atol=1e-14)
    by_length = Cosine(1.7).covariance(1e3 * left, right)
    np.testing.assert_allclose(by_length, expected, atol=1e-14)
    assert np.asarray(Cosine(1.7).variance_at(left)).tolist() == [1.7, 1.7, 0.0, *[1.7] * 4]


def test_length_scales_by_feature_match_scikit_learn():
    left, right, each = points(7, 3), points(5, 3, seed=1), np.array([0.5, 2.0, 40.0])
    for kind, its in OF_SCIKIT_LEARN.items():
        expected = 1.7 * its(each)(left, right)
        np.testing.assert_allclose(kind(1.7, each).covariance(left, right), expected, rtol=1e-12)


def test_sums_and_products_are_those_of_scikit_learn():
    left, right = points(7, 3), points(5, 3, seed=1)
    rbf, matern = of_scikit_learn.RBF(0.8), of_scikit_learn.Matern(2.0, nu=1.5)
    linear = of_scikit_learn.DotProduct(0.0)
    kernel = RBF(1.7, 0.8) * Linear(0.5) + Matern32(3.0, 2.0) + Linear(0.2)
    expected = 0.85 * rbf * linear + 3.0 * matern + 0.2 * linear
    np.testing.assert_allclose(kernel.covariance(left, right), expected(left, right), rtol=1e-12)
    np.testing.assert_allclose(kernel.variance_at(left), expected.diag(left), rtol=1e-12)
    assert len(kernel.parts) == 3


def test_parameters_of_sums_carry_numbers_of_terms():
    prior = dist.LogNormal(0.0, 1.0)
    kernel = RBF(1.7, 0.8) * Cosine(3.0) * Linear(prior) + Linear(0.2)
    assert kernel.parameters == {
        "variance_1_1": 1.7,
        "length_scale_1_1": 0.8,
        "variance_3_1": prior,
        "variance_2": 0.2,
    }
    changed = kernel.with_values({"length_scale_1_1": 2.0, "variance_2": 4.0, "variance": 9.0})
    assert changed == RBF(1.7, 2.0) * Cosine(3.0) * Linear(prior) + Linear(4.0)
    assert kernel.priors == {"variance_3_1": prior}


def test_largest_variance_is_over_points_draws_and_prior():
    x, prior = points(20, 3), dist.LogNormal(0.0, 0.5)
    norms = (x**2).sum(axis=1)
    draws = {"variance_1": np.array([0.5, 3.0, 2.0]), "variance_2": np.array([0.9, 0.2, 0.4])}
    kernel = RBF(prior, 1.0) + Linear(prior)
    each = draws["variance_1"] + norms[:, None] * draws["variance_2"]
    assert kernel.largest_variance(x, draws) == pytest.approx(each.max(), rel=1e-12)
    high = math.exp(0.5 * 3.719016)  # of the standard normal, 1e-4 lie above
    assert Linear(prior).largest_variance(x, {}) == pytest.approx(high * norms.max(), rel=1e-5)
    assert kernel.largest_variance(x, {}) == pytest.approx(high * (1 + norms.max()), rel=1e-5)
    assert RBF(prior, 1.0).largest_variance(x, {}) == pytest.approx(high, rel=1e-5)
    wide = dist.LogNormal(0.0, 5.0)
    for unbounded in (RBF(wide, 1.0), Linear(wide), RBF(dist.Weibull(1.0, 0.1), 1.0)):
        assert unbounded.largest_variance(x, {}) == 64.0


def test_a_combination_of_one_kernel_is_refused(without_type_checks):
    with pytest.raises(ValueError, match=r"Sum parts are \(RBF\(.*\); expected two kernels"):
        Sum([RBF(1.0, 1.0)])
    with pytest.raises(ValueError, match=r"Product parts are \(RBF\(.*2\.0\); expected two"):
        Product([RBF(1.0, 1.0), 2.0])


@with_every_kernel
def test_covariance_is_symmetric_and_positive_semi_definite(kernel):
    x = points(30, 2)
    x[7] = x[3]  # a duplicate makes it singular
    covariance = np.asarray(kernel.covariance(x, x))
    np.testing.assert_allclose(covariance, covariance.T, atol=1e-15)
    np.testing.assert_allclose(np.diag(covariance), kernel.variance_at(x), rtol=1e-13)
    assert np.linalg.eigvalsh(covariance).min() > -1e-13 * np.trace(covariance)


def test_covariance_never_exceeds_the_variance_in_32_bit():
    x = points(40, 4) + 300.0
    with jax.enable_x64(False):
        covariance = np.asarray(RBF(variance=2.0, length_scale=0.1).covariance(x, x))
    assert covariance.dtype == np.float32
    assert covariance.max() <= 2.0


def test_a_constant_feature_changes_nothing():
    x, z = points(6, 3), points(4, 3, seed=1)
    wide_x, wide_z = (np.column_stack([a, np.full(len(a), 7.0)]) for a in (x, z))
    kernel = RBF(variance=1.0, length_scale=2.0)
    np.testing.assert_allclose(
        kernel.covariance(wide_x, wide_z), kernel.covariance(x, z), rtol=1e-14
    )


@with_every_length_scale
def test_covariance_is_differentiable_in_both_parameters(kind):
    x = points(4, 2)  # the diagonal is of distances 0

    def total(variance, length_scale):
        return jnp.sum(jnp.cos(kind(variance, length_scale).covariance(x, x)))

    step = 1e-6
    by_variance, by_length_scale = jax.jit(jax.grad(total, argnums=(0, 1)))(1.3, 0.9)
    differences = [
        (total(1.3 + step, 0.9) - total(1.3 - step, 0.9)) / (2 * step),
        (total(1.3, 0.9 + step) - total(1.3, 0.9 - step)) / (2 * step),
    ]
    np.testing.assert_allclose([by_variance, by_length_scale], differences, rtol=1e-7)


@with_every_kernel
def test_gradients_are_finite_where_points_are_the_same(kernel):
    x = points(4, 2)
    x[1] = x[0]
    gradient = jax.jit(jax.grad(lambda z: jnp.sum(kernel.covariance(z, z))))(x)
    assert np.isfinite(gradient).all()


@with_every_simple_kernel
def test_models_are_made_with_the_chosen_class_of_kernel(kernel):
    x = points(30, 2)
    bags = Bags.from_arrays(x, np.arange(30) // 3, np.arange(10) % 2)
    kind = type(kernel)
    for model in (VGPMIL, VWSGP):
        made = model.for_bags(bags, num_inducing=5, kernel=kind)
        assert type(made.kernel) is kind
        assert np.mean(made.kernel.variance_at(x)) == pytest.approx(5.0, rel=1e-12)
        of_others = {"mean"} if model is VGPMIL else set()
        assert set(made.hyperparameters) == of_others | set(made.kernel.parameters)
        assert model.settings["kernel"](kind.__name__.lower()) is kind


def test_the_guides_kernel_is_taken_as_any_other():
    guide = (Path(__file__).parents[3] / "docs/adding_a_model.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(from dataclasses.*?)```", guide, re.DOTALL)
    x = points(30, 2)
    names = {"bags": Bags.from_arrays(x, np.arange(30) // 3, np.arange(10) % 2)}
    exec(program, names)
    model = names["model"]
    expected = of_scikit_learn.RationalQuadratic(model.kernel.length_scale, alpha=1.0)(x)
    np.testing.assert_allclose(model.kernel.covariance(x, x), 5.0 * expected, rtol=1e-12)
    assert coordinate_ascent(model, names["bags"], seed=0).status.kind == "converged"


def test_length_scales_are_refused_by_kernels_without_one():
    x = points(30, 2)
    bags = Bags.from_arrays(x, np.arange(30) // 3, np.arange(10) % 2)
    with pytest.raises(ValueError, match=r"length_scale is 2\.0, but Cosine has none"):
        VWSGP.for_bags(bags, num_inducing=5, length_scale=2.0, kernel=Cosine)


def test_a_kernel_is_taken_as_it_is_or_refused(without_type_checks):
    bags = Bags.from_arrays(points(30, 2), np.arange(30) // 3, np.arange(10) % 2)
    kernel = RBF(1.0, np.ones(2)) + Linear(2.0)
    assert VWSGP.for_bags(bags, num_inducing=5, kernel=kernel).kernel is kernel
    with pytest.raises(ValueError, match=r"variance is 2\.0 .* but kernel is RBF.* its own"):
        VWSGP.for_bags(bags, num_inducing=5, variance=2.0, kernel=RBF(1.0, 1.0))
    with pytest.raises(ValueError, match=r"kernel is 'rbf'; expected a class such as RBF"):
        VWSGP.for_bags(bags, num_inducing=5, kernel="rbf")
    three = RBF(1.0, 1.0) + RBF(1.0, np.ones(3))
    with pytest.raises(ValueError, match=r"length_scale_2 has shape \(3,\), .* 2 features"):
        VWSGP.for_bags(bags, num_inducing=5, kernel=three)


@with_every_kernel
def test_models_with_kernels_are_read_as_written(kernel):
    x = points(30, 2)
    bags = Bags.from_arrays(x, np.arange(30) // 3, np.arange(10) % 2)
    written = encode(GPMIL.for_bags(bags, num_inducing=5, kernel=kernel))
    read = decode(written)
    assert encode(read) == written and type(read.kernel) is type(kernel)
    np.testing.assert_array_equal(read.kernel.covariance(x, x), kernel.covariance(x, x))


def test_priors_of_length_scales_are_read_as_written():
    prior = dist.LogNormal(0.5, 1.0).expand([3]).to_event(1)
    read = decode(encode(RBF(2.0, prior))).length_scale
    assert read.event_shape == (3,)
    values = np.array([0.5, 1.0, 2.0])
    assert float(read.log_prob(values)) == pytest.approx(float(prior.log_prob(values)), rel=1e-12)


def rough(variance, length_scale):
    return variance * tinygp.kernels.Matern32(length_scale, distance=tinygp.kernels.L2Distance())


def test_kernels_of_tinygp_give_the_bound_of_ours():
    random = np.random.default_rng(0)
    bags = Bags.from_arrays(points(30, 2), np.arange(30) // 3, np.arange(10) % 2)
    bags = bags.with_targets(random.normal(size=10))
    ours = VWSGP.for_bags(bags, 6, kernel=Matern32(1.7, 0.8), likelihood=Gaussian(0.5))
    expected = coordinate_ascent(ours, bags, seed=0).elbo[-1]
    fixed = TinyGPKernel(rough(1.7, 0.8))
    by_name = TinyGPKernel(rough, {"variance": 1.7, "length_scale": 0.8})
    for kernel in (fixed, by_name, by_name.with_values({"variance": 1.7, "mean": 0.0})):
        model = VWSGP(kernel, ours.inducing_points, likelihood=Gaussian(0.5))
        assert coordinate_ascent(model, bags, seed=0).elbo[-1] == pytest.approx(expected, abs=1e-9)
    assert set(model.hyperparameters) == {"variance", "length_scale", "noise"}
    learned = [
        coordinate_ascent(of, bags, seed=0, learn_hyperparameters=True) for of in (ours, model)
    ]
    assert learned[1].elbo[-1] == pytest.approx(learned[0].elbo[-1], abs=1e-6)


def test_wrong_values_of_a_tinygp_kernel_are_refused():
    with pytest.raises(ValueError, match=r"TinyGPKernel variance is -1\.0; expected a positive"):
        TinyGPKernel(rough, {"variance": -1.0})
    with pytest.raises(ValueError, match=r"values are .* but the kernel has its numbers"):
        TinyGPKernel(rough(1.0, 1.0), {"variance": 1.0})
    with pytest.raises(ValueError, match=r"kernel is a TinyGPKernel, .* no file can hold"):
        encode(TinyGPKernel(rough(1.0, 1.0)))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), np.float64(-2.0), -3])
@pytest.mark.parametrize("name", ["variance", "length_scale"])
def test_numbers_not_positive_and_finite_are_refused_by_name(name, bad):
    with pytest.raises(ValueError, match=rf"RBF {name} is {bad}; expected a positive finite"):
        RBF(**({"variance": 1.0, "length_scale": 1.0} | {name: bad}))


@pytest.mark.parametrize(
    "bad",
    [np.array(-1.0), -np.ones(3), dist.Normal(0.0, 1.0), dist.LogNormal(np.zeros(2), 1.0)],
    ids=["0-d array", "negative vector", "prior on the real line", "batch of priors"],
)
def test_what_is_no_positive_number_is_refused(bad, without_type_checks):
    with pytest.raises(ValueError, match=r"RBF length_scale is .*; expected a positive finite"):
        RBF(variance=1.0, length_scale=bad)


def test_numbers_of_numpy_become_plain_ones(without_type_checks):
    kernel = RBF(variance=np.float32(2.0), length_scale=np.array(3))
    assert (kernel.variance, kernel.length_scale) == (2.0, 3.0)
    assert type(kernel.variance) is float and type(kernel.length_scale) is int


def test_priors_are_the_parameters_given_as_distributions():
    prior = dist.LogNormal(0.0, 1.0)
    assert RBF(variance=1.0, length_scale=2.0).priors == {}
    assert RBF(variance=prior, length_scale=2.0).priors == {"variance": prior}
    both = RBF(variance=prior, length_scale=dist.HalfNormal(1.0)).priors
    assert list(both) == ["variance", "length_scale"]


def test_with_values_replaces_only_its_own_parameters():
    kernel = RBF(variance=dist.LogNormal(0.0, 1.0), length_scale=2.0)
    changed = kernel.with_values({"variance": 3.0, "mean": 9.0, "inducing_value": None})
    assert (changed.variance, changed.length_scale) == (3.0, 2.0)
    assert isinstance(kernel.variance, dist.Distribution)
    with pytest.raises(ValueError, match=r"RBF variance is -3\.0"):
        kernel.with_values({"variance": -3.0})


def test_a_kernel_passes_through_jit_as_an_argument():
    x = points(3, 2)
    covariance = jax.jit(lambda kernel: kernel.covariance(x, x))
    kernel = RBF(variance=2.0, length_scale=0.5)
    np.testing.assert_allclose(covariance(kernel), kernel.covariance(x, x), rtol=1e-14)


def test_median_distance_is_between_distinct_instances():
    instances = np.array([[0.0, 7.0], [0.0, 7.0], [3.0, 7.0], [9.0, 7.0]])
    assert median_distance(instances) == 6.0  # of 3, 9, 3, 9, 6
    assert median_distance(np.ones((5, 4))) == 2.0
    many = np.random.default_rng(0).normal(size=(5000, 3))
    assert median_distance(many) == pytest.approx(np.median(pdist(many)), rel=0.03)


@pytest.mark.parametrize("model", [VGPMIL, VWSGP, GPMIL])
def test_quadrature_reaches_the_farthest_instances_variance(model):
    """Under a linear kernel: P(T* = 1) of one instance, its latent value N(0, 15²) given u = 0."""
    made = model(Linear(1.0), np.array([[1.0, 0.0]]))
    far = Bags.from_list([np.array([[0.0, 15.0]]), np.array([[0.0, 0.5]])])
    found = made.predict({"inducing_value": np.zeros((1, 1))}, far)["instance_probability"][0]
    np.testing.assert_allclose(found, 0.5, atol=1e-9)
    shifted = model(Linear(1.0), np.array([[1.0, 0.0]])).predict(
        {"inducing_value": np.full((1, 1), 2.0)}, Bags.from_list([np.array([[1.0, 15.0]])])
    )["instance_probability"][0, 0]
    z = np.linspace(-9.0, 9.0, 200_001)
    weight = np.exp(-0.5 * z**2)
    expected = weight @ expit(2.0 + 15.0 * z) / weight.sum()
    assert shifted == pytest.approx(expected, abs=1e-5)


@pytest.mark.in_ci
def test_both_learners_find_each_features_length_scale():
    """Of targets, where the bound and Laplace's approximation are the evidence."""
    random = np.random.default_rng(3)
    x = random.uniform(-2.0, 2.0, size=(40, 2))
    targets = np.sin(2.0 * x[:, 0]) + 0.1 * random.normal(size=40)
    bags = Bags.from_arrays(x, np.arange(40)).with_targets(targets)
    kernel = RBF(1.0, np.array([1.0, 1.0]))
    model = VWSGP(kernel, x[::4], likelihood=Gaussian(0.1))
    found = [engine(model, bags, seed=0, learn_hyperparameters=True).model for engine in LEARNERS]
    for learned in found:
        assert learned.kernel.length_scale[1] > 10 * learned.kernel.length_scale[0]
    evidences = [coordinate_ascent(learned, bags, seed=0).elbo[-1] for learned in found]
    assert evidences[0] == pytest.approx(evidences[1], abs=0.5)
    assert min(evidences) > coordinate_ascent(model, bags, seed=0).elbo[-1] + 10
    one = [learned.kernel.length_scale[0] for learned in found]
    assert one[0] == pytest.approx(one[1], rel=0.05)
