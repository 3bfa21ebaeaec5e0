"""Laplace's approximation at the mode of the marginal program."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import OptimizeResult, minimize

from ..datasets.bags import Bags
from ..models.model import Model, Program, observations, random_key
from .chains import check_counts
from .gaussian import GaussianApproximation, slopes_at_kinks, whitened_program
from .posterior import (
    Posterior,
    Status,
    approximate_posterior,
)
from .programs import check_number_of_unknowns
from .progress import Progress
from .runtime.programs import Stopwatch

__all__ = ["check_smooth", "laplace"]


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
    is found from the prior mean of u by Newton steps in a trust region.

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
        started = Stopwatch.now()
        target = whitened_program(model, bags)
        check_smooth(target.program, bags)
        value_and_gradient, hessian = _compiled_derivatives(target.log_density, target.origin)
        started = Stopwatch.now()
        with Progress("laplace", max_steps, shown=progress) as bar:
            found = minimize(
                value_and_gradient,
                np.asarray(target.origin),
                jac=True,
                hess=hessian,
                method="trust-exact",
                callback=lambda _: bar.advance(1),
                options={"maxiter": max_steps, "gtol": 1e-6},
            )
        approximation, status = _gaussian_at(found, hessian(found.x))
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


def check_smooth(program: Program, bags: Bags) -> None:
    """Refuse a density without curvature at 0.

    Raises
    ------
    ValueError
        If a site of the whitened program has a Laplace prior.
    """
    if slopes_at_kinks(program, bags).any():
        raise ValueError(
            "the prior of some site is a Laplace distribution, whose density has a kink at 0 and "
            "no curvature: laplace needs a smooth one; give a Normal prior "
            "(weight_prior='normal'), or use maximum_a_posteriori, svi or nuts"
        )


def _compiled_derivatives(
    log_density: Callable[[Float[Array, " P"]], Float[Array, ""]], start: Float[Array, " P"]
) -> tuple[Callable, Callable]:
    """Value with gradient, and Hessian, of −log p."""

    def loss(vector: Float[Array, " P"]) -> Float[Array, ""]:
        return -log_density(vector)

    value_and_gradient = jax.jit(jax.value_and_grad(loss)).lower(start).compile()
    hessian = jax.jit(jax.hessian(loss)).lower(start).compile()

    def as_numpy(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(jnp.asarray(vector))
        return float(value), np.asarray(gradient)

    return as_numpy, lambda vector: np.asarray(hessian(jnp.asarray(vector)))


def _gaussian_at(
    found: OptimizeResult, precision: Float[np.ndarray, "P P"]
) -> tuple[GaussianApproximation, Status]:
    """N(mode, precision⁻¹), with a lower factor of the covariance."""
    try:
        upper = cholesky(precision[::-1, ::-1], lower=True)[::-1, ::-1]  # precision = UUᵀ
    except LinAlgError:
        sentence = "the Hessian at the end of the search is not positive definite: no mode"
        identity = np.eye(len(found.x))
        return GaussianApproximation(found.x, identity), Status("failed", sentence)
    # precision⁻¹ = U⁻ᵀU⁻¹, and U⁻ᵀ is lower triangular.
    scale_tril = solve_triangular(upper, np.eye(len(found.x)), lower=False).T
    slope = float(np.abs(found.jac).max())
    if found.success:
        status = Status("converged", f"mode after {found.nit} Newton steps, slope {slope:.1g}")
    else:
        status = Status("max_steps", f"slope still {slope:.1g} after {found.nit} Newton steps")
    return GaussianApproximation(found.x, np.ascontiguousarray(scale_tril)), status
