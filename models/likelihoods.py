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

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.scipy.special import gammaln, log_ndtr
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float, Int
from numpyro.distributions import Distribution

from .kernels import Parameter, may_be_positive

__all__ = [
    "ExpectedStatistics",
    "Gaussian",
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
        θ, the expected precision of the Gaussian that stands for the likelihood.
    linear_term : array
        Its expected linear term.
    log_likelihood : array
        What the row contributes to the ELBO: all but KL(q(u) ‖ p(u)).
    """

    precision: Float[Array, "*K"]
    linear_term: Float[Array, "*K"]
    log_likelihood: Float[Array, "*K"]


@runtime_checkable
class Likelihood(Protocol):
    """A distribution of observations given latent function values, and its augmentation.

    Methods work elementwise over rows, in 32 and 64 bit, and can be differentiated. Symbols are
    those of the module. A likelihood is a frozen dataclass and a JAX pytree, whose numbers and
    priors are leaves.
    """

    name: ClassVar[str]  # the word for the command line
    observed_part: ClassVar[ObservedPart]  # of `Bags`

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """Those that can be learned: numbers or NumPyro distributions, by site name."""
        ...

    def with_values(self, values: dict) -> Self:
        """Replace hyper-parameters by ``values``; other names are ignored."""
        ...

    def check_observed(self, values: Observations) -> None:
        """Refuse what this likelihood cannot have produced; traced values pass."""
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


# ------------------------------------------------------------------ labels


@jax.tree_util.register_dataclass
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
    >>> half = jnp.zeros(1)
    >>> float(Logistic().expected_statistics(half + 1, half, half, half).precision[0])
    0.25
    """

    name: ClassVar[str] = "logistic"
    observed_part: ClassVar[ObservedPart] = "labels"

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """None."""
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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Probit:
    """Bernoulli labels by the normal distribution function, y ~ Bernoulli(Φ(s/√(1 + noise))).

    The label is the sign of a latent utility z | u ~ N(a, v) with v = 1 + noise + k̄: s is
    integrated out, and z is the auxiliary variable.

    Parameters
    ----------
    noise : float
        Variance, at least 0, of a Gaussian disturbance of s before the probit. No prior: a larger
        noise is a smaller kernel variance, on which a prior can stand.

    Raises
    ------
    ValueError
        If the noise is out of range.

    References
    ----------
    Albert and Chib (1993); Kandemir et al. (2016), section 4.3, where noise = 1/α.
    """

    noise: _Leaf = 1.0

    name: ClassVar[str] = "probit"
    observed_part: ClassVar[ObservedPart] = "labels"

    def __post_init__(self) -> None:
        _make_plain(self, "noise")
        is_wrong = isinstance(self.noise, int | float) and not 0 <= self.noise < np.inf
        if is_wrong or isinstance(self.noise, str | list | tuple | dict | None | Distribution):
            raise ValueError(
                f"Probit noise is {self.noise}; expected a number of at least 0 (to infer it, put "
                "a prior on the kernel variance)"
            )

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """None: a larger noise is a smaller kernel variance."""
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
        utility = sign * scale * (x + jnp.exp(norm.logpdf(x) - log_ndtr(x)))
        return ExpectedStatistics(
            1.0 / variance, utility / variance, log_ndtr(x) - 0.5 * explained_variance / variance
        )


# ------------------------------------------------------------------ targets


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """Targets with Gaussian noise, y ~ N(s, noise). Conjugate: nothing need be augmented.

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
    """

    noise: _Leaf = 1.0

    name: ClassVar[str] = "gaussian"
    observed_part: ClassVar[ObservedPart] = "targets"

    def __post_init__(self) -> None:
        _check_positive(self, "noise")

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """``noise``."""
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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StudentT:
    """Targets with Student-t noise, y = s + scale·t_ν: regression that outliers do not bend.

    The auxiliary variable is the precision of the target's own noise: ω ~ Gamma(ν/2, ν/2) and
    y | s, ω ~ N(s, scale²/ω). Its factor is Gamma((ν + 1)/2, (ν + r²/scale²)/2) with
    r² = E_q (y − s)² = (y − μ)² + e + k̄.

    Parameters
    ----------
    degrees_of_freedom : float
        ν > 0. Up to 1 targets have no mean, up to 2 no variance.
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
    """

    degrees_of_freedom: _Leaf = 4.0
    scale: _Leaf = 1.0

    name: ClassVar[str] = "student_t"
    observed_part: ClassVar[ObservedPart] = "targets"

    def __post_init__(self) -> None:
        _make_plain(self, "degrees_of_freedom")
        degrees = self.degrees_of_freedom
        if isinstance(degrees, Distribution) or not may_be_positive(degrees):
            raise ValueError(
                f"StudentT degrees_of_freedom is {degrees}; expected a positive finite number, "
                "such as 4"
            )
        _check_positive(self, "scale")

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """``noise_scale``, which is σ."""
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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NegativeBinomial:
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
        If r is no positive whole number.

    References
    ----------
    Polson, Scott and Windle (2013); Zhou et al. (2012), Lognormal and gamma mixed negative
    binomial regression, ICML.
    """

    total_count: int = field(default=1, metadata={"static": True})

    name: ClassVar[str] = "negative_binomial"
    observed_part: ClassVar[ObservedPart] = "targets"

    def __post_init__(self) -> None:
        if (
            isinstance(self.total_count, bool)
            or not isinstance(self.total_count, int | np.integer)
            or self.total_count < 1
        ):
            raise ValueError(
                f"NegativeBinomial total_count is {self.total_count!r}; expected a positive whole "
                "number"
            )
        object.__setattr__(self, "total_count", int(self.total_count))

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """None: r is a whole number, which no gradient learns."""
        return {}

    def with_values(self, values: dict) -> Self:
        """The same likelihood: it has no hyper-parameters."""
        return self

    def check_observed(self, values: Observations) -> None:
        """Refuse targets that are no counts.

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
                f"target {counts.flat[wrong[0]]} at position {wrong[0]} is no count; "
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
            self._log_choices(count)
            + linear_term * mean
            - trials * _log_two_cosh_half(second_moment),
        )

    def _log_choices(self, count: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """log C(y + r − 1, y)."""
        r = float(self.total_count)
        return gammaln(count + r) - gammaln(count + 1.0) - gammaln(jnp.asarray(r, count.dtype))


# ------------------------------------------------------------------ functions of the second moment


def _polya_gamma_mean(second_moment: Float[Array, "*K"]) -> Float[Array, "*K"]:
    """tanh(c/2)/(2c) from c²; smooth at 0, where it is ¼ (rows of padding have c = 0)."""
    # The first term left out is below 1e-17 of the sum.
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
    """log Γ((ν + 1)/2) − log Γ(ν/2), whose terms cancel to nothing where ν is large."""
    half = 0.5 * degrees
    is_large = half > 30.0
    large = jnp.where(is_large, half, 30.0)
    # Γ(x + ½)/Γ(x) = √x (1 − 1/(8x) + 1/(128x²) + 5/(1024x³) − …), in logs.
    inverse = 1.0 / large
    series = 0.5 * jnp.log(large) - inverse / 8 + inverse**3 / 192 - inverse**5 / 640
    return jnp.where(is_large, series, gammaln(half + 0.5) - gammaln(half))


# ------------------------------------------------------------------ checks


def _make_plain(likelihood: Any, name: str) -> None:
    """Turn a NumPy number into Python's."""
    value = getattr(likelihood, name)
    if isinstance(value, np.number | np.ndarray) and np.ndim(value) == 0:
        object.__setattr__(likelihood, name, float(value))


def _check_positive(likelihood: Any, name: str) -> None:
    """Refuse all but positive numbers and distributions of them."""
    _make_plain(likelihood, name)
    value = getattr(likelihood, name)
    if isinstance(value, list | tuple | dict | None) or not may_be_positive(value):
        raise ValueError(
            f"{type(likelihood).__name__} {name} is {value}; expected a positive finite number or "
            "a NumPyro distribution of one, such as LogNormal"
        )


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
