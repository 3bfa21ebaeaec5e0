"""Coordinate ascent where bags come in chunks: each step is one pass of sums over them.

All that a step needs of the bags are sums. A chunk becomes arrays of a set length, in which bags of
weight 0 fill what is left, so that chunks of one length are compiled for once; it is made into a
problem, as bags in memory are, and what it adds to the sums is added. Factors of q that belong to
bags or instances are not kept: they follow from q(θ).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...models.model import observations
from ...models.sparse_gp import sparse_conditional
from ...models.vgpmil import VGPMIL
from ...models.vwsgp import VWSGP
from ..checkpoint import BlockFolder
from . import vgpmil, vwsgp, vwsgp_gaussian, vwsgp_probit
from .ascent import Ascent, climb
from .inducing import (
    InducingApproximation,
    InducingState,
    InducingSums,
    coloured,
    divergence_from_prior,
    inducing_posterior,
)

__all__ = ["InChunks", "InducingInChunks", "ascend_in_chunks", "in_chunks", "padded"]


@runtime_checkable
class InChunks(Protocol):
    """A closed form that needs of the bags no more than sums over them."""

    @property
    def is_compact(self) -> bool:
        """Whether a problem is much smaller than the bags it is made of, and worth keeping."""
        ...

    def check(self, bags: Bags) -> None:
        """Refuse chunks without what is learned from, or of other features."""
        ...

    def start(self) -> Any:
        """q(θ) before the first step."""
        ...

    def nothing(self) -> Any:
        """Sums over no bags."""
        ...

    def problem(self, bags: Bags, bag_weight: Float[Array, " B"]) -> Any:
        """What stays fixed of a chunk."""
        ...

    def sums(self, problem: Any, state: Any) -> Any:
        """What a chunk adds, under q(θ)."""
        ...

    def moved(self, sums: Any) -> Any:
        """q(θ) from the sums over all bags."""
        ...

    def bound(self, state: Any, sums: Any) -> Float[Array, ""]:
        """The bound at q(θ), of the sums under it."""
        ...

    def approximation(self, state: Any) -> Any:
        """The law that is left behind."""
        ...


@dataclass(frozen=True)
class InducingInChunks:
    """The closed forms of sparse GP models."""

    model: VGPMIL | VWSGP
    algorithm: Any

    @property
    def is_compact(self) -> bool:
        """Of models of bag evidence: a row for each bag, not for each instance."""
        return self.algorithm is not vgpmil

    def check(self, bags: Bags) -> None:
        """Refuse chunks without labels (targets), or of other features.

        Raises
        ------
        ValueError
            If there are none, or another number.
        """
        observations(self.model, bags, "coordinate_ascent")
        self.model.check_width(bags)

    def start(self) -> InducingState:
        """The prior."""
        return InducingState.prior(len(self.model.inducing_points))

    def nothing(self) -> InducingSums:
        """Zeros."""
        size = len(self.model.inducing_points)
        return InducingSums(jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(()))

    def problem(self, bags: Bags, bag_weight: Float[Array, " B"]) -> Any:
        """As for bags in memory, with other weights."""
        return self.algorithm.problem_of(self.model, bags)._replace(bag_weight=bag_weight)

    def sums(self, problem: Any, state: InducingState) -> InducingSums:
        """Gram matrix, pull and bound."""
        return self.algorithm.sums(problem, state.mean, state.precision_cholesky)

    def moved(self, sums: InducingSums) -> InducingState:
        """q(ε) at its optimum."""
        return InducingState(*inducing_posterior(sums.gram, sums.linear))

    def bound(self, state: InducingState, sums: InducingSums) -> Float[Array, ""]:
        """The bags' share, less KL(q(u) ‖ p(u))."""
        return sums.bound - divergence_from_prior(state.mean, state.precision_cholesky)

    def approximation(self, state: InducingState) -> InducingApproximation:
        """q(u)."""
        points, kernel = self.model.inducing_points, self.model.kernel
        cholesky = sparse_conditional(kernel, points, points[:1], self.model.jitter).cholesky
        return InducingApproximation(**coloured(cholesky, *state))


def in_chunks(model: Any) -> InChunks:
    """The closed form of a model whose bags come in chunks.

    Raises
    ------
    NotImplementedError
        If the model has none.
    """
    match model:
        case VGPMIL():
            return InducingInChunks(model, vgpmil)
        case VWSGP(likelihood="bernoulli"):
            return InducingInChunks(model, vwsgp)
        case VWSGP(likelihood="probit"):
            return InducingInChunks(model, vwsgp_probit)
        case VWSGP(likelihood="gaussian"):
            return InducingInChunks(model, vwsgp_gaussian)
        case _:
            raise NotImplementedError(
                f"{type(model).__name__} has no closed form that goes by chunks; read its bags "
                "into memory"
            )


# ------------------------------------------------------------------ chunks of set lengths


class Padded(NamedTuple):
    """Bags in arrays of a set length, the last of them of weight 0."""

    bags: Bags
    bag_weight: Float[np.ndarray, " B"]


def padded(bags: Bags, num_instances: int) -> Padded:
    """Fill up to a multiple of ``num_instances``, and to a power of two of bags.

    Parameters
    ----------
    bags : Bags
    num_instances : int

    Returns
    -------
    Padded
        With at least one bag of weight 0, in which the instances stand that are none.
    """
    length = num_instances * -(-bags.num_instances // num_instances)
    num_bags = 1 << bags.num_bags.bit_length()  # above the number of bags

    def filled(values: np.ndarray | Array, size: int, value: float) -> np.ndarray:
        values = np.asarray(values)
        widths = [(0, size - len(values)), *[(0, 0)] * (values.ndim - 1)]
        return np.pad(values, widths, constant_values=value)

    labels, targets = bags.labels, bags.targets
    whole = Bags(
        instances=filled(bags.instances, length, 0.0),
        bag_index=filled(bags.bag_index, length, num_bags - 1),
        labels=None if labels is None else filled(labels, num_bags, 0),
        instance_labels=None,
        names=(),
        num_bags=num_bags,
        targets=None if targets is None else filled(targets, num_bags, 0.0),
    )
    return Padded(whole, filled(np.ones(bags.num_bags), num_bags, 0.0))


# ------------------------------------------------------------------ passes


def ascend_in_chunks(
    form: InChunks,
    chunks: Iterable[Bags],
    *,
    chunk_instances: int,
    max_steps: int,
    tolerance: float,
    progress: bool,
    checkpoint: BlockFolder | None = None,
) -> Ascent:
    """Repeat passes over the chunks until the bound stops rising.

    Parameters
    ----------
    form : InChunks
    chunks : iterable of Bags
        To be gone through again and again, the same each time.
    chunk_instances : int
        Of a chunk, at most (but for a bag that is larger by itself).
    max_steps, tolerance, progress
        As of `ascend`.
    checkpoint : BlockFolder or None
        A block for each step; goes on behind the last.

    Returns
    -------
    Ascent
        Whose state is q(θ); ``seconds`` with those of reading.
    """
    compiled = _Compiled()

    def advance(state_and_sums: tuple[Any, Any]) -> tuple[tuple[Any, Any], Array]:
        state = compiled(form.moved, state_and_sums[1])
        sums = passes.sums(state)
        return (state, sums), compiled(form.bound, state, sums)

    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        passes = _Passes(form, chunks, chunk_instances, compiled, Path(folder))
        start, is_begun = form.start(), checkpoint is not None and checkpoint.num_blocks > 0
        sums = form.nothing() if is_begun else passes.sums(start)
        before = time.perf_counter() - started
        ascent = climb(
            advance,
            (start, sums),
            max_steps=max_steps,
            tolerance=tolerance,
            is_ascent=True,
            progress=progress,
            checkpoint=checkpoint,
        )
    seconds = before + ascent.seconds - compiled.seconds
    return replace(ascent, state=ascent.state[0], seconds=seconds, compile_seconds=compiled.seconds)


class _Compiled:
    """Calls functions, each compiled once for arguments of the same shapes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._programs: dict[Any, Any] = {}

    def __call__(self, function: Callable, *arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = (function.__qualname__, structure, shapes)
        if key not in self._programs:
            started = time.perf_counter()
            self._programs[key] = jax.jit(function).lower(*arguments).compile()
            self.seconds += time.perf_counter() - started
        return self._programs[key](*arguments)


class _Passes:
    """Sums over all chunks, whose problems are kept in files if they are small."""

    def __init__(
        self,
        form: InChunks,
        chunks: Iterable[Bags],
        chunk_instances: int,
        compiled: _Compiled,
        folder: Path,
    ) -> None:
        self._form, self._chunks, self._compiled = form, chunks, compiled
        self._chunk_instances, self._folder = chunk_instances, folder
        self._structure: Any = None
        self._num_kept = 0

    def sums(self, state: Any) -> Any:
        """One pass."""
        total = self._form.nothing()
        for problem in self._kept() if self._num_kept else self._made():
            # Else chunks that are read faster than they are summed pile up.
            jax.block_until_ready(total)
            total = self._compiled(self._added, total, problem, state)
        return jax.block_until_ready(total)

    def _added(self, total: Any, problem: Any, state: Any) -> Any:
        return jax.tree.map(jnp.add, total, self._form.sums(problem, state))

    def _made(self) -> Iterator[Any]:
        num_kept = 0
        for bags in self._chunks:
            self._form.check(bags)
            problem = self._compiled(self._form.problem, *padded(bags, self._chunk_instances))
            if self._form.is_compact:
                leaves, self._structure = jax.tree.flatten(problem)
                np.savez(self._file(num_kept), *leaves)
                num_kept += 1
            yield problem
        self._num_kept = num_kept  # only when all are there

    def _kept(self) -> Iterator[Any]:
        for number in range(self._num_kept):
            with np.load(self._file(number)) as arrays:
                yield jax.tree.unflatten(self._structure, [jnp.asarray(a) for a in arrays.values()])

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.npz"
