"""Covariance functions whose parameters are numbers or NumPyro distributions, and their algebra."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import product
from math import ceil, sqrt
from operator import add, mul
from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# ArviZ, where it was imported first, leaves a lazy module in NumPyro's place. Asked for an
# attribute before any submodule is imported, it loads whole; else NumPyro lacks parts of itself.
from numpyro import __version__ as _  # noqa: F401
from numpyro.distributions import Distribution
from scipy.spatial.distance import pdist

from ..numerics.fields import check_fields
from ..numerics.tracing import as_pytree, evaluated_apart_from_traces
from .hyperpriors import (
    LARGEST_VARIANCE,
    Parameter,
    Parameters,
    largest_value,
    positive_for_each_or_prior,
    positive_or_prior,
    prior_range,
    shape_of,
)

__all__ = [
    "RBF",
    "CorrelationKernel",
    "Cosine",
    "Kernel",
    "Linear",
    "Matern32",
    "Matern52",
    "Product",
    "StationaryKernel",
    "Sum",
    "median_distance",
    "squared_distances",
]

# Most instances whose pairs are measured.
_MOST_PAIRED = 1024

_Arrays = Array | np.ndarray


@dataclass(frozen=True)
class Kernel(ABC):
    """A covariance function k(x, x'), which `Sum` and `Product` (``+`` and ``*``) combine.

    A subclass is a frozen dataclass and a pytree. It defines the covariances of all pairs of two
    sets of points, and the variance k(x, x) at each point. Its fields are its parameters: positive
    numbers, or NumPyro distributions to infer them by.

    Notes
    -----
    JAX arrays are not checked: a gradient by a kernel is a kernel too, and may be negative.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.models import RBF, Kernel, Linear
    >>> def prior_sd(kernel: Kernel, points: np.ndarray) -> np.ndarray:
    ...     return np.sqrt(kernel.variance_at(points))
    >>> prior_sd(RBF(4.0, 1.0) + Linear(5.0), np.array([[0.0], [1.0]])).tolist()
    [2.0, 3.0]
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def for_instances(
        cls,
        instances: Float[np.ndarray, "N D"],
        variance: Parameter,
        length_scale: Parameters | None = None,
    ) -> Self:
        """A kernel for these instances, of this prior variance.

        Parameters
        ----------
        instances : array (N, D)
        variance : float or Distribution
        length_scale : float, array (D,), Distribution or None
            None for one from the instances, where the kernel has any.

        Returns
        -------
        Self

        Raises
        ------
        ValueError
            If the kernel has no length scale and one is given.
        """
        if length_scale is not None:
            raise ValueError(
                f"length_scale is {length_scale}, but {cls.__name__} has none; leave it out"
            )
        return cls(variance=variance)  # pyright: ignore[reportCallIssue]

    @property
    def parameters(self) -> dict[str, Parameters]:
        """All parameters, by site name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def priors(self) -> dict[str, Distribution]:
        """The parameters that are to be inferred, by site name."""
        given = self.parameters
        return {name: value for name, value in given.items() if isinstance(value, Distribution)}

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Replace parameters by ``values``; names that are not kernel parameters are ignored."""
        names = {field.name for field in fields(self)}
        return replace(self, **{name: v for name, v in values.items() if name in names})

    def check_width(self, num_features: int) -> None:
        """Refuse points of another number of features, where parameters are for each feature.

        Raises
        ------
        ValueError
            If a parameter has another length.
        """
        for name, value in self.parameters.items():
            shape = shape_of(value)
            if shape not in ((), (num_features,)):
                raise ValueError(
                    f"{type(self).__name__} {name} has shape {shape}, but there are "
                    f"{num_features} features; expected one number, or one for each feature"
                )

    @abstractmethod
    def covariance(
        self, left: Float[_Arrays, "N D"], right: Float[_Arrays, "M D"]
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

    @abstractmethod
    def variance_at(self, points: Float[_Arrays, "N D"]) -> Float[Array, " N"]:
        """Prior variance k(x, x) at each point.

        Parameters
        ----------
        points : array (N, D)

        Returns
        -------
        array (N,)
        """

    def largest_variance(
        self, points: Float[_Arrays, "N D"], draws: Mapping[str, np.ndarray]
    ) -> float:
        """Largest prior variance at some points, under any of the draws.

        Parameters
        ----------
        points : array (N, D)
        draws : mapping of str to array (S, …)
            Of the parameters that have a prior. Of those that are not there, the ends of the
            central 99.98 % of the prior are tried, in all combinations; the result is at most 64.

        Returns
        -------
        float
        """
        found = {name: np.asarray(draws[name]) for name in self.priors if name in draws}
        unknown = [
            [(name, end) for end in prior_range(prior)]
            for name, prior in self.priors.items()
            if name not in draws
        ]
        with evaluated_apart_from_traces():
            largest = max(
                float(_largest_variance(self.with_values(dict(ends)), points, found))
                for ends in product(*unknown)
            )
        return min(largest, LARGEST_VARIANCE) if unknown else largest

    def __add__(self, other: Kernel) -> Sum:
        """The kernel of the sum of two independent functions."""
        return Sum((*_terms(self, Sum), *_terms(other, Sum)))

    def __mul__(self, other: Kernel) -> Product:
        """The product of two kernels."""
        return Product((*_terms(self, Product), *_terms(other, Product)))


@jax.jit
def _largest_variance(
    kernel: Kernel, points: Float[Array, "N D"], draws: dict[str, Array]
) -> Float[Array, ""]:
    if not draws:
        return kernel.variance_at(points).max()
    under = jax.lax.map(lambda site: kernel.with_values(site).variance_at(points).max(), draws)
    return under.max()


@dataclass(frozen=True)
class CorrelationKernel(Kernel):
    """A kernel of one prior variance everywhere: k(x, x') = v ρ(x, x') with ρ(x, x) = 1.

    A subclass defines the correlation ρ.

    Attributes
    ----------
    variance : float or Distribution
        v > 0, the prior variance of latent function values. A NumPyro distribution makes it a site
        ``variance`` of the model, to be inferred.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from milzoo.models import CorrelationKernel
    >>> @dataclass(frozen=True)
    ... class Agreement(CorrelationKernel):
    ...     def correlation(self, left, right):
    ...         return jnp.mean(left[:, None] == right[None], axis=2)
    >>> points = np.array([[0.0, 0.0], [0.0, 1.0]])
    >>> Agreement(variance=2.0).covariance(points[1:], points).tolist()
    [[1.0, 2.0]]
    """

    variance: Annotated[Parameter, positive_or_prior("LogNormal")]

    def covariance(
        self, left: Float[_Arrays, "N D"], right: Float[_Arrays, "M D"]
    ) -> Float[Array, "N M"]:
        """Covariances v ρ of all pairs."""
        return self.variance * self.correlation(jnp.asarray(left), jnp.asarray(right))

    def variance_at(self, points: Float[_Arrays, "N D"]) -> Float[Array, " N"]:
        """v at every point."""
        return jnp.full(points.shape[0], self.variance)

    def largest_variance(
        self, points: Float[_Arrays, "N D"], draws: Mapping[str, np.ndarray]
    ) -> float:
        """Largest prior variance v, under any of the draws."""
        return largest_value(draws.get("variance", self.variance))

    @abstractmethod
    def correlation(
        self, left: Float[Array, "N D"], right: Float[Array, "M D"]
    ) -> Float[Array, "N M"]:
        """ρ(left_n, right_m), at most 1 and 1 where both are the same point."""


@dataclass(frozen=True)
class StationaryKernel(CorrelationKernel):
    """A kernel of the distance alone, in units of a length scale: ρ = g(‖x − x'‖² / ℓ²).

    Attributes
    ----------
    length_scale : float, array (D,) or Distribution of either
        ℓ > 0, in units of the features, or ℓ_d of each feature (automatic relevance determination):
        g(Σ_d (x_d − x'_d)² / ℓ_d²), where a feature with a large ℓ_d hardly matters. A distribution
        makes it the site ``length_scale``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from milzoo.models import StationaryKernel
    >>> @dataclass(frozen=True)
    ... class RationalQuadratic(StationaryKernel):
    ...     def at_squared_distance(self, squared):
    ...         return 1.0 / (1.0 + 0.5 * squared)
    >>> kernel = RationalQuadratic(variance=1.0, length_scale=np.array([1.0, 100.0]))
    >>> np.array(kernel.covariance(np.zeros((1, 2)), np.eye(2)), float).round(2)
    array([[0.67, 1.  ]])
    """

    length_scale: Annotated[Parameters, positive_for_each_or_prior("LogNormal")]

    @classmethod
    def for_instances(
        cls,
        instances: Float[np.ndarray, "N D"],
        variance: Parameter,
        length_scale: Parameters | None = None,
    ) -> Self:
        """A kernel of this variance; None for the median distance between instances as ℓ."""
        of_data = median_distance(instances) if length_scale is None else length_scale
        return cls(variance=variance, length_scale=of_data)

    def correlation(
        self, left: Float[Array, "N D"], right: Float[Array, "M D"]
    ) -> Float[Array, "N M"]:
        """ρ of all pairs, by their squared distances."""
        length_scale = self.length_scale
        if jnp.ndim(length_scale):
            left, right, length_scale = left / length_scale, right / length_scale, 1.0
        return self.at_squared_distance(squared_distances(left, right) / length_scale**2)

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
    >>> import numpy as np
    >>> from milzoo.models import RBF
    >>> kernel = RBF(variance=2.0, length_scale=1.0)
    >>> float(kernel.covariance(np.zeros((1, 3)), np.zeros((1, 3)))[0, 0])
    2.0
    """

    def at_squared_distance(self, squared: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """Correlation exp(−r²/2), with r² in units of ℓ²."""
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
    >>> import numpy as np
    >>> from milzoo.models import Matern32
    >>> kernel = Matern32(variance=1.0, length_scale=3.0**0.5)
    >>> round(float(kernel.covariance(np.zeros((1, 1)), np.ones((1, 1)))[0, 0]), 4)  # 2/e
    0.7358
    """

    def at_squared_distance(self, squared: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """Correlation (1 + √3 r) exp(−√3 r), with r in units of ℓ."""
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
    >>> import numpy as np
    >>> from milzoo.models import Matern52
    >>> kernel = Matern52(variance=1.0, length_scale=5.0**0.5)
    >>> round(float(kernel.covariance(np.zeros((1, 1)), np.ones((1, 1)))[0, 0]), 4)  # 7/3e
    0.8584
    """

    def at_squared_distance(self, squared: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """Correlation (1 + √5 r + 5r²/3) exp(−√5 r), with r in units of ℓ."""
        distance = sqrt(5.0) * _root(squared)
        return (1.0 + distance + 5.0 / 3.0 * squared) * jnp.exp(-distance)


@as_pytree()
@dataclass(frozen=True)
class Cosine(CorrelationKernel):
    """Kernel of the angle between two vectors, k(x, x') = v xᵀx' / (‖x‖ ‖x'‖).

    Its functions are linear in x/‖x‖: the length of a vector, such as that of a text, has
    no effect. A vector of zeros has no angle, and its latent value is 0.

    Parameters
    ----------
    variance : float or Distribution
        v, as of every `CorrelationKernel`.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.models import Cosine
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

    def variance_at(self, points: Float[_Arrays, "N D"]) -> Float[Array, " N"]:
        """v, or 0 for a vector of zeros."""
        return self.variance * jnp.any(jnp.asarray(points) != 0, axis=1)


@as_pytree()
@dataclass(frozen=True)
class Linear(Kernel):
    """Kernel of functions that are linear in the features, k(x, x') = v xᵀx'.

    f(x) = wᵀx with w ~ N(0, vI). A latent value has the prior variance v‖x‖², another one at each
    point, and is 0 where all features are: centre them, or add ``RBF`` or a feature that is 1.

    Parameters
    ----------
    variance : float or Distribution
        v > 0, of each weight. A NumPyro distribution makes it the site ``variance``.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.models import Linear
    >>> kernel = Linear(variance=2.0)
    >>> np.asarray(kernel.variance_at(np.array([[3.0, 4.0], [0.0, 1.0]]))).tolist()
    [50.0, 2.0]
    """

    variance: Annotated[Parameter, positive_or_prior("LogNormal")]

    @classmethod
    def for_instances(
        cls,
        instances: Float[np.ndarray, "N D"],
        variance: Parameter,
        length_scale: Parameters | None = None,
    ) -> Self:
        """A kernel by which the instances have this prior variance on average.

        A prior is taken as that of v, the variance of a weight.
        """
        kernel = super().for_instances(instances, variance, length_scale)
        if isinstance(variance, Distribution):
            return kernel
        squared = float(np.mean(np.sum(np.square(instances), axis=1)))
        return cls(variance=variance / squared if squared else variance)

    def covariance(
        self, left: Float[_Arrays, "N D"], right: Float[_Arrays, "M D"]
    ) -> Float[Array, "N M"]:
        """Covariances v xᵀx' of all pairs."""
        return self.variance * (jnp.asarray(left) @ jnp.asarray(right).T)

    def variance_at(self, points: Float[_Arrays, "N D"]) -> Float[Array, " N"]:
        """v‖x‖² at each point."""
        return self.variance * jnp.sum(jnp.asarray(points) ** 2, axis=1)


@dataclass(frozen=True)
class _Combination(Kernel):
    """Kernels combined to one; each parameter has the number of its kernel in its name."""

    parts: Sequence[Kernel]

    def __post_init__(self) -> None:
        parts = tuple(self.parts)
        if len(parts) < 2 or not all(isinstance(one, Kernel) for one in parts):
            raise ValueError(
                f"{type(self).__name__} parts are {parts}; expected two kernels or more, as in "
                "RBF(2.0, 1.0) + Linear(0.1)"
            )
        object.__setattr__(self, "parts", parts)  # a file has a list

    @property
    def parameters(self) -> dict[str, Parameters]:
        """Parameters of all, as ``variance_1``, ``length_scale_1``, ``variance_2``."""
        return {
            f"{name}_{number}": value
            for number, kernel in enumerate(self.parts, 1)
            for name, value in kernel.parameters.items()
        }

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Replace parameters by ``values``; names that are not kernel parameters are ignored."""
        changed = [
            kernel.with_values(_without_number(values, number))
            for number, kernel in enumerate(self.parts, 1)
        ]
        return replace(self, parts=tuple(changed))


@as_pytree()
@dataclass(frozen=True)
class Sum(_Combination):
    """Sum of kernels, k = Σ_i k_i: of a function that is a sum of independent ones.

    Parameters
    ----------
    parts : sequence of Kernel
        Their parameters are sites ``variance_1``, ``length_scale_1``, ``variance_2``, ….

    Examples
    --------
    >>> from milzoo.models import RBF, Linear, Sum
    >>> kernel = RBF(variance=2.0, length_scale=1.0) + Linear(variance=0.5)
    >>> isinstance(kernel, Sum), kernel.parameters
    (True, {'variance_1': 2.0, 'length_scale_1': 1.0, 'variance_2': 0.5})
    """

    def covariance(
        self, left: Float[_Arrays, "N D"], right: Float[_Arrays, "M D"]
    ) -> Float[Array, "N M"]:
        """Covariances Σ_i k_i of all pairs."""
        return reduce(add, (term.covariance(left, right) for term in self.parts))

    def variance_at(self, points: Float[_Arrays, "N D"]) -> Float[Array, " N"]:
        """Σ_i k_i(x, x) at each point."""
        return reduce(add, (term.variance_at(points) for term in self.parts))


@as_pytree()
@dataclass(frozen=True)
class Product(_Combination):
    """Product of kernels, k = Π_i k_i, large only where all of them are.

    Parameters
    ----------
    parts : sequence of Kernel
        Their parameters are sites ``variance_1``, ``length_scale_1``, ``length_scale_2``, …. The
        variances of all but the first, where they are numbers, are not parameters: the
        data determine their product alone.

    Examples
    --------
    >>> from milzoo.models import RBF, Cosine, Product
    >>> kernel = RBF(variance=2.0, length_scale=1.0) * Cosine(variance=1.0)
    >>> isinstance(kernel, Product), kernel.parameters
    (True, {'variance_1': 2.0, 'length_scale_1': 1.0})
    """

    @property
    def parameters(self) -> dict[str, Parameters]:
        """Parameters of all, without the numbers that are redundant."""
        redundant = {
            f"variance_{number}"
            for number, factor in enumerate(self.parts, 1)
            if number > 1 and "variance" not in factor.priors
        }
        given = super().parameters
        return {name: value for name, value in given.items() if name not in redundant}

    def covariance(
        self, left: Float[_Arrays, "N D"], right: Float[_Arrays, "M D"]
    ) -> Float[Array, "N M"]:
        """Covariances Π_i k_i of all pairs."""
        return reduce(mul, (factor.covariance(left, right) for factor in self.parts))

    def variance_at(self, points: Float[_Arrays, "N D"]) -> Float[Array, " N"]:
        """Π_i k_i(x, x) at each point."""
        return reduce(mul, (factor.variance_at(points) for factor in self.parts))


def squared_distances(left: Float[Array, "N D"], right: Float[Array, "M D"]) -> Float[Array, "N M"]:
    """‖x − x'‖² of all pairs."""
    # ‖x‖² + ‖x'‖² − 2xᵀx', around a common centre so that little cancels.
    centre = jnp.mean(right, axis=0, keepdims=True)
    left, right = left - centre, right - centre
    squared = (
        jnp.sum(left**2, axis=1)[:, None]
        + jnp.sum(right**2, axis=1)[None, :]
        - 2.0 * left @ right.T
    )
    return jnp.maximum(squared, 0.0)


def _terms(kernel: Kernel, kind: type[_Combination]) -> Sequence[Kernel]:
    """The kernels that one is combined of, itself if it is not of that kind."""
    return kernel.parts if isinstance(kernel, kind) else (kernel,)


def _without_number(values: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Values of the kernel with this number, by its own names."""
    ending = f"_{number}"
    return {
        name.removesuffix(ending): value for name, value in values.items() if name.endswith(ending)
    }


def _root(squared: Float[Array, "N M"]) -> Float[Array, "N M"]:
    """√s with the derivative 0 at s = 0, where a distance has none."""
    is_apart = squared > 0
    return jnp.where(is_apart, jnp.sqrt(jnp.where(is_apart, squared, 1.0)), 0.0)


def _of_length_one(rows: Float[Array, "N D"]) -> Float[Array, "N D"]:
    squared = jnp.sum(rows**2, axis=1, keepdims=True)
    return rows / jnp.sqrt(jnp.where(squared > 0, squared, 1.0))


def median_distance(instances: Float[np.ndarray, "N D"]) -> float:
    """Median Euclidean distance between distinct instances, a usual length scale.

    Features that do not vary and repeated instances have no effect. Of more than
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
    >>> import numpy as np
    >>> from milzoo.models.parts.kernels import median_distance
    >>> median_distance(np.array([[0.0, 7.0], [0.0, 7.0], [3.0, 7.0], [9.0, 7.0]]))
    6.0
    """
    stride = ceil(len(instances) / _MOST_PAIRED)
    distance = pdist(instances[::stride])
    apart = distance[distance > 0]
    return float(np.median(apart)) if apart.size else float(np.sqrt(instances.shape[1]))
