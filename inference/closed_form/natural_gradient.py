"""Natural-gradient ascent by batches: the stochastic form of the closed-form updates.

q(θ) is an exponential family whose natural parameters are its prior's and expected sufficient
statistics. The natural gradient of the bound leads from these statistics to those that coordinate
ascent would take next, so that a step of size ρ by a batch of n of the N instances is

.. code-block:: text

    statistics  ←  (1 − ρ_t) statistics + ρ_t N/n (statistics of the batch, under q)
    q(θ)        ←  m_step(statistics),                              ρ_t = n/n_max (t + τ)^−κ

A step is in proportion to the size of its batch. Else the shorter batches of a pass, scaled up by
more, would count for more than their instances.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import batched, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from ...datasets.bags import Bags
from ...datasets.padding import bucket
from ...datasets.streaming import BagStream
from ...models.model import Model, random_key, split_key
from ...models.numerics.threads import one_lapack_thread
from ...models.parts.bag_latent import FloatType
from ..arguments import engine
from ..posterior import Posterior, Status
from ..runtime.checkpoint import BlockFolder
from ..runtime.chunks import in_pieces, padded_chunks
from ..runtime.devices import Devices
from ..runtime.programs import Stopwatch
from .algorithm import ClosedForm, Options
from .coordinate_ascent import checked_form, wrapped
from .drivers import (
    Ascent,
    Limits,
    Passes,
    begun_run,
    best_of,
    num_begun,
    repeat_steps,
    statistics_of,
)

__all__ = ["natural_gradient"]

# Nats. A converged ascent may lack as much of its bound.
_NEGLIGIBLE_GAIN = 0.5


class _Position(NamedTuple):
    """After a step."""

    number: Int[Array, ""]  # t
    statistics: Any  # running
    q: Any


@engine
def natural_gradient(
    model: Model,
    bags: Bags | BagStream,
    *,
    seed: int | Array,
    max_steps: int = 500,
    batch_instances: int = 4096,
    delay: float = 1.0,
    forgetting: float = 0.7,
    num_starts: int | None = None,
    num_draws: int | None = None,
    dtype: FloatType = "float64",
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> Posterior:
    """Fit the closed-form approximation by natural gradients of batches of bags.

    It is for bags that are so many that a step over all of them takes too long. It ends with two
    steps over all bags, whose gains tell whether it has converged.

    Parameters
    ----------
    model : VGPMIL, VWSGP or DPMIL
        As of `coordinate_ascent`, the same q(θ) being approached.
    bags : Bags or BagStream
        Bags in memory are drawn in a new order for each pass. A stream is read in its own order,
        which must be one of chance: write the bags shuffled.
    seed : int or JAX key
        Of the order, of random starts (DPMIL) and of the draws in the tree.
    max_steps : int
        Batches.
    batch_instances : int
        Of whole bags, for each device: at most, but for a bag that is larger.
    delay, forgetting : float
        τ ≥ 0 and ½ < κ ≤ 1 of the steps' sizes (t + τ)^−κ; less for batches that are shorter.
    num_starts, num_draws, dtype, mesh, checkpoint, progress
        As of `coordinate_ascent`.

    Returns
    -------
    Posterior
        ``elbo`` has estimates by the batches, each before its step, then the bound itself before
        the two steps over all bags, between and after them. ``status`` is ``converged`` if by what
        these added less than half a nat is lacking.

    Raises
    ------
    ValueError
        If an option is out of range, a hyper-parameter has a prior, a stream has a bad file or row,
        or the checkpoint is of another run.
    NotImplementedError
        If the model has no closed form by sums over bags.

    References
    ----------
    Hoffman, Blei, Wang and Paisley (2013), Stochastic variational inference.

    Examples
    --------
    Batches approach the bound of `coordinate_ascent`:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import coordinate_ascent, natural_gradient
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> ascent = coordinate_ascent(model, bags, seed=0)
    >>> by_batches = natural_gradient(model, bags, seed=0, max_steps=50)
    >>> [round(float(posterior.elbo[-1]), 2) for posterior in (ascent, by_batches)]
    [-2.97, -2.97]
    """
    watch = Stopwatch()
    form = checked_form(model, Options(None, dtype, num_starts, in_chunks=True))
    if isinstance(bags, Bags):
        form.check(bags)
    with jax.enable_x64(True):
        start_key, order_key, draw_key = split_key(random_key(seed), 3)
        devices, limits = Devices(mesh), Limits(max_steps, 0.0, progress)
        options = {"batch_instances": batch_instances, "delay": delay, "forgetting": forgetting}
        run = {"form": form, "order": order_key, "seed": start_key, **options}
        with devices.together(), one_lapack_thread(), TemporaryDirectory() as folder:
            written = begun_run(devices, checkpoint, bags, limits, engine="natural_gradient", **run)
            passes = Passes(form, bags, devices, Path(folder))
            steps = _Steps(form.evaluated(), devices, bags, order_key, **options)
            start = partial(form.start, passes.subsample, start_key)
            ascent = steps.taken(start, limits, written)
            if ascent.status.kind != "failed":
                ascent = _with_whole_steps(ascent, passes, devices)
        return wrapped(ascent, bags, "natural_gradient", draw_key, num_draws, watch)


@dataclass(frozen=True)
class _Steps:
    """Steps by batches, one batch for each device at a time."""

    form: ClosedForm
    devices: Devices
    bags: Bags | BagStream
    order_key: Array
    batch_instances: int
    delay: float  # τ
    forgetting: float  # κ

    def taken(
        self, start: Callable[[], Any], limits: Limits, checkpoint: BlockFolder | None
    ) -> Ascent:
        """Take the steps, from the last written one on if there is a checkpoint."""
        started, form, devices = Stopwatch.now(), self.form, self.devices
        num_done = num_begun(devices, checkpoint)
        num_instances = devices.gathered(np.array([float(self.bags.num_instances)])).sum()  # N
        largest = min(num_instances, self.batch_instances * devices.num_devices)  # n_max
        # The first batch makes the first q(θ), without a step.
        batches = self._batches_behind(num_done + 1 if num_done else 0)

        def of_next(q_or_start: Any, *, begins: bool) -> tuple[Any, np.ndarray]:
            given = (form, q_or_start)
            found = devices.on_parts(_of_batch, (next(batches),), *given, begins=begins)
            return devices.total(found)

        def advance(position: _Position, _: int) -> tuple[_Position, np.ndarray]:
            found, size = of_next(position.q, begins=False)
            decay = (int(position.number) + self.delay) ** -self.forgetting
            sizes = (num_instances / size, min(1.0, size / largest) * decay)
            position, elbo = devices.once(_moved, form, position, found, *sizes)
            return position, np.asarray(elbo)[None]

        # With a checkpoint `repeat_steps` reads the last position in place of this one.
        found, size = form.no_statistics(), num_instances
        if not num_done:
            found, size = of_next(start(), begins=True)
        position = devices.once(_first_position, form, found, num_instances / size)
        before = Stopwatch.now() - started
        position, elbo, status, seconds = repeat_steps(
            advance, position, limits, math.inf, checkpoint
        )
        return Ascent(form, position.q, None, elbo, status, before + seconds)

    def _batches_behind(self, num_done: int) -> Iterator[Any]:
        """Batches by device, without end, the first ``num_done`` left out."""
        num_parts = self.devices.num_parts
        length = bucket(min(self.batch_instances, self.bags.num_instances))
        for chunks in islice(batched(self._pieces(), num_parts), num_done, None):
            for bags in chunks:
                self.form.check(bags)
            parts = padded_chunks(chunks, num_instances=length, num_parts=num_parts)
            yield self.devices.put(parts)

    def _pieces(self) -> Iterator[Bags]:
        for number in count():
            bags = self.bags
            if isinstance(bags, Bags):
                key = jax.random.fold_in(self.order_key, number)
                # By NumPy: JAX would compile a program for each number of bags.
                random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
                bags = bags.select(random.permutation(bags.num_bags))
            yield from in_pieces(bags, self.batch_instances)


def _of_batch(
    chunk: Bags, form: ClosedForm, q_or_start: Any, *, begins: bool
) -> tuple[Any, Float[Array, ""]]:
    """Statistics of a batch, and its number of instances."""
    size = jnp.sum(jnp.asarray(chunk.present)[jnp.asarray(chunk.bag_index)], dtype=float)
    return statistics_of(form, form.prepare(chunk), q_or_start, begins), size


def _first_position(form: ClosedForm, statistics: Any, scale: Array) -> _Position:
    statistics = form.in_order(_scaled(statistics, scale))
    return _Position(jnp.asarray(1), statistics, form.m_step(statistics))


def _moved(
    form: ClosedForm, position: _Position, found: Any, scale: Array, step: Array
) -> tuple[_Position, Array]:
    """One step of size ρ_t, and the ELBO before it by the batch."""
    scaled = _scaled(found, scale)
    statistics = jax.tree.map(
        lambda old, new: (1 - step) * old + step * new, position.statistics, scaled
    )
    statistics = form.in_order(statistics)
    following = _Position(position.number + 1, statistics, form.m_step(statistics))
    return following, form.elbo(position.q, scaled)


def _scaled(statistics: Any, scale: Array | float) -> Any:
    """Statistics of a batch as if all instances were like it."""
    return jax.tree.map(lambda leaf: leaf * scale, statistics)


def _with_whole_steps(ascent: Ascent, passes: Passes, devices: Devices) -> Ascent:
    """Take two steps of coordinate ascent, whose gains show how much of the bound is lacking."""
    started, form, q, bounds = Stopwatch.now(), ascent.form, ascent.q, []
    for is_last in (False, False, True):
        statistics = passes.statistics(q)
        bounds.append(np.asarray(devices.once(type(form).elbo, form, q, statistics)))
        q = q if is_last else devices.once(type(form).m_step, form, statistics)
    of_best = np.reshape(bounds, (3, -1))[:, best_of(bounds[-1])]
    status = _judged(of_best, len(ascent.elbo), form.allowed_fall)
    seconds = ascent.seconds + Stopwatch.now() - started
    elbo = np.concatenate([ascent.elbo, bounds])
    return replace(ascent, q=q, elbo=elbo, status=status, seconds=seconds)


def _judged(bounds: Float[np.ndarray, "3"], num_steps: int, rounding: float) -> Status:
    if not np.isfinite(bounds).all():
        return Status("failed", f"the bound became {bounds[-1]} behind {num_steps:,} steps")
    lacking = _lacking(bounds, rounding)
    first, second = np.diff(bounds)
    return Status(
        "converged" if lacking < _NEGLIGIBLE_GAIN else "max_steps",
        f"two steps over all bags behind {num_steps:,} steps by batches raised the bound by "
        f"{first:.3g} and {second:.3g} nats; going on like this would by {lacking:.3g}",
    )


def _lacking(bounds: Float[np.ndarray, "3"], rounding: float) -> float:
    """Gains still to come, in nats, if they fall as a geometric series does.

    A small gain alone says little: where coordinate ascent is slow, all its gains are small.
    """
    first, second = np.diff(bounds)
    if second <= rounding * max(1.0, abs(bounds[-1])):
        return 0.0
    return float(second**2 / (first - second)) if second < first else math.inf
