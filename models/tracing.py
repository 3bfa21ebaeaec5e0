"""What is constant is evaluated once; models pass through JAX as pytrees, without their checks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import jax
from jax.core import Tracer

__all__ = ["evaluated_now_unless_traced", "register_unchecked"]


@contextlib.contextmanager
def evaluated_now_unless_traced(*inputs: object) -> Iterator[None]:
    """Evaluate at once what is computed inside, unless an input is traced.

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
        with jax.ensure_compile_time_eval():
            yield


@dataclass(frozen=True, eq=False)
class _Function:
    """A function that is static where it is itself: two that are equal are two."""

    function: Callable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function) and self.function is other.function

    def __hash__(self) -> int:
        return id(self.function)


def register_unchecked[T: type](cls: T) -> T:
    """Register a frozen dataclass as a JAX pytree that is rebuilt without its checks.

    Numbers, arrays, distributions and other pytrees are leaves or subtrees. Strings are static, and
    so are functions that are no pytrees themselves, by identity. A class decorator.

    Parameters
    ----------
    cls : type
        A frozen dataclass.

    Returns
    -------
    type
        The same class.
    """
    names = tuple(field.name for field in fields(cls))

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        leaves, static = flatten(value)
        keys = map(jax.tree_util.GetAttrKey, names)
        return list(zip(keys, leaves, strict=True)), static

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        given = [getattr(value, name) for name in names]
        static = tuple(_static_part(one) for one in given)
        pairs = zip(given, static, strict=True)
        return [one if part is None else None for one, part in pairs], static

    def rebuild(static: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
        # JAX also puts tracers, gradients and placeholders here.
        rebuilt = object.__new__(cls)
        for name, leaf, part in zip(names, leaves, static, strict=True):
            given = part.function if isinstance(part, _Function) else part
            object.__setattr__(rebuilt, name, leaf if part is None else given)
        return rebuilt

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, rebuild, flatten)
    return cls


def _static_part(value: Any) -> str | _Function | None:
    """What of a field is no leaf."""
    if isinstance(value, str):
        return value
    return _Function(value) if callable(value) and jax.tree_util.all_leaves([value]) else None
