"""Closed-form updates of DPMIL: variational Bayes under the constraint that bags have a witness.

======================  ===========================================================
code                    symbol
======================  ===========================================================
``gaussians``           q(μ_lk, Λ_lk): m, β, W, ν
``sticks``              q(v_lk) = Beta(γ¹_lk, γ²_lk)
``log_odds``            a_n = ℓ₊n − ℓ₋n, of q(r)
``log_components``      log ρ_lkn = E log π_lk + E log N(x_n; μ_lk, Λ_lk⁻¹)
``sufficient``          N_lk, Σx, Σφ(x), weighted by q(r_n = l) q(z_n = k | r_n = l)
======================  ===========================================================

ℓ_ln = log Σ_k ρ_lkn is the class's term of the bound with q(z | r) at its optimum. Given q(θ) the
labels have an exact posterior over all labellings that a bag allows (soft), or are chosen: the
better class for each, and in a bag left without a witness the best of those that were positive
stays so (hard, the paper's). All starts ascend at once, on a leading axis of q(θ). Candidates are
the instances that may be positive; the others need the negative mixture alone.

Coordinates are those in which the prior has W0 = 1 and m0 = 0. The paper's appendix has ν one too
large and lacks the half before E log |Λ| in log ρ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import logsumexp
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Bool, Float, Int
from numpyro import handlers
from numpyro.infer.util import log_density
from sklearn.cluster import KMeans

from ...datasets.arguments import check_counts
from ...datasets.bags import Bags
from ...datasets.checks import num_distinct_rows
from ...datasets.padding import bag_weight, bucket, padded
from ...models.dpmil import DPMIL, count_after, log_evidence_of_counts
from ...models.model import Draws, Program
from ...models.numerics.products import in_row_blocks
from ...models.numerics.threads import one_thread
from ...models.numerics.tracing import as_pytree
from ...models.parts.components import Components
from ...models.parts.dp_mixture import gaussian_by_precision
from ...models.parts.normal_wishart import (
    NormalGamma,
    NormalWishart,
    Statistics,
    family,
    log_predictive,
)
from ...models.parts.witnesses import LabelRule
from .. import serialization
from .algorithm import ClosedForm, Options, Subsample, closed_form

__all__ = ["LABEL_UPDATES", "MAX_SAMPLE", "DPMILApproximation", "DPMILForm", "LabelUpdate"]

type LabelUpdate = Literal["hard", "soft"]
LABEL_UPDATES: tuple[LabelUpdate, ...] = ("soft", "hard")

# Instances that k-means sees, at most: of more, every second, third, …
MAX_SAMPLE = 2**16
_NUM_STARTS = 5
# Second moments of instances that are kept between steps, at most: a GiB.
_MOMENTS_KEPT = 2**27


class Sticks(NamedTuple):
    """q(v) = Beta(γ¹, γ²)."""

    concentration1: Float[Array, "2 k"]  # γ¹
    concentration0: Float[Array, "2 k"]  # γ²

    def expected_log_weight(self) -> Float[Array, "2 K"]:
        """E log π_k = E log v_k + Σ_{j<k} E log(1 − v_j)."""
        both = digamma(self.concentration1 + self.concentration0)
        none = jnp.zeros((*self.concentration1.shape[:-1], 1))
        left = jnp.concatenate([none, digamma(self.concentration0) - both], axis=-1)
        own = jnp.concatenate([digamma(self.concentration1) - both, none], axis=-1)
        return jnp.cumsum(left, axis=-1) + own

    def divergence_from_prior(self, concentration: float | Array) -> Float[Array, ""]:
        """Σ KL of each from Beta(1, α)."""
        one, zero = self.concentration1, self.concentration0
        both = one + zero
        # By gammaln: jax.scipy.special.betaln, which NumPyro's divergence uses, has errors of 1e-6.
        log_beta = gammaln(one) + gammaln(zero) - gammaln(both)
        expected = (one - 1) * digamma(one) + (zero - concentration) * digamma(zero)
        expected += (1 + concentration - both) * digamma(both)
        return jnp.sum(expected - jnp.log(concentration) - log_beta)


class SplitBags(NamedTuple):
    """Bags in memory, the instances that cannot be positive apart."""

    candidates: Bags
    negatives: Float[np.ndarray | Array, "G D"]
    negative_weight: Float[np.ndarray | Array, " G"]  # 1, or 0 of padding


class Instances(NamedTuple):
    """Instances in the coordinates of the prior."""

    value: Float[Array, "N D"]  # x̃
    second_moments: Float[Array, "N P"] | None  # φ(x̃), which every step needs twice; where kept


class MixtureChunk(NamedTuple):
    """Quantities of a chunk that no update changes."""

    candidates: Instances  # that may be positive
    negatives: Instances  # that cannot be
    rule: LabelRule  # of the candidates
    bag_weight: Float[Array, " B"]
    negative_weight: Float[Array, " G"]
    log_constant: Float[Array, ""]  # log p(T), and the Jacobian of the coordinates

    @property
    def candidate_weight(self) -> Float[Array, " C"]:
        """The weight of the bag of each candidate."""
        return self.bag_weight[self.rule.bag_index]


class MixtureState(NamedTuple):
    """q(θ) of each start."""

    gaussians: NormalWishart | NormalGamma  # of shape (S, 2, K)
    sticks: Sticks


class MixtureStatistics(NamedTuple):
    """All that a step needs of the instances."""

    sufficient: Statistics  # of shape (S, 2, K)
    # log Σ_r p(r) Π e^ℓ over the labellings, or the term chosen
    log_evidence: Float[np.ndarray | Array, " S"]
    log_constant: Float[np.ndarray | Array, ""]


@as_pytree("label_update", "num_starts", "keeps_moments")
@dataclass(frozen=True)
class DPMILForm(ClosedForm):
    """Both label updates of DPMIL, from several starts at once.

    Attributes
    ----------
    model : DPMIL
    label_update : {"soft", "hard"}
    num_starts : int
        S.
    keeps_moments : bool
        Whether φ(x̃) of the instances is kept between steps.

    References
    ----------
    Kandemir and Hamprecht (2014), algorithm 1 and appendix; Bishop (2006), 10.58–10.66.
    """

    model: DPMIL
    label_update: LabelUpdate
    num_starts: int
    keeps_moments: bool = False

    @property
    def _num_moments(self) -> int:
        """Length of φ(x̃)."""
        num_features = self.model.num_features
        is_full = self.model.covariance == "full"
        return num_features * (num_features + 1) // 2 if is_full else num_features

    def check(self, bags: Bags) -> None:
        """Refuse chunks without the labels that are learned from, or of other features.

        Raises
        ------
        ValueError
            As of `DPMIL.check`.
        """
        super().check(bags)
        self.model.check(bags)

    def in_memory(self, bags: Bags) -> Self:
        """The form that keeps φ(x̃) between steps, unless it takes more than a GiB."""
        return replace(self, keeps_moments=bags.num_instances * self._num_moments <= _MOMENTS_KEPT)

    def chunk(self, bags: Bags) -> SplitBags:
        """Candidates and certain negatives apart, in arrays of sizes of the grid."""
        may = self.model.may_be_positive(bags)
        known = bags.instance_labels
        candidates = replace(
            bags,
            instances=np.asarray(bags.instances)[may],
            bag_index=np.asarray(bags.bag_index)[may],
            instance_labels=None if known is None else np.asarray(known)[may],
            edges=None,
        )
        certain = np.asarray(bags.instances)[~may]
        negatives = np.zeros((bucket(max(1, len(certain))), bags.num_features))
        negatives[: len(certain)] = certain
        weight = (np.arange(len(negatives)) < len(certain)).astype(float)
        return SplitBags(padded(candidates), negatives, weight)

    def start(self, subsample: Subsample, key: Array) -> Float[np.ndarray, "S 2 K D"]:
        """Clusters by k-means of instances, subsampled from all chunks."""

        def rows(bags: Bags) -> Float[np.ndarray, "N F"]:
            return np.column_stack([bags.instances, self.model.may_be_positive(bags)])

        found = subsample(rows, MAX_SAMPLE)
        sample, may_be_positive = found[:, :-1], found[:, -1] == 1
        seeds = np.asarray(jax.random.randint(key, (self.num_starts,), 0, 2**31 - 1))
        return _centers(self.model, sample, may_be_positive, tuple(map(int, seeds)))

    def prepare(self, chunk: Bags | SplitBags) -> MixtureChunk:
        """Whitened instances, and which labels they may have."""
        if isinstance(chunk, Bags):
            bags = chunk
            negatives, negative_weight = jnp.zeros((0, self.model.num_features)), jnp.zeros(0)
        else:
            bags, negatives, negative_weight = chunk
        rule = self.model.label_rule(bags)
        weight = jnp.asarray(bag_weight(bags))
        num_instances = jnp.sum(weight[rule.bag_index]) + jnp.sum(jnp.asarray(negative_weight))
        by_bag = self.model.log_label_probability(jnp.asarray(bags.labels))
        return MixtureChunk(
            candidates=self._instances(jnp.asarray(bags.instances)),
            negatives=self._instances(jnp.asarray(negatives)),
            rule=rule,
            bag_weight=weight,
            negative_weight=jnp.asarray(negative_weight),
            log_constant=weight @ by_bag + num_instances * self.model.log_jacobian(),
        )

    def _instances(self, instances: Float[Array, "N D"]) -> Instances:
        value = self.model.whitened_values(instances)
        second_moments = family(self.model.covariance).second_moments
        return Instances(value, second_moments(value) if self.keeps_moments else None)

    def initial(
        self, prepared: MixtureChunk, start: Float[Array, "S 2 K D"]
    ) -> tuple[MixtureStatistics, Bool[Array, "S C"] | None]:
        """Statistics under the nearest clusters, all candidates being positive, as the paper."""
        may_be_positive = prepared.rule.known > -jnp.inf
        of_class = jnp.stack([~may_be_positive, may_be_positive], axis=1)[:, None, :, None]
        in_candidates = of_class * _nearest(prepared.candidates.value, start)
        in_negatives = _nearest(prepared.negatives.value, start[:, :1])
        sufficient = self._sufficient(prepared, in_candidates, in_negatives)
        nothing = jnp.zeros(self.num_starts, sufficient.occupancy.dtype)
        local = None
        if self.label_update == "hard":
            local = jnp.tile(may_be_positive, (self.num_starts, 1))
        return MixtureStatistics(sufficient, nothing, prepared.log_constant), local

    def e_step(
        self, prepared: MixtureChunk, q: MixtureState, local: Bool[Array, "S C"] | None
    ) -> tuple[MixtureStatistics, Bool[Array, "S C"] | None]:
        """q(z, r) at its optimum under q(θ), and the expected sufficient statistics under it."""
        log_components = self._log_components(prepared.candidates, q, classes=2)
        certain = self._log_components(prepared.negatives, q, classes=1)
        of_classes = logsumexp(log_components, axis=3)  # (C, S, 2): ℓ₋, ℓ₊
        positive, log_evidence, local = self._labels(prepared, of_classes, local)
        of_labels = jnp.stack([1 - positive, positive], axis=2)
        in_candidates = of_labels[..., None] * jax.nn.softmax(log_components, axis=3)
        sufficient = self._sufficient(prepared, in_candidates, jax.nn.softmax(certain, axis=3))
        log_evidence += prepared.negative_weight @ logsumexp(certain, axis=3)[:, :, 0]
        return MixtureStatistics(sufficient, log_evidence, prepared.log_constant), local

    def _labels(
        self,
        prepared: MixtureChunk,
        of_classes: Float[Array, "C S 2"],
        local: Bool[Array, "S C"] | None,
    ) -> tuple[Float[Array, "C S"], Float[Array, " S"], Bool[Array, "S C"] | None]:
        """q(r_n = 1), log Σ_r p(r) Π e^ℓ or the term chosen, and the labels chosen."""
        rule, weight = prepared.rule, prepared.bag_weight

        def soft(own: Float[Array, "C 2"]) -> tuple[Array, Array]:
            log_evidence = weight @ rule.log_evidence(own.T)
            return rule.labels(own[:, 1] - own[:, 0]).mean, log_evidence

        def hard(own: Float[Array, "C 2"], former: Bool[Array, " C"]) -> tuple[Array, Array, Array]:
            chosen = _best_labels(rule, own[:, 1] - own[:, 0], former)
            by_instance = jnp.where(chosen, own[:, 1], own[:, 0])
            log_evidence = prepared.candidate_weight @ by_instance + rule.labels().log_prob(chosen)
            return chosen.astype(own.dtype), log_evidence, chosen

        if local is None:
            return *jax.vmap(soft, in_axes=1, out_axes=(1, 0))(of_classes), None
        return jax.vmap(hard, in_axes=(1, 0), out_axes=(1, 0, 0))(of_classes, local)

    def m_step(self, statistics: MixtureStatistics) -> MixtureState:
        """q(θ) at its optimum."""
        return jax.vmap(partial(_mixtures_of, self.model))(statistics.sufficient)

    def elbo(self, q: MixtureState, statistics: MixtureStatistics) -> Float[Array, " S"]:
        """The bound of each start, log p(T) and the uniform prior of the labellings counted."""
        divergence = jax.vmap(partial(_divergence_from_prior, self.model))(q)
        return jnp.asarray(statistics.log_constant) + statistics.log_evidence - divergence

    def no_statistics(self) -> MixtureStatistics:
        """Statistics of no instances: zeros."""
        shape = self.num_starts, 2, self.model.max_components
        lengths = (), (self.model.num_features,), (self._num_moments,)
        # By NumPy: JAX would compile a program for each of these.
        sufficient = Statistics(*(np.zeros((*shape, *length)) for length in lengths))
        return MixtureStatistics(sufficient, np.zeros(self.num_starts), np.zeros(()))

    def in_order(self, statistics: MixtureStatistics) -> MixtureStatistics:
        """Components in the order that the sticks like best."""
        one = partial(_in_order, concentration=self.model.concentration)
        return statistics._replace(sufficient=jax.vmap(one)(statistics.sufficient))

    def approximation(
        self, q: MixtureState, local: Any, bags: Bags | None, elbo: Float[np.ndarray, " S"]
    ) -> DPMILApproximation:
        """q(θ) of one start, in the units of the features, and the labels that were chosen."""
        label = None
        if local is not None and bags is not None:
            may = self.model.may_be_positive(bags)
            label = np.zeros(bags.num_instances, int)
            label[may] = local[: may.sum()]
        mean, scale_root = _in_units(self.model, q.gaussians)
        return DPMILApproximation(
            mean=np.asarray(mean),
            strength=np.asarray(q.gaussians.strength),
            degrees_of_freedom=np.asarray(q.gaussians.degrees_of_freedom),
            scale_root=np.asarray(scale_root),
            concentration1=np.asarray(q.sticks.concentration1),
            concentration0=np.asarray(q.sticks.concentration0),
            label=label,
            start_elbo=np.asarray(elbo),
        )

    def guide(self, approximation: DPMILApproximation) -> Program:
        """q(θ) q(r) q(z | r), on the bags learned from."""
        model = self.model

        def guide(bags: Bags) -> None:
            approximation.sample_parameters(model)
            log_components = approximation.expected_log_components(bags)
            labels = approximation.label_distribution(model, bags, log_components)
            label = numpyro.sample("instance_label", labels)
            own = jnp.take_along_axis(log_components, label[None, None, :], axis=0)[0]
            with numpyro.plate("instance", bags.num_instances):
                numpyro.sample("cluster", dist.Categorical(logits=own.T))

        return guide

    # -------------------------------------------------------------- products over instances

    def _log_components(
        self, instances: Instances, q: MixtureState, classes: int
    ) -> Float[Array, "N S L K"]:
        """log ρ of the first classes."""
        constant, linear, quadratic = q.gaussians.expected_log_density()
        constant += jax.vmap(Sticks.expected_log_weight)(q.sticks)
        constant, linear, quadratic = (of[:, :classes] for of in (constant, linear, quadratic))
        # A column for each component of each start.
        by_value, by_moment = (of.reshape(-1, of.shape[-1]).T for of in (linear, quadratic))

        def of_rows(rows: Array, moments: Array) -> tuple[tuple[()], Float[Array, "R C"]]:
            return (), rows @ by_value + moments @ by_moment + constant.ravel()

        shape = (len(instances.value), self.num_starts, classes, self.model.max_components)
        return self._over_rows(of_rows, instances)[1].reshape(shape)

    def _sufficient(
        self,
        prepared: MixtureChunk,
        in_candidates: Float[Array, "C S 2 K"],
        in_negatives: Float[Array, "G S 1 K"],
    ) -> Statistics:
        """N, Σx and Σφ(x) of each component, by responsibilities."""
        weight = prepared.candidate_weight[:, None, None, None]
        both = self._statistics(prepared.candidates, weight * in_candidates)
        weight = prepared.negative_weight[:, None, None, None]
        negative = self._statistics(prepared.negatives, weight * in_negatives)
        return jax.tree.map(lambda of, more: of.at[:, :1].add(more), both, negative)

    def _statistics(
        self, instances: Instances, responsibility: Float[Array, "N S L K"]
    ) -> Statistics:
        def of_rows(rows: Array, moments: Array, weight: Array) -> tuple[Statistics, tuple[()]]:
            return Statistics(jnp.sum(weight, axis=0), weight.T @ rows, weight.T @ moments), ()

        shape = responsibility.shape[1:]
        # Not −1, which JAX cannot tell where there are no rows.
        columns = responsibility.reshape(len(responsibility), math.prod(shape))
        total, _ = self._over_rows(of_rows, instances, columns)
        return jax.tree.map(lambda of: of.reshape(*shape, *of.shape[1:]), total)

    def _over_rows(
        self, function: Callable[..., tuple[Any, Any]], instances: Instances, *arrays: Array
    ) -> tuple[Any, Any]:
        """A function of x̃, φ(x̃) and more: of all rows at once, or where φ is made, of blocks."""
        value, moments = instances
        second_moments = family(self.model.covariance).second_moments
        if moments is not None or not len(value):
            return function(value, second_moments(value) if moments is None else moments, *arrays)
        return in_row_blocks(
            lambda rows, *others: function(rows, second_moments(rows), *others), value, *arrays
        )


@closed_form.register
def _(model: DPMIL, options: Options) -> DPMILForm:
    update = options.label_update_of(model, LABEL_UPDATES)
    if options.learns_hyperparameters:
        raise ValueError(
            "learn_hyperparameters=True, but DPMIL has fixed hyper-parameters, as the paper: give "
            "them to DPMIL.for_bags"
        )
    if options.is_traced:  # the starts are scikit-learn's
        raise NotImplementedError(
            "the closed form of DPMIL, from many starts, cannot be a part of another program; "
            "give coordinate_ascent itself, which runs for one set of bags after another"
        )
    if options.dtype != "float64":
        raise NotImplementedError(
            "DPMIL has no closed form in 32 bit, where nearly equal densities of its two mixtures "
            "would be subtracted; use dtype='float64'"
        )
    num_starts = _NUM_STARTS if options.num_starts is None else options.num_starts
    check_counts(num_starts=num_starts)
    return DPMILForm(model, update, num_starts)


@jax.jit
def _in_units(model: DPMIL, gaussians: NormalWishart | NormalGamma) -> tuple[Array, Array]:
    """m and the root of W of q(μ, Λ), in the units of the features."""
    return model.in_units(gaussians.mean, gaussians.scale_cholesky())


def _divergence_from_prior(model: DPMIL, q: MixtureState) -> Float[Array, ""]:
    """KL(q(θ) ‖ p(θ))."""
    of_gaussians = q.gaussians.divergence_from_prior(model.mean_strength, model.degrees_of_freedom)
    return jnp.sum(of_gaussians) + q.sticks.divergence_from_prior(model.concentration)


# ------------------------------------------------------------------ the approximation


@serialization.register
@as_pytree()
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
    concentration1, concentration0 : array (2, K − 1)
        γ¹ and γ².
    label : array (N,) or None
        The labels that a hard update chose; None where they have their exact distribution.
    start_elbo : array (S,)
        Where each start ended.
    """

    mean: Float[np.ndarray, "2 K D"]
    strength: Float[np.ndarray, "2 K"]
    degrees_of_freedom: Float[np.ndarray, "2 K"]
    scale_root: Float[np.ndarray, "2 K ..."]
    concentration1: Float[np.ndarray, "2 k"]
    concentration0: Float[np.ndarray, "2 k"]
    label: Int[np.ndarray, " N"] | None
    start_elbo: Float[np.ndarray, " S"]

    @property
    def num_components(self) -> int:
        """The number K of components of each class."""
        return self.mean.shape[1]

    @property
    def expected_weight(self) -> Float[np.ndarray, "2 K"]:
        """The expected weight E π of each component."""
        on = self.concentration1 / (self.concentration1 + self.concentration0)
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

    @property
    def _global(self) -> DPMILApproximation:
        """Without the labels, whose number differs between sets of bags."""
        return replace(self, label=None)

    def sample_parameters(self, model: DPMIL) -> None:
        """q(v) q(μ, Λ) as a NumPyro program; the root of Λ where precisions are matrices."""
        nu, root = jnp.asarray(self.degrees_of_freedom), jnp.asarray(self.scale_root)
        mean, strength = jnp.asarray(self.mean), jnp.asarray(self.strength)
        if self.num_components > 1:
            sticks = dist.Beta(jnp.asarray(self.concentration1), jnp.asarray(self.concentration0))
            numpyro.sample("stick", sticks.to_event(2))
        if self._is_full:
            precisions = dist.WishartCholesky(nu, scale_tril=root, validate_args=False).to_event(2)
        else:
            precisions = dist.Gamma(0.5 * nu[..., None], 0.5 / root**2).to_event(3)
        precision = numpyro.sample(model.precision_site, precisions)
        precision_root = precision if self._is_full else jnp.sqrt(precision)
        means = gaussian_by_precision(mean, precision_root, strength).to_event(2)
        numpyro.sample("mean", means)

    def draws(self, model: DPMIL, bags: Bags | None, key: Array, num_draws: int) -> Draws:
        """Draws of sticks, means and precisions."""
        with jax.enable_x64(True):
            found = _draws(self._global, model, key, num_draws)
            return {name: np.asarray(found[name]) for name in model.latent_sites}

    def log_density(self, model: DPMIL, bags: Bags | None, draws: Draws) -> Float[np.ndarray, " S"]:
        """log q of each draw."""
        with jax.enable_x64(True):
            sites = {name: np.asarray(draws[name]) for name in model.latent_sites}
            return np.asarray(_log_density(self._global, model, sites))

    def guide(self, model: DPMIL) -> Program:
        """q(θ) q(r) q(z | r), the guide of ``model.augmented()`` on the bags learned from."""
        return closed_form(model, Options()).guide(self)

    def label_probability(self, model: DPMIL, bags: Bags) -> Float[np.ndarray, " N"]:
        """q(r_n = 1) of the instances of the bags learned from; 0 or 1 where labels were chosen.

        Parameters
        ----------
        model : DPMIL
        bags : Bags
            With labels.

        Returns
        -------
        array (N,)
        """
        if self.label is not None:
            return self.label.astype(float)
        model.check(bags)
        with jax.enable_x64(True):
            found = _label_probability(self, model, padded(bags))
            return np.asarray(found)[: bags.num_instances]

    def label_distribution(
        self, model: DPMIL, bags: Bags, log_components: Float[Array, "2 K N"]
    ) -> dist.Distribution:
        """Exact q(r) given log ρ, or a point mass at the chosen labels."""
        if self.label is not None:
            return dist.Delta(jnp.asarray(self.label), event_dim=1)
        log_density = logsumexp(log_components, axis=1)
        return model.label_rule(bags).labels(log_density[1] - log_density[0])

    def log_predictive(self, model: DPMIL, bags: Bags) -> Float[np.ndarray, "2 N"]:
        """Log densities of new instances of each class: the Student-t mixtures under q.

        References
        ----------
        Kandemir and Hamprecht (2014), section 3.2 and appendix.
        """
        model.check_width(bags)
        with jax.enable_x64(True):
            given = padded(bags.without_labels())
            found = np.asarray(_log_predictive(self._global, self.expected_weight, given.instances))
        return found[:, : bags.num_instances]

    @property
    def _is_full(self) -> bool:
        return self.scale_root.ndim > self.mean.ndim

    def expected_log_components(self, bags: Bags) -> Float[Array, "2 K N"]:
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
        constant = Sticks(jnp.asarray(self.concentration1), jnp.asarray(self.concentration0))
        constant = constant.expected_log_weight() + 0.5 * log_determinant
        constant -= 0.5 * num_features * (1 / jnp.asarray(self.strength) + math.log(2 * math.pi))
        return constant[..., None] - 0.5 * nu[..., None] * jnp.sum(whitened**2, axis=-1)


@partial(jax.jit, static_argnames="num_draws")
def _draws(
    approximation: DPMILApproximation, model: DPMIL, key: Array, num_draws: int
) -> dict[str, Array]:
    def one(key: Array) -> dict[str, Array]:
        sites = handlers.trace(handlers.seed(approximation.sample_parameters, key)).get_trace(model)
        return {name: site["value"] for name, site in sites.items()}

    return jax.lax.map(one, jax.random.split(key, num_draws))


@jax.jit
def _log_density(
    approximation: DPMILApproximation, model: DPMIL, sites: dict[str, Array]
) -> Float[Array, " S"]:
    program = approximation.sample_parameters
    return jax.lax.map(lambda site: log_density(program, (model,), {}, site)[0], sites)


@jax.jit
def _label_probability(
    approximation: DPMILApproximation, model: DPMIL, bags: Bags
) -> Float[Array, " N"]:
    log_components = approximation.expected_log_components(bags)
    return approximation.label_distribution(model, bags, log_components).mean


@jax.jit
def _log_predictive(
    approximation: DPMILApproximation,
    weight: Float[Array, "2 K"],
    instances: Float[Array, "N D"],
) -> Float[Array, "2 N"]:
    """log p₋ and log p₊ of new instances: mixtures of Student t distributions."""

    def of_class(given: tuple[Array, ...]) -> Float[Array, " N"]:
        weight, mean, root, strength, degrees_of_freedom = given
        by_component = log_predictive(instances, mean, root, strength, degrees_of_freedom)
        return logsumexp(jnp.log(weight)[:, None] + by_component, axis=0)

    q = approximation
    parts = (weight, q.mean, q.scale_root, q.strength, q.degrees_of_freedom)
    return jax.lax.map(of_class, tuple(map(jnp.asarray, parts)))


# ------------------------------------------------------------------ where clusters start


def _centers(
    model: DPMIL,
    sample: Float[np.ndarray, "n D"],
    may_be_positive: Bool[np.ndarray, " n"],
    seeds: tuple[int, ...],
) -> Float[np.ndarray, "S 2 K D"]:
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
    deviation, root = sample - model.center, model.scale_root
    whitened = deviation @ root if model.covariance == "full" else deviation * root
    classes = whitened[~may_be_positive], whitened[may_be_positive]
    with one_thread():
        found = [
            [_centers_of_class(rows, model.max_components, seed) for rows in classes]
            for seed in seeds
        ]
    return np.array(found)


def _centers_of_class(
    rows: Float[np.ndarray, "n D"], max_components: int, seed: int
) -> Float[np.ndarray, "K D"]:
    """From the largest cluster on: stick breaking expects them in this order."""
    found = np.full((max_components, rows.shape[1]), np.inf)
    num_clusters = min(max_components, num_distinct_rows(rows))
    if num_clusters < 2:
        found[0] = rows.mean(axis=0) if len(rows) else 0.0
        return found
    clusters = KMeans(num_clusters, n_init=1, random_state=seed).fit(rows)
    order = np.argsort(-np.bincount(clusters.labels_, minlength=num_clusters), kind="stable")
    found[:num_clusters] = clusters.cluster_centers_[order]
    return found


def _nearest(
    instances: Float[Array, "N D"], centers: Float[Array, "S L K D"]
) -> Float[Array, "N S L K"]:
    """1 for the nearest cluster of each class, of each start; the first of several."""
    is_there = jnp.isfinite(centers[..., 0])
    placed = jnp.where(is_there[..., None], centers, 0.0)
    # ‖x − c‖² but for ‖x‖², halved and turned round.
    closeness = jnp.einsum("nd,slkd->nslk", instances, placed) - 0.5 * jnp.sum(placed**2, axis=-1)
    cluster = jnp.argmax(jnp.where(is_there, closeness, -jnp.inf), axis=-1)
    return jax.nn.one_hot(cluster, centers.shape[2], dtype=instances.dtype)


# ------------------------------------------------------------------ parts of a step


def _mixtures_of(model: DPMIL, sufficient: Statistics) -> MixtureState:
    """q(θ) at its optimum given q(z, r), with the components in the order that the sticks like."""
    sufficient = _in_order(sufficient, model.concentration)
    gaussians = family(model.covariance).posterior(
        sufficient, model.mean_strength, model.degrees_of_freedom
    )
    count = jnp.asarray(sufficient.occupancy)
    return MixtureState(
        gaussians, Sticks(1 + count[:, :-1], model.concentration + count_after(count))
    )


def _in_order(sufficient: Statistics, concentration: float | Array) -> Statistics:
    """The order of the components that the sticks like best, of each class.

    To rename components is a step of the ascent too: it moves q(v) alone. Without it a large
    component behind small ones stays there, and most starts end tens of nats too low. But for the
    last component, which has no stick, the largest come first: to swap neighbours changes
    α + Σ_{j>k} N_j alone. Which is the last is tried out.
    """
    places = np.arange(sufficient.occupancy.shape[1])
    one_last = np.stack([np.append(np.delete(places, place), place) for place in places])

    def best(count: Float[Array, " K"]) -> Int[Array, " K"]:
        orders = jnp.argsort(-count)[one_last]
        # As it is, unless another order gains: names that change for nothing hide convergence.
        orders = jnp.concatenate([jnp.asarray(places)[None], orders])
        return orders[jnp.argmax(log_evidence_of_counts(count[orders], concentration))]

    order = jax.vmap(best)(jnp.asarray(sufficient.occupancy))
    return jax.tree.map(
        jax.vmap(lambda values, by: values[by]), sufficient, Statistics(*[order] * 3)
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
