"""Checks of the fields of frozen dataclasses, by rules in their annotations.

A class ``Disc`` with a field ``radius: Annotated[float, POSITIVE]``, whose ``__post_init__`` calls
``check_fields(self)``, says of ``Disc("2")``: Disc radius is '2'; expected a positive finite
number.
"""

from __future__ import annotations

import types
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal, TypeAliasType, TypeVar, Union
from typing import get_args as arguments_of
from typing import get_origin as origin_of
from typing import get_type_hints as hints_of

import jax
import numpy as np
from jaxtyping import jaxtyped

from ...datasets.arguments import Rule, check, is_number, is_whole
from .representation import as_text

__all__ = ["check_fields", "is_of_type", "wrong_type"]


def check_fields(of: Any) -> None:
    """Check the fields that have rules; turn NumPy numbers into Python's.

    A dataclass calls it first in ``__post_init__``. What JAX puts into pytrees is not checked: its
    arrays may be gradients, its bare objects are placeholders.

    Raises
    ------
    ValueError
        If a field breaks its rule, with the names of class and field, what was found and expected.
    """
    for name, rule in _rules(type(of)).items():
        value = getattr(of, name)
        if isinstance(value, jax.Array) or type(value) is object:
            continue
        check(f"{type(of).__name__} {name}", value, rule, as_text=as_text)
        if isinstance(value, np.generic | np.ndarray) and np.ndim(value) == 0:
            object.__setattr__(of, name, value.item())


@cache
def _rules(cls: type) -> dict[str, Rule]:
    """The first rule in the annotation of each field."""
    hints = hints_of(cls, include_extras=True)
    found = {field.name: arguments_of(hints[field.name])[1:] for field in fields(cls)}
    return {
        name: next(one for one in parts if isinstance(one, Rule))
        for name, parts in found.items()
        if origin_of(hints[name]) is Annotated and any(isinstance(one, Rule) for one in parts)
    }


def wrong_type(of: Any) -> str | None:
    """The first field of a dataclass whose value is not of the annotated type, or None.

    Arrays are compared in type, number of axes, and in the sizes of axes of one name. The contents
    of other containers are not checked. A class whose annotations cannot be evaluated has no wrong
    field.
    """
    try:
        hints = hints_of(type(of))
    except NameError:  # of a name that only type checkers import
        return None
    with jaxtyped("context"):  # in which axes of one name have one size
        wrong = (
            field.name
            for field in fields(of)
            if not is_of_type(getattr(of, field.name), hints[field.name])
        )
        return next(wrong, None)


def is_of_type(value: Any, hint: Any) -> bool:
    """Whether a value has an annotated type; the contents of containers are not checked."""
    origin = origin_of(hint)
    if isinstance(hint, TypeAliasType):
        return is_of_type(value, hint.__value__)
    if origin in (Union, types.UnionType):
        return any(is_of_type(value, one) for one in arguments_of(hint))
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in arguments_of(hint))
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint is float:
        return is_number(value)
    if hint is int:
        return is_whole(value)
    return isinstance(value, origin or hint)
