"""What a posterior says of new bags: probabilities of labels, or laws of targets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import logsumexp, ndtr
from scipy.stats import norm

from .chains import check_probability

__all__ = ["Prediction", "TargetPrediction"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Probabilities of new bags and their instances, with their draws.

    Attributes
    ----------
    bag_draws : array (S, B)
        P(T* = 1 | draw).
    instance_draws : array (R, N)
        P(y* = 1 | draw), as the model defines it.
    bag_predictive, instance_predictive : array (B,) and (N,), or None
        The probabilities where they are not means over draws: of a model of the instances, Bayes'
        rule wants the mean of the densities.
    """

    bag_draws: Float[np.ndarray, "S B"] = field(repr=False)
    instance_draws: Float[np.ndarray, "R N"] = field(repr=False)
    bag_predictive: Float[np.ndarray, " B"] | None = field(default=None, repr=False)
    instance_predictive: Float[np.ndarray, " N"] | None = field(default=None, repr=False)

    @property
    def bag_probability(self) -> Float[np.ndarray, " B"]:
        """P(T* = 1): the posterior mean, where the model has no better predictive."""
        if self.bag_predictive is not None:
            return self.bag_predictive
        return self.bag_draws.mean(axis=0)

    @property
    def instance_probability(self) -> Float[np.ndarray, " N"]:
        """P(y* = 1), likewise, as the model defines it."""
        if self.instance_predictive is not None:
            return self.instance_predictive
        return self.instance_draws.mean(axis=0)

    def columns(self) -> dict[str, np.ndarray]:
        """Both, by the names that they have in tables."""
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
    """The laws of new targets and of what each instance adds to them: Gaussians, one for each draw.

    Attributes
    ----------
    bag_mean, bag_scale : array (S, B)
        Of Y* given each draw.
    instance_mean, instance_scale : array (R, N)
        Of f*_n given each draw, which sum up to the bag's evidence.
    """

    bag_mean: Float[np.ndarray, "S B"] = field(repr=False)
    bag_scale: Float[np.ndarray, "S B"] = field(repr=False)
    instance_mean: Float[np.ndarray, "R N"] = field(repr=False)
    instance_scale: Float[np.ndarray, "R N"] = field(repr=False)

    @property
    def bag_target(self) -> Float[np.ndarray, " B"]:
        """Posterior mean of Y*."""
        return self.bag_mean.mean(axis=0)

    @property
    def instance_share(self) -> Float[np.ndarray, " N"]:
        """Posterior mean of f*_n."""
        return self.instance_mean.mean(axis=0)

    def columns(self) -> dict[str, np.ndarray]:
        """Both, by the names that they have in tables."""
        return {"bag_target": self.bag_target, "instance_share": self.instance_share}

    def log_density(self, targets: ArrayLike) -> Float[np.ndarray, " B"]:
        """log p(Y*) of each bag at the given targets (B,)."""
        if np.shape(targets) != self.bag_mean.shape[1:]:
            raise ValueError(
                f"targets have shape {np.shape(targets)}; expected {self.bag_mean.shape[1:]}, one "
                "for each bag that was predicted"
            )
        by_draw = norm.logpdf(np.asarray(targets), self.bag_mean, self.bag_scale)
        return logsumexp(by_draw, axis=0) - np.log(len(by_draw))

    def bag_interval(self, mass: float = 0.9) -> Float[np.ndarray, "2 B"]:
        """Equal-tailed predictive interval of Y*, lower and upper end."""
        return _mixture_interval(self.bag_mean, self.bag_scale, mass)

    def instance_interval(self, mass: float = 0.9) -> Float[np.ndarray, "2 N"]:
        """Equal-tailed posterior interval of f*_n, lower and upper end."""
        return _mixture_interval(self.instance_mean, self.instance_scale, mass)


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
