"""Hyper-parameters that are numbers or have priors."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array
from numpyro.distributions import Distribution, ExpandedDistribution, Independent, constraints

from ...datasets.arguments import FINITE, POSITIVE, Rule
from ..numerics.tracing import evaluated_apart_from_traces

__all__ = [
    "LARGEST_VARIANCE",
    "Parameter",
    "Parameters",
    "central_value",
    "component_distributions",
    "finite_or_prior",
    "largest_value",
    "number_or_array",
    "positive_for_each_or_prior",
    "positive_or_prior",
    "prior_of",
    "prior_range",
    "shape_of",
]

# Largest variance that quadrature is made for where it has a prior. Nodes grow with its root or
# faster. At 400 the rule for 64 is wrong by 2e-4 in log E σ.
LARGEST_VARIANCE = 64.0
# Mass of a prior in each tail that programs need not be made for.
_TAIL = 1e-4

# While JAX traces, the number is a traced array.
type Parameter = float | Distribution | Array
# Of one number, or of one for each feature.
type Parameters = Parameter | np.ndarray


def shape_of(parameter: Parameters) -> tuple[int, ...]:
    """Shape of a number, an array, or the values of a prior."""
    if isinstance(parameter, Distribution):
        prior: Any = parameter
        return prior.shape()
    return np.shape(parameter)


def number_or_array(value: Any) -> float | np.ndarray:
    """A Python number, or an array of numbers, from an array of JAX or NumPy."""
    array = np.asarray(value, float)
    return array if array.ndim else float(array)


def central_value(parameter: Parameters) -> float | np.ndarray:
    """Starting value of a hyper-parameter: the number or array itself, or the median of its prior.

    Parameters
    ----------
    parameter : float, array (D,) or Distribution

    Returns
    -------
    float or array (D,)
        The mean of a prior whose median has no closed form.

    Examples
    --------
    >>> from numpyro.distributions import Gamma, LogNormal
    >>> from milzoo.models.parts.hyperpriors import central_value
    >>> central_value(3.0), round(central_value(LogNormal(0.0, 5.0)), 3), central_value(Gamma(2.0))
    (3.0, 1.0, 2.0)
    """
    if not isinstance(parameter, Distribution):
        return number_or_array(parameter)
    prior: Any = parameter
    median = _quantile(prior, 0.5)
    return number_or_array(prior.mean if median is None else median)


def largest_value(parameter: Parameters) -> float:
    """Largest of some variances; for a prior, a high quantile of at most 64."""
    if not isinstance(parameter, Distribution):
        return float(np.max(np.asarray(parameter)))
    high = _quantile(parameter, 1 - _TAIL)
    return LARGEST_VARIANCE if high is None else min(float(high), LARGEST_VARIANCE)


def prior_range(prior: Distribution) -> tuple[float | np.ndarray, float | np.ndarray]:
    """Interval that has nearly all mass of a prior of positive numbers.

    Where quantiles have no closed form: from 1/64 of the mean to 64 times the mean.
    """
    low, high = _quantile(prior, _TAIL), _quantile(prior, 1 - _TAIL)
    if low is None or high is None:
        with evaluated_apart_from_traces():
            mean = np.asarray(prior.mean)
        low, high = mean / LARGEST_VARIANCE, mean * LARGEST_VARIANCE
    return number_or_array(low), number_or_array(high)


def component_distributions(prior: Distribution) -> Distribution:
    """The distributions of the numbers of a vector as a batch, with a parameter for each."""
    shape = prior.shape()
    while isinstance(prior, Independent | ExpandedDistribution):
        prior = prior.base_dist
    of: Any = prior
    given = {name: np.broadcast_to(getattr(of, name), shape) for name in of.arg_constraints}
    return type(of)(**given) if shape else of


def _quantile(prior: Distribution, probability: float) -> Any:
    """A quantile, of each number of several; None where there is no closed form."""
    one: Any = component_distributions(prior)
    try:
        with evaluated_apart_from_traces():  # a prior is never traced
            return one.icdf(probability)
    except (NotImplementedError, ImportError):  # some quantiles need TensorFlow Probability
        return None


def _is_of_positive_numbers(prior: Distribution) -> bool:
    support = prior.support
    if isinstance(support, constraints.independent):
        support = support.base_constraint
    lower_bound = getattr(support, "lower_bound", None)
    return lower_bound is not None and bool(np.all(np.asarray(lower_bound) >= 0))


def _may_be_positive(value: Any) -> bool:
    """Whether a number, or some value of a prior, is positive."""
    if isinstance(value, Distribution):
        return value.shape() == () and _is_of_positive_numbers(value)
    return POSITIVE.accepts(value)


def _may_be_positive_for_each(value: Any) -> bool:
    """Whether one number, or one for each feature, is positive or has a prior that may be."""
    if isinstance(value, Distribution) and len(value.event_shape) == 1:
        return value.batch_shape == () and _is_of_positive_numbers(value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return all(map(POSITIVE.accepts, value))
    return _may_be_positive(value)


def prior_of(wanted: constraints.Constraint) -> Rule:
    """A rule that accepts priors of one real, or one positive, number."""

    def accepts(value: Any) -> bool:
        if not (isinstance(value, Distribution) and value.shape() == ()):
            return False
        # An interval may say that it equals all real numbers.
        return value.support is wanted if wanted is constraints.real else value.support == wanted

    kind = "real" if wanted is constraints.real else "positive"
    return Rule(f"a NumPyro distribution of one {kind} number", accepts)


def positive_or_prior(example: str) -> Rule:
    """A rule that accepts a positive number, or a prior of one."""
    return Rule(
        f"a positive finite number or a NumPyro distribution of one, such as {example}",
        _may_be_positive,
    )


def positive_for_each_or_prior(example: str) -> Rule:
    """A rule that accepts a positive number, one for each feature, or a prior of either."""
    return Rule(
        f"a positive finite number, an array with one for each feature, or a NumPyro distribution "
        f"such as {example}, for each feature with .to_event(1)",
        _may_be_positive_for_each,
    )


def finite_or_prior(example: str) -> Rule:
    """A rule that accepts a finite number, or a prior of one."""
    return Rule(
        f"a finite number or a NumPyro distribution of one, such as {example}",
        lambda value: (
            FINITE.accepts(value) or (isinstance(value, Distribution) and value.shape() == ())
        ),
    )
