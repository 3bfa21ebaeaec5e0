"""Evaluate constants once while JAX traces; make models pytrees, without their checks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import jax
from jax.core import Tracer, eval_context

from .representation import call_of_dataclass

__all__ = ["as_pytree", "evaluated_apart_from_traces", "evaluated_now_unless_traced"]


def evaluated_apart_from_traces() -> contextlib.AbstractContextManager[None]:
    """Evaluate the block at once, whatever is being traced around it; no input may be traced.

    Programs within are compiled whole. Under `jax.ensure_compile_time_eval` JAX would evaluate what
    they compute from constants, such as indices, while it traces them, in a program for each.
    """
    return eval_context()


@contextlib.contextmanager
def evaluated_now_unless_traced(*inputs: object) -> Iterator[None]:
    """Evaluate the block at once, unless an input is traced.

    A sampler compiles a program around a kernel that is fixed; without this, all that follows
    from the kernel would be a part of the program, and evaluated at every step.

    Parameters
    ----------
    *inputs : pytrees
        All that the block computes from.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(inputs)):
        yield
    else:
        with evaluated_apart_from_traces():
            yield


@dataclass(frozen=True, eq=False)
class _Function:
    """A static function, compared by identity."""

    value: Callable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True)
class _Static:
    """A static value: programs are compiled anew where it differs."""

    value: Any


def as_pytree[T: type](*static: str) -> Callable[[T], T]:
    """Make a frozen dataclass a JAX pytree, so that compiled programs take it as an argument.

    Numbers, arrays and priors become leaves: programs are compiled once for all their values.
    Strings are static, and so are functions that are not pytrees, by identity. The checks
    of ``__post_init__`` are left out while JAX traces, when leaves have no values. ``repr`` shows
    priors by their arguments.

    Parameters
    ----------
    *static : str
        Other fields that are not leaves: hashable; programs are compiled anew where they differ.

    Returns
    -------
    callable
        A class decorator.
    """

    def register(cls: T) -> T:
        names = tuple(field.name for field in fields(cls))

        def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
            given = {name: getattr(value, name) for name in names}
            fixed = tuple(
                _Static(of) if name in static else _static_part(of) for name, of in given.items()
            )
            pairs = zip(given.values(), fixed, strict=True)
            return [_leaf(of) if part is None else None for of, part in pairs], fixed

        def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            leaves, fixed = flatten(value)
            return list(zip(map(jax.tree_util.GetAttrKey, names), leaves, strict=True)), fixed

        def rebuild(fixed: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
            # JAX also puts tracers, gradients and placeholders here.
            rebuilt = object.__new__(cls)
            for name, leaf, part in zip(names, leaves, fixed, strict=True):
                object.__setattr__(rebuilt, name, leaf if part is None else part.value)
            return rebuilt

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, rebuild, flatten)
        if hasattr(cls, "__post_init__"):
            cls.__post_init__ = _unless_traced(cls.__post_init__, names)
        of_instances: Any = cls  # to Pyright cls.__repr__ is that of the class itself
        if hasattr(of_instances.__repr__, "__wrapped__"):  # made by dataclass, not by hand
            of_instances.__repr__ = call_of_dataclass
        return cls

    return register


def _leaf(value: Any) -> Any:
    """The value; integers as floats, as JAX would compile separate programs for them."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _unless_traced(check: Callable[[Any], None], names: tuple[str, ...]) -> Callable[[Any], None]:
    def checked(self: Any) -> None:
        values = [getattr(self, name) for name in names]
        if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values)):
            check(self)

    return checked


def _static_part(value: Any) -> _Static | _Function | None:
    """The static part of a field, None where it is a leaf."""
    if isinstance(value, str):
        return _Static(value)
    return _Function(value) if callable(value) and jax.tree_util.all_leaves([value]) else None
