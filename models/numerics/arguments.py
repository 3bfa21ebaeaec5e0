"""Checks of arguments that are counts or probabilities."""

from __future__ import annotations

import numpy as np

__all__ = ["check_counts", "check_probability"]


def check_counts(**counts: int) -> None:
    """Raise an error unless all arguments are positive integers.

    Raises
    ------
    ValueError
        If a count is no positive integer, by its name.
    """
    for name, count in counts.items():
        if not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"{name} is {count}; expected an integer of at least 1")


def check_probability(**probabilities: float) -> None:
    """Raise an error unless all arguments are probabilities.

    Raises
    ------
    ValueError
        If one is not strictly between 0 and 1, by its name.
    """
    for name, probability in probabilities.items():
        if not 0 < probability < 1:
            raise ValueError(f"{name} is {probability}; expected a number between 0 and 1")
