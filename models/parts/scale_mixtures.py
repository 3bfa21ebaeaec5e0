"""Gaussian scale mixtures ψ, which replace the logistic function in closed-form updates.

A density ψ is a Gaussian scale mixture if ψ(f) ∝ ∫ exp(−ωf²/2) p(ω) dω. Given ω the latent
values are Gaussian. The updates depend on ψ by θ(c) = −ψ'(c)/(c ψ(c)) = E[ω | f = c] alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.nn import softplus
from jaxtyping import Array, Float

from ...datasets.arguments import POSITIVE
from ..numerics.fields import check_fields
from ..numerics.tracing import as_pytree
from .polya_gamma import PolyaGamma

__all__ = [
    "GammaScaleMixture",
    "GaussianScaleMixture",
    "PolyaGammaScaleMixture",
    "ScaleMixture",
    "log_two_cosh_half",
]


def log_two_cosh_half(latent: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """log 2cosh(f/2), without overflow."""
    size = jnp.abs(latent)
    return 0.5 * size + softplus(-size)


@runtime_checkable
class GaussianScaleMixture(Protocol):
    """Protocol of a Gaussian scale mixture ψ."""

    @property
    def distance_to_pole(self) -> float:
        """How far from the real line ψ is analytic and not large; it sets quadrature steps."""
        ...

    @property
    def largest_log_derivative(self) -> float:
        """Largest size of d log ψ/df; it sets how far quadrature nodes reach."""
        ...

    def log_density(self, latent: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """log ψ(f), up to a constant."""
        ...

    def expected_precision(self, tilt: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """θ(c) = E[ω] under q(ω) ∝ p(ω) exp(−ωc²/2)."""
        ...

    def conditional(self, tilt: Float[Array, "*batch"]) -> dist.Distribution:
        """q(ω) ∝ p(ω) exp(−ωc²/2), the distribution of the augmentation variable."""
        ...


@jax.tree_util.register_static
@dataclass(frozen=True)
class PolyaGammaScaleMixture:
    """Pólya-Gamma scale mixture: ψ is the hyperbolic secant, and the model exactly logistic.

    p(ω) = PG(1, 0), q(ω) = PG(1, c), θ(c) = tanh(c/2)/(2c), log ψ(f) = −log 2cosh(f/2).
    Jaakkola's bound with ξ = c gives the same ELBO: 2λ(ξ) = θ(ξ).

    References
    ----------
    Castro-Macías et al. (2024), §3; Polson, Scott and Windle (2013).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from milzoo.models import PolyaGammaScaleMixture
    >>> float(PolyaGammaScaleMixture().expected_precision(jnp.array(0.0)))
    0.25
    """

    @property
    def distance_to_pole(self) -> float:
        """π: cosh(f/2) is zero at ±iπ."""
        return math.pi

    @property
    def largest_log_derivative(self) -> float:
        """½: the derivative of log ψ is −tanh(f/2)/2."""
        return 0.5

    def log_density(self, latent: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """log ψ(f) = −log 2cosh(f/2)."""
        return -log_two_cosh_half(latent)

    def expected_precision(self, tilt: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """θ(c) = tanh(c/2)/(2c), ¼ at c = 0."""
        # Below 1e-4 the first two terms of the series are exact to rounding.
        small = jnp.abs(tilt) < 1e-4
        safe = jnp.where(small, 1.0, tilt)
        return jnp.where(small, 0.25 - tilt**2 / 48, jnp.tanh(safe / 2) / (2 * safe))

    def conditional(self, tilt: Float[Array, "*batch"]) -> dist.Distribution:
        """PG(1, c)."""
        return PolyaGamma(1, tilt)


@as_pytree()
@dataclass(frozen=True)
class GammaScaleMixture:
    """Gamma scale mixture ψ(f) = (β / (β + f²/2))^α, of Student-t shape: a different model.

    p(ω) = Gamma(α, β), q(ω) = Gamma(α, β + c²/2), θ(c) = α/(β + c²/2).

    Parameters
    ----------
    alpha : float
        Shape α > 0 of the Gamma distribution.
    beta : float
        Rate β > 0 of the Gamma distribution.

    Raises
    ------
    ValueError
        If a parameter is not positive.

    Notes
    -----
    With ψ in place of the hyperbolic secant the prior of the latent values is not
    a Gaussian process: p(f) ∝ N(f) ψ(f)·2cosh(f/2). Its posterior may drift to infinity; see
    “Where a Gamma scale mixture leads” in the documentation.

    References
    ----------
    Castro-Macías et al. (2024), §5.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from milzoo.models import GammaScaleMixture, PolyaGammaScaleMixture
    >>> tilt = jnp.array([0.0, 1.0, 4.0])  # c, the root of E f²
    >>> np.array(GammaScaleMixture(alpha=1.0, beta=2.0).expected_precision(tilt), float).round(2)
    array([0.5, 0.4, 0.1])
    >>> np.array(PolyaGammaScaleMixture().expected_precision(tilt), float).round(2)
    array([0.25, 0.23, 0.12])
    """

    alpha: Annotated[float, POSITIVE]
    beta: Annotated[float, POSITIVE]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def distance_to_pole(self) -> float:
        """√(2β (1 − e^{−3/α})): there ψ is e³ times ψ(0); it has branch points at ±i√(2β)."""
        return math.sqrt(-2 * self.beta * math.expm1(-3 / self.alpha))

    @property
    def largest_log_derivative(self) -> float:
        """α/√(2β), at f = ±√(2β)."""
        return self.alpha / math.sqrt(2 * self.beta)

    def log_density(self, latent: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """log ψ(f) = α log β − α log(β + f²/2)."""
        return -self.alpha * jnp.log1p(0.5 * latent**2 / self.beta)

    def expected_precision(self, tilt: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """θ(c) = α/(β + c²/2)."""
        return self.alpha / (self.beta + 0.5 * tilt**2)

    def conditional(self, tilt: Float[Array, "*batch"]) -> dist.Distribution:
        """Gamma(α, β + c²/2)."""
        return dist.Gamma(self.alpha, self.beta + 0.5 * tilt**2)


@jax.tree_util.register_static
@dataclass(frozen=True)
class ScaleMixture:
    """Any other Gaussian scale mixture, given by log ψ; θ by automatic differentiation.

    Its mixing distribution p(ω) has no closed form, so ``VGPMIL.augmented`` and ``gibbs`` refuse
    it; ``coordinate_ascent`` and the samplers of the exact program do not need p(ω).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from milzoo.models import ScaleMixture
    >>> cauchy = ScaleMixture.from_log_density(lambda f: -jnp.log1p(f**2))
    >>> cauchy.expected_precision(jnp.array([0.0, 1.0, 3.0])).tolist()  # 2/(1 + c²)
    [2.0, 1.0, 0.20000000298023224]
    """

    log_psi: Callable[[Float[Array, ""]], Float[Array, ""]]
    distance_to_pole: float = 1.0
    largest_log_derivative: float = 0.5

    @classmethod
    def from_log_density(
        cls,
        log_psi: Callable[[Float[Array, ""]], Float[Array, ""]],
        distance_to_pole: float = 1.0,
    ) -> ScaleMixture:
        """Check that ψ can be a Gaussian scale mixture, and wrap it.

        Parameters
        ----------
        log_psi : callable
            log ψ of a scalar, differentiable twice, symmetric; constants do not matter.
        distance_to_pole : float
            Distance from the real line within which ψ is smooth, about its width at the mode. It
            sets quadrature steps over f: too small a value costs time, too large costs accuracy.
            How far the nodes reach is set by the largest derivative of log ψ up to f = 100.

        Returns
        -------
        ScaleMixture

        Raises
        ------
        ValueError
            If θ(c) = −(log ψ)'(c)/c is not positive and non-increasing in c > 0, as E[ω] under
            p(ω) exp(−ωc²/2) must be.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from milzoo.models import ScaleMixture
        >>> laplace_like = ScaleMixture.from_log_density(lambda f: -jnp.sqrt(1 + f**2))
        >>> round(float(laplace_like.expected_precision(jnp.array(0.0))), 6)
        1.0
        """
        if not (np.isfinite(distance_to_pole) and distance_to_pole > 0):
            raise ValueError(
                f"distance_to_pole is {distance_to_pole}; expected a positive finite number"
            )
        mixture = cls(log_psi, distance_to_pole)
        tilts = jnp.concatenate([jnp.zeros(1), jnp.geomspace(1e-2, 1e2, 81)])
        precision = np.asarray(mixture.expected_precision(tilts))
        slack = 1e-4 * np.abs(precision).max()  # rounding in 32 bit
        if not np.isfinite(precision).all() or (precision <= 0).any():
            raise ValueError(
                "log_psi is not a Gaussian scale mixture: −(log ψ)'(c)/c was "
                f"{precision.min():.3g} somewhere on [0, 100]; expected a positive number "
                "everywhere, as for the hyperbolic secant or a Student-t density"
            )
        if (np.diff(precision) > slack).any():
            raise ValueError(
                "log_psi is not a Gaussian scale mixture: −(log ψ)'(c)/c increases with c; "
                "expected it to fall (log ψ(√x) must be convex in x)"
            )
        return replace(mixture, largest_log_derivative=float((tilts * precision).max()))

    def log_density(self, latent: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """log ψ(f)."""
        return jnp.vectorize(self.log_psi)(latent)

    def expected_precision(self, tilt: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """θ(c) = −(log ψ)'(c)/c, its limit −(log ψ)''(0) at c = 0."""

        def one(c: Float[Array, ""]) -> Float[Array, ""]:
            derivative = jax.grad(self.log_psi)
            small = jnp.abs(c) < 1e-3
            safe = jnp.where(small, 1.0, c)
            return jnp.where(small, -jax.grad(derivative)(c), -derivative(safe) / safe)

        return jnp.vectorize(one)(tilt)

    def conditional(self, tilt: Float[Array, "*batch"]) -> dist.Distribution:
        """Raise an error: the mixing distribution is not known."""
        raise NotImplementedError(
            "ScaleMixture.from_log_density knows log ψ but not its mixing distribution p(ω), which "
            "the augmented program and Gibbs sampling need; use PolyaGammaScaleMixture or "
            "GammaScaleMixture, or an engine that does not augment (coordinate_ascent, nuts, "
            "laplace, svi)"
        )
