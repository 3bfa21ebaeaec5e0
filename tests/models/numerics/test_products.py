"""Products in blocks of rows: what NumPy makes of the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.models.numerics.products import (
    cholesky_with_inverse,
    in_row_blocks,
    inverse_transposed,
    squared_norms,
    weighted_gram,
    weighted_sum,
    whole_blocks,
)

# Of one block, of two, of two shorter ones, and of two and a rest; of one panel to three.
SIZES = ((7, 1), (512, 5), (2 * 512, 13), (512 + 8, 20), (2 * 512 + 5, 50))


@pytest.mark.parametrize(
    ("num_rows", "expected"), [(7, 7), (512, 512), (528, 264), (1029, 344), (1280, 320)]
)
def test_blocks_are_about_as_long_as_one_another(num_rows, expected):
    lengths = set()

    def of_rows(rows):
        lengths.add(len(rows))
        return jnp.sum(rows), ()

    assert in_row_blocks(of_rows, jnp.ones(num_rows))[0] == num_rows
    assert lengths == {expected, num_rows % expected}


@pytest.mark.parametrize(
    ("num_rows", "expected"), [(7, 7), (512, 512), (552, 3 * 184), (12_540, 25 * 504)]
)
def test_whole_blocks_leave_no_rest_and_are_shortest(num_rows, expected):
    lengths = set()

    def of_rows(rows):
        lengths.add(len(rows))
        return jnp.sum(rows), ()

    assert whole_blocks(num_rows) == expected
    in_row_blocks(of_rows, jnp.ones(expected))
    assert 0 in lengths and len(lengths) == 2


@pytest.mark.slow_but_first
@pytest.mark.parametrize(("num_rows", "width"), SIZES)
def test_row_blocks_give_the_plain_products(num_rows, width):
    random = np.random.default_rng(0)
    matrix, weights = random.normal(size=(num_rows, width)), random.gamma(1.0, size=num_rows)
    cholesky = np.tril(random.normal(size=(width, width))) + 2 * width * np.eye(width)
    with jax.enable_x64(True):
        gram = weighted_gram(jnp.asarray(matrix), jnp.asarray(weights))
        linear = weighted_sum(jnp.asarray(matrix), jnp.asarray(weights))
        squares = squared_norms(jnp.asarray(matrix), inverse_transposed(jnp.asarray(cholesky)))
    np.testing.assert_allclose(gram, matrix.T @ np.diag(weights) @ matrix, rtol=1e-9)
    np.testing.assert_allclose(linear, weights @ matrix, rtol=1e-9)
    inverse = np.linalg.inv(cholesky @ cholesky.T)
    expected = np.einsum("nm,mk,nk->n", matrix, inverse, matrix)
    np.testing.assert_allclose(squares, expected, rtol=1e-9)


@pytest.mark.parametrize(("num_rows", "width"), SIZES)
def test_blocks_add_up_and_their_rows_stay_in_order(num_rows, width):
    random = np.random.default_rng(1)
    matrix, weights = random.normal(size=(num_rows, width)), random.normal(size=num_rows)

    def of_rows(rows, weight):
        return {"sum": weight @ rows}, (2 * rows, weight[:, None] + rows[:, :1])

    with jax.enable_x64(True):
        total, kept = in_row_blocks(of_rows, jnp.asarray(matrix), jnp.asarray(weights))
    np.testing.assert_allclose(total["sum"], weights @ matrix, rtol=1e-9)
    np.testing.assert_array_equal(kept[0], 2 * matrix)
    np.testing.assert_array_equal(kept[1], weights[:, None] + matrix[:, :1])


def test_sums_of_32_bit_rows_add_in_64():
    """Each block's sum is exact in 32 bit, the sum of all is not: multiples of 8,192 are."""
    matrix = np.ones((400_000, 3), np.float32)
    matrix[:1024], matrix[0] = 0.0, 2.0**36
    with jax.enable_x64(True):
        total = weighted_sum(jnp.asarray(matrix), jnp.ones(len(matrix)))
    np.testing.assert_array_equal(total, matrix.sum(axis=0, dtype=float))


def plain_factors(matrix):
    """L and L⁻ᵀ, for JAX to differentiate itself."""
    cholesky = jnp.linalg.cholesky(matrix)
    return cholesky, inverse_transposed(cholesky)


@pytest.fixture(scope="module")
def covariance():
    random = np.random.default_rng(2)
    root = random.normal(size=(6, 6))
    return root @ root.T + 0.1 * np.eye(6)


def test_factors_are_those_of_the_matrix(covariance):
    with jax.enable_x64(True):
        cholesky, whitener = map(np.asarray, cholesky_with_inverse(jnp.asarray(covariance)))
    np.testing.assert_allclose(cholesky, np.linalg.cholesky(covariance), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(whitener.T @ cholesky, np.eye(6), atol=1e-13)
    assert (np.tril(whitener, -1) == 0).all()


def test_gradients_of_factors_are_those_of_solves(covariance):
    """Of any function of both factors, and symmetric, as JAX's are."""
    weights = np.random.default_rng(3).normal(size=(2, 6, 6))

    def total(factors, matrix):
        found = factors(matrix)
        return sum(jnp.sum(w * jnp.sin(of)) for w, of in zip(weights, found, strict=True))

    with jax.enable_x64(True):
        found, expected = (
            jax.grad(lambda matrix, of=of: total(of, matrix))(jnp.asarray(covariance))
            for of in (cholesky_with_inverse, plain_factors)
        )
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


def test_curvature_of_factors_is_that_of_solves(covariance):
    """Along a line of matrices, where hyper-parameters have a second derivative."""
    with jax.enable_x64(True):
        line = jnp.asarray(np.diag(np.arange(1.0, 7.0)))

        def along(step, factors):
            cholesky, whitener = factors(jnp.asarray(covariance) * jnp.exp(step) + step * line)
            return jnp.sum(jnp.sin(cholesky)) + jnp.sum(whitener**2)

        found, expected = (
            jax.grad(jax.grad(along))(0.3, factors)
            for factors in (cholesky_with_inverse, plain_factors)
        )
    np.testing.assert_allclose(found, expected, rtol=1e-10)
