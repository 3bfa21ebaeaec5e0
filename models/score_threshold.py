r"""A soft threshold on neighbourhood scores of the instances, as a probabilistic model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.util import validate_sample

from ..datasets.bags import Bags
from ..datasets.padding import padded
from .model import (
    Draws,
    ModelDefaults,
    Program,
    given_labels,
    observations,
    random_key,
)
from .numerics.draws import over_draws
from .numerics.fields import check_fields
from .numerics.tracing import as_pytree
from .parts.bag_labels import LogOddsLabel, observe_log_odds
from .parts.hyperpriors import prior_of
from .parts.noisy_or import labels_given_bags, sample_labels
from .parts.witnesses import log_odds_of_some

__all__ = ["BagLabelsByScore", "ScoreThreshold"]

# Log odds of an absent bag: its label, 0, is certain.
_ABSENT = -1e4


class BagLabelsByScore(Distribution):
    r"""Joint distribution of all bag labels: a mixture over K sets of log odds.

    .. math:: p(Y) = \frac{1}{K} \sum_k \prod_b P_k(Y_b)

    Parameters
    ----------
    logits : array (K, B)
        log P_k(Y_b = 1) − log P_k(Y_b = 0).
    """

    arg_constraints = {"logits": constraints.independent(constraints.real, 2)}
    support = constraints.independent(constraints.boolean, 1)
    reparametrized_params: list[str] = []
    pytree_data_fields = ("logits",)

    def __init__(self, logits: Float[Array, "K B"]) -> None:
        self.logits = logits
        super().__init__((), jnp.shape(logits)[1:], validate_args=False)

    @property
    def mean(self) -> Float[Array, " B"]:
        """P(Y_b = 1)."""
        return jnp.mean(jax.nn.sigmoid(self.logits), axis=0)

    @property
    def variance(self) -> Float[Array, " B"]:
        """P(Y_b = 1) P(Y_b = 0)."""
        return self.mean * (1 - self.mean)

    def log_likelihood(self, value: Int[Array, " B"]) -> Float[Array, "K B"]:
        """log P_k(Y_b)."""
        return LogOddsLabel(self.logits, validate_args=False).log_prob(value)

    @validate_sample
    def log_prob(
        self, value: Int[Array, " B"], intermediates: list[Any] | None = None
    ) -> Float[Array, ""]:
        """log p(Y)."""
        by_score = jnp.sum(self.log_likelihood(value), axis=1)
        return jax.nn.logsumexp(by_score) - jnp.log(len(by_score))

    def log_prob_by_bag(self, value: Int[Array, " B"]) -> Float[Array, " B"]:
        """log p(Y_b | the labels of the other bags), for leave-one-out.

        Bags are dependent, since all have one score: the sum of these is not log p(Y).
        """
        by_bag = self.log_likelihood(value)
        all_bags = jnp.sum(by_bag, axis=1, keepdims=True)
        others = jax.nn.logsumexp(all_bags - by_bag, axis=0)
        return jax.nn.logsumexp(all_bags) - others

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        """Draw the index of a score, then the labels; array of shape ``sample_shape + (B,)``."""
        assert key is not None
        index_key, label_key = jax.random.split(key)
        which = jax.random.randint(index_key, sample_shape, 0, len(self.logits))
        chance = jax.nn.sigmoid(self.logits)[which]
        return jax.random.bernoulli(label_key, chance).astype(int)


@as_pytree()
@dataclass(frozen=True, eq=False)
class ScoreThreshold(ModelDefaults):
    r"""A noisy-or of a soft threshold on one of K neighbourhood scores f: a pseudo-likelihood.

    .. code-block:: text

        k               ~ uniform on 1 … K                              score_index
        T               ~ Normal                                        threshold
        s               ~ LogNormal                                     softness
        y_n | T, s, k   ~ Bernoulli(σ((f_k(x_n) − T)/s))                instance_label (instance)
        Y_b             = 1 if some y_n in it is, else 0                bag_label      (bag)

    Its bags have the scores as features. `scored` computes them, of `NeighbourScore` with several
    k for instance; standardise them, so that one threshold means the same for all. As s → 0 it
    is the paper's hard threshold (with a = 1).

    **Limits.** f is computed from the labels of the other bags, and then taken as fixed. The
    product over bags is not a probability of all labels, but a pseudo-likelihood. A posterior gives
    the uncertainty of threshold, softness and k *given f*. It ignores how f would change with other
    bags, and uses each label twice. Calibration with fixed f checks samplers, not this use of
    labels.

    Calling it runs the program with the instance labels summed out. In ``marginal()`` the index k
    of the score is summed out too; ``augmented()`` has all sites.

    ================  =======  =====================================================
    field             symbol   meaning
    ================  =======  =====================================================
    threshold_prior            of T, in sds of the score over all instances
    softness_prior             of s, likewise; positive
    ================  =======  =====================================================

    Parameters
    ----------
    threshold_prior : Distribution
    softness_prior : Distribution

    Raises
    ------
    ValueError
        If a prior has another support.

    References
    ----------
    The scores are those of Venkatesan, Chandakkar and Li (2015), who have no probabilities; this
    model of them is ours.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import NeighbourScore, ScoreThreshold, scored
    >>> bags = load("kandemir2014").standardize()
    >>> scores = scored([NeighbourScore(k) for k in (1, 3)], bags).standardize()
    >>> posterior = laplace(ScoreThreshold(), scores, seed=0)
    >>> bags.labels[:4], posterior.predict(scores).bag_probability[:4].round(1)
    (array([1, 0, 0, 1]), array([0.9, 0.5, 0.1, 0.9]))
    """

    threshold_prior: Annotated[Distribution, prior_of(constraints.real)] = dist.Normal(0.0, 2.0)
    softness_prior: Annotated[Distribution, prior_of(constraints.positive)] = dist.LogNormal(
        -1.0, 1.0
    )

    name: ClassVar[str] = "score_threshold"
    predicts_by: ClassVar[tuple[str, ...]] = ("score_probability",)
    instance_note: ClassVar[str] = (
        "an instance's probability is that of a bag that holds it alone: its score above the "
        "threshold"
    )
    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "threshold": (),
        "softness": (),
        "score_index": (),
        "instance_label": ("instance",),
        "bag_label": ("bag",),
    }

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def latent_sites(self) -> tuple[str, ...]:
        """Threshold and softness."""
        return ("threshold", "softness")

    @property
    def learned_from_labels(self) -> str:
        """The scores, which the bags have as features."""
        return "scores learned from labels as features"

    # ------------------------------------------------------------------ the programs

    def __call__(self, bags: Bags) -> None:
        """The program (T, s, k) → Y, instance labels summed out."""
        sites = self._draw()
        num_scores = bags.instances.shape[1]
        which = numpyro.sample("score_index", dist.DiscreteUniform(0, num_scores - 1))
        observe_log_odds(bag_logits(sites, bags)[which], bags)

    def marginal(self) -> Program:
        """The program with the index k of the score summed out.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._marginal_program

    def augmented(self) -> Program:
        """The program with the instance labels in it.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._augmented_program

    def _marginal_program(self, bags: Bags) -> None:
        distribution = BagLabelsByScore(bag_logits(self._draw(), bags))
        numpyro.sample("bag_label", distribution, obs=given_labels(bags))

    def _augmented_program(self, bags: Bags) -> None:
        sites = self._draw()
        num_scores = bags.instances.shape[1]
        which = numpyro.sample("score_index", dist.DiscreteUniform(0, num_scores - 1))
        sample_labels(_instance_logits(sites, bags)[which], bags)

    def _draw(self) -> dict[str, Array]:
        return {
            "threshold": numpyro.sample("threshold", self.threshold_prior),
            "softness": numpyro.sample("softness", self.softness_prior),
        }

    # ------------------------------------------------------------------ predictions

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """Bag and instance probabilities under each draw, averaged over the scores.

        Parameters
        ----------
        draws : dict of arrays
            ``threshold`` and ``softness`` (S,), and ``score_probability`` (S, K), which
            `estimands_of` gives for the bags learned from, and posteriors store.
        bags : Bags
            B bags with N instances, their scores as features; their labels are not used.

        Returns
        -------
        dict of arrays
            ``bag_probability`` (S, B) and ``instance_probability`` (S, N).

        Raises
        ------
        ValueError
            If the draws have no probabilities of the scores, or those of other scores.
        """
        self._check_scores(draws, bags)

        names = (*self.latent_sites, "score_probability")
        sites = {name: draws[name] for name in names}
        bag, instance = over_draws(_predict_one, sites, padded(bags.without_labels()))
        return {
            "bag_probability": bag[:, : bags.num_bags],
            "instance_probability": instance[:, : bags.num_instances],
        }

    def estimands_of(self, draws: Draws, bags: Bags) -> Draws:
        """Probability of each score given the training bags.

        Parameters
        ----------
        draws : dict of arrays
            ``threshold`` and ``softness`` (S,).
        bags : Bags
            With labels.

        Returns
        -------
        dict of arrays
            ``score_probability`` (S, K): P(k | T, s, Y).
        """
        observations(self, bags, "estimands_of()")
        sites = {name: draws[name] for name in self.latent_sites}
        return {"score_probability": over_draws(_score_probability, sites, padded(bags))}

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the index of the score and the instance labels given the bag labels.

        Parameters
        ----------
        draws : dict of arrays
            ``threshold`` and ``softness`` (S,).
        bags : Bags
            With labels.
        seed : int or JAX key

        Returns
        -------
        dict of arrays
            The draws, with ``score_index`` (S,) and ``instance_label`` (S, N) added.

        Raises
        ------
        ValueError
            If the bags have no labels.
        """
        observations(self, bags, "complete()")
        with jax.enable_x64(True):
            keys = jax.random.split(random_key(seed), len(draws["threshold"]))
        sites = {name: draws[name] for name in self.latent_sites} | {"key": keys}
        sites |= self.estimands_of(draws, bags)
        which, label = over_draws(_complete_one, sites, padded(bags))
        added = {"score_index": which, "instance_label": label[:, : bags.num_instances]}
        return dict(draws) | added

    def _check_scores(self, draws: Draws, bags: Bags) -> None:
        if "score_probability" not in draws:
            raise ValueError(
                "draws have no score_probability; model.estimands_of(draws, bags) gives it for "
                "the bags that were learned from"
            )
        expected, found = draws["score_probability"].shape[1], bags.num_features
        if expected != found:
            raise ValueError(
                f"bags have {found} features, but {expected} scores were learned from; pass bags "
                "made by `scored` with the same scores"
            )


def _predict_one(site: dict[str, Array], bags: Bags) -> tuple[Array, Array]:
    weight = site["score_probability"]
    bag = jax.nn.sigmoid(bag_logits(site, bags))
    return weight @ bag, weight @ jax.nn.sigmoid(_instance_logits(site, bags))


def _score_probability(site: dict[str, Array], bags: Bags) -> Float[Array, " K"]:
    by_bag = BagLabelsByScore(bag_logits(site, bags)).log_likelihood(jnp.asarray(bags.labels))
    return jax.nn.softmax(jnp.sum(by_bag, axis=1))


def _complete_one(site: dict[str, Array], bags: Bags) -> tuple[Array, Array]:
    index_key, label_key = jax.random.split(site["key"])
    which = jax.random.categorical(index_key, jnp.log(site["score_probability"]))
    logits = _instance_logits(site, bags)[which]
    is_positive = jnp.asarray(bags.labels) == 1
    return which, labels_given_bags(logits, bags, is_positive).sample(label_key)


def bag_logits(site: dict[str, Array], bags: Bags) -> Float[Array, "K B"]:
    """log P(Y_b = 1) − log P(Y_b = 0) under each score: a noisy-or."""

    def of_one(logits: Float[Array, " N"]) -> Float[Array, " B"]:
        return log_odds_of_some(logits, bags.bag_index, bags.num_bags)

    odds = jax.vmap(of_one)(_instance_logits(site, bags))
    return odds if bags.present is None else jnp.where(bags.present, odds, _ABSENT)


def _instance_logits(site: dict[str, Array], bags: Bags) -> Float[Array, "K N"]:
    """(f_k(x_n) − T)/s."""
    return (jnp.asarray(bags.instances).T - site["threshold"]) / site["softness"]
