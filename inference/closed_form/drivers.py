"""Drivers of closed forms: coordinate ascent in memory and over chunks, and hyper-parameters.

A driver repeats ``m_step`` and ``e_step`` of a `ClosedForm` and knows no model. Its programs stand
at module level and take the form, the bags and every number as arguments: they are compiled once
for all bags of one size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import batched, chain
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpyro.distributions import Distribution, biject_to

from ...datasets.arguments import AT_LEAST_ZERO, WHOLE, check
from ...datasets.bags import Bags
from ...datasets.padding import bucket
from ...datasets.streaming import BagStream
from ...models.numerics.lbfgs import descend
from ...models.numerics.products import whole_blocks
from ...models.numerics.threads import one_lapack_thread
from ...models.parts.hyperpriors import number_or_array
from ..posterior import Status
from ..runtime.checkpoint import BlockFolder, block_folder, described
from ..runtime.chunks import (
    AlternatingBuffers,
    ChunkBuffers,
    PiecesInMemory,
    in_parts,
    new_buffer,
    padded_chunks,
)
from ..runtime.devices import Devices
from ..runtime.programs import Stopwatch
from ..runtime.progress import Progress
from .algorithm import ClosedForm

__all__ = [
    "AfterStep",
    "Ascent",
    "Limits",
    "Passes",
    "ascend_in_memory",
    "ascend_in_passes",
    "ascend_traced",
    "begun_run",
    "best_of",
    "num_begun",
    "repeat_steps",
    "statistics_of",
]

# Steps between two looks at the progress bar, at first and at most: one call of one program each.
_FIRST_BLOCK, _LONGEST_BLOCK = 8, 128
# Seconds of a block, about, from which on blocks grow no longer.
_SECONDS_OF_A_BLOCK = 1.0
# Quasi-Newton steps in the hyper-parameters between two updates of the factors.
_INNER_STEPS = 4

_COLLAPSED = (
    "the bound prefers a model that ignores the features, its prior variance near 0, as it charges "
    "for what is unknown; the evidence may not: try laplace with learn_hyperparameters=True"
)

type AfterStep = Callable[[Ascent], Status | None]
type Values = dict[str, Float[Array, "*D"] | Float[np.ndarray, "*D"]]


@dataclass(frozen=True)
class Ascent:
    """Where coordinate ascent ended, and how it got there.

    Attributes
    ----------
    form : ClosedForm
        With the learned hyper-parameters.
    q : pytree
        q(θ), of each start if there are several.
    local : pytree or None
        Local factors, where they are kept.
    elbo : array (T,) or (T, S)
    status : Status
    seconds : float
        Without compilation.
    """

    form: ClosedForm
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
        If ``max_steps`` is below 1 or ``tolerance`` below 0.
    """

    max_steps: int
    tolerance: float
    progress: bool = False

    def __post_init__(self) -> None:  # by the names of the arguments that they were
        check("max_steps", self.max_steps, WHOLE)
        check("tolerance", self.tolerance, AT_LEAST_ZERO)


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
    priors: Mapping[str, Distribution] = MappingProxyType({}),
    after_step: AfterStep | None = None,
) -> Ascent:
    """Repeat the two steps until the ELBO stops rising; of several starts at once, until all do.

    Parameters
    ----------
    form : ClosedForm
    bags : Bags
    limits : Limits
    key : JAX key
        Draws the random part of the start.
    learns_hyperparameters : bool
        Whether each step ascends the ELBO in the model's hyper-parameters too.
    priors : mapping of str to Distribution
        Of hyper-parameters; the ELBO and their log density are ascended together.
    after_step : callable or None
        Takes the ascent up to each step, and returns a status where it ends there.

    Returns
    -------
    Ascent
        ``elbo`` is that of the last values at its end, and before it differs from the sum by a
        constant. ``status`` is ``failed`` if an ELBO is not finite, or falls where it must not.
    """
    form = form.in_memory(bags)
    if learns_hyperparameters:
        form = form.with_normaliser(key)
    started = Stopwatch.now()
    chunk = form.chunk(bags)
    start = form.start(lambda rows, at_most: rows(bags)[:: -(-bags.num_instances // at_most)], key)
    with one_lapack_thread():
        prepared, position = _begin(form, chunk, start)
    run = partial(_ascend, form, prepared)
    if learns_hyperparameters:
        position = position._replace(q=(position.q, _unconstrained(form.model)))
        run = partial(_learn, form, chunk, dict(priors))

    def advance(position: _Position, at_most: int) -> tuple[_Position, np.ndarray]:
        first = int(position.num_steps)
        last = np.asarray(first + at_most, np.int64)
        position, elbo = run(position, last, np.asarray(limits.tolerance, float))
        return position, np.asarray(elbo)[: int(position.num_steps) - first]

    end = partial(_end, form, priors if learns_hyperparameters else None)

    def watched(position: _Position, trace: list[np.ndarray]) -> Status | None:
        assert after_step is not None
        return after_step(end(position, np.array(trace), cut_off(trace), seconds=0.0))

    before = Stopwatch.now() - started
    position, elbo, status, seconds = repeat_steps(
        advance, position, limits, form.allowed_fall, after_step=watched if after_step else None
    )
    ascent = end(position, elbo, status, before + seconds)
    if learns_hyperparameters and status.kind != "failed" and (doubt := ascent.form.doubt(chunk)):
        status = Status(ascent.status.kind, f"{ascent.status.sentence}; {doubt}")
        ascent = replace(ascent, status=status)
    return ascent


def _end(
    form: ClosedForm,
    priors: Mapping[str, Distribution] | None,
    position: _Position,
    elbo: Float[np.ndarray, "T ..."],
    status: Status,
    seconds: float,
) -> Ascent:
    """The ascent up to a position; ``priors`` are None where no hyper-parameters are learned."""
    q = position.q
    if priors is not None:
        q, unconstrained = q
        learned = _constrained(form.model, unconstrained)
        elbo = elbo - float(_log_prior(priors, learned))
        form = form.with_hyperparameters({name: number_or_array(v) for name, v in learned.items()})
        if form.model.ignores_features and status.kind != "failed":
            status = Status("collapsed", f"{_COLLAPSED}; {status.sentence}")
    return Ascent(form, q, position.local, elbo, status, seconds)


@jax.jit
def _begin(form: ClosedForm, chunk: Any, start: Any) -> tuple[Any, _Position]:
    """Prepare the chunk, and return the position before the first step."""
    prepared = form.prepare(chunk)
    return prepared, _before_the_first_step(form, *form.initial(prepared, start))


def _before_the_first_step(form: ClosedForm, statistics: Any, local: Any) -> _Position:
    """Zeros in the places of q(θ) and of the ELBO, which the first step does not look at."""
    q = jax.eval_shape(form.m_step, statistics)
    of = (q, jax.eval_shape(form.elbo, q, statistics))
    q, elbo = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), of)
    return _Position(q, statistics, local, elbo, jnp.asarray(0))


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
        has_fallen, is_at_rest = _compared(before.elbo, after.elbo, tolerance, form.allowed_fall)
        is_done = jnp.all(is_at_rest) | jnp.any(has_fallen)
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
        name: np.asarray(biject_to(model.support_of(name)).inv(number_or_array(value)), float)
        for name, value in model.hyperparameters.items()
    }


def _constrained(model: Any, unconstrained: Values) -> Values:
    return {name: biject_to(model.support_of(name))(value) for name, value in unconstrained.items()}


def _log_prior(priors: Mapping[str, Distribution], values: Values) -> Float[Array, ""]:
    return sum((prior.log_prob(values[name]) for name, prior in priors.items()), jnp.zeros(()))


@jax.jit
def _learn(
    form: ClosedForm,
    chunk: Any,
    priors: dict[str, Distribution],
    position: _Position,
    last: Array,
    tolerance: Array,
) -> tuple[_Position, Float[Array, "T ..."]]:
    """Steps in the hyper-parameters and, under them, in all factors; ELBO and log prior as one.

    A few quasi-Newton steps with line search raise the ELBO in the hyper-parameters, each value of
    which is judged after one round of updates under it: q(ε) moves along with the kernel, as on a
    ridge it must, and the whole is monotone.

    References
    ----------
    Castro-Macías et al. (2024), section 4.
    """

    def updated(unconstrained: Values, q: Any, local: Any) -> tuple[Any, Any, Any, Array]:
        values = _constrained(form.model, unconstrained)
        there = form.with_hyperparameters(values)
        prepared = there.prepare(chunk)
        statistics, local = there.e_step(prepared, q, local)
        q = there.m_step(statistics)
        statistics, local = there.e_step(prepared, q, local)
        return q, statistics, local, there.elbo(q, statistics) + _log_prior(priors, values)

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
    limits: Limits,
    allowed_fall: float,
    checkpoint: BlockFolder | None = None,
    after_step: Callable[[Any, list[np.ndarray]], Status | None] | None = None,
) -> tuple[Any, Float[np.ndarray, "T ..."], Status, float]:
    """Steps until the ELBO stops rising, in blocks that grow as long as they are quick.

    Parameters
    ----------
    advance : callable
        State and a number of steps → the state at most so many steps on, and the ELBO after each.
    state : pytree
    limits : Limits
    allowed_fall : float
        As of `ClosedForm`.
    checkpoint : BlockFolder or None
        For an ``advance`` of one step: a block for each; goes on behind the last.
    after_step : callable or None
        Takes the state and the trace after each step, and returns a status where it is the last.

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
    done = checkpoint.blocks(0.0) if checkpoint else []
    trace, seconds = [np.asarray(elbo) for elbo, _ in done], sum(taken for _, taken in done)
    if checkpoint and done:
        state = checkpoint.state(state)
    status, length = judge(trace, limits.tolerance, allowed_fall), _FIRST_BLOCK
    with (
        one_lapack_thread(),
        Progress("coordinate ascent", limits.max_steps, shown=limits.progress) as bar,
    ):
        bar.advance(len(trace))
        while status is None and len(trace) < limits.max_steps:
            started = Stopwatch.now()
            at_most = 1 if after_step else min(length, limits.max_steps - len(trace))
            state, elbo = advance(state, at_most)
            trace.extend(np.asarray(one) for one in elbo)
            taken = Stopwatch.now() - started
            if checkpoint:
                checkpoint.write(len(trace) - 1, state, trace[-1], taken)
            if taken < _SECONDS_OF_A_BLOCK:
                length = min(2 * length, _LONGEST_BLOCK)
            seconds += taken
            bar.advance(len(elbo))
            status = judge(trace, limits.tolerance, allowed_fall)
            if after_step:
                status = after_step(state, trace) or status
    return state, np.array(trace), status or cut_off(trace), seconds


def judge(trace: list[np.ndarray], tolerance: float, allowed_fall: float) -> Status | None:
    """How an ascent with this trace of ELBOs has ended; None if it goes on."""
    if not trace:
        return None
    elbo = trace[-1]
    if not np.isfinite(elbo).all():
        wrong = elbo[~np.isfinite(elbo)].flat[0]
        return Status("failed", f"the bound became {wrong} at step {len(trace)}")
    if len(trace) < 2:
        return None
    has_fallen, is_at_rest = _compared(trace[-2], elbo, tolerance, allowed_fall)
    if has_fallen.any():
        fall = (trace[-2] - elbo).max()
        return Status("failed", f"the bound fell by {fall:.3g} at step {len(trace)}")
    if is_at_rest.all():
        return Status(
            "converged",
            f"the bound moved by less than {tolerance:g} of its size at step {len(trace)}",
        )
    return None


def _compared(before: Any, after: Any, tolerance: Any, allowed_fall: float) -> tuple[Any, Any]:
    """Whether an ELBO has fallen, and whether it is at rest; NumPy arrays or traced ones."""
    change = (after - before) / abs(after).clip(1.0)
    return change < -allowed_fall, abs(change) <= tolerance


def cut_off(trace: list[np.ndarray]) -> Status:
    """How an ascent ended that was given no more steps."""
    if len(trace) < 2:
        return Status("max_steps", "one step is too few to judge")
    change = np.ravel(trace[-1] - trace[-2])
    last = change[np.argmax(np.abs(change))]
    return Status("max_steps", f"the bound moved by {last:+.2g} at the last step, {len(trace)}")


def best_of(elbo: Float[np.ndarray, "*S"]) -> int:
    """Which start has the highest ELBO."""
    return int(np.argmax(np.where(np.isfinite(elbo), elbo, -np.inf)))


# ------------------------------------------------------------------ passes over chunks


def ascend_in_passes(
    form: ClosedForm,
    bags: Bags | BagStream | PiecesInMemory,
    limits: Limits,
    *,
    key: Array,
    devices: Devices,
    checkpoint: str | os.PathLike | None = None,
) -> Ascent:
    """Repeat passes over chunks of bags until the ELBO stops rising.

    Parameters
    ----------
    form : ClosedForm
        Without local factors.
    bags : Bags or BagStream
        Bags in memory are dealt to the devices; a stream is read again for each pass.
    limits, key
        As of `ascend_in_memory`.
    devices : Devices
        That the chunks are dealt to; those of other processes have chunks of their own.
    checkpoint : path or None
        A folder for a block for each step; goes on behind the last.

    Returns
    -------
    Ascent
        ``seconds`` with those of reading.
    """

    def advance(position: tuple[Any, Any], _: int) -> tuple[tuple[Any, Any], np.ndarray]:
        q = devices.once(type(form).m_step, form, position[1])
        statistics = passes.statistics(q)
        elbo = devices.once(type(form).elbo, form, q, statistics)
        return (q, statistics), np.asarray(elbo)[None]

    with devices.together(), one_lapack_thread(), TemporaryDirectory() as folder:
        run = {"form": form, "seed": key, "tolerance": limits.tolerance}
        given = bags.bags if isinstance(bags, PiecesInMemory) else bags
        written = begun_run(devices, checkpoint, given, limits, engine="coordinate_ascent", **run)
        started = Stopwatch.now()
        passes = Passes(form, bags, devices, Path(folder))
        statistics = form.no_statistics()
        if not num_begun(devices, written):  # else `repeat_steps` reads the last statistics
            statistics = passes.initial(form.start(passes.subsample, key))
        position = (devices.once(type(form).m_step, form, statistics), statistics)
        before = Stopwatch.now() - started
        position, elbo, status, seconds = repeat_steps(
            advance, position, limits, form.allowed_fall, written
        )
    return Ascent(form, position[0], None, elbo, status, before + seconds)


def begun_run(
    devices: Devices,
    checkpoint: str | os.PathLike | None,
    bags: Bags | BagStream,
    limits: Limits,
    **run: Any,
) -> BlockFolder | None:
    """Open the checkpoint folder of this run, if it has one.

    Parameters
    ----------
    devices : Devices
    checkpoint : path or None
    bags : Bags or BagStream
    limits : Limits
    **run
        Identity of the run: the form, the name of the engine, and options.

    Returns
    -------
    BlockFolder or None

    Raises
    ------
    ValueError
        If processes were given different arguments, or the folder is of another run.
    """
    same = (run, limits.max_steps, limits.tolerance)
    devices.agree(described(same), "models or options")
    run["processes"] = devices.num_processes
    return block_folder(checkpoint, run["form"].model, bags, **run)


def num_begun(devices: Devices, checkpoint: BlockFolder | None) -> int:
    """Number of steps that all processes have written; later steps of some are dropped."""
    begun = devices.extremes(checkpoint.num_blocks if checkpoint else 0)[0]
    if checkpoint:  # a process that was not killed may have written one more
        checkpoint.cut(begun)
    return begun


class Passes:
    """Statistics of all chunks. Prepared chunks are kept, in memory or in files.

    Parameters
    ----------
    form : ClosedForm
    bags : Bags, BagStream or PiecesInMemory
        Bags in memory are dealt to the devices, and stay there.
    devices : Devices
    folder : Path
        For files.
    """

    def __init__(
        self,
        form: ClosedForm,
        bags: Bags | BagStream | PiecesInMemory,
        devices: Devices,
        folder: Path,
    ) -> None:
        self._devices, self._in_memory, self._is_kept = devices, isinstance(bags, Bags), False
        self._nothing = devices.repeated(form.no_statistics())
        self._prepared: list[Any] | _InFiles
        self._chunks: list[Bags] | BagStream | PiecesInMemory
        form = form.evaluated()
        if isinstance(bags, Bags):
            self._form, self._prepared = form.in_memory(bags), []
            self._chunks = in_parts(bags, devices.num_parts)
            length = bucket(max(part.num_instances for part in self._chunks))
        else:
            self._form, self._chunks, self._prepared = form, bags, _InFiles(folder, devices)
            length = whole_blocks(min(bags.chunk_instances, bags.num_instances))
        self._chunk_instances = length  # that all are filled up to
        self._keeps = self._in_memory or form.is_compact
        self._buffers = AlternatingBuffers()
        # For the chunks of two turns, and the one that is read ahead.
        self._read_to = ChunkBuffers(length, 2 * devices.num_parts + 1)

    def subsample(
        self, rows: Callable[[Bags], Float[np.ndarray, "N F"]], at_most: int
    ) -> Float[np.ndarray, "n F"]:
        """Subsample the rows of every k-th instance over all processes, k as small as possible.

        Parameters
        ----------
        rows : callable
            Bags → the rows of their instances.
        at_most : int
            Rows.

        Returns
        -------
        array (n, F)
            The same in every process.
        """
        chunks, mine = self._chunks, jax.process_index()
        is_list = isinstance(chunks, list)
        own = sum(bags.num_instances for bags in chunks) if is_list else chunks.num_instances
        process, num_instances = self._devices.gathered(np.array([[mine, own]], float)).T
        stride = int(-(-num_instances.sum() // at_most))
        before = int(num_instances[process < mine].sum())
        chosen = []
        for bags in chunks:
            self._form.check(bags)
            chosen.append(rows(bags)[-before % stride :: stride])
            before += bags.num_instances
        return self._devices.gathered(np.concatenate(chosen))

    def initial(self, start: Any) -> Any:
        """The first statistics, of one pass."""
        return self._devices.total(self._of_chunks(start, begins=True))

    def statistics(self, q: Any) -> Any:
        """Expected sufficient statistics under q(θ), by one pass."""
        found = self._of_prepared(q) if self._is_kept else self._of_chunks(q, begins=False)
        return self._devices.total(found)

    def _of_prepared(self, q: Any) -> Any:
        total = self._nothing
        for prepared in self._prepared:
            given = (total, prepared)
            before, total = total, self._devices.on_parts(_add, given, self._form, q)
            jax.block_until_ready(before)  # else chunks read faster than summed would pile up
        return total

    def _of_chunks(self, q_or_start: Any, *, begins: bool) -> Any:
        options, devices = {"begins": begins, "keeps": self._keeps}, self._devices
        made = (self._nothing, None)
        for parts in self._filled():
            # Each needs the total before it, so that no two share a core and its cache.
            given, before = (made[0], devices.put(parts)), made
            made = devices.on_parts(_prepare_and_add, given, self._form, q_or_start, **options)
            self._keep(*before)  # which waits for it: the next is under way by then
        self._keep(*made)
        self._is_kept = self._keeps
        return made[0]

    def _filled(self) -> Iterator[list[Bags]]:
        """Chunks for the devices, as many at once as there are."""
        num_parts, length = self._devices.num_parts, self._chunk_instances
        given = self._chunks
        every = given if isinstance(given, list) else given.read_to(self._read_to)
        for chunks in batched(every, num_parts):
            for bags in chunks:
                self._form.check(bags)
            # Chunks that stay in memory may still be in their buffers.
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
    """Prepared chunks, a file each: array after array, each with the parts of all devices.

    The newest chunk waits in memory. So a pass does not end with writing, nor the next one begin
    with reading.
    """

    def __init__(self, folder: Path, devices: Devices) -> None:
        self._folder, self._devices, self._newest = folder, devices, None
        self._layouts: list[Any] = []
        self._buffers = AlternatingBuffers()

    def append(self, prepared: Any) -> None:
        """The next one."""
        newest, self._newest = self._newest, prepared
        if newest is None:
            return
        with self._file(len(self._layouts)).open("wb") as file:
            for part in chain.from_iterable(map(_parts_of, jax.tree.leaves(newest))):
                file.write(part)
        self._layouts.append(jax.tree.map(self._layout, newest))

    def _layout(self, leaf: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self._devices.num_parts, *leaf.shape[1:]), leaf.dtype)

    def __iter__(self) -> Iterator[Any]:
        """One after another. Before the next but one is asked for, all must be done with one."""
        for number, layout in enumerate(self._layouts):
            buffer = self._buffers.next_turn()
            found = jax.tree.map(lambda leaf, give=buffer: give(leaf.shape, leaf.dtype), layout)
            with self._file(number).open("rb") as file:
                for values in jax.tree.leaves(found):
                    file.readinto(values)
            parts = range(self._devices.num_parts)
            yield self._devices.put([jax.tree.map(itemgetter(part), found) for part in parts])
        yield self._newest

    def _file(self, number: int) -> Path:
        return self._folder / str(number)


def _parts_of(leaf: jax.Array) -> list[np.ndarray]:
    """The parts of an array, in the order of their devices; to join them would copy them."""
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data) for shard in shards]
