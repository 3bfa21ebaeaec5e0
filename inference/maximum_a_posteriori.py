"""The mode of the posterior: what papers train, and a point that knows no uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int
from numpyro.handlers import block
from scipy.optimize import minimize

from ..datasets.arguments import check_counts
from ..datasets.bags import Bags
from ..models.model import Draws, Model, Program, observations, random_key, split_key
from ..models.numerics.threads import one_lapack_thread
from . import serialization
from .arguments import engine
from .gaussian import WhitenedProgram, kinks, whitened_program
from .posterior import Posterior, Status, approximate_posterior
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch
from .runtime.progress import Progress

__all__ = ["PointApproximation", "maximum_a_posteriori"]

# Largest gradient at a mode, in nats for a step of one unit of the whitened coordinates.
_FLAT = 1e-4
# Steps that L-BFGS remembers. An evaluation takes longer than the algebra of as many steps, and
# with ten, SciPy's default, a search in some hundred coordinates takes two to three times as many.
_REMEMBERED = 80


@engine
def maximum_a_posteriori(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    num_starts: int = 1,
    max_steps: int = 1000,
    progress: bool = False,
) -> Posterior:
    """Find the mode of the posterior density, and keep nothing else of it.

    The density is that of ``model.marginal()`` in whitened, unconstrained coordinates, as for
    `laplace`; the search is L-BFGS-B. A Laplace prior has a kink at 0, where modes like to be: such
    a coordinate is written v⁺ − v⁻ with both parts at least 0, a smooth problem with bounds, so
    that weights of exactly 0 come out as such.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
        Of all starts but the first, which is the prior mean of u or θ.
    num_starts : int
        The others are drawn from N(0, I) in whitened coordinates; the highest mode is kept.
    max_steps : int
        Of each search.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior
        Its one draw is the mode; it has no ``log_density``, and its predictions no intervals.
        ``elbo`` is None; ``status`` tells the log density at the mode.

    References
    ----------
    Hajimirsadeghi and Mori (2017), equation 9, where r(θ) is −log of the prior density.

    Examples
    --------
    The mode of the values at the inducing points 0 and 3:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import maximum_a_posteriori
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = maximum_a_posteriori(model, bags, seed=0)
    >>> posterior.stored_draws()["inducing_value"].round(1)
    array([[-1.3,  2.6]])
    """
    watch = Stopwatch()
    observations(model, bags, "maximum_a_posteriori")
    check_number_of_unknowns(model, "maximum_a_posteriori")
    check_counts(num_starts=num_starts)
    start_key, draw_key = split_key(random_key(seed))
    with jax.enable_x64(True):
        search = _Search.of(whitened_program(model, bags))
        target_density = search.target_density
        # By NumPy: JAX would compile a program for each number of unknowns.
        random = np.random.default_rng(np.asarray(jax.random.key_data(start_key)))
        starts = random.standard_normal((num_starts, target_density.size))
        starts[0] = target_density.origin
        started = Stopwatch.now()
        found = []
        with Progress("maximum a posteriori", num_starts, shown=progress) as bar:
            for start in starts:
                found.append(search.run(start, max_steps))
                bar.advance(1)
        densities = [end.log_density for end in found]
        best = found[int(np.argmax(np.where(np.isfinite(densities), densities, -np.inf)))]
        seconds = Stopwatch.now() - started
    return approximate_posterior(
        model,
        bags,
        PointApproximation(best.point),
        engine="maximum_a_posteriori",
        key=draw_key,
        num_draws=1,
        status=_status(best, num_starts),
        seconds=seconds,
        watch=watch,
        elbo=None,
    )


class _End(NamedTuple):
    """Where a search ended."""

    point: Float[np.ndarray, " P"]  # v
    log_density: float
    gradient: float  # the largest entry that no bound stands in the way of
    steps: int


class _Search(NamedTuple):
    """A loss over v, or over (v⁺, v⁻) at the coordinates that have a kink."""

    target_density: WhitenedProgram
    kinked: Int[np.ndarray, " K"]  # where in v
    kink: Float[np.ndarray, " K"]  # 1/b there

    @classmethod
    def of(cls, target_density: WhitenedProgram) -> _Search:
        """Find where the kinks are."""
        target_density = jax.device_put(target_density)
        by_coordinate = np.asarray(kinks(target_density))
        kinked = np.flatnonzero(by_coordinate)
        return cls(target_density, kinked, by_coordinate[kinked])

    def loss(self, parts: Float[np.ndarray, " Q"]) -> tuple[float, Float[np.ndarray, " Q"]]:
        """−log p̃ and its gradient."""
        value, gradient = _value_and_gradient(self, parts)
        return float(value), np.asarray(gradient)

    def run(self, start: Float[np.ndarray, " P"], max_steps: int) -> _End:
        """One search, from v."""
        upper = start.copy()
        upper[self.kinked] = np.maximum(start[self.kinked], 0.0)
        parts = np.concatenate([upper, np.maximum(-start[self.kinked], 0.0)])
        lowest = np.full(parts.size, -np.inf)
        lowest[self.kinked] = lowest[start.size :] = 0.0
        with one_lapack_thread():  # a step is many small calls of LAPACK
            found = minimize(
                self.loss,
                parts,
                jac=True,
                method="L-BFGS-B",
                bounds=[(low, None) for low in lowest],
                options={
                    "maxcor": _REMEMBERED,
                    "maxiter": max_steps,
                    "maxfun": 10 * max_steps,
                    "ftol": 1e-14,
                    "gtol": 1e-6,
                },
            )
        is_bound = (found.x <= lowest) & (found.jac > 0)
        gradient = float(np.abs(np.where(is_bound, 0.0, found.jac)).max())
        return _End(self._point(found.x), float(-found.fun), gradient, int(found.nit))

    def _point(self, parts: Float[np.ndarray, " Q"]) -> Float[np.ndarray, " P"]:
        """v = v⁺ − v⁻."""
        size = parts.size - self.kinked.size
        vector = parts[:size].copy()
        vector[self.kinked] -= parts[size:]
        return vector


def _status(best: _End, num_starts: int) -> Status:
    density = f"log density {best.log_density:,.2f}"
    if not np.isfinite(best.log_density):
        return Status("failed", f"the {density} at the end of the search is not finite")
    others = "" if num_starts == 1 else f", the highest of {num_starts} starts"
    steps = f"{best.steps} steps of L-BFGS-B, gradient {best.gradient:.1g}"
    sentence = f"{density} after {steps}{others}"
    return Status("converged" if best.gradient < _FLAT else "max_steps", sentence)


@jax.jit
def _value_and_gradient(
    search: _Search, parts: Float[Array, " Q"]
) -> tuple[Float[Array, ""], Float[Array, " Q"]]:
    def loss(parts: Float[Array, " Q"]) -> Float[Array, ""]:
        upper, lower = parts[: search.target_density.size], parts[search.target_density.size :]
        vector = upper.at[search.kinked].add(-lower)
        # |v| is in the density; v⁺ + v⁻ takes its place, and equals it at the mode.
        size = upper[search.kinked] + lower - jnp.abs(vector[search.kinked])
        return -search.target_density.log_density(vector) + jnp.sum(search.kink * size)

    return jax.value_and_grad(loss)(parts)


@jax.jit
def _constrained(target_density: WhitenedProgram, point: Float[Array, " P"]) -> dict[str, Array]:
    return target_density.constrain(point)


@serialization.register
@dataclass(frozen=True, eq=False)
class PointApproximation:
    """One point of the flat space of ``whitened_program``; it has no density.

    Attributes
    ----------
    point : array (P,)
    """

    point: Float[np.ndarray, " P"]

    def draws(self, model: Model, bags: Bags, key: Array, num_draws: int) -> Draws:
        """The point, as often as asked for."""
        with jax.enable_x64(True):
            sites = _constrained(whitened_program(model, bags), self.point)
            values = {name: np.asarray(value) for name, value in sites.items()}
        return {
            name: np.broadcast_to(value, (num_draws, *value.shape)).copy()
            for name, value in values.items()
        }

    def log_density(self, model: Model, bags: Bags, draws: Draws) -> None:
        """None: a point has none."""

    def guide(self, model: Model) -> Program:
        """The point as a guide of ``model.marginal()``."""

        def guide(bags: Bags) -> None:
            with block():  # the sites of the program itself are none of the guide's
                sites = whitened_program(model, bags).constrain(jnp.asarray(self.point))
            for name, value in sites.items():
                numpyro.sample(name, dist.Delta(value, event_dim=value.ndim))

        return guide
