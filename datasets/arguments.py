"""Checks of arguments that are counts, probabilities or seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["LARGEST_SEED", "check_counts", "check_probability", "checked_seed", "is_whole"]

LARGEST_SEED = 2**32 - 1


def is_whole(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy, and no truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_counts(**counts: int) -> None:
    """Raise an error unless all arguments are positive integers.

    Raises
    ------
    ValueError
        If a count is no positive integer, by its name.
    """
    for name, count in counts.items():
        if not is_whole(count) or count < 1:
            raise ValueError(f"{name} is {count!r}; expected an integer of at least 1")


def check_probability(**probabilities: float) -> None:
    """Raise an error unless all arguments are probabilities.

    Raises
    ------
    ValueError
        If one is not strictly between 0 and 1, by its name.
    """
    for name, probability in probabilities.items():
        is_number = isinstance(probability, float | np.floating)
        if not (is_number and 0 < probability < 1):
            raise ValueError(f"{name} is {probability!r}; expected a number between 0 and 1")


def checked_seed(seed: Any) -> int:
    """A seed as an int of Python.

    Raises
    ------
    TypeError
        If it is no integer: None, which would make results that nobody can make again, or a key.
    ValueError
        If it is out of range.
    """
    if not is_whole(seed):
        raise TypeError(f"seed is {seed!r}; expected an integer from 0 to {LARGEST_SEED}")
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(
            f"seed is {seed}; expected an integer from 0 to {LARGEST_SEED}: others would draw the "
            "same as one of these"
        )
    return int(seed)
