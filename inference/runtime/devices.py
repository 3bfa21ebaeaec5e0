"""Run functions on the parts of the data, one on each device of a mesh, and sum over all parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

__all__ = ["AXIS", "Devices", "LostProcessError"]

# The axis of a mesh.
AXIS = "bags"
_OVER_PARTS, _THE_SAME = PartitionSpec(AXIS), PartitionSpec()


class LostProcessError(RuntimeError):
    """Another process that shares the bags has failed, or has ended."""


class Devices:
    """The devices of a mesh, each with a part of the data.

    Parts are on the devices of this process; other processes have parts of their own. Only
    `total`, `gathered`, `extremes` and the end of `together` wait for other processes.

    Parameters
    ----------
    mesh : Mesh or None
        With one axis, ``bags``, over the devices of one process or of several; None for one device.

    Raises
    ------
    ValueError
        If the mesh has other axes, or no device of this process.
    """

    def __init__(self, mesh: Mesh | None) -> None:
        if mesh is None:
            mesh = jax.make_mesh((1,), (AXIS,), (AxisType.Auto,), devices=jax.local_devices()[:1])
        if mesh.axis_names != (AXIS,):
            raise ValueError(
                f"mesh has axes {mesh.axis_names}; expected ({AXIS!r},), as "
                f"jax.make_mesh((num_devices,), ({AXIS!r},)) makes it"
            )
        # Sums by a mesh of explicit axes would have these in their types.
        self._whole = Mesh(mesh.devices, (AXIS,))
        self._local = self._whole.local_mesh
        self.num_parts = self._local.size

    @property
    def num_processes(self) -> int:
        """The number of processes that have parts."""
        return len({device.process_index for device in self._whole.devices.flat})

    @property
    def spans_processes(self) -> bool:
        """Whether other processes have parts too."""
        return self._whole.size > self._local.size

    @property
    def num_devices(self) -> int:
        """The number of devices of all processes."""
        return self._whole.size

    @property
    def own(self) -> list[tuple[int, Any]]:
        """The devices of this process, each with its index among all devices."""
        mine = jax.process_index()
        every = enumerate(self._whole.devices.flat)
        return [(index, device) for index, device in every if device.process_index == mine]

    def put(self, parts: Sequence[Any]) -> Any:
        """Put parts of equal shapes on the devices, one on each.

        Parameters
        ----------
        parts : sequence of pytrees of arrays
            ``num_parts`` of them.

        Returns
        -------
        pytree
            With an axis of parts in front.
        """
        # One by one: as slices of a whole each would be copied twice.
        own = [
            jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf)[None], part), device)
            for part, device in zip(parts, self._local.devices.flat, strict=True)
        ]
        sharding = NamedSharding(self._local, _OVER_PARTS)

        def joined(*leaves: jax.Array) -> jax.Array:
            shape = (self.num_parts, *leaves[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, sharding, list(leaves))

        return jax.tree.map(joined, *own)

    def repeated(self, part: Any) -> Any:
        """Put the same part on each device."""
        return self.put([part] * self.num_parts)

    def on_parts(
        self, function: Callable, parts: tuple[Any, ...], *common: Any, **options: Any
    ) -> Any:
        """Call ``function(*part, *common, **options)`` on the part of each device.

        Parameters
        ----------
        function : callable
            At module level: compiled once for all that have its arguments' shapes.
        parts : tuple of pytrees
            As from `put`, or from another call.
        *common : pytrees of arrays
            The same for all.
        **options
            Hashable.

        Returns
        -------
        pytree
            With an axis of parts in front.
        """
        return _on_parts(function, self._local, tuple(sorted(options.items())), parts, common)

    def once(self, function: Callable, *arguments: Any) -> Any:
        """Call ``function(*arguments)`` once, on arguments that all parts have in common."""
        return _once(function, *arguments)

    def total(self, parts: Any) -> Any:
        """Sum over all parts of all processes, and wait for it.

        Parameters
        ----------
        parts : pytree
            With an axis of parts in front.

        Returns
        -------
        pytree of NumPy arrays
            The same in every process.

        Raises
        ------
        LostProcessError
            If another process failed, or cannot be reached.
        """
        self.extremes(0)
        return self._reduced(_summed, parts)

    def gathered(self, rows: Any) -> Any:
        """Gather the rows of all processes, in the order of processes.

        Parameters
        ----------
        rows : pytree of NumPy arrays
            Of this process, all of one length; as many as it has.

        Returns
        -------
        pytree of NumPy arrays
            The same in every process.

        Raises
        ------
        LostProcessError
            If another process failed, or cannot be reached.
        """
        if not self.spans_processes:
            return rows
        num_rows = len(jax.tree.leaves(rows)[0])
        length = self.extremes(-(-num_rows // self.num_parts))[1]
        missing = length * self.num_parts - num_rows

        def in_parts(leaf: np.ndarray) -> list[np.ndarray]:
            widths = [(0, missing), *[(0, 0)] * (leaf.ndim - 1)]
            return np.split(np.pad(leaf, widths), self.num_parts)

        leaves, structure = jax.tree.flatten((rows, np.ones(num_rows, bool)))
        parts = self.put([list(part) for part in zip(*map(in_parts, leaves), strict=True)])
        found = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in self._reduced(_as_they_are, parts)]
        whole, is_row = jax.tree.unflatten(structure, found)
        return jax.tree.map(lambda leaf: leaf[is_row], whole)

    def agree(self, description: str, what: str) -> None:
        """Refuse processes that were given different arguments.

        Parameters
        ----------
        description : str
            Of the arguments of this process.
        what : str
            Name of the arguments, for the message.

        Raises
        ------
        ValueError
            If another process was given different ones.
        LostProcessError
            If another process failed, or cannot be reached.
        """
        mine = int(hashlib.sha256(description.encode()).hexdigest()[:15], 16)
        smallest, largest = self.extremes(mine)
        if smallest != largest:
            raise ValueError(f"processes were given different {what}; expected the same in all")

    def extremes(self, number: int) -> tuple[int, int]:
        """The smallest and the largest number that any process passes.

        Parameters
        ----------
        number : int
            Below 2⁶³.

        Returns
        -------
        pair of int

        Raises
        ------
        LostProcessError
            If another process failed, or cannot be reached.
        """
        if not self.spans_processes:
            return number, number
        smallest, largest, has_failed = self._exchange(number, has_failed=False)
        if has_failed:
            raise LostProcessError(
                f"process {jax.process_index()} of {jax.process_count()} ends because another "
                "failed, with an error of its own. Correct that and start all again: with "
                "checkpoint= they go on where all have been"
            )
        return smallest, largest

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context in which an error of one process ends all, each when it next waits for others.

        Raises
        ------
        LostProcessError
            If another process failed, or cannot be reached.
        """
        try:
            yield
            self.extremes(0)
        except LostProcessError:
            raise
        except Exception:
            with suppress(LostProcessError):
                self._exchange(0, has_failed=True)
            raise

    def _exchange(self, number: int, *, has_failed: bool) -> tuple[int, int, bool]:
        if not self.spans_processes:
            return number, number, has_failed
        own = self.repeated((np.array(number), np.array(has_failed)))
        smallest, largest, have_failed = self._reduced(_exchanged, own)
        return int(smallest), int(largest), bool(have_failed)

    def _reduced(self, function: Callable, parts: Any) -> Any:
        """Reduce the parts of all processes by a function."""
        over_all, the_same = (NamedSharding(self._whole, spec) for spec in (_OVER_PARTS, _THE_SAME))

        def with_others(leaf: jax.Array) -> jax.Array:
            shape = (self._whole.size, *leaf.shape[1:])
            own = [shard.data for shard in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(shape, over_all, own)

        whole = jax.tree.map(with_others, parts) if self.spans_processes else parts
        program = _reduction(function, the_same)
        try:
            found = jax.block_until_ready(program(whole))
        except (ValueError, RuntimeError) as error:
            if not self.spans_processes:
                raise
            raise LostProcessError(
                f"process {jax.process_index()} of {jax.process_count()} could not reach another "
                f"({error}); it may have ended, with an error of its own. Start all again: with "
                "checkpoint= they go on where all have been"
            ) from error
        return jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), found)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _on_parts(
    function: Callable,
    mesh: Mesh,
    options: tuple[tuple[str, Any], ...],
    parts: tuple[Any, ...],
    common: tuple[Any, ...],
) -> Any:
    def of_one(parts: tuple[Any, ...], common: tuple[Any, ...]) -> Any:
        own = jax.tree.map(lambda leaf: leaf[0], parts)
        found = function(*own, *common, **dict(options))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], found)

    mapped = jax.shard_map(
        of_one,
        mesh=mesh,
        in_specs=(_OVER_PARTS, _THE_SAME),
        out_specs=_OVER_PARTS,
        check_vma=False,
    )
    return mapped(parts, common)


@partial(jax.jit, static_argnums=0)
def _once(function: Callable, *arguments: Any) -> Any:
    return function(*arguments)


@cache
def _reduction(function: Callable, out_shardings: NamedSharding) -> Any:
    """Compiled once for each function and mesh."""
    return jax.jit(function, out_shardings=out_shardings)


def _summed(parts: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), parts)


def _as_they_are(parts: Any) -> Any:
    return parts


def _exchanged(parts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
    numbers, has_failed = parts
    return jnp.min(numbers), jnp.max(numbers), jnp.any(has_failed)
