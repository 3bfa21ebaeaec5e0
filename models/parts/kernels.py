"""Covariance functions whose parameters are numbers or NumPyro distributions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from math import ceil, sqrt
from typing import Annotated, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# ArviZ, where it was imported first, leaves a lazy module in NumPyro's place. Asked for an
# attribute before any submodule is imported, it loads whole; else NumPyro lacks parts of itself.
from numpyro import __version__ as _  # noqa: F401
from numpyro.distributions import Distribution
from scipy.spatial.distance import pdist

from ..numerics.fields import check_fields
from ..numerics.tracing import as_pytree
from .hyperpriors import Parameter, positive_or_prior

__all__ = [
    "RBF",
    "Cosine",
    "Kernel",
    "Matern32",
    "Matern52",
    "StationaryKernel",
    "median_distance",
]

# Most instances whose pairs are measured.
_MOST_PAIRED = 1024


@dataclass(frozen=True)
class Kernel(ABC):
    """A covariance function k(x, x') = v ρ(x, x') of one prior variance: ρ(x, x) = 1.

    A subclass is a frozen dataclass and a pytree, and tells the correlation ρ.

    Attributes
    ----------
    variance : float or Distribution
        v > 0, the prior variance of latent function values. A NumPyro distribution makes it a site
        ``variance`` of the model, to be inferred.

    Notes
    -----
    JAX arrays are not checked: a gradient by a kernel is a kernel too, and may be negative.
    """

    variance: Annotated[Parameter, positive_or_prior("LogNormal")]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """All parameters, by site name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def priors(self) -> dict[str, Distribution]:
        """The parameters that are to be inferred, by site name."""
        given = self.parameters
        return {name: value for name, value in given.items() if isinstance(value, Distribution)}

    def with_values(self, values: dict) -> Self:
        """Replace parameters by ``values``; names that are no kernel parameter are ignored."""
        names = {field.name for field in fields(self)}
        return replace(self, **{name: v for name, v in values.items() if name in names})

    def covariance(
        self,
        left: Float[Array, "N D"] | Float[np.ndarray, "N D"],
        right: Float[Array, "M D"] | Float[np.ndarray, "M D"],
    ) -> Float[Array, "N M"]:
        """Covariance matrix between two sets of points.

        Parameters
        ----------
        left : array (N, D)
        right : array (M, D)

        Returns
        -------
        array (N, M)
            k(left_n, right_m).
        """
        return self.variance * self.correlation(jnp.asarray(left), jnp.asarray(right))

    @abstractmethod
    def correlation(
        self, left: Float[Array, "N D"], right: Float[Array, "M D"]
    ) -> Float[Array, "N M"]:
        """ρ(left_n, right_m), at most 1 and 1 where both are the same point."""


@dataclass(frozen=True)
class StationaryKernel(Kernel):
    """A kernel of the distance alone, in units of a length scale: ρ = g(‖x − x'‖² / ℓ²).

    Attributes
    ----------
    length_scale : float or Distribution
        ℓ > 0, in units of the features; a distribution makes it the site ``length_scale``.
    """

    length_scale: Annotated[Parameter, positive_or_prior("LogNormal")]

    def correlation(
        self, left: Float[Array, "N D"], right: Float[Array, "M D"]
    ) -> Float[Array, "N M"]:
        """ρ of all pairs, by their squared distances."""
        # ‖x − x'‖² = ‖x‖² + ‖x'‖² − 2xᵀx', around a common centre so that little cancels.
        centre = jnp.mean(right, axis=0, keepdims=True)
        left, right = left - centre, right - centre
        squared_distance = (
            jnp.sum(left**2, axis=1)[:, None]
            + jnp.sum(right**2, axis=1)[None, :]
            - 2.0 * left @ right.T
        )
        return self.at_squared_distance(jnp.maximum(squared_distance, 0.0) / self.length_scale**2)

    @abstractmethod
    def at_squared_distance(self, squared: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """The correlation g at squared distances in units of ℓ²."""


@as_pytree()
@dataclass(frozen=True)
class RBF(StationaryKernel):
    """Squared-exponential kernel k(x, x') = v · exp(−‖x − x'‖² / (2ℓ²)).

    Parameters
    ----------
    variance, length_scale : float or Distribution
        v and ℓ, as of every `StationaryKernel`.

    Raises
    ------
    ValueError
        If a number is not positive and finite, or a distribution has other values.

    Notes
    -----
    The paper prints exp(−‖x − x'‖/(2ℓ)) without the squares, and its ℓ = 30 for 30 features is our
    ℓ² = 30.

    Examples
    --------
    >>> kernel = RBF(variance=2.0, length_scale=1.0)
    >>> float(kernel.covariance(np.zeros((1, 3)), np.zeros((1, 3)))[0, 0])
    2.0
    """

    def at_squared_distance(self, squared: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """exp(−r²/2)."""
        return jnp.exp(-0.5 * squared)


@as_pytree()
@dataclass(frozen=True)
class Matern32(StationaryKernel):
    """Matérn kernel of smoothness 3/2, k = v (1 + √3 r) exp(−√3 r) with r = ‖x − x'‖/ℓ.

    Its functions have one derivative, those of `RBF` all.

    Parameters
    ----------
    variance, length_scale : float or Distribution
        v and ℓ, as of every `StationaryKernel`.

    References
    ----------
    Rasmussen and Williams (2006), equation 4.17.

    Examples
    --------
    >>> kernel = Matern32(variance=1.0, length_scale=3.0**0.5)
    >>> round(float(kernel.covariance(np.zeros((1, 1)), np.ones((1, 1)))[0, 0]), 4)  # 2/e
    0.7358
    """

    def at_squared_distance(self, squared: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """(1 + √3 r) exp(−√3 r)."""
        distance = sqrt(3.0) * _root(squared)
        return (1.0 + distance) * jnp.exp(-distance)


@as_pytree()
@dataclass(frozen=True)
class Matern52(StationaryKernel):
    """Matérn kernel of smoothness 5/2, k = v (1 + √5 r + 5r²/3) exp(−√5 r) with r = ‖x − x'‖/ℓ.

    Its functions have two derivatives.

    Parameters
    ----------
    variance, length_scale : float or Distribution
        v and ℓ, as of every `StationaryKernel`.

    References
    ----------
    Rasmussen and Williams (2006), equation 4.17.

    Examples
    --------
    >>> kernel = Matern52(variance=1.0, length_scale=5.0**0.5)
    >>> round(float(kernel.covariance(np.zeros((1, 1)), np.ones((1, 1)))[0, 0]), 4)  # 7/3e
    0.8584
    """

    def at_squared_distance(self, squared: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """(1 + √5 r + 5r²/3) exp(−√5 r)."""
        distance = sqrt(5.0) * _root(squared)
        return (1.0 + distance + 5.0 / 3.0 * squared) * jnp.exp(-distance)


@as_pytree()
@dataclass(frozen=True)
class Cosine(Kernel):
    """Kernel of the angle between two vectors, k(x, x') = v xᵀx' / (‖x‖ ‖x'‖).

    Its functions are linear in x/‖x‖: the length of a vector, such as that of a text, means
    nothing. A vector of zeros has no angle, and no correlation with others.

    Parameters
    ----------
    variance : float or Distribution
        v, as of every `Kernel`.

    Examples
    --------
    >>> kernel = Cosine(variance=2.0)
    >>> x, z = np.array([[3.0, 4.0]]), np.array([[30.0, 40.0], [-4.0, 3.0]])
    >>> np.round(kernel.covariance(x, z), 6).tolist()
    [[2.0, 0.0]]
    """

    def correlation(
        self, left: Float[Array, "N D"], right: Float[Array, "M D"]
    ) -> Float[Array, "N M"]:
        """The cosines of the angles of all pairs."""
        return _of_length_one(left) @ _of_length_one(right).T


def _root(squared: Float[Array, "N M"]) -> Float[Array, "N M"]:
    """√s with the derivative 0 at s = 0, where a distance has none."""
    is_apart = squared > 0
    return jnp.where(is_apart, jnp.sqrt(jnp.where(is_apart, squared, 1.0)), 0.0)


def _of_length_one(rows: Float[Array, "N D"]) -> Float[Array, "N D"]:
    squared = jnp.sum(rows**2, axis=1, keepdims=True)
    return rows / jnp.sqrt(jnp.where(squared > 0, squared, 1.0))


def median_distance(instances: Float[np.ndarray, "N D"]) -> float:
    """Median Euclidean distance between distinct instances, a usual length scale.

    Features that do not vary have no part in it, and neither have repeated instances. Of more than
    1,024 instances it takes every second, third, ….

    Parameters
    ----------
    instances : array (N, D)

    Returns
    -------
    float
        √D if all instances are alike.

    References
    ----------
    Garreau, Jitkrittum and Kanagawa (2018), large sample analysis of the median heuristic.

    Examples
    --------
    >>> median_distance(np.array([[0.0, 7.0], [0.0, 7.0], [3.0, 7.0], [9.0, 7.0]]))
    6.0
    """
    stride = ceil(len(instances) / _MOST_PAIRED)
    distance = pdist(instances[::stride])
    apart = distance[distance > 0]
    return float(np.median(apart)) if apart.size else float(np.sqrt(instances.shape[1]))
