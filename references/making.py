"""Make the reference draws of an entry: two samplers, two estimates of the evidence, all gates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from ..inference import Posterior, gibbs, grid, laplace, log_evidence, nuts, svi, tempered_smc
from ..inference.evidence import LogEvidence, bridged_evidence
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

__all__ = ["Length", "in_chains", "make_reference", "thinned"]

_NUM_POINTS = 10
_NUM_GRID_POINTS = 601
_ENGINES_OF_EVIDENCE: dict[str, Callable[..., Posterior]] = {
    "laplace": laplace,
    "flow": partial(svi, guide="flow"),
    "tempered_smc": tempered_smc,
}


@dataclass(frozen=True)
class Length:
    """Numbers of chains and draws of a reference: 10 chains of 1,000, as posteriordb has them.

    Attributes
    ----------
    num_chains, num_warmup : int
    num_draws : int
        Of each chain, after thinning.
    most_thinning : int
        Draws made for each draw that is kept, at most.

    Examples
    --------
    >>> from milzoo.references import Length
    >>> Length(num_chains=4, num_draws=500)
    Length(num_chains=4, num_warmup=1000, num_draws=500, most_thinning=10)
    """

    num_chains: int = 10
    num_warmup: int = 1000
    num_draws: int = 1000
    most_thinning: int = 10


def make_reference(entry: Entry, *, seed: int, length: Length = Length()) -> Reference:
    """Draw the reference of an entry by two samplers, and check it by all gates.

    Parameters
    ----------
    entry : Entry
    seed : int
        Seed of all samplers.
    length : Length

    Returns
    -------
    Reference
        Also if a gate is not passed; see ``gates``.

    Raises
    ------
    ValueError
        If the entry has a reason why no draws are kept.

    Examples
    --------
    >>> from milzoo.references import Length, entry_named, make_reference
    >>> entry = entry_named("diverse-density-two-concepts-2")
    >>> short = Length(num_chains=2, num_draws=500)
    >>> reference = make_reference(entry, seed=0, length=short)  # doctest: +SKIP
    >>> print(reference.gates[0])  # doctest: +SKIP
    R̂: 1.001, should be below 1.01: passed
    """
    if entry.reason:
        raise ValueError(f"no draws of {entry.name} are kept: {entry.reason}")
    model, bags = entry.problem()
    first = _sample(entry.first, entry, seed, length)
    second = _sample(entry.second, entry, seed + 1, length)
    every = _latent(first, model)
    draws, thinning = (
        (in_chains(every, length), 1) if entry.first == "grid" else thinned(every, length)
    )
    evidences = _evidence_of(first, seed), _second_evidence(entry, second, seed)
    points = _points(draws)
    return Reference(
        name=entry.name,
        draws=draws,
        gates=(
            *gates_of_chains(draws, _statistics(first)),
            *gates_of_two_samplers(draws, _latent(second, model), seed),
            *gates_of_evidence(*evidences),
        ),
        log_evidences=evidences,
        moments=moments_of(draws),
        points=points,
        log_density=log_joint(model, "marginal", points, bags),
        made={
            "seed": seed,
            "first": entry.first,
            "settings": entry.sampler_settings,
            "length": asdict(length),
            "mass_matrix": str(_statistics(first).attrs.get("mass_matrix", "")),
            "thinning": thinning,
            "second": entry.second,
            **provenance(),
        },
    )


def _sample(sampler: str, entry: Entry, seed: int, length: Length) -> Posterior:
    """Posterior by one of the entry's samplers, with as many draws as a reference needs."""
    model, bags = entry.problem()
    num_samples = length.num_draws * length.most_thinning
    settings = entry.sampler_settings if sampler == entry.first else {}
    chains: dict[str, Any] = {"num_chains": length.num_chains, "num_warmup": length.num_warmup}
    match sampler:
        case "nuts":
            return nuts(model, bags, seed=seed, num_samples=num_samples, **chains, **settings)
        case "grid":
            number = length.num_chains * length.num_draws
            return grid(model, bags, seed=seed, num_points=_NUM_GRID_POINTS, num_draws=number)
        case "gibbs":
            return gibbs(model, bags, seed=seed, num_samples=num_samples, **chains, **settings)
        case "tempered_smc":
            return tempered_smc(model, bags, seed=seed, num_chains=length.num_chains)
    from ..inference.pymc_nuts import pymc_nuts

    return pymc_nuts(
        model,
        bags,
        seed=seed,
        num_samples=num_samples,
        sampler="nutpie",
        mass_matrix="low_rank",
    )


def _statistics(posterior: Posterior) -> xr.Dataset:
    """Statistics of the sampler, such as energies; empty if it has none."""
    tree = posterior.tree
    return tree["sample_stats"].to_dataset() if "sample_stats" in tree else xr.Dataset()


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
        chosen = _rounded(every.isel(draw=slice(0, step * length.num_draws, step)))
        return chosen.assign_coords(draw=np.arange(length.num_draws))

    for step in range(1, length.most_thinning):
        draws = kept(step)
        if lag_1(draws) < LARGEST_LAG_1 and effective_fraction(draws) > LEAST_EFFECTIVE:
            return draws, step
    return kept(length.most_thinning), length.most_thinning


def in_chains(every: xr.Dataset, length: Length) -> xr.Dataset:
    """Independent draws, in 32 bit, laid out as if they were of chains.

    Parameters
    ----------
    every : Dataset
        One chain of ``num_chains × num_draws`` independent draws.
    length : Length

    Returns
    -------
    Dataset
        ``num_draws`` of each of ``num_chains``.
    """
    shape = length.num_chains, length.num_draws
    sites = {
        name: (site.dims, site.to_numpy().reshape(*shape, *site.shape[2:]))
        for name, site in _rounded(every).items()
    }
    return xr.Dataset(sites)


def _rounded(draws: xr.Dataset) -> xr.Dataset:
    """Draws rounded to 32 bit, as they are stored: the gates check the rounded ones."""
    return draws.astype(np.float32).astype(np.float64)


def _evidence_of(posterior: Posterior, seed: int) -> LogEvidence:
    """Log evidence by bridge sampling from chains, or by a grid."""
    if posterior.engine != "grid":
        return bridged_evidence(posterior, seed=seed)
    coarser = grid(
        posterior.model, posterior.bags, seed=seed, num_points=_NUM_GRID_POINTS // 2, num_draws=1
    )
    value, other = _sum_over(posterior), _sum_over(coarser)
    return LogEvidence(value, abs(value - other), "grid", math.nan)


def _sum_over(a_grid: Posterior) -> float:
    """The log evidence of a grid, which is stored in the place of an ELBO."""
    return float(np.asarray(a_grid.elbo)[-1])


def _second_evidence(entry: Entry, second: Posterior, seed: int) -> LogEvidence:
    """Log evidence by importance weights of an approximation with a density, or by SMC."""
    if second.engine != entry.evidence:
        second = _ENGINES_OF_EVIDENCE[entry.evidence](second.model, second.bags, seed=seed)
    return log_evidence(second, seed=seed)


def _points(draws: xr.Dataset) -> dict[str, np.ndarray]:
    """Evenly spaced draws, whose log densities are stored."""
    flat = flat_draws(draws)
    number = len(next(iter(flat.values())))
    chosen = np.linspace(0, number - 1, _NUM_POINTS).astype(int)
    return {name: values[chosen] for name, values in flat.items()}
