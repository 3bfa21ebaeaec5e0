"""Limit the threads of libraries that compete with JAX's own, or with each other."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

import scipy.linalg  # noqa: F401  that its LAPACK is loaded when it is looked for
import sklearn.cluster  # noqa: F401  and its OpenMP
from threadpoolctl import ThreadpoolController

__all__ = ["one_lapack_thread", "one_thread"]


def one_lapack_thread() -> AbstractContextManager[object]:
    """Context in which LAPACK has one thread.

    JAX's Cholesky factors and triangular solves on a CPU are SciPy's LAPACK, whose idle threads
    spin for some 25 ms after each call, on the cores that JAX's next product needs: measured, a
    product of 70 ms took 95 ms.
    """
    return _loaded_libraries().limit(limits=1, user_api="blas")


def one_thread() -> AbstractContextManager[object]:
    """Context in which LAPACK and OpenMP have one thread.

    With several, sums are rounded by chance, and small products wait for each other.
    """
    return _loaded_libraries().limit(limits=1)


@cache
def _loaded_libraries() -> ThreadpoolController:
    """The loaded libraries, cached: the search takes 5 ms."""
    return ThreadpoolController()
