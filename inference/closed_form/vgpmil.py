"""Closed-form updates of ψ-VGPMIL, in whitened coordinates u = Lε.

======================  =========================  ==================================
code                    symbol                     equation of the paper
======================  =========================  ==================================
``projection``          V = K_XZ L⁻ᵀ, A u = V ε    3
``tilt``                c_n                        28
``expected_precision``  θ(c_n), Θ                  28
``precision_cholesky``  R, RRᵀ = I + VᵀΘV = S⁻¹    27
``mean``                m                          26
``label_logits``        η, q(y_n = 1) = π_n        25
======================  =========================  ==================================

``label_update="exact"`` replaces the paper's mean field over labels by their exact joint law
q(y_b) ∝ Π e^{y_n μ_n} H^{[T_b = max y_b]}: tighter, without an inner sweep, and monotone.
``"plug_in_max"`` is what the published codes run: E max of the other labels ≈ the maximum of their
means, all instances at once. It ascends no bound; the ELBO reported with it is the honest
mean-field one of the q it arrives at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import sigmoid, softplus
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from ...datasets.bags import Bags
from ...models.bag_evidence import FloatType
from ...models.distributions import InstanceLabels
from ...models.model import Program
from ...models.scale_mixtures import Mixing
from ...models.sparse_gp import Projector
from ...models.vgpmil import VGPMIL
from .. import archive
from ..products import (
    Panels,
    gram_from_panels,
    gram_panels,
    in_row_blocks,
    row_sums_of_squares,
    squared_norms,
    weighted_gram,
)
from .inducing import (
    InducingApproximation,
    InducingFactor,
    InducingSums,
    coloured,
    divergence_from_prior,
    inducing_posterior,
)

__all__ = [
    "LABEL_UPDATES",
    "VGPMILApproximation",
    "VGPMILProblem",
    "VGPMILRules",
    "VGPMILState",
    "approximation",
    "elbo",
    "evaluated_at",
    "held",
    "init",
    "settled",
    "step",
    "sums",
    "sums_of_held",
    "with_moments",
]

type LabelUpdate = Literal["exact", "mean_field", "plug_in_max"]
LABEL_UPDATES: tuple[LabelUpdate, ...] = ("exact", "mean_field", "plug_in_max")


class VGPMILState(NamedTuple):
    """The variational parameters, and the moments of f that follow from them."""

    mean: Float[Array, " M"]  # of ε under q
    precision_cholesky: Float[Array, "M M"]  # R
    evidence_mean: Float[Array, " N"]  # μ_n = μ0 + V_n mean
    second_moment: Float[Array, " N"]  # E f_n² = μ_n² + ‖R⁻¹V_n‖² + k̃_n
    tilt: Float[Array, " N"]  # c_n
    label_logits: Float[Array, " N"]  # η_n


@jax.tree_util.register_static
@dataclass(frozen=True)
class VGPMILRules:
    """What is decided before anything is compiled.

    Attributes
    ----------
    mixing : Mixing
        ψ.
    label_update : {"exact", "mean_field", "plug_in_max"}
    longest_bag : int
        Length of a mean-field sweep.
    """

    mixing: Mixing
    label_update: LabelUpdate
    longest_bag: int


class VGPMILProblem(NamedTuple):
    """All that stays fixed during the ascent."""

    cholesky: Float[Array, "M M"]  # L
    projection: Float[Array, "N M"]  # V
    residual_variance: Float[Array, " N"]  # k̃
    prior_mean: Float[Array, ""]  # μ0
    sharpness: Float[Array, ""]  # H
    bag_index: Int[Array, " N"]
    bag_label: Int[Array, " B"]  # T
    bag_weight: Float[Array, " B"]  # 1, or how often a bag counts
    rules: VGPMILRules

    @property
    def num_bags(self) -> int:
        """B."""
        return self.bag_label.shape[0]

    @property
    def instance_weight(self) -> Float[Array, " N"]:
        """That of the bag."""
        return self.bag_weight[self.bag_index]

    def sum_over_bags(self, values: Float[Array, " N"]) -> Float[Array, " B"]:
        """Σ_{n∈b}."""
        return jax.ops.segment_sum(
            values, self.bag_index, num_segments=self.num_bags, indices_are_sorted=True
        )

    def label_law(self, label_logits: Float[Array, " N"]) -> InstanceLabels:
        """The exact joint law q(y) ∝ Π e^{y_n η_n} H^{[T_b = max y_b]}."""
        return InstanceLabels(
            label_logits, self.bag_index, self.bag_label, self.sharpness, self.num_bags
        )


# ------------------------------------------------------------------ init, step, elbo


def init(
    model: VGPMIL, bags: Bags, *, label_update: LabelUpdate, key: Array
) -> tuple[VGPMILProblem, VGPMILState]:
    """The problem, and q(u) = p(u) with labels as each update wants them to start.

    Parameters
    ----------
    model : VGPMIL
        With numbers as hyper-parameters.
    bags : Bags
        With labels.
    label_update : {"exact", "mean_field", "plug_in_max"}
    key : array
        Of the random start that the paper gives to mean-field labels.

    Returns
    -------
    VGPMILProblem, VGPMILState
    """
    problem = problem_of(model, bags, label_update=label_update)
    num_instances, num_inducing = problem.projection.shape
    if label_update == "exact":
        label_logits = jnp.full(num_instances, problem.prior_mean)
    elif label_update == "mean_field":
        label_logits = jax.random.logistic(key, (num_instances,), problem.projection.dtype)
    else:  # the published codes start with π near 0
        label_logits = jnp.full(num_instances, -10.0)
    start = with_moments(
        problem,
        mean=jnp.zeros(num_inducing),
        precision_cholesky=jnp.eye(num_inducing),
        tilt=jnp.zeros(num_instances),
        label_logits=label_logits,
    )
    return problem, start._replace(tilt=jnp.sqrt(start.second_moment))


def problem_of(model: VGPMIL, bags: Bags, *, label_update: LabelUpdate) -> VGPMILProblem:
    """What stays fixed.

    Parameters
    ----------
    model : VGPMIL
    bags : Bags
        With labels.
    label_update : {"exact", "mean_field", "plug_in_max"}

    Returns
    -------
    VGPMILProblem
    """
    conditional = model.conditional(bags)
    parts = (conditional.cholesky, conditional.projection, conditional.residual_variance)
    rules = VGPMILRules(model.mixing, label_update, int(bags.bag_sizes.max()))
    return _problem(model, bags, *parts)._replace(rules=rules)


def _problem(
    model: VGPMIL,
    bags: Bags,
    cholesky: Float[Array, "M M"],
    projection: Float[Array, "N M"],
    residual_variance: Float[Array, " N"],
) -> VGPMILProblem:
    """With labels by their exact law."""
    dtype = residual_variance.dtype
    return VGPMILProblem(
        cholesky=cholesky,
        projection=projection,
        residual_variance=residual_variance,
        prior_mean=jnp.asarray(model.mean, dtype=dtype),
        sharpness=jnp.asarray(model.sharpness, dtype=dtype),
        bag_index=jnp.asarray(bags.bag_index),
        bag_label=jnp.asarray(bags.labels),
        bag_weight=jnp.ones(bags.num_bags, dtype),
        rules=VGPMILRules(model.mixing, "exact", 0),
    )


def step(problem: VGPMILProblem, state: VGPMILState) -> VGPMILState:
    """One round: sums over the bags, q(u) from the sums, then tilts and labels.

    Parameters
    ----------
    problem : VGPMILProblem
    state : VGPMILState

    Returns
    -------
    VGPMILState
        With every factor of q at its optimum given the others (``plug_in_max`` apart).

    References
    ----------
    Castro-Macías et al. (2024), equations 25–28.
    """
    gram, linear = statistics(problem, state)
    mean, precision_cholesky = inducing_posterior(gram, linear)
    moved = with_moments(problem, mean, precision_cholesky, state.tilt, state.label_logits)
    updated = LABEL_UPDATE_RULES[problem.rules.label_update](problem, moved)
    return moved._replace(tilt=jnp.sqrt(moved.second_moment), label_logits=updated)


def elbo(problem: VGPMILProblem, state: VGPMILState) -> Float[Array, ""]:
    """The evidence lower bound at any tilts and label logits, not only at their optimum.

    ELBO = Σ_n π_n(μ_n − η_n) + Σ_b label terms − B log(H+1) − ½ Σ_n μ_n
         + Σ_n [log ψ(c_n) − ½ θ(c_n)(E f_n² − c_n²)] − KL(q(u) ‖ p(u)),

    with label terms log Z_b(η) for the exact joint law and Σ softplus(η_n) + log H·q(match) for
    the mean field.

    Parameters
    ----------
    problem : VGPMILProblem
    state : VGPMILState
        Consistent: moments as ``with_moments`` makes them.

    Returns
    -------
    float
        In nats.
    """
    divergence = divergence_from_prior(state.mean, state.precision_cholesky)
    return _bound_of_bags(problem, state) - divergence


def held(
    model: VGPMIL, bags: Bags, bag_weight: Float[Array, " B"], dtype: FloatType = "float64"
) -> VGPMILProblem:
    """A part of the bags with V, for `sums_of_held`: to hold V is to evaluate the kernel once.

    Parameters
    ----------
    model : VGPMIL
    bags : Bags
        With labels; may be traced.
    bag_weight : array (B,)
    dtype : {"float64", "float32"}
        Of V.

    Returns
    -------
    VGPMILProblem
    """
    wide, narrow = bag_weight.dtype, jax.dtypes.canonicalize_dtype(dtype)
    projector = Projector.of(model.kernel, model.inducing_points, model.jitter)
    rows_of = _projection_in(projector, narrow)
    _, rows = in_row_blocks(lambda x: ((), rows_of(x)), jnp.asarray(bags.instances))
    problem = _problem(model, bags, projector.cholesky, rows[0], rows[1].astype(wide))
    return problem._replace(bag_weight=jnp.asarray(bag_weight))


def sums(
    model: VGPMIL,
    bags: Bags,
    bag_weight: Float[Array, " B"],
    factor: InducingFactor,
    dtype: FloatType = "float64",
) -> InducingSums:
    """What a part of the bags adds to the next q(ε) and to the bound, other factors at their best.

    Instances go block by block from their features to the sums.

    Parameters
    ----------
    model : VGPMIL
    bags : Bags
        With labels; may be traced.
    bag_weight : array (B,)
    factor : InducingFactor
        q(ε), from which the exact law of the labels follows.
    dtype : {"float64", "float32"}
        Of the kernel between instances and inducing points, and of products with it; what is
        added up over blocks is of the type of q(ε).

    Returns
    -------
    InducingSums
    """
    narrow = jax.dtypes.canonicalize_dtype(dtype)
    projector = Projector.of(model.kernel, model.inducing_points, model.jitter)
    rows_of = _projection_in(projector, narrow)
    of_projected = _of_projected(model, factor, narrow)

    def of_rows(instances: Array, weight: Array) -> tuple[Any, tuple[Array, ...]]:
        projection, residual_variance = rows_of(instances)
        panels, moments = of_projected(projection, residual_variance, weight)
        return panels, (projection, *moments)

    weight = jnp.asarray(bag_weight)[jnp.asarray(bags.bag_index)]
    panels, rows = in_row_blocks(of_rows, jnp.asarray(bags.instances), weight)
    projection, *moments = rows
    # Else XLA makes all of V in the order that the pull would like best.
    projection = jax.lax.optimization_barrier(projection)
    # k̃ is in the tilts; neither the labels nor the bound ask for it again.
    problem = _problem(model, bags, projector.cholesky, projection, jnp.zeros_like(weight))
    problem = problem._replace(bag_weight=bag_weight)
    return _whole_sums(problem, factor, panels, *moments)


def sums_of_held(model: VGPMIL, problem: VGPMILProblem, factor: InducingFactor) -> InducingSums:
    """The same as `sums`, of a part with V.

    Parameters
    ----------
    model : VGPMIL
    problem : VGPMILProblem
        As from `held`.
    factor : InducingFactor

    Returns
    -------
    InducingSums
    """
    of_projected = _of_projected(model, factor, problem.projection.dtype)
    rows = (problem.projection, problem.residual_variance, problem.instance_weight)
    panels, moments = in_row_blocks(of_projected, *rows)
    return _whole_sums(problem, factor, panels, *moments)


def _projection_in(
    projector: Projector, narrow: DTypeLike
) -> Callable[[Array], tuple[Array, Array]]:
    """Features of a block of instances → V and k̃, worked out in a type."""
    narrowed = jax.tree.map(lambda leaf: jnp.asarray(leaf, narrow), projector)

    def of_rows(instances: Array) -> tuple[Array, Array]:
        projection = narrowed.projection(narrowed.cross(instances))
        return projection, narrowed.residual_variance(projection)

    return of_rows


def _of_projected(
    model: VGPMIL, factor: InducingFactor, narrow: DTypeLike
) -> Callable[[Array, Array, Array], tuple[Panels, tuple[Array, Array]]]:
    """V, k̃ and weights of a block of instances → panels of VᵀΘV, and μ and c."""
    wide = factor.mean.dtype
    mean, covariance_root = factor.mean.astype(narrow), factor.covariance_root.astype(narrow)

    def of_rows(
        projection: Array, residual_variance: Array, weight: Array
    ) -> tuple[Panels, tuple[Array, Array]]:
        evidence_mean = model.mean + (projection @ mean).astype(wide)
        variance = squared_norms(projection, covariance_root) + residual_variance
        tilt = jnp.sqrt(evidence_mean**2 + variance)
        theta = weight * model.mixing.expected_precision(tilt)
        # Else XLA works θ_n out anew for each entry of its row of ΘV.
        theta = jax.lax.optimization_barrier(theta)
        panels = gram_panels(projection, theta.astype(narrow))
        return jax.tree.map(lambda leaf: leaf.astype(wide), panels), (evidence_mean, tilt)

    return of_rows


def _whole_sums(
    problem: VGPMILProblem,
    factor: InducingFactor,
    panels: Panels,
    evidence_mean: Array,
    tilt: Array,
) -> InducingSums:
    """With the labels at their exact law under the moments."""
    state = VGPMILState(
        factor.mean, factor.precision_cholesky, evidence_mean, tilt**2, tilt, evidence_mean
    )
    state = state._replace(label_logits=_exact_labels(problem, state))
    gram = gram_from_panels(panels)
    return InducingSums(gram, _pull(problem, state), _bound_of_bags(problem, state))


def _bound_of_bags(problem: VGPMILProblem, state: VGPMILState) -> Float[Array, ""]:
    mixing = problem.rules.mixing
    theta = mixing.expected_precision(state.tilt)
    by_instance = mixing.log_density(state.tilt) - 0.5 * state.evidence_mean
    by_instance -= 0.5 * theta * (state.second_moment - state.tilt**2)
    probability = label_probability(problem, state.label_logits)
    by_instance += probability * (state.evidence_mean - state.label_logits)
    by_bag = _label_terms(problem, state.label_logits) - jnp.log1p(problem.sharpness)
    return problem.instance_weight @ by_instance + problem.bag_weight @ by_bag


# ------------------------------------------------------------------ q(u)


def statistics(
    problem: VGPMILProblem, state: VGPMILState
) -> tuple[Float[Array, "M M"], Float[Array, " M"]]:
    """VᵀΘV and Vᵀ(π − ½ − θμ0): sums over instances, all that q(u) needs of the bags."""
    theta = problem.rules.mixing.expected_precision(state.tilt)
    gram = weighted_gram(problem.projection, problem.instance_weight * theta)
    return gram, _pull(problem, state)


def _pull(problem: VGPMILProblem, state: VGPMILState) -> Float[Array, " M"]:
    """Vᵀ(π − ½ − θμ0)."""
    theta = problem.rules.mixing.expected_precision(state.tilt)
    probability = label_probability(problem, state.label_logits)
    residual = probability - 0.5 - theta * problem.prior_mean

    pull = problem.instance_weight * residual
    if problem.projection.dtype == pull.dtype:
        return pull @ problem.projection

    def of_rows(rows: Array, pull: Array) -> tuple[Array, tuple]:
        return (pull.astype(rows.dtype) @ rows).astype(pull.dtype), ()

    # In 32 bit no more than a block is added up.
    return in_row_blocks(of_rows, problem.projection, pull)[0]


def with_moments(
    problem: VGPMILProblem,
    mean: Float[Array, " M"],
    precision_cholesky: Float[Array, "M M"],
    tilt: Float[Array, " N"],
    label_logits: Float[Array, " N"],
) -> VGPMILState:
    """A consistent state: E f_n and E f_n² from q(u)."""
    evidence_mean = problem.prior_mean + problem.projection @ mean
    variance = row_sums_of_squares(problem.projection, precision_cholesky)
    second_moment = evidence_mean**2 + variance + problem.residual_variance
    return VGPMILState(mean, precision_cholesky, evidence_mean, second_moment, tilt, label_logits)


# ------------------------------------------------------------------ q(y)


def evaluated_at(problem: VGPMILProblem, model: VGPMIL, bags: Bags) -> VGPMILProblem:
    """The problem with another kernel and prior mean.

    Parameters
    ----------
    problem : VGPMILProblem
    model : VGPMIL
    bags : Bags

    Returns
    -------
    VGPMILProblem
    """
    conditional = model.conditional(bags)
    return problem._replace(
        cholesky=conditional.cholesky,
        projection=conditional.projection,
        residual_variance=conditional.residual_variance,
        prior_mean=jnp.asarray(model.mean, dtype=conditional.projection.dtype),
    )


def settled(problem: VGPMILProblem, state: VGPMILState) -> VGPMILState:
    """The same q(ε) and labels under a moved problem: moments anew, tilts at their optimum.

    Parameters
    ----------
    problem : VGPMILProblem
    state : VGPMILState

    Returns
    -------
    VGPMILState
    """
    there = with_moments(
        problem, state.mean, state.precision_cholesky, state.tilt, state.label_logits
    )
    return there._replace(tilt=jnp.sqrt(there.second_moment))


def label_probability(
    problem: VGPMILProblem, label_logits: Float[Array, " N"]
) -> Float[Array, " N"]:
    """π_n = q(y_n = 1)."""
    if problem.rules.label_update == "exact":
        return problem.label_law(label_logits).mean
    return sigmoid(label_logits)


def _label_terms(problem: VGPMILProblem, label_logits: Float[Array, " N"]) -> Float[Array, " B"]:
    if problem.rules.label_update == "exact":
        return problem.label_law(label_logits).log_normaliser()
    entropy = problem.sum_over_bags(softplus(label_logits))
    none = jnp.exp(problem.sum_over_bags(-softplus(label_logits)))  # Π(1 − π_n)
    match = jnp.where(problem.bag_label == 1, 1.0 - none, none)
    return entropy + jnp.log(problem.sharpness) * match


def _exact_labels(problem: VGPMILProblem, state: VGPMILState) -> Float[Array, " N"]:
    """η = μ: the joint law of a bag's labels is the prior odds e^{μ_n} times the noisy maximum."""
    return state.evidence_mean


def _mean_field_labels(problem: VGPMILProblem, state: VGPMILState) -> Float[Array, " N"]:
    """η_n = μ_n + (2T_b − 1) log H Π_{j≠n}(1 − π_j), one instance of each bag after another.

    All at once would be no coordinate ascent: the bound was seen to fall. The sweep runs over
    positions within the bags, all bags together.
    """
    sizes = problem.sum_over_bags(jnp.ones_like(state.tilt)).astype(problem.bag_index.dtype)
    first = jnp.cumsum(sizes) - sizes
    pull = (2.0 * problem.bag_label - 1.0) * jnp.log(problem.sharpness)
    log_none = problem.sum_over_bags(-softplus(state.label_logits))  # log Π(1 − π_n)

    def update(position: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        logits, log_none = carry
        present = position < sizes
        index = jnp.where(present, first + position, 0)
        log_none_other = log_none + softplus(logits[index])
        new = state.evidence_mean[index] + pull * jnp.exp(jnp.minimum(log_none_other, 0.0))
        log_none = jnp.where(present, log_none_other - softplus(new), log_none)
        # Bags that are already through write beyond the end, which drops the value.
        target = jnp.where(present, index, logits.shape[0])
        return logits.at[target].set(new, mode="drop"), log_none

    start = (state.label_logits, log_none)
    return jax.lax.fori_loop(0, problem.rules.longest_bag, update, start)[0]


def _plug_in_max_labels(problem: VGPMILProblem, state: VGPMILState) -> Float[Array, " N"]:
    """η_n = μ_n + (2T_b − 1) log H (1 − max_{j≠n} π_j), all instances at once."""
    probability = sigmoid(state.label_logits)
    largest = largest_of_others(problem, probability)
    pull = (2.0 * problem.bag_label - 1.0) * jnp.log(problem.sharpness)
    return state.evidence_mean + pull[problem.bag_index] * (1.0 - largest)


def largest_of_others(
    problem: VGPMILProblem, probability: Float[Array, " N"]
) -> Float[Array, " N"]:
    """max_{j≠n} π_j within the bag, 0 for a bag of one."""

    def largest_in_bag(values: Float[Array, " N"]) -> Float[Array, " N"]:
        by_bag = jax.ops.segment_max(
            values, problem.bag_index, num_segments=problem.num_bags, indices_are_sorted=True
        )
        return by_bag[problem.bag_index]

    is_largest = probability == largest_in_bag(probability)
    is_tied = problem.sum_over_bags(is_largest.astype(probability.dtype))[problem.bag_index] > 1
    second = largest_in_bag(jnp.where(is_largest, 0.0, probability))
    return jnp.where(is_largest & ~is_tied, second, largest_in_bag(probability))


LABEL_UPDATE_RULES = {
    "exact": _exact_labels,
    "mean_field": _mean_field_labels,
    "plug_in_max": _plug_in_max_labels,
}


# ------------------------------------------------------------------ the posterior as a law


@archive.register
@dataclass(frozen=True, eq=False)
class VGPMILApproximation(InducingApproximation):
    """q(u) p(f | u) q(ω) q(y): what coordinate ascent leaves behind.

    Attributes
    ----------
    tilt : array (N,)
        c of q(ω_n).
    label_logits : array (N,)
        η of q(y).
    label_update : str
        How η is to be read: joint law ("exact") or independent labels.
    """

    tilt: Float[np.ndarray, " N"]
    label_logits: Float[np.ndarray, " N"]
    label_update: LabelUpdate

    def guide(self, model: VGPMIL) -> Program:
        """q(u) p(f | u) q(ω) q(y), the guide of ``model.augmented()`` on the training bags."""

        def guide(bags: Bags) -> None:
            conditional = model.conditional(bags)
            inducing_value = numpyro.sample("inducing_value", self.inducing_law())
            location = model.mean + conditional.mean(inducing_value)
            with numpyro.plate("instance", bags.num_instances):
                numpyro.sample("evidence", dist.Normal(location, conditional.residual_scale))
                numpyro.sample("augmentation", model.mixing.conditional(jnp.asarray(self.tilt)))
            numpyro.sample("instance_label", self._label_law(model, bags))

        return guide

    def _label_law(self, model: VGPMIL, bags: Bags) -> dist.Distribution:
        label_logits = jnp.asarray(self.label_logits)
        if self.label_update != "exact":
            return dist.Bernoulli(logits=label_logits).to_event(1)
        return InstanceLabels(
            label_logits,
            jnp.asarray(bags.bag_index),
            jnp.asarray(bags.labels),
            model.sharpness,
            bags.num_bags,
        )


def approximation(problem: VGPMILProblem, state: VGPMILState) -> VGPMILApproximation:
    """The state as the law that it leaves behind.

    Parameters
    ----------
    problem : VGPMILProblem
    state : VGPMILState

    Returns
    -------
    VGPMILApproximation
    """
    return VGPMILApproximation(
        **coloured(problem.cholesky, state.mean, state.precision_cholesky),
        tilt=np.asarray(state.tilt),
        label_logits=np.asarray(state.label_logits),
        label_update=problem.rules.label_update,
    )
