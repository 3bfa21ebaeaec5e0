"""Many short chains in lockstep, which adapt together: for accelerators.

A GPU moves a thousand chains in nearly the time of one. Warm-up, which a chain alone has to wait
for, is then all that a run takes, and one draw of each chain is already a sample. What tells
whether warm-up was long enough is nested R̂: chains that began at one point are a superchain, and
all superchains must agree.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ..datasets.arguments import check_counts
from ..datasets.bags import Bags
from ..models.model import Model, observations, random_key, split_key
from ..models.numerics.draws import in_blocks
from ..models.numerics.threads import one_lapack_thread
from .arguments import engine
from .gaussian import WhitenedProgram, sites_of, whitened_program
from .metric import covariance_factor
from .posterior import Posterior, sampled_posterior
from .runtime.chains import ChainRun, num_together
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch

__all__ = ["TunedChains", "ensemble", "sampled", "warmed_up"]

# ChEES: Adam's step on the log trajectory length, and step sizes to begin with, in prior-whitened
# coordinates and in those in which the covariance of the chains is I.
_LEARNING_RATE = 0.02
_FIRST_STEP_SIZE, _SECOND_STEP_SIZE = 0.1, 0.5
# Leapfrog steps of a trajectory at most, so that a hard posterior ends too.
_MOST_LEAPFROGS = 256
# Binary digits of the quasi-random trajectory lengths.
_BITS = 20


class TunedChains(NamedTuple):
    """Chains after warm-up, and the kernel that it tuned.

    Attributes
    ----------
    positions : array (C, P)
        w with v = centre + factor w.
    centre, factor : arrays (P,), (P, P)
        Of draws in the middle of warm-up: their mean, and the Cholesky factor of their covariance.
    step_size : float
    most_leapfrogs : float
        Of the quasi-random lengths.
    """

    positions: Float[Array, "C P"]
    centre: Float[Array, " P"]
    factor: Float[Array, "P P"]
    step_size: Float[Array, ""]
    most_leapfrogs: Float[Array, ""]


@engine
def ensemble(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    num_chains: int = 256,
    num_superchains: int = 16,
    num_warmup: int = 300,
    num_samples: int = 20,
) -> Posterior:
    """Sample the exact posterior by many short chains of HMC that adapt together (ChEES).

    All chains of ``model.marginal()``, in whitened coordinates, take trajectories of the same
    number of leapfrog steps. Warm-up tunes it, and the step size, by what all chains did. In the
    middle of warm-up coordinates change to those in which the covariance of the chains is I.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
    num_chains : int
        A thousand and more on an accelerator. On a CPU, which moves one after another, `nuts` has
        as good an answer sooner.
    num_superchains : int
        Points that chains begin at, an equal number at each.
    num_warmup, num_samples : int
        Steps of every chain.

    Returns
    -------
    Posterior
        Its R̂ is nested R̂, by superchains.

    Raises
    ------
    ValueError
        If chains cannot be dealt evenly to superchains, there are fewer than two of these, or there
        is no warm-up, which tunes the kernel.

    References
    ----------
    Hoffman, Radul and Sountsov (2021), ChEES; Margossian et al. (2024), nested R̂.

    Examples
    --------
    Positive bags have an instance near 3:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import ensemble
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> options = {"num_chains": 64, "num_superchains": 4, "num_warmup": 100, "num_samples": 5}
    >>> posterior = ensemble(model, bags, seed=0, **options)
    >>> new = Bags.from_list([[[2.9]], [[0.1]]])
    >>> posterior.predict(new).bag_probability.round(1)
    array([0.9, 0.2])
    """
    watch = Stopwatch()
    observations(model, bags, "ensemble")
    check_number_of_unknowns(model, "ensemble")
    _check_superchains(num_chains, num_superchains)
    check_counts(num_warmup=num_warmup)
    warmup_key, sampling_key = split_key(random_key(seed), 2)
    with jax.enable_x64(True), one_lapack_thread():
        target_density = jax.device_put(whitened_program(model, bags))
        began = Stopwatch.now()
        tuned = warmed_up(target_density, warmup_key, num_chains, num_superchains, num_warmup)
        jax.block_until_ready(tuned)
        warmed = Stopwatch.now()
        vectors, statistics = jax.tree.map(
            np.asarray, sampled(target_density, tuned, sampling_key, num_samples)
        )
        ended = Stopwatch.now()
        draws = sites_of(target_density, vectors.reshape(-1, target_density.size))
    by_chain = (num_chains, num_samples)
    return sampled_posterior(
        model,
        bags,
        engine="ensemble",
        run=ChainRun(
            draws={name: site.reshape(*by_chain, *site.shape[1:]) for name, site in draws.items()},
            statistics=statistics,
            warmup_seconds=warmed - began,
            sampling_seconds=ended - warmed,
        ),
        num_superchains=num_superchains,
        watch=watch,
    )


def _check_superchains(num_chains: int, num_superchains: int) -> None:
    if num_superchains < 2 or num_chains % num_superchains:
        raise ValueError(
            f"num_superchains is {num_superchains} and num_chains {num_chains}; expected at least "
            "2, and a divisor of the number of chains, as each superchain has as many"
        )


@partial(jax.jit, static_argnames=("num_chains", "num_superchains", "num_warmup"))
def warmed_up(
    target_density: WhitenedProgram,
    key: Array,
    num_chains: int,
    num_superchains: int,
    num_warmup: int,
) -> TunedChains:
    """Warm-up: half of it in the coordinates of the target density, half in those of the chains.

    Parameters
    ----------
    target_density : WhitenedProgram
    key : JAX key
    num_chains, num_superchains, num_warmup
        As of `ensemble`.

    Returns
    -------
    TunedChains
    """
    start_key, first_key, second_key = jax.random.split(key, 3)
    starts = _starts(target_density, start_key, num_chains, num_superchains)
    centre, factor = jnp.zeros(target_density.size), jnp.eye(target_density.size)
    half = max(1, num_warmup // 2)

    log_density = _log_density(target_density, centre, factor)
    visited, _ = _adapted(log_density, first_key, starts, half, _FIRST_STEP_SIZE)
    last, visited = visited[-1], visited[half // 2 :].reshape(-1, target_density.size)
    centre, factor = jnp.mean(visited, axis=0), covariance_factor(visited)

    log_density = _log_density(target_density, centre, factor)
    standard = solve_triangular(factor, (last - centre).T, lower=True).T
    visited, parameters = _adapted(log_density, second_key, standard, half, _SECOND_STEP_SIZE)
    most_leapfrogs = parameters["integration_steps_params"][0]
    return TunedChains(visited[-1], centre, factor, parameters["step_size"], most_leapfrogs)


def _starts(
    target_density: WhitenedProgram, key: Array, num_chains: int, num_superchains: int
) -> Float[Array, "C P"]:
    """A point of each superchain, once for each of its chains."""
    points = target_density.random_starts(key, num_superchains)
    return jnp.repeat(points, num_chains // num_superchains, axis=0)


def _adapted(
    log_density: Any, key: Array, positions: Float[Array, "C P"], num_steps: int, step_size: float
) -> tuple[Float[Array, "T C P"], dict[str, Any]]:
    """Where chains were at each step of ChEES, and what it tuned."""
    from blackjax import chees_adaptation

    adaptation = chees_adaptation(
        log_density,
        len(positions),
        max_leapfrog_steps=_MOST_LEAPFROGS,
        adaptation_info_fn=lambda states, *_: states,
    )
    optimizer = optax.adam(_LEARNING_RATE)
    (_, parameters), visited = adaptation.run(key, positions, step_size, optimizer, num_steps)
    return visited.position, parameters


@partial(jax.jit, static_argnames="num_samples")
def sampled(
    target_density: WhitenedProgram, tuned: TunedChains, key: Array, num_samples: int
) -> tuple[Float[Array, "C S P"], dict[str, Array]]:
    """Draws and statistics of all chains after warm-up, chains first.

    Parameters
    ----------
    target_density : WhitenedProgram
    tuned : TunedChains
    key : JAX key
    num_samples : int

    Returns
    -------
    array (C, S, P)
        In the coordinates of the target density.
    dict of arrays (C, S)
        Under ArviZ's names.
    """
    from blackjax.mcmc import dynamic_hmc

    log_density = _log_density(target_density, tuned.centre, tuned.factor)
    trajectory = dynamic_hmc.build_kernel(
        next_random_arg_fn=lambda index: index + 1, integration_steps_fn=_num_leapfrogs
    )
    num_chains, size = tuned.positions.shape

    def step(states: Any, key: Array) -> tuple[Any, tuple[Array, dict[str, Array]]]:
        states, info = jax.vmap(
            lambda key, state: trajectory(
                key,
                state,
                log_density,
                tuned.step_size,
                jnp.ones(size),
                integration_steps_params=(tuned.most_leapfrogs,),
            )
        )(jax.random.split(key, num_chains), states)
        vectors = tuned.centre + states.position @ tuned.factor.T
        return states, (vectors, _statistics(info, tuned.step_size))

    states = jax.vmap(lambda one: dynamic_hmc.init(one, log_density, jnp.zeros((), int)))
    _, rows = jax.lax.scan(step, states(tuned.positions), jax.random.split(key, num_samples))
    return jax.tree.map(lambda row: jnp.swapaxes(row, 0, 1), rows)


def _num_leapfrogs(index: Array, most: Float[Array, ""]) -> Array:
    """A quasi-random number of steps, the same in all chains, so that none waits for another."""
    from blackjax.mcmc.dynamic_hmc import halton_sequence

    return jnp.ceil(halton_sequence(index, _BITS) * most).astype(int)


def _statistics(info: Any, step_size: Float[Array, ""]) -> dict[str, Array]:
    """Sampler statistics of all chains under ArviZ's names."""
    return {
        "diverging": info.is_divergent,
        "energy": info.energy,
        "acceptance_rate": info.acceptance_rate,
        "n_steps": info.num_integration_steps,
        "step_size": jnp.broadcast_to(step_size, info.energy.shape),
    }


def _log_density(
    target_density: WhitenedProgram, centre: Float[Array, " P"], factor: Float[Array, "P P"]
) -> Any:
    """log p(centre + factor w, data) of w, with its gradient, as the hardware likes them.

    blackjax moves all chains by `jax.vmap`. A CPU then takes several times as long as for one
    chain after another.
    """

    def of_standard(
        given: tuple[WhitenedProgram, Array, Array], standard: Float[Array, " P"]
    ) -> Float[Array, ""]:
        target_density, centre, factor = given
        return target_density.log_density(centre + factor @ standard)

    with_gradient = in_blocks(jax.value_and_grad(of_standard, argnums=1), num_together())
    given = (target_density, centre, factor)

    @jax.custom_vjp
    def log_density(standard: Float[Array, " P"]) -> Float[Array, ""]:
        return with_gradient(given, standard)[0]

    log_density.defvjp(
        lambda standard: with_gradient(given, standard),
        lambda gradient, cotangent: (cotangent * gradient,),
    )
    return log_density
