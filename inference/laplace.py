"""Laplace's approximation at the mode of the marginal program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from ..datasets.bags import Bags
from ..models.model import Model, observations, random_key
from ..models.numerics.arguments import check_counts
from ..models.numerics.lbfgs import Minimum, minimise_by_newton
from .gaussian import GaussianApproximation, WhitenedProgram, kinks, whitened_program
from .posterior import (
    Posterior,
    Status,
    approximate_posterior,
)
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch
from .runtime.progress import Progress

__all__ = ["AT_REST", "FLAT", "check_smooth", "laplace", "mode_from", "mode_of"]

# Gradient of the log density, whitened, up to which a mode is looked for.
FLAT = 1e-6
# And up to which it counts as one: rounding in the density may keep a search from the other.
AT_REST = 1e-3


def laplace(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    max_steps: int = 200,
    num_draws: int = 1000,
    progress: bool = False,
) -> Posterior:
    """Approximate the posterior by a Gaussian with the mode and curvature of its density.

    The density is that of ``model.marginal()`` in whitened, unconstrained coordinates; the mode
    is found from the prior mean of u by damped Newton steps.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
        Of the draws in the tree.
    max_steps : int
    num_draws : int
        Draws of the approximation kept in the tree.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior
        ``status`` is ``failed`` if the curvature at the end is not that of a mode.

    Raises
    ------
    ValueError
        If a site has a Laplace prior, whose density has no curvature at 0.
    """
    watch = Stopwatch()
    observations(model, bags, "laplace")
    check_number_of_unknowns(model, "laplace")
    check_counts(max_steps=max_steps, num_draws=num_draws)
    key = random_key(seed)
    with jax.enable_x64(True):
        target = jax.device_put(whitened_program(model, bags))
        check_smooth(target)
        started = Stopwatch.now()
        with Progress("laplace", max_steps, shown=progress) as bar:
            found = mode_from(target, target.origin, np.asarray(max_steps))
            bar.advance(int(found.num_steps))
        approximation, status = _gaussian_at(found, max_steps)
        seconds = Stopwatch.now() - started
    return approximate_posterior(
        model,
        bags,
        approximation,
        engine="laplace",
        key=key,
        num_draws=num_draws,
        status=status,
        seconds=seconds,
        watch=watch,
        elbo=None,
    )


def check_smooth(target: WhitenedProgram) -> None:
    """Refuse a density without curvature at 0.

    Raises
    ------
    ValueError
        If a site of the whitened program has a Laplace prior.
    """
    if np.asarray(kinks(target)).any():
        raise ValueError(
            "the prior of some site is a Laplace distribution, whose density has a kink at 0 and "
            "no curvature: laplace needs a smooth one; give a Normal prior "
            "(weight_prior='normal'), or use maximum_a_posteriori, svi or nuts"
        )


def mode_of(
    target: WhitenedProgram, start: Float[Array, " P"], max_steps: int | Int[Array, ""]
) -> Minimum:
    """The mode of a whitened density that Newton's method finds from a start, traced.

    Parameters
    ----------
    target : WhitenedProgram
    start : array (P,)
    max_steps : int

    Returns
    -------
    Minimum
        Of −log p̃. Its Hessian is the precision of Laplace's approximation.
    """
    return minimise_by_newton(
        lambda vector: -target.log_density(vector), jnp.asarray(start), max_steps, FLAT
    )


mode_from = jax.jit(mode_of)


def _gaussian_at(found: Minimum, max_steps: int) -> tuple[GaussianApproximation, Status]:
    """N(mode, H⁻¹), with a lower factor of the covariance."""
    point, gradient, hessian = map(np.asarray, found[:3])
    identity = np.eye(len(point))
    try:
        upper = cholesky(hessian[::-1, ::-1], lower=True)[::-1, ::-1]  # H = UUᵀ
    except (LinAlgError, ValueError):
        sentence = "the Hessian at the end of the search is not positive definite: no mode"
        return GaussianApproximation(point, identity), Status("failed", sentence)
    # H⁻¹ = U⁻ᵀU⁻¹, and U⁻ᵀ is lower triangular.
    scale_tril = solve_triangular(upper, identity, lower=False).T
    largest, steps = float(np.abs(gradient).max()), int(found.num_steps)
    if largest <= AT_REST:
        sentence = f"mode after {steps} Newton steps, gradient {largest:.1g}"
        status = Status("converged", sentence)
    else:
        sentence = f"gradient still {largest:.1g} after {steps} Newton steps"
        status = Status("max_steps", sentence)
    return GaussianApproximation(point, np.ascontiguousarray(scale_tril)), status
