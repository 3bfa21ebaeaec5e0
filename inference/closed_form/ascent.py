"""The one loop that drives every closed-form engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..chains import check_counts
from ..checkpoint import BlockFolder
from ..lapack import one_lapack_thread
from ..posterior import Status
from ..progress import Progress

__all__ = [
    "ROUNDING",
    "Ascent",
    "ascend",
    "ascend_inside",
    "check_limits",
    "climb",
    "of_best_start",
]

# A fall of the bound below this share of its size is rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Ascent:
    """Where coordinate ascent ended, and how it got there."""

    state: Any
    elbo: Float[np.ndarray, "T ..."]
    status: Status
    seconds: float
    compile_seconds: float


def ascend(
    step: Callable[[Any, Any], Any],
    elbo: Callable[[Any, Any], Array],
    problem: Any,
    state: Any,
    *,
    max_steps: int,
    tolerance: float,
    is_ascent: bool,
    progress: bool,
) -> Ascent:
    """Repeat ``step`` until the bound stops rising; of several starts at once, until all do.

    Parameters
    ----------
    step : callable
        Problem, state → state: one round of all updates.
    elbo : callable
        Problem, state → the bound at it, or one for each of several starts.
    problem : pytree
        What stays fixed, kept apart from the state so that no step copies it.
    state : pytree
        Where to start.
    max_steps : int
    tolerance : float
        Converged when the bound moves by less than this share of its size (at least 1) in a step.
    is_ascent : bool
        Whether the updates are coordinate ascent on this bound, so that a fall is a failure.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Ascent
        ``status`` is ``failed`` if a bound is not finite or falls where it must not.

    Raises
    ------
    ValueError
        If ``max_steps`` or ``tolerance`` is out of range.
    """
    check_limits(max_steps, tolerance)

    def step_and_elbo(problem: Any, state: Any) -> tuple[Any, Array]:
        state = step(problem, state)
        return state, elbo(problem, state)

    started = time.perf_counter()
    compiled = jax.jit(step_and_elbo).lower(problem, state).compile()
    compile_seconds = time.perf_counter() - started
    ascent = climb(
        partial(compiled, problem),
        state,
        max_steps=max_steps,
        tolerance=tolerance,
        is_ascent=is_ascent,
        progress=progress,
    )
    return replace(ascent, compile_seconds=compile_seconds)


def climb(
    advance: Callable[[Any], tuple[Any, Array]],
    state: Any,
    *,
    max_steps: int,
    tolerance: float,
    is_ascent: bool,
    progress: bool,
    rounding: float = ROUNDING,
    checkpoint: BlockFolder | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Ascent:
    """The loop of `ascend`, whatever makes a step.

    Parameters
    ----------
    advance : callable
        State → state, and the bound at it.
    state : pytree
    max_steps, tolerance, is_ascent, progress
        As of `ascend`.
    rounding : float
        A fall of the bound below this share of its size is none.
    checkpoint : BlockFolder or None
        A block for each step; goes on behind the last.
    clock : callable
        What seconds are of; one that stands still during compilation leaves this out.

    Returns
    -------
    Ascent
        ``compile_seconds`` are 0.
    """
    done = checkpoint.blocks(0.0) if checkpoint else []
    trace, seconds = [np.asarray(bound) for bound, _ in done], sum(taken for _, taken in done)
    if checkpoint and done:
        state = checkpoint.state(state)
    status = _judge(trace, tolerance, is_ascent, rounding) if trace else None
    with one_lapack_thread(), Progress("coordinate ascent", max_steps, shown=progress) as bar:
        bar.advance(len(trace))
        while status is None and len(trace) < max_steps:
            started = clock()
            state, bound = advance(state)
            trace.append(np.asarray(bound))
            taken = clock() - started
            if checkpoint:
                checkpoint.write(len(trace) - 1, state, trace[-1], taken)
            seconds += taken
            bar.advance(1)
            status = _judge(trace, tolerance, is_ascent, rounding)
    return Ascent(state, np.array(trace), status or _cut_off(trace), seconds, 0.0)


def of_best_start(ascent: Ascent) -> Ascent:
    """Of an ascent from several starts, the one that ended highest.

    Parameters
    ----------
    ascent : Ascent
        Of a bound (T, S), and a state with a leading axis of starts.

    Returns
    -------
    Ascent
        Whose status tells where the others ended.
    """
    ends = ascent.elbo[-1]
    best = int(np.argmax(np.where(np.isfinite(ends), ends, -np.inf)))
    state = jax.tree.map(lambda leaf: leaf[best], ascent.state)
    status = Status(ascent.status.kind, f"{ascent.status.sentence}; {_spread(ends)}")
    return replace(ascent, state=state, elbo=ascent.elbo[:, best], status=status)


def _spread(ends: np.ndarray) -> str:
    if len(ends) == 1:
        return "one start, which may be far from the best"
    return (
        f"the best of {len(ends)} starts, which ended between {ends.min():,.2f} and "
        f"{ends.max():,.2f}"
    )


def check_limits(max_steps: int, tolerance: float) -> None:
    """Refuse limits at which nothing would end, or begin.

    Raises
    ------
    ValueError
        If one is out of range.
    """
    check_counts(max_steps=max_steps)
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}; expected a number of at least 0")


def ascend_inside[State](
    step: Callable[[State], State],
    elbo: Callable[[State], Array],
    state: State,
    *,
    max_steps: int,
    tolerance: float | Float[Array, ""],
) -> tuple[State, Float[Array, ""], Int[Array, ""]]:
    """The same loop inside a compiled program, without a trace or a status.

    Parameters
    ----------
    step : callable
        State → state.
    elbo : callable
        State → the bound.
    state : pytree
    max_steps : int
    tolerance : float

    Returns
    -------
    pytree
        The last state.
    float
        Its bound.
    int
        Steps taken.
    """

    def unfinished(carry: tuple) -> Array:
        steps, _, bound, change = carry
        is_moving = jnp.abs(change) > tolerance * jnp.maximum(1.0, jnp.abs(bound))
        return (steps < max_steps) & is_moving

    def one_step(carry: tuple) -> tuple:
        steps, state, bound, _ = carry
        state = step(state)
        new = elbo(state)
        return steps + 1, state, new, new - bound

    start = (jnp.zeros((), int), state, elbo(state), jnp.inf)
    steps, state, bound, _ = jax.lax.while_loop(unfinished, one_step, start)
    return state, bound, steps


def _judge(
    trace: list[np.ndarray], tolerance: float, is_ascent: bool, rounding: float
) -> Status | None:
    bound = trace[-1]
    if not np.isfinite(bound).all():
        wrong = bound[~np.isfinite(bound)].flat[0]
        return Status("failed", f"the bound became {wrong} at step {len(trace)}")
    if len(trace) < 2:
        return None
    change, size = bound - trace[-2], np.maximum(1.0, np.abs(bound))
    if is_ascent and (change < -rounding * size).any():
        return Status("failed", f"the bound fell by {-change.min():.3g} at step {len(trace)}")
    if (np.abs(change) <= tolerance * size).all():
        return Status(
            "converged",
            f"the bound moved by less than {tolerance:g} of its size at step {len(trace)}",
        )
    return None


def _cut_off(trace: list[np.ndarray]) -> Status:
    if len(trace) < 2:
        return Status("max_steps", "one step is too few to judge")
    change = np.ravel(trace[-1] - trace[-2])
    last = change[np.argmax(np.abs(change))]
    return Status("max_steps", f"the bound moved by {last:+.2g} at the last step, {len(trace)}")
