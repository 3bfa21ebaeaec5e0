"""Stochastic variational inference on the marginal program, with NumPyro's guides."""

from __future__ import annotations

import time
from difflib import get_close_matches
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax.stages import Compiled
from jaxtyping import Array, Float
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)

from ..datasets.bags import Bags
from ..models.model import Model, observations
from .chains import check_counts
from .gaussian import GaussianApproximation, WhitenedProgram, whitened_program
from .posterior import (
    Posterior,
    Status,
    approximate_posterior,
    random_key,
)
from .progress import Progress

__all__ = ["svi"]

type Guide = Literal["multivariate_normal", "normal", "low_rank_multivariate_normal"]
_GUIDES: dict[Guide, type[AutoContinuous]] = {
    "multivariate_normal": AutoMultivariateNormal,
    "normal": AutoDiagonalNormal,
    "low_rank_multivariate_normal": AutoLowRankMultivariateNormal,
}
# Steps between two looks at the bar.
_BLOCK = 100
# Nats. The bound of a Gaussian whose mean is one sd off is lower by as much.
_SETTLED = 0.5
_SLOPE_DRAWS = 256


def svi(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    guide: Guide = "multivariate_normal",
    max_steps: int = 4000,
    learning_rate: float = 0.02,
    num_particles: int = 8,
    num_draws: int = 1000,
    progress: bool = False,
) -> Posterior:
    """Fit a Gaussian by stochastic gradients of the ELBO of the exact marginal program.

    The bound is the true ELBO of the marginal posterior: no Jaakkola, no mean field over labels.
    What the guide cannot say (skewness, and correlations for ``"normal"``) is all that it loses.
    Adam's learning rate falls to zero along a cosine.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
    guide : {"multivariate_normal", "normal", "low_rank_multivariate_normal"}
        A Gaussian in whitened, unconstrained coordinates.
    max_steps : int
        Rounded up to hundreds.
    learning_rate : float
        Of the first step.
    num_particles : int
        Draws per step of the gradient estimate.
    num_draws : int
        Draws of the approximation kept in the tree.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior
        ``elbo`` is the mean of the stochastic bound over blocks of 100 steps. ``status`` is
        ``converged`` if by its slope at the end less than half a nat is lacking in the mean and
        the overall scale of q. (Its trace ends flat in any case: the learning rate falls to zero.)

    Raises
    ------
    ValueError
        If the guide is unknown or a count is not positive.
    """
    observations(model, bags, "svi")
    _check(guide)
    check_counts(max_steps=max_steps, num_particles=num_particles, num_draws=num_draws)
    if not 0 < learning_rate < np.inf:
        raise ValueError(f"learning_rate is {learning_rate}; expected a positive finite number")
    run_key, draw_key, slope_key = jax.random.split(random_key(seed), 3)
    with jax.enable_x64(True):
        target = whitened_program(model, bags)
        law = _GUIDES[guide](target.program)
        schedule = optax.cosine_decay_schedule(learning_rate, max_steps)
        optimiser = SVI(target.program, law, optax.adam(schedule), Trace_ELBO(num_particles))
        started = time.perf_counter()
        state = optimiser.init(run_key, bags)
        run_block = _compiled_block(optimiser, state, bags)
        compile_seconds = time.perf_counter() - started
        started = time.perf_counter()
        blocks = []
        with Progress("svi", max_steps, shown=progress) as bar:
            for _ in range(-(-max_steps // _BLOCK)):
                state, losses = run_block(state)
                blocks.append(-np.asarray(losses))
                bar.advance(_BLOCK)
        seconds = time.perf_counter() - started
        approximation = _gaussian(law, optimiser.get_params(state))
        status = _judge(target, approximation, len(blocks) * _BLOCK, slope_key)
    return approximate_posterior(
        model,
        bags,
        approximation,
        engine="svi",
        key=draw_key,
        num_draws=num_draws,
        status=status,
        seconds=seconds,
        compile_seconds=compile_seconds,
        elbo=np.array([block.mean() for block in blocks]),
    )


def _check(guide: str) -> None:
    if guide not in _GUIDES:
        near = get_close_matches(guide, _GUIDES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"guide is {guide!r}; expected one of {', '.join(_GUIDES)}{hint}")


def _compiled_block(optimiser: SVI, state: object, bags: Bags) -> Compiled:
    def block(state: object) -> tuple[object, Float[Array, " _"]]:
        return jax.lax.scan(lambda s, _: optimiser.update(s, bags), state, length=_BLOCK)

    return jax.jit(block).lower(state).compile()


def _gaussian(law: AutoContinuous, parameters: dict[str, Array]) -> GaussianApproximation:
    with numpyro.validation_enabled(False):  # parameters that diverged are told by the status
        posterior = law.get_posterior(parameters)
    covariance = (
        jnp.atleast_2d(posterior.covariance_matrix)
        if hasattr(posterior, "covariance_matrix")
        else jnp.diag(posterior.variance)
    )
    return GaussianApproximation(
        np.asarray(posterior.mean), np.asarray(jnp.linalg.cholesky(covariance))
    )


def _judge(
    target: WhitenedProgram, approximation: GaussianApproximation, steps: int, key: Array
) -> Status:
    """Whether the bound is at its top: by its slope there, as its trace stands still anyway."""
    gain = _newton_gain(target, approximation, key)
    if not np.isfinite(gain):
        return Status("failed", f"the bound or its slope is not finite after {steps} steps")
    sentence = (
        f"after {steps} steps a Newton step in mean and scale would raise the bound by about "
        f"{gain:.2g} nats"
    )
    return Status("converged" if gain < _SETTLED else "max_steps", sentence)


def _newton_gain(target: WhitenedProgram, law: GaussianApproximation, key: Array) -> float:
    """What the bound lacks in the mean and the overall scale of q = N(m, LLᵀ), if p is Gaussian.

    With v = m + Lε, ε ~ N(0, I) and g = Lᵀ∇log p(v) the slopes are s = E g and d = E gᵀε + P; at
    the top both vanish. The curvatures there are −1 and −2P, hence the gain ½‖s‖² + d²/(4P).
    """
    mean, scale_tril = jnp.asarray(law.mean), jnp.asarray(law.scale_tril)
    white = jax.random.normal(key, (_SLOPE_DRAWS, mean.size), mean.dtype)  # ε

    def scaled_slope(noise: Array) -> Array:
        return scale_tril.T @ jax.grad(target.log_density)(mean + scale_tril @ noise)

    slopes = jax.jit(lambda w: jax.lax.map(scaled_slope, w, batch_size=16))(white)
    # Where q is right g = −ε: the sum varies less than g, and has the same mean.
    centred = slopes + white
    by_chance = jnp.sum(jnp.var(centred, axis=0)) / _SLOPE_DRAWS
    in_mean = 0.5 * jnp.maximum(jnp.sum(jnp.mean(centred, axis=0) ** 2) - by_chance, 0.0)
    stretch = jnp.mean(jnp.sum(slopes * white, axis=1) + mean.size)  # d
    return float(in_mean + stretch**2 / (4 * mean.size))
