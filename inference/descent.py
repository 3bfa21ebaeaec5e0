"""Descent by L-BFGS inside a compiled program: of many starts, or between other updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

__all__ = ["descend", "steepest"]


def descend[P](
    loss: Callable[[P], Float[Array, ""]], start: P, max_steps: int, flat: float = 0.0
) -> P:
    """Where L-BFGS with a line search ends, which is not above its start.

    `jax.lax.map` over many starts ends each by itself; under `jax.vmap` all would wait for the
    longest line search of any.

    Parameters
    ----------
    loss : callable
        Of the point.
    start : pytree of arrays
    max_steps : int
    flat : float
        It ends where no slope is steeper, in the loss's units over the point's.

    Returns
    -------
    pytree of arrays
        The start, where the loss is not a number.
    """
    optimiser = optax.lbfgs()
    value_and_gradient = optax.value_and_grad_from_state(loss)

    def goes_on(carry: tuple) -> Bool[Array, ""]:
        _, _, slope, num = carry
        return (slope > flat) & (num < max_steps)

    def one_step(carry: tuple) -> tuple:
        point, memory, _, num = carry
        value, gradient = value_and_gradient(point, state=memory)
        change, memory = optimiser.update(
            gradient, memory, point, value=value, grad=gradient, value_fn=loss
        )
        slope = steepest(optax.tree.get(memory, "grad"))
        return optax.apply_updates(point, change), memory, slope, num + 1

    begun = (start, optimiser.init(start), jnp.array(jnp.inf), 0)
    end = jax.lax.while_loop(goes_on, one_step, begun)[0]
    # A line search that fails may end a rounding error higher.
    is_lower = loss(end) <= loss(start)
    return jax.tree.map(lambda new, old: jnp.where(is_lower, new, old), end, start)


def steepest(gradient: Any) -> Float[Array, ""]:
    """The largest slope of all, either way."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(slope)) for slope in jax.tree.leaves(gradient)]))
