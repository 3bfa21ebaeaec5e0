"""Registry of models by their short names: those of milzoo and those of other packages.

A package that is installed beside this one names its models as entry points of the group
``milzoo.models``; a script registers its own.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import cache
from importlib.metadata import entry_points
from typing import Any

__all__ = ["ENTRY_POINTS", "models_by_name", "register", "settable"]

ENTRY_POINTS = "milzoo.models"

_MODELS: dict[str, type] = {}


def register[T: type](model: T) -> T:
    """Register a model under its ``name``; a class decorator.

    Parameters
    ----------
    model : type
        With a constructor ``for_bags(bags, *, seed, **settings)``.

    Returns
    -------
    type
        The same class.

    Raises
    ------
    ValueError
        If another class has the name.
    """
    name = model.name
    known = _MODELS.setdefault(name, model)
    if known is not model and known.__qualname__ != model.__qualname__:
        raise ValueError(
            f"a model named {name!r} is registered already ({known.__qualname__}); expected "
            "another name"
        )
    _MODELS[name] = model
    return model


def models_by_name() -> dict[str, Any]:
    """All models that the command line can make for bags, by name.

    Returns
    -------
    dict of type
        Registered models, then those of installed packages.
    """
    _register_installed()
    return dict(_MODELS)


@cache
def _register_installed() -> None:
    """Register models of installed packages, once: a search asks for a model at every setting."""
    for entry in entry_points(group=ENTRY_POINTS):
        register(entry.load())


def settable(model: Any) -> dict[str, bool]:
    """The settings of a model's ``for_bags``, by name: whether each must be a whole number.

    Parameters
    ----------
    model : type
        A model.

    Returns
    -------
    dict of bool
        Its arguments, and the fields that are not made from bags.
    """
    parameters = inspect.signature(model.for_bags).parameters.values()
    made_from = {
        parameter.name: isinstance(parameter.default, int)
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and parameter.name not in ("bags", "seed")
    }
    others = [one.name for one in fields(model) if one.name not in model.fields_for_bags]
    return dict.fromkeys([*model.settings, *others], False) | made_from
