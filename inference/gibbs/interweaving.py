r"""Between two sweeps, u moves on its own: labels and augmentation do not hold it back.

A sweep draws (u, f) given ω and y, and these given f. Where they know f almost exactly, f can
hardly move. So each sweep is followed by a move in the other parametrisation of Yu and Meng (2011),
in which the noise η of f is kept in the place of f, and y and ω are summed out:

.. math::
    f = μ_0 + Vε + \sqrt{k̃}\, η, \qquad
    \log p(ε \mid η, T) = \log p(T \mid f) - \tfrac12 ε^\top ε + \text{constant}

The move is a trajectory of Hamiltonian Monte Carlo in coordinates x, ε = Rx, RRᵀ = H⁻¹, in which
Laplace's approximation of p(ε | T) has covariance I. It is accepted or not by Metropolis' rule, so
that the posterior stays what it is, however good the approximation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ...datasets.arguments import FLAG, check
from ...datasets.bags import Bags
from ...models.model import Model
from ...models.numerics.tracing import as_pytree
from ..gaussian import whitened_program
from ..metric import curvature_metric
from .sweep import Sweep, sweep_of

__all__ = ["Interweaved", "InterweavedState", "NoiseKept", "sweep_for"]

# Four leapfrogs of this size are accepted four times out of five with 50 inducing points. The error
# of the energy grows as M h⁴, so that h falls with the fourth root of M.
_STEP_SIZE, _AT_SIZE = 0.6, 50
# Of a trajectory. At π all coordinates of a standard normal density have turned their signs: draws
# that are this far apart are negatively correlated.
_LENGTH = 2.4
# Steps vary by this part of themselves, so that no trajectory is a period of some coordinate.
_JITTER = 0.2


@runtime_checkable
class NoiseKept(Sweep, Protocol):
    """A sweep of whitened inducing values ε whose other parametrisation is known."""

    def log_density_given_noise(
        self, state: Any, whitened: Float[Array, " M"], /
    ) -> Float[Array, ""]:
        """log p(ε | η, T) at other ε, with η of a state, up to a constant."""
        ...

    def with_noise_kept(self, state: Any, whitened: Float[Array, " M"], /) -> Any:
        """A state with other ε, and η as it was."""
        ...


class InterweavedState(NamedTuple):
    """State of a chain.

    Attributes
    ----------
    of_sweep : pytree
        The state of the sweep, with a field ``whitened``.
    acceptance : array ()
        Acceptance probability of the last move.
    """

    of_sweep: Any
    acceptance: Float[Array, ""]


@as_pytree()
@dataclass(frozen=True)
class Interweaved:
    """A sweep, and a move of ε with the noise of f kept.

    Attributes
    ----------
    sweep : NoiseKept
    factor : array (M, M)
        R, lower triangular.
    """

    sweep: NoiseKept
    factor: Float[np.ndarray | Array, "M M"]

    @classmethod
    def for_model(cls, model: Model, bags: Bags) -> Self:
        """Prepare the sweep, and find the curvature at the mode of the marginal program.

        Raises
        ------
        NotImplementedError
            If the model has no Gibbs sampler, or its sweep no such move.
        """
        sweep = sweep_of(model, bags)
        if not isinstance(sweep, NoiseKept):
            raise NotImplementedError(
                f"interweave is True, and the Gibbs sampler of {type(model).__name__} has no move "
                "to interweave; leave interweave out, or sample it with nuts"
            )
        target_density = jax.device_put(whitened_program(model, bags))
        return cls(sweep, _factor(curvature_metric(target_density)))

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the sites of a state."""
        return self.sweep.site_names

    def init(self, key: Array) -> InterweavedState:
        """The sweep's own initial state."""
        return InterweavedState(self.sweep.init(key), jnp.ones(()))

    def step(self, state: InterweavedState) -> InterweavedState:
        """One sweep, and one move."""
        factor = jnp.asarray(self.factor)
        swept = self.sweep.step(state.of_sweep)
        key, step_key, move_key = jax.random.split(swept.key, 3)
        swept = swept._replace(key=key)
        start = solve_triangular(factor, swept.whitened, lower=True)  # x = R⁻¹ε
        step_size, num_leapfrogs = _leapfrogs(len(start))
        jitter = jax.random.uniform(step_key, (), minval=1 - _JITTER, maxval=1 + _JITTER)
        moved, acceptance = _moved(
            move_key,
            lambda x: self.sweep.log_density_given_noise(swept, factor @ x),
            start,
            step_size * jitter,
            num_leapfrogs,
        )
        return InterweavedState(self.sweep.with_noise_kept(swept, factor @ moved), acceptance)

    def sites(self, state: InterweavedState) -> dict[str, Array]:
        """The state as sites of the model."""
        return self.sweep.sites(state.of_sweep)

    def statistics(self, state: InterweavedState) -> dict[str, Array]:
        """The acceptance probability under ArviZ's name."""
        return {"acceptance_rate": state.acceptance}


def sweep_for(model: Model, bags: Bags, *, interweave: bool) -> Sweep:
    """The sweep of a model, interweaved or not.

    Parameters
    ----------
    model : Model
    bags : Bags
    interweave : bool

    Returns
    -------
    Sweep

    Raises
    ------
    ValueError
        If ``interweave`` is neither True nor False.
    NotImplementedError
        If the model has no Gibbs sampler, or its sweep no move to interweave.
    """
    check("interweave", interweave, FLAG)
    return Interweaved.for_model(model, bags) if interweave else sweep_of(model, bags)


@jax.jit
def _factor(covariance: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """R, or I where the search for a mode ended at what is no number."""
    factor = jnp.linalg.cholesky(covariance)
    return jnp.where(jnp.isfinite(factor).all(), factor, jnp.eye(len(factor)))


def _leapfrogs(size: int) -> tuple[float, int]:
    """Size of a leapfrog of this many coordinates, and how many make a trajectory."""
    step_size = min(_STEP_SIZE * (_AT_SIZE / size) ** 0.25, 1.0)
    return step_size, ceil(_LENGTH / step_size)


def _moved(
    key: Array,
    log_density: Callable[[Array], Array],
    start: Float[Array, " M"],
    step_size: Float[Array, ""],
    num_leapfrogs: int,
) -> tuple[Float[Array, " M"], Float[Array, ""]]:
    """The end of a trajectory, or its start where Metropolis' rule refuses that."""
    # Not at the top: blackjax starts XLA's backend when it is imported, and processes that come
    # together (`jax.distributed.initialize`) must do that first.
    from blackjax.mcmc import hmc

    state, information = hmc.build_kernel()(
        key,
        hmc.init(start, log_density),
        log_density,
        step_size,
        jnp.ones_like(start),
        num_leapfrogs,
    )
    return state.position, information.acceptance_rate
