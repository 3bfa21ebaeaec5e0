"""Modes that no engine visited: optimisation from dispersed starts, and how much mass is there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.special import logsumexp
from scipy.stats import norm

from ...datasets.bags import Bags
from ...inference.evidence import why_not_one_density
from ...inference.gaussian import (
    WhitenedProgram,
    log_densities,
    whitened_draws,
    whitened_program,
)
from ...inference.importance import weighted_evidence
from ...inference.modes import mode_from
from ...models.model import Draws, Model, random_key

__all__ = ["Missed", "Modes", "find_modes"]

# Distances of the starts from the origin, in prior sds of each coordinate, on both sides of it.
_SCALES = (3.0, 30.0)
# Newton steps from each, and draws of an engine among which the one next to a mode is looked for.
_MOST_STEPS, _LOOKED_AT = 100, 1000
# Instances times unknown numbers up to which Hessians are quick.
_MOST_WORK = 2 * 10**6
# Two points are of one mode if they are this close, or if the density between them, at so many
# points, does not fall by more nats than this.
_SAME_POINT, _BETWEEN, _BARRIER = 1e-3, 30, 1.0
# Draws around each mode, and the smallest curvature that is followed: a flat direction is cut.
_DRAWS, _LEAST_CURVATURE = 1000, 0.1
# Error of a mode's log evidence where its weights do not work, in nats.
_UNKNOWN_ERROR = 1.0
# Mass that may be missed without a word.
_SMALL_MASS = 0.05


class _Mode(NamedTuple):
    """A local maximum, in whitened, unconstrained coordinates."""

    vector: Float[np.ndarray, " P"]
    hessian: Float[np.ndarray, "P P"]

    def principal(self) -> tuple[Float[np.ndarray, "P P"], Float[np.ndarray, " P"]]:
        """Axes, and an sd along each."""
        curvature, axes = np.linalg.eigh(self.hessian)
        return axes, 1 / np.sqrt(np.maximum(curvature, _LEAST_CURVATURE))

    def nearest(self, vectors: Float[np.ndarray, "S P"]) -> int:
        """The number of the vector that is fewest sds away."""
        axes, deviation = self.principal()
        standard = (vectors - self.vector) @ axes / deviation
        return int((standard**2).sum(axis=1).argmin())


class Missed(NamedTuple):
    """Modes that an engine did not visit.

    Attributes
    ----------
    mass : float
        Their part of the mass of all modes that were found.
    size : float
        Mean |value| of the model's sites at the largest of them.
    own_size : float
        The same at the largest mode that it visited.
    """

    mass: float
    size: float
    own_size: float

    @property
    def percent(self) -> str:
        """The mass in words."""
        return "over 99 %" if self.mass > 0.99 else f"{100 * self.mass:.0f} %"


@dataclass(frozen=True)
class Modes:
    """Modes of one posterior, and which of them each engine visited.

    Attributes
    ----------
    log_evidence, error : tuple of float
        Of the mass around each mode, by weights of a Gaussian there: a lower bound in expectation.
    size : tuple of float
        Mean |value| of the model's sites at each mode.
    visited : dict of tuple of bool
        By engine.
    """

    log_evidence: tuple[float, ...]
    error: tuple[float, ...]
    size: tuple[float, ...]
    visited: Mapping[str, tuple[bool, ...]]

    def missed(self, name: str) -> Missed | None:
        """What an engine missed; None if that is little, or within the errors."""
        here = np.array(self.visited.get(name, ()), dtype=bool)
        if here.all() or not here.any():
            return None
        value, error = np.array(self.log_evidence), np.array(self.error)
        inside, outside = (int(np.where(at, value, -np.inf).argmax()) for at in (here, ~here))
        log_odds = logsumexp(value[~here]) - logsumexp(value[here])
        doubt = 3 * math.hypot(error[inside], error[outside])
        # Not "smaller than": of a mass that is no number nothing is said.
        if not log_odds - doubt >= math.log(_SMALL_MASS / (1 - _SMALL_MASS)):
            return None
        mass = float(1 / (1 + np.exp(-log_odds)))
        return Missed(mass, self.size[outside], self.size[inside])


def find_modes(
    model: Model, bags: Bags, draws: Mapping[str, Draws], *, seed: int | Array
) -> Modes | None:
    """Look for modes from dispersed starts, and ask which of them the engines visited.

    Newton's method goes from four starts, 3 and 30 prior sds away, and from a draw of each engine,
    to a local maximum of the marginal density. Two of these are one mode if the density between
    them does not fall. Of several, each engine's draw next to a mode is followed too. The mass
    of a mode is the evidence by weights of a Gaussian there.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or targets.
    draws : dict of dict of arrays
        Latent sites by engine, draws first.
    seed : int or JAX key
        Of the starts and the weights.

    Returns
    -------
    Modes or None
        None where there is one mode, the sites are not identified (symmetric modes are one answer),
        or there are so many numbers that Hessians would take minutes.
    """
    if why_not_one_density(model):
        return None
    with jax.enable_x64(True):
        target_density = jax.device_put(whitened_program(model, bags))
    if target_density.size * bags.num_instances > _MOST_WORK:
        return None
    search = _Search(target_density, [])
    start_key, weight_key = jax.random.split(random_key(seed))
    shape = len(_SCALES), target_density.size
    directions = np.asarray(jax.random.normal(start_key, shape), dtype=float)
    for scale, direction in zip(_SCALES, directions, strict=True):
        search.follow(scale * direction)
        search.follow(-scale * direction)
    vectors = {
        name: whitened_draws(target_density, _evenly(model, sites, _LOOKED_AT))
        for name, sites in draws.items()
    }
    visited = {name: {search.follow(one[0])} for name, one in vectors.items()}
    if len(search.modes) < 2:
        return None
    for name, several in vectors.items():
        visited[name] |= {search.follow(several[mode.nearest(several)]) for mode in [*search.modes]}
    found = [_mass(target_density, mode, weight_key) for mode in search.modes]
    return Modes(
        log_evidence=tuple(value for value, _ in found),
        error=tuple(error for _, error in found),
        size=tuple(_size(target_density, mode) for mode in search.modes),
        visited={
            name: tuple(number in numbers for number in range(len(search.modes)))
            for name, numbers in visited.items()
        },
    )


def _evenly(model: Model, draws: Draws, number: int) -> Draws:
    """Draws evenly apart, of the latent sites."""
    available = len(next(iter(draws.values())))
    chosen = np.linspace(0, available - 1, min(number, available)).round().astype(int)
    return {name: np.asarray(draws[name])[chosen] for name in model.latent_sites}


@dataclass(frozen=True)
class _Search:
    """Modes found so far."""

    target_density: WhitenedProgram
    modes: list[_Mode]

    def follow(self, start: Float[np.ndarray, " P"]) -> int | None:
        """The number of the mode that a start leads to; None where the density is no number."""
        with jax.enable_x64(True):
            found = mode_from(self.target_density, np.asarray(start), np.asarray(_MOST_STEPS))
        vector, hessian = np.asarray(found.point), np.asarray(found.hessian)
        if not np.isfinite(hessian).all():
            return None
        for number, mode in enumerate(self.modes):
            if self._is_one(mode, vector):
                return number
        self.modes.append(_Mode(vector, hessian))
        return len(self.modes) - 1

    def _is_one(self, mode: _Mode, vector: Float[np.ndarray, " P"]) -> bool:
        if np.abs(mode.vector - vector).max() < _SAME_POINT:
            return True
        fraction = np.linspace(0.0, 1.0, _BETWEEN)[:, None]
        between = log_densities(
            self.target_density, mode.vector + fraction * (vector - mode.vector)
        )
        return bool(between.min() > min(between[0], between[-1]) - _BARRIER)


def _mass(target_density: WhitenedProgram, mode: _Mode, key: Array) -> tuple[float, float]:
    """Log evidence around a mode by weights of a Gaussian of its curvature, and its error."""
    axes, deviation = mode.principal()
    standard = np.asarray(jax.random.normal(key, (_DRAWS, target_density.size)), dtype=float)
    log_target_density = log_densities(
        target_density, mode.vector + (standard * deviation) @ axes.T
    )
    log_gaussian = norm.logpdf(standard).sum(axis=1) - np.log(deviation).sum()
    found = weighted_evidence(log_target_density, log_gaussian)
    return found.log_evidence, found.error if math.isfinite(found.error) else _UNKNOWN_ERROR


def _size(target_density: WhitenedProgram, mode: _Mode) -> float:
    """Mean |value| of the sites at a mode."""
    with jax.enable_x64(True):
        sites = _constrained(target_density, mode.vector)
    return float(np.mean(np.abs(np.concatenate([np.ravel(one) for one in sites.values()]))))


@jax.jit
def _constrained(target_density: WhitenedProgram, vector: Array) -> dict[str, Array]:
    return target_density.constrain(vector)
