"""Laplace's approximation at the mode of the marginal program."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from ..datasets.bags import Bags
from ..models.model import Model, observations, random_key
from ..models.numerics.lbfgs import Minimum
from .arguments import engine
from .empirical_bayes import Learned, learn_by_evidence
from .gaussian import GaussianApproximation, whitened_program
from .modes import AT_REST, check_smooth, mode_from
from .posterior import (
    Posterior,
    Status,
    approximate_posterior,
)
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch
from .runtime.progress import Progress

__all__ = ["laplace"]


@engine
def laplace(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    max_steps: int = 200,
    learn_hyperparameters: bool = False,
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
    learn_hyperparameters : bool
        Whether hyper-parameters are learned by Laplace's log evidence first (empirical Bayes), from
        the model's own numbers on; those that have a prior go to their posterior mode, from
        the prior's median. See `learn_by_evidence`.
    num_draws : int
        Draws of the approximation kept in the tree.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior
        ``status`` is ``failed`` if the curvature at the end is not that of a mode. Of learned
        hyper-parameters, ``model`` has the values.

    Raises
    ------
    ValueError
        If a site has a Laplace prior, whose density has no curvature at 0.

    Examples
    --------
    Positive bags have an instance near 3:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = laplace(model, bags, seed=0)
    >>> new = Bags.from_list([[[2.9]], [[0.1]]])
    >>> posterior.predict(new).bag_probability.round(1)
    array([0.8, 0.3])
    """
    watch = Stopwatch()
    observations(model, bags, "laplace")
    check_number_of_unknowns(model, "laplace")
    key = random_key(seed)
    learned = None
    with jax.enable_x64(True):
        started = Stopwatch.now()
        if learn_hyperparameters:
            learned = learn_by_evidence(model, bags, max_steps)
            model = learned.model
        target_density = jax.device_put(whitened_program(model, bags))
        check_smooth(target_density)
        with Progress("laplace", max_steps, shown=progress) as bar:
            found = mode_from(target_density, target_density.origin, np.asarray(max_steps))
            bar.advance(int(found.num_steps))
        approximation, status = _gaussian_at(found, max_steps)
        if learned is not None:
            status = _status_of(learned, status)
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


def _status_of(learned: Learned, status: Status) -> Status:
    """How the search for the mode ended, and the one for the hyper-parameters before it."""
    found = f"Laplace's log evidence {learned.log_evidence:.2f} after {learned.num_steps} steps"
    if status.kind != "converged" or not learned.complaint:
        return Status(status.kind, f"{status.sentence}; {found}")
    return Status("max_steps", f"{learned.complaint}; {found}")
