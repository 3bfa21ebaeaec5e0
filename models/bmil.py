r"""Bayesian MIL: a noisy-or of logistic regression whose features are relevant or not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpy.polynomial.hermite_e import hermegauss
from numpyro.distributions import Distribution
from numpyro.distributions.transforms import AffineTransform
from numpyro.infer.reparam import Reparam, TransformReparam
from scipy.optimize import brentq
from scipy.special import expit

from ..datasets.arguments import FINITE, POSITIVE, checked_seed
from ..datasets.bags import Bags
from ..datasets.checks import check_squares
from ..datasets.padding import padded
from .cardinality import check_width
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
from .parts.noisy_or import labels_given_bags, observe_bags, probabilities, sample_labels
from .registry import register

__all__ = ["BMIL"]

# Prior sd of the log odds of a typical instance: 5 % to 95 % within one sd.
_TYPICAL_LOGIT = 3.0
# Draws of the prior for its median, whose error is 1 or 2 %.
_PRIOR_DRAWS = 1000


@register
@as_pytree()
@dataclass(frozen=True, eq=False)
class BMIL(ModelDefaults):
    r"""Bayesian multiple-instance learning with automatic relevance determination.

    .. code-block:: text

        α_d          ~ Gamma(a, b)                         weight_precision (feature)
        w_d | α_d    ~ N(0, 1/α_d)                         weights          (feature)
        w_0          ~ N(m, s²)                            intercept
        y_n | w      ~ Bernoulli(σ(w_0 + wᵀx_n))           instance_label   (instance)
        T_b          = 1 if some y_n in it is, else 0      bag_label        (bag)

    A feature is irrelevant where α_d is large: w_d is then near 0. The paper has no prior of α and
    maximises the evidence in it, which ends at α_d = ∞ for some features. Here α has Tipping's
    Gamma prior, and weights of irrelevant features are small but not 0. With α integrated out,
    w_d is Student t with 2a degrees of freedom and the scale √(b/a).

    Calling it runs the program with α, and instance labels summed out. ``marginal()`` has α
    integrated out too. ``augmented()`` has α and instance labels as sites.

    ===============  =======  ===================================================================
    field            symbol   meaning
    ===============  =======  ===================================================================
    shape            a        small: few weights are large, the others near 0
    rate             b        √(b/a) is the scale of a weight, in one over the units of features
    intercept_scale  s        prior sd of w_0
    intercept_mean   m        prior mean of w_0; large bags need a low one
    ===============  =======  ===================================================================

    Parameters
    ----------
    shape : float
        Positive.
    rate : float
        Positive.
    intercept_scale : float
        Positive.
    intercept_mean : float

    Raises
    ------
    ValueError
        If a field is out of range.

    Notes
    -----
    Where a linear function separates the bags, the likelihood does not fall for large weights. The
    posterior then has tails like the prior's: with a ≤ 1 a weight may have no posterior variance.
    Its quantiles and all probabilities exist.

    References
    ----------
    Raykar, Krishnapuram, Bi, Dundar and Rao (2008), Bayesian multiple instance learning: automatic
    feature selection and inductive transfer, ICML; Tipping (2001), Sparse Bayesian learning and the
    relevance vector machine, for the prior of α. The prior of the intercept is ours.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import BMIL
    >>> train, test = load("kandemir2014").standardize().split(0.7, seed=0)
    >>> prediction = laplace(BMIL.for_bags(train), train, seed=0).predict(test)
    >>> test.labels[:4], prediction.bag_probability[:4].round(1)
    (array([1, 0, 1, 1]), array([0.5, 0.4, 0.6, 0.6]))
    """

    shape: Annotated[float | Array, POSITIVE] = 1.0
    rate: Annotated[float | Array, POSITIVE] = 1.0
    intercept_scale: Annotated[float | Array, POSITIVE] = _TYPICAL_LOGIT
    intercept_mean: Annotated[float | Array, FINITE] = 0.0

    name: ClassVar[str] = "bmil"
    instance_note: ClassVar[str] = (
        "an instance's probability is that of a bag that holds it alone: logistic regression on "
        "its features"
    )
    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "weight_precision": ("feature",),
        "weights": ("feature",),
        "intercept": (),
        "instance_label": ("instance",),
        "bag_label": ("bag",),
    }

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def for_bags(
        cls,
        bags: Bags,
        shape: float = 1.0,
        rate: float | None = None,
        intercept_scale: float = _TYPICAL_LOGIT,
        intercept_mean: float | None = None,
        seed: int = 0,
    ) -> Self:
        """A model with defaults from the data: the scale of the weights, and the mean intercept.

        The rate makes 3 the prior median of the sd of wᵀx over instances of root mean square
        length. The mean of the intercept solves E σ(m + 3z) = 1 − 2^(−1/n), z ~ N(0, 1): a bag of
        the mean size n is then positive with a prior probability of about ½ (0.5 to 0.6 where its
        instances are independent). At m = 0 it would be nearly 1 for large bags.

        Parameters
        ----------
        bags : Bags
            Training bags, features on comparable scales (``bags.standardize()``).
        shape : float
        rate, intercept_mean : float or None
            None for the defaults described above.
        intercept_scale : float
        seed : int
            Seed of 1,000 draws of the prior, whose median is used.

        Returns
        -------
        BMIL

        Raises
        ------
        ValueError
            If all instances are zero, or a field is out of range.
        """
        seed = checked_seed(seed)
        check_squares(bags.instances)
        if intercept_mean is None:
            intercept_mean = _mean_for_even_odds(bags.num_instances / bags.num_bags)
        model = cls(shape, 1.0 if rate is None else rate, intercept_scale, intercept_mean)
        if rate is not None:
            return model
        length = float(np.sqrt(np.mean(np.sum(bags.instances**2, axis=1))))
        if length == 0:
            raise ValueError(
                "instances are all zero, so no weight has any effect; expected "
                "features that differ, or a rate"
            )
        deviation = length * _median_root_mean_square(float(shape), bags.num_features, seed)
        return replace(model, rate=shape * (_TYPICAL_LOGIT / deviation) ** 2)

    @property
    def latent_sites(self) -> tuple[str, ...]:
        """Weights and intercept."""
        return ("weights", "intercept")

    @property
    def reparametrisation(self) -> dict[str, Reparam]:
        """How samplers should whiten the sites: w = ε √(b/a), or ε/√α, and w_0 = m + s ε_0."""
        return {"weights": TransformReparam(), "intercept": TransformReparam()}

    # ------------------------------------------------------------------ the programs

    def __call__(self, bags: Bags) -> None:
        """The program (α, w, w_0) → T, instance labels summed out."""
        observe_bags(self._draw_logits(bags), bags)

    def marginal(self) -> Program:
        """The program with the precisions α integrated out.

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
        with numpyro.plate("feature", bags.num_features):
            student = dist.StudentT(2.0 * self.shape, jnp.zeros(bags.num_features), 1.0)
            scale = jnp.sqrt(self.rate / self.shape)
            weights = numpyro.sample("weights", _affine(student, 0.0, scale))
        observe_bags(self._logits_with(weights, bags), bags)

    def _augmented_program(self, bags: Bags) -> None:
        sample_labels(self._draw_logits(bags), bags)

    def _draw_logits(self, bags: Bags) -> Float[Array, " N"]:
        with numpyro.plate("feature", bags.num_features):
            precision = numpyro.sample("weight_precision", dist.Gamma(self.shape, self.rate))
            normal = dist.Normal(jnp.zeros(bags.num_features), 1.0)
            weights = numpyro.sample("weights", _affine(normal, 0.0, precision**-0.5))
        return self._logits_with(weights, bags)

    def _logits_with(self, weights: Float[Array, " D"], bags: Bags) -> Float[Array, " N"]:
        prior = _affine(dist.Normal(0.0, 1.0), self.intercept_mean, self.intercept_scale)
        return _logits({"weights": weights, "intercept": numpyro.sample("intercept", prior)}, bags)

    # ------------------------------------------------------------------ predictions

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """Bag and instance probabilities under each draw.

        Parameters
        ----------
        draws : dict of arrays
            ``weights`` (S, D) and ``intercept`` (S,).
        bags : Bags
            B bags with N instances; their labels are not used.

        Returns
        -------
        dict of arrays
            ``bag_probability`` (S, B) and ``instance_probability`` (S, N).

        Raises
        ------
        ValueError
            If the bags have another number of features than there are weights.
        """
        check_width(draws["weights"].shape[1], bags)
        sites = {name: draws[name] for name in self.latent_sites}
        bag, instance = over_draws(_predict_one, sites, padded(bags.without_labels()))
        return {
            "bag_probability": bag[:, : bags.num_bags],
            "instance_probability": instance[:, : bags.num_instances],
        }

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the precisions α given the weights, and the instance labels given the bag labels.

        α_d | w_d ~ Gamma(a + ½, b + w_d²/2).

        Parameters
        ----------
        draws : dict of arrays
            ``weights`` (S, D) and ``intercept`` (S,).
        bags : Bags
            With labels.
        seed : int or JAX key

        Returns
        -------
        dict of arrays
            The draws, with ``weight_precision`` (S, D) unless they have it, and with
            ``instance_label`` (S, N).

        Raises
        ------
        ValueError
            If the bags have no labels, or another number of features than there are weights.
        """
        observations(self, bags, "complete()")
        check_width(draws["weights"].shape[1], bags)
        with jax.enable_x64(True):
            keys = jax.random.split(random_key(seed), len(draws["weights"]))
        sites = {name: draws[name] for name in self.latent_sites} | {"key": keys}
        precision, label = over_draws(_complete_one, sites, self, padded(bags))
        labels = {"instance_label": label[:, : bags.num_instances]}
        return {"weight_precision": precision} | dict(draws) | labels


def _predict_one(site: dict[str, Array], bags: Bags) -> tuple[Array, Array]:
    return probabilities(_logits(site, bags), bags)


def _complete_one(site: dict[str, Array], model: BMIL, bags: Bags) -> tuple[Array, Array]:
    precision_key, label_key = jax.random.split(site["key"])
    rate = model.rate + site["weights"] ** 2 / 2
    precision = dist.Gamma(model.shape + 0.5, rate).sample(precision_key)
    is_positive = jnp.asarray(bags.labels) == 1
    label = labels_given_bags(_logits(site, bags), bags, is_positive).sample(label_key)
    return precision, label


def _logits(site: dict[str, Array], bags: Bags) -> Float[Array, " N"]:
    """w_0 + Xw."""
    return jnp.asarray(bags.instances) @ site["weights"] + site["intercept"]


def _affine(
    whitened: Distribution, loc: float | Array, scale: float | Array
) -> dist.TransformedDistribution:
    """loc + scale ε in a form that `TransformReparam` whitens."""
    return dist.TransformedDistribution(whitened, AffineTransform(loc, scale))


def _median_root_mean_square(shape: float, num_features: int, seed: int) -> float:
    """The prior median of √(Σ w_d²/D) of weights of scale 1, from draws."""
    random = np.random.default_rng(seed)
    drawn = (random.standard_t(2.0 * shape, num_features) for _ in range(_PRIOR_DRAWS))
    return float(np.median([np.sqrt(np.mean(weights**2)) for weights in drawn]))


def _mean_for_even_odds(bag_size: float) -> float:
    """The m for which a bag of this size is positive with probability ½; logits m + 3z."""
    nodes, weights = hermegauss(64)
    weights /= weights.sum()
    positive = -math.expm1(-math.log(2) / bag_size)  # P(y_n = 1), of independent labels

    def excess(mean: float) -> float:
        return float(weights @ expit(mean + _TYPICAL_LOGIT * nodes)) - positive

    return float(brentq(excess, -100.0, 100.0))
