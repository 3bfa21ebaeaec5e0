"""LAPACK beside JAX's own threads."""

from __future__ import annotations

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits

__all__ = ["one_lapack_thread"]


def one_lapack_thread() -> AbstractContextManager[object]:
    """Keep LAPACK to one thread inside.

    JAX's Cholesky factors and triangular solves on a CPU are SciPy's LAPACK, whose idle threads
    spin for some 25 ms after each call, on the cores that JAX's next product needs: measured, a
    product of 70 ms took 95 ms.
    """
    return threadpool_limits(limits=1, user_api="blas")
