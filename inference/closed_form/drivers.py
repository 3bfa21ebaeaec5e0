"""Drivers of closed forms: coordinate ascent in memory and over chunks, and hyper-parameters.

A driver repeats ``m_step`` and ``e_step`` of a `ClosedForm` and knows no model. Its programs stand
at module level and take the form, the bags and every number as arguments: they are compiled once
for all bags of one size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from itertools import batched
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpyro.distributions import biject_to

from ...datasets.bags import Bags
from ...datasets.padding import bucket
from ...datasets.streaming import BagStream
from ...models.numerics.arguments import check_counts
from ...models.numerics.lbfgs import descend
from ...models.numerics.products import whole_blocks
from ...models.numerics.threads import one_lapack_thread
from ..posterior import Status
from ..runtime.checkpoint import BlockFolder, described
from ..runtime.chunks import AlternatingBuffers, ChunkBuffers, in_parts, new_buffer, padded_chunks
from ..runtime.devices import Devices
from ..runtime.programs import Stopwatch
from ..runtime.progress import Progress
from .algorithm import ClosedForm

__all__ = [
    "Ascent",
    "Limits",
    "Passes",
    "ascend_in_memory",
    "ascend_in_passes",
    "ascend_traced",
    "chunks_of",
    "elbo_of",
    "m_step_of",
    "num_begun",
    "repeat_steps",
    "statistics_of",
    "subsample",
]

# Steps between two looks at the progress bar, at first and at most: one call of one program each.
_FIRST_BLOCK, _LONGEST_BLOCK = 8, 128
# Seconds of a block, about, from which on blocks grow no longer.
_SECONDS_OF_A_BLOCK = 1.0
# Quasi-Newton steps in the hyper-parameters between two updates of the factors.
_INNER_STEPS = 4

type Values = dict[str, Float[Array, ""] | Float[np.ndarray, ""]]


@dataclass(frozen=True)
class Ascent:
    """Where coordinate ascent ended, and how it got there.

    Attributes
    ----------
    q : pytree
        q(θ), of each start if there are several.
    local : pytree or None
        Local factors, where they are kept.
    elbo : array (T,) or (T, S)
    status : Status
    seconds : float
        Without compilation.
    """

    q: Any
    local: Any
    elbo: Float[np.ndarray, "T ..."]
    status: Status
    seconds: float


@dataclass(frozen=True)
class Limits:
    """When an ascent ends.

    Parameters
    ----------
    max_steps : int
    tolerance : float
        Converged when the ELBO moves by less than this fraction of its size (at least 1) in a step.
    progress : bool
        Whether to draw a bar.

    Raises
    ------
    ValueError
        If nothing would end, or begin.
    """

    max_steps: int
    tolerance: float
    progress: bool = False

    def __post_init__(self) -> None:
        check_counts(max_steps=self.max_steps)
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance is {self.tolerance}; expected a number of at least 0")


# ------------------------------------------------------------------ in memory


class _Position(NamedTuple):
    """Between two steps."""

    q: Any
    statistics: Any  # under q
    local: Any
    elbo: Float[np.ndarray | Array, "*S"]
    num_steps: Int[np.ndarray | Array, ""]


def ascend_in_memory(
    form: ClosedForm,
    bags: Bags,
    limits: Limits,
    *,
    key: Array,
    learns_hyperparameters: bool = False,
) -> tuple[ClosedForm, Ascent]:
    """Repeat the two steps until the ELBO stops rising; of several starts at once, until all do.

    Parameters
    ----------
    form : ClosedForm
    bags : Bags
    limits : Limits
    key : JAX key
        Of what is random in the start.
    learns_hyperparameters : bool
        Whether each step ascends the ELBO in the model's hyper-parameters too.

    Returns
    -------
    ClosedForm
        With what was learned.
    Ascent
        ``status`` is ``failed`` if an ELBO is not finite, or falls where it must not.
    """
    form = form.in_memory(bags)
    started = Stopwatch.now()
    chunk = form.chunk(bags)
    start = form.start(lambda rows, at_most: _every(rows(bags), at_most), key)
    with one_lapack_thread():
        prepared, *begun = _begin(form, chunk, start)
    position, run = _before_the_first_step(form, *begun), partial(_ascend, form, prepared)
    if learns_hyperparameters:
        position = position._replace(q=(position.q, _unconstrained(form.model)))
        run = partial(_learn, form, chunk)

    def advance(position: _Position, at_most: int) -> tuple[_Position, np.ndarray]:
        first = int(position.num_steps)
        last = np.asarray(first + at_most, np.int64)
        position, elbo = run(position, last, np.asarray(limits.tolerance, float))
        return position, np.asarray(elbo)[: int(position.num_steps) - first]

    before = Stopwatch.now() - started
    position, elbo, status, seconds = repeat_steps(advance, position, form, limits)
    q = position.q
    if learns_hyperparameters:
        q, unconstrained = q
        learned = _constrained(form.model, unconstrained)
        form = form.with_hyperparameters({name: float(v) for name, v in learned.items()})
    return form, Ascent(q, position.local, elbo, status, before + seconds)


def _every(rows: np.ndarray, at_most: int) -> np.ndarray:
    return rows[:: -(-len(rows) // at_most)]


@jax.jit
def _begin(form: ClosedForm, chunk: Any, start: Any) -> tuple[Any, Any, Any]:
    """What stays fixed of the chunk, the first statistics and the first local factors."""
    prepared = form.prepare(chunk)
    return prepared, *form.initial(prepared, start)


def _before_the_first_step(form: ClosedForm, statistics: Any, local: Any) -> _Position:
    """Zeros in the places of q(θ) and of the ELBO, which the first step does not look at."""
    q, elbo = _q_and_elbo.eval_shape(form, statistics)

    def zeros(of: Any) -> Any:
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), of)

    return _Position(zeros(q), statistics, local, zeros(elbo), np.zeros((), np.int64))


@jax.jit
def _q_and_elbo(form: ClosedForm, statistics: Any) -> tuple[Any, Array]:
    """For its shapes: it is never compiled."""
    q = form.m_step(statistics)
    return q, form.elbo(q, statistics)


@jax.jit
def _ascend(
    form: ClosedForm, prepared: Any, position: _Position, last: Array, tolerance: Array
) -> tuple[_Position, Float[Array, "T ..."]]:
    """Steps up to a number, or until one is the last; and the ELBO after each."""
    return _repeated(partial(_one_step, form, prepared), form, position, last, tolerance)


def _one_step(form: ClosedForm, prepared: Any, position: _Position) -> _Position:
    q = form.m_step(position.statistics)
    statistics, local = form.e_step(prepared, q, position.local)
    return _Position(q, statistics, local, form.elbo(q, statistics), position.num_steps + 1)


def _repeated(
    one_step: Callable[[_Position], _Position],
    form: ClosedForm,
    position: _Position,
    last: Int[Array, ""],
    tolerance: Float[Array, ""],
) -> tuple[_Position, Float[Array, "T ..."]]:
    first = position.num_steps
    trace = jnp.zeros((_LONGEST_BLOCK, *jnp.shape(position.elbo)))

    def goes_on(carry: tuple[_Position, Array, Array]) -> Bool[Array, ""]:
        position, _, is_last = carry
        return jnp.less(position.num_steps, last) & ~is_last

    def advance(carry: tuple[_Position, Array, Array]) -> tuple[_Position, Array, Array]:
        before, trace, _ = carry
        after = one_step(before)
        change, size = after.elbo - before.elbo, jnp.maximum(1.0, jnp.abs(after.elbo))
        has_fallen = jnp.any(change < -form.rounding * size) & form.is_ascent
        is_done = jnp.all(jnp.abs(change) <= tolerance * size) | has_fallen
        is_last = ~jnp.isfinite(after.elbo).all() | (is_done & (before.num_steps > 0))
        # Of a run that is longer only the end is kept.
        trace = trace.at[(before.num_steps - first) % _LONGEST_BLOCK].set(after.elbo)
        return after, trace, is_last

    start = (jax.tree.map(jnp.asarray, position), trace, jnp.asarray(False))
    position, trace, _ = jax.lax.while_loop(goes_on, advance, start)
    return position, trace


def ascend_traced(
    form: ClosedForm,
    prepared: Any,
    statistics: Any,
    local: Any,
    *,
    max_steps: int,
    tolerance: float | Float[Array, ""],
) -> tuple[Any, Float[Array, ""], Int[Array, ""]]:
    """The same ascent inside a compiled program, of one start.

    Parameters
    ----------
    form : ClosedForm
    prepared, statistics, local : pytrees
        As from ``prepare`` and ``initial``.
    max_steps : int
    tolerance : float

    Returns
    -------
    pytree
        q(θ).
    float
        The ELBO.
    int
        Steps taken; ``max_steps`` if it was cut off.
    """
    position, one_step = _before_the_first_step(form, statistics, local), partial(_one_step, form)
    last, tolerance = jnp.asarray(max_steps), jnp.asarray(tolerance)
    end, _ = _repeated(partial(one_step, prepared), form, position, last, tolerance)
    return end.q, jnp.asarray(end.elbo), jnp.asarray(end.num_steps)


# ------------------------------------------------------------------ hyper-parameters


def _unconstrained(model: Any) -> Values:
    """Hyper-parameters on the whole real line, from the model's own values on."""
    return {
        name: np.asarray(biject_to(model.support_of(name)).inv(float(value)), float)
        for name, value in model.hyperparameters.items()
    }


def _constrained(model: Any, unconstrained: Values) -> Values:
    return {name: biject_to(model.support_of(name))(value) for name, value in unconstrained.items()}


@jax.jit
def _learn(
    form: ClosedForm, chunk: Any, position: _Position, last: Array, tolerance: Array
) -> tuple[_Position, Float[Array, "T ..."]]:
    """Steps in the hyper-parameters and, under them, in all factors.

    A few quasi-Newton steps with line search raise the ELBO in the hyper-parameters, each value of
    which is judged after one round of updates under it: q(ε) moves along with the kernel, as on a
    ridge it must, and the whole is monotone.

    References
    ----------
    Castro-Macías et al. (2024), section 4.
    """

    def updated(unconstrained: Values, q: Any, local: Any) -> tuple[Any, Any, Any, Array]:
        there = form.with_hyperparameters(_constrained(form.model, unconstrained))
        prepared = there.prepare(chunk)
        statistics, local = there.e_step(prepared, q, local)
        q = there.m_step(statistics)
        statistics, local = there.e_step(prepared, q, local)
        return q, statistics, local, there.elbo(q, statistics)

    def one_step(position: _Position) -> _Position:
        q, unconstrained = position.q

        def loss(unconstrained: Values) -> Float[Array, ""]:
            return -updated(unconstrained, q, position.local)[3]

        best = descend(loss, unconstrained, _INNER_STEPS)
        q, statistics, local, elbo = updated(best, q, position.local)
        return _Position((q, best), statistics, local, elbo, position.num_steps + 1)

    return _repeated(one_step, form, position, last, tolerance)


# ------------------------------------------------------------------ one step after another


def repeat_steps(
    advance: Callable[[Any, int], tuple[Any, Float[np.ndarray, "T ..."]]],
    state: Any,
    form: ClosedForm,
    limits: Limits,
    *,
    is_ascent: bool | None = None,
    checkpoint: BlockFolder | None = None,
) -> tuple[Any, Float[np.ndarray, "T ..."], Status, float]:
    """Steps until the ELBO stops rising, in blocks that grow as long as they are quick.

    Parameters
    ----------
    advance : callable
        State and a number of steps → the state at most so many steps on, and the ELBO after each.
    state : pytree
    form : ClosedForm
    limits : Limits
    is_ascent : bool or None
        None for the form's own answer.
    checkpoint : BlockFolder or None
        For an ``advance`` of one step: a block for each; goes on behind the last.

    Returns
    -------
    pytree
        The last state.
    array (T, …)
        The ELBO after each step.
    Status
    float
        Seconds, without compilation.
    """
    is_ascent = form.is_ascent if is_ascent is None else is_ascent
    done = checkpoint.blocks(0.0) if checkpoint else []
    trace, seconds = [np.asarray(elbo) for elbo, _ in done], sum(taken for _, taken in done)
    if checkpoint and done:
        state = checkpoint.state(state)
    status, length = judge(trace, limits.tolerance, is_ascent, form.rounding), _FIRST_BLOCK
    with (
        one_lapack_thread(),
        Progress("coordinate ascent", limits.max_steps, shown=limits.progress) as bar,
    ):
        bar.advance(len(trace))
        while status is None and len(trace) < limits.max_steps:
            started = Stopwatch.now()
            state, elbo = advance(state, min(length, limits.max_steps - len(trace)))
            trace.extend(np.asarray(one) for one in elbo)
            taken = Stopwatch.now() - started
            if checkpoint:
                checkpoint.write(len(trace) - 1, state, trace[-1], taken)
            if taken < _SECONDS_OF_A_BLOCK:
                length = min(2 * length, _LONGEST_BLOCK)
            seconds += taken
            bar.advance(len(elbo))
            status = judge(trace, limits.tolerance, is_ascent, form.rounding)
    return state, np.array(trace), status or cut_off(trace), seconds


def judge(
    trace: list[np.ndarray], tolerance: float, is_ascent: bool, rounding: float
) -> Status | None:
    """How an ascent with this trace of ELBOs has ended; None if it goes on."""
    if not trace:
        return None
    elbo = trace[-1]
    if not np.isfinite(elbo).all():
        wrong = elbo[~np.isfinite(elbo)].flat[0]
        return Status("failed", f"the bound became {wrong} at step {len(trace)}")
    if len(trace) < 2:
        return None
    change, size = elbo - trace[-2], np.maximum(1.0, np.abs(elbo))
    if is_ascent and (change < -rounding * size).any():
        return Status("failed", f"the bound fell by {-change.min():.3g} at step {len(trace)}")
    if (np.abs(change) <= tolerance * size).all():
        return Status(
            "converged",
            f"the bound moved by less than {tolerance:g} of its size at step {len(trace)}",
        )
    return None


def cut_off(trace: list[np.ndarray]) -> Status:
    """How an ascent ended that was given no more steps."""
    if len(trace) < 2:
        return Status("max_steps", "one step is too few to judge")
    change = np.ravel(trace[-1] - trace[-2])
    last = change[np.argmax(np.abs(change))]
    return Status("max_steps", f"the bound moved by {last:+.2g} at the last step, {len(trace)}")


# ------------------------------------------------------------------ passes over chunks


def ascend_in_passes(
    form: ClosedForm,
    bags: Bags | BagStream,
    devices: Devices,
    limits: Limits,
    *,
    key: Array,
    checkpoint: BlockFolder | None = None,
) -> Ascent:
    """Repeat passes over chunks of bags until the ELBO stops rising.

    Parameters
    ----------
    form : ClosedForm
        Without local factors.
    bags : Bags or BagStream
        Bags in memory are dealt to the devices; a stream is read again for each pass.
    devices : Devices
        That the chunks are dealt to; those of other processes have chunks of their own.
    limits, key
        As of `ascend_in_memory`.
    checkpoint : BlockFolder or None
        A block for each step; goes on behind the last.

    Returns
    -------
    Ascent
        ``seconds`` with those of reading.
    """

    def advance(position: tuple[Any, Any], _: int) -> tuple[tuple[Any, Any], np.ndarray]:
        q = devices.once(m_step_of, form, position[1])
        statistics = passes.statistics(q)
        elbo = devices.once(elbo_of, form, q, statistics)
        return (q, statistics), np.asarray(elbo)[None]

    started = Stopwatch.now()
    same = f"{described(form)} {limits.max_steps} {limits.tolerance}"
    devices.agree(same, "models, max_steps or tolerance")
    is_begun = num_begun(devices, checkpoint) > 0
    chunks, length = chunks_of(bags, devices)
    form = form.in_memory(bags) if isinstance(bags, Bags) else form
    with one_lapack_thread(), TemporaryDirectory() as folder:
        passes = Passes(form, chunks, length, devices, Path(folder))
        statistics = form.no_statistics()
        if not is_begun:  # else what is written down takes its place
            subsample_chunks = partial(subsample, chunks, form, devices)
            statistics = passes.initial(form.start(subsample_chunks, key))
        position = (devices.once(m_step_of, form, statistics), statistics)
        before = Stopwatch.now() - started
        position, elbo, status, seconds = repeat_steps(
            advance, position, form, limits, checkpoint=checkpoint
        )
    return Ascent(position[0], None, elbo, status, before + seconds)


def m_step_of(form: ClosedForm, statistics: Any) -> Any:
    """q(θ), as a function of pytrees alone."""
    return form.m_step(statistics)


def elbo_of(form: ClosedForm, q: Any, statistics: Any) -> Array:
    """The ELBO, as a function of pytrees alone."""
    return form.elbo(q, statistics)


def chunks_of(bags: Bags | BagStream, devices: Devices) -> tuple[BagStream | list[Bags], int]:
    """Chunks for the devices of this process, and the length that all are filled up to."""
    if isinstance(bags, BagStream):
        return bags, whole_blocks(min(bags.chunk_instances, bags.num_instances))
    chunks = in_parts(bags, devices.num_parts)
    return chunks, bucket(max(part.num_instances for part in chunks))


def num_begun(devices: Devices, checkpoint: BlockFolder | None) -> int:
    """How many steps all processes have written down; what some have beyond is forgotten."""
    begun = devices.extremes(checkpoint.num_blocks if checkpoint else 0)[0]
    if checkpoint:  # of a process that was not killed there may be one more
        checkpoint.cut(begun)
    return begun


def subsample(
    chunks: Iterable[Bags],
    form: ClosedForm,
    devices: Devices,
    rows: Callable[[Bags], Float[np.ndarray, "N F"]],
    at_most: int,
) -> Float[np.ndarray, "n F"]:
    """Subsample the rows of every k-th instance over all processes, k as small as possible.

    Parameters
    ----------
    chunks : iterable of Bags
        Of this process.
    form : ClosedForm
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
    """Statistics of all chunks. What is prepared of them is kept: in memory, or in files.

    Parameters
    ----------
    form : ClosedForm
    chunks : iterable of Bags
        To be gone through again and again, the same each time; a list stays in memory.
    chunk_instances : int
        That chunks are filled up to.
    devices : Devices
    folder : Path
        For files.
    """

    def __init__(
        self,
        form: ClosedForm,
        chunks: Iterable[Bags],
        chunk_instances: int,
        devices: Devices,
        folder: Path,
    ) -> None:
        self._form, self._chunks, self._chunk_instances = form, chunks, chunk_instances
        self._devices = devices
        self._nothing = devices.repeated(form.no_statistics())
        self._in_memory = isinstance(chunks, list)
        self._keeps, self._is_kept = self._in_memory or form.is_compact, False
        self._prepared: list[Any] | _InFiles = [] if self._in_memory else _InFiles(folder, devices)
        self._buffers = AlternatingBuffers()
        # For the chunks of two turns, and the one that is read ahead.
        self._read_to = ChunkBuffers(chunk_instances, 2 * devices.num_parts + 1)

    def initial(self, start: Any) -> Any:
        """The first statistics, of one pass."""
        return self._devices.total(self._of_chunks(start, begins=True))

    def statistics(self, q: Any) -> Any:
        """Expected sufficient statistics under q(θ), by one pass."""
        if self._is_kept:
            return self._devices.total(self._of_prepared(q))
        return self._devices.total(self._of_chunks(q, begins=False))

    def _of_prepared(self, q: Any) -> Any:
        total = self._nothing
        for prepared in self._prepared:
            given = (total, prepared)
            before, total = total, self._devices.on_parts(_add, given, self._form, q)
            jax.block_until_ready(before)  # else chunks read faster than summed would pile up
        return total

    def _of_chunks(self, q_or_start: Any, *, begins: bool) -> Any:
        options, made = {"begins": begins, "keeps": self._keeps}, (self._nothing, None)
        for parts in self._filled():
            # Each needs the total before it, so that no two share a core and its cache.
            given, before = (made[0], self._devices.put(parts)), made
            made = self._devices.on_parts(
                _prepare_and_add, given, self._form, q_or_start, **options
            )
            self._keep(*before)  # which waits for it: the next is under way by then
        self._keep(*made)
        self._is_kept = self._keeps
        return made[0]

    def _filled(self) -> Iterator[list[Bags]]:
        """Chunks for the devices, as many at once as there are."""
        num_parts, length = self._devices.num_parts, self._chunk_instances
        given = self._chunks
        every = given.read_to(self._read_to) if isinstance(given, BagStream) else given
        for chunks in batched(every, num_parts):
            for bags in chunks:
                self._form.check(bags)
            # What stays in memory may still be in its buffer.
            buffer = new_buffer if self._in_memory else self._buffers.next_turn()
            yield padded_chunks(
                chunks,
                num_instances=length,
                num_parts=num_parts,
                buffer=buffer,
                read_to=self._read_to,
            )

    def _keep(self, total: Any, prepared: Any) -> None:
        jax.block_until_ready(total)
        if prepared is not None:
            self._prepared.append(prepared)


def _prepare_and_add(
    total: Any, chunk: Bags, form: ClosedForm, q_or_start: Any, *, begins: bool, keeps: bool
) -> tuple[Any, Any]:
    prepared = form.prepare(chunk)
    return _add(total, prepared, form, q_or_start, begins), prepared if keeps else None


def _add(total: Any, prepared: Any, form: ClosedForm, q_or_start: Any, begins: bool = False) -> Any:
    return jax.tree.map(jnp.add, total, statistics_of(form, prepared, q_or_start, begins))


def statistics_of(form: ClosedForm, prepared: Any, q_or_start: Any, begins: bool) -> Any:
    """Statistics of a chunk under q(θ), or the first ones, of a start."""
    if begins:
        return form.initial(prepared, q_or_start)[0]
    return form.e_step(prepared, q_or_start, None)[0]


class _InFiles:
    """What was prepared, each in a file: the numbers of one device's part behind another's.

    The newest waits in memory. So a pass does not end with writing, nor the next one with reading.
    """

    def __init__(self, folder: Path, devices: Devices) -> None:
        self._folder, self._devices = folder, devices
        self._layouts: list[Any] = []
        self._newest: Any = None
        self._buffers = AlternatingBuffers()

    def append(self, prepared: Any) -> None:
        """The next one."""
        if self._newest is not None:
            self._write(self._newest)
        self._newest = prepared

    def _write(self, prepared: Any) -> None:
        with self._file(len(self._layouts)).open("wb") as file:
            for part in zip(*map(_parts_of, jax.tree.leaves(prepared)), strict=True):
                for values in part:
                    file.write(values)
        self._layouts.append(jax.tree.map(_layout_of_part, prepared))

    def __iter__(self) -> Iterator[Any]:
        """One after another. Before the next but one is asked for, all must be done with one."""
        for number, of_part in enumerate(self._layouts):
            buffer = self._buffers.next_turn()
            with self._file(number).open("rb") as file:
                read = partial(_read, file, buffer)
                parts = [jax.tree.map(read, of_part) for _ in self._devices.own]
            yield self._devices.put(parts)
        yield self._newest

    def _file(self, number: int) -> Path:
        return self._folder / str(number)


def _layout_of_part(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _read(
    file: BufferedReader, buffer: AlternatingBuffers, layout: jax.ShapeDtypeStruct
) -> np.ndarray:
    values = buffer(layout.shape, layout.dtype)
    file.readinto(values)
    return values


def _parts_of(leaf: jax.Array) -> list[np.ndarray]:
    """Of the devices in their order, each as it is: to join them would be to copy them."""
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data)[0] for shard in shards]
