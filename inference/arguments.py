"""The arguments that engines share: one table of rules, checked before anything is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from ..datasets.arguments import (
    AT_LEAST_ZERO,
    FLAG,
    POSITIVE,
    PROBABILITY,
    WHOLE,
    Rule,
    check,
    is_number,
    is_whole,
    one_of,
)
from ..datasets.bags import Bags
from ..datasets.streaming import BagStream
from ..models.model import random_key
from .metric import MASS_MATRIX

__all__ = ["engine"]

_MODEL = Rule(
    "a model, such as VGPMIL.for_bags(bags, seed=0)",
    lambda value: hasattr(value, "marginal") and not isinstance(value, type),
    TypeError,
)
_BAGS = Rule(
    "Bags, such as Bags.from_list(arrays, labels)",
    lambda value: isinstance(value, Bags),
    TypeError,
)
_BAGS_OR_STREAM = Rule(
    f"{_BAGS.expected}, or a BagStream",
    lambda value: isinstance(value, Bags | BagStream),
    TypeError,
)
_RULES = {
    "model": _MODEL,
    "num_warmup": Rule("an integer of at least 0", lambda value: is_whole(value) and value >= 0),
    "num_samples": WHOLE,
    "num_chains": WHOLE,
    "num_superchains": WHOLE,
    "thin": WHOLE,
    "keep": Rule(
        "the name of a site, or a tuple of names",
        lambda value: (
            isinstance(value, str | tuple | list) and all(isinstance(name, str) for name in value)
        ),
    ),
    "target_accept": PROBABILITY,
    "mass_matrix": MASS_MATRIX,
    "start": Rule("a Posterior", lambda value: hasattr(value, "stored_draws"), TypeError),
    "program": one_of("marginal", "full"),
    "max_steps": WHOLE,
    "tolerance": AT_LEAST_ZERO,
    "keep_best": FLAG,
    "learn_hyperparameters": FLAG,
    "num_draws": WHOLE,
    "num_paths": WHOLE,
    "num_points": WHOLE,
    "num_particles": WHOLE,
    "num_moves": WHOLE,
    "dispersion": POSITIVE,
    "batch_size": WHOLE,
    "batch_instances": WHOLE,
    "delay": AT_LEAST_ZERO,
    "forgetting": Rule(
        "a number above 0.5, below which the noise of batches does not die out, and of at most 1",
        lambda value: is_number(value) and 0.5 < value <= 1,
    ),
    "learning_rate": POSITIVE,
    "dtype": one_of("float64", "float32"),
    "progress": FLAG,
    "callback": Rule("a function of a posterior", callable, TypeError),
    "patience": WHOLE,
}


def engine[F: Callable[..., Any]](function: F) -> F:
    """Make a function an engine, whose arguments are checked by their names; a decorator.

    Parameters
    ----------
    function : callable
        Of a model, bags and ``seed``, with options by keyword. One that is annotated to take a
        `BagStream` may be given one.

    Returns
    -------
    callable
        Raises a TypeError for what is no model, no bags or no seed, and a ValueError for options
        that break the rule of their name; None stands for a default that is None.
    """
    parameters = inspect.signature(function).parameters
    streams = "BagStream" in str(parameters["bags"].annotation)
    rules = _RULES | {"bags": _BAGS_OR_STREAM if streams else _BAGS}
    checked = {name: rules[name] for name in parameters if name in rules}

    @wraps(function)
    def door(*args: Any, **options: Any) -> Any:
        given = dict(zip(parameters, args, strict=False)) | options
        for name, rule in checked.items():
            if name in given and not (given[name] is None and parameters[name].default is None):
                check(name, given[name], rule)
        if "seed" in given:
            random_key(given["seed"])
        return function(*args, **options)

    return door  # type: ignore[return-value]
