"""Functions of one draw, evaluated for all draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

__all__ = ["in_blocks", "map_draws", "over_draws"]

# Draws evaluated together.
_DRAWS = 16


def over_draws(
    function: Callable[..., Any], sites: dict[str, Any], *given: Any, **options: Any
) -> Any:
    """Evaluate a function of one draw for all draws, in blocks.

    Parameters
    ----------
    function : callable
        ``function(site, *given, **options)``, at module level: compiled once for all arguments of
        like shapes.
    sites : dict of arrays
        By draw on the first axis.
    *given : pytrees of arrays
        The same for all draws.
    **options
        Hashable.

    Returns
    -------
    pytree of NumPy arrays
        By draw on the first axis.
    """
    with jax.enable_x64(True):
        named = tuple(sorted(options.items()))
        return jax.tree.map(np.asarray, _over_draws(function, named, sites, given))


@partial(jax.jit, static_argnums=(0, 1))
def _over_draws(
    function: Callable[..., Any],
    options: tuple[tuple[str, Any], ...],
    sites: dict[str, Any],
    given: tuple[Any, ...],
) -> Any:
    def one(site: dict[str, Any]) -> Any:
        return function(site, *given, **dict(options))

    return map_draws(one, sites, dict(options).get("together", _DRAWS))


def map_draws(function: Callable[[Any], Any], sites: Any, together: int) -> Any:
    """Map a function over draws in equal blocks of at most ``together``, traced once.

    With the ``batch_size`` of `jax.lax.map` the last, shorter block would be compiled once more.

    Parameters
    ----------
    function : callable
        Of one draw.
    sites : pytree of arrays
        By draw on the first axis.
    together : int
        Draws evaluated at once.

    Returns
    -------
    pytree of arrays
        By draw on the first axis.
    """
    number = jax.tree.leaves(sites)[0].shape[0]
    num_blocks = -(-number // together)
    length = -(-number // num_blocks)

    def in_blocks(leaf: Array) -> Array:
        extra = num_blocks * length - number
        filled = jnp.concatenate([leaf, leaf[:extra]]) if extra else leaf
        return filled.reshape(num_blocks, length, *leaf.shape[1:])

    found = jax.lax.map(jax.vmap(function), jax.tree.map(in_blocks, sites))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:number], found)


def in_blocks(function: Callable[..., Any], together: int) -> Callable[..., Any]:
    """Wrap a function of one draw so that `jax.vmap` over draws evaluates it in blocks.

    Parameters
    ----------
    function : callable
        ``function(given, site)``.
    together : int
        Draws evaluated at once.

    Returns
    -------
    callable
        The same function of ``given``, which is never mapped, and ``site``.
    """

    def at(given: Any, site: Any) -> Any:
        # JAX marks what is mapped by flags in its place: leaves, as a model would check its fields.
        leaves, structure = jax.tree.flatten(given)

        @jax.custom_batching.custom_vmap
        def of_leaves(leaves: list[Any], site: Any) -> Any:
            return function(structure.unflatten(leaves), site)

        @of_leaves.def_vmap
        def _(axis_size: int, in_batched: Any, leaves: list[Any], sites: Any) -> tuple[Any, Any]:
            one = partial(function, structure.unflatten(leaves))
            found = map_draws(one, sites, together)
            return found, jax.tree.map(lambda _: True, found)

        return of_leaves(leaves, site)

    return at
