"""Pathfinder: the best Gaussian along each of several paths to a mode, and their mixture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ..datasets.bags import Bags
from ..models.model import Model, observations, random_key, split_key
from ..models.numerics.tracing import as_pytree
from . import serialization
from .arguments import engine
from .gaussian import FlatApproximation, WhitenedProgram, whitened_program
from .posterior import Posterior, Status, approximate_posterior
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch

__all__ = ["MixtureApproximation", "pathfinder"]

# Draws that judge the Gaussian of a step, as in Stan.
_ELBO_DRAWS = 25


@serialization.register
@as_pytree()
@dataclass(frozen=True, eq=False)
class MixtureApproximation(FlatApproximation):
    """q = Σ_k N(means_k, L_k L_kᵀ)/K over the flat vector of ``whitened_program``.

    Attributes
    ----------
    means : array (K, P)
    scale_trils : array (K, P, P)
        L_k.
    """

    means: Float[np.ndarray | Array, "K P"]
    scale_trils: Float[np.ndarray | Array, "K P P"]

    def distribution(self) -> dist.MixtureSameFamily:
        """q over the flat vector."""
        number = len(self.means)
        components = dist.MultivariateNormal(
            jnp.asarray(self.means), scale_tril=jnp.asarray(self.scale_trils), validate_args=False
        )
        weights = dist.Categorical(probs=jnp.full(number, 1.0 / number))
        return dist.MixtureSameFamily(weights, components, validate_args=False)


class _Path(NamedTuple):
    """The Gaussian of the highest ELBO along a path."""

    mean: Float[Array, " P"]
    scale_tril: Float[Array, "P P"]
    elbo: Float[Array, ""]


@engine
def pathfinder(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    num_paths: int = 8,
    max_steps: int = 100,
    num_draws: int = 1000,
) -> Posterior:
    """Approximate the posterior by Gaussians along quasi-Newton paths, one of each path.

    Each path of L-BFGS starts at a random point and leads to a mode of ``model.marginal()`` in
    whitened, unconstrained coordinates. Its gradients give a Gaussian at every step; that of the
    highest ELBO is taken. q is the mixture of the Gaussians of all paths, with equal weights, as
    multi-path Pathfinder draws from before it weights; `importance_resample` does the latter.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
    num_paths : int
    max_steps : int
        Of a path.
    num_draws : int
        Draws of the approximation kept in the tree.

    Returns
    -------
    Posterior
        ``status`` has the ELBO of the best and of the worst path; those without a finite one are
        left out.

    References
    ----------
    Zhang, Carpenter, Gelman and Vehtari (2022).

    Examples
    --------
    Positive bags have an instance near 3:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import pathfinder
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = pathfinder(model, bags, seed=0, num_paths=2)
    >>> new = Bags.from_list([[[2.9]], [[0.1]]])
    >>> (posterior.predict(new).bag_probability > 0.5).astype(int)  # predicted labels
    array([1, 0])
    """
    watch = Stopwatch()
    observations(model, bags, "pathfinder")
    check_number_of_unknowns(model, "pathfinder")
    path_key, draw_key = split_key(random_key(seed), 2)
    with jax.enable_x64(True):
        target_density = jax.device_put(whitened_program(model, bags))
        started = Stopwatch.now()
        paths = jax.tree.map(np.asarray, _paths(target_density, path_key, num_paths, max_steps))
        approximation, status = _mixture(paths)
        seconds = Stopwatch.now() - started
    return approximate_posterior(
        model,
        bags,
        approximation,
        engine="pathfinder",
        key=draw_key,
        num_draws=num_draws,
        status=status,
        seconds=seconds,
        watch=watch,
        elbo=None,
    )


@partial(jax.jit, static_argnames=("num_paths", "max_steps"))
def _paths(target_density: WhitenedProgram, key: Array, num_paths: int, max_steps: int) -> _Path:
    """The best Gaussians of all paths, paths first."""
    return jax.lax.map(
        lambda one: _best_on_path(target_density, one, max_steps), jax.random.split(key, num_paths)
    )


def _best_on_path(target_density: WhitenedProgram, key: Array, max_steps: int) -> _Path:
    from blackjax.optimizers.lbfgs import bfgs_sample
    from blackjax.vi.pathfinder import approximate

    start_key, path_key, elbo_key = jax.random.split(key, 3)
    start = target_density.random_starts(start_key, 1)[0]
    _, info = approximate(path_key, target_density.log_density, start, 1, maxiter=max_steps)
    path = info.path

    # Not by blackjax's own ELBO: it puts the mean at θ + Σ∇f with f = −log p, uphill of θ in f.
    # One step at a time: the draws of all steps together would not fit for many instances.
    def elbo(step):
        state, own = step
        gradient = -state.grad_position
        factors = (state.alpha, state.beta, state.gamma)
        draws, log_q = bfgs_sample(own, _ELBO_DRAWS, state.position, gradient, *factors)
        return jnp.mean(jax.vmap(target_density.log_density)(draws) - log_q)

    elbos = jax.lax.map(elbo, (path, jax.random.split(elbo_key, max_steps + 1)))
    elbos = jnp.where(jnp.isfinite(elbos), elbos, -jnp.inf)
    best = jax.tree.map(lambda values: values[jnp.argmax(elbos)], path)
    # Σ = diag(α) + βγβᵀ, the inverse Hessian of L-BFGS; a step of Newton leads to the mean.
    covariance = jnp.diag(best.alpha) + best.beta @ best.gamma @ best.beta.T
    mean = best.position - covariance @ best.grad_position
    return _Path(mean, jnp.linalg.cholesky(covariance), jnp.max(elbos))


def _mixture(paths: _Path) -> tuple[MixtureApproximation, Status]:
    """The mixture of the paths with a finite ELBO."""
    is_finite = np.isfinite(paths.elbo) & np.isfinite(paths.scale_tril).all(axis=(1, 2))
    if not is_finite.any():
        size = paths.mean.shape[1]
        nowhere = MixtureApproximation(np.zeros((1, size)), np.eye(size)[None])
        return nowhere, Status("failed", "no path has a Gaussian of finite ELBO")
    elbo = paths.elbo[is_finite]
    number = f"{is_finite.sum()} of {len(is_finite)} paths"
    sentence = f"{number}, ELBO {elbo.min():.2f} to {elbo.max():.2f}"
    approximation = MixtureApproximation(paths.mean[is_finite], paths.scale_tril[is_finite])
    return approximation, Status("converged", sentence)
