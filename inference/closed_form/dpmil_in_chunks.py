"""DPMIL where bags come in chunks: all starts at once, by sums over instances.

A round is the one of `dpmil`, of the same symbols, with a leading axis of starts. What is certain
to be negative goes through both mixtures here, and weighs nothing in the positive one: how many
such instances a chunk has may not decide its shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import logsumexp
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...models.dpmil import DPMIL
from ...models.normal_wishart import NormalGamma, NormalWishart, Statistics, family
from ...models.witnesses import LabelRule
from ..products import in_row_blocks
from . import dpmil
from .ascent import ROUNDING, Ascent, of_best_start

__all__ = ["MixturesInChunks"]


class MixtureChunk(NamedTuple):
    """What stays fixed of a chunk."""

    instances: Float[Array, "N D"]  # x̃
    rule: LabelRule
    bag_weight: Float[Array, " B"]
    log_constant: Float[Array, ""]  # log p(T), and the Jacobian of the coordinates


class Centers(NamedTuple):
    """Where clusters start; infinite where there is none."""

    value: Float[Array, "S 2 K D"]


class MixtureState(NamedTuple):
    """q(θ) of each start."""

    gaussians: NormalWishart | NormalGamma  # of shape (S, 2, K)
    sticks: dpmil.Sticks


class MixtureSums(NamedTuple):
    """All that a round needs of the instances."""

    seen: Statistics  # of shape (S, 2, K)
    log_evidence: Float[Array, " S"]
    log_constant: Float[Array, ""]


@dataclass(frozen=True)
class MixturesInChunks:
    """The soft update of DPMIL.

    Attributes
    ----------
    model : DPMIL
    seeds : tuple of int
        Of k-means, one for each start.
    """

    model: DPMIL
    seeds: tuple[int, ...]
    is_compact = False
    rounding = ROUNDING

    @property
    def _shape(self) -> tuple[int, int, int]:
        return len(self.seeds), 2, self.model.max_components

    def held(self) -> MixturesInChunks:
        """Itself."""
        return self

    def check(self, bags: Bags) -> None:
        """Refuse chunks without the labels that are learned from, or of other features.

        Raises
        ------
        ValueError
            As of `DPMIL.check`.
        """
        self.model.check(bags)

    def start(self, spread: Callable[..., Float[np.ndarray, "n F"]]) -> Centers:
        """Clusters by k-means of instances that are spread over all chunks."""

        def rows(bags: Bags) -> Float[np.ndarray, "N F"]:
            return np.column_stack([bags.instances, self.model.may_be_positive(bags)])

        found = spread(rows, dpmil.MAX_SAMPLE)
        sample, may_be_positive = found[:, :-1], found[:, -1] == 1
        return Centers(dpmil.centers(self.model, sample, may_be_positive, self.seeds))

    def nothing(self) -> MixtureSums:
        """Zeros."""
        num_features = self.model.num_features
        is_full = self.model.covariance == "full"
        num_moments = num_features * (num_features + 1) // 2 if is_full else num_features
        shapes = (self._shape, (*self._shape, num_features), (*self._shape, num_moments))
        # By NumPy: JAX would compile a program for each of these.
        seen = Statistics(*(jnp.asarray(np.zeros(shape)) for shape in shapes))
        return MixtureSums(seen, *(jnp.asarray(np.zeros(s)) for s in ((len(self.seeds),), ())))

    def problem(self, bags: Bags, bag_weight: Float[Array, " B"]) -> MixtureChunk:
        """Whitened instances, and which labels they may have."""
        rule, weight = self.model.label_rule(bags), jnp.asarray(bag_weight)
        by_bag = dpmil.log_label_probability(self.model, jnp.asarray(bags.labels))
        num_instances = jnp.sum(weight[rule.bag_index])
        log_constant = jnp.sum(weight * by_bag) + num_instances * dpmil.log_jacobian(self.model)
        return MixtureChunk(self.model.whitened(bags), rule, weight, log_constant)

    def sums(self, problem: MixtureChunk, state: Centers | MixtureState) -> MixtureSums:
        """Statistics of the components and the bags' evidence, under q(z, r) at its optimum.

        Of the start: under the nearest centers, all that may be positive being so.
        """
        if isinstance(state, Centers):
            share, log_evidence = _nearest(problem, state), jnp.zeros(len(self.seeds))
        else:
            log_components = self._log_components(problem.instances, state)
            share, log_evidence = _responsibilities(problem, log_components)
        weight = problem.bag_weight[problem.rule.bag_index]
        seen = self._statistics(problem.instances, weight[:, None, None, None] * share)
        return MixtureSums(seen, log_evidence, problem.log_constant)

    def moved(self, sums: MixtureSums) -> MixtureState:
        """q(θ) at its optimum."""
        prior = dpmil.Prior.of(self.model)
        one = jax.vmap(lambda seen: dpmil.mixtures_of(seen, prior, self.model.covariance))
        return MixtureState(*one(sums.seen))

    def in_order(self, sums: MixtureSums) -> MixtureSums:
        """Components in the order that the sticks like best."""
        one = jax.vmap(dpmil.in_order, in_axes=(0, None))
        return sums._replace(seen=one(sums.seen, dpmil.Prior.of(self.model).concentration))

    def bound(self, state: MixtureState, sums: MixtureSums) -> Float[Array, " S"]:
        """The bound of each start."""
        of_one = jax.vmap(dpmil.divergence_from_prior, in_axes=(0, 0, None))
        divergence = of_one(state.gaussians, state.sticks, dpmil.Prior.of(self.model))
        return sums.log_constant + sums.log_evidence - divergence

    def finished(self, ascent: Ascent) -> tuple[Ascent, dpmil.DPMILApproximation]:
        """The best start, and q(θ) at its end."""
        best = of_best_start(ascent)
        state, ends = best.state, ascent.elbo[-1]
        laws = dpmil.laws_in_units(self.model, state.gaussians, state.sticks)
        return best, dpmil.DPMILApproximation(
            **laws, label=None, label_update="soft", start_elbo=ends
        )

    def _log_components(
        self, instances: Float[Array, "N D"], state: MixtureState
    ) -> Float[Array, "N S 2 K"]:
        """log ρ."""
        constant, linear, quadratic = state.gaussians.expected_log_density()
        constant += jax.vmap(dpmil.Sticks.expected_log_weight)(state.sticks)
        # A column for each component of each start.
        by_value, by_moment = (of.reshape(-1, of.shape[-1]).T for of in (linear, quadratic))
        second_moments = family(self.model.covariance).second_moments

        def of_rows(rows: Float[Array, "R D"]) -> tuple[tuple[()], Float[Array, "R C"]]:
            return (), rows @ by_value + second_moments(rows) @ by_moment + constant.ravel()

        found = in_row_blocks(of_rows, instances)[1]
        return found.reshape(-1, *self._shape)

    def _statistics(
        self, instances: Float[Array, "N D"], share: Float[Array, "N S 2 K"]
    ) -> Statistics:
        second_moments = family(self.model.covariance).second_moments

        def of_rows(
            rows: Float[Array, "R D"], share: Float[Array, "R C"]
        ) -> tuple[Statistics, tuple[()]]:
            moments = second_moments(rows)
            return Statistics(jnp.sum(share, axis=0), share.T @ rows, share.T @ moments), ()

        total = in_row_blocks(of_rows, instances, share.reshape(len(share), -1))[0]
        return jax.tree.map(lambda of: of.reshape(*self._shape, *of.shape[1:]), total)


def _nearest(problem: MixtureChunk, start: Centers) -> Float[Array, "N S 2 K"]:
    """1 for the nearest cluster of the class that an instance starts in."""
    num_components = start.value.shape[2]
    of_starts = jax.vmap(jax.vmap(dpmil.nearest, in_axes=(None, 0)), in_axes=(None, 0))
    cluster = jnp.moveaxis(of_starts(problem.instances, start.value), -1, 0)  # (N, S, 2)
    may_be_positive = problem.rule.known > -jnp.inf
    of_class = jnp.stack([~may_be_positive, may_be_positive], axis=1)[:, None, :, None]
    return of_class * jax.nn.one_hot(cluster, num_components)


def _responsibilities(
    problem: MixtureChunk, log_components: Float[Array, "N S 2 K"]
) -> tuple[Float[Array, "N S 2 K"], Float[Array, " S"]]:
    """q(r_n = l) q(z_n = k | r_n = l), and log Σ_r p(r) Π e^ℓ."""

    def of_one(own: Float[Array, "N 2 K"]) -> tuple[Float[Array, "N 2 K"], Float[Array, ""]]:
        of_classes = logsumexp(own, axis=2).T  # ℓ₋, ℓ₊
        positive = problem.rule.labels(of_classes[1] - of_classes[0]).mean
        of_labels = jnp.stack([1 - positive, positive], axis=1)
        log_evidence = jnp.sum(problem.bag_weight * problem.rule.log_evidence(of_classes))
        return of_labels[:, :, None] * jax.nn.softmax(own, axis=2), log_evidence

    return jax.vmap(of_one, in_axes=1, out_axes=(1, 0))(log_components)
