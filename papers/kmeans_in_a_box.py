"""k-means as OpenCV has it, from centres drawn in the box that holds all rows.

In many dimensions such a start is far from all rows. All but a few of them are then nearest to one
or two centres, and the other centres are each given one row, the farthest from the largest cluster.
Ten updates do not change that. Scripts that call ``cv2.kmeans`` with ``KMEANS_RANDOM_CENTERS`` have
these centres, and not those of k-means from random rows.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array

__all__ = ["kmeans_in_a_box"]


def kmeans_in_a_box(
    rows: Float[np.ndarray, "N D"],
    num_centres: int,
    random: np.random.Generator,
    *,
    attempts: int = 10,
    max_steps: int = 10,
    tolerance: float = 1.0,
) -> Float[np.ndarray, "M D"]:
    """Centres of the attempt with the least sum of squared distances.

    Parameters
    ----------
    rows : array (N, D)
    num_centres : int
        M, at most N.
    random : Generator
        Of the first centres.
    attempts : int
        From other first centres.
    max_steps : int
        Of one attempt; the first draws the centres and gives each row to one.
    tolerance : float
        An attempt ends after a step in which no centre moves farther.

    Returns
    -------
    array (M, D)

    Raises
    ------
    ValueError
        If there are more centres than rows.
    """
    if not 1 <= num_centres <= len(rows):
        raise ValueError(f"num_centres is {num_centres}; expected 1 to {len(rows)}, the rows")
    rows = np.asarray(rows, np.float32)  # OpenCV has no other
    squared_norms = np.einsum("nd,nd->n", rows, rows)
    found = []
    for _ in range(attempts):
        label, centres = np.zeros(len(rows), int), _drawn(rows, num_centres, random)
        for _ in range(max_steps - 1):
            label = _nearest(rows, centres)
            former, centres = centres, _means(rows, squared_norms, label, num_centres)
            if np.sum((centres - former) ** 2, axis=1).max() <= tolerance**2:
                break
        # Rows keep the labels that the centres are the means of, as in OpenCV.
        found.append((float(np.sum((rows - centres[label]) ** 2)), centres))
    return min(found, key=lambda attempt: attempt[0])[1]


def _drawn(
    rows: Float[np.ndarray, "N D"], num_centres: int, random: np.random.Generator
) -> Float[np.ndarray, "M D"]:
    """Uniform in the box of all rows, which is longer by 1/D at both ends of each side."""
    margin = 1 / rows.shape[1]
    low, high = rows.min(axis=0), rows.max(axis=0)
    uniform = random.random((num_centres, rows.shape[1]))
    return (low + ((1 + 2 * margin) * uniform - margin) * (high - low)).astype(rows.dtype)


def _nearest(
    rows: Float[np.ndarray, "N D"], centres: Float[np.ndarray, "M D"]
) -> Int[np.ndarray, " N"]:
    return np.argmin(np.sum(centres**2, axis=1) - rows @ (2 * centres.T), axis=1)


def _means(
    rows: Float[np.ndarray, "N D"],
    squared_norms: Float[np.ndarray, " N"],
    label: Int[np.ndarray, " N"],
    num_centres: int,
) -> Float[np.ndarray, "M D"]:
    """Means of the rows of each label; ``label`` is changed where a cluster has none.

    It then takes the row that is farthest from the mean of the largest cluster.
    """
    size = np.bincount(label, minlength=num_centres)
    ones = np.ones(len(rows), rows.dtype)
    total = csr_array((ones, (label, np.arange(len(rows)))), (num_centres, len(rows))) @ rows
    for empty in np.flatnonzero(size == 0):
        largest = int(np.argmax(size))
        mean = total[largest] / rows.dtype.type(size[largest])
        distance = squared_norms - rows @ (2 * mean)  # up to ‖mean‖²
        members = np.flatnonzero(label == largest)[::-1]
        farthest = members[np.argmax(distance[members])]  # OpenCV takes the last of equals
        label[farthest] = empty
        size[largest], size[empty] = size[largest] - 1, 1
        total[empty] = rows[farthest]
        total[largest] -= rows[farthest]
    return total / size.astype(rows.dtype)[:, None]
