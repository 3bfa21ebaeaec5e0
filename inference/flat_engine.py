"""A sampler of a plain log density as an engine: the way in for samplers from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..datasets.arguments import check_counts, checked_seed
from ..datasets.bags import Bags
from ..models.model import Draws, Model, observations
from .arguments import engine
from .gaussian import WhitenedProgram, sites_of, whitened_program
from .posterior import Posterior, sampled_posterior
from .runtime.chains import ChainRun
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch

__all__ = ["FlatDensity", "flat_density", "flat_engine"]


@dataclass(frozen=True)
class FlatDensity:
    """A posterior as a density of one real vector v, for a sampler that knows no models.

    It is that of ``model.marginal()``. Sites with a Gaussian prior are whitened, so that they are
    standard Gaussian before there are data; others are mapped to the real line. Jacobians are in
    it. `flat_density` makes one.

    Attributes
    ----------
    budget : int
        Evaluations of the gradient that a sampler may use, all chains together.
    seed : int
        Of the sampler.

    Examples
    --------
    At the prior mean, v = 0, every label has probability ½, and the prior is N(0, I):

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import FlatDensity, flat_density
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> target_density: FlatDensity = flat_density(model, bags, seed=0, budget=1000)
    >>> target_density.dimension
    2
    >>> round(float(target_density.log_density(np.zeros(2))), 2)  # 4 log ½ − log 2π
    -4.61
    >>> np.asarray(target_density.gradient(np.zeros(2))).round(1)
    array([-2.6,  2.9])
    >>> target_density.sites(np.ones((1, 2)))["inducing_value"].round(1)
    array([[3., 3.]])
    """

    budget: int
    seed: int
    _target_density: WhitenedProgram = field(repr=False)

    @property
    def dimension(self) -> int:
        """The number P of coordinates."""
        return self._target_density.size

    @property
    def log_density(self) -> Callable[[Float[Array | np.ndarray, " P"]], Float[Array, ""]]:
        """v (P,) → log p(v, data), a function that JAX can trace and differentiate."""
        return Partial(_log_density, self._target_density)

    @property
    def gradient(self) -> Callable[[Float[Array | np.ndarray, " P"]], Float[Array, " P"]]:
        """v (P,) → the derivative of the log density (P,)."""
        return Partial(_gradient, self._target_density)

    def sites(self, vectors: Float[np.ndarray | Array, "*draws P"]) -> Draws:
        """The model's latent sites of flat vectors.

        Parameters
        ----------
        vectors : array (..., P)

        Returns
        -------
        dict of arrays
            With the same axes first.
        """
        with jax.enable_x64(True):
            flat = sites_of(
                self._target_density, np.reshape(vectors, (-1, self.dimension)).astype(float)
            )
        axes = np.shape(vectors)[:-1]
        return {name: of.reshape(*axes, *of.shape[1:]) for name, of in flat.items()}


def flat_density(model: Model, bags: Bags, *, seed: int, budget: int = 20_000) -> FlatDensity:
    """A posterior as a density of one real vector.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or what the model learns from.
    seed, budget : int
        What a sampler is told.

    Returns
    -------
    FlatDensity

    Raises
    ------
    ValueError
        If the bags lack what the model learns from.

    Examples
    --------
    A step along the gradient raises the density:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import flat_density
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> target_density = flat_density(model, bags, seed=0, budget=1000)
    >>> start = np.zeros(target_density.dimension)
    >>> end = start + 0.1 * np.asarray(target_density.gradient(start))
    >>> [round(float(target_density.log_density(v)), 1) for v in (start, end)]
    [-4.6, -3.5]
    """
    observations(model, bags, "flat_density")
    check_number_of_unknowns(model, "flat_density")
    with jax.enable_x64(True):
        return FlatDensity(budget, seed, jax.device_put(whitened_program(model, bags)))


# FlatDensity → draws (chain, draw, P).
type FlatSampler = Callable[[FlatDensity], Float[np.ndarray | Array, "C S P"]]


def flat_engine(sampler: FlatSampler, *, budget: int = 20_000) -> Callable[..., Posterior]:
    """Make an engine of a sampler that gets a log density and returns draws.

    Draws come back as the model's sites, so that all that judges a posterior judges this one.

    Parameters
    ----------
    sampler : callable
        `FlatDensity` → array (chains, draws, P).
    budget : int
        Evaluations of the gradient that it is told to use; nobody counts.

    Returns
    -------
    callable
        ``(model, bags, *, seed) → Posterior``, an engine of the sampler's name. It raises a
        ValueError if the array has another shape.

    Examples
    --------
    Independent draws of the prior, which is no posterior:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import flat_engine
    >>> from milzoo.models import RBF, VWSGP
    >>> def prior(target_density):
    ...     random = np.random.default_rng(target_density.seed)
    ...     return random.normal(size=(4, 100, target_density.dimension))
    >>> bags = Bags.from_list([np.eye(2), np.ones((1, 2)), -np.eye(2)], labels=[1, 1, 0])
    >>> posterior = flat_engine(prior)(VWSGP(RBF(1.0, 1.0), np.eye(2)), bags, seed=0)
    >>> posterior.engine, posterior.tree["posterior"]["inducing_value"].shape
    ('prior', (4, 100, 2))
    """
    check_counts(budget=budget)
    name = getattr(sampler, "__name__", type(sampler).__name__)

    @engine
    def run(model: Model, bags: Bags, *, seed: int) -> Posterior:
        watch = Stopwatch()
        target_density = flat_density(model, bags, seed=checked_seed(seed), budget=budget)
        started = Stopwatch.now()
        with jax.enable_x64(True):
            drawn = np.asarray(sampler(target_density))
        seconds = Stopwatch.now() - started
        if drawn.ndim != 3 or drawn.shape[2] != target_density.dimension:
            raise ValueError(
                f"{name} returned an array of shape {drawn.shape}; expected (chains, draws, "
                f"{target_density.dimension})"
            )
        found = ChainRun(
            target_density.sites(drawn), statistics={}, warmup_seconds=0.0, sampling_seconds=seconds
        )
        return sampled_posterior(model, bags, engine=name, run=found, watch=watch)

    run.__name__ = run.__qualname__ = name
    return run


def _log_density(
    target_density: WhitenedProgram, vector: Float[Array | np.ndarray, " P"]
) -> Float[Array, ""]:
    # Samplers may call from threads of their own, where 64 bit are not switched on.
    with jax.enable_x64(True):
        return _compiled_density(target_density, vector)


def _gradient(
    target_density: WhitenedProgram, vector: Float[Array | np.ndarray, " P"]
) -> Float[Array, " P"]:
    with jax.enable_x64(True):
        return _compiled_gradient(target_density, vector)


@jax.jit
def _compiled_density(
    target_density: WhitenedProgram, vector: Float[Array, " P"]
) -> Float[Array, ""]:
    return target_density.log_density(vector)


@jax.jit
def _compiled_gradient(
    target_density: WhitenedProgram, vector: Float[Array, " P"]
) -> Float[Array, " P"]:
    return jax.grad(target_density.log_density)(vector)
