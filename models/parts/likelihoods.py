"""Likelihoods of Gaussian latent function values, with the closed forms of their augmentations.

A row is a bag (VWSGP, CardinalityGP) or an instance; it has one latent function value s and one
observation y. Given the inducing values u the latent values are independent, s | u ~ N(a, k̄).

===========  ===================  ============================================================
symbol       code                 meaning
===========  ===================  ============================================================
y            observed             label in {0, 1}, or target
s            latent               latent function value of the row
a            location             mean of s given u
k̄            residual_variance    variance of s given u; its root is ``residual_scale``
μ            mean                 E_q a
e            explained_variance   Var_q a = a_bᵀ S a_b
c²           second moment        E_q s² = μ² + e + k̄
===========  ===================  ============================================================

A Gaussian q(u) stays Gaussian after an update, because each likelihood is a Gaussian in s once an
auxiliary variable is given (Pólya-Gamma, Gamma, or the latent utility of Albert and Chib).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.core import Tracer
from jax.scipy.special import gammaln, log_ndtr
from jaxtyping import Array, Bool, Float, Int
from numpyro.distributions.transforms import AffineTransform

from ...datasets.arguments import AT_LEAST_ZERO, POSITIVE, WHOLE, Rule
from ..numerics.fields import check_fields
from ..numerics.quadrature import (
    NO_RULE,
    QuadratureRule,
    SigmoidTable,
    log_expected_sigmoid,
    logistic_rule,
    sigmoid_table,
)
from ..numerics.tracing import as_pytree
from .bag_labels import LogOddsLabel, TiltedPolyaGamma, probit_log_odds
from .hyperpriors import Parameter, positive_or_prior
from .polya_gamma import PolyaGamma
from .target_distributions import (
    NormalNegativeBinomial,
    NormalStudentT,
    count_rule,
    log_choices,
    student_rule,
)
from .tilted_gaussians import draw_above, draw_tilted_gaussian, inverse_mills_ratio

__all__ = [
    "LIKELIHOODS",
    "ExpectedStatistics",
    "Gaussian",
    "GaussianTerms",
    "LatentMoments",
    "Likelihood",
    "Logistic",
    "NegativeBinomial",
    "Observations",
    "ObservedPart",
    "Probit",
    "StudentT",
]

# A number or a prior. JAX makes pytrees of placeholders too, which type checks have to let pass.
type _Leaf = Parameter | Any
_NOISE = Rule(
    f"{AT_LEAST_ZERO.expected} (to infer it, put a prior on the kernel variance)",
    AT_LEAST_ZERO.accepts,
)
type ObservedPart = Literal["labels", "targets"]
type Observations = (
    Float[Array, "*K"]
    | Int[Array, "*K"]
    | Bool[Array, "*K"]
    | Float[np.ndarray, "*K"]
    | Int[np.ndarray, "*K"]
    | Bool[np.ndarray, "*K"]
)


class ExpectedStatistics(NamedTuple):
    """Expected sufficient statistics of rows, auxiliary factors at their optimum under q(u).

    With whitened inducing values u = Lε and a = Vε, the next q(ε) has the precision
    I + Σ precision·VVᵀ and the linear term Σ linear_term·V.

    Attributes
    ----------
    precision : array
        θ, the expected precision of the Gaussian that replaces the likelihood.
    linear_term : array
        Its expected linear term.
    log_likelihood : array
        Contribution of the row to the ELBO: all but KL(q(u) ‖ p(u)).
    """

    precision: Float[Array, "*K"]
    linear_term: Float[Array, "*K"]
    log_likelihood: Float[Array, "*K"]


class LatentMoments(NamedTuple):
    """Moments of the latent values under q(u) p(s | u): μ, e and k̄ of the module.

    Attributes
    ----------
    mean, explained_variance, residual_variance : array
    """

    mean: Float[Array, "*K"]
    explained_variance: Float[Array, "*K"]
    residual_variance: Float[Array, "*K"]

    @property
    def second_moment(self) -> Float[Array, "*K"]:
        """Second moment c² = E s²."""
        return self.mean**2 + self.explained_variance + self.residual_variance


class GaussianTerms(NamedTuple):
    """log p(y, auxiliary | s) = linear_term·s − ½ precision·s², up to a constant.

    Attributes
    ----------
    precision, linear_term : array
    """

    precision: Float[Array, "*K"]
    linear_term: Float[Array, "*K"]


@runtime_checkable
class Likelihood(Protocol):
    """A distribution of observations given latent function values, and its augmentation.

    Methods work elementwise over rows, in 32 and 64 bit, and can be differentiated. Symbols are
    those of the module. A likelihood is a frozen dataclass and a JAX pytree, whose numbers and
    priors are leaves.
    """

    name: ClassVar[str]  # the word for the command line
    observed_part: ClassVar[ObservedPart]  # of `Bags`
    auxiliary_site: ClassVar[str | None]  # of the augmented program; None where it has none

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """Hyper-parameters that can be learned, numbers or distributions, by site name."""
        ...

    def with_values(self, values: dict) -> Self:
        """Replace hyper-parameters by ``values``; other names are ignored."""
        ...

    def check_observed(self, values: Observations) -> None:
        """Raise an error for values of probability 0; traced values pass."""
        ...

    def expected_statistics(
        self,
        observed: Observations,
        mean: Float[Array, "*K"],
        explained_variance: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> ExpectedStatistics:
        """Expected sufficient statistics and ELBO of rows under q(u)."""
        ...

    # ------------------------------------------------------------------ NumPyro programs

    def distribution(self, latent: Float[Array, "*K"]) -> dist.Distribution:
        """Distribution of observations given their latent values."""
        ...

    def marginal_distribution(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        rule: QuadratureRule | SigmoidTable,
    ) -> dist.Distribution:
        """Distribution of observations given u, the latent values integrated out."""
        ...

    def quadrature_rule(self, largest_scale: float) -> QuadratureRule:
        """The rule of ``marginal_distribution`` for residual scales up to the given one."""
        ...

    def tabulated(
        self, rule: QuadratureRule, residual_scale: Float[Array, "*K"]
    ) -> QuadratureRule | SigmoidTable:
        """The rule with all that can be evaluated once for fixed residual scales."""
        ...

    def distance_to_singularity(self, residual_variance: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """How far from the real line log p(y | u) is analytic in a; it sets steps over q(a)."""
        ...

    def sample_augmented(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        observed: Observations | None,
        *,
        latent_site: str,
        observed_site: str,
    ) -> None:
        """Sample the sites of the augmented program given u, within the plate of the rows."""
        ...

    def sample_guide(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        moments: LatentMoments,
        observed: Observations,
        *,
        latent_site: str,
    ) -> None:
        """Sample the same sites under q; its auxiliary factor follows from the moments."""
        ...

    # ------------------------------------------------------------------ exact draws

    def draw_auxiliary(
        self,
        key: Array,
        observed: Observations,
        latent: Float[Array, "*K"],
        location: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw the auxiliary variables given s, or given u with s integrated out."""
        ...

    def gaussian_terms(
        self, observed: Observations, auxiliary: Float[Array, "*K"]
    ) -> GaussianTerms:
        """The Gaussian in s that the likelihood is given the auxiliary variables."""
        ...

    def draw_latent(
        self,
        key: Array,
        observed: Observations,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw s given u and the observations."""
        ...


class _WithoutTable:
    """Base of likelihoods whose quadrature has no table."""

    def tabulated(
        self, rule: QuadratureRule, residual_scale: Float[Array, "*K"]
    ) -> QuadratureRule | SigmoidTable:
        """The rule itself."""
        return rule


# ------------------------------------------------------------------ labels


@as_pytree()
@dataclass(frozen=True)
class Logistic:
    """Bernoulli labels by the logistic function, y ~ Bernoulli(σ(s)).

    The auxiliary variable is ω ~ PG(1, s), and its factor PG(1, c) with c² = E_q s². The bound is
    that of Jaakkola with ξ = c.

    References
    ----------
    Polson, Scott and Windle (2013); Kandemir et al. (2016), section 3.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from milzoo.models import Logistic
    >>> half = jnp.zeros(1)
    >>> float(Logistic().expected_statistics(half + 1, half, half, half).precision[0])
    0.25
    """

    name: ClassVar[str] = "logistic"
    observed_part: ClassVar[ObservedPart] = "labels"
    auxiliary_site: ClassVar[str | None] = "augmentation"

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """No hyper-parameters."""
        return {}

    def with_values(self, values: dict) -> Self:
        """The same likelihood: it has no hyper-parameters."""
        return self

    def check_observed(self, values: Observations) -> None:
        """Refuse labels other than 0 and 1.

        Raises
        ------
        ValueError
        """
        _check_labels(values)

    def expected_statistics(
        self,
        observed: Observations,
        mean: Float[Array, "*K"],
        explained_variance: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> ExpectedStatistics:
        """Precision tanh(c/2)/(2c), linear term y − ½, ELBO (y − ½)μ − log 2cosh(c/2).

        Parameters
        ----------
        observed : array
            Labels in {0, 1}.
        mean, explained_variance, residual_variance : array
            μ, e and k̄.

        Returns
        -------
        ExpectedStatistics
        """
        second_moment = mean**2 + explained_variance + residual_variance
        linear_term = jnp.asarray(observed, mean.dtype) - 0.5
        return ExpectedStatistics(
            _polya_gamma_mean(second_moment),
            linear_term,
            linear_term * mean - _log_two_cosh_half(second_moment),
        )

    def distribution(self, latent: Float[Array, "*K"]) -> dist.Distribution:
        """Distribution Bernoulli(σ(s)) of labels."""
        return LogOddsLabel(logits=latent)

    def marginal_distribution(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        rule: QuadratureRule | SigmoidTable,
    ) -> dist.Distribution:
        """Bernoulli(E σ(s)): its log odds by quadrature, accurate in both tails.

        The integral is that of the less probable label; the other's probability is one minus it.
        """
        sign = jnp.where(location < 0, -1.0, 1.0)
        less = log_expected_sigmoid(-sign * location, residual_scale, rule)
        return LogOddsLabel(logits=sign * (jnp.log1p(-jnp.exp(less)) - less))

    def quadrature_rule(self, largest_scale: float) -> QuadratureRule:
        """The rule of `logistic_rule`."""
        return logistic_rule(largest_scale)

    def tabulated(
        self, rule: QuadratureRule, residual_scale: Float[Array, "*K"]
    ) -> QuadratureRule | SigmoidTable:
        """The exponentials of `log_expected_sigmoid`."""
        return sigmoid_table(residual_scale, rule)

    def distance_to_singularity(self, residual_variance: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """π: the poles of σ are at ±iπ."""
        return jnp.full_like(residual_variance, jnp.pi)

    def sample_augmented(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        observed: Observations | None,
        *,
        latent_site: str,
        observed_site: str,
    ) -> None:
        """s ~ N(a, k̄), ω | s ~ PG(1, s) and y | s."""
        latent = numpyro.sample(latent_site, dist.Normal(location, residual_scale))
        numpyro.sample(self.auxiliary_site, PolyaGamma(1, latent))
        numpyro.sample(observed_site, self.distribution(latent), obs=observed)

    def sample_guide(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        moments: LatentMoments,
        observed: Observations,
        *,
        latent_site: str,
    ) -> None:
        """s ~ N(a, k̄) and ω ~ PG(1, c)."""
        numpyro.sample(latent_site, dist.Normal(location, residual_scale))
        tilt = jnp.sqrt(moments.second_moment)
        numpyro.sample(self.auxiliary_site, PolyaGamma(1, tilt))

    def draw_auxiliary(
        self,
        key: Array,
        observed: Observations,
        latent: Float[Array, "*K"],
        location: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw ω | s ~ PG(1, s)."""
        return PolyaGamma(1, latent).sample(key)

    def gaussian_terms(
        self, observed: Observations, auxiliary: Float[Array, "*K"]
    ) -> GaussianTerms:
        """Precision ω and linear term y − ½."""
        return GaussianTerms(auxiliary, jnp.asarray(observed, auxiliary.dtype) - 0.5)

    def draw_latent(
        self,
        key: Array,
        observed: Observations,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw from p(s) ∝ N(s; a, k̄) σ(±s), exactly."""
        sign = 2.0 * jnp.asarray(observed, location.dtype) - 1.0
        return sign * draw_tilted_gaussian(key, sign * location, residual_scale)


@as_pytree()
@dataclass(frozen=True)
class Probit(_WithoutTable):
    """Bernoulli labels by the normal distribution function, y ~ Bernoulli(Φ(s/√(1 + noise))).

    The label is the sign of a latent utility z | u ~ N(a, v) with v = 1 + noise + k̄: s is
    integrated out, and z is the auxiliary variable.

    Parameters
    ----------
    noise : float
        Variance, at least 0, of a Gaussian disturbance of s before the probit. No prior: a larger
        noise is a smaller kernel variance, which may have a prior.

    Raises
    ------
    ValueError
        If the noise is out of range.

    References
    ----------
    Albert and Chib (1993); Kandemir et al. (2016), section 4.3, where noise = 1/α.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import VWSGP, Probit
    >>> train, test = load("kandemir2014").standardize().split(0.7, seed=0)
    >>> model = VWSGP.for_bags(train, num_inducing=10, likelihood=Probit(noise=1.0))
    >>> coordinate_ascent(model, train, seed=0).predict(test).bag_probability[:3].round(1)
    array([0.8, 0.4, 0.7])
    """

    noise: Annotated[_Leaf, _NOISE] = 1.0

    name: ClassVar[str] = "probit"
    observed_part: ClassVar[ObservedPart] = "labels"
    auxiliary_site: ClassVar[str | None] = "latent_utility"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """No hyper-parameters: a larger noise is a smaller kernel variance."""
        return {}

    def with_values(self, values: dict) -> Self:
        """The same likelihood: it has no hyper-parameters."""
        return self

    def check_observed(self, values: Observations) -> None:
        """Refuse labels other than 0 and 1.

        Raises
        ------
        ValueError
        """
        _check_labels(values)

    def utility_variance(self, residual_variance: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """Variance of the latent utility given u: v = 1 + noise + k̄."""
        return 1.0 + self.noise + residual_variance

    def expected_statistics(
        self,
        observed: Observations,
        mean: Float[Array, "*K"],
        explained_variance: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> ExpectedStatistics:
        """Precision 1/v, linear term E[z]/v, ELBO log Φ(±μ/√v) − e/(2v).

        Parameters
        ----------
        observed : array
            Labels in {0, 1}.
        mean, explained_variance, residual_variance : array
            μ, e and k̄.

        Returns
        -------
        ExpectedStatistics
        """
        variance = self.utility_variance(residual_variance)
        scale = jnp.sqrt(variance)
        sign = 2.0 * jnp.asarray(observed, mean.dtype) - 1.0
        x = sign * mean / scale
        # φ/Φ in logs, right far in the tail: E z = ±√v (x + φ(x)/Φ(x)).
        utility = sign * scale * (x + inverse_mills_ratio(x))
        return ExpectedStatistics(
            1.0 / variance, utility / variance, log_ndtr(x) - 0.5 * explained_variance / variance
        )

    def distribution(self, latent: Float[Array, "*K"]) -> dist.Distribution:
        """Bernoulli(Φ(s/√(1 + noise)))."""
        return LogOddsLabel(logits=probit_log_odds(latent / jnp.sqrt(1.0 + self.noise)))

    def marginal_distribution(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        rule: QuadratureRule | SigmoidTable,
    ) -> dist.Distribution:
        """Bernoulli(Φ(a/√v)); the rule is not used."""
        scale = jnp.sqrt(self.utility_variance(residual_scale**2))
        return LogOddsLabel(logits=probit_log_odds(location / scale))

    def quadrature_rule(self, largest_scale: float) -> QuadratureRule:
        """A rule without nodes: the integral has a closed form."""
        return NO_RULE

    def distance_to_singularity(self, residual_variance: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """2.8 √v: Φ has its first zeros at 1.915 ± 2.816i."""
        return 2.8 * jnp.sqrt(self.utility_variance(residual_variance))

    def sample_augmented(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        observed: Observations | None,
        *,
        latent_site: str,
        observed_site: str,
    ) -> None:
        """z ~ N(a, v), whose sign is the label."""
        scale = jnp.sqrt(self.utility_variance(residual_scale**2))
        utility = numpyro.sample(self.auxiliary_site, dist.Normal(location, scale))
        label = dist.Delta((utility > 0).astype(int))
        numpyro.sample(observed_site, label, obs=observed)

    def sample_guide(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        moments: LatentMoments,
        observed: Observations,
        *,
        latent_site: str,
    ) -> None:
        """z ~ N(μ, v), truncated at zero to the side of the label."""
        scale = jnp.sqrt(self.utility_variance(moments.residual_variance))
        sign = 2.0 * jnp.asarray(observed, scale.dtype) - 1.0
        above = dist.TruncatedNormal(sign * moments.mean, scale, low=0.0)
        side = dist.TransformedDistribution(above, AffineTransform(0.0, sign))
        numpyro.sample(self.auxiliary_site, side)

    def draw_auxiliary(
        self,
        key: Array,
        observed: Observations,
        latent: Float[Array, "*K"],
        location: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw z | u ~ N(a, v), truncated by the label: s is integrated out."""
        scale = jnp.sqrt(self.utility_variance(residual_variance))
        sign = 2.0 * jnp.asarray(observed, location.dtype) - 1.0
        return location + sign * scale * draw_above(key, -sign * location / scale)

    def gaussian_terms(
        self, observed: Observations, auxiliary: Float[Array, "*K"]
    ) -> GaussianTerms:
        """Precision 1/(1 + noise) and linear term z/(1 + noise)."""
        precision = jnp.broadcast_to(1.0 / (1.0 + self.noise), auxiliary.shape)
        return GaussianTerms(precision.astype(auxiliary.dtype), precision * auxiliary)

    def draw_latent(
        self,
        key: Array,
        observed: Observations,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw z | u, y, then s | z, u ~ N(a + k̄ (z − a)/v, k̄ (1 + noise)/v)."""
        utility_key, latent_key = jax.random.split(key)
        residual_variance = residual_scale**2
        utility = self.draw_auxiliary(utility_key, observed, location, location, residual_variance)
        gain = residual_variance / self.utility_variance(residual_variance)
        noise = jax.random.normal(latent_key, location.shape, location.dtype)
        middle = location + gain * (utility - location)
        return middle + jnp.sqrt(gain * (1.0 + self.noise)) * noise


# ------------------------------------------------------------------ targets


@as_pytree()
@dataclass(frozen=True)
class Gaussian(_WithoutTable):
    """Targets with Gaussian noise, y ~ N(s, noise). Conjugate, without augmentation.

    Parameters
    ----------
    noise : float or Distribution
        Variance of a target given its latent value; a NumPyro distribution makes it the site
        ``noise``.

    Raises
    ------
    ValueError
        If the noise is out of range.

    References
    ----------
    Kandemir et al. (2016), footnote 1.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import RBF, VWSGP, Gaussian
    >>> bags = Bags.from_list([[[0.0]], [[1.0]], [[0.0], [1.0]]]).with_targets([1.0, -2.0, -1.0])
    >>> model = VWSGP(RBF(4.0, 0.5), bags.instances[:2], likelihood=Gaussian(noise=0.01))
    >>> coordinate_ascent(model, bags, seed=0).predict(bags).bag_mean.mean(axis=0).round(1)
    array([ 1., -2., -1.])
    """

    noise: Annotated[_Leaf, positive_or_prior("LogNormal")] = 1.0

    name: ClassVar[str] = "gaussian"
    observed_part: ClassVar[ObservedPart] = "targets"
    auxiliary_site: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """The noise variance as ``noise``."""
        return {"noise": self.noise}

    def with_values(self, values: dict) -> Self:
        """Replace ``noise``; other names are ignored."""
        return replace(self, noise=values["noise"]) if "noise" in values else self

    def check_observed(self, values: Observations) -> None:
        """Refuse targets that are not finite.

        Raises
        ------
        ValueError
        """
        _check_finite(values)

    def expected_statistics(
        self,
        observed: Observations,
        mean: Float[Array, "*K"],
        explained_variance: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> ExpectedStatistics:
        """Precision 1/v, linear term y/v, ELBO log N(y; μ, v) − e/(2v), with v = noise + k̄.

        Parameters
        ----------
        observed : array
            Targets.
        mean, explained_variance, residual_variance : array
            μ, e and k̄.

        Returns
        -------
        ExpectedStatistics
        """
        variance = self.noise + residual_variance
        target = jnp.asarray(observed, mean.dtype)
        squared_error = (target - mean) ** 2 + explained_variance
        return ExpectedStatistics(
            1.0 / variance,
            target / variance,
            -0.5 * (jnp.log(2 * jnp.pi * variance) + squared_error / variance),
        )

    def distribution(self, latent: Float[Array, "*K"]) -> dist.Distribution:
        """Distribution N(s, noise) of targets."""
        return dist.Normal(latent, jnp.sqrt(self.noise))

    def marginal_distribution(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        rule: QuadratureRule | SigmoidTable,
    ) -> dist.Distribution:
        """N(a, k̄ + noise); the rule is not used."""
        return dist.Normal(location, jnp.sqrt(residual_scale**2 + self.noise))

    def quadrature_rule(self, largest_scale: float) -> QuadratureRule:
        """A rule without nodes: the integral has a closed form."""
        return NO_RULE

    def distance_to_singularity(self, residual_variance: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """Infinite: log p(y | u) is a parabola."""
        return jnp.full_like(residual_variance, jnp.inf)

    def sample_augmented(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        observed: Observations | None,
        *,
        latent_site: str,
        observed_site: str,
    ) -> None:
        """Sample y | u alone: the model is conjugate."""
        target = self.marginal_distribution(location, residual_scale, NO_RULE)
        numpyro.sample(observed_site, target, obs=observed)

    def sample_guide(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        moments: LatentMoments,
        observed: Observations,
        *,
        latent_site: str,
    ) -> None:
        """No sites: the model is conjugate."""

    def draw_auxiliary(
        self,
        key: Array,
        observed: Observations,
        latent: Float[Array, "*K"],
        location: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Zeros: there are no auxiliary variables."""
        return jnp.zeros_like(latent)

    def gaussian_terms(
        self, observed: Observations, auxiliary: Float[Array, "*K"]
    ) -> GaussianTerms:
        """Precision 1/noise and linear term y/noise."""
        precision = jnp.broadcast_to(1.0 / self.noise, auxiliary.shape).astype(auxiliary.dtype)
        return GaussianTerms(precision, precision * jnp.asarray(observed, auxiliary.dtype))

    def draw_latent(
        self,
        key: Array,
        observed: Observations,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw from N(a + g (y − a), g noise) with g = k̄/(k̄ + noise)."""
        gain = residual_scale**2 / (residual_scale**2 + self.noise)
        middle = location + gain * (jnp.asarray(observed, location.dtype) - location)
        return dist.Normal(middle, jnp.sqrt(gain * self.noise)).sample(key)


@as_pytree()
@dataclass(frozen=True)
class StudentT(_WithoutTable):
    """Targets with Student-t noise, y = s + scale·t_ν: robust regression.

    The auxiliary variable is the precision of the target's own noise: ω ~ Gamma(ν/2, ν/2) and
    y | s, ω ~ N(s, scale²/ω). Its factor is Gamma((ν + 1)/2, (ν + r²/scale²)/2) with
    r² = E_q (y − s)² = (y − μ)² + e + k̄.

    Parameters
    ----------
    degrees_of_freedom : float
        ν > 0. Up to 1 targets have no mean and are predicted by their median; up to 2 they have
        no variance.
    scale : float or Distribution
        σ, in units of the targets; a NumPyro distribution makes it the site ``noise_scale``.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    Lange, Little and Taylor (1989), Robust statistical modeling using the t distribution, JASA 84;
    Jylänki, Vanhatalo and Vehtari (2011), Robust Gaussian process regression with a Student-t
    likelihood, JMLR 12.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import RBF, VWSGP, StudentT
    >>> bags = Bags.from_list([[[0.0]]] * 4).with_targets([1.0, 1.1, 0.9, 50.0])
    >>> likelihood = StudentT(degrees_of_freedom=3.0, scale=0.1)
    >>> model = VWSGP(RBF(4.0, 1.0), bags.instances[:1], likelihood=likelihood)
    >>> coordinate_ascent(model, bags, seed=0).predict(bags[0]).bag_mean.mean(axis=0).round(1)
    array([1.])
    """

    degrees_of_freedom: Annotated[_Leaf, POSITIVE] = 4.0
    scale: Annotated[_Leaf, positive_or_prior("LogNormal")] = 1.0

    name: ClassVar[str] = "student_t"
    observed_part: ClassVar[ObservedPart] = "targets"
    auxiliary_site: ClassVar[str | None] = "augmentation"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """The scale σ as ``noise_scale``."""
        return {"noise_scale": self.scale}

    def with_values(self, values: dict) -> Self:
        """Replace σ by ``noise_scale``; other names are ignored."""
        return replace(self, scale=values["noise_scale"]) if "noise_scale" in values else self

    def check_observed(self, values: Observations) -> None:
        """Refuse targets that are not finite.

        Raises
        ------
        ValueError
        """
        _check_finite(values)

    def expected_statistics(
        self,
        observed: Observations,
        mean: Float[Array, "*K"],
        explained_variance: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> ExpectedStatistics:
        """Precision θ = (ν + 1)/(νσ² + r²), linear term θy, ELBO log t_ν(r; 0, σ).

        Parameters
        ----------
        observed : array
            Targets.
        mean, explained_variance, residual_variance : array
            μ, e and k̄.

        Returns
        -------
        ExpectedStatistics
        """
        target = jnp.asarray(observed, mean.dtype)
        squared_error = (target - mean) ** 2 + explained_variance + residual_variance  # r²
        precision = (self.degrees_of_freedom + 1.0) / (
            self.degrees_of_freedom * self.scale**2 + squared_error
        )
        return ExpectedStatistics(
            precision,
            precision * target,
            self._log_density(squared_error),
        )

    def _log_density(self, squared_error: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """log t_ν of a deviation, by its square."""
        degrees = jnp.asarray(self.degrees_of_freedom, squared_error.dtype)
        scaled = degrees * self.scale**2
        return (
            _log_gamma_ratio(degrees)
            - 0.5 * jnp.log(jnp.pi * scaled)
            - 0.5 * (degrees + 1.0) * jnp.log1p(squared_error / scaled)
        )

    def distribution(self, latent: Float[Array, "*K"]) -> dist.Distribution:
        """Distribution of s + σ t_ν."""
        return dist.StudentT(self.degrees_of_freedom, latent, self.scale)

    def marginal_distribution(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        rule: QuadratureRule | SigmoidTable,
    ) -> dist.Distribution:
        """Distribution of a + √k̄ z + σ t_ν, by quadrature over the precision of the noise."""
        assert isinstance(rule, QuadratureRule)  # there is no table
        return NormalStudentT(location, residual_scale, self.degrees_of_freedom, self.scale, rule)

    def quadrature_rule(self, largest_scale: float) -> QuadratureRule:
        """One rule for all scales, over the logarithm of the noise precision."""
        return student_rule()

    def distance_to_singularity(self, residual_variance: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """σ√ν: log t_ν has branch points there, and smoothing moves them away."""
        distance = self.scale * jnp.sqrt(jnp.asarray(self.degrees_of_freedom))
        return jnp.broadcast_to(distance, residual_variance.shape)

    def sample_augmented(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        observed: Observations | None,
        *,
        latent_site: str,
        observed_site: str,
    ) -> None:
        """s ~ N(a, k̄), ω ~ Gamma(ν/2, ν/2) and y | s, ω ~ N(s, σ²/ω)."""
        latent = numpyro.sample(latent_site, dist.Normal(location, residual_scale))
        half = jnp.broadcast_to(0.5 * jnp.asarray(self.degrees_of_freedom), latent.shape)
        precision = numpyro.sample(self.auxiliary_site, dist.Gamma(half, half))
        target = dist.Normal(latent, self.scale / jnp.sqrt(precision))
        numpyro.sample(observed_site, target, obs=observed)

    def sample_guide(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        moments: LatentMoments,
        observed: Observations,
        *,
        latent_site: str,
    ) -> None:
        """s ~ N(a, k̄) and ω ~ Gamma((ν + 1)/2, (ν + r²/σ²)/2)."""
        numpyro.sample(latent_site, dist.Normal(location, residual_scale))
        squared_error = (jnp.asarray(observed) - moments.mean) ** 2
        squared_error += moments.explained_variance + moments.residual_variance
        numpyro.sample(self.auxiliary_site, self._precision_given(squared_error))

    def draw_auxiliary(
        self,
        key: Array,
        observed: Observations,
        latent: Float[Array, "*K"],
        location: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw ω | s ~ Gamma((ν + 1)/2, (ν + (y − s)²/σ²)/2)."""
        squared_error = (jnp.asarray(observed, latent.dtype) - latent) ** 2
        return self._precision_given(squared_error).sample(key)

    def gaussian_terms(
        self, observed: Observations, auxiliary: Float[Array, "*K"]
    ) -> GaussianTerms:
        """Precision ω/σ² and linear term ωy/σ²."""
        precision = auxiliary / self.scale**2
        return GaussianTerms(precision, precision * jnp.asarray(observed, auxiliary.dtype))

    def draw_latent(
        self,
        key: Array,
        observed: Observations,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw ω | u, y by rejection, then s | ω, u, y: exactly."""
        marginal = self.marginal_distribution(location, residual_scale, student_rule())
        assert isinstance(marginal, NormalStudentT)
        return marginal.draw_latent(key, jnp.asarray(observed, location.dtype))

    def _precision_given(self, squared_error: Float[Array, "*K"]) -> dist.Gamma:
        """Distribution of ω given (y − s)², or its optimal factor given r²."""
        degrees = jnp.asarray(self.degrees_of_freedom, squared_error.dtype)
        shape = jnp.broadcast_to(0.5 * (degrees + 1.0), squared_error.shape)
        return dist.Gamma(shape, 0.5 * (degrees + squared_error / self.scale**2))


@as_pytree("total_count")
@dataclass(frozen=True)
class NegativeBinomial(_WithoutTable):
    """Counts, p(y | s) = C(y + r − 1, y) σ(s)^y σ(−s)^r: their mean is r·exp(s).

    The auxiliary variable is ω ~ PG(y + r, s), and its factor PG(y + r, c) with c² = E_q s².
    With r = 1 counts are geometric.

    Parameters
    ----------
    total_count : int
        r ≥ 1. The variance of a count of mean m is m + m²/r.

    Raises
    ------
    ValueError
        If r is not a positive whole number.

    References
    ----------
    Polson, Scott and Windle (2013); Zhou et al. (2012), Lognormal and gamma mixed negative
    binomial regression, ICML.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import RBF, VWSGP, NegativeBinomial
    >>> bags = Bags.from_list([[[0.0]], [[0.0]], [[2.0]], [[2.0]]]).with_targets([1, 2, 30, 34])
    >>> likelihood = NegativeBinomial(total_count=9)
    >>> model = VWSGP(RBF(9.0, 1.0), bags.instances[1:3], likelihood=likelihood)
    >>> coordinate_ascent(model, bags, seed=0).predict(bags).bag_mean.mean(axis=0).round()
    array([ 2.,  2., 33., 33.])
    """

    total_count: Annotated[int, WHOLE] = 1

    name: ClassVar[str] = "negative_binomial"
    observed_part: ClassVar[ObservedPart] = "targets"
    auxiliary_site: ClassVar[str | None] = "augmentation"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """No hyper-parameters: r is a whole number, which no gradient learns."""
        return {}

    def with_values(self, values: dict) -> Self:
        """The same likelihood: it has no hyper-parameters."""
        return self

    def check_observed(self, values: Observations) -> None:
        """Raise an error for targets that are not counts.

        Raises
        ------
        ValueError
        """
        _check_finite(values)
        if isinstance(values, Tracer):
            return
        counts = np.asarray(values)
        wrong = np.flatnonzero((counts < 0) | (counts != np.floor(counts)))
        if wrong.size:
            raise ValueError(
                f"target {counts.flat[wrong[0]]} at position {wrong[0]} is not a count; "
                "NegativeBinomial expects whole numbers of at least 0: round the targets, or use "
                "Gaussian or StudentT"
            )

    def expected_statistics(
        self,
        observed: Observations,
        mean: Float[Array, "*K"],
        explained_variance: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> ExpectedStatistics:
        """Precision (y + r) tanh(c/2)/(2c), linear term (y − r)/2.

        The ELBO is log C(y + r − 1, y) + ½(y − r)μ − (y + r) log 2cosh(c/2).

        Parameters
        ----------
        observed : array
            Counts.
        mean, explained_variance, residual_variance : array
            μ, e and k̄.

        Returns
        -------
        ExpectedStatistics
        """
        second_moment = mean**2 + explained_variance + residual_variance
        count = jnp.asarray(observed, mean.dtype)
        trials = count + self.total_count
        linear_term = 0.5 * (count - self.total_count)
        return ExpectedStatistics(
            trials * _polya_gamma_mean(second_moment),
            linear_term,
            log_choices(count, self.total_count)
            + linear_term * mean
            - trials * _log_two_cosh_half(second_moment),
        )

    def distribution(self, latent: Float[Array, "*K"]) -> dist.Distribution:
        """Negative binomial counts with log odds s."""
        return dist.NegativeBinomialLogits(self.total_count, latent)

    def marginal_distribution(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        rule: QuadratureRule | SigmoidTable,
    ) -> dist.Distribution:
        """Negative binomial counts with s ~ N(a, k̄) integrated out by quadrature."""
        assert isinstance(rule, QuadratureRule)  # there is no table
        return NormalNegativeBinomial(location, residual_scale, self.total_count, rule)

    def quadrature_rule(self, largest_scale: float) -> QuadratureRule:
        """The rule of `count_rule`."""
        return count_rule(largest_scale)

    def distance_to_singularity(self, residual_variance: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """π: the poles of σ are at ±iπ."""
        return jnp.full_like(residual_variance, jnp.pi)

    def sample_augmented(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        observed: Observations | None,
        *,
        latent_site: str,
        observed_site: str,
    ) -> None:
        """s ~ N(a, k̄), y | s and ω | s, y ~ PG(y + r, s), relative to PG(y + r, 0)."""
        latent = numpyro.sample(latent_site, dist.Normal(location, residual_scale))
        count = numpyro.sample(observed_site, self.distribution(latent), obs=observed)
        trials = self._trials(jnp.asarray(count))
        numpyro.sample(self.auxiliary_site, TiltedPolyaGamma(trials, latent))

    def sample_guide(
        self,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
        moments: LatentMoments,
        observed: Observations,
        *,
        latent_site: str,
    ) -> None:
        """s ~ N(a, k̄) and ω ~ PG(y + r, c), relative to PG(y + r, 0)."""
        numpyro.sample(latent_site, dist.Normal(location, residual_scale))
        tilt = jnp.sqrt(moments.second_moment)
        trials = self._trials(jnp.asarray(observed))
        numpyro.sample(self.auxiliary_site, TiltedPolyaGamma(trials, tilt))

    def draw_auxiliary(
        self,
        key: Array,
        observed: Observations,
        latent: Float[Array, "*K"],
        location: Float[Array, "*K"],
        residual_variance: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw ω | s ~ PG(y + r, s), as a sum of y + r draws."""
        return PolyaGamma(self._trials(jnp.asarray(observed)), latent).sample(key)

    def gaussian_terms(
        self, observed: Observations, auxiliary: Float[Array, "*K"]
    ) -> GaussianTerms:
        """Precision ω and linear term (y − r)/2."""
        count = jnp.asarray(observed, auxiliary.dtype)
        return GaussianTerms(auxiliary, 0.5 * (count - self.total_count))

    def draw_latent(
        self,
        key: Array,
        observed: Observations,
        location: Float[Array, "*K"],
        residual_scale: Float[Array, "*K"],
    ) -> Float[Array, "*K"]:
        """Draw from p(s) ∝ N(s; a, k̄) σ(s)^y σ(−s)^r, exactly."""
        marginal = self.marginal_distribution(location, residual_scale, NO_RULE)
        assert isinstance(marginal, NormalNegativeBinomial)
        return marginal.draw_latent(key, jnp.asarray(observed, location.dtype))

    def _trials(self, count: Array) -> Int[Array, "*K"]:
        """y + r as integers; counts from files are floats."""
        return count.astype(int) + self.total_count


# By their names on the command line.
LIKELIHOODS: dict[str, type[Any]] = {
    likelihood.name: likelihood
    for likelihood in (Logistic, Probit, Gaussian, StudentT, NegativeBinomial)
}


# ------------------------------------------------------------------ functions of the second moment


def _polya_gamma_mean(second_moment: Float[Array, "*K"]) -> Float[Array, "*K"]:
    """tanh(c/2)/(2c) from c²; smooth at 0, where it is ¼ (rows of padding have c = 0)."""
    # The first neglected term is below 1e-17 of the sum.
    is_small = second_moment < 1e-3
    small = jnp.where(is_small, second_moment, 0.0)
    series = 0.25 + small * (
        -1 / 48 + small * (1 / 480 + small * (-17 / 80640 + small * 31 / 1451520))
    )
    tilt = jnp.sqrt(jnp.where(is_small, 1.0, second_moment))
    return jnp.where(is_small, series, jnp.tanh(0.5 * tilt) / (2.0 * tilt))


def _log_two_cosh_half(second_moment: Float[Array, "*K"]) -> Float[Array, "*K"]:
    """log 2cosh(c/2) from c², without overflow; smooth at 0. Its derivative is half the mean."""
    is_small = second_moment < 1e-3
    small = jnp.where(is_small, second_moment, 0.0)
    series = jnp.log(2.0) + small * (
        1 / 8 + small * (-1 / 192 + small * (1 / 2880 + small * (-17 / 645120)))
    )
    tilt = jnp.sqrt(jnp.where(is_small, 1.0, second_moment))
    return jnp.where(is_small, series, 0.5 * tilt + jnp.log1p(jnp.exp(-tilt)))


def _log_gamma_ratio(degrees: Float[Array, "*K"]) -> Float[Array, "*K"]:
    """log Γ((ν + 1)/2) − log Γ(ν/2), by a series where ν is large and the terms cancel."""
    half = 0.5 * degrees
    is_large = half > 30.0
    large = jnp.where(is_large, half, 30.0)
    # Γ(x + ½)/Γ(x) = √x (1 − 1/(8x) + 1/(128x²) + 5/(1024x³) − …), in logs.
    inverse = 1.0 / large
    series = 0.5 * jnp.log(large) - inverse / 8 + inverse**3 / 192 - inverse**5 / 640
    return jnp.where(is_large, series, gammaln(half + 0.5) - gammaln(half))


# ------------------------------------------------------------------ checks


def _check_labels(values: Observations) -> None:
    if isinstance(values, Tracer):
        return
    labels = np.asarray(values)
    wrong = np.flatnonzero((labels != 0) & (labels != 1))
    if wrong.size:
        raise ValueError(
            f"label {labels.flat[wrong[0]]} at position {wrong[0]}; expected 0 or 1: for targets "
            "that are numbers use Gaussian, StudentT or NegativeBinomial"
        )


def _check_finite(values: Observations) -> None:
    if isinstance(values, Tracer):
        return
    targets = np.asarray(values)
    wrong = np.flatnonzero(~np.isfinite(targets))
    if wrong.size:
        raise ValueError(
            f"target {targets.flat[wrong[0]]} at position {wrong[0]}; expected a finite number: "
            "leave such rows out"
        )
