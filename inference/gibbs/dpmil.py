"""The exact conditionals of DPMIL, in blocks.

One sweep, from the labels r and the clusters z of the last one:

.. code-block:: text

    names of clusters | z      pairs swapped with the sticks and parameters integrated out
    v | z                      Beta(1 + N_k, α + Σ_{j>k} N_j)
    Λ, μ | r, z, X             normal-Wishart
    r | v, μ, Λ, X, T          jointly in each bag, clusters summed out
    z | r, v, μ, Λ, X

Coordinates are those in which the prior has W0 = 1 and m0 = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...datasets.bags import Bags
from ...datasets.padding import bag_weight, padded
from ...models.dpmil import (
    DPMIL,
    count_after,
    draw_labels,
    log_evidence_of_counts,
    log_stick_weights,
)
from ...models.numerics.tracing import as_pytree
from ...models.parts.dp_mixture import Mixtures
from ...models.parts.normal_wishart import Statistics, family
from ...models.parts.witnesses import LabelRule
from .sweep import sweep_of

__all__ = ["DPMILGibbs", "DPMILGibbsState"]


class DPMILGibbsState(NamedTuple):
    """The state of one chain."""

    key: Array
    label: Int[Array, " N"]  # r
    cluster: Int[Array, " N"]  # z
    stick: Float[Array, "2 k"]
    mean: Float[Array, "2 K D"]  # of x̃
    precision: Float[Array, "2 K ..."]  # of x̃: L, or λ


@as_pytree()
@dataclass(frozen=True)
class DPMILGibbs:
    """The sweep as pure functions of the state.

    Attributes
    ----------
    model : DPMIL
    rule : LabelRule
    instances : array (N, D)
        x̃ = Bᵀ(x − m0).
    moments : array (N, P)
        φ(x̃).
    weight : array (N,)
        1, or 0 of instances of absent bags, which come last.
    """

    # Of the class, not a field: a ClassVar would not do for the property of the protocol.
    site_names = (
        *("stick", "mean", "precision_cholesky", "precision"),
        *("instance_label", "cluster"),
    )

    model: DPMIL
    rule: LabelRule
    instances: Float[Array, "N D"]
    moments: Float[Array, "N P"]
    weight: Float[Array, " N"]

    @classmethod
    def for_model(cls, model: DPMIL, bags: Bags) -> Self:
        """Prepare the sweep of a model: whiten the instances once."""
        model.check(bags)
        return _prepared(model, bags)

    def init(self, key: Array) -> DPMILGibbsState:
        """Draw labels from their prior; cluster each instance with the nearest of K random ones."""
        key, label_key, centre_key = jax.random.split(key, 3)
        label = self.rule.labels().sample(label_key)
        K, shape = self.model.max_components, self.instances.shape
        num_there = jnp.sum(self.weight).astype(int)
        chosen = jax.random.randint(centre_key, (2, K), 0, num_there)
        centres = self.instances[chosen][label]  # (N, K, D)
        cluster = jnp.argmin(jnp.sum((self.instances[:, None] - centres) ** 2, axis=2), axis=1)
        # The first sweep draws the parameters before it looks at any.
        identity = jnp.eye(shape[1]) if self.model.covariance == "full" else jnp.ones(shape[1])
        return DPMILGibbsState(
            key,
            label,
            cluster,
            stick=jnp.full((2, K - 1), 0.5),
            mean=jnp.zeros((2, K, shape[1])),
            precision=jnp.broadcast_to(identity, (2, K, *identity.shape)),
        )

    def step(self, state: DPMILGibbsState) -> DPMILGibbsState:
        """One sweep over v, Λ, μ, then r and z."""
        key, name_key, parameter_key, label_key = jax.random.split(state.key, 4)
        statistics = self._sufficient_statistics(state.label, state.cluster)
        # Which names the clusters of the state have does not matter any more: r and z come last.
        order = jax.vmap(partial(_renamed, concentration=self.model.concentration))(
            jax.random.split(name_key), jnp.asarray(statistics.occupancy)
        )
        statistics = jax.tree.map(
            lambda values: jax.vmap(jnp.take, (0, 0, None))(values, order, 0), statistics
        )
        stick, mean, precision = self._draw_parameters(parameter_key, statistics)
        root = precision if self.model.covariance == "full" else jnp.sqrt(precision)
        mixtures = Mixtures(log_stick_weights(stick), mean, root)
        drawn = draw_labels(label_key, mixtures.log_components(self.instances), self.rule)
        return DPMILGibbsState(
            key, drawn["instance_label"], drawn["cluster"], stick, mean, precision
        )

    def sites(self, state: DPMILGibbsState) -> dict[str, Array]:
        """The state as sites of the model, in the units of the features."""
        is_full = self.model.covariance == "full"
        root = state.precision if is_full else jnp.sqrt(state.precision)
        mean, root = self.model.in_units(state.mean, root)
        sites = {
            "mean": mean,
            self.model.precision_site: root if is_full else root**2,
            "instance_label": state.label,
            "cluster": state.cluster,
        }
        return sites | ({"stick": state.stick} if self.model.max_components > 1 else {})

    def _sufficient_statistics(
        self, label: Int[Array, " N"], cluster: Int[Array, " N"]
    ) -> Statistics:
        K = self.model.max_components
        whose = label * K + cluster

        def by_component(values: Array) -> Array:
            return jax.ops.segment_sum(values, whose, 2 * K).reshape(2, K, *values.shape[1:])

        weighted = (self.weight[:, None] * of for of in (self.instances, self.moments))
        return Statistics(*map(by_component, (self.weight, *weighted)))

    def _draw_parameters(self, key: Array, statistics: Statistics) -> tuple[Array, Array, Array]:
        """Draw v, μ and Λ given the sufficient statistics."""
        stick_key, gaussian_key = jax.random.split(key)
        model, count = self.model, jnp.asarray(statistics.occupancy)
        # Beta(a, b) is Γ(a)/(Γ(a) + Γ(b)).
        shapes = jnp.stack([1 + count[:, :-1], model.concentration + count_after(count)])
        kept, passed_on = jax.random.gamma(stick_key, shapes)
        posterior = family(model.covariance).posterior(
            statistics, model.mean_strength, model.degrees_of_freedom
        )
        return kept / (kept + passed_on), *posterior.draw(gaussian_key)


@jax.jit
def _prepared(model: DPMIL, bags: Bags) -> DPMILGibbs:
    instances = model.whitened(bags)
    moments = family(model.covariance).second_moments(instances)
    weight = jnp.asarray(bag_weight(bags))[jnp.asarray(bags.bag_index)]
    return DPMILGibbs(model, model.label_rule(bags), instances, moments, weight)


@sweep_of.register
def _(model: DPMIL, bags: Bags) -> DPMILGibbs:
    return DPMILGibbs.for_model(model, padded(bags))


def _renamed(
    key: Array, count: Float[Array, " K"], *, concentration: float | Float[Array, ""]
) -> Int[Array, " K"]:
    """Draw an order of the components, by K Metropolis steps that swap the names of a pair.

    With sticks and parameters integrated out, names change p(z) alone. Without these swaps a large
    cluster with a late stick would keep it for long.
    """
    num_components = count.shape[0]

    def offer(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        order, count = state
        pair_key, accept_key = jax.random.split(jax.random.fold_in(key, i))
        first, distance = jax.random.randint(
            pair_key, (2,), jnp.array([0, 1]), jnp.array([num_components, num_components])
        )
        pair = jnp.stack([first, (first + distance) % num_components])
        swapped = count.at[pair].set(count[pair[::-1]])
        before, after = (log_evidence_of_counts(c, concentration) for c in (count, swapped))
        accepted = jnp.log(jax.random.uniform(accept_key)) < after - before
        other = order.at[pair].set(order[pair[::-1]])
        return jnp.where(accepted, other, order), jnp.where(accepted, swapped, count)

    start = (jnp.arange(num_components), count)
    if num_components == 1:
        return start[0]
    return jax.lax.fori_loop(0, num_components, offer, start)[0]
