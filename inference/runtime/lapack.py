"""Limit the threads of LAPACK, which compete with JAX's own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

import scipy.linalg  # noqa: F401  that its LAPACK is loaded when it is looked for
from threadpoolctl import ThreadpoolController

__all__ = ["one_lapack_thread"]


def one_lapack_thread() -> AbstractContextManager[object]:
    """Context in which LAPACK has one thread.

    JAX's Cholesky factors and triangular solves on a CPU are SciPy's LAPACK, whose idle threads
    spin for some 25 ms after each call, on the cores that JAX's next product needs: measured, a
    product of 70 ms took 95 ms.
    """
    return _loaded_libraries().limit(limits=1, user_api="blas")


@cache
def _loaded_libraries() -> ThreadpoolController:
    """The loaded libraries, cached: the search takes 5 ms."""
    return ThreadpoolController()
