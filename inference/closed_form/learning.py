"""Hyper-parameters learned beside the variational parameters, by ascent of the same bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...models.sparse_gp import InducingModel
from ..descent import descend

__all__ = ["Algorithm", "Learning", "LearningState"]

type Values = dict[str, Float[Array, ""]]


@runtime_checkable
class Algorithm(Protocol):
    """What a closed form of one model is made of: a module of pure functions."""

    def step(self, problem: Any, state: Any, /) -> Any:
        """One round of updates."""
        ...

    def elbo(self, problem: Any, state: Any, /) -> Float[Array, ""]:
        """The bound."""
        ...

    def evaluated_at(self, problem: Any, model: Any, bags: Bags, /) -> Any:
        """The problem under other hyper-parameters."""
        ...

    def settled(self, problem: Any, state: Any, /) -> Any:
        """The same q(ε) under a moved problem, what follows from it anew."""
        ...

    def approximation(self, problem: Any, state: Any, /) -> Any:
        """The state as the law that it leaves behind."""
        ...


class LearningState(NamedTuple):
    """Hyper-parameters beside the variational parameters."""

    unconstrained: Values  # log v, log ℓ, and where there are any, μ0 and log noise
    factors: Any


@dataclass(frozen=True)
class Learning[M: InducingModel]:
    """Coordinate ascent in q and in the hyper-parameters by turns.

    A few quasi-Newton steps with line search raise the bound in the hyper-parameters, each value of
    which is judged after one round of updates under it: q(ε) moves along with the kernel, as on a
    ridge it must, and the whole is monotone.

    References
    ----------
    Castro-Macías et al. (2024), section 4.
    """

    algorithm: Algorithm
    model: M
    bags: Bags
    num_inner_steps: int = 4

    def init(self, state: Any) -> LearningState:
        """Start from the model's own values."""
        return LearningState(
            {
                name: jnp.asarray(value if name == "mean" else jnp.log(value), dtype=float)
                for name, value in self.model.hyperparameters.items()
            },
            state,
        )

    def model_at(self, unconstrained: Values) -> M:
        """The model with other hyper-parameters."""
        values = {
            name: value if name == "mean" else jnp.exp(value)
            for name, value in unconstrained.items()
        }
        return self.model.with_hyperparameters(values)

    def model_of(self, unconstrained: Values) -> M:
        """The model with what was learned, as plain numbers."""
        learned = self.model_at(unconstrained).hyperparameters
        return self.model.with_hyperparameters({n: float(v) for n, v in learned.items()})

    def problem_at(self, problem: Any, unconstrained: Values) -> Any:
        """The problem with the kernel evaluated anew."""
        return self.algorithm.evaluated_at(problem, self.model_at(unconstrained), self.bags)

    def step(self, problem: Any, state: LearningState) -> LearningState:
        """The hyper-parameters and, under them, all factors once."""

        def moved(unconstrained: Values) -> tuple[Any, Any]:
            there = self.problem_at(problem, unconstrained)
            settled = self.algorithm.settled(there, state.factors)
            return there, self.algorithm.step(there, settled)

        def loss(unconstrained: Values) -> Float[Array, ""]:
            return -self.algorithm.elbo(*moved(unconstrained))

        best = descend(loss, state.unconstrained, self.num_inner_steps)
        return LearningState(best, moved(best)[1])

    def elbo(self, problem: Any, state: LearningState) -> Float[Array, ""]:
        """The bound at the learned hyper-parameters."""
        return self.algorithm.elbo(self.problem_at(problem, state.unconstrained), state.factors)
