"""Convergence of chains: R̂, effective sample sizes and divergences of a sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import arviz as az
import numpy as np
import xarray as xr

from ...inference.posterior import LARGEST_RHAT, Posterior, largest_rhat, superchains_of
from ...models.model import Model

__all__ = ["Convergence", "convergence"]

_SMALLEST_ESS = 400
# More of a reference: its own Monte-Carlo error is part of every verdict.
_SMALLEST_REFERENCE_ESS = 1000
# A larger fraction of divergent transitions than this is a fault. A convention: no fraction proves
# that chains miss nothing, and few come by chance in long runs.
_MOST_DIVERGENT = 1e-3


@dataclass(frozen=True)
class Convergence:
    """Convergence diagnostics of a sampler's chains, at the worst of its sites.

    Attributes
    ----------
    num_chains, num_draws : int
        Draws per chain.
    rhat : float
        Largest rank-normalised split R̂ (Vehtari et al., 2021); nested (Margossian et al., 2024)
        where chains have superchains.
    ess_bulk, ess_tail : float
        Smallest effective sample sizes.
    ess_per_second : float
        ``ess_bulk`` per second of sampling, warm-up and compilation apart; NaN if not timed.
    divergences : float
        Divergent transitions; NaN for a sampler that has none.
    """

    num_chains: int
    num_draws: int
    rhat: float
    ess_bulk: float
    ess_tail: float
    ess_per_second: float
    divergences: float

    @property
    def smallest_ess(self) -> float:
        """The smaller of the two effective sample sizes."""
        return min(self.ess_bulk, self.ess_tail)

    @property
    def mixed(self) -> bool:
        """Whether nothing says that they have not: R̂, effective sample sizes, divergences."""
        return not self.complaints()

    @property
    def is_reference(self) -> bool:
        """Whether the chains are also long enough to judge others by."""
        return self.mixed and self.smallest_ess >= _SMALLEST_REFERENCE_ESS

    @property
    def verdict(
        self,
    ) -> Literal["converged", "too short", "one chain", "divergent", "not mixed"]:
        """The verdict on the chains; ``too short`` if only effective sample sizes are at fault."""
        if self.mixed:
            return "converged"
        if self.num_chains == 1:
            return "one chain"
        if not self.rhat < LARGEST_RHAT:
            return "not mixed"
        return "divergent" if self.has_many_divergences else "too short"

    @property
    def has_many_divergences(self) -> bool:
        """Whether more than one transition in a thousand is divergent."""
        return self.divergences > _MOST_DIVERGENT * self.num_chains * self.num_draws

    def complaints(self) -> list[str]:
        """List the diagnostics that are out of range, each in a few words."""
        ess = self.smallest_ess
        complaints = []
        if self.num_chains == 1:
            complaints.append("one chain, run four")
        elif not self.rhat < LARGEST_RHAT:
            complaints.append(f"worst R̂ {self.rhat:.3f}, should be below {LARGEST_RHAT}")
        if not ess >= _SMALLEST_ESS:
            complaints.append(f"smallest ESS {ess:,.0f}, should be above {_SMALLEST_ESS}")
        if self.has_many_divergences:
            complaints.append(
                f"{self.divergences:,.0f} divergences, should be no more than 1 in "
                f"{1 / _MOST_DIVERGENT:,.0f} draws"
            )
        return complaints


def convergence(posterior: Posterior) -> Convergence:
    """Judge the chains of a sampler by ArviZ's diagnostics.

    Parameters
    ----------
    posterior : Posterior
        Of a sampler.

    Returns
    -------
    Convergence

    Raises
    ------
    ValueError
        If the posterior is an approximation, whose draws are independent by construction.
    """
    if not posterior.is_mcmc:
        raise ValueError(
            f"posterior of {posterior.engine} is an approximation with independent draws; R̂ and "
            "ESS mean something for Markov chains only, see compare() for what judges it"
        )
    draws = estimand_sites(posterior.draws_with_estimands, posterior.model)
    ess_bulk = _over_sites(np.nanmin, az.ess(draws, method="bulk"))
    by_name = {str(name): site.to_numpy() for name, site in draws.items()}
    is_alone = draws.sizes["chain"] == 1
    seconds = posterior.sampling_seconds
    return Convergence(
        num_chains=draws.sizes["chain"],
        num_draws=draws.sizes["draw"],
        rhat=math.nan if is_alone else largest_rhat(by_name, superchains_of(posterior.tree)),
        ess_bulk=ess_bulk,
        ess_tail=_over_sites(np.nanmin, az.ess(draws, method="tail")),
        ess_per_second=ess_bulk / seconds if seconds else math.nan,
        divergences=_divergences(posterior.tree),
    )


def estimand_sites(draws: xr.Dataset, model: Model) -> xr.Dataset:
    """The estimands of a model among draws, or the sites themselves if it names none.

    Instance labels are left out: only continuous sites have a meaningful mean and sd.
    """
    names = [name for name, site in draws.data_vars.items() if site.dtype.kind == "f"]
    return draws[[name for name in names if not model.estimands or name in model.estimands]]


def _over_sites(worst, diagnostic: xr.Dataset) -> float:
    values = np.concatenate([site.to_numpy().ravel() for site in diagnostic.data_vars.values()])
    return float(worst(values)) if np.isfinite(values).any() else math.nan


def _divergences(tree: xr.DataTree) -> float:
    if "sample_stats" not in tree.children or "diverging" not in tree["sample_stats"]:
        return math.nan
    return float(tree["sample_stats"].to_dataset()["diverging"].sum())
