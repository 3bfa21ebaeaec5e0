"""Metrics of Hamiltonian Monte Carlo: the curvature at a mode, and what draws of a warm-up say.

NUTS moves a point of P coordinates as if it had a mass. The nearer the inverse mass matrix is to
the posterior's covariance, the fewer steps a trajectory takes. Any positive definite matrix leaves
the draws exact.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cholesky, solve_triangular
from jaxtyping import Array, Float, Int
from numpyro.infer.hmc_util import welford_covariance

from ..datasets.arguments import one_of
from ..models.numerics.lbfgs import Minimum
from .gaussian import WhitenedProgram
from .modes import mode_from

__all__ = [
    "LARGEST_DENSE",
    "MASS_MATRIX",
    "FisherMoments",
    "MassMatrix",
    "covariance_factor",
    "curvature_and_misfit",
    "curvature_metric",
    "low_rank_metric",
]

type MassMatrix = Literal["auto", "diagonal", "dense", "low_rank", "laplace"]

MASS_MATRIX = one_of(*get_args(MassMatrix.__value__))

# Coordinates beyond which P² numbers a leapfrog step cost more than they save.
LARGEST_DENSE = 1000
# Newton steps to a mode, as in `laplace`.
_MAX_STEPS = 200
# Curvature below which a direction counts as this flat: ten prior sds of a whitened coordinate.
_LEAST_CURVATURE = 1e-2
# Variances of directions that a window's draws do not reach, in units of the diagonal metric's.
_REGULARISATION = 1e-5
# Variances nearer to the diagonal metric's than this factor are not told from noise.
_CUTOFF = 2.0
# Draws of Laplace's approximation that judge it.
_PILOT_DRAWS = 100


def curvature_metric(target_density: WhitenedProgram) -> Float[Array, "P P"]:
    """H⁻¹, the inverse curvature of −log p at the mode that is found from the prior mean.

    Where the search ends at no mode, curvatures count by their size, and small ones as 0.01.

    Parameters
    ----------
    target_density : WhitenedProgram

    Returns
    -------
    array (P, P)
        Positive definite.
    """
    return _inverse(_mode(target_density).hessian)


def curvature_and_misfit(
    target_density: WhitenedProgram, key: Array
) -> tuple[Float[Array, "P P"], Float[Array, ""]]:
    """The curvature's metric, and how far Laplace's approximation q is from the posterior p.

    D = E_q ‖Lᵀ(∇ log p − ∇ log q)‖²/P, a Fisher divergence in the coordinates where q = N(m, LLᵀ)
    is standard: 0 if p is Gaussian, 1 if the error of the gradient is as large as the gradient.

    Parameters
    ----------
    target_density : WhitenedProgram
    key : JAX key
        Of 100 draws of q.

    Returns
    -------
    array (P, P)
    array ()
        D; not a number or infinite where the search for a mode fails.
    """
    found = _mode(target_density)
    metric = _inverse(found.hessian)
    return metric, _misfit(target_density, key, found.point, metric)


def _mode(target_density: WhitenedProgram) -> Minimum:
    """Find the mode by the compiled program of `laplace`, with as many steps."""
    return mode_from(target_density, target_density.origin, np.asarray(_MAX_STEPS))


@jax.jit
def _inverse(hessian: Float[Array, "P P"]) -> Float[Array, "P P"]:
    curvature, directions = jnp.linalg.eigh(hessian)
    variance = 1.0 / jnp.maximum(jnp.abs(curvature), _LEAST_CURVATURE)
    return (directions * variance) @ directions.T


@jax.jit
def _misfit(
    target_density: WhitenedProgram,
    key: Array,
    mode: Float[Array, " P"],
    metric: Float[Array, "P P"],
) -> Float[Array, ""]:
    factor = cholesky(metric, lower=True)
    noise = jax.random.normal(key, (_PILOT_DRAWS, target_density.size))
    gradients = jax.lax.map(
        lambda one: jax.grad(target_density.log_density)(mode + factor @ one), noise
    )
    # ∇ log q = −L⁻ᵀε
    return jnp.mean((gradients @ factor + noise) ** 2)


type _Moments = tuple[Float[Array, " P"], Float[Array, "P P"], Int[Array, ""]]

_no_moments, _updated, _ = welford_covariance(diagonal=False)


class FisherMoments(NamedTuple):
    """Moments of draws and of the gradients of log p there, as NumPyro keeps them.

    Attributes
    ----------
    draws, gradients : tuple
        Mean (P,), sums of products of deviations (P, P), and number of draws.
    """

    draws: _Moments
    gradients: _Moments

    @classmethod
    def empty(cls, size: int) -> FisherMoments:
        """Moments of nothing, of P = ``size`` coordinates."""
        return cls(_no_moments(size), _no_moments(size))

    def with_draw(self, draw: Float[Array, " P"], gradient: Float[Array, " P"]) -> FisherMoments:
        """The moments with one more draw."""
        return FisherMoments(_updated(draw, self.draws), _updated(gradient, self.gradients))


def low_rank_metric(moments: FisherMoments) -> Float[Array, "P P"]:
    """The inverse mass matrix of least Fisher divergence: diagonal, corrected in few directions.

    For a Gaussian, gradients are −Σ⁻¹(x − m), so that cov(x) = Σ cov(g) Σ for any set of draws. The
    diagonal metric solves this for each coordinate, σ² = √(var x / var g). In its units the
    geometric mean of cov(x) and cov(g)⁻¹ solves it for all; of its eigenvalues those count that
    differ from 1 by more than a factor of 2.

    Parameters
    ----------
    moments : FisherMoments
        Of at least 2 draws.

    Returns
    -------
    array (P, P)
        D (I + U(Λ − I)Uᵀ) D, positive definite.

    References
    ----------
    Seyboldt, Carlson and Carpenter (2026), arXiv 2603.18845.
    """
    of_draws, of_gradients = (scatter / number for _, scatter, number in moments)
    tiny = jnp.finfo(of_draws.dtype).tiny
    variances = jnp.maximum(jnp.diag(of_draws), tiny), jnp.maximum(jnp.diag(of_gradients), tiny)
    deviation = (variances[0] / variances[1]) ** 0.25
    slack = _REGULARISATION * jnp.eye(len(deviation))
    of_draws = of_draws / jnp.outer(deviation, deviation) + slack
    of_gradients = of_gradients * jnp.outer(deviation, deviation) + slack
    variance, directions = jnp.linalg.eigh(_geometric_mean_with_inverse(of_draws, of_gradients))
    is_seen = (variance > _CUTOFF) | (variance < 1.0 / _CUTOFF)
    variance = jnp.where(is_seen, variance, 1.0)
    scaled = deviation[:, None] * directions
    return (scaled * variance) @ scaled.T


def _geometric_mean_with_inverse(
    first: Float[Array, "P P"], second: Float[Array, "P P"]
) -> Float[Array, "P P"]:
    """Σ with Σ B Σ = A, for positive definite A and B."""
    lower = cholesky(second, lower=True)  # B = LLᵀ
    squared, directions = jnp.linalg.eigh(lower.T @ first @ lower)
    # Σ = L⁻ᵀ (LᵀAL)^½ L⁻¹
    half = solve_triangular(
        lower, directions * jnp.maximum(squared, 0.0) ** 0.25, trans=1, lower=True
    )
    return half @ half.T


def covariance_factor(vectors: Float[Array, "N P"]) -> Float[Array, "P P"]:
    """L with LLᵀ the covariance of many points, shrunk to its diagonal where they are few.

    Parameters
    ----------
    vectors : array (N, P)
        Of chains or particles at one time.

    Returns
    -------
    array (P, P)
        Lower triangular.
    """
    number, size = vectors.shape
    covariance = jnp.atleast_2d(jnp.cov(vectors, rowvar=False))
    shrinkage = size / (number + size)
    diagonal = jnp.diag(jnp.diag(covariance) + 1e-12)
    return cholesky((1 - shrinkage) * covariance + shrinkage * diagonal, lower=True)
