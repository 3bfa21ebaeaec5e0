"""Protocol of mixture models: components of either class, for plots.

`plot_components` and `plot_scene` take posteriors of each model that is a `ComponentModel`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from ...datasets.bags import Bags
from ..model import Draws

__all__ = ["ComponentModel", "Components", "NamedComponents"]


class Components(NamedTuple):
    """Gaussian components of the negative and of the positive class.

    Attributes
    ----------
    weight : array (2, K)
        Weights within each class.
    mean : array (2, K, D)
    root : array (2, K, D, D) or (2, K, D)
        L of the precisions LLᵀ, or √λ where these are diagonal.
    occupancy : array (2, K)
        Expected number of instances.
    """

    weight: Float[np.ndarray, "2 K"]
    mean: Float[np.ndarray, "2 K D"]
    root: Float[np.ndarray, "2 K ..."]
    occupancy: Float[np.ndarray, "2 K"]


@runtime_checkable
class ComponentModel(Protocol):
    """A model whose classes are mixtures of Gaussian components."""

    def weights(self, draws: Draws) -> Float[np.ndarray, "S 2 K"]:
        """Weights of the components under each draw of the latent sites."""
        ...

    def occupied(self, estimands: Draws) -> Float[np.ndarray, "S 2"]:
        """Number of components with an instance in them, from the result of ``estimands_of``."""
        ...

    def typical_components(self, draws: Draws, estimands: Draws, bags: Bags) -> Components:
        """Components of the most typical draw."""
        ...


@runtime_checkable
class NamedComponents(Protocol):
    """An approximation of a `ComponentModel` in which a component is the same in all draws."""

    def components(self, model: Any) -> Components:
        """The expected components."""
        ...
