"""The one protocol of closed-form variational inference, and the registry of who has it.

Every closed form of the zoo is variational EM: *expected sufficient statistics of chunks of bags,
then a conjugate update*. Drivers (`drivers`) repeat the two and know no model.

===================  ==========================================================================
type                 meaning
===================  ==========================================================================
``Prepared``         quantities of a chunk of bags that hyper-parameters alone can change
``Global``           q(θ), the factor of the unknowns that all bags share
``Local``            state of each instance between steps (mean-field labels, hard labels); None
                     where it follows from q(θ), as it must on a stream
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
from ...models.parts.bag_latent import FloatType
from ..posterior import Approximation

__all__ = [
    "ClosedForm",
    "GaussianForm",
    "Options",
    "closed_form",
]

# ``rows(bags)`` of each chunk and a number: rows of every instance, or of every second, third, ….
type Subsample = Callable[[Callable[[Bags], np.ndarray], int], np.ndarray]


@dataclass(frozen=True)
class Options:
    """Options of a closed form: a user's choices, and how drivers use it.

    Attributes
    ----------
    label_update : str or None
        How instance labels are updated; None for the form's own choice.
    dtype : {"float64", "float32"}
    num_starts : int or None
        None for the form's own number.
    in_chunks : bool
        Whether the bags are a stream, or on several devices; no state of an instance is kept then.
    learns_hyperparameters : bool
    is_traced : bool
        Whether it becomes a part of another compiled program, as calibration makes one.

    Raises
    ------
    ValueError
        If the type is unknown.
    NotImplementedError
        If hyper-parameters are to be learned from chunks.
    """

    label_update: str | None = None
    dtype: FloatType = "float64"
    num_starts: int | None = None
    in_chunks: bool = False
    learns_hyperparameters: bool = False
    is_traced: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"dtype is {self.dtype!r}; expected 'float64' or 'float32'")
        if self.in_chunks and self.learns_hyperparameters:
            raise NotImplementedError(
                "learn_hyperparameters=True on a stream or on a mesh would go through the bags for "
                "each value that is tried; learn them from a part of the bags in memory"
            )

    def label_update_of(self, model: Any, known: tuple[str, ...]) -> Any:
        """Return the chosen label update, or the first known one if none was chosen.

        Parameters
        ----------
        model : Model
        known : tuple of str
            Names of the updates. Only the first may need no state of an instance.

        Raises
        ------
        ValueError
            If it is unknown.
        NotImplementedError
            If chunks are used and the update needs the state of each instance.
        """
        kind, chosen = type(model).__name__, self.label_update
        if chosen is not None and not known:
            raise ValueError(
                f"label_update is {chosen!r}, but {kind} has no instance labels to update; leave "
                "it out"
            )
        if chosen is not None and chosen not in known:
            raise ValueError(
                f"label_update is {chosen!r}; expected one of {', '.join(known)} for {kind}"
            )
        if self.in_chunks and chosen not in (None, *known[:1]):
            raise NotImplementedError(
                f"label_update={chosen!r} needs what the last step said of each instance, which is "
                "not kept on a stream or on a mesh; leave it out for the exact distribution of the "
                "labels"
            )
        return known[0] if chosen is None and known else chosen

    def refuse_starts(self, model: Any) -> None:
        """Refuse a number of starts for a form that has one start.

        Raises
        ------
        ValueError
            If a number was given.
        """
        if self.num_starts is not None:
            raise ValueError(
                f"num_starts is {self.num_starts}, but the closed form of {type(model).__name__} "
                "has one start; leave it out"
            )


@dataclass(frozen=True)
class ClosedForm(ABC):
    """Coordinate ascent on the ELBO of one model as pure functions; a pytree.

    A subclass computes the statistics and updates q(θ) from them. It overrides the other methods
    where its updates need more: several starts, local factors, 32 bit.

    Attributes
    ----------
    model : Model
        With numbers as hyper-parameters.
    """

    model: Any

    # ------------------------------------------------------------------ the two steps

    @abstractmethod
    def start(self, subsample: Subsample, key: Array) -> Any:
        """The start of the ascent, which `initial` takes; ``key`` draws its random part."""

    @abstractmethod
    def prepare(self, chunk: Any) -> Any:
        """Compute the quantities of a chunk that no update changes."""

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
        """The statistics of no bags, to which others are added."""

    def in_order(self, statistics: Any) -> Any:
        """The same statistics, exchangeable components in the order that `m_step` gives them."""
        return statistics

    # ------------------------------------------------------------------ questions of drivers

    @property
    def allowed_fall(self) -> float:
        """Largest fall of the ELBO in a step that counts as rounding, as a fraction of its size.

        Infinite for updates that do not ascend the ELBO.
        """
        return 1e-9

    @property
    def is_compact(self) -> bool:
        """Whether prepared chunks are much smaller than their bags, so that a stream keeps them."""
        return False

    def check(self, bags: Bags) -> None:
        """Refuse bags without the labels or targets that are learned from.

        Raises
        ------
        ValueError
            If they have none, or other features.
        """
        observations(self.model, bags, f"the closed form of {type(self.model).__name__}")

    @property
    def keeps_local(self) -> bool:
        """Whether instances have factors that are kept between steps."""
        return False

    def numbers_kept(self, bags: Bags) -> int:
        """How many numbers would stay in memory between steps, beside the bags."""
        return 0

    def in_memory(self, bags: Bags) -> Self:
        """The form for chunks that stay in memory, where more may be kept of each."""
        return self

    def evaluated(self) -> Self:
        """The form with all quantities precomputed that its chunks have in common."""
        return self

    def chunk(self, bags: Bags) -> Any:
        """Bags in memory as one chunk, in arrays of sizes that programs are compiled for."""
        return padded(bags)

    def with_hyperparameters(self, values: dict) -> Self:
        """The form of the model with other hyper-parameters."""
        return replace(self, model=self.model.with_hyperparameters(values))

    def with_normaliser(self, key: Array) -> Self:
        """The form whose ELBO has all that depends on hyper-parameters, for learning them.

        Where the prior has a normalising constant that is estimated from draws, ``key`` draws them.
        """
        return self

    def doubt(self, chunk: Any) -> str:
        """What is doubtful about hyper-parameters that were learned from the chunk; or nothing."""
        return ""

    # ------------------------------------------------------------------ results

    @abstractmethod
    def approximation(
        self, q: Any, local: Any, bags: Bags | None, elbo: Float[np.ndarray, "*S"]
    ) -> Approximation:
        """q in the units of the model; bags of a stream are None."""

    def draw(self, q: Any, key: Array, num_draws: int) -> dict[str, Array]:
        """Draws of the latent sites of ``model.marginal()`` from a traced q(θ)."""
        raise NotImplementedError(f"{type(self).__name__} draws from no traced q(θ)")

    @abstractmethod
    def guide(self, approximation: Any) -> Program:
        """The approximation as a NumPyro guide of ``model.augmented()``."""


class GaussianForm(ClosedForm):
    """A closed form whose q(θ) is Gaussian, in coordinates of its own: what `linear_response` asks.

    A frozen dataclass, as every closed form.
    """

    @abstractmethod
    def factor(self, approximation: Any) -> Any:
        """q(θ) of an approximation, as `approximation` was made of it."""

    @abstractmethod
    def location(self, q: Any) -> Float[Array, " P"]:
        """The mean m of θ, whose prior is N(0, I)."""

    @abstractmethod
    def covariance_root(self, q: Any) -> Float[Array, "P P"]:
        """U with UUᵀ = S, the covariance of θ."""

    @abstractmethod
    def with_moments(
        self, q: Any, mean: Float[Array, " P"], covariance: Float[Array, "P P"]
    ) -> Any:
        """q(θ) with another mean and covariance; not finite if that is none."""

    @abstractmethod
    def added_natural_parameters(
        self, statistics: Any
    ) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
        """S⁻¹m and S⁻¹ − I of the q(θ) that `m_step` returns."""


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
