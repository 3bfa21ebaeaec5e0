"""Averages over neighbours against products with dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from milzoo.datasets import Bags
from milzoo.datasets.padding import padded
from milzoo.models.parts.coupling import averaged, averaged_rows
from milzoo.models.parts.sparse_gp import SparseConditional

NUM_INSTANCES, NUM_INDUCING = 9, 3


def graph(random: np.random.Generator) -> np.ndarray:
    """Three components in two bags; the fifth instance has no neighbour."""
    weights = np.zeros((NUM_INSTANCES, NUM_INSTANCES))
    for one, other in ((0, 1), (1, 2), (0, 2), (2, 3), (5, 6), (7, 8)):
        weights[one, other] = weights[other, one] = random.uniform(0.2, 3.0)
    return weights


@pytest.fixture(scope="module")
def bags():
    random = np.random.default_rng(2)
    plain = Bags.from_list([random.normal(size=(size, 2)) for size in (5, 4)])
    return plain.with_edges(scipy.sparse.csr_array(graph(random)))


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(3)
    projection = random.normal(size=(NUM_INSTANCES, NUM_INDUCING))
    return projection, random.uniform(0.1, 2.0, NUM_INSTANCES)


def averages_of(rows, bags, coupling):
    with jax.enable_x64(True):
        return averaged_rows(*map(jnp.asarray, rows), bags.edges, coupling)


def dense_averages(bags, coupling):
    """S, row by row from its definition."""
    weights = bags.edges.as_matrix(NUM_INSTANCES).toarray()
    averages = np.eye(NUM_INSTANCES)
    for n, of_n in enumerate(weights):
        if of_n.sum() > 0:
            averages[n] = (1 - coupling) * np.eye(NUM_INSTANCES)[n] + coupling * of_n / of_n.sum()
    return averages


@pytest.mark.parametrize("coupling", [0.0, 0.3, 0.95])
def test_averages_are_products_with_a_dense_matrix(bags, rows, coupling):
    """S V, and the diagonal of S K̃ Sᵀ."""
    averages = dense_averages(bags, coupling)
    projection, variance = averages_of(rows, bags, coupling)
    np.testing.assert_allclose(projection, averages @ rows[0], rtol=1e-13, atol=1e-13)
    expected = np.diag(averages @ np.diag(rows[1]) @ averages.T)
    np.testing.assert_allclose(variance, expected, rtol=1e-13)


def test_without_coupling_rows_stay_as_they_are(bags, rows):
    projection, variance = averages_of(rows, bags, 0.0)
    np.testing.assert_array_equal(projection, rows[0])
    np.testing.assert_array_equal(variance, rows[1])


def test_an_instance_without_neighbours_stays_as_it_is(bags, rows):
    projection, variance = averages_of(rows, bags, 0.7)
    np.testing.assert_array_equal(projection[4], rows[0][4])
    assert np.asarray(variance)[4] == rows[1][4]


def test_padded_edges_change_nothing(bags, rows):
    whole = padded(bags)
    filled = [
        np.concatenate([one, np.ones((whole.num_instances - NUM_INSTANCES, *one.shape[1:]))])
        for one in rows
    ]
    ours, theirs = averages_of(rows, bags, 0.6), averages_of(filled, whole, 0.6)
    for one, other, padding in zip(ours, theirs, filled, strict=True):
        np.testing.assert_allclose(other[:NUM_INSTANCES], one, rtol=1e-13)
        np.testing.assert_array_equal(other[NUM_INSTANCES:], padding[NUM_INSTANCES:])


def test_averages_of_narrow_rows_are_narrow(bags, rows):
    projection, variance = averages_of((rows[0].astype(np.float32), rows[1]), bags, 0.6)
    assert projection.dtype == np.float32 and variance.dtype == np.float64
    np.testing.assert_allclose(projection, dense_averages(bags, 0.6) @ rows[0], atol=1e-6)


def test_the_scale_is_the_root_of_the_variance(bags, rows):
    with jax.enable_x64(True):
        given = SparseConditional(
            *map(jnp.asarray, (np.eye(NUM_INDUCING), *rows, np.sqrt(rows[1])))
        )
        found = averaged(given, bags.edges, 0.6)
    np.testing.assert_allclose(found.residual_scale**2, found.residual_variance, rtol=1e-13)
    np.testing.assert_array_equal(found.cholesky, given.cholesky)
