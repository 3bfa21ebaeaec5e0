"""The exact posterior and evidence of VWSGP with targets, in whitened coordinates u = Lε.

Y_b | ε ~ N(V_b ε, v_b) with v_b = k̄_b + noise is linear regression on M coefficients: one step
from anywhere is the posterior, and the bound there is the log evidence itself.

======================  =========================================
code                    symbol
======================  =========================================
``projection``          V = Σ_{n∈b} V_n, so that a_bᵀu = Vε
``target_variance``     v_b
``precision_cholesky``  R, RRᵀ = I + Vᵀ diag(1/v) V = S⁻¹
``mean``                m = S Vᵀ (Y/v)
======================  =========================================
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...models.bag_evidence import BagEvidenceModel, FloatType
from ...models.likelihoods import Gaussian
from .. import archive
from ..products import row_sums_of_squares, squared_norms
from .inducing import (
    InducingApproximation,
    InducingFactor,
    InducingState,
    InducingSums,
    coloured,
    divergence_from_prior,
    inducing_posterior,
    regression_sums,
)

__all__ = [
    "GaussianProblem",
    "GaussianTargetApproximation",
    "approximation",
    "elbo",
    "evaluated_at",
    "init",
    "problem_of",
    "settled",
    "step",
    "sums",
]


class GaussianProblem(NamedTuple):
    """All that stays fixed; the first two as in `SparseConditional`."""

    cholesky: Float[Array, "M M"]  # L
    projection: Float[Array, "B M"]  # V
    target_variance: Float[Array, " B"]  # k̄ + noise
    target: Float[Array, " B"]  # Y
    bag_weight: Float[Array, " B"]  # 1, or how often a bag counts


def init(model: BagEvidenceModel, bags: Bags) -> tuple[GaussianProblem, InducingState]:
    """The problem, and q(u) = p(u).

    Parameters
    ----------
    model : BagEvidenceModel
        With numbers as hyper-parameters.
    bags : Bags
        With targets.

    Returns
    -------
    GaussianProblem, InducingState
    """
    problem = problem_of(model, bags)
    return problem, InducingState.prior(problem.cholesky.shape[0])


def problem_of(
    model: BagEvidenceModel, bags: Bags, dtype: FloatType = "float64"
) -> GaussianProblem:
    """What stays fixed.

    Parameters
    ----------
    model : BagEvidenceModel
    bags : Bags
        With targets; may be traced.
    dtype : {"float64", "float32"}
        As of ``accumulated``.

    Returns
    -------
    GaussianProblem
    """
    target = jnp.asarray(bags.targets)
    return _problem(model, bags, target, jnp.ones_like(target), dtype)


def _problem(
    model: BagEvidenceModel,
    bags: Bags,
    target: Float[Array, " B"],
    bag_weight: Float[Array, " B"],
    dtype: FloatType = "float64",
) -> GaussianProblem:
    cholesky, projection, residual_variance, _ = model.accumulated(bags, dtype)
    assert isinstance(model.likelihood, Gaussian)
    target_variance = residual_variance + model.likelihood.noise
    return GaussianProblem(cholesky, projection, target_variance, target, bag_weight)


def step(problem: GaussianProblem, state: InducingState) -> InducingState:
    """The posterior: sums over the bags, q(u) from the sums.

    Parameters
    ----------
    problem : GaussianProblem
    state : InducingState
        Of which nothing is used.

    Returns
    -------
    InducingState
    """
    return InducingState(*inducing_posterior(*statistics(problem)))


def statistics(problem: GaussianProblem) -> tuple[Float[Array, "M M"], Float[Array, " M"]]:
    """Σ_b a_b a_bᵀ/v_b and Σ_b a_b Y_b/v_b."""
    precision = problem.bag_weight / problem.target_variance
    return regression_sums(problem.projection, problem.target, precision)


def elbo(problem: GaussianProblem, state: InducingState) -> Float[Array, ""]:
    """The evidence lower bound of any q(u); at the posterior, log p(Y).

    ELBO = Σ_b [log N(Y_b; a_bᵀm, v_b) − a_bᵀS a_b / (2v_b)] − KL(q(u) ‖ p(u)).

    Parameters
    ----------
    problem : GaussianProblem
    state : InducingState

    Returns
    -------
    float
        In nats.
    """
    divergence = divergence_from_prior(state.mean, state.precision_cholesky)
    variance = row_sums_of_squares(problem.projection, state.precision_cholesky)
    return _bound_of_bags(problem, state, variance) - divergence


def sums(problem: GaussianProblem, factor: InducingFactor) -> InducingSums:
    """What a part of the bags adds to the posterior, and to the bound of a q(ε).

    Parameters
    ----------
    problem : GaussianProblem
        Of these bags.
    factor : InducingFactor
        q(ε).

    Returns
    -------
    InducingSums
    """
    state = InducingState(factor.mean, factor.precision_cholesky)
    variance = squared_norms(problem.projection, factor.covariance_root)
    return InducingSums(*statistics(problem), _bound_of_bags(problem, state, variance))


def _bound_of_bags(
    problem: GaussianProblem, state: InducingState, variance: Float[Array, " B"]
) -> Float[Array, ""]:
    """At any q(u), of which ``variance`` is a_bᵀS a_b."""
    squared_error = (problem.target - problem.projection @ state.mean) ** 2 + variance
    by_bag = jnp.log(2 * jnp.pi * problem.target_variance) + squared_error / problem.target_variance
    return -0.5 * (problem.bag_weight @ by_bag)


def evaluated_at(problem: GaussianProblem, model: BagEvidenceModel, bags: Bags) -> GaussianProblem:
    """The problem with another kernel and noise.

    Parameters
    ----------
    problem : GaussianProblem
    model : BagEvidenceModel
    bags : Bags

    Returns
    -------
    GaussianProblem
    """
    return _problem(model, bags, problem.target, problem.bag_weight)


def settled(problem: GaussianProblem, state: InducingState) -> InducingState:
    """The posterior of a moved problem: what is learned ascends the evidence itself.

    Parameters
    ----------
    problem : GaussianProblem
    state : InducingState

    Returns
    -------
    InducingState
    """
    return step(problem, state)


@archive.register
class GaussianTargetApproximation(InducingApproximation):
    """p(u | Y), exactly."""


def approximation(problem: GaussianProblem, state: InducingState) -> GaussianTargetApproximation:
    """The state as the law that it leaves behind.

    Parameters
    ----------
    problem : GaussianProblem
    state : InducingState

    Returns
    -------
    GaussianTargetApproximation
    """
    return GaussianTargetApproximation(
        **coloured(problem.cholesky, state.mean, state.precision_cholesky),
    )
