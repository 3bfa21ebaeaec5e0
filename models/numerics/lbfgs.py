"""Minimisers inside compiled programs: L-BFGS, and Newton's method with damping."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

__all__ = ["Minimum", "descend", "largest_derivative", "minimise_by_newton"]

# Damping λ of the Hessian, in units of its largest entry: the first that is tried after none, the
# factor by which it grows and falls, and the value below which it is set to 0.
_FIRST_DAMPING, _DAMPING_FACTOR, _LEAST_DAMPING = 1e-3, 8.0, 1e-10
# A step is accepted if the loss falls by this fraction of the quadratic model's prediction.
_SUFFICIENT = 1e-3
# Rounding of a loss, as a fraction of its size.
_ROUNDING = 1e-13


def descend[P](
    loss: Callable[[P], Float[Array, ""]], start: P, max_steps: int, flat: float = 0.0
) -> P:
    """Minimise a loss by L-BFGS with a line search; the result is never worse than the start.

    A step that does not lower the loss is not taken. Its memory of curvature is then forgotten, and
    the next step goes down the gradient; if that does not lower the loss either, it ends. Where a
    loss is concave, as on the way down from a plateau, that memory may point uphill for good.

    `jax.lax.map` over many starts ends each by itself; under `jax.vmap` all would wait for the
    longest line search of any.

    Parameters
    ----------
    loss : callable
        Of the point.
    start : pytree of arrays
    max_steps : int
    flat : float
        Tolerance: it stops where no entry of the gradient is larger in size.

    Returns
    -------
    pytree of arrays
        The start, where the loss is not a number.
    """
    optimiser = optax.lbfgs()
    value_and_gradient = optax.value_and_grad_from_state(loss)

    def goes_on(carry: tuple) -> Bool[Array, ""]:
        _, _, largest, is_stuck, num = carry
        return (largest > flat) & ~is_stuck & (num < max_steps)

    def one_step(carry: tuple) -> tuple:
        point, memory, _, _, num = carry
        value, gradient = value_and_gradient(point, state=memory)
        change, grown = optimiser.update(
            gradient, memory, point, value=value, grad=gradient, value_fn=loss
        )
        is_lower = optax.tree.get(grown, "value") < value  # False of NaN
        proposed = optax.apply_updates(point, change), grown, optax.tree.get(grown, "grad")
        instead = point, optimiser.init(point), gradient
        point, kept, gradient = jax.tree.map(partial(jnp.where, is_lower), proposed, instead)
        is_stuck = ~is_lower & (optax.tree.get(memory, "count") == 0)
        return point, kept, largest_derivative(gradient), is_stuck, num + 1

    begun = (start, optimiser.init(start), jnp.array(jnp.inf), jnp.array(False), 0)
    return jax.lax.while_loop(goes_on, one_step, begun)[0]


def largest_derivative(gradient: Any) -> Float[Array, ""]:
    """Largest absolute value in a pytree of partial derivatives."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gradient)]))


class Minimum(NamedTuple):
    """The point that a minimiser returns, with its derivatives.

    Attributes
    ----------
    point, gradient : array (P,)
    hessian : array (P, P)
    num_steps : int
    """

    point: Float[Array, " P"]
    gradient: Float[Array, " P"]
    hessian: Float[Array, "P P"]
    num_steps: Int[Array, ""]


class _Newton(NamedTuple):
    """State of Newton's method between two steps."""

    minimum: Minimum
    loss: Float[Array, ""]
    damping: Float[Array, ""]  # λ
    num_trials: Int[Array, ""]


def minimise_by_newton(
    loss: Callable[[Float[Array, " P"]], Float[Array, ""]],
    start: Float[Array, " P"],
    max_steps: int | Int[Array, ""],
    flat: float,
) -> Minimum:
    """Newton's method, the Hessian damped where its step does not lower the loss (Levenberg).

    Parameters
    ----------
    loss : callable
        Twice differentiable.
    start : array (P,)
    max_steps : int
        Most trials of a step.
    flat : float
        Tolerance: it stops where no entry of the gradient is larger in size.

    Returns
    -------
    Minimum
        Its Hessian may not be positive definite if the steps did not suffice.
    """
    gradient_of, hessian_of = jax.grad(loss), jax.hessian(loss)

    def at(point: Float[Array, " P"], num_steps: Array) -> Minimum:
        return Minimum(point, gradient_of(point), hessian_of(point), num_steps)

    def goes_on(state: _Newton) -> Bool[Array, ""]:
        return (largest_derivative(state.minimum.gradient) > flat) & (state.num_trials < max_steps)

    def one_trial(state: _Newton) -> _Newton:
        old, damping = state.minimum, state.damping
        scale = jnp.max(jnp.abs(jnp.diagonal(old.hessian)))
        damped = old.hessian + damping * scale * jnp.eye(len(old.point), dtype=old.point.dtype)
        factor = jnp.linalg.cholesky(damped)  # NaN where it is not positive definite
        step = -cho_solve((factor, True), old.gradient)
        value = loss(old.point + step)
        expected = -0.5 * old.gradient @ step
        slack = _ROUNDING * jnp.abs(state.loss)
        is_lower = state.loss - value >= _SUFFICIENT * expected - slack  # False of NaN
        point = jnp.where(is_lower, old.point + step, old.point)
        new = jax.lax.cond(is_lower, at, lambda *_: old, point, old.num_steps + 1)
        grown = jnp.maximum(_FIRST_DAMPING, _DAMPING_FACTOR * damping)
        fallen = jnp.where(damping > _LEAST_DAMPING, damping / _DAMPING_FACTOR**2, 0.0)
        return _Newton(
            new,
            jnp.where(is_lower, value, state.loss),
            jnp.where(is_lower, fallen, grown),
            state.num_trials + 1,
        )

    zero = jnp.asarray(0)
    begun = _Newton(at(start, zero), loss(start), jnp.zeros_like(start[0]), zero)
    return jax.lax.while_loop(goes_on, one_trial, begun).minimum
