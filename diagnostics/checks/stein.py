"""Kernel Stein discrepancy: draws against the model's own density, without a reference.

For draws x of the density p with score s = ∇ log p, the mean of the Stein kernel

.. code-block:: text

    h(x, y) = s(x)ᵀs(y) k + s(x)ᵀ∇_y k + s(y)ᵀ∇_x k + tr ∇_x∇_y k

over pairs is 0, and above 0 for draws of any other; k(x, y) = (P + ‖x − y‖²)^(−½) in coordinates
that are whitened by the draws. The normalising constant of p is not needed. A mode that no draw is
near to goes unnoticed.

References
----------
Liu, Lee and Jordan (2016), A kernelized Stein discrepancy; Gorham and Mackey (2017), for this k;
Chwialkowski, Strathmann and Gretton (2016), for the wild bootstrap.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from ...inference.gaussian import WhitenedProgram, whitened_draws
from ...models.model import Draws
from ...models.numerics.draws import over_draws

__all__ = ["SteinTest", "stein_test"]

_BOOTSTRAPS = 999


class SteinTest(NamedTuple):
    """Whether draws may be of a density.

    Attributes
    ----------
    discrepancy : float
        Mean of the Stein kernel over pairs of draws, per coordinate.
    error : float
        Its standard deviation if the draws are of the density.
    p_value : float
        Of so large a discrepancy by chance.
    num_draws : int
    """

    discrepancy: float
    error: float
    p_value: float
    num_draws: int


def stein_test(
    target_density: WhitenedProgram, draws: Draws, *, random: np.random.Generator
) -> SteinTest | None:
    """Test draws against a density by its score.

    Parameters
    ----------
    target_density : WhitenedProgram
    draws : dict of arrays
        Independent, or nearly so: of the model's latent sites, draws first.
    random : Generator
        Of the bootstrap.

    Returns
    -------
    SteinTest or None
        None if the draws have no covariance or a score is not finite.
    """
    vectors = whitened_draws(target_density, draws)
    scores = over_draws(_score, {"vector": vectors}, target_density)
    if not np.isfinite(scores).all():
        return None
    try:
        root = cholesky(np.atleast_2d(np.cov(vectors.T)), lower=True)
    except LinAlgError:
        return None
    whitened = solve_triangular(root, (vectors - vectors.mean(axis=0)).T, lower=True).T
    kernel = stein_kernel(whitened, scores @ root) / target_density.size
    number = len(kernel)
    np.fill_diagonal(kernel, 0.0)
    discrepancy = kernel.sum() / (number * (number - 1))
    signs = random.choice([-1.0, 1.0], size=(_BOOTSTRAPS, number))
    by_chance = np.sum((signs @ kernel) * signs, axis=1) / (number * (number - 1))
    return SteinTest(
        discrepancy=float(discrepancy),
        error=float(by_chance.std(ddof=1)),
        p_value=float((1 + np.sum(by_chance >= discrepancy)) / (1 + _BOOTSTRAPS)),
        num_draws=number,
    )


def _score(site: dict[str, Array], target_density: WhitenedProgram) -> Float[Array, " P"]:
    return jax.grad(target_density.log_density)(site["vector"])


def stein_kernel(
    points: Float[np.ndarray, "S P"], scores: Float[np.ndarray, "S P"]
) -> Float[np.ndarray, "S S"]:
    """h(x, y) of all pairs of points.

    Parameters
    ----------
    points, scores : arrays (S, P)

    Returns
    -------
    array (S, S)
    """
    size = points.shape[1]
    squared = np.sum(points**2, axis=1)
    distance = np.maximum(squared[:, None] + squared - 2 * points @ points.T, 0.0)
    base = 1 / (size + distance)
    kernel = np.sqrt(base)
    along = scores @ points.T  # s(x)ᵀy
    own = np.diagonal(along)[:, None]
    # s(x)ᵀ(x − y): ∇_y k is a multiple of x − y. The transpose has the term of ∇_x k.
    drift = own - along
    return scores @ scores.T * kernel + kernel * base * (
        drift + drift.T + size - 3 * distance * base
    )
