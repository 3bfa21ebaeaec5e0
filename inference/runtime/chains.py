"""Markov chains in blocks of steps, distributed over devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from ...datasets.arguments import check_counts
from ...datasets.bags import Bags
from ...models.numerics.threads import one_lapack_thread
from .checkpoint import BlockFolder, block_folder, identity
from .devices import Devices
from .programs import Stopwatch
from .progress import Progress

__all__ = [
    "Chain",
    "ChainRun",
    "devices_of_chains",
    "map_over_devices",
    "num_together",
    "run_chains",
]

# Steps between two looks at the progress bar. Each block is one call of one compiled program.
_BLOCK = 100


@dataclass(frozen=True)
class ChainRun:
    """The result of a sampler: draws by site, statistics by name, both (chain, draw, …)."""

    draws: dict[str, np.ndarray]
    statistics: dict[str, np.ndarray]
    warmup_seconds: float
    sampling_seconds: float
    compile_seconds: float | None = None  # of a compiler that is not JAX's


@contextmanager
def devices_of_chains(
    mesh: Mesh | None, checkpoint: str | PathLike | None, model: Any, bags: Bags, **options: Any
) -> Iterator[dict[str, Any]]:
    """Context with the devices and the checkpoint of chains: arguments of `run_chains`.

    Parameters
    ----------
    mesh : Mesh or None
        The caller's.
    checkpoint : path or None
        The caller's; of a process among several, of its own chains.
    model : Model
    bags : Bags
        The same in all processes, and so the options.
    **options
        All that the draws depend on.

    Yields
    ------
    dict
        ``devices`` and ``checkpoint``.

    Raises
    ------
    ValueError
        If processes were given something else, or the checkpoint is of another run.
    LostProcessError
        If another process failed, or cannot be reached.
    """
    if mesh is None:
        yield {"devices": None, "checkpoint": block_folder(checkpoint, model, bags, **options)}
        return
    devices = Devices(mesh)
    with devices.together():
        devices.agree(str(identity(model, bags, **options)), "models, bags or options")
        own = f"{[index for index, _ in devices.own]} of {devices.num_devices}"
        folder = block_folder(checkpoint, model, bags, **options, devices=own)
        yield {"devices": devices, "checkpoint": folder}


@runtime_checkable
class Chain(Protocol):
    """A Markov kernel as pure functions of its state; a pytree, so that programs take it."""

    def init(self, key: Array, /) -> Any:
        """The initial state of a chain."""
        ...

    def step(self, state: Any, /) -> Any:
        """One step; the state carries its own key and knows when warm-up ends."""
        ...

    def sites(self, state: Any, /) -> dict[str, Array]:
        """The model's sites at a state."""
        ...

    def collect(self, state: Any, /) -> tuple[dict[str, Array], dict[str, Array]]:
        """The sites and statistics of a draw that are stored, by name."""
        ...


def run_chains(
    chain: Chain,
    *,
    key: Array,
    num_warmup: int,
    num_samples: int,
    num_chains: int,
    progress: bool,
    checkpoint: BlockFolder | None = None,
    devices: Devices | None = None,
) -> ChainRun:
    """Run a Markov kernel for several chains at once.

    Chains are dealt to devices; those that share a CPU run one after another. One program, a block
    of steps, is compiled once for all bags of one size, and called for warm-up and sampling alike.

    Parameters
    ----------
    chain : Chain
    key : array
        JAX key.
    num_warmup, num_samples, num_chains : int
    progress : bool
        Whether to draw a bar.
    checkpoint : BlockFolder or None
        Where blocks are written to as they end, and read from if they are there.
    devices : Devices or None
        That chains are dealt to, an equal number to each; None for all that JAX has in this
        process. Each process runs its own chains, and gets those of all in the end.

    Returns
    -------
    ChainRun

    Raises
    ------
    ValueError
        If a count is not positive, or chains cannot be dealt evenly.
    """
    check_counts(num_samples=num_samples, num_chains=num_chains)
    if not isinstance(num_warmup, int | np.integer) or num_warmup < 0:
        raise ValueError(f"num_warmup is {num_warmup}; expected an integer of at least 0")
    blocks = _blocks(num_warmup, num_samples)
    mesh, own = _dealt(num_chains, devices)
    chain = jax.device_put(chain, NamedSharding(mesh, PartitionSpec()))
    states = _start(chain, jax.random.split(key, num_chains)[own], mesh)
    finished: list[tuple[Any, float]] = []
    if checkpoint and checkpoint.num_blocks:
        finished = checkpoint.blocks(like=jax.eval_shape(_collected, chain, states))
        states = checkpoint.state(like=states)
    ahead = blocks[len(finished) :]

    total = num_warmup + num_samples
    with one_lapack_thread(), Progress(f"{len(own)} chains", total, shown=progress) as bar:
        bar.advance(total - sum(length for length, _ in ahead))
        for length, num_kept in ahead:
            started = Stopwatch.now()
            states, rows = _run_block(chain, states, np.asarray(length), mesh)
            rows = jax.tree.map(lambda x, n=num_kept: np.asarray(x)[:, :n], rows)
            finished.append((rows, Stopwatch.now() - started))
            if checkpoint:
                checkpoint.write(len(finished) - 1, states, *finished[-1])
            bar.advance(length)
    rows, seconds = zip(*finished, strict=True)
    num_before = len(blocks) - -(-num_samples // _BLOCK)
    rows = jax.tree.map(lambda *some: np.concatenate(some, axis=1), *rows)
    draws, statistics = devices.gathered(rows) if devices else rows
    return ChainRun(draws, statistics, sum(seconds[:num_before]), sum(seconds[num_before:]))


def map_over_devices(
    function: Callable[[Array], Any], *, together: int
) -> tuple[Callable[[Array], Any], int]:
    """Map a function of a key over keys, on all devices.

    Parameters
    ----------
    function : callable
        Key → pytree.
    together : int
        Keys that each accelerator maps at once; a CPU maps one at a time.

    Returns
    -------
    callable
        Keys → pytree, keys first.
    int
        Number of keys that it takes.
    """
    on_each = 1 if jax.default_backend() == "cpu" else together
    num_keys = on_each * len(jax.local_devices())
    return _map_over_mesh(function, _chain_mesh(num_keys)), num_keys


def _blocks(num_warmup: int, num_samples: int) -> list[tuple[int, int]]:
    """Steps of each block, and how many of them are kept: none of warm-up."""

    def parts(num: int) -> list[int]:
        return [min(_BLOCK, num - first) for first in range(0, num, _BLOCK)]

    return [*((n, 0) for n in parts(num_warmup)), *((n, n) for n in parts(num_samples))]


def _dealt(num_chains: int, devices: Devices | None) -> tuple[Mesh, Int[np.ndarray, " C"]]:
    """The devices of this process, and which of the chains are theirs."""
    if devices is None:
        return _chain_mesh(num_chains), np.arange(num_chains)
    if num_chains % devices.num_devices:
        raise ValueError(
            f"num_chains is {num_chains} and mesh has {devices.num_devices} devices; expected a "
            "multiple, as each gets an equal number of chains"
        )
    indices, own = zip(*devices.own, strict=True)
    chains = np.arange(num_chains).reshape(devices.num_devices, -1)[list(indices)].ravel()
    return _mesh_of(own), chains


def _chain_mesh(num_chains: int) -> Mesh:
    devices = jax.local_devices()
    num_devices = max(d for d in range(1, len(devices) + 1) if num_chains % d == 0)
    return _mesh_of(devices[:num_devices])


def _mesh_of(devices: Sequence[Any]) -> Mesh:
    axis_types = (AxisType.Auto,)
    return jax.make_mesh((len(devices),), ("chain",), axis_types=axis_types, devices=devices)


def _map_over_mesh(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Map a function of one chain over all chains, devices first."""
    spec = PartitionSpec("chain")
    mapped = jax.shard_map(
        _over_chains(function), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    return jax.jit(mapped)


@partial(jax.jit, static_argnames="mesh")
def _start(chain: Chain, keys: Array, mesh: Mesh) -> Any:
    """The first state of every chain."""
    return _mapped(lambda chain, keys: _over_chains(chain.init)(keys), mesh)(chain, keys)


@partial(jax.jit, static_argnames="mesh")
def _run_block(chain: Chain, states: Any, length: Array, mesh: Mesh) -> tuple[Any, Any]:
    """``length`` ≤ _BLOCK steps of every chain; rows beyond ``length`` stay zero."""

    def block(chain: Chain, length: Array, state: Any) -> tuple[Any, Any]:
        empty = jax.tree.map(
            lambda x: jnp.zeros((_BLOCK, *x.shape), x.dtype), jax.eval_shape(chain.collect, state)
        )

        def body(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, rows = carry
            state = chain.step(state)
            kept = chain.collect(state)
            return state, jax.tree.map(lambda all_, row: all_.at[i].set(row), rows, kept)

        return jax.lax.fori_loop(0, length, body, (state, empty))

    def all_blocks(given: tuple[Chain, Array], states: Any) -> tuple[Any, Any]:
        return _over_chains(partial(block, *given))(states)

    return _mapped(all_blocks, mesh)((chain, length), states)


def _collected(chain: Chain, states: Any) -> tuple[Any, Any]:
    return jax.vmap(chain.collect)(states)


def _mapped(function: Callable[[Any, Any], Any], mesh: Mesh) -> Callable[[Any, Any], Any]:
    """Map a function of shared arguments and chains over the chains of each device."""
    same, own = PartitionSpec(), PartitionSpec("chain")
    return jax.shard_map(function, mesh=mesh, in_specs=(same, own), out_specs=own, check_vma=False)


def _over_chains(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Map over the chains of one device.

    In lockstep (vmap) every chain waits for the longest trajectory and pays for both branches of
    every decision: on a CPU, one after another was three times faster. An accelerator wants width.
    """
    if jax.default_backend() == "cpu":
        return partial(jax.lax.map, function)
    return jax.vmap(function)


def num_together() -> int:
    """Chains or particles that a device moves at once: nearly one by one on a CPU, else all.

    On a CPU 128 in lockstep took 0.7 ms a gradient and chain on digits, four 0.25 ms.
    """
    return 4 if jax.default_backend() == "cpu" else 2**30
