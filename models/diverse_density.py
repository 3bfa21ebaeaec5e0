r"""Diverse density: one concept that is in all positive bags and in no negative one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import Distribution, constraints

from ..datasets.arguments import checked_seed
from ..datasets.bags import Bags
from ..datasets.checks import check_squares
from ..datasets.padding import padded
from .model import (
    Draws,
    ModelDefaults,
    Program,
    observations,
    random_key,
)
from .numerics.draws import over_draws
from .numerics.fields import check_fields
from .numerics.tracing import as_pytree
from .parts.bag_labels import AnyArray, LogOddsLabel
from .parts.hyperpriors import prior_of
from .parts.noisy_or import labels_given_bags, observe_bags, probabilities, sample_labels
from .parts.witnesses import log_odds_of_some
from .registry import register

__all__ = [
    "DiverseDensity",
    "concept_logits",
    "log_diverse_density",
    "log_odds_at",
    "log_probability_of_labels",
]

# Smallest q: at the concept itself P(y_n = 1) is 1, and no negative bag is possible.
_SMALLEST = 1e-12


@register
@as_pytree()
@dataclass(frozen=True, eq=False)
class DiverseDensity(ModelDefaults):
    r"""A noisy-or of the nearness of instances to one concept, with a scale for each feature.

    .. code-block:: text

        t_d          ~ Normal                                        concept        (feature)
        s_d          ~ LogNormal                                     scale          (feature)
        y_n | t, s   ~ Bernoulli(exp(−Σ_d s_d² (x_nd − t_d)²))       instance_label (instance)
        Y_b          = 1 if some y_n in it is, else 0                bag_label      (bag)

    Its likelihood as a function of t and s is the diverse density of Maron and Lozano-Pérez, which
    Venkatesan and co-authors compare with (`DiverseDensityLearner` maximises it from many starts);
    with priors it has a posterior, which may have several modes. R̂ shows chains that end in
    different ones, but no mode that all chains miss.

    Calling it, and ``marginal()``, runs the program with the instance labels summed out;
    ``augmented()`` has them as sites.

    ==================  =======  ====================================================
    field               symbol   meaning
    ==================  =======  ====================================================
    concept_prior                of each t_d, in the units of the features
    scale_prior                  of each s_d, in one over them; positive
    ==================  =======  ====================================================

    Parameters
    ----------
    concept_prior : Distribution
    scale_prior : Distribution

    Raises
    ------
    ValueError
        If a prior has another support.

    References
    ----------
    Maron and Lozano-Pérez (1998); Venkatesan, Chandakkar and Li (2015), equation 1. The priors are
    ours.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import maximum_a_posteriori
    >>> from milzoo.models import DiverseDensity
    >>> bags = load("kandemir2014")
    >>> posterior = maximum_a_posteriori(DiverseDensity(), bags, seed=0)
    >>> bags.labels[:4], posterior.predict(bags).bag_probability[:4].round(1)
    (array([1, 0, 0, 1]), array([0.9, 0.7, 0.3, 0.9]))
    """

    concept_prior: Annotated[Distribution, prior_of(constraints.real)] = dist.Normal(0.0, 1.0)
    scale_prior: Annotated[Distribution, prior_of(constraints.positive)] = dist.LogNormal(0.0, 1.0)

    name: ClassVar[str] = "diverse_density"
    instance_note: ClassVar[str] = (
        "an instance's probability is that of a bag that holds it alone: how near the concept it is"
    )
    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "concept": ("feature",),
        "scale": ("feature",),
        "instance_label": ("instance",),
        "bag_label": ("bag",),
    }
    fields_for_bags: ClassVar[tuple[str, ...]] = ("concept_prior", "scale_prior")

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def for_bags(cls, bags: Bags, seed: int = 0) -> Self:
        """A model with a default from the data: how fast probabilities fall with distance.

        The prior median of s is that at which two instances, √(2D) apart on average, have
        Σ s² (x − z)² = 4.

        Parameters
        ----------
        bags : Bags
            Training bags, each feature with mean 0 and sd 1 (``bags.standardize()``).
        seed : int
            Not used: there are no random choices.

        Returns
        -------
        DiverseDensity
        """
        checked_seed(seed)
        check_squares(bags.instances)
        return cls(scale_prior=dist.LogNormal(0.5 * math.log(2.0 / bags.num_features), 1.0))

    @property
    def latent_sites(self) -> tuple[str, ...]:
        """Concept and scale."""
        return ("concept", "scale")

    # ------------------------------------------------------------------ the programs

    def __call__(self, bags: Bags) -> None:
        """The program (t, s) → Y, instance labels summed out."""
        observe_bags(self._draw_logits(bags), bags)

    def marginal(self) -> Program:
        """The program itself.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self.__call__

    def augmented(self) -> Program:
        """The program with the instance labels in it.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._augmented_program

    def _augmented_program(self, bags: Bags) -> None:
        sample_labels(self._draw_logits(bags), bags)

    def _draw_logits(self, bags: Bags) -> Float[Array, " N"]:
        with numpyro.plate("feature", bags.num_features):
            concept = numpyro.sample("concept", self.concept_prior)
            scale = numpyro.sample("scale", self.scale_prior)
        return concept_logits({"concept": concept, "scale": scale}, bags.instances)

    # ------------------------------------------------------------------ predictions

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """Bag and instance probabilities under each draw.

        Parameters
        ----------
        draws : dict of arrays
            ``concept`` and ``scale`` (S, D).
        bags : Bags
            B bags with N instances; their labels are not used.

        Returns
        -------
        dict of arrays
            ``bag_probability`` (S, B) and ``instance_probability`` (S, N).

        Raises
        ------
        ValueError
            If the bags have another number of features.
        """
        expected, found = draws["concept"].shape[1], bags.num_features
        if expected != found:
            raise ValueError(
                f"bags have {found} features, but the concept has {expected}; pass bags with the "
                f"{expected} features that were learned from"
            )

        sites = {name: draws[name] for name in self.latent_sites}
        bag, instance = over_draws(_predict_one, sites, padded(bags.without_labels()))
        return {
            "bag_probability": bag[:, : bags.num_bags],
            "instance_probability": instance[:, : bags.num_instances],
        }

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the instance labels, which were summed out, given those of the bags.

        Parameters
        ----------
        draws : dict of arrays
            ``concept`` and ``scale`` (S, D).
        bags : Bags
            With labels.
        seed : int or JAX key

        Returns
        -------
        dict of arrays
            The draws, with ``instance_label`` (S, N) added.

        Raises
        ------
        ValueError
            If the bags have no labels.
        """
        observations(self, bags, "complete()")
        with jax.enable_x64(True):
            keys = jax.random.split(random_key(seed), len(draws["concept"]))
        sites = {name: draws[name] for name in self.latent_sites} | {"key": keys}
        label = over_draws(_complete_one, sites, padded(bags))
        return dict(draws) | {"instance_label": label[:, : bags.num_instances]}


def _predict_one(site: dict[str, Array], bags: Bags) -> tuple[Array, Array]:
    return probabilities(concept_logits(site, bags.instances), bags)


def _complete_one(site: dict[str, Array], bags: Bags) -> Array:
    logits = concept_logits(site, bags.instances)
    is_positive = jnp.asarray(bags.labels) == 1
    return labels_given_bags(logits, bags, is_positive).sample(site["key"])


def concept_logits(
    site: Mapping[str, AnyArray], points: Float[AnyArray, "N D"]
) -> Float[Array, " N"]:
    """log odds of exp(−q) at points, where q = Σ_d s_d² (x_nd − t_d)²."""
    offset = jnp.asarray(site["scale"]) * (jnp.asarray(points) - jnp.asarray(site["concept"]))
    return log_odds_at(jnp.sum(offset**2, axis=1))


def log_odds_at(squared_distance: Float[Array, " N"]) -> Float[Array, " N"]:
    """log odds of exp(−q) at squared distances q."""
    # From q = 1e-12 on: at q = 0 log odds are infinite and have no gradient.
    q = jnp.maximum(squared_distance, _SMALLEST)
    return -q - jnp.log(-jnp.expm1(-q))


def log_diverse_density(site: Mapping[str, AnyArray], bags: Bags) -> Float[Array, " B"]:
    """log P(Y_b | t, s) of each bag; bags with labels."""
    return log_probability_of_labels(concept_logits(site, bags.instances), bags)


def log_probability_of_labels(logits: Float[Array, " N"], bags: Bags) -> Float[Array, " B"]:
    """log P(Y_b) of each bag by the log odds of its instances: a noisy-or."""
    odds = log_odds_of_some(logits, bags.bag_index, bags.num_bags)
    return LogOddsLabel(odds, validate_args=False).log_prob(jnp.asarray(bags.labels, dtype=int))
