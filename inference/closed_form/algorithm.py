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

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Self

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


@dataclass(frozen=True)
class ClosedForm(ABC):
    """Coordinate ascent on the ELBO of one model as pure functions; a pytree.

    A subclass says how the statistics come about and what follows from them. It overrides the
    other answers where its updates need more: several starts, local factors, 32 bit.

    Attributes
    ----------
    model : Model
        With numbers as hyper-parameters.
    """

    model: Any

    # ------------------------------------------------------------------ the two steps

    @abstractmethod
    def start(self, subsample: Subsample, key: Array) -> Any:
        """What the first statistics follow from; ``key`` of what is random in it."""

    @abstractmethod
    def prepare(self, chunk: Any) -> Any:
        """What stays fixed of a chunk."""

    def initial(self, prepared: Any, start: Any) -> tuple[Any, Any]:
        """The first statistics of a chunk, and the first local factors.

        Here the start is a q(θ), under which they are the expected ones.
        """
        return self.e_step(prepared, start, None)

    @abstractmethod
    def e_step(self, prepared: Any, q: Any, local: Any) -> tuple[Any, Any]:
        """Expected sufficient statistics of a chunk under q(θ), local factors at their optimum."""

    @abstractmethod
    def m_step(self, statistics: Any) -> Any:
        """q(θ) at its optimum, given the statistics of all bags."""

    @abstractmethod
    def elbo(self, q: Any, statistics: Any) -> Float[Array, "*S"]:
        """The evidence lower bound at q(θ), of the statistics under it; one for each start."""

    @abstractmethod
    def no_statistics(self) -> Any:
        """Those of no bags."""

    def in_order(self, statistics: Any) -> Any:
        """The same statistics, exchangeable components in the order that `m_step` gives them."""
        return statistics

    # ------------------------------------------------------------------ what drivers ask

    @property
    def is_ascent(self) -> bool:
        """Whether no step lowers the ELBO."""
        return True

    @property
    def rounding(self) -> float:
        """A fall of the ELBO below this fraction of its size is rounding."""
        return 1e-9

    @property
    def is_compact(self) -> bool:
        """Whether what `prepare` makes is much smaller than the bags, and worth keeping."""
        return False

    def check(self, bags: Bags) -> None:
        """Refuse bags without the labels or targets that are learned from.

        Raises
        ------
        ValueError
            If they have none, or of other features.
        """
        observations(self.model, bags, "coordinate_ascent")

    def check_chunks(self) -> None:  # noqa: B027 most forms accept
        """Refuse streams and meshes where an update needs more than statistics that add."""

    def check_learnable(self) -> None:  # noqa: B027 most forms accept
        """Refuse to learn hyper-parameters where the ELBO does not tell about them."""

    def check_traceable(self) -> None:  # noqa: B027 most forms accept
        """Refuse to be a part of another compiled program, such as that of many data sets."""

    def in_memory(self, bags: Bags) -> Self:
        """The same form for chunks that stay in memory, where more may be kept of each."""
        return self

    def chunk(self, bags: Bags) -> Any:
        """Bags in memory as one chunk, in arrays of sizes that programs are compiled for."""
        return padded(bags)

    def with_hyperparameters(self, values: dict) -> Self:
        """The form of the model with other hyper-parameters."""
        return replace(self, model=self.model.with_hyperparameters(values))

    # ------------------------------------------------------------------ what is left behind

    def best_start(self, elbo: Float[np.ndarray, "*S"], q: Any, local: Any) -> tuple[Any, Any]:
        """q(θ) and local factors of the start with the highest ELBO."""
        return q, local

    @abstractmethod
    def approximation(
        self, q: Any, local: Any, bags: Bags | None, elbo: Float[np.ndarray, "*S"]
    ) -> Approximation:
        """q in the units of the model; bags of a stream are None."""

    @abstractmethod
    def draw(self, q: Any, key: Array, num_draws: int) -> dict[str, Array]:
        """Draws of the latent sites of ``model.marginal()`` from q(θ), which may be traced."""

    @abstractmethod
    def guide(self, approximation: Any) -> Program:
        """The approximation as a NumPyro guide of ``model.augmented()``."""

    def default_num_draws(self, bags: Bags | None) -> int:
        """Draws of q that are kept where nobody asks for another number."""
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
