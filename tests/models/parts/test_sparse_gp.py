"""The FITC conditional against dense linear algebra, and when it is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.models import RBF, Cosine, Linear, Matern32
from milzoo.models.numerics.products import panels_of, times_triangle
from milzoo.models.parts.sparse_gp import Projector, accumulated_conditional, sparse_conditional
from sklearn.gaussian_process.kernels import DotProduct, Matern
from sklearn.metrics.pairwise import cosine_similarity

KERNEL = RBF(variance=1.7, length_scale=1.2)


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def points(number, num_features=2, seed=0):
    return np.random.default_rng(seed).normal(size=(number, num_features))


def dense_covariance(left, right, kernel=KERNEL):
    squared_distance = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=-1)
    return kernel.variance * np.exp(-squared_distance / (2 * kernel.length_scale**2))


@pytest.mark.parametrize("jitter", [1e-6, 1e-2])
def test_projection_and_residual_equal_dense_linear_algebra(jitter):
    z, x = points(6), points(25, seed=1)
    conditional = sparse_conditional(KERNEL, z, x, jitter)
    K_ZZ = dense_covariance(z, z) + jitter * KERNEL.variance * np.eye(6)
    K_XZ = dense_covariance(x, z)
    A = np.linalg.solve(K_ZZ, K_XZ.T).T
    residual_variance = KERNEL.variance - np.einsum("nm,nm->n", A, K_XZ)
    L = np.asarray(conditional.cholesky)
    np.testing.assert_allclose(L @ L.T, K_ZZ, atol=1e-14)
    np.testing.assert_array_equal(L, np.tril(L))
    np.testing.assert_allclose(
        np.asarray(conditional.projection), A @ L, atol=1e-10
    )  # V = K_XZ L⁻ᵀ = A L
    np.testing.assert_allclose(conditional.residual_variance, residual_variance, atol=1e-10)

    u = np.random.default_rng(2).normal(size=6)
    np.testing.assert_allclose(conditional.mean(jnp.asarray(u)), A @ u, atol=1e-9)
    np.testing.assert_allclose(conditional.whiten(jnp.asarray(L @ u)), u, atol=1e-10)


@pytest.mark.parametrize(
    ("kernel", "covariance"),
    [
        (Matern32(1.7, 1.2), 1.7 * Matern(1.2, nu=1.5)),
        (Cosine(1.7), lambda left, right: 1.7 * cosine_similarity(left, right)),
        (Linear(0.4), 0.4 * DotProduct(0.0)),
        (Matern32(1.7, 1.2) + Linear(0.4), 1.7 * Matern(1.2, nu=1.5) + 0.4 * DotProduct(0.0)),
    ],
    ids=["Matern32", "Cosine", "Linear", "sum"],
)
def test_other_kernels_have_the_same_conditional(kernel, covariance):
    z, x = points(2), points(25, seed=1)
    conditional = sparse_conditional(kernel, z, x, 1e-6)
    K_ZZ, K_XZ = covariance(z, z), covariance(x, z)
    floor = 1e-6 * np.diag(K_ZZ).mean()
    K_ZZ = K_ZZ + floor * np.eye(2)
    V = np.asarray(conditional.projection)
    explained = K_XZ @ np.linalg.solve(K_ZZ, K_XZ.T)
    np.testing.assert_allclose(V @ V.T, explained, atol=1e-10)
    floored = np.maximum(np.diag(covariance(x, x)) - np.diag(explained), floor)
    np.testing.assert_allclose(conditional.residual_variance, floored, atol=1e-10)


def test_latents_have_prior_variance_and_low_rank_covariance():
    z, x = points(5), points(12, seed=1)
    conditional = sparse_conditional(KERNEL, z, x, 1e-6)
    V = np.asarray(conditional.projection)
    covariance = V @ V.T + np.diag(conditional.residual_variance)
    np.testing.assert_allclose(np.diag(covariance), KERNEL.variance, rtol=1e-12)
    # Nyström: K_XZ K_ZZ⁻¹ K_ZX off the diagonal.
    K_XZ, K_ZZ = dense_covariance(x, z), dense_covariance(z, z)
    nystrom = K_XZ @ np.linalg.solve(K_ZZ + 1e-6 * KERNEL.variance * np.eye(5), K_XZ.T)
    off_diagonal = ~np.eye(12, dtype=bool)
    np.testing.assert_allclose(covariance[off_diagonal], nystrom[off_diagonal], atol=1e-10)


def test_inducing_points_at_the_instances_make_the_full_process():
    x = points(12)
    conditional = sparse_conditional(KERNEL, x, x, 0.0)
    V = np.asarray(conditional.projection)
    np.testing.assert_allclose(V @ V.T, dense_covariance(x, x), atol=1e-10)
    np.testing.assert_allclose(conditional.residual_variance, 0.0, atol=1e-10)
    u = np.random.default_rng(1).normal(size=12)
    np.testing.assert_allclose(conditional.mean(jnp.asarray(V @ u)), V @ u, atol=1e-8)  # f = u


@pytest.mark.slow_but_first
@pytest.mark.parametrize("in_64_bit", [True, False])
@pytest.mark.parametrize("length_scale", [0.05, 1.0, 30.0])
def test_residual_variance_is_never_negative_and_nothing_is_nan(length_scale, in_64_bit):
    z = points(30)
    z[4] = z[9]  # K_ZZ is singular but for its jitter
    x = np.vstack([z, points(10, seed=1), 100.0 + points(2)])
    with jax.enable_x64(in_64_bit):
        conditional = sparse_conditional(RBF(5.0, length_scale), z, x, 1e-6)
        for value in conditional:
            assert np.isfinite(value).all()
        residual_variance = np.asarray(conditional.residual_variance)
        assert (residual_variance > 0).all()
        assert (residual_variance <= 5.0 * (1 + 1e-6)).all()
        # Far from every inducing point nothing is known.
        if length_scale < 30:
            np.testing.assert_allclose(residual_variance[-2:], 5.0, rtol=1e-6)


def test_32_bit_agrees_with_64_bit():
    z, x = points(6), points(25, seed=1)
    exact = sparse_conditional(KERNEL, z, x, 1e-6)
    with jax.enable_x64(False):
        rough = sparse_conditional(KERNEL, z, x, 1e-6)
        assert {value.dtype for value in rough} == {np.dtype("float32")}
    for one, other in zip(rough, exact, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_a_fixed_kernel_is_factorised_before_anything_is_compiled():
    z, x = points(5), points(12, seed=1)

    def compiled(u):
        return sparse_conditional(KERNEL, z, x, 1e-6).mean(u)

    u = jnp.ones(5)
    for transformed in (
        jax.jit(compiled),
        jax.jacfwd(compiled),
        lambda u: jax.vmap(compiled)(u[None]),
        lambda u: jax.lax.map(compiled, u[None]),
    ):
        program = str(jax.make_jaxpr(transformed)(u))
        assert "cholesky" not in program
        assert "exp" not in program
    np.testing.assert_allclose(jax.jit(compiled)(u), compiled(u), rtol=1e-12)


def test_a_traced_kernel_is_factorised_in_the_program():
    z, x = points(5), points(12, seed=1)

    def total(variance, length_scale):
        conditional = sparse_conditional(RBF(variance, length_scale), z, x, 1e-6)
        return jnp.sum(conditional.mean(jnp.ones(5))) + jnp.sum(
            jnp.log(conditional.residual_variance)
        )

    assert "cholesky" in str(jax.make_jaxpr(total)(1.7, 1.2))
    gradient = jax.jit(jax.grad(total, argnums=(0, 1)))(1.7, 1.2)
    step = 1e-5
    differences = [
        (total(1.7 + step, 1.2) - total(1.7 - step, 1.2)) / (2 * step),
        (total(1.7, 1.2 + step) - total(1.7, 1.2 - step)) / (2 * step),
    ]
    np.testing.assert_allclose(gradient, differences, rtol=1e-5)


def test_chunk_programs_do_not_factorise_fixed_kernels():
    def projected(kernel, instances):
        bags = Bags(instances, np.zeros(5, int), np.ones(1, int), None, (), 1)
        return accumulated_conditional(Projector.of(kernel, points(4), 1e-6), bags).projection

    fixed = jax.make_jaxpr(lambda instances: projected(KERNEL, instances))(points(5))
    traced = jax.make_jaxpr(projected)(KERNEL, points(5))
    assert "cholesky" not in str(fixed) and "triangular_solve" not in str(fixed)
    assert "cholesky" in str(traced) and "triangular_solve" in str(traced)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("size", [1, 3, 8, 9, 24, 50, 200])
def test_panels_together_are_the_triangular_product(size):
    ends = panels_of(size)
    assert [start for start, _ in ends] == [0, *[end for _, end in ends[:-1]]]
    assert ends[-1][1] == size and all(start < end for start, end in ends)
    random = np.random.default_rng(3)
    rows, upper = random.normal(size=(7, size)), np.triu(random.normal(size=(size, size)))
    panels = times_triangle(jnp.asarray(rows), jnp.asarray(upper))
    np.testing.assert_allclose(np.hstack(panels), rows @ upper, rtol=1e-12, atol=1e-12)


def test_traced_instances_give_what_fixed_ones_give():
    z, x = points(5), points(12, seed=1)
    traced = jax.jit(lambda x: sparse_conditional(KERNEL, z, x, 1e-6))(jnp.asarray(x))
    for one, other in zip(traced, sparse_conditional(KERNEL, z, x, 1e-6), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_sums_stay_64_bit_under_32_bit_kernels():
    # 200,000 times the same instance: added up in 32 bit, rounding would grow to 1e-4 and more.
    point = np.array([[0.3, -0.2]])
    bags = Bags.from_arrays(np.repeat(point, 200_000, axis=0), np.zeros(200_000, int))
    points = np.random.default_rng(0).normal(size=(3, 2))
    with jax.enable_x64(True):
        one = sparse_conditional(RBF(1.4, 0.9), points, point, 1e-6)
        many = accumulated_conditional(Projector.of(RBF(1.4, 0.9), points, 1e-6), bags, "float32")
    assert many.projection.dtype == many.residual_variance.dtype == np.float64
    np.testing.assert_allclose(many.projection[0], 200_000 * one.projection[0], rtol=2e-6)
    # k̃ is a difference from v = 1.4, so that its 32-bit rounding is of that size.
    rounding = 200_000 * 1.4 * 4 * np.finfo(np.float32).eps
    expected = 200_000 * one.residual_variance
    np.testing.assert_allclose(many.residual_variance, expected, rtol=0, atol=rounding)


@pytest.mark.slow
def test_a_32_bit_kernel_changes_sums_by_rounding():
    random = np.random.default_rng(1)
    bags = Bags.from_list([random.normal(size=(size, 5)) for size in (1, 700, 9000)])
    points = random.normal(size=(8, 5))
    with jax.enable_x64(True):
        wide, narrow = (
            accumulated_conditional(Projector.of(RBF(1.4, 2.0), points, 1e-6), bags, dtype)
            for dtype in ("float64", "float32")
        )
    assert np.any(np.asarray(wide.projection) != np.asarray(narrow.projection))
    np.testing.assert_allclose(narrow.projection, wide.projection, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(narrow.residual_variance, wide.residual_variance, rtol=1e-5)
