"""Coordinate ascent where bags come in chunks: each step is one pass of sums over them.

All that a step needs of the bags are sums. A chunk becomes arrays of a set length, in which bags of
weight 0 fill what is left, so that chunks of one length are compiled for once; it is made into a
problem, as bags in memory are, and what it adds to the sums is added. Factors of q that belong to
bags or instances are not kept: they follow from q(θ).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from itertools import batched
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...datasets.streaming import BagStream
from ...models.bag_evidence import FloatType
from ...models.dpmil import DPMIL
from ...models.likelihoods import Gaussian, Logistic, Probit
from ...models.model import observations
from ...models.sparse_gp import Projector
from ...models.vgpmil import VGPMIL
from ...models.vwsgp import VWSGP
from ..checkpoint import BlockFolder, described
from ..chunks import Padded, RoomForChunks, RoomInTurn, in_parts, new_room, padded
from ..devices import Devices
from ..lapack import one_lapack_thread
from ..products import whole_blocks
from . import vgpmil, vwsgp, vwsgp_gaussian, vwsgp_probit
from .ascent import ROUNDING, Ascent, climb
from .dpmil_in_chunks import MixturesInChunks
from .inducing import (
    InducingApproximation,
    InducingFactor,
    InducingSums,
    coloured,
    divergence_from_prior,
    inducing_posterior,
)

__all__ = [
    "InChunks",
    "Passes",
    "ascend_in_chunks",
    "chunks_of",
    "in_chunks",
    "num_begun",
    "spread",
]

# Entries of the kernel are rounded by 6e-8, and independently.
_ROUNDING_IN_32_BIT = 1e-7


@runtime_checkable
class InChunks(Protocol):
    """A closed form that needs of the bags no more than sums over them."""

    @property
    def is_compact(self) -> bool:
        """Whether a problem is much smaller than the bags it is made of, and worth keeping."""
        ...

    @property
    def rounding(self) -> float:
        """The share of the bound's size below which a fall of it is rounding."""
        ...

    def held(self) -> InChunks:
        """The same for chunks that stay in memory, where more may be kept of each."""
        ...

    def check(self, bags: Bags) -> None:
        """Refuse chunks without what is learned from, or of other features."""
        ...

    def start(self, spread: Callable[..., Float[np.ndarray, "n F"]]) -> Any:
        """What the first sums are made under: q(θ), or what takes its place.

        ``spread(rows, at_most)`` gives ``rows(bags)`` (N, F) of instances that are spread evenly
        over all bags.
        """
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

    def in_order(self, sums: Any) -> Any:
        """The same sums, with what may be renamed named as `moved` wants it."""
        ...

    def finished(self, ascent: Ascent) -> tuple[Ascent, Any]:
        """The ascent, of the best start if there are several, and the law that is left behind."""
        ...


@dataclass(frozen=True)
class InducingInChunks:
    """What the closed forms of sparse GP models have in common: sums that make q(u)."""

    model: VGPMIL | VWSGP
    dtype: FloatType

    @property
    def rounding(self) -> float:
        """Of sums over kernels in this type."""
        return ROUNDING if self.dtype == "float64" else _ROUNDING_IN_32_BIT

    def check(self, bags: Bags) -> None:
        """Refuse chunks without labels (targets), or of other features.

        Raises
        ------
        ValueError
            If there are none, or another number.
        """
        observations(self.model, bags, "coordinate_ascent")
        self.model.check_width(bags)

    def start(self, spread: Callable[..., Float[np.ndarray, "n F"]]) -> InducingFactor:
        """The prior."""
        size = len(self.model.inducing_points)
        # By NumPy: JAX would compile a program for each of these.
        identity = jnp.asarray(np.eye(size))
        return InducingFactor(jnp.asarray(np.zeros(size)), identity, identity)

    def nothing(self) -> InducingSums:
        """Zeros."""
        size = len(self.model.inducing_points)
        shapes = ((size, size), (size,), ())
        return InducingSums(*(jnp.asarray(np.zeros(shape)) for shape in shapes))

    def moved(self, sums: InducingSums) -> InducingFactor:
        """q(ε) at its optimum."""
        return InducingFactor.of(*inducing_posterior(sums.gram, sums.linear))

    def bound(self, state: InducingFactor, sums: InducingSums) -> Float[Array, ""]:
        """The bags' share, less KL(q(u) ‖ p(u))."""
        return sums.bound - divergence_from_prior(state.mean, state.precision_cholesky)

    def in_order(self, sums: InducingSums) -> InducingSums:
        """Themselves."""
        return sums

    def finished(self, ascent: Ascent) -> tuple[Ascent, InducingApproximation]:
        """q(u)."""
        model = self.model
        cholesky = Projector.of(model.kernel, model.inducing_points, model.jitter).cholesky
        return ascent, InducingApproximation(**coloured(cholesky, *ascent.state[:2]))


@dataclass(frozen=True)
class LabelsInChunks(InducingInChunks):
    """VGPMIL: each step goes from the instances' features to the sums."""

    model: VGPMIL
    is_compact = False

    def held(self) -> LabelsHeld:
        """With V."""
        return LabelsHeld(self.model, self.dtype)

    def problem(self, bags: Bags, bag_weight: Float[Array, " B"]) -> tuple[Bags, Array]:
        """The bags themselves."""
        return bags, bag_weight

    def sums(self, problem: tuple[Bags, Array], state: InducingFactor) -> InducingSums:
        """Gram matrix, pull and bound."""
        return vgpmil.sums(self.model, *problem, state, self.dtype)


@dataclass(frozen=True)
class LabelsHeld(InducingInChunks):
    """VGPMIL: the kernel is evaluated once, and V kept."""

    model: VGPMIL
    is_compact = False

    def held(self) -> Self:
        """Itself."""
        return self

    def problem(self, bags: Bags, bag_weight: Float[Array, " B"]) -> vgpmil.VGPMILProblem:
        """V and what else stays fixed."""
        return vgpmil.held(self.model, bags, bag_weight, self.dtype)

    def sums(self, problem: vgpmil.VGPMILProblem, state: InducingFactor) -> InducingSums:
        """Gram matrix, pull and bound."""
        return vgpmil.sums_of_held(self.model, problem, state)


@dataclass(frozen=True)
class EvidenceInChunks(InducingInChunks):
    """VWSGP: a row for each bag, not for each instance, is all that steps need."""

    model: VWSGP
    algorithm: Any
    is_compact = True

    def held(self) -> Self:
        """Itself."""
        return self

    def problem(self, bags: Bags, bag_weight: Float[Array, " B"]) -> Any:
        """As for bags in memory, with other weights."""
        problem = self.algorithm.problem_of(self.model, bags, self.dtype)
        # L is that of all chunks, and no sum needs it.
        return problem._replace(bag_weight=bag_weight, cholesky=())

    def sums(self, problem: Any, state: InducingFactor) -> InducingSums:
        """Gram matrix, pull and bound."""
        return self.algorithm.sums(problem, state)


def in_chunks(model: Any, dtype: FloatType, seeds: tuple[int, ...]) -> InChunks:
    """The closed form of a model whose bags come in chunks.

    Parameters
    ----------
    model : Model
    dtype : {"float64", "float32"}
    seeds : tuple of int
        Of starts, where there are several.

    Returns
    -------
    InChunks

    Raises
    ------
    NotImplementedError
        If the model has none.
    """
    match model:
        case VGPMIL():
            return LabelsInChunks(model, dtype)
        case VWSGP(likelihood=Logistic()):
            return EvidenceInChunks(model, dtype, vwsgp)
        case VWSGP(likelihood=Probit()):
            return EvidenceInChunks(model, dtype, vwsgp_probit)
        case VWSGP(likelihood=Gaussian()):
            return EvidenceInChunks(model, dtype, vwsgp_gaussian)
        case DPMIL() if dtype == "float64":
            return MixturesInChunks(model, seeds)
        case DPMIL():
            raise NotImplementedError(
                "DPMIL has no closed form in 32 bit, where nearly equal densities of its two "
                "mixtures would be subtracted; use dtype='float64'"
            )
        case _:
            raise NotImplementedError(
                f"{type(model).__name__} has no closed form for streams, meshes or 32 bit; read "
                "its bags into memory"
            )


# ------------------------------------------------------------------ passes


def ascend_in_chunks(
    form: InChunks,
    chunks: Iterable[Bags],
    *,
    chunk_instances: int,
    max_steps: int,
    tolerance: float,
    progress: bool,
    devices: Devices,
    checkpoint: BlockFolder | None = None,
) -> Ascent:
    """Repeat passes over the chunks until the bound stops rising.

    Parameters
    ----------
    form : InChunks
    chunks : iterable of Bags
        To be gone through again and again, the same each time; a list is held in memory.
    chunk_instances : int
        Of a chunk, at most (but for a bag that is larger by itself).
    max_steps, tolerance, progress
        As of `ascend`.
    devices : Devices
        That the chunks are dealt to; those of other processes have chunks of their own.
    checkpoint : BlockFolder or None
        A block for each step; goes on behind the last.

    Returns
    -------
    Ascent
        Whose state is q(θ); ``seconds`` with those of reading.
    """

    def advance(state_and_sums: tuple[Any, Any]) -> tuple[tuple[Any, Any], Array]:
        state = devices.once(form.moved, state_and_sums[1])
        sums = passes.sums(state)
        return (state, sums), devices.once(form.bound, state, sums)

    started = devices.clock()
    same = f"{described(form)} {max_steps} {tolerance}"
    devices.agree(same, "models, max_steps or tolerance")
    is_begun = num_begun(devices, checkpoint) > 0
    form = form.held() if isinstance(chunks, list) else form
    with one_lapack_thread(), TemporaryDirectory() as folder:
        passes = Passes(form, chunks, chunk_instances, devices, Path(folder))
        if is_begun:  # climb goes on from what is written down
            sums = form.nothing()
            start = devices.once(form.moved, sums)
        else:
            start = form.start(partial(spread, chunks, form, devices))
            sums = passes.sums(start)
        before = devices.clock() - started
        ascent = climb(
            advance,
            (start, sums),
            max_steps=max_steps,
            tolerance=tolerance,
            is_ascent=True,
            progress=progress,
            rounding=form.rounding,
            checkpoint=checkpoint,
            clock=devices.clock,
        )
    return replace(
        ascent,
        state=ascent.state[0],
        seconds=before + ascent.seconds,
        compile_seconds=devices.compile_seconds,
    )


def chunks_of(bags: Bags | BagStream, devices: Devices) -> tuple[BagStream | list[Bags], int]:
    """Chunks for the devices of this process, and the length that all are filled up to."""
    if isinstance(bags, BagStream):
        return bags, whole_blocks(min(bags.chunk_instances, bags.num_instances))
    chunks = in_parts(bags, devices.num_parts)
    return chunks, whole_blocks(max(part.num_instances for part in chunks))


def num_begun(devices: Devices, checkpoint: BlockFolder | None) -> int:
    """How many steps all processes have written down; what some have beyond is forgotten."""
    begun = devices.extremes(checkpoint.num_blocks if checkpoint else 0)[0]
    if checkpoint:  # of a process that was not killed there may be one more
        checkpoint.cut(begun)
    return begun


def spread(
    chunks: Iterable[Bags],
    form: InChunks,
    devices: Devices,
    rows: Callable[[Bags], Float[np.ndarray, "N F"]],
    at_most: int,
) -> Float[np.ndarray, "n F"]:
    """Rows of every instance, or of every second, third, … of all that the processes have.

    Parameters
    ----------
    chunks : iterable of Bags
        Of this process.
    form : InChunks
        By which they are checked.
    devices : Devices
    rows : callable
        Bags → what is wanted of each instance.
    at_most : int
        Rows.

    Returns
    -------
    array (n, F)
        The same in every process.
    """
    if isinstance(chunks, BagStream):
        own = chunks.num_instances
    else:
        own = sum(bags.num_instances for bags in chunks)
    process, num_instances = devices.gathered(np.array([[jax.process_index(), own]], float)).T
    stride = int(-(-num_instances.sum() // at_most))
    before = int(num_instances[process < jax.process_index()].sum())
    chosen = []
    for bags in chunks:
        form.check(bags)
        chosen.append(rows(bags)[-before % stride :: stride])
        before += bags.num_instances
    return devices.gathered(np.concatenate(chosen))


class Passes:
    """Sums over all chunks. What is made of them is kept: in memory if they are, or in files.

    Parameters
    ----------
    form : InChunks
    chunks : iterable of Bags
        To be gone through again and again, the same each time; a list is held in memory.
    chunk_instances : int
        That chunks are filled up to.
    devices : Devices
    folder : Path
        For files.
    """

    def __init__(
        self,
        form: InChunks,
        chunks: Iterable[Bags],
        chunk_instances: int,
        devices: Devices,
        folder: Path,
    ) -> None:
        self._form, self._chunks, self._chunk_instances = form, chunks, chunk_instances
        self._devices = devices
        self._nothing = devices.repeated(form.nothing())
        self._is_held = isinstance(chunks, list)
        self._kept = _InMemory() if self._is_held else _InFiles(folder, devices)
        self._keeps = self._is_held or form.is_compact
        self._room = RoomInTurn()
        # For the chunks of two turns, and the one that is read ahead.
        self._read_to = RoomForChunks(chunk_instances, 2 * devices.num_parts + 1)

    def sums(self, state: Any) -> Any:
        """One pass."""
        total = self._of_kept(state) if self._kept.is_whole else self._of_chunks(state)
        return self._devices.total(total)

    def _of_kept(self, state: Any) -> Any:
        total = self._nothing
        for problem in self._kept.all():
            before, total = total, self._devices.on_parts(self._added, (total, problem), state)
            jax.block_until_ready(before)  # else chunks read faster than summed would pile up
        return total

    def _of_chunks(self, state: Any) -> Any:
        made = self._nothing, None
        for parts in self._filled():
            # Each needs the total before it, so that no two share a core and its cache.
            given = made[0], *self._devices.placed(parts)
            before, made = made, self._devices.on_parts(self._made_and_added, given, state)
            self._keep(*before)  # which waits for it: the next is under way by then
        self._keep(*made)
        self._kept.is_whole = self._keeps
        return made[0]

    def _filled(self) -> Iterator[list[Padded]]:
        """Chunks for the devices, as many at once as there are."""
        num_parts, length = self._devices.num_parts, self._chunk_instances
        given = self._chunks
        every = given.read_to(self._read_to) if isinstance(given, BagStream) else given
        for chunks in batched(every, num_parts):
            for bags in chunks:
                self._form.check(bags)
            # What is held may still be in its room.
            room = new_room if self._is_held else self._room.next_turn()
            yield padded(
                chunks,
                num_instances=length,
                num_parts=num_parts,
                room=room,
                read_to=self._read_to,
            )

    def _made_and_added(
        self, total: Any, bags: Bags, bag_weight: Float[Array, " B"], state: Any
    ) -> tuple[Any, Any]:
        problem = self._form.problem(bags, bag_weight)
        return self._added(total, problem, state), problem if self._keeps else None

    def _added(self, total: Any, problem: Any, state: Any) -> Any:
        return jax.tree.map(jnp.add, total, self._form.sums(problem, state))

    def _keep(self, total: Any, problem: Any) -> None:
        jax.block_until_ready(total)
        if problem is not None:
            self._kept.keep(problem)


class _InMemory:
    """Problems, where they are."""

    def __init__(self) -> None:
        self.is_whole = False
        self._problems: list[Any] = []

    def keep(self, problem: Any) -> None:
        """The next one."""
        self._problems.append(problem)

    def all(self) -> Iterator[Any]:
        """One after another."""
        return iter(self._problems)


class _InFiles:
    """Problems, each in a file: the numbers of one device's part behind those of another.

    The newest waits in memory. So a pass does not end with writing, nor the next one with reading.
    """

    def __init__(self, folder: Path, devices: Devices) -> None:
        self.is_whole = False
        self._folder, self._devices = folder, devices
        self._layouts: list[Any] = []
        self._newest: Any = None
        self._room = RoomInTurn()

    def keep(self, problem: Any) -> None:
        """The next one."""
        if self._newest is not None:
            self._write(self._newest)
        self._newest = problem

    def _write(self, problem: Any) -> None:
        with self._file(len(self._layouts)).open("wb") as file:
            for part in zip(*map(_parts_of, jax.tree.leaves(problem)), strict=True):
                for values in part:
                    file.write(values)
        self._layouts.append(jax.tree.map(_layout_of_part, problem))

    def all(self) -> Iterator[Any]:
        """One after another. Before the next but one is asked for, all must be done with one."""
        for number, of_part in enumerate(self._layouts):
            room = self._room.next_turn()
            with self._file(number).open("rb") as file:
                read = partial(_read, file, room)
                parts = [jax.tree.map(read, of_part) for _ in self._devices.own]
            yield self._devices.placed(parts)
        yield self._newest

    def _file(self, number: int) -> Path:
        return self._folder / str(number)


def _layout_of_part(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _read(file: BufferedReader, room: RoomInTurn, layout: jax.ShapeDtypeStruct) -> np.ndarray:
    values = room(layout.shape, layout.dtype)
    file.readinto(values)
    return values


def _parts_of(leaf: jax.Array) -> list[np.ndarray]:
    """Of the devices in their order, each as it is: to join them would be to copy them."""
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data)[0] for shard in shards]
