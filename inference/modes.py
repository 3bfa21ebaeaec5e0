"""Modes of whitened marginal programs, by damped Newton steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from ..models.numerics.lbfgs import Minimum, minimise_by_newton
from .gaussian import WhitenedProgram, kinks

__all__ = ["AT_REST", "FLAT", "check_smooth", "mode_from", "mode_of"]

# Gradient of the log density, whitened, up to which a mode is looked for.
FLAT = 1e-6
# And up to which it counts as one: rounding in the density may keep a search from the other.
AT_REST = 1e-3


def check_smooth(target_density: WhitenedProgram) -> None:
    """Refuse a density without curvature at 0; while JAX traces, none is seen and none refused.

    Raises
    ------
    ValueError
        If a site of the whitened program has a Laplace prior.
    """
    found = kinks(target_density)
    if not isinstance(found, Tracer) and np.asarray(found).any():
        raise ValueError(
            "the prior of some site is a Laplace distribution, whose density has a kink at 0 and "
            "no curvature: laplace needs a smooth one; give a Normal prior "
            "(weight_prior='normal'), or use maximum_a_posteriori, svi or nuts"
        )


def mode_of(
    target_density: WhitenedProgram, start: Float[Array, " P"], max_steps: int | Int[Array, ""]
) -> Minimum:
    """The mode of a whitened density that Newton's method finds from a start, traced.

    Parameters
    ----------
    target_density : WhitenedProgram
    start : array (P,)
    max_steps : int

    Returns
    -------
    Minimum
        Of −log p̃. Its Hessian is the precision of Laplace's approximation.
    """
    return minimise_by_newton(
        lambda vector: -target_density.log_density(vector), jnp.asarray(start), max_steps, FLAT
    )


mode_from = jax.jit(mode_of)
