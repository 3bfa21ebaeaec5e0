"""Covariance functions whose parameters are numbers or NumPyro distributions."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil
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

__all__ = ["RBF", "median_distance"]

# Most instances whose pairs are measured.
_MOST_PAIRED = 1024


@as_pytree()
@dataclass(frozen=True)
class RBF:
    """Squared-exponential kernel k(x, x') = v · exp(−‖x − x'‖² / (2ℓ²)).

    Parameters
    ----------
    variance : float or Distribution
        v > 0, the prior variance of latent function values. A NumPyro distribution makes it a site
        ``variance`` of the model, to be inferred.
    length_scale : float or Distribution
        ℓ > 0, in units of the features; a distribution makes it the site ``length_scale``.

    Raises
    ------
    ValueError
        If a number is not positive and finite, or a distribution has other values.

    Notes
    -----
    JAX arrays are not checked: a gradient by a kernel is a kernel too, and may be negative.

    The paper prints exp(−‖x − x'‖/(2ℓ)) without the squares, and its ℓ = 30 for 30 features is our
    ℓ² = 30.

    Examples
    --------
    >>> kernel = RBF(variance=2.0, length_scale=1.0)
    >>> float(kernel.covariance(np.zeros((1, 3)), np.zeros((1, 3)))[0, 0])
    2.0
    """

    variance: Annotated[Parameter, positive_or_prior("LogNormal")]
    length_scale: Annotated[Parameter, positive_or_prior("LogNormal")]

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
        left, right = jnp.asarray(left), jnp.asarray(right)
        # ‖x − x'‖² = ‖x‖² + ‖x'‖² − 2xᵀx', around a common centre so that little cancels.
        centre = jnp.mean(right, axis=0, keepdims=True)
        left, right = left - centre, right - centre
        squared_distance = (
            jnp.sum(left**2, axis=1)[:, None]
            + jnp.sum(right**2, axis=1)[None, :]
            - 2.0 * left @ right.T
        )
        squared_distance = jnp.maximum(squared_distance, 0.0)
        return self.variance * jnp.exp(-0.5 * squared_distance / self.length_scale**2)


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
