"""Objects as the calls that make them, with priors: what ``repr`` of a model shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from numpyro.distributions import Distribution, TransformedDistribution

__all__ = ["as_text", "call", "call_of_dataclass", "call_of_distribution"]


def call(value: object, arguments: list[str]) -> str:
    """A call of the constructor of a value.

    Parameters
    ----------
    value : object
    arguments : list of str
        As they stand in the call.

    Returns
    -------
    str
    """
    return f"{type(value).__name__}({', '.join(arguments)})"


def call_of_distribution(distribution: Distribution, shown: Callable[[Any], str]) -> str:
    """A distribution as a call of its constructor. NumPyro shows an address in memory instead.

    Parameters
    ----------
    distribution : Distribution
    shown : callable
        How an argument is shown, which may be a distribution too.

    Returns
    -------
    str

    Examples
    --------
    >>> from numpyro.distributions import LogNormal
    >>> from milzoo.models.numerics.representation import call_of_distribution
    >>> call_of_distribution(LogNormal(0.0, 0.5), str)
    'LogNormal(loc=0.0, scale=0.5)'
    """
    if type(distribution) is TransformedDistribution:  # it keeps them under other names
        steps = distribution.transforms
        numbers = [call(step, [shown(leaf) for leaf in jax.tree.leaves(step)]) for step in steps]
        return call(distribution, [shown(distribution.base_dist), *numbers])
    names = [name for name in signature(type(distribution)).parameters if name != "validate_args"]
    known = [name for name in names if hasattr(distribution, name)]
    return call(distribution, [f"{name}={shown(getattr(distribution, name))}" for name in known])


def call_of_dataclass(value: Any) -> str:
    """A dataclass as a call of its constructor, its priors by their arguments: for ``__repr__``.

    Parameters
    ----------
    value : dataclass
        Fields with ``repr=False`` are left out.

    Returns
    -------
    str
    """
    # No examples above: as a method of every class it would repeat them in each.
    shown = [field.name for field in fields(value) if field.repr]
    return call(value, [f"{name}={_shown(getattr(value, name))}" for name in shown])


def as_text(value: Any) -> str:
    """A refused value in a message: a distribution as its call, anything else as ``print`` has it.

    Parameters
    ----------
    value : object

    Returns
    -------
    str
    """
    return _shown(value) if isinstance(value, Distribution) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, Distribution):
        return call_of_distribution(value, _shown)
    is_array = isinstance(value, np.generic | jax.Array) and not isinstance(value, Tracer)
    if is_array and np.ndim(value) == 0:
        return str(np.asarray(value)[()])  # a number, in the digits of its own precision
    return repr(value)
