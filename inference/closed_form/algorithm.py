"""The one protocol of closed-form variational inference, and the registry of who has it.

Every closed form of the zoo is variational EM: *expected sufficient statistics of chunks of bags,
then a conjugate update*. Drivers (`drivers`) repeat the two and know no model.

===================  ==========================================================================
type                 what it is
===================  ==========================================================================
``Prepared``         what stays fixed of a chunk of bags under given hyper-parameters
``Global``           q(θ), the factor of the unknowns that all bags share
``Local``            what an update keeps of each instance between steps (mean-field labels, hard
                     labels); None where it follows from q(θ), which is what may stream
``Statistics``       expected sufficient statistics of a chunk, and its part of the ELBO; they add
===================  ==========================================================================

A closed form is a pytree: its model, with all numbers, is an argument of the compiled programs.

References
----------
Hoffman, Blei, Wang and Paisley (2013), Stochastic variational inference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...datasets.padding import padded
from ...models.model import Program, observations
from ...models.parts.bag_evidence import FloatType
from ..posterior import Approximation

__all__ = [
    "ClosedForm",
    "Options",
    "SingleStart",
    "closed_form",
    "label_update_of",
    "refuse_starts",
]

# ``rows(bags)`` of each chunk and a number: rows of every instance, or of every second, third, ….
type Subsample = Callable[[Callable[[Bags], np.ndarray], int], np.ndarray]


@dataclass(frozen=True)
class Options:
    """What a user chose of a closed form.

    Attributes
    ----------
    label_update : str or None
        How instance labels are updated; None for the form's own choice.
    dtype : {"float64", "float32"}
    num_starts : int or None
        None for the form's own number.
    """

    label_update: str | None = None
    dtype: FloatType = "float64"
    num_starts: int | None = None


@runtime_checkable
class ClosedForm(Protocol):
    """Coordinate ascent on the ELBO of one model as pure functions."""

    @property
    def model(self) -> Any:
        """The model, with numbers as hyper-parameters."""
        ...

    @property
    def is_ascent(self) -> bool:
        """Whether no step lowers the ELBO."""
        ...

    @property
    def rounding(self) -> float:
        """A fall of the ELBO below this fraction of its size is rounding."""
        ...

    @property
    def is_compact(self) -> bool:
        """Whether what `prepare` makes is much smaller than the bags, and worth keeping."""
        ...

    def check(self, bags: Bags) -> None:
        """Refuse bags without what is learned from, or of other features."""
        ...

    def check_chunks(self) -> None:
        """Refuse streams and meshes where an update needs more than statistics that add."""
        ...

    def check_traceable(self) -> None:
        """Refuse to be a part of another compiled program, such as that of many data sets."""
        ...

    def in_memory(self, bags: Bags) -> Self:
        """The same form for chunks that stay in memory, where more may be kept of each."""
        ...

    def chunk(self, bags: Bags) -> Any:
        """Bags in memory as one chunk, in arrays of sizes that programs are compiled for."""
        ...

    def start(self, subsample: Subsample, key: Array) -> Any:
        """What the first statistics follow from; ``key`` of what is random in it."""
        ...

    def prepare(self, chunk: Any) -> Any:
        """What stays fixed of a chunk."""
        ...

    def initial(self, prepared: Any, start: Any) -> tuple[Any, Any]:
        """The first statistics of a chunk, before there is a q(θ), and the first local factors."""
        ...

    def e_step(self, prepared: Any, q: Any, local: Any) -> tuple[Any, Any]:
        """Expected sufficient statistics of a chunk under q(θ), local factors at their optimum."""
        ...

    def m_step(self, statistics: Any) -> Any:
        """q(θ) at its optimum, given the statistics of all bags."""
        ...

    def elbo(self, q: Any, statistics: Any) -> Float[Array, "*S"]:
        """The evidence lower bound at q(θ), of the statistics under it; one for each start."""
        ...

    def no_statistics(self) -> Any:
        """Those of no bags."""
        ...

    def in_order(self, statistics: Any) -> Any:
        """The same statistics, exchangeable components in the order that `m_step` gives them."""
        ...

    def with_hyperparameters(self, values: dict) -> Self:
        """The form of the model with other hyper-parameters."""
        ...

    def check_learnable(self) -> None:
        """Refuse to learn hyper-parameters where the ELBO does not tell about them."""
        ...

    def best_start(self, elbo: Float[np.ndarray, "*S"], q: Any, local: Any) -> tuple[Any, Any]:
        """q(θ) and local factors of the start with the highest ELBO."""
        ...

    def approximation(
        self, q: Any, local: Any, bags: Bags | None, elbo: Float[np.ndarray, "*S"]
    ) -> Approximation:
        """What is left behind: q in the units of the model; bags of a stream are None."""
        ...

    def draw(self, q: Any, key: Array, num_draws: int) -> dict[str, Array]:
        """Draws of the latent sites of ``model.marginal()`` from q(θ), which may be traced."""
        ...

    def guide(self, approximation: Any) -> Program:
        """The approximation as a NumPyro guide of ``model.augmented()``."""
        ...

    def default_num_draws(self, bags: Bags | None) -> int:
        """Draws of q that are kept where nobody asks for another number."""
        ...


@dataclass(frozen=True)
class SingleStart:
    """What most closed forms answer alike: one start, and no update needs more than statistics.

    A subclass has ``start``, ``prepare``, ``e_step``, ``m_step``, ``elbo``, ``no_statistics``,
    ``approximation``, ``draw`` and ``guide`` of its own, and overrides what is different.

    Attributes
    ----------
    model : Model
        With numbers as hyper-parameters.
    """

    model: Any

    @property
    def is_ascent(self) -> bool:
        """Whether no step lowers the ELBO: yes."""
        return True

    @property
    def is_compact(self) -> bool:
        """Whether what `prepare` makes is much smaller than the bags: no."""
        return False

    @property
    def rounding(self) -> float:
        """A fall of the ELBO below this fraction of its size is rounding: 1e-9."""
        return 1e-9

    def check(self, bags: Bags) -> None:
        """Refuse chunks without what the model observes.

        Raises
        ------
        ValueError
            If the bags have no labels, or no targets.
        """
        observations(self.model, bags, "coordinate_ascent")

    def check_chunks(self) -> None:
        """Accept streams and meshes: statistics are all that updates need."""

    def check_learnable(self) -> None:
        """Accept to learn hyper-parameters: all are in the ELBO."""

    def check_traceable(self) -> None:
        """Accept to be a part of another program: there is one start, made by JAX alone."""

    def in_memory(self, bags: Bags) -> Self:
        """The same form: nothing more is kept of chunks in memory."""
        return self

    def chunk(self, bags: Bags) -> Any:
        """Bags in arrays of sizes of the grid."""
        return padded(bags)

    def initial(self, prepared: Any, start: Any) -> tuple[Any, Any]:
        """Expected sufficient statistics under the first q(θ)."""
        return self.e_step(prepared, start, None)

    def e_step(self, prepared: Any, q: Any, local: Any) -> tuple[Any, Any]:
        """Expected sufficient statistics of a chunk: each subclass has its own."""
        raise NotImplementedError

    def in_order(self, statistics: Any) -> Any:
        """The same statistics: no components are exchangeable."""
        return statistics

    def with_hyperparameters(self, values: dict) -> Self:
        """The form of the model with other hyper-parameters."""
        return replace(self, model=self.model.with_hyperparameters(values))

    def best_start(self, elbo: Any, q: Any, local: Any) -> tuple[Any, Any]:
        """The factors of the only start."""
        return q, local

    def default_num_draws(self, bags: Bags | None) -> int:
        """1,000 draws."""
        return 1000


@singledispatch
def closed_form(model: Any, options: Options) -> ClosedForm:
    """The closed form of a model; ``closed_form.register`` makes one known, by class.

    Parameters
    ----------
    model : Model
        With numbers as hyper-parameters.
    options : Options

    Returns
    -------
    ClosedForm

    Raises
    ------
    NotImplementedError
        If the model has none, or none with these options.
    ValueError
        If an option is unknown.
    """
    raise NotImplementedError(
        f"{type(model).__name__} has no closed form; sample it with nuts, or fit it by svi"
    )


def label_update_of(model: Any, chosen: str | None, known: tuple[str, ...]) -> Any:
    """Which label update is meant; the first that is known where none was chosen.

    Raises
    ------
    ValueError
        If it is unknown.
    """
    kind = type(model).__name__
    if chosen is not None and not known:
        raise ValueError(
            f"label_update is {chosen!r}, but {kind} has no instance labels to update; leave it out"
        )
    if chosen is not None and chosen not in known:
        raise ValueError(
            f"label_update is {chosen!r}; expected one of {', '.join(known)} for {kind}"
        )
    return known[0] if chosen is None and known else chosen


def refuse_starts(model: Any, num_starts: int | None) -> None:
    """Refuse a number of starts where there is one.

    Raises
    ------
    ValueError
        If a number was given.
    """
    if num_starts is not None:
        raise ValueError(
            f"num_starts is {num_starts}, but the closed form of {type(model).__name__} has one "
            "start; leave it out"
        )
