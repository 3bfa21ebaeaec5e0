"""The entrance to Gibbs sampling: checks, the chains, the posterior."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...datasets.bags import Bags
from ...models.vgpmil import VGPMIL
from ..chains import check_counts, run_chains
from ..posterior import Posterior, random_key, require_labels, sampled_posterior
from .vgpmil import VGPMILGibbs, VGPMILGibbsState

__all__ = ["gibbs"]

_SITES = ("inducing_value", "evidence", "instance_label")


def gibbs(
    model: VGPMIL,
    bags: Bags,
    *,
    seed: int | Array,
    num_warmup: int = 500,
    num_samples: int = 1000,
    num_chains: int = 4,
    thin: int = 1,
    keep: str | tuple[str, ...] = ("inducing_value",),
    progress: bool = False,
) -> Posterior:
    """Sample the exact posterior by data augmentation.

    Parameters
    ----------
    model : VGPMIL
        With numbers as hyper-parameters (no priors) and a known mixing law.
    bags : Bags
        With labels.
    seed : int or JAX key
    num_warmup, num_samples, num_chains : int
        Draws per chain; chains run at once, on all devices.
    thin : int
        Sweeps for each draw, of warm-up too. Data augmentation mixes slowly where almost all
        labels of the instances are alike; more sweeps for a draw cost no memory.
    keep : str or tuple of str
        Sites kept in the tree: ``inducing_value`` (always), ``evidence``, ``instance_label``.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior

    Raises
    ------
    ValueError
        If a hyper-parameter has a prior, ``thin`` is not positive or ``keep`` has an unknown name.
    NotImplementedError
        If the mixing law p(ω) is not known.
    """
    require_labels(bags, "gibbs")
    if model.priors:
        raise ValueError(
            f"{', '.join(model.priors)} of the model have priors, which have no conjugate "
            "conditional; give numbers, or sample with nuts"
        )
    keep = (keep,) if isinstance(keep, str) else keep
    unknown = sorted(set(keep) - set(_SITES))
    if unknown:
        raise ValueError(f"keep has {', '.join(unknown)}; expected some of {', '.join(_SITES)}")
    check_counts(thin=thin)
    key = random_key(seed)
    with jax.enable_x64(True):
        model.mixing.conditional(jnp.zeros(1))  # raises where p(ω) is not known
        sweep = VGPMILGibbs.for_model(model, bags)
        kept = {"inducing_value", *keep}

        def collect(state: VGPMILGibbsState) -> tuple[dict[str, Array], dict[str, Array]]:
            sites = sweep.sites(state)
            return {name: sites[name] for name in _SITES if name in kept}, {}

        run = run_chains(
            sweep.init,
            lambda state: jax.lax.fori_loop(0, thin, lambda _, s: sweep.step(s), state),
            collect,
            key=key,
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            progress=progress,
        )
    return sampled_posterior(model, bags, engine="gibbs", run=run)
