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
from ..models.model import Model
from .chains import check_counts
from .gaussian import GaussianApproximation, whitened_program
from .posterior import (
    Posterior,
    Status,
    approximate_posterior,
    random_key,
    require_labels,
)
from .progress import Progress

__all__ = ["svi"]

type Guide = Literal["multivariate_normal", "normal", "low_rank_multivariate_normal"]
_GUIDES: dict[Guide, type[AutoContinuous]] = {
    "multivariate_normal": AutoMultivariateNormal,
    "normal": AutoDiagonalNormal,
    "low_rank_multivariate_normal": AutoLowRankMultivariateNormal,
}
# Steps between two looks at the bar; also the window of the stopping rule.
_BLOCK = 100


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
        With labels.
    seed : int or JAX key
    guide : {"multivariate_normal", "normal", "low_rank_multivariate_normal"}
        A Gaussian in whitened, unconstrained coordinates.
    max_steps : int
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
        ``converged`` if its last two blocks differ by less than their own noise.

    Raises
    ------
    ValueError
        If the guide is unknown or a count is not positive.
    """
    require_labels(bags, "svi")
    _check(guide, max_steps, num_particles)
    run_key, draw_key = jax.random.split(random_key(seed))
    with jax.enable_x64(True):
        program = whitened_program(model, bags).program
        law = _GUIDES[guide](program)
        schedule = optax.cosine_decay_schedule(learning_rate, max_steps)
        optimiser = SVI(program, law, optax.adam(schedule), Trace_ELBO(num_particles))
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
    return approximate_posterior(
        model,
        bags,
        approximation,
        engine="svi",
        key=draw_key,
        num_draws=num_draws,
        status=_judge(blocks),
        seconds=seconds,
        compile_seconds=compile_seconds,
        elbo=np.array([block.mean() for block in blocks]),
    )


def _check(guide: str, max_steps: int, num_particles: int) -> None:
    if guide not in _GUIDES:
        near = get_close_matches(guide, _GUIDES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"guide is {guide!r}; expected one of {', '.join(_GUIDES)}{hint}")
    check_counts(max_steps=max_steps, num_particles=num_particles)


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


def _judge(blocks: list[Float[np.ndarray, " _"]]) -> Status:
    if not np.isfinite(blocks[-1]).all():
        return Status("failed", "the stochastic bound is not finite")
    steps = len(blocks) * _BLOCK
    if len(blocks) < 2:
        return Status("max_steps", f"{steps} steps are too few to judge")
    rise = blocks[-1].mean() - blocks[-2].mean()
    noise = np.hypot(*(block.std(ddof=1) / np.sqrt(_BLOCK) for block in blocks[-2:]))
    sentence = f"over the last {_BLOCK} of {steps} steps the bound rose by {rise:.2g} ± {noise:.1g}"
    return Status("converged" if rise < 3 * noise else "max_steps", sentence)
