"""Kernels of tinygp, with numbers or priors for their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...datasets.arguments import check
from ..numerics.representation import as_text
from ..numerics.tracing import as_pytree
from .hyperpriors import Parameters, positive_for_each_or_prior
from .kernels import Kernel

__all__ = ["TinyGPKernel"]

_RULE = positive_for_each_or_prior("LogNormal")


@as_pytree()
@dataclass(frozen=True)
class TinyGPKernel(Kernel):
    """A covariance function of tinygp as the kernel of a model.

    Parameters
    ----------
    kernel : tinygp.kernels.Kernel or callable
        A kernel with fixed numbers; or a function of named parameters that returns one. Programs
        are compiled anew for another function: it stands at the top of a module.
    values : mapping of str to float, array (D,) or Distribution
        The positive parameters of the function, which are sites of the model by these names.

    Raises
    ------
    ValueError
        If a value is neither a positive number nor a prior of one, or a kernel with fixed numbers
        is given values.

    Notes
    -----
    tinygp compares all pairs of points one by one, which takes more memory and time than the
    products of the kernels here.

    Examples
    --------
    >>> import numpy as np
    >>> from tinygp import kernels
    >>> from milzoo.models import VWSGP, TinyGPKernel
    >>> def rough(variance, length_scale):
    ...     return variance * kernels.Exp(length_scale, distance=kernels.L2Distance())
    >>> kernel = TinyGPKernel(rough, {"variance": 5.0, "length_scale": 2.0})
    >>> np.array(kernel.covariance(np.zeros((1, 1)), np.array([[0.0], [2.0]])), float).round(2)
    array([[5.  , 1.84]])
    >>> VWSGP(kernel, inducing_points=np.array([[0.0], [1.0]])).hyperparameters
    {'variance': 5.0, 'length_scale': 2.0}
    """

    kernel: Callable[..., Any]
    values: Mapping[str, Parameters] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            check(f"TinyGPKernel {name}", value, _RULE, as_text=as_text)
        if self.values and self._is_made:
            raise ValueError(
                f"values are {dict(self.values)}, but the kernel has its numbers; give a function "
                "of these that returns the kernel"
            )

    @property
    def parameters(self) -> dict[str, Parameters]:
        """The values, by site name."""
        return dict(self.values)

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Replace parameters by ``values``; names that are not kernel parameters are ignored."""
        changed = {name: values.get(name, value) for name, value in self.values.items()}
        return replace(self, values=changed)

    def covariance(
        self,
        left: Float[Array | np.ndarray, "N D"],
        right: Float[Array | np.ndarray, "M D"],
    ) -> Float[Array, "N M"]:
        """Covariance matrix between two sets of points, as tinygp computes it."""
        return self._made()(jnp.asarray(left), jnp.asarray(right))

    def variance_at(self, points: Float[Array | np.ndarray, "N D"]) -> Float[Array, " N"]:
        """Diagonal of the covariance, as tinygp has it."""
        return self._made()(jnp.asarray(points))

    @property
    def _is_made(self) -> bool:
        return hasattr(self.kernel, "evaluate")

    def _made(self) -> Any:
        return self.kernel if self._is_made else self.kernel(**self.values)
