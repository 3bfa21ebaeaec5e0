"""Predictions for new bags: probabilities of labels, or distributions of targets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike
from scipy.special import expit, logsumexp, ndtr
from scipy.stats import norm

from ..datasets.arguments import check_probability
from ..datasets.bags import Bags
from ..models.model import Draws, Model, random_key
from ..models.numerics.log_odds import log_odds
from ..models.numerics.quadrature import QuadratureRule
from ..models.parts.bag_latent import BagLatentModel
from ..models.parts.likelihoods import Likelihood

__all__ = ["LatentPrediction", "Prediction", "TargetPrediction"]

# Replicated targets for each draw where an interval has no closed form.
_REPLICATES = 16


def _by_bag(
    of_bags: Bool[np.ndarray, " B"],
    of_instances: Float[np.ndarray, " N"],
    bag_index: Int[np.ndarray, " N"],
) -> Bool[np.ndarray, " B"]:
    """Which bags are finite, with all their instances."""
    found = of_bags.copy()
    found[bag_index[~np.isfinite(of_instances[: len(bag_index)])]] = False
    return found


@dataclass(frozen=True, eq=False)
class Prediction:
    """Probabilities of new bags and their instances, with their draws.

    Attributes
    ----------
    bag_draws : array (S, B)
        P(T* = 1 | draw).
    instance_draws : array (R, N)
        P(y* = 1 | draw), as the model defines it.
    bag_predictive_log_odds, instance_predictive_log_odds : array (B,) and (N,), or None
        Those of the probabilities where these are not means over draws: of a model of the
        instances, Bayes' rule wants the mean of the densities.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import Prediction, laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = laplace(model, bags, seed=0)
    >>> prediction: Prediction = posterior.predict(Bags.from_list([[[2.9]], [[0.1]]]))
    >>> prediction.bag_probability.round(1)
    array([0.8, 0.3])
    >>> prediction.instance_probability.round(1)
    array([0.8, 0.3])
    >>> lower, upper = prediction.bag_interval(0.9)
    >>> lower.round(1), upper.round(1)
    (array([0.4, 0. ]), array([1. , 0.7]))
    """

    bag_draws: Float[np.ndarray, "S B"] = field(repr=False)
    instance_draws: Float[np.ndarray, "R N"] = field(repr=False)
    bag_predictive_log_odds: Float[np.ndarray, " B"] | None = field(default=None, repr=False)
    instance_predictive_log_odds: Float[np.ndarray, " N"] | None = field(default=None, repr=False)

    def is_finite(self, bag_index: Int[np.ndarray, " N"]) -> Bool[np.ndarray, " B"]:
        """Whether the log odds of each bag and of its instances are numbers."""
        return _by_bag(np.isfinite(self.bag_log_odds), self.instance_log_odds, bag_index)

    @property
    def bag_probability(self) -> Float[np.ndarray, " B"]:
        """P(T* = 1): the posterior mean, where the model has no better predictive."""
        if self.bag_predictive_log_odds is not None:
            return expit(self.bag_predictive_log_odds)
        return self.bag_draws.mean(axis=0)

    @property
    def instance_probability(self) -> Float[np.ndarray, " N"]:
        """P(y* = 1), likewise, as the model defines it."""
        if self.instance_predictive_log_odds is not None:
            return expit(self.instance_predictive_log_odds)
        return self.instance_draws.mean(axis=0)

    @property
    def bag_log_odds(self) -> Float[np.ndarray, " B"]:
        """Log odds of T* = 1.

        Those of a predictive stay apart where probabilities round to 0 or 1; of means over draws
        they do not.
        """
        if self.bag_predictive_log_odds is not None:
            return self.bag_predictive_log_odds
        return log_odds(self.bag_probability)

    @property
    def instance_log_odds(self) -> Float[np.ndarray, " N"]:
        """Log odds of y* = 1, likewise."""
        if self.instance_predictive_log_odds is not None:
            return self.instance_predictive_log_odds
        return log_odds(self.instance_probability)

    def columns(self) -> dict[str, np.ndarray]:
        """Predictions of bags and instances, by their names in tables."""
        return {
            "bag_probability": self.bag_probability,
            "instance_probability": self.instance_probability,
        }

    def bag_interval(self, mass: float = 0.9) -> Float[np.ndarray, "2 B"]:
        """Equal-tailed posterior interval of P(T* = 1), lower and upper end."""
        return _equal_tailed(self.bag_draws, mass)

    def instance_interval(self, mass: float = 0.9) -> Float[np.ndarray, "2 N"]:
        """Equal-tailed posterior interval of P(y* = 1), lower and upper end."""
        return _equal_tailed(self.instance_draws, mass)


@dataclass(frozen=True, eq=False)
class TargetPrediction:
    """Predictive distributions of new targets, and of what each instance adds to them, by draw.

    Attributes
    ----------
    bag_mean, bag_scale : array (S, B)
        Mean and standard deviation of Y* given each draw. A Student-t target with ν ≤ 1 has no
        mean, and its median stands there; with ν ≤ 2 the standard deviation is infinite.
    instance_mean, instance_scale : array (R, N)
        Of the Gaussian f*_n given each draw; the f*_n of a bag sum to its latent value.
    latent : LatentPrediction or None
        Of s*, and the likelihood of Y* given it; None where Y* is Gaussian given a draw.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import TargetPrediction, coordinate_ascent
    >>> from milzoo.models import RBF, VWSGP, Gaussian
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.1]]]).with_targets([2.0, 2.1, 0.0])
    >>> points = np.array([[0.0], [3.0]])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), points, likelihood=Gaussian(0.2))
    >>> posterior = coordinate_ascent(model, bags, seed=0)
    >>> prediction: TargetPrediction = posterior.predict(Bags.from_list([[[2.9], [0.1]]]))
    >>> prediction.bag_target.round(1)
    array([2.])
    >>> prediction.instance_contribution.round(1)
    array([ 2., -0.])
    """

    bag_mean: Float[np.ndarray, "S B"] = field(repr=False)
    bag_scale: Float[np.ndarray, "S B"] = field(repr=False)
    instance_mean: Float[np.ndarray, "R N"] = field(repr=False)
    instance_scale: Float[np.ndarray, "R N"] = field(repr=False)
    latent: LatentPrediction | None = field(default=None, repr=False)

    def is_finite(self, bag_index: Int[np.ndarray, " N"]) -> Bool[np.ndarray, " B"]:
        """Whether the means and scales of each bag and of its instances are numbers."""
        # The scale of a target with heavy tails is infinite, and that of its latent value is not.
        scale = self.bag_scale if self.latent is None else self.latent.scale
        of_bags = np.isfinite(self.bag_mean + scale).all(axis=0)
        of_bags &= ~np.isnan(self.bag_scale).any(axis=0)
        return _by_bag(of_bags, (self.instance_mean + self.instance_scale).mean(axis=0), bag_index)

    @classmethod
    def of(cls, model: Model, draws: Draws, bags: Bags, **options: Any) -> TargetPrediction:
        """Predict new targets under each draw.

        Parameters
        ----------
        model : Model
            Of targets.
        draws : dict of arrays
            Its latent sites.
        bags : Bags
        **options
            Of the model's own ``predict``.

        Returns
        -------
        TargetPrediction
        """
        predicted = model.predict(draws, bags, **options)
        mean, scale = (predicted.pop(f"bag_latent_{name}", None) for name in ("mean", "scale"))
        latent = None
        if mean is not None and scale is not None and isinstance(model, BagLatentModel):
            latent = LatentPrediction.of(model.likelihood, draws, mean, scale)
        return cls(**predicted, latent=latent)

    @property
    def bag_target(self) -> Float[np.ndarray, " B"]:
        """Posterior mean of Y*."""
        return self.bag_mean.mean(axis=0)

    @property
    def instance_contribution(self) -> Float[np.ndarray, " N"]:
        """Posterior mean of f*_n."""
        return self.instance_mean.mean(axis=0)

    def columns(self) -> dict[str, np.ndarray]:
        """Predictions of bags and instances, by their names in tables."""
        return {"bag_target": self.bag_target, "instance_contribution": self.instance_contribution}

    def log_density(self, targets: ArrayLike) -> Float[np.ndarray, " B"]:
        """log p(Y*) of each bag at the given targets (B,)."""
        if np.shape(targets) != self.bag_mean.shape[1:]:
            raise ValueError(
                f"targets have shape {np.shape(targets)}; expected {self.bag_mean.shape[1:]}, one "
                "for each bag that was predicted"
            )
        if self.latent is None:
            by_draw = norm.logpdf(np.asarray(targets), self.bag_mean, self.bag_scale)
        else:
            by_draw = self.latent.log_density(np.asarray(targets, dtype=float))
        return logsumexp(by_draw, axis=0) - np.log(len(by_draw))

    def bag_interval(self, mass: float = 0.9) -> Float[np.ndarray, "2 B"]:
        """Equal-tailed predictive interval of Y*, lower and upper end.

        Of targets that are not Gaussian given a draw it is that of replicated ones.
        """
        if self.latent is None:
            return _mixture_interval(self.bag_mean, self.bag_scale, mass)
        replicated = [self.replicated(seed) for seed in range(_REPLICATES)]
        return _equal_tailed(np.concatenate(replicated), mass)

    def replicated(self, seed: int | Array) -> Float[np.ndarray, "S B"]:
        """Draw a target of each bag under each draw.

        Parameters
        ----------
        seed : int or JAX key

        Returns
        -------
        array (S, B)
        """
        if self.latent is not None:
            return self.latent.replicated(seed)
        random = np.random.default_rng(np.asarray(jax.random.key_data(random_key(seed))))
        return random.normal(self.bag_mean, self.bag_scale)

    def instance_interval(self, mass: float = 0.9) -> Float[np.ndarray, "2 N"]:
        """Equal-tailed posterior interval of f*_n, lower and upper end."""
        return _mixture_interval(self.instance_mean, self.instance_scale, mass)


@dataclass(frozen=True, eq=False)
class LatentPrediction:
    """Latent values of new bags by draw, s* ~ N(mean, scale²), and the likelihood given them.

    Attributes
    ----------
    likelihood : Likelihood
        With a column (S, 1) for each hyper-parameter that has draws.
    mean, scale : array (S, B)
    """

    likelihood: Likelihood
    mean: Float[np.ndarray, "S B"] = field(repr=False)
    scale: Float[np.ndarray, "S B"] = field(repr=False)

    @classmethod
    def of(
        cls,
        likelihood: Likelihood,
        draws: Draws,
        mean: Float[np.ndarray, "S B"],
        scale: Float[np.ndarray, "S B"],
    ) -> LatentPrediction:
        """Give each draw its hyper-parameters, or a single row their means."""
        given = {name: draws[name] for name in likelihood.hyperparameters if name in draws}
        if len(mean) == 1:
            given = {name: np.mean(values, keepdims=True) for name, values in given.items()}
        columns = {name: jnp.asarray(values)[:, None] for name, values in given.items()}
        return cls(likelihood.with_values(columns), mean, scale)

    def log_density(self, targets: Float[np.ndarray, " B"]) -> Float[np.ndarray, "S B"]:
        """log p(Y* | draw) at these targets."""
        rule = self.likelihood.quadrature_rule(float(self.scale.max()))
        with jax.enable_x64(True):
            parts = (self.likelihood, self.mean.T, self.scale.T, targets, rule)
            return np.asarray(_log_density(*parts)).T

    def replicated(self, seed: int | Array) -> Float[np.ndarray, "S B"]:
        """Draw s* and then Y* under each draw."""
        with jax.enable_x64(True):
            parts = (random_key(seed), self.likelihood, self.mean, self.scale)
            return np.asarray(_replicated(*parts), dtype=float)


@jax.jit
def _log_density(
    likelihood: Likelihood,
    mean: Float[Array, "B S"],
    scale: Float[Array, "B S"],
    targets: Float[Array, " B"],
    rule: QuadratureRule,
) -> Float[Array, "B S"]:
    """One bag after another: quadrature adds an axis of nodes to the draws."""

    def of_bag(bag: tuple[Array, Array, Array]) -> Float[Array, " S"]:
        mean, scale, target = bag
        predictive = likelihood.marginal_distribution(mean[:, None], scale[:, None], rule)
        return predictive.log_prob(target)[:, 0]

    return jax.lax.map(of_bag, (mean, scale, targets))


@jax.jit
def _replicated(
    key: Array, likelihood: Likelihood, mean: Float[Array, "S B"], scale: Float[Array, "S B"]
) -> Array:
    latent_key, target_key = jax.random.split(key)
    latent = mean + scale * jax.random.normal(latent_key, mean.shape, mean.dtype)
    return likelihood.distribution(latent).sample(target_key)


def _mixture_interval(
    mean: Float[np.ndarray, "S K"], scale: Float[np.ndarray, "S K"], mass: float
) -> Float[np.ndarray, "2 K"]:
    """Quantiles of equally weighted Gaussians, by halving."""
    check_probability(mass=mass)

    def quantile(probability: float) -> Float[np.ndarray, " K"]:
        lower, upper = (mean - 40 * scale).min(axis=0), (mean + 40 * scale).max(axis=0)
        for _ in range(80):
            middle = (lower + upper) / 2
            is_below = ndtr((middle - mean) / scale).mean(axis=0) < probability
            lower, upper = np.where(is_below, middle, lower), np.where(is_below, upper, middle)
        return (lower + upper) / 2

    return np.stack([quantile((1 - mass) / 2), quantile((1 + mass) / 2)])


def _equal_tailed(draws: Float[np.ndarray, "S K"], mass: float) -> Float[np.ndarray, "2 K"]:
    check_probability(mass=mass)
    if len(draws) < 2:
        raise ValueError(
            "prediction has one draw, as maximum_a_posteriori and "
            "accumulation='independent_instances' give it, and so no interval; use another engine, "
            "or accumulation='joint'"
        )
    return np.quantile(draws, [(1 - mass) / 2, (1 + mass) / 2], axis=0)
