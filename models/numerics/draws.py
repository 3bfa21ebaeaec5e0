"""Functions of one draw, evaluated for all draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

__all__ = ["over_draws"]

# Draws evaluated together.
_DRAWS = 16


def over_draws(
    function: Callable[..., Any], sites: dict[str, Any], *given: Any, **options: Any
) -> Any:
    """A function of one draw, for all of them, some evaluated together.

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

    return jax.lax.map(one, sites, batch_size=dict(options).get("together", _DRAWS))
