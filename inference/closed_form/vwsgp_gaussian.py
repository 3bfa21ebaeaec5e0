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
import numpyro
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...models.bag_evidence import BagEvidenceModel
from ...models.model import Program
from .. import archive
from ..products import row_sums_of_squares
from .inducing import (
    InducingApproximation,
    InducingState,
    coloured,
    divergence_from_prior,
    regression,
)

__all__ = [
    "GaussianProblem",
    "GaussianTargetApproximation",
    "approximation",
    "elbo",
    "evaluated_at",
    "init",
    "settled",
    "step",
]


class GaussianProblem(NamedTuple):
    """All that stays fixed; the first two as in `SparseConditional`."""

    cholesky: Float[Array, "M M"]  # L
    projection: Float[Array, "B M"]  # V
    target_variance: Float[Array, " B"]  # k̄ + noise
    target: Float[Array, " B"]  # Y


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
    problem = _problem(model, bags, jnp.asarray(bags.targets))
    return problem, InducingState.prior(problem.cholesky.shape[0])


def _problem(model: BagEvidenceModel, bags: Bags, target: Float[Array, " B"]) -> GaussianProblem:
    accumulated = model.accumulated(bags)
    target_variance = accumulated.residual_variance + model.noise_variance
    return GaussianProblem(accumulated.cholesky, accumulated.projection, target_variance, target)


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
    return regression(problem.projection, problem.target, problem.target_variance)


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
    variance = row_sums_of_squares(problem.projection, state.precision_cholesky)
    squared_error = (problem.target - problem.projection @ state.mean) ** 2 + variance
    by_bag = jnp.log(2 * jnp.pi * problem.target_variance) + squared_error / problem.target_variance
    return -0.5 * jnp.sum(by_bag) - divergence_from_prior(state.mean, state.precision_cholesky)


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
    return _problem(model, bags, problem.target)


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

    def guide(self, model: BagEvidenceModel) -> Program:
        """q(u), the guide of ``model.augmented()`` and of ``model.marginal()``."""

        def guide(bags: Bags) -> None:
            numpyro.sample("inducing_value", self.inducing_law())

        return guide


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
