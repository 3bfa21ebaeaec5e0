"""Gates that reference draws must pass: posteriordb's, a second sampler, a second evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import arviz as az
import numpy as np
import xarray as xr
from jaxtyping import Float

from ..diagnostics.checks.two_sample import two_sample_test
from ..diagnostics.measures.accuracy import accuracy
from ..inference.evidence import LogEvidence

__all__ = [
    "LARGEST_LAG_1",
    "LEAST_EFFECTIVE",
    "Gate",
    "effective_fraction",
    "gates_of_chains",
    "gates_of_evidence",
    "gates_of_two_samplers",
    "lag_1",
]

_LARGEST_RHAT = 1.01
LEAST_EFFECTIVE = 0.9  # of all draws
LARGEST_LAG_1 = 0.05
_LEAST_BFMI = 0.2
# One of seven comparisons of each of 60 numbers has a larger |z| in 3 of 100 entries, by chance.
_LARGEST_Z = 4.0
_RARE = 0.002  # the smallest p-value that 499 permutations can give
# Standard errors between two estimates of the evidence.
_MOST_ERRORS = 4.0


@dataclass(frozen=True)
class Gate:
    """One check of reference draws.

    Attributes
    ----------
    name : str
    value : float
        NaN where it cannot be computed.
    limit : float
    must_be : {"above", "below"}
        The side of the limit that passes.

    Examples
    --------
    >>> from milzoo.references import Gate
    >>> print(Gate("R̂", value=1.03, limit=1.01, must_be="below"))
    R̂: 1.03, should be below 1.01: failed
    """

    name: str
    value: float
    limit: float
    must_be: str

    @property
    def passed(self) -> bool:
        """Whether the value is on the side of the limit that passes; NaN never passes."""
        return self.value > self.limit if self.must_be == "above" else self.value < self.limit

    def __str__(self) -> str:
        word = "passed" if self.passed else "failed"
        return f"{self.name}: {self.value:.4g}, should be {self.must_be} {self.limit:g}: {word}"


def lag_1(draws: xr.Dataset) -> float:
    """Largest size of the autocorrelation between a draw and the next, over all numbers.

    Parameters
    ----------
    draws : Dataset
        With dimensions chain and draw.

    Returns
    -------
    float
    """

    def of_site(values: Float[np.ndarray, "C K ..."]) -> float:
        centred = values - values.mean(axis=(0, 1))
        products = (centred[:, 1:] * centred[:, :-1]).mean(axis=(0, 1))
        return float(np.max(np.abs(products / (centred**2).mean(axis=(0, 1)))))

    return max(of_site(site.transpose("chain", "draw", ...).to_numpy()) for site in draws.values())


def effective_fraction(draws: xr.Dataset) -> float:
    """Smallest bulk or tail ESS of all numbers, over the number of draws.

    Parameters
    ----------
    draws : Dataset

    Returns
    -------
    float
    """
    number = draws.sizes["chain"] * draws.sizes["draw"]
    smallest = min(_extreme(min, az.ess(draws, method=method)) for method in ("bulk", "tail"))
    return smallest / number


def gates_of_chains(draws: xr.Dataset, statistics: xr.Dataset) -> tuple[Gate, ...]:
    """Check that chains have mixed, and that thinned draws are nearly independent.

    Parameters
    ----------
    draws : Dataset
        Thinned.
    statistics : Dataset
        ``energy`` and ``diverging`` of all draws, before thinning; empty for samplers
        without a Hamiltonian.

    Returns
    -------
    tuple of Gate
    """
    of_draws = (
        Gate("R̂", _extreme(max, az.rhat(draws)), _LARGEST_RHAT, "below"),
        Gate("ESS over draws", effective_fraction(draws), LEAST_EFFECTIVE, "above"),
        Gate("lag-1 autocorrelation", lag_1(draws), LARGEST_LAG_1, "below"),
    )
    if "energy" not in statistics:
        return of_draws
    return (
        *of_draws,
        Gate("E-BFMI", float(az.bfmi(statistics["energy"]).min()), _LEAST_BFMI, "above"),
        Gate("divergences", float(statistics["diverging"].sum()), 0.5, "below"),
    )


def gates_of_two_samplers(draws: xr.Dataset, others: xr.Dataset, seed: int) -> tuple[Gate, ...]:
    """Check that a sampler with other code has the same moments, quantiles and joint distribution.

    Parameters
    ----------
    draws, others : Dataset
        The same sites.
    seed : int
        Seed of the classifier's permutations.

    Returns
    -------
    tuple of Gate
    """
    found = accuracy(others, draws)
    told = two_sample_test(others, draws, random=np.random.default_rng(seed))
    p_value = math.nan if told is None else told.p_value
    return (
        Gate("largest |z|", found.largest_z, _LARGEST_Z, "below"),
        Gate("p-value of a classifier", p_value, _RARE, "above"),
    )


def gates_of_evidence(one: LogEvidence, other: LogEvidence) -> tuple[Gate, ...]:
    """Check that two methods have the same log evidence, in standard errors of the difference.

    Parameters
    ----------
    one, other : LogEvidence

    Returns
    -------
    tuple of Gate
        Not passed where an error is infinite: the estimate is then uninformative.
    """
    error = math.hypot(one.error, other.error)
    distance = (
        abs(one.value - other.value) / max(error, 1e-12) if math.isfinite(error) else math.nan
    )
    return (Gate("log evidences, in standard errors", distance, _MOST_ERRORS, "below"),)


def _extreme(worst, diagnostic: xr.Dataset) -> float:
    return float(worst(float(worst(np.ravel(site))) for site in diagnostic.values()))
