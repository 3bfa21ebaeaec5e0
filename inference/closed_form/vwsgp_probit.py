"""Closed-form updates of VWSGP with the probit, in whitened coordinates u = Lε.

The label is the sign of a latent utility z_b | u ~ N(a_bᵀu, v_b) with v_b = 1 + noise + k̄_b
(Albert and Chib). Under q(u) q(z) both factors are known laws: q(u) Gaussian, q(z_b) Gaussian cut
off at zero. The precision of q(u) never moves.

======================  =========================================
code                    symbol
======================  =========================================
``projection``          V = Σ_{n∈b} V_n, so that a_bᵀu = Vε
``utility_variance``    v_b
``sign``                ±1 for T_b = 1, 0
``standing``            ±a_bᵀm/√v_b
``precision_cholesky``  R, RRᵀ = I + Vᵀ diag(1/v) V = S⁻¹
======================  =========================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr
from jax.scipy.stats import norm
from jaxtyping import Array, Float
from numpyro.distributions.transforms import AffineTransform

from ...datasets.bags import Bags
from ...models.bag_evidence import BagEvidenceModel, FloatType
from ...models.likelihoods import Probit
from ...models.model import Program
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
    "ProbitApproximation",
    "ProbitProblem",
    "approximation",
    "elbo",
    "evaluated_at",
    "init",
    "problem_of",
    "settled",
    "step",
    "sums",
]


class ProbitProblem(NamedTuple):
    """All that stays fixed; the first two as in `SparseConditional`."""

    cholesky: Float[Array, "M M"]  # L
    projection: Float[Array, "B M"]  # V
    utility_variance: Float[Array, " B"]  # v
    sign: Float[Array, " B"]
    bag_weight: Float[Array, " B"]  # 1, or how often a bag counts


def init(model: BagEvidenceModel, bags: Bags) -> tuple[ProbitProblem, InducingState]:
    """The problem, and q(u) = p(u).

    Parameters
    ----------
    model : BagEvidenceModel
        With numbers as hyper-parameters.
    bags : Bags
        With labels.

    Returns
    -------
    ProbitProblem, InducingState
    """
    problem = problem_of(model, bags)
    return problem, InducingState.prior(problem.cholesky.shape[0])


def problem_of(model: BagEvidenceModel, bags: Bags, dtype: FloatType = "float64") -> ProbitProblem:
    """What stays fixed.

    Parameters
    ----------
    model : BagEvidenceModel
    bags : Bags
        With labels; may be traced.
    dtype : {"float64", "float32"}
        As of ``accumulated``.

    Returns
    -------
    ProbitProblem
    """
    sign = 2.0 * jnp.asarray(bags.labels) - 1.0
    return _problem(model, bags, sign, jnp.ones_like(sign), dtype)


def _problem(
    model: BagEvidenceModel,
    bags: Bags,
    sign: Float[Array, " B"],
    bag_weight: Float[Array, " B"],
    dtype: FloatType = "float64",
) -> ProbitProblem:
    cholesky, projection, residual_variance, _ = model.accumulated(bags, dtype)
    assert isinstance(model.likelihood, Probit)
    utility_variance = model.likelihood.utility_variance(residual_variance)
    return ProbitProblem(cholesky, projection, utility_variance, sign, bag_weight)


def step(problem: ProbitProblem, state: InducingState) -> InducingState:
    """q(z), then q(u).

    Parameters
    ----------
    problem : ProbitProblem
    state : InducingState

    Returns
    -------
    InducingState
    """
    return InducingState(*inducing_posterior(*statistics(problem, state)))


def statistics(
    problem: ProbitProblem, state: InducingState
) -> tuple[Float[Array, "M M"], Float[Array, " M"]]:
    """Σ_b a_b a_bᵀ/v_b and Σ_b a_b E z_b/v_b."""
    precision = problem.bag_weight / problem.utility_variance
    return regression_sums(problem.projection, expected_utility(problem, state), precision)


def expected_utility(problem: ProbitProblem, state: InducingState) -> Float[Array, " B"]:
    """E z_b = a_bᵀm ± √v_b φ(x)/Φ(x), x = ±a_bᵀm/√v_b: the mean of a Gaussian cut off at zero."""
    x = _standing(problem, state)
    excess = jnp.exp(norm.logpdf(x) - log_ndtr(x))  # φ/Φ, also far in the tail
    return problem.sign * jnp.sqrt(problem.utility_variance) * (x + excess)


def elbo(problem: ProbitProblem, state: InducingState) -> Float[Array, ""]:
    """The evidence lower bound of any q(u), with q(z) at its best for it.

    ELBO = Σ_b [log Φ(±a_bᵀm/√v_b) − a_bᵀS a_b/(2v_b)] − KL(q(u) ‖ p(u)).

    Parameters
    ----------
    problem : ProbitProblem
    state : InducingState

    Returns
    -------
    float
        In nats.
    """
    divergence = divergence_from_prior(state.mean, state.precision_cholesky)
    variance = row_sums_of_squares(problem.projection, state.precision_cholesky)
    return _bound_of_bags(problem, state, variance) - divergence


def sums(problem: ProbitProblem, factor: InducingFactor) -> InducingSums:
    """What a part of the bags adds to the next q(ε) and to the bound, q(z) at its best.

    Parameters
    ----------
    problem : ProbitProblem
        Of these bags.
    factor : InducingFactor
        q(ε).

    Returns
    -------
    InducingSums
    """
    state = InducingState(factor.mean, factor.precision_cholesky)
    variance = squared_norms(problem.projection, factor.covariance_root)
    return InducingSums(*statistics(problem, state), _bound_of_bags(problem, state, variance))


def _bound_of_bags(
    problem: ProbitProblem, state: InducingState, variance: Float[Array, " B"]
) -> Float[Array, ""]:
    """At any q(u), of which ``variance`` is a_bᵀS a_b."""
    by_bag = log_ndtr(_standing(problem, state)) - 0.5 * variance / problem.utility_variance
    return problem.bag_weight @ by_bag


def _standing(problem: ProbitProblem, state: InducingState) -> Float[Array, " B"]:
    return problem.sign * (problem.projection @ state.mean) / jnp.sqrt(problem.utility_variance)


def evaluated_at(problem: ProbitProblem, model: BagEvidenceModel, bags: Bags) -> ProbitProblem:
    """The problem with another kernel.

    Parameters
    ----------
    problem : ProbitProblem
    model : BagEvidenceModel
    bags : Bags

    Returns
    -------
    ProbitProblem
    """
    return _problem(model, bags, problem.sign, problem.bag_weight)


def settled(problem: ProbitProblem, state: InducingState) -> InducingState:
    """The same q(ε) under a moved problem: q(z) is not kept.

    Parameters
    ----------
    problem : ProbitProblem
    state : InducingState

    Returns
    -------
    InducingState
    """
    return state


@archive.register
@dataclass(frozen=True, eq=False)
class ProbitApproximation(InducingApproximation):
    """q(u) q(z).

    Attributes
    ----------
    utility_location, utility_scale : array (B,)
        Of the Gaussian that q(z_b) is before it is cut off: a_bᵀm and √v_b.
    sign : array (B,)
        The side that is left of it.
    """

    utility_location: Float[np.ndarray, " B"]
    utility_scale: Float[np.ndarray, " B"]
    sign: Float[np.ndarray, " B"]

    def guide(self, model: BagEvidenceModel) -> Program:
        """q(u) q(z), the guide of ``model.augmented()`` on the training bags."""

        def guide(bags: Bags) -> None:
            numpyro.sample("inducing_value", self.inducing_law())
            sign = jnp.asarray(self.sign)
            above = dist.TruncatedNormal(
                sign * self.utility_location, jnp.asarray(self.utility_scale), low=0.0
            )
            with numpyro.plate("bag", bags.num_bags):
                cut_off = dist.TransformedDistribution(above, AffineTransform(0.0, sign))
                numpyro.sample("latent_utility", cut_off)

        return guide


def approximation(problem: ProbitProblem, state: InducingState) -> ProbitApproximation:
    """The state as the law that it leaves behind.

    Parameters
    ----------
    problem : ProbitProblem
    state : InducingState

    Returns
    -------
    ProbitApproximation
    """
    return ProbitApproximation(
        **coloured(problem.cholesky, state.mean, state.precision_cholesky),
        utility_location=np.asarray(problem.projection @ state.mean),
        utility_scale=np.sqrt(np.asarray(problem.utility_variance)),
        sign=np.asarray(problem.sign),
    )
