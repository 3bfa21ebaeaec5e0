"""Closed-form updates of VWSGP, in whitened coordinates u = Lε.

======================  =========================================
code                    symbol of the paper's section 3
======================  =========================================
``projection``          Σ_{n∈b} V_n, so that a_bᵀu = Vε
``tilt``                ξ_b
``theta``               θ(ξ_b) = 2λ(ξ_b)
``precision_cholesky``  R, RRᵀ = I + VᵀΘV = S⁻¹
``mean``                m
======================  =========================================

The paper prints Jaakkola's bound with f_bᵀ1·T_b in the place of (f_bᵀ1)²; its updates are right.
The bags enter by (a_b, k̄_b) alone, made once; a round costs O(B M²).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int

from ...datasets.bags import Bags
from ...models.bag_evidence import BagEvidenceModel, FloatType
from ...models.distributions import PolyaGamma
from ...models.model import Program
from ...models.scale_mixtures import PolyaGammaMixing
from ...models.sparse_gp import SparseConditional
from .. import archive
from ..products import row_sums_of_squares, squared_norms, weighted_gram
from .inducing import (
    InducingApproximation,
    InducingFactor,
    InducingSums,
    coloured,
    divergence_from_prior,
    inducing_posterior,
)

__all__ = [
    "VWSGPApproximation",
    "VWSGPProblem",
    "VWSGPState",
    "approximation",
    "elbo",
    "evaluated_at",
    "init",
    "init_from_sums",
    "problem_of",
    "settled",
    "step",
    "sums",
    "without",
]

_LOGISTIC = PolyaGammaMixing()


class VWSGPState(NamedTuple):
    """The variational parameters, and the moments of s that follow from them."""

    mean: Float[Array, " M"]  # of ε under q
    precision_cholesky: Float[Array, "M M"]  # R
    evidence_mean: Float[Array, " B"]  # a_bᵀm
    second_moment: Float[Array, " B"]  # E s_b² = (a_bᵀm)² + a_bᵀS a_b + k̄_b
    tilt: Float[Array, " B"]  # ξ_b


class VWSGPProblem(NamedTuple):
    """All that stays fixed during the ascent; the first three as in `SparseConditional`."""

    cholesky: Float[Array, "M M"]  # L
    projection: Float[Array, "B M"]  # Σ V_n
    residual_variance: Float[Array, " B"]  # k̄
    half_sign: Float[Array, " B"]  # T − ½
    bag_weight: Float[Array, " B"]  # 1, or how often a bag counts


# ------------------------------------------------------------------ init, step, elbo


def init(model: BagEvidenceModel, bags: Bags) -> tuple[VWSGPProblem, VWSGPState]:
    """The problem, and q(u) = p(u).

    Parameters
    ----------
    model : BagEvidenceModel
        With numbers as hyper-parameters.
    bags : Bags
        With labels.

    Returns
    -------
    VWSGPProblem, VWSGPState
    """
    return init_from_sums(model.accumulated(bags), jnp.asarray(bags.labels))


def init_from_sums(
    accumulated: SparseConditional, labels: Int[Array, " B"]
) -> tuple[VWSGPProblem, VWSGPState]:
    """The same from a_b and k̄_b, for bags whose instances no memory holds at once.

    Parameters
    ----------
    accumulated : SparseConditional
        As from ``VWSGP.accumulated``, the rows of any number of parts joined.
    labels : array (B,)

    Returns
    -------
    VWSGPProblem, VWSGPState
    """
    problem = _problem_from_sums(accumulated, labels)
    num_inducing = problem.cholesky.shape[0]
    return problem, _with_moments(problem, jnp.zeros(num_inducing), jnp.eye(num_inducing))


def problem_of(model: BagEvidenceModel, bags: Bags, dtype: FloatType = "float64") -> VWSGPProblem:
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
    VWSGPProblem
    """
    return _problem_from_sums(model.accumulated(bags, dtype), jnp.asarray(bags.labels))


def _problem_from_sums(accumulated: SparseConditional, labels: Int[Array, " B"]) -> VWSGPProblem:
    every = jnp.ones_like(accumulated.residual_variance)
    return VWSGPProblem(*accumulated[:3], half_sign=labels - 0.5, bag_weight=every)


def step(problem: VWSGPProblem, state: VWSGPState) -> VWSGPState:
    """One round: sums over the bags, q(u) from the sums, then the tilts.

    Parameters
    ----------
    problem : VWSGPProblem
    state : VWSGPState

    Returns
    -------
    VWSGPState

    References
    ----------
    Kandemir et al. (2016), section 3.
    """
    gram, linear = statistics(problem, state)
    return _with_moments(problem, *inducing_posterior(gram, linear))


def elbo(problem: VWSGPProblem, state: VWSGPState) -> Float[Array, ""]:
    """The evidence lower bound at any tilts, not only at their optimum.

    ELBO = Σ_b [(T_b − ½) a_bᵀm − log 2cosh(ξ_b/2) − ½θ(ξ_b)(E s_b² − ξ_b²)] − KL(q(u) ‖ p(u)).

    Parameters
    ----------
    problem : VWSGPProblem
    state : VWSGPState

    Returns
    -------
    float
        In nats.
    """
    divergence = divergence_from_prior(state.mean, state.precision_cholesky)
    return _bound_of_bags(problem, state) - divergence


def sums(problem: VWSGPProblem, factor: InducingFactor) -> InducingSums:
    """What a part of the bags adds to the next q(ε) and to the bound, tilts at their optimum.

    Parameters
    ----------
    problem : VWSGPProblem
        Of these bags.
    factor : InducingFactor
        q(ε).

    Returns
    -------
    InducingSums
    """
    variance = squared_norms(problem.projection, factor.covariance_root)
    moments = _moments(problem, factor.mean, variance)
    state = VWSGPState(factor.mean, factor.precision_cholesky, *moments)
    return InducingSums(*statistics(problem, state), _bound_of_bags(problem, state))


def _bound_of_bags(problem: VWSGPProblem, state: VWSGPState) -> Float[Array, ""]:
    theta = _LOGISTIC.expected_precision(state.tilt)
    by_bag = problem.half_sign * state.evidence_mean + _LOGISTIC.log_density(state.tilt)
    by_bag -= 0.5 * theta * (state.second_moment - state.tilt**2)
    return problem.bag_weight @ by_bag


def statistics(
    problem: VWSGPProblem, state: VWSGPState
) -> tuple[Float[Array, "M M"], Float[Array, " M"]]:
    """Σ_b θ(ξ_b) a_b a_bᵀ and Σ_b (T_b − ½) a_b: sums over bags, all that q(u) needs of them."""
    theta = problem.bag_weight * _LOGISTIC.expected_precision(state.tilt)
    pull = problem.bag_weight * problem.half_sign
    return weighted_gram(problem.projection, theta), pull @ problem.projection


def _with_moments(
    problem: VWSGPProblem, mean: Float[Array, " M"], precision_cholesky: Float[Array, "M M"]
) -> VWSGPState:
    variance = row_sums_of_squares(problem.projection, precision_cholesky)
    return VWSGPState(mean, precision_cholesky, *_moments(problem, mean, variance))


def _moments(
    problem: VWSGPProblem, mean: Float[Array, " M"], variance: Float[Array, " B"]
) -> tuple[Float[Array, " B"], ...]:
    """E s_b and E s_b² from q(u), where a_bᵀS a_b is given, and ξ_b² = E s_b²."""
    evidence_mean = problem.projection @ mean
    second_moment = evidence_mean**2 + variance + problem.residual_variance
    return evidence_mean, second_moment, jnp.sqrt(second_moment)


def without(problem: VWSGPProblem, held_out: Bool[Array, " B"]) -> VWSGPProblem:
    """Leave bags out of a problem whose shapes stay the same: folds are then compiled once.

    Parameters
    ----------
    problem : VWSGPProblem
    held_out : array (B,)

    Returns
    -------
    VWSGPProblem
    """
    return problem._replace(bag_weight=jnp.where(held_out, 0.0, problem.bag_weight))


# ------------------------------------------------------------------ under another kernel


def evaluated_at(problem: VWSGPProblem, model: BagEvidenceModel, bags: Bags) -> VWSGPProblem:
    """The problem with another kernel.

    Parameters
    ----------
    problem : VWSGPProblem
    model : BagEvidenceModel
    bags : Bags

    Returns
    -------
    VWSGPProblem
    """
    cholesky, projection, residual_variance, _ = model.accumulated(bags)
    return problem._replace(
        cholesky=cholesky, projection=projection, residual_variance=residual_variance
    )


def settled(problem: VWSGPProblem, state: VWSGPState) -> VWSGPState:
    """The same q(ε) under a moved problem: moments anew, tilts at their optimum.

    Parameters
    ----------
    problem : VWSGPProblem
    state : VWSGPState

    Returns
    -------
    VWSGPState
    """
    return _with_moments(problem, state.mean, state.precision_cholesky)


# ------------------------------------------------------------------ the posterior as a law


@archive.register
@dataclass(frozen=True, eq=False)
class VWSGPApproximation(InducingApproximation):
    """q(u) p(s | u) q(ω): what coordinate ascent leaves behind.

    Attributes
    ----------
    tilt : array (B,)
        ξ of q(ω_b).
    """

    tilt: Float[np.ndarray, " B"]

    def guide(self, model: BagEvidenceModel) -> Program:
        """q(u) p(s | u) q(ω), the guide of ``model.augmented()`` on the training bags."""

        def guide(bags: Bags) -> None:
            accumulated = model.accumulated(bags)
            inducing_value = numpyro.sample("inducing_value", self.inducing_law())
            location = accumulated.mean(inducing_value)
            with numpyro.plate("bag", bags.num_bags):
                numpyro.sample("bag_evidence", dist.Normal(location, accumulated.residual_scale))
                numpyro.sample("augmentation", PolyaGamma(1, jnp.asarray(self.tilt)))

        return guide


def approximation(problem: VWSGPProblem, state: VWSGPState) -> VWSGPApproximation:
    """The state as the law that it leaves behind.

    Parameters
    ----------
    problem : VWSGPProblem
    state : VWSGPState

    Returns
    -------
    VWSGPApproximation
    """
    return VWSGPApproximation(
        **coloured(problem.cholesky, state.mean, state.precision_cholesky),
        tilt=np.asarray(state.tilt),
    )
