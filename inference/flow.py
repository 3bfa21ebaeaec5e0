"""An approximation that is no Gaussian: inverse autoregressive flows in whitened coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.example_libraries import stax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int
from numpyro.distributions.flows import InverseAutoregressiveTransform
from numpyro.distributions.transforms import PermuteTransform
from numpyro.infer.autoguide import AutoIAFNormal
from numpyro.nn import AutoregressiveNN

from ..models.numerics.tracing import as_pytree
from . import serialization
from .gaussian import TransportedNormal

__all__ = ["FlowApproximation", "flow_of_guide"]


@serialization.register
@as_pytree()
@dataclass(frozen=True, eq=False)
class FlowApproximation(TransportedNormal):
    """q of v = T(ε), ε ~ N(0, I): flows of Kingma et al. (2016), one after another.

    Each is z ↦ μ(z) + σ(z) z, element p of μ and σ from the elements before p by a network; between
    two of them the order of the elements is reversed.

    Attributes
    ----------
    weights : array (F, K)
        Of the networks of F flows, each as one vector.
    order : array (P,)
        Position in the last flow of each coordinate of ``whitened_program``.
    """

    weights: Float[np.ndarray | Array, "F K"]
    order: Int[np.ndarray | Array, " P"]

    @property
    def size(self) -> int:
        """The number of coordinates P."""
        return len(self.order)

    def distribution(self) -> dist.TransformedDistribution:
        """q over the flat vector."""
        standard = dist.Normal(jnp.zeros(self.size), 1.0).to_event(1)
        return dist.TransformedDistribution(standard, self._transforms(), validate_args=False)

    def from_standard(
        self, noise: Float[Array, " P"]
    ) -> tuple[Float[Array, " P"], Float[Array, ""]]:
        """T(ε) and log |dT/dε|."""
        vector, log_jacobian = noise, jnp.zeros((), noise.dtype)
        for transform in self._transforms():
            moved, between = transform.call_with_intermediates(vector)
            log_jacobian += transform.log_abs_det_jacobian(vector, moved, between)
            vector = moved
        return vector, log_jacobian

    def _transforms(self) -> list[dist.transforms.Transform]:
        size = self.size
        initial, network = _network(size)
        shapes = jax.eval_shape(lambda key: initial(key, (size,))[1], jax.random.key(0))
        _, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes))
        reverse = PermuteTransform(jnp.arange(size)[::-1])
        transforms: list[dist.transforms.Transform] = []
        for number in range(len(self.weights)):
            if number:
                transforms.append(reverse)
            weights = unravel(jnp.asarray(self.weights[number]))
            own = InverseAutoregressiveTransform(lambda z, w=weights: network(w, z))
            transforms.append(own)
        return [*transforms, PermuteTransform(jnp.asarray(self.order))]


def _network(size: int) -> tuple[Callable, Callable]:
    """The network of one flow, as NumPyro's `AutoIAFNormal` has it."""
    return AutoregressiveNN(size, [size, size], permutation=jnp.arange(size), nonlinearity=stax.Elu)


def flow_of_guide(guide: AutoIAFNormal, parameters: dict[str, Any]) -> FlowApproximation:
    """What a guide of NumPyro has learned, in the order of `WhitenedProgram`.

    Parameters
    ----------
    guide : AutoIAFNormal
        With sites.
    parameters : dict
        Of its flows, by NumPyro's names.

    Returns
    -------
    FlowApproximation
    """
    of_flows = [parameters[f"auto_arn__{n}$params"] for n in range(guide.num_flows)]
    # The guide has sites one after another as the program has them, a flat pytree by their names.
    order = ravel_pytree(guide._unpack_latent(jnp.arange(guide.latent_dim)))[0]
    return FlowApproximation(jnp.stack([ravel_pytree(one)[0] for one in of_flows]), order)
