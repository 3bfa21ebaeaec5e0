"""Closed-form updates of DPMIL: variational Bayes under the constraint that bags have a witness.

======================  ===========================================================
code                    symbol
======================  ===========================================================
``gaussians``           q(μ_lk, Λ_lk): m, β, W, ν
``sticks``              q(v_lk) = Beta(γ¹_lk, γ²_lk)
``log_odds``            a_n = ℓ₊n − ℓ₋n, of q(r)
``log_components``      log ρ_lkn = E log π_lk + E log N(x_n; μ_lk, Λ_lk⁻¹)
``seen``                N_lk, Σx, Σφ(x), weighted by q(r_n = l) q(z_n = k | r_n = l)
======================  ===========================================================

ℓ_ln = log Σ_k ρ_lkn is the class's share of the bound with q(z | r) at its optimum. Given q(θ) the
labels have an exact posterior over all labellings that a bag allows (soft), or are chosen: the
better class for each, and in a bag left without a witness the best of those that were positive
stays so (hard, the paper's). A state holds q(θ) and the sums under the q(z, r) that follows from
it, so a round is one pass over the instances; the candidates are those that may be positive.

Coordinates are those in which the prior has W0 = 1 and m0 = 0. The paper's appendix has ν one too
large and lacks the half before E log |Λ| in log ρ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import logsumexp
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Bool, Float, Int
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from ...datasets.bags import Bags
from ...models.components import Components
from ...models.dpmil import DPMIL, Pooling, count_after, log_evidence_of_counts
from ...models.mixtures import gaussian_by_precision
from ...models.model import Draws, Program
from ...models.normal_wishart import (
    Covariance,
    NormalGamma,
    NormalWishart,
    Statistics,
    family,
    log_predictive,
)
from ...models.tracing import evaluated_now_unless_traced
from ...models.witnesses import LabelRule
from .. import archive

__all__ = [
    "LABEL_UPDATES",
    "MAX_SAMPLE",
    "DPMILApproximation",
    "DPMILProblem",
    "DPMILState",
    "LabelUpdate",
    "Prior",
    "Sticks",
    "approximation",
    "centers",
    "divergence_from_prior",
    "elbo",
    "in_order",
    "init",
    "laws_in_units",
    "log_jacobian",
    "log_label_probability",
    "mixtures_of",
    "nearest",
    "seeds_of",
    "step",
]

type LabelUpdate = Literal["hard", "soft"]
LABEL_UPDATES: tuple[LabelUpdate, ...] = ("soft", "hard")

# Instances that k-means sees, at most: of more, every second, third, …
MAX_SAMPLE = 2**16


@jax.tree_util.register_static
@dataclass(frozen=True)
class DPMILRules:
    """What is decided before anything is compiled."""

    label_update: LabelUpdate
    covariance: Covariance
    max_components: int  # K


class Instances(NamedTuple):
    """Instances with their second moments, which every round needs twice."""

    value: Float[Array, "N D"]  # x̃
    moment: Float[Array, "N P"]  # φ(x̃)


class Prior(NamedTuple):
    """Hyper-parameters."""

    mean_strength: Float[Array, ""]  # β0
    degrees_of_freedom: Float[Array, ""]  # ν0
    concentration: Float[Array, ""]  # α

    @classmethod
    def of(cls, model: DPMIL) -> Self:
        """The model's."""
        values = (model.mean_strength, model.degrees_of_freedom, model.concentration)
        return cls(*(jnp.asarray(value, float) for value in values))


class DPMILProblem(NamedTuple):
    """All that stays fixed during the ascent."""

    candidates: Instances  # may be positive
    negatives: Instances  # cannot be
    rule: LabelRule  # of the candidates
    prior: Prior
    log_constant: Float[Array, ""]  # log p(T), and the Jacobian of the coordinates
    rules: DPMILRules


class Sticks(NamedTuple):
    """q(v) = Beta(on, off)."""

    on: Float[Array, "2 k"]  # γ¹
    off: Float[Array, "2 k"]  # γ²

    def expected_log_weight(self) -> Float[Array, "2 K"]:
        """E log π_k = E log v_k + Σ_{j<k} E log(1 − v_j)."""
        both = digamma(self.on + self.off)
        none = jnp.zeros((*self.on.shape[:-1], 1))
        left = jnp.concatenate([none, digamma(self.off) - both], axis=-1)
        return jnp.cumsum(left, axis=-1) + jnp.concatenate([digamma(self.on) - both, none], axis=-1)

    def divergence_from_prior(self, concentration: Float[Array, ""]) -> Float[Array, ""]:
        """Σ KL of each from Beta(1, α)."""
        on, off, both = self.on, self.off, self.on + self.off
        # By gammaln: jax.scipy.special.betaln, which NumPyro's divergence uses, is off by 1e-6.
        log_beta = gammaln(on) + gammaln(off) - gammaln(both)
        slopes = (on - 1) * digamma(on) + (off - concentration) * digamma(off)
        slopes += (1 + concentration - both) * digamma(both)
        return jnp.sum(slopes - jnp.log(concentration) - log_beta)


class DPMILState(NamedTuple):
    """q(θ), and what follows from it by one pass over the instances."""

    gaussians: NormalWishart | NormalGamma  # of shape (2, K)
    sticks: Sticks
    log_odds: Float[Array, " C"]  # a, of the candidates
    is_positive: Bool[Array, " C"]  # their best labels
    seen: Statistics
    log_evidence: Float[Array, ""]  # log Σ_r p(r) Π e^ℓ over the labellings, or the term chosen


# ------------------------------------------------------------------ init, step, elbo


def init(
    model: DPMIL, bags: Bags, *, label_update: LabelUpdate, num_starts: int, key: Array
) -> tuple[DPMILProblem, DPMILState]:
    """The problem, and starts in which all candidates are positive, as the paper has it.

    The clusters of each start are those of k-means on either class. A start has the sums over them
    alone: its q(θ) is not a law yet, and comes with the first step.

    Parameters
    ----------
    model : DPMIL
    bags : Bags
        With labels.
    label_update : {"hard", "soft"}
    num_starts : int
        S.
    key : array
        Of k-means.

    Returns
    -------
    DPMILProblem, DPMILState
        The state with a leading axis of starts.
    """
    problem = _problem(model, bags, label_update)
    sample = slice(None, None, math.ceil(bags.num_instances / MAX_SAMPLE))
    start_centers = centers(
        model,
        np.asarray(bags.instances)[sample],
        model.may_be_positive(bags)[sample],
        seeds_of(key, num_starts),
    )
    return problem, jax.jit(jax.vmap(_start, in_axes=(None, 0)))(problem, start_centers)


def step(problem: DPMILProblem, state: DPMILState) -> DPMILState:
    """One round: q(θ) from the sums, then q(z, r) and the sums under it.

    Parameters
    ----------
    problem : DPMILProblem
    state : DPMILState

    Returns
    -------
    DPMILState

    References
    ----------
    Kandemir and Hamprecht (2014), algorithm 1 and appendix; Bishop (2006), 10.58–10.66.
    """
    return _updated(problem, state.seen, state.is_positive)


def elbo(problem: DPMILProblem, state: DPMILState) -> Float[Array, ""]:
    """The evidence lower bound, log p(T) and the uniform prior of the labellings counted.

    Parameters
    ----------
    problem : DPMILProblem
    state : DPMILState

    Returns
    -------
    float
        In nats.
    """
    divergence = divergence_from_prior(state.gaussians, state.sticks, problem.prior)
    return problem.log_constant + state.log_evidence - divergence


def divergence_from_prior(
    gaussians: NormalWishart | NormalGamma, sticks: Sticks, prior: Prior
) -> Float[Array, ""]:
    """KL(q(θ) ‖ p(θ))."""
    of_gaussians = gaussians.divergence_from_prior(prior.mean_strength, prior.degrees_of_freedom)
    return jnp.sum(of_gaussians) + sticks.divergence_from_prior(prior.concentration)


def _problem(model: DPMIL, bags: Bags, label_update: LabelUpdate) -> DPMILProblem:
    whitened = model.whitened(bags)
    # Who may be positive decides the shapes, also where the instances are traced.
    with evaluated_now_unless_traced(bags.labels, bags.bag_index, bags.instance_labels):
        rule = model.label_rule(bags)
        may_be_positive = model.may_be_positive(bags)
        may, cannot = np.flatnonzero(may_be_positive), np.flatnonzero(~may_be_positive)
    moments = jax.jit(family(model.covariance).second_moments)
    parts = [Instances(whitened[i], moments(whitened[i])) for i in (may, cannot)]
    log_labels = jnp.sum(log_label_probability(model, jnp.asarray(bags.labels)))
    return DPMILProblem(
        candidates=parts[0],
        negatives=parts[1],
        rule=rule._replace(known=rule.known[may], bag_index=rule.bag_index[may]),
        prior=Prior.of(model),
        log_constant=log_labels + bags.num_instances * log_jacobian(model),
        rules=DPMILRules(label_update, model.covariance, model.max_components),
    )


def log_label_probability(model: DPMIL, labels: Int[Array, " B"]) -> Float[Array, " B"]:
    """log p(T_b)."""
    share = model.positive_share
    return jnp.where(labels == 1, math.log(share), math.log1p(-share))


def log_jacobian(model: DPMIL) -> Float[Array, ""]:
    """log |∂x̃/∂x|, of one instance."""
    root = jnp.asarray(model.scale_root)
    return jnp.sum(jnp.log(jnp.diagonal(root) if model.covariance == "full" else root))


# ------------------------------------------------------------------ where clusters start


def seeds_of(key: Array, num_starts: int) -> tuple[int, ...]:
    """A seed of k-means for each start."""
    return tuple(map(int, jax.random.randint(key, (num_starts,), 0, 2**31 - 1)))


def centers(
    model: DPMIL,
    sample: Float[np.ndarray, "n D"],
    may_be_positive: Bool[np.ndarray, " n"],
    seeds: tuple[int, ...],
) -> Float[Array, "S 2 K D"]:
    """Centers of k-means on either class, with all instances positive that may be.

    Parameters
    ----------
    model : DPMIL
    sample : array (n, D)
        Instances.
    may_be_positive : array (n,)
    seeds : tuple of int
        Of k-means, one for each start.

    Returns
    -------
    array (S, 2, K, D)
        In the coordinates of `DPMIL.whitened`; infinite where a class has fewer clusters than K.
    """
    whitened = np.asarray(model.whitened_values(jnp.asarray(sample)))
    classes = whitened[~may_be_positive], whitened[may_be_positive]
    # With several threads sums are rounded by chance, and a run could not be repeated.
    with threadpool_limits(limits=1):
        found = [[_centers(rows, model.max_components, s) for rows in classes] for s in seeds]
    return jnp.asarray(np.array(found))


def _centers(
    rows: Float[np.ndarray, "n D"], max_components: int, seed: int
) -> Float[np.ndarray, "K D"]:
    """From the largest cluster on: stick breaking expects them in this order."""
    found = np.full((max_components, rows.shape[1]), np.inf)
    num_clusters = min(max_components, len(np.unique(rows, axis=0)))
    if num_clusters < 2:
        found[0] = rows.mean(axis=0) if len(rows) else 0.0
        return found
    clusters = KMeans(num_clusters, n_init=1, random_state=seed).fit(rows)
    order = np.argsort(-np.bincount(clusters.labels_, minlength=num_clusters), kind="stable")
    found[:num_clusters] = clusters.cluster_centers_[order]
    return found


def nearest(instances: Float[Array, "N D"], of_class: Float[Array, "K D"]) -> Int[Array, " N"]:
    """Which center an instance is nearest to; the first of several."""
    is_there = jnp.isfinite(of_class[:, 0])
    placed = jnp.where(is_there[:, None], of_class, 0.0)
    # ‖x − c‖² but for ‖x‖², halved and turned round.
    closeness = instances @ placed.T - 0.5 * jnp.sum(placed**2, axis=1)
    return jnp.argmax(jnp.where(is_there, closeness, -jnp.inf), axis=1)


def _start(problem: DPMILProblem, of_classes: Float[Array, "2 K D"]) -> DPMILState:
    """The sums over the clusters of the negatives and of the candidates; q(θ) is still to come."""
    seen = [
        _statistics(part, jax.nn.one_hot(nearest(part.value, of_class), len(of_class)))
        for part, of_class in zip((problem.negatives, problem.candidates), of_classes, strict=True)
    ]
    both = jax.tree.map(lambda *of_class: jnp.stack(of_class), *seen)
    all_positive = jnp.ones(problem.candidates.value.shape[0], bool)
    # To work it out here as well would compile the round twice.
    shapes = jax.eval_shape(_updated, problem, both, all_positive)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return nothing._replace(seen=both, is_positive=all_positive)


# ------------------------------------------------------------------ one round


def _updated(
    problem: DPMILProblem, seen: Statistics, was_positive: Bool[Array, " C"]
) -> DPMILState:
    """q(θ) from the sums, and all that follows from it."""
    mixtures = mixtures_of(seen, problem.prior, problem.rules.covariance)
    return _with_labels(problem, *mixtures, was_positive)


def mixtures_of(
    seen: Statistics, prior: Prior, covariance: Covariance
) -> tuple[NormalWishart | NormalGamma, Sticks]:
    """q(θ) at its optimum given q(z, r), with the components in the order that the sticks like."""
    seen = in_order(seen, prior.concentration)
    gaussians = family(covariance).posterior(seen, prior.mean_strength, prior.degrees_of_freedom)
    after = count_after(seen.occupancy)
    return gaussians, Sticks(1 + seen.occupancy[:, :-1], prior.concentration + after)


def in_order(seen: Statistics, concentration: Float[Array, ""]) -> Statistics:
    """The order of the components that the sticks like best, of each class.

    To rename components is a step of the ascent too: it moves q(v) alone. Without it a large
    component behind small ones stays there, and most starts end tens of nats too low. But for the
    last component, which has no stick, the largest come first: to swap neighbours changes
    α + Σ_{j>k} N_j alone. Which is the last is tried out.
    """
    places = np.arange(seen.occupancy.shape[1])
    one_last = np.stack([np.append(np.delete(places, place), place) for place in places])

    def best(count: Float[Array, " K"]) -> Int[Array, " K"]:
        orders = jnp.argsort(-count)[one_last]
        # As it is, unless another order gains: names that change for nothing hide what converges.
        orders = jnp.concatenate([jnp.asarray(places)[None], orders])
        return orders[jnp.argmax(log_evidence_of_counts(count[orders], concentration))]

    order = jax.vmap(best)(seen.occupancy)
    return jax.tree.map(jax.vmap(lambda values, by: values[by]), seen, Statistics(*[order] * 3))


def _with_labels(
    problem: DPMILProblem,
    gaussians: NormalWishart | NormalGamma,
    sticks: Sticks,
    was_positive: Bool[Array, " C"],
) -> DPMILState:
    """One pass: q(z, r) at its optimum given q(θ), and the sums under it."""
    log_density, log_weight = gaussians.expected_log_density(), sticks.expected_log_weight()

    def log_components(part: Instances, klass: int) -> Float[Array, "N K"]:
        constant, linear, quadratic = (of[klass] for of in log_density)
        constant = constant + log_weight[klass]
        return constant + part.value @ linear.T + part.moment @ quadratic.T

    negative, positive = (log_components(problem.candidates, klass) for klass in (0, 1))
    certain = log_components(problem.negatives, 0)
    of_classes = jnp.stack([logsumexp(negative, axis=1), logsumexp(positive, axis=1)])  # ℓ₋, ℓ₊
    log_odds = of_classes[1] - of_classes[0]
    if problem.rules.label_update == "soft":
        weight = problem.rule.labels(log_odds).mean
        is_positive = weight > 0.5
        log_evidence = jnp.sum(problem.rule.log_evidence(of_classes))
    else:
        is_positive = _best_labels(problem.rule, log_odds, was_positive)
        weight = is_positive.astype(log_odds.dtype)
        log_evidence = jnp.sum(jnp.where(is_positive, of_classes[1], of_classes[0]))
        log_evidence += problem.rule.labels().log_prob(is_positive)
    in_negative = _statistics(problem.negatives, jax.nn.softmax(certain, axis=1))
    share = (1 - weight)[:, None] * jax.nn.softmax(negative, axis=1)
    in_candidates = _statistics(problem.candidates, share)
    in_positive = _statistics(
        problem.candidates, weight[:, None] * jax.nn.softmax(positive, axis=1)
    )
    return DPMILState(
        gaussians=gaussians,
        sticks=sticks,
        log_odds=log_odds,
        is_positive=is_positive,
        seen=jax.tree.map(
            lambda one, other, last: jnp.stack([one + other, last]),
            *(in_negative, in_candidates, in_positive),
        ),
        log_evidence=log_evidence + jnp.sum(logsumexp(certain, axis=1)),
    )


def _best_labels(
    rule: LabelRule, log_odds: Float[Array, " C"], was_positive: Bool[Array, " C"]
) -> Bool[Array, " C"]:
    """The better class for each; where a bag is left without a witness, the best that was one.

    References
    ----------
    Kandemir and Hamprecht (2014), equation 3 and algorithm 1.
    """
    index, num_bags = rule.bag_index, rule.num_bags

    def over_bags(reduction, values: Array) -> Array:
        return jnp.take(reduction(values, index, num_bags, indices_are_sorted=True), index)

    better = rule.known + log_odds > 0
    lacks = rule.needs_witness[index] & (over_bags(jax.ops.segment_sum, better.astype(int)) == 0)
    of_former = jnp.where(was_positive, log_odds, -jnp.inf)
    is_best = was_positive & (of_former == over_bags(jax.ops.segment_max, of_former))
    place = jnp.arange(len(log_odds))
    # Of repeated rows, which are equally good, one.
    first = over_bags(jax.ops.segment_min, jnp.where(is_best, place, len(log_odds)))
    return better | (lacks & (place == first))


def _statistics(part: Instances, weight: Float[Array, "N K"]) -> Statistics:
    return Statistics(jnp.sum(weight, axis=0), weight.T @ part.value, weight.T @ part.moment)


# ------------------------------------------------------------------ what it leaves behind


@archive.register
@dataclass(frozen=True, eq=False)
class DPMILApproximation:
    """q(v) q(μ, Λ), and with it q(r) q(z | r).

    Attributes
    ----------
    mean : array (2, K, D)
        m.
    strength, degrees_of_freedom : array (2, K)
        β and ν.
    scale_root : array (2, K, D, D) or (2, K, D)
        R, lower triangular with RRᵀ = W; √w where precisions are diagonal.
    stick_on, stick_off : array (2, K − 1)
        γ¹ and γ².
    label : array (N,) or None
        The labels that a hard update chose, or those more probable than not; None of bags in
        chunks.
    label_update : {"hard", "soft"}
    start_elbo : array (S,)
        Where each start ended.
    """

    mean: Float[np.ndarray, "2 K D"]
    strength: Float[np.ndarray, "2 K"]
    degrees_of_freedom: Float[np.ndarray, "2 K"]
    scale_root: Float[np.ndarray, "2 K ..."]
    stick_on: Float[np.ndarray, "2 k"]
    stick_off: Float[np.ndarray, "2 k"]
    label: Int[np.ndarray, " N"] | None
    label_update: LabelUpdate
    start_elbo: Float[np.ndarray, " S"]

    @property
    def num_components(self) -> int:
        """K."""
        return self.mean.shape[1]

    @property
    def expected_weight(self) -> Float[np.ndarray, "2 K"]:
        """E π."""
        on = self.stick_on / (self.stick_on + self.stick_off)
        ones = np.ones((2, 1))
        left = np.cumprod(np.concatenate([ones, 1 - on], axis=1), axis=1)
        return left * np.concatenate([on, ones], axis=1)

    def components(self, model: DPMIL) -> Components:
        """Expected components: E π, E μ, the root of E Λ = νW, and β − β0 instances."""
        nu = self.degrees_of_freedom[(..., *[None] * (self.scale_root.ndim - 2))]
        return Components(
            weight=self.expected_weight,
            mean=self.mean,
            root=np.sqrt(nu) * self.scale_root,
            occupancy=self.strength - model.mean_strength,
        )

    def draws(self, model: DPMIL, bags: Bags | None, key: Array, num_draws: int) -> Draws:
        """Draws of sticks, means and precisions."""
        with jax.enable_x64(True):
            stick = self._stick_law() if self.num_components > 1 else None
            of_means = jnp.asarray(self.mean), jnp.asarray(self.strength)
            found = _draws(stick, self._precision_law(), *of_means, key, num_draws)
            site = dict(zip(("stick", model.precision_site, "mean"), found, strict=True))
            return {name: np.asarray(site[name]) for name in model.latent_sites}

    def log_density(self, model: DPMIL, bags: Bags | None, draws: Draws) -> Float[np.ndarray, " S"]:
        """log q of each draw."""

        def one(site: dict[str, Array]) -> Float[Array, ""]:
            precision = site[model.precision_site]
            total = self._precision_law().log_prob(precision)
            total += self._mean_law(precision).log_prob(site["mean"])
            return total + (self._stick_law().log_prob(site["stick"]) if "stick" in site else 0.0)

        with jax.enable_x64(True):
            sites = {name: jnp.asarray(draws[name]) for name in model.latent_sites}
            return np.asarray(jax.jit(lambda d: jax.lax.map(one, d))(sites))

    def guide(self, model: DPMIL) -> Program:
        """q(θ) q(r) q(z | r), the guide of ``model.augmented()`` on the bags learned from."""

        def guide(bags: Bags) -> None:
            if self.num_components > 1:
                numpyro.sample("stick", self._stick_law())
            precision = numpyro.sample(model.precision_site, self._precision_law())
            numpyro.sample("mean", self._mean_law(precision))
            log_components = self._expected_log_components(model, bags)
            label = numpyro.sample("instance_label", self._label_law(model, bags, log_components))
            own = jnp.take_along_axis(log_components, label[None, None, :], axis=0)[0]
            with numpyro.plate("instance", bags.num_instances):
                numpyro.sample("cluster", dist.Categorical(logits=own.T))

        return guide

    def predictive(
        self, model: DPMIL, bags: Bags, *, pooling: Pooling = "bayes"
    ) -> tuple[Float[np.ndarray, " B"], Float[np.ndarray, " N"]]:
        """Probabilities of new bags and their instances, by the Student-t mixtures under q.

        References
        ----------
        Kandemir and Hamprecht (2014), section 3.2 and appendix.
        """
        model.check_width(bags)
        with jax.enable_x64(True):
            laws = (self.mean, self.scale_root, self.strength, self.degrees_of_freedom)
            # W0's root is no part of it: R is in the units of the features.
            density = jax.jit(
                lambda x, log_weight, laws: jax.lax.map(
                    lambda of: logsumexp(of[0][:, None] + log_predictive(x, *of[1]), axis=0),
                    (log_weight, laws),
                )
            )
            found = density(
                jnp.asarray(bags.instances),
                jnp.log(self.expected_weight),
                tuple(jnp.asarray(law) for law in laws),
            )
        return model.probabilities(np.asarray(found), bags, pooling=pooling)

    def _stick_law(self) -> dist.Distribution:
        return dist.Beta(jnp.asarray(self.stick_on), jnp.asarray(self.stick_off)).to_event(2)

    def _precision_law(self) -> dist.Distribution:
        nu, root = jnp.asarray(self.degrees_of_freedom), jnp.asarray(self.scale_root)
        if self._is_full:
            law = dist.WishartCholesky(nu, scale_tril=root, validate_args=False)
            return law.to_event(2)
        return dist.Gamma(0.5 * nu[..., None], 0.5 / root**2).to_event(3)

    def _mean_law(self, precision: Array) -> dist.Distribution:
        root = precision if self._is_full else jnp.sqrt(precision)
        mean, strength = jnp.asarray(self.mean), jnp.asarray(self.strength)
        return gaussian_by_precision(mean, root, strength).to_event(2)

    @property
    def _is_full(self) -> bool:
        return self.scale_root.ndim > self.mean.ndim

    def _expected_log_components(self, model: DPMIL, bags: Bags) -> Float[Array, "2 K N"]:
        """log ρ, from the definition: the updates have other coordinates."""
        nu, root = jnp.asarray(self.degrees_of_freedom), jnp.asarray(self.scale_root)
        deviation = jnp.asarray(bags.instances) - jnp.asarray(self.mean)[:, :, None, :]
        num_features = self.mean.shape[-1]
        if self._is_full:
            whitened = jnp.einsum("lknd,lkde->lkne", deviation, root)
            digammas = digamma((nu[..., None] - jnp.arange(num_features)) / 2)
            diagonal = jnp.diagonal(root, axis1=-2, axis2=-1)
        else:
            whitened = deviation * root[:, :, None, :]
            digammas = jnp.broadcast_to(digamma(nu / 2)[..., None], root.shape)
            diagonal = root
        log_determinant = jnp.sum(digammas + math.log(2) + 2 * jnp.log(diagonal), axis=-1)
        constant = Sticks(jnp.asarray(self.stick_on), jnp.asarray(self.stick_off))
        constant = constant.expected_log_weight() + 0.5 * log_determinant
        constant -= 0.5 * num_features * (1 / jnp.asarray(self.strength) + math.log(2 * math.pi))
        return constant[..., None] - 0.5 * nu[..., None] * jnp.sum(whitened**2, axis=-1)

    def _label_law(
        self, model: DPMIL, bags: Bags, log_components: Float[Array, "2 K N"]
    ) -> dist.Distribution:
        if self.label_update == "hard":
            return dist.Delta(jnp.asarray(self.label), event_dim=1)
        log_density = logsumexp(log_components, axis=1)
        return model.label_rule(bags).labels(log_density[1] - log_density[0])


@partial(jax.jit, static_argnames="num_draws")
def _draws(
    stick_law: dist.Distribution | None,
    precision_law: dist.Distribution,
    mean: Float[Array, "2 K D"],
    strength: Float[Array, "2 K"],
    key: Array,
    num_draws: int,
) -> tuple[Array | None, Array, Array]:
    """Compiled once for all fits of one size."""

    def one(key: Array) -> tuple[Array | None, Array, Array]:
        stick_key, precision_key, mean_key = jax.random.split(key, 3)
        precision = precision_law.sample(precision_key)
        root = precision if precision.ndim > mean.ndim else jnp.sqrt(precision)
        drawn = gaussian_by_precision(mean, root, strength).sample(mean_key)
        return None if stick_law is None else stick_law.sample(stick_key), precision, drawn

    return jax.lax.map(one, jax.random.split(key, num_draws))


def approximation(
    model: DPMIL,
    bags: Bags,
    problem: DPMILProblem,
    state: DPMILState,
    start_elbo: Float[np.ndarray, " S"],
) -> DPMILApproximation:
    """One start's state as the law that it leaves behind, in the units of the features.

    Parameters
    ----------
    model : DPMIL
    bags : Bags
    problem : DPMILProblem
    state : DPMILState
        Of one start.
    start_elbo : array (S,)
        Of all starts.

    Returns
    -------
    DPMILApproximation
    """
    label = np.zeros(bags.num_instances, int)
    label[model.may_be_positive(bags)] = np.asarray(state.is_positive)
    return DPMILApproximation(
        **laws_in_units(model, state.gaussians, state.sticks),
        label=label,
        label_update=problem.rules.label_update,
        start_elbo=start_elbo,
    )


def laws_in_units(
    model: DPMIL, gaussians: NormalWishart | NormalGamma, sticks: Sticks
) -> dict[str, np.ndarray]:
    """q(θ) as fields of `DPMILApproximation`, in the units of the features."""
    mean, scale_root = model.in_units(gaussians.mean, gaussians.scale_cholesky())
    laws = {
        "mean": mean,
        "strength": gaussians.strength,
        "degrees_of_freedom": gaussians.degrees_of_freedom,
        "scale_root": scale_root,
        "stick_on": sticks.on,
        "stick_off": sticks.off,
    }
    return {name: np.asarray(value) for name, value in laws.items()}
