"""The engine `gibbs`: checks, the chains, the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array

from ...datasets.bags import Bags
from ...models.model import Model, observations, random_key
from ...models.numerics.tracing import as_pytree
from ..arguments import engine
from ..posterior import Posterior, sampled_posterior
from ..runtime.chains import devices_of_chains, run_chains
from ..runtime.programs import Stopwatch
from .interweaving import Interweaved, sweep_for
from .sweep import Sweep

__all__ = ["GibbsChain", "check_conjugate", "gibbs"]

# GiB of draws.
_LARGEST_TREE = 4


@engine
def gibbs(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    num_warmup: int = 500,
    num_samples: int = 1000,
    num_chains: int = 4,
    thin: int = 1,
    interweave: bool = False,
    keep: str | tuple[str, ...] = (),
    mesh: Mesh | None = None,
    checkpoint: str | PathLike | None = None,
    progress: bool = False,
) -> Posterior:
    """Sample the exact posterior by Gibbs sampling with data augmentation.

    Parameters
    ----------
    model : Model
        VGPMIL, VWSGP, CardinalityGP, DPMIL, or one whose sweep ``sweep_of`` knows; with numbers
        as hyper-parameters (no priors) and a known density p(ω).
    bags : Bags
        With labels.
    seed : int or JAX key
    num_warmup, num_samples, num_chains : int
        Draws per chain; chains run at once, on all devices of the process.
    thin : int
        Sweeps for each draw, of warm-up too. Data augmentation mixes slowly where almost all
        labels of the instances are alike; more sweeps for a draw cost no memory.
    interweave : bool
        Of VGPMIL: whether each sweep is followed by a move of u with the noise of f kept and
        labels and augmentation summed out, in coordinates that Laplace's approximation gives; the
        search for its mode is in ``wall_seconds``, and not in ``seconds``. On digits a sweep takes
        1.6 times as long, and the smallest effective sample size is twenty times as large.
        ``sample_stats`` has the acceptance probability of the moves.
    keep : str or tuple of str
        Sites kept in the tree beside those of ``model.marginal()``, which always are: of VGPMIL
        ``latent`` and ``instance_label``, of VWSGP and CardinalityGP ``bag_latent`` and the
        auxiliary variables of the likelihood (``augmentation``, or ``latent_utility`` of the
        probit), of DPMIL ``instance_label`` and ``cluster``.
    mesh : Mesh or None
        ``jax.make_mesh((num_devices,), ("bags",))``: devices that chains are dealt to, an equal
        number to each. Where these are of several processes (``jax.distributed.initialize()``),
        all pass the same bags (and a ``checkpoint`` each), each runs its own chains, and all get
        the draws of all: those that one process would have drawn.
    checkpoint : path or None
        A folder for what is finished, a file for every 100 draws. Run again with the same
        arguments, a run that was killed goes on behind the last of them and ends with the same
        draws as if it had not been.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior

    Raises
    ------
    ValueError
        If a hyper-parameter has a prior, ``thin`` is not positive, ``keep`` has an unknown name or
        ``interweave`` is neither True nor False, if the draws of DPMIL would take more than 4 GiB,
        the checkpoint is of another run, or chains cannot be dealt to the mesh.
    NotImplementedError
        If the model has no sampler, its mixing density p(ω) is not known, or ``interweave`` is
        asked for and the model's sampler has no such move.

    References
    ----------
    Polson, Scott and Windle (2013), data augmentation; Yu and Meng (2011), interweaving.

    Examples
    --------
    Positive bags have an instance near 3:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import gibbs
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = gibbs(model, bags, seed=0, num_warmup=200, num_samples=500)
    >>> new = Bags.from_list([[[2.9]], [[0.1]]])
    >>> posterior.predict(new).bag_probability.round(1)
    array([0.9, 0.2])
    """
    watch = Stopwatch()
    check_conjugate(model)
    observations(model, bags, "gibbs")
    key = random_key(seed)
    length = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
    with jax.enable_x64(True):
        sweep = sweep_for(model, bags, interweave=interweave)
        kept = _kept(keep, sweep.site_names, model.latent_sites)
        _check_size(model, bags, num_samples * num_chains, kept)
        options = {"engine": "gibbs", "seed": key, "thin": thin, "keep": kept}
        options |= {"interweave": interweave}
        with devices_of_chains(mesh, checkpoint, model, bags, **options, **length) as run_on:
            chain = GibbsChain(sweep, tuple(kept), thin)
            run = run_chains(chain, key=key, progress=progress, **length, **run_on)
    return sampled_posterior(model, bags, engine="gibbs", run=run, watch=watch)


def check_conjugate(model: Model) -> None:
    """Refuse hyper-parameters that have no conjugate conditional.

    Raises
    ------
    ValueError
        If a hyper-parameter has a prior.
    """
    if model.priors:
        raise ValueError(
            f"{', '.join(model.priors)} of the model have priors, which have no conjugate "
            "conditional; give numbers, or sample with nuts"
        )


@as_pytree("kept", "thin")
@dataclass(frozen=True)
class GibbsChain:
    """A chain of every ``thin``-th state of a sweep.

    Attributes
    ----------
    sweep : Sweep
    kept : tuple of str
        Sites that are collected.
    thin : int
    """

    sweep: Sweep
    kept: tuple[str, ...]
    thin: int = 1

    def init(self, key: Array) -> Any:
        """The initial state of a chain."""
        return self.sweep.init(key)

    def step(self, state: Any) -> Any:
        """Run the ``thin`` sweeps of one draw."""
        return jax.lax.fori_loop(0, self.thin, lambda _, s: self.sweep.step(s), state)

    def sites(self, state: Any) -> dict[str, Array]:
        """All sites of the model at a state."""
        return self.sweep.sites(state)

    def collect(self, state: Any) -> tuple[dict[str, Array], dict[str, Array]]:
        """The sites of a draw that are stored."""
        sites = self.sweep.sites(state)
        statistics = self.sweep.statistics(state) if isinstance(self.sweep, Interweaved) else {}
        return {name: sites[name] for name in self.kept}, statistics


def _kept(
    keep: str | tuple[str, ...], names: tuple[str, ...], always: tuple[str, ...]
) -> list[str]:
    wanted = {*always, *((keep,) if isinstance(keep, str) else keep)}
    unknown = sorted(wanted - set(names))
    if unknown:
        raise ValueError(f"keep has {', '.join(unknown)}; expected some of {', '.join(names)}")
    return [name for name in names if name in wanted]


def _check_size(model: Model, bags: Bags, num_draws: int, kept: list[str]) -> None:
    """Refuse draws that would not fit in memory."""
    in_a_draw = model.numbers_in_a_draw(bags)
    if in_a_draw is None:
        return
    of_instances = bags.num_instances * len(set(kept) - set(model.latent_sites))
    size = num_draws * (in_a_draw + of_instances) * 8 / 2**30
    if size > _LARGEST_TREE:
        raise ValueError(
            f"{num_draws:,} draws of {type(model).__name__} ({model.size_note}) and "
            f"{bags.num_instances:,} instances take {size:,.1f} GiB; expected at most "
            f"{_LARGEST_TREE}: ask for fewer (num_samples, num_chains; thin for longer chains), "
            "or make the model smaller (fewer features by kernel_pca, for one)"
        )
