"""Hyper-parameters by the evidence: Laplace's, which is smooth in them, by its exact gradient."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float
from numpyro.distributions import Distribution, biject_to, constraints
from scipy.optimize import minimize

from ..datasets.bags import Bags
from ..models.model import Model
from ..models.numerics.lbfgs import minimise_by_newton
from ..models.parts.hyperpriors import central_value, number_or_array
from .gaussian import WhitenedProgram, whitened_program
from .modes import FLAT, check_smooth

__all__ = ["Learned", "learn_by_evidence"]

type Values = dict[str, Any]

# Log sd of the prior that stands in for a number to be learned, whose density is taken off again.
# It is as wide as the range of variances that a quadrature rule is made for.
_WIDTH = 2.0
# The search ends where a step gains less than this fraction of the log evidence, or after so many.
_SMALL_GAIN, _MOST_SEARCH_STEPS = 1e-4, 100
# Values are looked for within this factor of the start; of a real number, so many of its sizes.
_FACTOR, _SIZES = 80.0, 10.0
# Stands for −log evidence where that is not a number: larger than any that is.
_NO_VALUE = 1e10


class Learned(NamedTuple):
    """Hyper-parameters at a maximum of Laplace's log evidence.

    Attributes
    ----------
    model : Model
        With the learned values.
    log_evidence : float
        Laplace's, at these; without any prior of the hyper-parameters.
    num_steps : int
        Of the quasi-Newton search.
    complaint : str
        What is wrong with the values; empty if nothing.
    """

    model: Model
    log_evidence: float
    num_steps: int
    complaint: str


def learn_by_evidence(model: Model, bags: Bags, max_steps: int) -> Learned:
    r"""Maximise Laplace's log evidence in the hyper-parameters.

    .. math:: L(h) = \log p(D, \hat u; h) + \tfrac{P}{2} \log 2\pi - \tfrac12 \log |H(\hat u; h)|,
        \qquad \hat u = \arg\max_u p(D, u; h)

    with u in whitened coordinates, H the negative Hessian there. Where a hyper-parameter has a
    prior, its log density is added: the result is the posterior mode of h. The gradient goes
    through the mode: with :math:`g = \partial_u (-\log p)`, u − H⁻¹g has the value and, H⁻¹ kept
    fixed, the derivative of û (the implicit function theorem).

    Parameters
    ----------
    model : Model
        Numbers are where the search starts from; of a prior, its median.
    bags : Bags
    max_steps : int
        Newton steps for each mode.

    Returns
    -------
    Learned

    Raises
    ------
    ValueError
        If the model has no hyper-parameters, or a prior has a kink.

    References
    ----------
    MacKay (1992), Bayesian interpolation; Rasmussen and Williams (2006), section 5.5.1.
    """
    given = model.hyperparameters
    if not given:
        raise ValueError(
            f"learn_hyperparameters=True, but {model.name} has no hyper-parameters; leave it out"
        )
    opened = model.with_hyperparameters(
        {name: _prior_around(model, name, value) for name, value in given.items()}
    )
    has_prior = tuple(sorted(name for name, value in given.items() if _is_prior(value)))
    target_density = jax.device_put(whitened_program(opened, bags))
    check_smooth(target_density)
    first = {name: _start(model, name, value) for name, value in given.items()}
    names = _numbered(first)
    ranges = [
        _range(model, name, given[name], start)
        for name, starts in first.items()
        for start in np.ravel(starts)
    ]
    objective = partial(_objective_at, target_density, first, has_prior, max_steps)

    def loss(point: Float[np.ndarray, " H"]) -> tuple[float, Float[np.ndarray, " H"]]:
        value, gradient, _ = objective(point)
        return (-value, -gradient) if math.isfinite(value) else (_NO_VALUE, np.zeros_like(point))

    found = minimize(
        loss,
        np.concatenate([np.ravel(starts) for starts in first.values()]),
        jac=True,
        method="L-BFGS-B",
        bounds=ranges,
        options={"maxiter": _MOST_SEARCH_STEPS, "ftol": _SMALL_GAIN},
    )
    value, _, log_prior = objective(found.x)
    if not math.isfinite(value):
        return Learned(model, math.nan, int(found.nit), "the log evidence is not finite")
    values = {
        name: number_or_array(biject_to(_support(model, name, given[name]))(end))
        for name, end in _by_name(found.x, first).items()
    }
    learned = np.concatenate([np.ravel(of) for of in values.values()])
    ends = zip(names, learned, found.x, ranges, strict=True)
    at_limit = {
        name: value for name, value, end, limits in ends if min(abs(end - np.array(limits))) < 1e-6
    }
    return Learned(
        model=model.with_hyperparameters(values),
        log_evidence=value - log_prior,
        num_steps=int(found.nit),
        complaint=_complaint(at_limit, is_done=bool(found.success)),
    )


def _numbered(values: Values) -> list[str]:
    """The name of each number, with its place where there are several of one name."""
    return [
        f"{name}[{place}]" if np.ndim(of) else name
        for name, of in values.items()
        for place in range(np.size(of))
    ]


def _by_name(flat: Float[np.ndarray, " H"], like: Values) -> Values:
    """The numbers of a flat vector in the shapes of values."""
    ends = np.cumsum([np.size(of) for of in like.values()])[:-1]
    parts = np.split(np.asarray(flat, float), ends)
    return {
        name: part.reshape(np.shape(of))
        for (name, of), part in zip(like.items(), parts, strict=True)
    }


def _complaint(at_limit: dict[str, float], *, is_done: bool) -> str:
    """What is wrong with the end of a search."""
    if at_limit:
        named = ", ".join(f"{name} = {value:.4g}" for name, value in at_limit.items())
        return (
            f"the log evidence still rises at the limit of the search, {named}: these bags do not "
            "determine it; give it a prior"
        )
    return "" if is_done else f"still moving after {_MOST_SEARCH_STEPS} steps of the search"


def _is_prior(value: Any) -> bool:
    return isinstance(value, Distribution)


def _support(model: Any, name: str, value: Any) -> constraints.Constraint:
    return value.support if _is_prior(value) else model.support_of(name)


def _prior_around(model: Any, name: str, value: Any) -> Distribution:
    """The prior; for a number one that stands in for it, so that programs have the site."""
    if _is_prior(value):
        return value
    if model.support_of(name) is constraints.real:
        return dist.Normal(float(value), 1.0)
    prior = dist.LogNormal(np.log(number_or_array(value)), _WIDTH)
    return prior.to_event(1) if np.ndim(value) else prior


def _start(model: Any, name: str, value: Any) -> Float[np.ndarray, "*D"]:
    """The number or numbers, or the prior's median, unconstrained."""
    return np.asarray(biject_to(_support(model, name, value)).inv(central_value(value)), float)


def _range(model: Any, name: str, value: Any, start: float) -> tuple[float, float]:
    """The unconstrained values among which the best is looked for."""
    if _support(model, name, value) is constraints.real:
        reach = _SIZES * max(1.0, abs(start))
    else:
        reach = math.log(_FACTOR)
    return start - reach, start + reach


def _objective_at(
    target_density: WhitenedProgram,
    like: Values,
    has_prior: tuple[str, ...],
    max_steps: int,
    point: Float[np.ndarray, " H"],
) -> tuple[float, Float[np.ndarray, " H"], float]:
    """The objective at a flat vector of unconstrained values, its gradient, and the log prior."""
    gradient, (value, log_prior) = _objective(
        target_density, _by_name(point, like), np.asarray(max_steps), has_prior=has_prior
    )
    flat = np.concatenate([np.ravel(gradient[name]) for name in like])
    return float(value), flat, float(log_prior)


@partial(jax.jit, static_argnames="has_prior")
def _objective(
    target_density: WhitenedProgram,
    values: Values,
    max_steps: Any,
    *,
    has_prior: tuple[str, ...],
) -> tuple[Values, tuple[Float[Array, ""], Float[Array, ""]]]:
    """Gradient of Laplace's log evidence plus log priors; the sum, and the log prior alone.

    The mode is looked for from the origin, so that the value depends on nothing else.
    """

    def loss(latent: Float[Array, " P"], values: Values) -> Float[Array, ""]:
        return -target_density.log_density(_joined(target_density, latent, values))

    start = jnp.zeros(target_density.size - sum(map(jnp.size, values.values())))
    found = minimise_by_newton(lambda latent: loss(latent, values), start, max_steps, FLAT)
    factor = jnp.linalg.cholesky(found.hessian)

    def objective(values: Values) -> tuple[Array, tuple[Array, Array]]:
        step = cho_solve((factor, True), jax.grad(loss)(found.point, values))
        mode = found.point - step  # û, with its derivative
        hessian = jax.hessian(loss)(mode, values)
        half_log_determinant = jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(hessian))))
        log_prior, not_in_evidence = _prior_terms(target_density.model, values, has_prior)
        log_evidence = -loss(mode, values) - half_log_determinant - not_in_evidence
        log_evidence += 0.5 * len(mode) * math.log(2 * math.pi)
        value = log_evidence + log_prior
        return value, (value, log_prior)

    return jax.grad(objective, has_aux=True)(values)


def _joined(
    target_density: WhitenedProgram, latent: Float[Array, " P"], values: Values
) -> Float[Array, " Q"]:
    """The flat vector of the latent sites and the hyper-parameters."""
    sites, begun = dict(values), 0
    for name, shape in target_density.shapes:
        if name not in values:
            size = math.prod(shape)
            sites[name] = latent[begun : begun + size]
            begun += size
    return target_density.flat(sites)


def _prior_terms(model: Any, values: Values, has_prior: tuple[str, ...]) -> tuple[Array, Array]:
    """Log density of the priors that were given; and what the program has of any prior."""
    log_prior = not_in_evidence = jnp.zeros(())
    for name, unconstrained in values.items():
        prior = model.hyperparameters[name]
        transform = biject_to(prior.support)
        value = transform(unconstrained)
        density = prior.log_prob(value)
        not_in_evidence += density + transform.log_abs_det_jacobian(unconstrained, value)
        log_prior += density if name in has_prior else 0.0
    return log_prior, not_in_evidence
