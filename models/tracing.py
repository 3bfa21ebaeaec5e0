"""What is constant is evaluated once, also while JAX compiles something around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
from jax.core import Tracer

__all__ = ["evaluated_now_unless_traced"]


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
