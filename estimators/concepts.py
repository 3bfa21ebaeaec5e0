"""Local maxima of diverse density, searched for from many starts at once; and EM-DD's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..datasets.arguments import FLAG, POSITIVE, WHOLE, Rule, is_number, optional
from ..datasets.bags import Bags
from ..datasets.padding import bag_weight, padded
from ..models.diverse_density import (
    concept_logits,
    log_diverse_density,
    log_odds_at,
    log_probability_of_labels,
)
from ..models.numerics.lbfgs import descend, largest_derivative
from ..models.parts.bag_labels import LogOddsLabel
from .prototypes import Peaks, PrototypeClassifier, check_some_positive, instances_of_positive_bags

__all__ = ["EMDD", "DiverseDensityLearner"]

# Gradient, in nats for a step of one over the scales, at which a search ends.
_FLAT = 1e-5
# Gradient up to which its end counts as a peak.
_AT_REST = 1e-3
# Starts are padded to so many at least: it costs nothing, and small folds share a program.
_FEWEST_POINTS = 128
# Points whose log likelihoods are computed together.
_TOGETHER = 64
# Rounds of EM-DD; it ends where one does not raise the log likelihood by this fraction of it.
_ROUNDS = 50
_GAIN = 1e-9

type Concept = dict[str, Array]  # sites of `DiverseDensity`: its point, its scales
type Objective = Callable[[Concept], Float[Array, ""]]


class _End(NamedTuple):
    """The end of one search, or of all searches."""

    concept: Concept
    log_likelihood: Float[Array, "..."]
    is_at_rest: Bool[Array, "..."]


@dataclass(frozen=True)
class ConceptSearch:
    """The likelihood of a concept and the search for its maximum; static in compiled programs.

    Attributes
    ----------
    learns_scales, label_noise, max_steps
        As of `DiverseDensityLearner`.
    """

    learns_scales: bool
    label_noise: float
    max_steps: int

    def log_likelihood(self, concept: Concept, bags: Bags) -> Float[Array, ""]:
        """The log likelihood of a concept, which is maximised."""
        return self._with_label_noise(log_diverse_density(concept, bags), bags)

    def maximise(self, start: Concept, bags: Bags) -> _End:
        """The local maximum that the search from one concept finds."""
        objective = (
            partial(self.log_likelihood, bags=bags)
            if self.learns_scales
            else self._by_products(start, bags)
        )
        return self._ascend(objective, start)

    def _by_products(self, start: Concept, bags: Bags) -> Objective:
        """The log likelihood at the scales of a concept, by products of a matrix and a vector.

        With o_n = s (x_n − t₀) and u = s (t − t₀) the squared distance is ‖o_n‖² − 2 o_nᵀu + ‖u‖².
        """
        scale = start["scale"]
        offset = scale * (jnp.asarray(bags.instances) - start["concept"])
        squares = jnp.sum(offset**2, axis=1)

        def objective(concept: Concept) -> Float[Array, ""]:
            step = scale * (concept["concept"] - start["concept"])
            logits = log_odds_at(squares - 2 * offset @ step + step @ step)
            return self._with_label_noise(log_probability_of_labels(logits, bags), bags)

        return objective

    def _with_label_noise(self, log_likelihood: Float[Array, " B"], bags: Bags) -> Float[Array, ""]:
        """Σ_b log(ε + (1 − 2ε) P(Y_b)) over the bags that are there."""
        if self.label_noise > 0:
            noise = math.log(self.label_noise)
            log_likelihood = jnp.logaddexp(
                noise, math.log1p(-2 * self.label_noise) + log_likelihood
            )
        return jnp.asarray(bag_weight(bags)) @ log_likelihood

    def _ascend(self, objective: Objective, start: Concept) -> _End:
        """L-BFGS from a concept, in steps of its own scales."""
        num_features = start["concept"].size

        def candidate(step: Float[Array, " P"]) -> Concept:
            scale = start["scale"]
            point = start["concept"] + step[:num_features] / scale
            if self.learns_scales:
                scale = scale * jnp.exp(step[num_features:])
            return {"concept": point, "scale": scale}

        def loss(step: Float[Array, " P"]) -> Float[Array, ""]:
            return -objective(candidate(step))

        none = jnp.zeros(num_features * (2 if self.learns_scales else 1))
        step = descend(loss, none, self.max_steps, _FLAT)
        is_at_rest = largest_derivative(jax.grad(loss)(step)) < _AT_REST
        return _End(candidate(step), objective(candidate(step)), is_at_rest)


@dataclass(frozen=True)
class NearestConceptSearch(ConceptSearch):
    """The rounds of EM-DD, in place of one search."""

    def log_likelihood(self, concept: Concept, bags: Bags) -> Float[Array, ""]:
        """The log likelihood of a concept by the nearest instances, which is maximised."""
        return self._log_likelihood_of_instances(nearest_in_bags(concept, bags), bags, concept)

    def maximise(self, start: Concept, bags: Bags) -> _End:
        """The concept at which the rounds from one concept end."""

        def one_round(carry: tuple) -> tuple:
            concept, log_likelihood, _, num = carry
            nearest = nearest_in_bags(concept, bags)
            objective = partial(self._log_likelihood_of_instances, nearest, bags)
            proposed = self._ascend(objective, concept).concept
            there = self.log_likelihood(proposed, bags)
            is_higher = there > log_likelihood + _GAIN * jnp.abs(log_likelihood)
            kept = jax.tree.map(lambda a, b: jnp.where(is_higher, a, b), proposed, concept)
            return kept, jnp.where(is_higher, there, log_likelihood), is_higher, num + 1

        concept, log_likelihood, is_rising, _ = jax.lax.while_loop(
            lambda carry: carry[2] & (carry[3] < _ROUNDS),
            one_round,
            (start, self.log_likelihood(start, bags), jnp.array(True), 0),
        )
        return _End(concept, log_likelihood, ~is_rising)

    def _log_likelihood_of_instances(
        self, instances: Float[Array, "B D"], bags: Bags, concept: Concept
    ) -> Float[Array, ""]:
        """The log likelihood of a concept by one instance of each bag."""
        label = LogOddsLabel(concept_logits(concept, instances), validate_args=False)
        return self._with_label_noise(label.log_prob(jnp.asarray(bags.labels, dtype=int)), bags)


class DiverseDensityLearner(PrototypeClassifier):
    r"""Concepts where diverse density is highest, as prototypes with a radius each.

    .. math:: \prod_b P(Y_b | t, s), \quad
        P(Y_b = 0 | t, s) = \prod_{n ∈ b} \big(1 - e^{-Σ_d s_d² (x_{nd} - t_d)²}\big)

    is maximised by L-BFGS, in t and log s, from every instance of positive bags. With
    ``label_noise`` 0 it is the likelihood of `DiverseDensity`: one concept that all positive bags
    share. Where they have several, log P(Y_b = 1) of a bag with another concept falls with the
    square of the distance. A few bags far away then outweigh many close by, and a concept that many
    bags have may be no maximum at all. ``label_noise`` bounds the influence of a bag.

    Parameters
    ----------
    separation : float
        Of two peaks whose points are closer, the lower one is suppressed.
    scale : float
        s at the start, in one over the units of the features.
    learns_scales : bool
        Whether each feature's s is optimised too, or stays. One that falls to 0 leaves its feature
        out, where t is then arbitrary.
    label_noise : float
        ε, the fraction of bags whose label is taken to be wrong: ε + (1 − 2ε) P(Y_b) replaces
        P(Y_b). A small constant under P(Y_b), so that it has a logarithm, is such an ε.
    max_prototypes : int
        The highest peaks are kept.
    min_positive : int
        a, the number of instances inside radii that a positive bag has.
    max_steps : int
        Of each search.
    start_bags : int or None
        Searches start in so many positive bags, the smallest: a positive instance is one of few
        there. None for all positive bags, as in the paper.

    Attributes
    ----------
    prototypes_ : Prototypes
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    Published: 88.9 % accuracy on musk1 and 82.5 % on musk2 (Maron and Lozano-Pérez, ten folds).

    References
    ----------
    Maron and Lozano-Pérez (1998); Venkatesan, Chandakkar and Li (2015), equation 1.

    Examples
    --------
    >>> from milzoo.datasets import standard_assumption
    >>> from milzoo.estimators import DiverseDensityLearner
    >>> training, test = standard_assumption(20, range(4, 8), num_features=2, seed=0)
    >>> classifier = DiverseDensityLearner(separation=1.0, start_bags=3).fit(training)
    >>> classifier.prototypes_.peaks.points[0].round(1).tolist()  # the concept is at (3, 3)
    [3.0, 3.0]
    >>> classifier.score(test)
    1.0
    """

    _rules = {
        "separation": POSITIVE,
        "scale": POSITIVE,
        "learns_scales": FLAG,
        "label_noise": Rule(
            "0 or more, and less than a half", lambda value: is_number(value) and 0 <= value < 0.5
        ),
        "max_prototypes": WHOLE,
        "min_positive": WHOLE,
        "max_steps": WHOLE,
        "start_bags": optional(WHOLE, "for all positive bags"),
    }
    _search_class: ClassVar[type[ConceptSearch]] = ConceptSearch

    def __init__(
        self,
        separation: float,
        scale: float = 1.0,
        learns_scales: bool = True,
        label_noise: float = 0.0,
        max_prototypes: int = 10,
        min_positive: int = 1,
        max_steps: int = 200,
        start_bags: int | None = None,
    ) -> None:
        self.separation = separation
        self.scale = scale
        self.learns_scales = learns_scales
        self.label_noise = label_noise
        self.max_prototypes = max_prototypes
        self.min_positive = min_positive
        self.max_steps = max_steps
        self.start_bags = start_bags

    def find_peaks(self, bags: Bags) -> Peaks:
        """Find the local maxima, the highest first.

        Searches that have not converged are left out, and those that end farther beyond all
        instances than these are apart: there t goes to infinity as s goes to 0.

        Parameters
        ----------
        bags : Bags
            With labels.

        Returns
        -------
        Peaks
            Their ``objective`` is the log likelihood.

        Raises
        ------
        ValueError
            If they have no labels, or none that is positive, or no search ends at a peak.
        """
        self._check_parameters()
        starts = instances_of_positive_bags(bags, self.start_bags)
        with jax.enable_x64(True):
            ends = _maximise_from_all(
                self._search(),
                _padded_rows(starts),
                np.asarray(len(starts)),
                np.asarray(float(self.scale)),
                padded(bags),
            )
            ends = jax.tree.map(np.asarray, ends)
        points, instances = ends.concept["concept"], np.asarray(bags.instances)
        low, high = instances.min(axis=0), instances.max(axis=0)
        is_near = (points >= 2 * low - high) & (points <= 2 * high - low)
        is_peak = ends.is_at_rest & is_near.all(axis=1)
        if not is_peak.any():
            raise ValueError(
                f"none of {len(starts)} searches ended at a peak near the instances; try another "
                f"scale (here {self.scale}), label_noise or max_steps"
            )
        peaks = Peaks(points, ends.log_likelihood, ends.concept["scale"])
        peaks = peaks.select(np.flatnonzero(is_peak))
        return peaks.sorted().suppressed(self.separation)

    def log_likelihood(
        self, points: Float[np.ndarray, "P D"], bags: Bags
    ) -> Float[np.ndarray, " P"]:
        """The log likelihood that is maximised, at points with the initial scales.

        Parameters
        ----------
        points : array (P, D)
        bags : Bags
            With labels.

        Returns
        -------
        array (P,)

        Raises
        ------
        ValueError
            If they have no labels, or none that is positive.
        """
        self._check_parameters()
        check_some_positive(bags)
        with jax.enable_x64(True):
            found = _log_likelihood_at(
                self._search(), _padded_rows(points), np.asarray(float(self.scale)), padded(bags)
            )
        return np.asarray(found)[: len(points)]

    def _search(self) -> ConceptSearch:
        return self._search_class(self.learns_scales, self.label_noise, self.max_steps)


class EMDD(DiverseDensityLearner):
    r"""EM-DD: the instance nearest to the concept speaks for its bag, and the concept moves.

    .. math:: P(Y_b = 1 | t, s) = \max_{n ∈ b} e^{-Σ_d s_d² (x_{nd} - t_d)²}

    Each round takes the nearest instance of every bag and maximises with these alone, until a round
    does not raise the likelihood. This is the likelihood of no model here. A round may lower it:
    after the concept has moved, another instance of a negative bag may be the nearest. Rounds may
    therefore end short of a maximum. Parameters are those of `DiverseDensityLearner`.

    Notes
    -----
    Published: 96.8 % accuracy on musk1 and 96.0 % on musk2, where the test bags chose among the
    starts; 84.8 and 84.9 as Andrews et al. (2002) ran it, without that.

    References
    ----------
    Zhang and Goldman (2001); compared with by Venkatesan, Chandakkar and Li (2015).

    Examples
    --------
    >>> from milzoo.datasets import standard_assumption
    >>> from milzoo.estimators import EMDD
    >>> training, test = standard_assumption(20, range(4, 8), num_features=2, seed=0)
    >>> classifier = EMDD(separation=1.0, start_bags=3).fit(training)
    >>> classifier.prototypes_.peaks.points[0].round(1).tolist()  # the concept is at (3, 3)
    [3.0, 3.0]
    >>> classifier.score(test)
    1.0
    """

    _search_class = NearestConceptSearch


def nearest_in_bags(concept: Concept, bags: Bags) -> Float[Array, "B D"]:
    """Find the instance of each bag that is nearest to a concept, the first among equals."""
    index, num_bags = jnp.asarray(bags.bag_index), bags.num_bags
    logits = concept_logits(concept, bags.instances)
    highest = jax.ops.segment_max(logits, index, num_bags, indices_are_sorted=True)
    row = jnp.arange(len(logits))
    row = jnp.where(logits == highest[index], row, len(logits))
    first = jax.ops.segment_min(row, index, num_bags, indices_are_sorted=True)
    return jnp.asarray(bags.instances)[first]


def _padded_rows(points: Float[np.ndarray, "P D"]) -> Float[np.ndarray, "Q D"]:
    """Points with rows of zeros behind them, to the next power of two: folds share programs."""
    num_rows = max(_FEWEST_POINTS, 1 << (len(points) - 1).bit_length())
    return np.pad(points, ((0, num_rows - len(points)), (0, 0)))


@partial(jax.jit, static_argnums=0)
def _maximise_from_all(
    search: ConceptSearch,
    starts: Float[Array, "Q D"],
    num_starts: Int[Array, ""],
    scale: Float[Array, ""],
    bags: Bags,
) -> _End:
    """The ends of the searches from the first starts; the others are padding, not at rest."""

    def of_one(start: Float[Array, " D"]) -> _End:
        return search.maximise(_at_start(start, scale), bags)

    def add_one(number: Int[Array, ""], ends: _End) -> _End:
        end = of_one(starts[number])
        return jax.tree.map(lambda of_all, one: of_all.at[number].set(one), ends, end)

    def buffer_for_all(one: jax.ShapeDtypeStruct) -> Array:
        return jnp.zeros((len(starts), *one.shape), one.dtype)

    # One after the other in one program: side by side each would wait for the slowest.
    buffers = jax.tree.map(buffer_for_all, jax.eval_shape(of_one, starts[0]))
    return jax.lax.fori_loop(0, num_starts, add_one, buffers)


@partial(jax.jit, static_argnums=0)
def _log_likelihood_at(
    search: ConceptSearch, points: Float[Array, "P D"], scale: Float[Array, ""], bags: Bags
) -> Float[Array, " P"]:
    def of_one(point: Float[Array, " D"]) -> Float[Array, ""]:
        return search.log_likelihood(_at_start(point, scale), bags)

    return jax.lax.map(of_one, points, batch_size=_TOGETHER)


def _at_start(point: Float[Array, " D"], scale: Float[Array, ""]) -> Concept:
    return {"concept": point, "scale": jnp.full_like(point, scale)}
