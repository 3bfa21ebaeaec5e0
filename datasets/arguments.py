"""Rules for arguments and fields: a test, and the words for an error message."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import jax
import numpy as np

__all__ = [
    "AT_LEAST_ZERO",
    "FINITE",
    "FLAG",
    "POSITIVE",
    "PROBABILITY",
    "WHOLE",
    "Rule",
    "check",
    "check_counts",
    "check_probability",
    "checked_seed",
    "instance_of",
    "is_number",
    "is_whole",
    "known_or_nearest",
    "look_up",
    "one_of",
    "optional",
]

_LARGEST_SEED = 2**32 - 1


def is_whole(value: object) -> bool:
    """Whether a value is a Python or NumPy integer, but not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclass(frozen=True)
class Rule:
    """A rule for the values of a field: a test, and the words for an error message.

    Parameters
    ----------
    expected : str
        The end of the message: what is expected, and a remedy where there is one.
    accepts : callable
        Whether a value, of any type, follows the rule.
    error : type
        Type of the exception.
    """

    expected: str
    accepts: Callable[[Any], bool]
    error: type[Exception] = ValueError


def is_number(value: Any) -> bool:
    """Whether a value is one real number of Python, NumPy or JAX, but not a bool."""
    if isinstance(value, bool | np.bool_):
        return False
    if isinstance(value, np.ndarray | jax.Array):
        return value.shape == () and value.dtype.kind in "iuf"
    return isinstance(value, int | float | np.integer | np.floating)


def _is_finite(value: Any) -> bool:
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:  # of an integer beyond all floats
        return False


def optional(rule: Rule, otherwise: str) -> Rule:
    """A rule that accepts None and all that another rule accepts."""
    return Rule(
        f"{rule.expected}, or None {otherwise}", lambda value: value is None or rule.accepts(value)
    )


def instance_of(*classes: type, expected: str) -> Rule:
    """A rule that accepts instances of some classes, but not the classes themselves."""
    return Rule(expected, lambda value: isinstance(value, classes) and not isinstance(value, type))


FINITE = Rule("a finite number", _is_finite)
POSITIVE = Rule("a positive finite number", lambda value: _is_finite(value) and bool(value > 0))
AT_LEAST_ZERO = Rule(
    "a finite number of at least 0", lambda value: _is_finite(value) and bool(value >= 0)
)
PROBABILITY = Rule(
    "a number between 0 and 1", lambda value: is_number(value) and bool(0 < value < 1)
)
WHOLE = Rule("an integer of at least 1", lambda value: is_whole(value) and bool(value >= 1))
FLAG = Rule("True or False", lambda value: isinstance(value, bool | np.bool_))


def one_of(*words: str) -> Rule:
    """A rule that accepts one of several words."""
    return Rule(
        f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words
    )


def known_or_nearest(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or all of them."""
    known = list(known)
    near = get_close_matches(str(name), known, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


def look_up[T](kind: str, name: str, known: Mapping[str, T]) -> T:
    """Look up the value of a name in a mapping.

    Raises
    ------
    ValueError
        If the name is unknown; the message has the nearest known one.
    """
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; {known_or_nearest(name, known)}")
    return known[name]


def _shown(value: Any, as_text: Callable[[Any], str]) -> str:
    text = repr(value) if isinstance(value, str | type | None) else " ".join(as_text(value).split())
    return text if len(text) < 200 else f"{text[:200]}…"


def check(name: str, value: Any, rule: Rule, *, as_text: Callable[[Any], str] = str) -> None:
    """Raise an error if a value breaks a rule: its name, what was found, what is expected."""
    if not rule.accepts(value):
        raise rule.error(f"{name} is {_shown(value, as_text)}; expected {rule.expected}")


def check_counts(**counts: int) -> None:
    """Raise an error unless all arguments are positive integers.

    Raises
    ------
    ValueError
        If a count is not a positive integer; the message has its name.
    """
    for name, count in counts.items():
        check(name, count, WHOLE)


def check_probability(**probabilities: float) -> None:
    """Raise an error unless all arguments are probabilities.

    Raises
    ------
    ValueError
        If one is not strictly between 0 and 1; the message has its name.
    """
    for name, probability in probabilities.items():
        check(name, probability, PROBABILITY)


def checked_seed(seed: Any) -> int:
    """A checked seed as a Python int.

    Raises
    ------
    TypeError
        If it is not an integer: None would make results irreproducible, and keys are not taken.
    ValueError
        If it is out of range.
    """
    if not is_whole(seed):
        raise TypeError(f"seed is {seed!r}; expected an integer from 0 to {_LARGEST_SEED}")
    if not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(
            f"seed is {seed}; expected an integer from 0 to {_LARGEST_SEED}: others would draw the "
            "same as one of these"
        )
    return int(seed)
