"""k-means from centres drawn in a box: the steps of OpenCV's, one row at a time."""

import numpy as np
import pytest
from milzoo.papers.kmeans_in_a_box import kmeans_in_a_box


def one_row_at_a_time(rows, num_centres, random, attempts, max_steps, tolerance):
    """The same by loops: centres, and how many clusters had to be given a row."""
    low, high, margin = rows.min(axis=0), rows.max(axis=0), 1 / rows.shape[1]
    lowest, best, num_given = np.inf, None, 0
    for _ in range(attempts):
        uniform = random.random((num_centres, rows.shape[1]))
        centres = low - margin * (high - low) + uniform * (1 + 2 * margin) * (high - low)
        for _ in range(max_steps - 1):
            label = [int(np.argmin([np.sum((x - z) ** 2) for z in centres])) for x in rows]
            for cluster in range(num_centres):
                if cluster in label:
                    continue
                num_given += 1
                largest = max(range(num_centres), key=label.count)
                members = [n for n in range(len(rows)) if label[n] == largest]
                mean = rows[members].mean(axis=0)
                label[max(members, key=lambda n: np.sum((rows[n] - mean) ** 2))] = cluster
            former = centres
            centres = np.array([rows[np.equal(label, k)].mean(axis=0) for k in range(num_centres)])
            if max(np.linalg.norm(centres - former, axis=1)) <= tolerance:
                break
        distance = sum(np.sum((x - centres[k]) ** 2) for x, k in zip(rows, label, strict=True))
        if distance < lowest:
            lowest, best = distance, centres
    return best, num_given


@pytest.mark.parametrize(
    ("num_features", "max_steps", "tolerance"), [(2, 6, 0.1), (30, 6, 1.0), (30, 2, 0.0)]
)
def test_centres_are_those_found_row_by_row(num_features, max_steps, tolerance):
    """Far from 0, where the row farthest from a mean is not the longest."""
    rows = 4.0 + np.random.default_rng(0).standard_t(3, size=(60, num_features))
    options = {"attempts": 3, "max_steps": max_steps, "tolerance": tolerance}
    found = kmeans_in_a_box(rows, 8, np.random.default_rng(1), **options)
    expected, num_given = one_row_at_a_time(rows, 8, np.random.default_rng(1), **options)
    assert num_given > 0  # else the rule for empty clusters would not be seen
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)  # 32 bit


def test_groups_that_lie_apart_are_found():
    random = np.random.default_rng(0)
    middle = np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]])
    rows = np.concatenate([centre + random.normal(size=(40, 2)) for centre in middle])
    found = kmeans_in_a_box(rows, 3, random)
    distance = np.linalg.norm(found[:, None] - middle[None], axis=2)
    np.testing.assert_array_equal(np.sort(distance.argmin(axis=0)), [0, 1, 2])
    assert distance.min(axis=0).max() < 1


def test_most_centres_are_single_rows_in_many_dimensions():
    """Nearly all rows are nearest to few of the centres that are drawn."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 300)) * np.where(random.random((400, 300)) < 0.01, 20.0, 1.0)
    found = kmeans_in_a_box(rows, 20, random)
    is_row = np.isclose(found[:, None], rows[None], atol=1e-4).all(axis=2).any(axis=1)
    assert is_row.sum() > 10


def test_as_many_centres_as_rows_are_the_rows():
    rows = np.arange(6.0).reshape(3, 2) * 10
    found = kmeans_in_a_box(rows, 3, np.random.default_rng(0))
    np.testing.assert_allclose(found[np.argsort(found[:, 0])], rows)


def test_more_centres_than_rows_are_refused():
    with pytest.raises(ValueError, match="num_centres is 4; expected 1 to 3, the rows"):
        kmeans_in_a_box(np.zeros((3, 2)), 4, np.random.default_rng(0))
