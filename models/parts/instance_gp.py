"""Base of sparse GP models in which every instance has a latent value of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.infer.reparam import LocScaleReparam, Reparam, TransformReparam

from ...datasets.bags import Bags
from ...datasets.padding import bag_weight, padded
from ..model import Draws, observations, random_key
from .hyperpriors import Parameter, Parameters, central_value, finite_or_prior
from .sparse_gp import (
    PreparedBags,
    SparseConditional,
    SparseGPModel,
    draw_inducing_value,
)

__all__ = ["InstanceGPModel", "inside_the_unit_interval"]

# The prior mean by base rate: most instances, pairs of prior draws of f, and the bisection.
_MOST_FOR_MEAN = 8192
_DRAWS_FOR_MEAN = 64
_FARTHEST_MEAN = 64.0
_HALVINGS = 30


@dataclass(frozen=True, eq=False)
class InstanceGPModel(SparseGPModel):
    """Base of models with a latent value for each instance and a constant prior mean.

    .. code-block:: text

        u         ~ N(0, K_ZZ)             inducing_value (inducing_point)
        f_n | u   ~ N(μ0 + A_n u, k̃_n)     latent       (instance)

    A model says what a bag label is given the latent values: `log_none_positive`, and with these
    integrated out `probabilities`.

    Parameters
    ----------
    kernel : Kernel
        Such as ``RBF(variance, length_scale)``.
    inducing_points : array (M, D)
    mean : float or Distribution
        μ0.
    jitter : float

    Raises
    ------
    ValueError
        If a field is out of range.
    """

    mean: Annotated[Parameter, finite_or_prior("Normal")] = 0.0

    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "inducing_value": ("inducing_point",),
        "latent": ("instance",),
        "bag_label": ("bag",),
    }

    # ------------------------------------------------------------------ what a model says

    def log_none_positive(self, latent: Float[Array, "N ..."], bags: Bags) -> Float[Array, "B ..."]:
        """Log probability, given the latent values, that no instance of a bag is positive."""
        raise NotImplementedError

    def frequency_of_positives(self, labels: np.ndarray) -> float:
        """Fraction of bags with a positive instance, by the labels of the bags."""
        return inside_the_unit_interval(float(labels.mean()), len(labels))

    def predictive_rule(self, draws: Draws, bags: Bags) -> Any:
        """Quadrature rule for latent values of new instances, under any of the draws."""
        raise NotImplementedError

    def tabulated(self, rule: Any, scale: Float[Array, " N"]) -> Any:
        """The rule, with what can be evaluated once for known residual scales."""
        return rule

    def probabilities(
        self, location: Float[Array, " N"], scale: Float[Array, " N"], given: PreparedBags
    ) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
        """P(T* = 1 | u) of bags and P(y* = 1 | u) of instances, where f* ~ N(location, scale²)."""
        raise NotImplementedError

    # ------------------------------------------------------------------ constructors

    @classmethod
    def for_bags(
        cls,
        bags: Bags,
        num_inducing: int | None = 50,
        variance: Parameter = 5.0,
        length_scale: Parameters | None = None,
        seed: int = 0,
        *,
        mean: Parameter | None = None,
        **fields: Any,
    ) -> Self:
        """A model with defaults from the data: Z, ℓ, and μ0 by the fraction of positive bags.

        Under a prior mean of 0 nearly every bag is positive. By default μ0 is where the average
        prior probability of a positive bag is the fraction of training bags that are.

        Parameters
        ----------
        bags : Bags
            Training bags, features on comparable scales (``bags.standardize()``).
        num_inducing : int or None
            M, the number of inducing points; None for one at each distinct instance, which makes
            the process of the training instances exact.
        variance, length_scale : float or Distribution
            Of the kernel; ``length_scale=None`` means the median distance between instances.
        seed : int
            Seed of k-means, and of the prior draws that μ0 is found by.
        mean : float, Distribution or None
            μ0; None means `mean_by_base_rate`, and bags then need labels.
        **fields
            The other fields of the model, and the class of the ``kernel``, as ``Cosine``.

        Returns
        -------
        Self

        Raises
        ------
        ValueError
            If there are fewer distinct instances than inducing points, or if μ0 is to be found and
            the bags have no labels.
        """
        model = super().for_bags(
            bags,
            num_inducing,
            variance,
            length_scale,
            seed,
            mean=0.0 if mean is None else mean,
            **fields,
        )
        return model if mean is not None else model.mean_by_base_rate(bags, seed=seed)

    @classmethod
    def as_published(
        cls, bags: Bags, num_inducing: int | None = 50, seed: int = 0, **fields: Any
    ) -> Self:
        """A model with the papers' v = 0.5, ℓ = √D and μ0 = 0, in the place of the defaults.

        Under this prior nearly all bags are positive.

        Parameters
        ----------
        bags, num_inducing, seed
            As in `for_bags`.
        **fields
            Arguments of `for_bags` that differ from the papers.

        Returns
        -------
        Self

        References
        ----------
        Castro-Macías et al. (2024), section 5: (v, l) = (0.5, D), where our ℓ² is their l.
        Kandemir et al. (2016), section 4.4: ℓ = √D for GPMIL-S; they do not tell v.
        """
        return super().as_published(bags, num_inducing, seed, **({"mean": 0.0} | fields))

    def mean_by_base_rate(self, bags: Bags, *, seed: int | Array) -> Self:
        """The model with the prior mean μ0 that gives positive bags their frequency.

        μ0 solves  mean_b P(some y_n in b is 1) = fraction of bags in which one is, by bisection; P
        is the average over prior draws of f, the same for every μ0. The fraction is that of the
        labels, kept half a bag away from 0 and 1, and corrected where a label may be wrong.
        Of more than 8,192 instances only every second, third, … bag is looked at.

        Parameters
        ----------
        bags : Bags
            With labels.
        seed : int or JAX key
            Seed of the prior draws.

        Returns
        -------
        Self
            With the other fields unchanged. Kernel parameters that have a prior are at its median
            here; f is the Gaussian process, whatever the model makes of it.

        Raises
        ------
        ValueError
            If the bags have no labels.
        """
        labels = observations(self, bags, "mean_by_base_rate")
        some = bags.select(np.arange(0, bags.num_bags, ceil(bags.num_instances / _MOST_FOR_MEAN)))
        central = {name: central_value(prior) for name, prior in self.priors.items()}
        with jax.enable_x64(True):
            model = self.with_hyperparameters(central | {"mean": 0.0})
            frequency = self.frequency_of_positives(np.asarray(labels))
            given = padded(some.without_labels())
            mean = float(_mean_by_frequency(model, given, random_key(seed), frequency))
        return replace(self, mean=mean)

    # ------------------------------------------------------------------ hyper-parameters

    @property
    def hyperparameters(self) -> dict[str, Parameters]:
        """Hyper-parameters of the kernel, and the mean."""
        return super().hyperparameters | {"mean": self.mean}

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters (``variance``, ``length_scale``, ``mean``) by given values."""
        model = super().with_hyperparameters(values)
        return replace(model, mean=values.get("mean", self.mean))

    @property
    def reparametrisation(self) -> dict[str, Reparam]:
        """How samplers should whiten the sites: u = Lε, f = μ0 + Au + √k̃ η."""
        return {"inducing_value": TransformReparam(), "latent": LocScaleReparam(0.0)}

    def conditional_of_rows(self, bags: Any) -> SparseConditional:
        """Conditional distribution of the instances given the inducing values."""
        return self.conditional(bags)

    def latent_given_inducing_values(
        self, given: PreparedBags
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Sample hyper-parameters with priors, and u; return mean and sd of f_n | u."""
        model = self.draw_hyperparameters()
        conditional = model.given_inducing_values(given)
        inducing_value = draw_inducing_value(conditional.cholesky)
        return model.mean + conditional.mean(inducing_value), conditional.residual_scale

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """Bag and instance probabilities under each draw; new latent values are integrated out.

        Parameters
        ----------
        draws : dict of arrays
            ``inducing_value`` (S, M), and (S,) for each hyper-parameter that has a prior.
        bags : Bags
            B bags with N instances; their labels are not used.

        Returns
        -------
        dict of arrays
            ``bag_probability`` (S, B): P(T* = 1 | u); ``instance_probability`` (S, N):
            E[σ(f*) | u].
        """
        sites = {name: np.asarray(draws[name]) for name in self.latent_sites}
        with jax.enable_x64(True):
            unlabelled = padded(bags.without_labels())
            given = PreparedBags(unlabelled, None, self.predictive_rule(sites, unlabelled))
            bag, instance = (np.asarray(found) for found in _predict(self, given, sites))
        return {
            "bag_probability": bag[:, : bags.num_bags],
            "instance_probability": instance[:, : bags.num_instances],
        }


def inside_the_unit_interval(fraction: float, num_bags: int) -> float:
    """The fraction, clipped to stay half a bag away from 0 and 1."""
    least = 0.5 / (num_bags + 1)
    return min(max(fraction, least), 1 - least)


@jax.jit
def _mean_by_frequency(
    model: InstanceGPModel, bags: Bags, key: Array, frequency: float | Array
) -> Float[Array, ""]:
    """μ0 with an average prior probability of a positive instance in a bag of ``frequency``."""
    conditional = model.conditional(bags)
    for_inducing, for_instances = jax.random.split(key)
    whitened = jax.random.normal(for_inducing, (model.num_inducing, _DRAWS_FOR_MEAN))
    noise = jax.random.normal(for_instances, (bags.num_instances, _DRAWS_FOR_MEAN))
    centred = conditional.projection @ whitened + conditional.residual_scale[:, None] * noise
    centred = jnp.concatenate([centred, -centred], axis=1)  # f and −f are as likely
    weight = jnp.asarray(bag_weight(bags))

    def halve(_: Array, between: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = between
        middle = (low + high) / 2
        log_none_positive = model.log_none_positive(middle + centred, bags)
        found = jnp.average(-jnp.expm1(log_none_positive).mean(axis=1), weights=weight)
        is_low = found < frequency
        return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

    farthest = jnp.asarray(_FARTHEST_MEAN)
    low, high = jax.lax.fori_loop(0, _HALVINGS, halve, (-farthest, farthest))
    return (low + high) / 2


@jax.jit
def _predict(
    model: InstanceGPModel, given: PreparedBags, sites: dict[str, Float[Array, "S ..."]]
) -> tuple[Float[Array, "S B"], Float[Array, "S N"]]:
    """P(T* = 1 | u) and P(y* = 1 | u) for every draw."""
    if not model.priors:  # the same for all draws
        conditional = model.conditional(given.bags)
        rule = model.tabulated(given.rule, conditional.residual_scale)
        given = given._replace(conditional=conditional, rule=rule)

    def one(site: dict[str, Float[Array, "..."]]) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
        drawn = model.with_hyperparameters(site)
        conditional = drawn.given_inducing_values(given)
        location = drawn.mean + conditional.mean(site["inducing_value"])
        return drawn.probabilities(location, conditional.residual_scale, given)

    return jax.lax.map(one, sites)  # one by one: blocks of draws would leave the cache
