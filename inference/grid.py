"""The exact posterior of two numbers, on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import is_prng_key
from scipy.optimize import minimize

from ..datasets.bags import Bags
from ..datasets.padding import bucket
from ..models.model import Model, observations, random_key
from ..models.numerics.draws import map_draws
from ..models.numerics.tracing import as_pytree
from . import serialization
from .arguments import engine
from .gaussian import FlatApproximation, WhitenedProgram, whitened_program
from .posterior import Posterior, Status, approximate_posterior
from .runtime.chains import num_together
from .runtime.programs import Stopwatch

__all__ = ["GridApproximation", "grid"]

# Outside the grid the density is below e^−20 of its highest.
_DROP = 20.0
# Most steps that move a side of the grid outwards, each by half of its width before.
_MOST_MOVES = 60
# Points of a coarse grid along each axis, from which the sides are moved inwards.
_COARSE = 81
# How far the first looks go, in whitened coordinates: prior sds, of Gaussian sites.
_REACHES = (4.0, 16.0, 64.0)


@engine
def grid(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    num_points: int = 301,
    num_draws: int = 1000,
) -> Posterior:
    """Compute the posterior of two unknown numbers by summing its density on a grid.

    The grid is even in the unconstrained coordinates and reaches to where the density of
    ``model.marginal()`` is below e^−20 of its maximum, for all modes within 64 prior sds of the
    origin that are not too narrow. Sums over even points converge faster than any power of their
    distance: evidence and moments of a smooth density are exact but for the mass outside of the
    grid. Between the points the density is interpolated bilinearly: draws and their
    density are as exact as the points are close.

    Parameters
    ----------
    model : Model
        With two unknown numbers in ``marginal()``, such as `ScoreThreshold`.
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
        Of the draws in the tree.
    num_points : int
        In each direction.
    num_draws : int
        Kept in the tree.

    Returns
    -------
    Posterior
        ``elbo`` has one value: the log evidence itself.

    Raises
    ------
    ValueError
        If the model has another number of unknowns.

    Examples
    --------
    The evidence of a model with two unknown numbers is exact:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import grid
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = grid(model, bags, seed=0, num_points=101)
    >>> round(float(posterior.elbo[-1]), 2)  # log p(labels)
    -2.46
    >>> new = Bags.from_list([[[2.9]], [[0.1]]])
    >>> posterior.predict(new).bag_probability.round(1)
    array([0.9, 0.2])
    """
    watch = Stopwatch()
    observations(model, bags, "grid")
    if num_points < 3:
        raise ValueError(f"num_points is {num_points}; expected at least 3 to interpolate between")
    key = random_key(seed)
    with jax.enable_x64(True):
        target_density = jax.device_put(whitened_program(model, bags))
        if target_density.size != 2:
            raise ValueError(
                f"{type(model).__name__} has {target_density.size} unknown numbers in marginal(); "
                "grid is for 2: use nuts, svi or laplace"
            )
        density = partial(_at_points, target_density)
        started = Stopwatch.now()
        low, high = _box(density)
        axes = [np.linspace(low[n], high[n], num_points) for n in (0, 1)]
        values = density(_product(axes)).reshape(num_points, num_points)
        seconds = Stopwatch.now() - started
    cell = math.prod(float(axis[1] - axis[0]) for axis in axes)
    highest = float(values.max())
    log_evidence = highest + math.log(np.exp(values - highest).sum() * cell)
    approximation = GridApproximation(axes[0], axes[1], values - log_evidence)
    return approximate_posterior(
        model,
        bags,
        approximation,
        engine="grid",
        key=key,
        num_draws=num_draws,
        status=_status(values, log_evidence),
        seconds=seconds,
        watch=watch,
        elbo=np.array([log_evidence]),
    )


def _at_points(
    target_density: WhitenedProgram, points: Float[np.ndarray, "P 2"]
) -> Float[np.ndarray, " P"]:
    """Log density at any number of points, padded to a few numbers that are compiled for."""
    whole = np.zeros((bucket(len(points)), 2))
    whole[: len(points)] = points
    return np.asarray(_densities(target_density, whole))[: len(points)]


@jax.jit
def _densities(target_density: WhitenedProgram, points: Float[Array, "P 2"]) -> Float[Array, " P"]:
    return map_draws(target_density.log_density, points, num_together())


def _product(axes: list[np.ndarray]) -> Float[np.ndarray, "P 2"]:
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def _box(density: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Find a box; the density outside is below e^−20 of its maximum."""
    low, high = _first_box(density)
    for _ in range(_MOST_MOVES):
        axes = [np.linspace(low[n], high[n], _COARSE) for n in (0, 1)]
        values = density(_product(axes)).reshape(_COARSE, _COARSE)
        is_high = values > values.max() - _DROP
        sides = [_sides(axis, is_high.any(axis=1 - n)) for n, axis in enumerate(axes)]
        low, high = (np.array(side) for side in list(zip(*sides, strict=True))[:2])
        if all(has_converged for *_, has_converged in sides):
            break
    return low, high


def _first_box(density: Callable) -> tuple[np.ndarray, np.ndarray]:
    """A box around the mode and all points of high density on grids from narrow to wide.

    A posterior may have modes that no ascent from the origin finds.
    """
    axis = np.linspace(-1.0, 1.0, _COARSE)
    points = np.concatenate([reach * _product([axis, axis]) for reach in _REACHES])
    values = np.nan_to_num(density(points), nan=-np.inf)
    start = points[values.argmax()]
    found = minimize(lambda point: -density(point[None])[0], start, method="Nelder-Mead")
    counts = points[values > -found.fun - _DROP]
    corners = np.concatenate([counts, [found.x - 1.0, found.x + 1.0]])
    return corners.min(axis=0), corners.max(axis=0)


def _sides(axis: np.ndarray, is_high: np.ndarray) -> tuple[float, float, bool]:
    """New sides of the box, one grid point beyond those of high density, and whether they will do.

    Where points of high density reach a side, it moves outwards by half the width.
    """
    first, last = np.flatnonzero(is_high)[[0, -1]]
    out = 0.5 * (axis[-1] - axis[0])
    low = axis[first - 1] if first > 0 else axis[0] - out
    high = axis[last + 1] if last < len(axis) - 1 else axis[-1] + out
    reaches = first == 0 or last == len(axis) - 1
    return float(low), float(high), bool(not reaches and last - first > len(axis) // 2)


def _status(values: Float[np.ndarray, "G G"], log_evidence: float) -> Status:
    edge = np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]]).max()
    sentence = (
        f"log evidence {log_evidence:,.3f} on {values.shape[0]} × {values.shape[1]} points, the "
        f"density at the edge e^{edge - values.max():.0f} of the maximum"
    )
    return Status("converged" if edge < values.max() - 0.5 * _DROP else "max_steps", sentence)


class BilinearDistribution(Distribution):
    """A density on the plane, known at the points of an even grid, bilinear between them.

    Parameters
    ----------
    first, second : array (G,), (H,)
        The axes.
    log_density : array (G, H)
        log q at their points; normalised here.
    """

    arg_constraints = {"log_density": constraints.independent(constraints.real, 2)}
    support = constraints.real_vector
    reparametrized_params: list[str] = []
    pytree_data_fields = ("first", "second", "log_density")

    def __init__(
        self,
        first: Float[Array, " G"],
        second: Float[Array, " H"],
        log_density: Float[Array, "G H"],
    ) -> None:
        self.first, self.second = first, second
        self.step = jnp.stack([first[1] - first[0], second[1] - second[0]])
        # Each point is the peak of a tent whose volume is that of one cell.
        volume = jax.nn.logsumexp(log_density) + jnp.sum(jnp.log(self.step))
        self.log_density = log_density - volume
        super().__init__((), (2,), validate_args=False)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draws, of shape ``sample_shape + (2,)``: a grid point, and a triangular step from it."""
        assert is_prng_key(key) and key is not None
        point_key, step_key = jax.random.split(key)
        below = jnp.cumsum(jnp.exp(self.log_density - jnp.max(self.log_density)))
        mass = jax.random.uniform(point_key, sample_shape, below.dtype) * below[-1]
        which = jnp.searchsorted(below, mass)
        row, column = jnp.divmod(which, len(self.second))
        point = jnp.stack([self.first[row], self.second[column]], axis=-1)
        uniform = jax.random.uniform(step_key, (2, *point.shape), point.dtype)
        return point + self.step * (uniform[0] - uniform[1])  # triangular

    @validate_sample
    def log_prob(
        self, value: Float[Array, "... 2"], intermediates: list[Any] | None = None
    ) -> Float[Array, "..."]:
        """Log of the interpolated density; −∞ outside of the grid."""
        position = (value - jnp.stack([self.first[0], self.second[0]])) / self.step
        cells = jnp.array(self.log_density.shape) - 1
        corner = jnp.clip(jnp.floor(position), 0, cells - 1).astype(int)
        weight = position - corner
        terms = [
            self.log_density[corner[..., 0] + i, corner[..., 1] + j]
            + jnp.log(weight[..., 0] if i else 1 - weight[..., 0])
            + jnp.log(weight[..., 1] if j else 1 - weight[..., 1])
            for i in (0, 1)
            for j in (0, 1)
        ]
        is_inside = jnp.all((position >= 0) & (position <= cells), axis=-1)
        return jnp.where(is_inside, jax.nn.logsumexp(jnp.stack(terms), axis=0), -jnp.inf)


@serialization.register
@as_pytree()
@dataclass(frozen=True, eq=False)
class GridApproximation(FlatApproximation):
    """The posterior density at the points of a grid in unconstrained coordinates.

    Attributes
    ----------
    first, second : array (G,)
        The axes.
    log_posterior : array (G, G)
        log p(point | data), normalised.
    """

    first: Float[np.ndarray, " G"]
    second: Float[np.ndarray, " G"]
    log_posterior: Float[np.ndarray, "G G"]

    def distribution(self) -> BilinearDistribution:
        """q over the flat vector, interpolated between the points."""
        parts = (self.first, self.second, self.log_posterior)
        return BilinearDistribution(*(jnp.asarray(part) for part in parts))
