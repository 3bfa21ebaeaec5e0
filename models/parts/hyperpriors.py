"""Hyper-parameters: numbers, or the priors they have."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array
from numpyro.distributions import Distribution, constraints

from ...datasets.arguments import FINITE, POSITIVE, Rule

__all__ = [
    "Parameter",
    "central_value",
    "finite_or_prior",
    "positive_or_prior",
    "prior_of",
]

# While JAX traces, the number is a traced array.
type Parameter = float | Distribution | Array


def central_value(parameter: Parameter) -> float:
    """A number to start from: itself, or the median of a prior.

    Parameters
    ----------
    parameter : float or Distribution

    Returns
    -------
    float
        The mean of a prior whose median has no closed form.

    Examples
    --------
    >>> from numpyro.distributions import Gamma, LogNormal
    >>> central_value(3.0), round(central_value(LogNormal(0.0, 5.0)), 3), central_value(Gamma(2.0))
    (3.0, 1.0, 2.0)
    """
    if not isinstance(parameter, Distribution):
        return float(np.asarray(parameter))
    prior: Any = parameter
    try:
        return float(prior.icdf(0.5))
    except (NotImplementedError, ImportError):  # some quantiles need TensorFlow Probability
        return float(prior.mean)


def _may_be_positive(value: Any) -> bool:
    """Whether a number, or some value of a prior, is positive."""
    if isinstance(value, Distribution):
        lower_bound = getattr(value.support, "lower_bound", None)
        return value.shape() == () and lower_bound is not None and float(lower_bound) >= 0
    return POSITIVE.accepts(value)


def prior_of(wanted: constraints.Constraint) -> Rule:
    """A prior of one real, or one positive, number."""

    def accepts(value: Any) -> bool:
        if not (isinstance(value, Distribution) and value.shape() == ()):
            return False
        # An interval may say that it equals all real numbers.
        return value.support is wanted if wanted is constraints.real else value.support == wanted

    kind = "real" if wanted is constraints.real else "positive"
    return Rule(f"a NumPyro distribution of one {kind} number", accepts)


def positive_or_prior(example: str) -> Rule:
    """A positive number, or a prior of one."""
    return Rule(
        f"a positive finite number or a NumPyro distribution of one, such as {example}",
        _may_be_positive,
    )


def finite_or_prior(example: str) -> Rule:
    """A number, or a prior of one."""
    return Rule(
        f"a finite number or a NumPyro distribution of one, such as {example}",
        lambda value: (
            FINITE.accepts(value) or (isinstance(value, Distribution) and value.shape() == ())
        ),
    )
