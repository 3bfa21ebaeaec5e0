"""Reference draws of an entry, made from nothing: two samplers, two evidences, all gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from ..datasets import Bags
from ..inference import Posterior, gibbs, laplace, log_evidence, nuts, tempered_smc
from ..inference.evidence import LogEvidence
from ..inference.posterior import flat_draws
from ..inference.runtime.densities import log_joint
from ..inference.runtime.provenance import provenance
from ..models.model import Model
from .entries import Entry
from .gates import (
    LARGEST_LAG_1,
    LEAST_EFFECTIVE,
    effective_fraction,
    gates_of_chains,
    gates_of_evidence,
    gates_of_two_samplers,
    lag_1,
)
from .stored import Reference, moments_of

__all__ = ["Length", "make_reference", "thinned"]

_NUM_POINTS = 10


@dataclass(frozen=True)
class Length:
    """Numbers of chains and draws of a reference: 10 chains of 1,000, as posteriordb has them.

    Attributes
    ----------
    num_chains, num_warmup : int
    num_draws : int
        Of each chain, after thinning.
    most_thinning : int
        Draws that are made for each one that is kept, at most.
    """

    num_chains: int = 10
    num_warmup: int = 1000
    num_draws: int = 1000
    most_thinning: int = 10


def make_reference(entry: Entry, *, seed: int, length: Length = Length()) -> Reference:
    """Make the reference of an entry, and judge it by all gates.

    Parameters
    ----------
    entry : Entry
    seed : int
        Of all samplers.
    length : Length

    Returns
    -------
    Reference
        Also where a gate is not passed: ``gates`` tell.
    """
    model, bags = entry.problem()
    chains = {"num_chains": length.num_chains, "num_warmup": length.num_warmup}
    num_samples = length.num_draws * length.most_thinning
    first = nuts(model, bags, seed=seed, num_samples=num_samples, **chains, **entry.settings)
    draws, thinning = thinned(_latent(first, model), length)
    others = _second(entry, model, bags, seed + 1, num_samples)
    evidences = _evidences(entry, first, seed)
    points = _points(draws)
    return Reference(
        name=entry.name,
        draws=draws,
        gates=(
            *gates_of_chains(draws, first.tree["sample_stats"].to_dataset()),
            *gates_of_two_samplers(draws, _latent(others, model), seed),
            *gates_of_evidence(*evidences),
        ),
        log_evidences=evidences,
        moments=moments_of(draws),
        points=points,
        log_density=log_joint(model, "marginal", points, bags),
        made={
            "seed": seed,
            "nuts": {**chains, "num_samples": num_samples, **entry.settings},
            "mass_matrix": str(first.tree["sample_stats"].attrs["mass_matrix"]),
            "thinning": thinning,
            "second": entry.second,
            **provenance(),
        },
    )


def _latent(posterior: Posterior, model: Model) -> xr.Dataset:
    return posterior.tree["posterior"].to_dataset()[list(model.latent_sites)]


def thinned(every: xr.Dataset, length: Length) -> tuple[xr.Dataset, int]:
    """Every k-th draw, in 32 bit, for the smallest k that leaves them nearly independent.

    Parameters
    ----------
    every : Dataset
        At least ``num_draws × most_thinning`` draws of each chain.
    length : Length

    Returns
    -------
    draws : Dataset
        ``num_draws`` of each chain.
    k : int
        ``most_thinning`` where none is enough.
    """

    def kept(step: int) -> xr.Dataset:
        chosen = every.isel(draw=slice(0, step * length.num_draws, step))
        # The gates are those of what is stored.
        chosen = chosen.astype(np.float32).astype(np.float64)
        return chosen.assign_coords(draw=np.arange(length.num_draws))

    for step in range(1, length.most_thinning):
        draws = kept(step)
        if lag_1(draws) < LARGEST_LAG_1 and effective_fraction(draws) > LEAST_EFFECTIVE:
            return draws, step
    return kept(length.most_thinning), length.most_thinning


def _second(entry: Entry, model: Model, bags: Bags, seed: int, num_samples: int) -> Posterior:
    if entry.second == "gibbs":
        return gibbs(model, bags, seed=seed, num_samples=2 * num_samples)
    from ..inference.pymc_nuts import pymc_nuts

    return pymc_nuts(
        model, bags, seed=seed, sampler="nutpie", mass_matrix="low_rank", num_samples=num_samples
    )


def _evidences(entry: Entry, first: Posterior, seed: int) -> tuple[LogEvidence, LogEvidence]:
    """By a bridge from the chains, and by weights of Laplace's approximation or by SMC."""
    engine: Any = {"laplace": laplace, "tempered_smc": tempered_smc}[entry.evidence]
    other = engine(first.model, first.bags, seed=seed)
    return log_evidence(first, seed=seed), log_evidence(other, seed=seed)


def _points(draws: xr.Dataset) -> dict[str, np.ndarray]:
    """Draws evenly apart, whose density is stored."""
    flat = flat_draws(draws)
    number = len(next(iter(flat.values())))
    chosen = np.linspace(0, number - 1, _NUM_POINTS).astype(int)
    return {name: values[chosen] for name, values in flat.items()}
