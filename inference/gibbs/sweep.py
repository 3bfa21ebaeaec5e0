"""Gibbs sweeps: the protocol, and the registry of the models that have one."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array

from ...datasets.bags import Bags

__all__ = ["Sweep", "sweep_of"]


@runtime_checkable
class Sweep(Protocol):
    """The exact conditionals of a model as pure functions of a state; a pytree."""

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the sites of a state."""
        ...

    def init(self, key: Array, /) -> Any:
        """The initial state, which carries its own key."""
        ...

    def step(self, state: Any, /) -> Any:
        """One sweep over all conditionals."""
        ...

    def sites(self, state: Any, /) -> dict[str, Array]:
        """The state as sites of the model."""
        ...


@singledispatch
def sweep_of(model: Any, bags: Bags) -> Sweep:
    """The Gibbs sweep of a model on bags; ``sweep_of.register`` makes one known, by class.

    Parameters
    ----------
    model : Model
        With numbers as hyper-parameters.
    bags : Bags

    Returns
    -------
    Sweep
        Of bags in arrays of sizes that programs are compiled for.

    Raises
    ------
    NotImplementedError
        If the model has none.
    """
    raise NotImplementedError(f"{type(model).__name__} has no Gibbs sampler; sample it with nuts")
