"""Hyper-parameters: numbers, or the priors they have."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array
from numpyro.distributions import Distribution, constraints

__all__ = ["Parameter", "central_value", "check_prior", "may_be_positive"]

# While JAX traces, the number is a traced array.
type Parameter = float | Distribution | Array


def check_prior(owner: str, name: str, prior: Distribution, wanted: constraints.Constraint) -> None:
    """Raise an error unless a prior is of one real, or one positive, number.

    Raises
    ------
    ValueError
        If it is no distribution, has an event or batch shape, or another support.
    """
    is_scalar = isinstance(prior, Distribution) and prior.shape() == ()
    values = prior.support if is_scalar else None
    is_right = values is constraints.real if wanted is constraints.real else values == wanted
    if not is_right:
        raise ValueError(
            f"{owner} {name} is {prior!r}; expected a NumPyro distribution of one "
            f"{'real' if wanted is constraints.real else 'positive'} number"
        )


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


def may_be_positive(value: Any) -> bool:
    """Whether a number, or some value of a prior, is positive; True for traced values."""
    if isinstance(value, Distribution):
        lower_bound = getattr(value.support, "lower_bound", None)
        return value.shape() == () and lower_bound is not None and float(lower_bound) >= 0
    if isinstance(value, int | float | np.number | np.ndarray):
        return np.ndim(value) == 0 and bool(np.isfinite(value) and value > 0)
    return not isinstance(value, str)
