"""Edges between the instances of bags: what is refused, and that they stay with their bags."""

import pickle
from dataclasses import replace

import jax
import numpy as np
import pytest
import scipy.sparse
from milzoo.datasets import Bags, simulate
from milzoo.datasets.padding import padded, padded_to
from milzoo.inference.runtime.chunks import in_pieces, padded_chunks
from milzoo.models import RBF, CoupledVGPMIL

SIZES = (3, 1, 4, 2)
POINTS = np.array([[-1.0, 0.5], [1.0, -0.5]])


def random_graph(size: int, random: np.random.Generator) -> scipy.sparse.csr_array:
    upper = np.triu(
        random.uniform(0.5, 2.0, (size, size)) * random.integers(2, size=(size, size)), 1
    )
    return scipy.sparse.csr_array(upper + upper.T)


@pytest.fixture(scope="module")
def graphs():
    """One for each bag; that of the bag of one has no edge."""
    random = np.random.default_rng(3)
    return [random_graph(size, random) for size in SIZES]


@pytest.fixture(scope="module")
def plain():
    random = np.random.default_rng(4)
    instances = [random.normal(size=(size, 2)) for size in SIZES]
    return Bags.from_list(instances, labels=[1, 0, 1, 0], names=list("abcd"))


@pytest.fixture(scope="module")
def bags(plain, graphs):
    return plain.with_edges(graphs)


def matrix(bags: Bags) -> np.ndarray:
    return bags.edges.as_matrix(bags.num_instances).toarray()


def with_entries(*entries: tuple[int, int, float]) -> scipy.sparse.coo_array:
    rows, columns, weights = zip(*entries, strict=True)
    return scipy.sparse.coo_array((weights, (rows, columns)), shape=(10, 10))


# ------------------------------------------------------------------ what is taken


def test_a_matrix_by_bag_is_block_diagonal(plain, bags, graphs):
    whole = scipy.sparse.block_diag(graphs)
    np.testing.assert_array_equal(matrix(bags), whole.toarray())
    for kind in (scipy.sparse.csr_array, scipy.sparse.coo_matrix, scipy.sparse.lil_array):
        for ours, theirs in zip(bags.edges, plain.with_edges(kind(whole)).edges, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_edges_are_sorted_and_read_only(bags):
    row, column, weight = bags.edges
    assert (np.diff(10 * row + column) > 0).all()
    for array in (row, column, weight):
        assert not array.flags.writeable


def test_entries_of_one_place_are_added_up(plain):
    twice = with_entries((0, 1, 1.0), (0, 1, 2.0), (1, 0, 3.0), (4, 5, 0.0))
    edges = plain.with_edges(twice).edges
    assert [part.tolist() for part in edges] == [[0, 1], [1, 0], [3.0, 3.0]]


def test_none_takes_edges_away(bags):
    assert bags.with_edges(None).edges is None
    assert bags.without_labels().edges is bags.edges


def test_a_graph_without_edges_is_one(plain):
    empty = plain.with_edges(scipy.sparse.csr_array((10, 10)))
    assert empty.edges.num_edges == 0
    assert padded(empty.select([1])).edges.weight.sum() == 0


@pytest.mark.parametrize(
    ("adjacency", "error", "message"),
    [
        (np.zeros((10, 10)), TypeError, "adjacency is a dense array; expected a scipy.sparse"),
        ("abc", TypeError, "adjacency is a str; expected a list with one scipy.sparse array"),
        (3, TypeError, "adjacency is a int; expected a list with one scipy.sparse array"),
        ([np.zeros((3, 3))] * 4, TypeError, "adjacency of bag 'a' is a ndarray; expected a scipy"),
        ([scipy.sparse.eye_array(3)] * 3, ValueError, "adjacency has 3 entries; expected 4, one"),
        (
            [scipy.sparse.csr_array((3, 3))] * 4,
            ValueError,
            r"adjacency of bag 'b' has shape \(3, 3\); expected \(1, 1\), a row and a column",
        ),
        (
            scipy.sparse.csr_array((9, 10)),
            ValueError,
            r"adjacency has shape \(9, 10\); expected \(10, 10\), a row and a column",
        ),
        (
            scipy.sparse.csr_array(np.zeros((10, 10), complex)),
            TypeError,
            "adjacency has type complex128; expected real numbers",
        ),
        (
            with_entries((4, 5, -1.0), (5, 4, -1.0)),
            ValueError,
            "weight -1 from bag 'c', row 0 to bag 'c', row 1; expected finite numbers of at least",
        ),
        (
            with_entries((4, 5, np.nan), (5, 4, np.nan)),
            ValueError,
            "weight nan from bag 'c', row 0 to bag 'c', row 1; expected finite",
        ),
        (
            with_entries((5, 5, 2.0)),
            ValueError,
            r"weight 2 from bag 'c', row 1 to itself; expected 0 .*adjacency.setdiag\(0\)",
        ),
        (
            with_entries((0, 2, 2.0), (2, 0, 1.0)),
            ValueError,
            "weight 2 from bag 'a', row 0 to bag 'a', row 2 and 1 back; expected the same",
        ),
        (
            with_entries((2, 3, 1.0), (3, 2, 1.0)),
            ValueError,
            "an edge from bag 'a', row 2 to bag 'b', row 0; expected edges inside bags",
        ),
    ],
)
def test_what_is_no_graph_of_the_bags_is_refused(plain, adjacency, error, message):
    with pytest.raises(error, match=message):
        plain.with_edges(adjacency)


# ------------------------------------------------------------------ edges stay with their bags


def test_selected_bags_keep_their_edges(bags, graphs):
    """In the order chosen, also of a bag that is chosen twice."""
    for chosen in ([2, 0], [3, 3, 1], [0, 1, 2, 3], [1]):
        found, expected = bags[chosen], scipy.sparse.block_diag([graphs[b] for b in chosen])
        np.testing.assert_array_equal(matrix(found), expected.toarray())
        assert (np.diff(found.edges.row) >= 0).all()


def test_folds_and_parts_keep_their_edges(bags, graphs):
    parts = [*bags.split(0.5, seed=0), *next(bags.folds(2, seed=0)), *in_pieces(bags, 3), *bags]
    for part in parts:
        chosen = [graphs["abcd".index(name)] for name in part.names]
        np.testing.assert_array_equal(matrix(part), scipy.sparse.block_diag(chosen).toarray())


def test_changed_features_and_targets_leave_edges(bags):
    for other in (bags.standardize(), bags.with_targets(np.arange(4.0)), bags.without_labels()):
        assert other.edges is bags.edges


def test_edges_pass_through_pickles_and_pytrees(bags):
    mapped = jax.tree.map(lambda leaf: leaf, bags)
    for other in (pickle.loads(pickle.dumps(bags)), mapped, jax.jit(lambda given: given)(bags)):
        np.testing.assert_allclose(matrix(other), matrix(bags), rtol=1e-6)
    assert len(jax.tree.leaves(bags)) == 6


def test_edges_among_some_instances_are_a_part(bags):
    rows = np.array([0, 2, 4, 5, 7, 9])
    found = bags.edges.among(rows).as_matrix(len(rows)).toarray()
    np.testing.assert_array_equal(found, matrix(bags)[np.ix_(rows, rows)])


def test_the_number_of_neighbours_is_shown(bags):
    pairs = bags.edges.num_edges // 2
    assert repr(bags).endswith(f"features, {pairs} pairs of neighbours)")
    assert "neighbours" not in repr(bags.with_edges(None))


def test_what_cannot_have_edges_refuses_them(bags, tmp_path):
    for refused in (
        bags.to_frame,
        bags.to_padded,
        bags.to_sawmil,
        lambda: bags.to_parquet(tmp_path / "bags.parquet"),
    ):
        with pytest.raises(ValueError, match=r"bags have edges, which .*: bags.with_edges\(None\)"):
            refused()
    assert not list(tmp_path.iterdir())
    bags.with_edges(None).to_parquet(tmp_path / "bags.parquet")


@pytest.mark.in_ci
def test_simulated_labels_leave_edges(bags):
    drawn, _ = simulate(CoupledVGPMIL(RBF(2.0, 1.0), POINTS), bags, seed=0)
    assert drawn.edges is bags.edges


# ------------------------------------------------------------------ padding


def test_padded_edges_have_no_weight_and_stay_sorted(bags):
    whole, number = padded(bags), bags.edges.num_edges
    for ours, theirs in zip(bags.edges, whole.edges, strict=True):
        np.testing.assert_array_equal(theirs[:number], ours)
    assert not whole.edges.weight[number:].any()
    assert (whole.edges.row[number:] == whole.num_instances - 1).all()
    assert (whole.edges.column[number:] == whole.num_instances - 1).all()
    assert padded(bags.with_edges(None)).edges is None
    assert padded_to(bags, 16, 8, num_edges=64).edges.num_edges == 64


def test_folds_have_as_many_padded_edges(bags):
    many = bags[[2] * 80]
    assert len({padded(many[:number]).edges.num_edges for number in (1, 20, 40, 60)}) == 1
    assert many.edges.num_edges < padded(many).edges.num_edges


def test_chunks_have_as_many_padded_edges(bags):
    chunks = [bags[[2] * 400], bags[[0, 1]]]
    whole = padded_chunks(chunks, num_instances=64, num_parts=3)
    assert len({chunk.edges.num_edges for chunk in whole}) == 1
    for ours, theirs in zip(chunks, whole, strict=False):
        np.testing.assert_array_equal(
            theirs.edges.weight[: ours.edges.num_edges], ours.edges.weight
        )


def test_an_absent_bag_has_no_edges(bags):
    whole = padded(replace(bags, present=None))
    present = np.asarray(whole.present)[np.asarray(whole.bag_index)[whole.edges.row]]
    assert present[whole.edges.weight > 0].all()
