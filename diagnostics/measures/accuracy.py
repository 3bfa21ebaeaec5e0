"""Errors of one posterior against another, in posterior sds, with Monte-Carlo errors."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import arviz as az
import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from scipy.stats import norm

__all__ = ["Accuracy", "accuracy", "independent_fraction"]

# An sd this small is the rounding of a site that does not vary.
_CONSTANT = 1e-12
# Probability that two samplers of one posterior are said to disagree.
_FALSE_ALARMS = 1e-4


@dataclass(frozen=True)
class Accuracy:
    """Errors of one posterior's means and sds against a reference, site by site.

    Sites that are constant on both sides, such as a probability that is 1 to the last digit, are
    left out. A site that is constant on one side alone, or has two values, has an infinite error.
    A point has one draw, no sd and no Monte-Carlo error, and is no constant.

    Attributes
    ----------
    names : tuple of str
        Of the Q scalar sites, such as ``inducing_value[17]``.
    error : array (Q,)
        (mean − reference mean) / reference sd.
    error_mcse : array (Q,)
        Monte-Carlo standard error of ``error``, from both sides.
    sd_ratio : array (Q,)
        sd / reference sd.
    z : array (2Q,)
        Differences of means and of sds in their Monte-Carlo standard errors.
    frozen : array (Q,)
        Whether the site is constant on one side alone, or on both at two values.
    """

    names: tuple[str, ...]
    error: Float[np.ndarray, " Q"]
    error_mcse: Float[np.ndarray, " Q"]
    sd_ratio: Float[np.ndarray, " Q"]
    z: Float[np.ndarray, " _"]
    frozen: Bool[np.ndarray, " Q"]

    @property
    def frozen_sites(self) -> tuple[str, ...]:
        """Names of the frozen sites."""
        return tuple(itertools.compress(self.names, self.frozen))

    @property
    def z_limit(self) -> float:
        """|z| that one of all comparisons exceeds by chance with probability 1e-4 at most."""
        return float(norm.isf(_FALSE_ALARMS / (2 * len(self.z))))

    @property
    def agrees(self) -> bool:
        """Whether the draws of both sides may be of one posterior."""
        return not self.frozen.any() and self.largest_z <= self.z_limit

    @property
    def largest_possible_error(self) -> float:
        """Largest error of a mean, in reference sds, that the draws do not exclude."""
        return float(np.max(np.abs(self.error) + self.z_limit * self.error_mcse))

    @property
    def mean_error(self) -> float:
        """Mean over sites of the size of the error, in reference sds."""
        return float(np.mean(np.abs(self.error)))

    @property
    def worst_error(self) -> float:
        """Largest size of the error, in reference sds."""
        return float(np.max(np.abs(self.error)))

    @property
    def worst_site(self) -> str:
        """The site with the largest error."""
        return self.names[int(np.argmax(np.abs(self.error)))]

    @property
    def mean_error_mcse(self) -> float:
        """Monte-Carlo standard error of a site's error, averaged over sites."""
        return float(np.mean(self.error_mcse))

    @property
    def mean_sd_ratio(self) -> float:
        """Mean over sites of sd / reference sd."""
        return float(np.mean(self.sd_ratio))

    @property
    def largest_z(self) -> float:
        """Largest |z| over all means and sds."""
        return float(np.max(np.abs(self.z)))


def independent_fraction(draws: xr.Dataset) -> float:
    """Effective size over number of draws that were drawn with repetitions, S/Σ c² for counts c.

    For draws resampled by weights w, E Σ c² = S + S (S − 1) Σ w²: their mean has the variance of
    resampling and that of the weights, 1/S + Σ w².

    Parameters
    ----------
    draws : Dataset
        Independent but for repetitions.

    Returns
    -------
    float
        1 where no draw is repeated.
    """
    first = next(iter(draws.data_vars.values())).transpose("chain", "draw", ...).to_numpy()
    rows = first.reshape(first.shape[0] * first.shape[1], -1)
    counts = np.unique(rows, axis=0, return_counts=True)[1]
    return float(len(rows) / np.sum(counts.astype(float) ** 2))


def accuracy(
    draws: xr.Dataset, reference: xr.Dataset, *, fractions: tuple[float, float] = (1.0, 1.0)
) -> Accuracy:
    """Compare means and sds of all sites.

    Parameters
    ----------
    draws, reference : Dataset
        The same sites, with dimensions chain and draw. Monte-Carlo standard errors are ArviZ's, so
        both Markov chains and independent draws (as one chain) are taken for what they are.
    fractions : tuple of float
        Of draws and of reference, where they are resampled: as of `independent_fraction`.

    Returns
    -------
    Accuracy
    """
    ours, theirs = map(_Moments.of, (draws, reference), fractions)
    scale = np.maximum(1.0, np.abs(theirs.mean))
    has_one_value = np.abs(ours.mean - theirs.mean) <= _CONSTANT * scale
    kept = ~(ours.is_constant & theirs.is_constant & has_one_value)
    ours, theirs = ours.part(kept), theirs.part(kept)
    frozen = ours.is_constant | theirs.is_constant

    def infinite_if_frozen(value: np.ndarray) -> np.ndarray:
        return np.where(frozen, np.inf, value)

    with np.errstate(divide="ignore", invalid="ignore"):  # of frozen sites
        mean_z = (ours.mean - theirs.mean) / np.hypot(ours.mean_mcse, theirs.mean_mcse)
        sd_z = (ours.sd - theirs.sd) / np.hypot(ours.sd_mcse, theirs.sd_mcse)
        return Accuracy(
            names=tuple(itertools.compress(site_names(reference), kept)),
            error=infinite_if_frozen((ours.mean - theirs.mean) / theirs.sd),
            error_mcse=infinite_if_frozen(np.hypot(ours.mean_mcse, theirs.mean_mcse) / theirs.sd),
            sd_ratio=np.where(ours.is_constant & theirs.is_constant, 1.0, ours.sd / theirs.sd),
            z=np.concatenate([infinite_if_frozen(mean_z), infinite_if_frozen(sd_z)]),
            frozen=frozen,
        )


@dataclass(frozen=True)
class _Moments:
    """Means and sds of all scalar sites, with their Monte-Carlo standard errors."""

    mean: Float[np.ndarray, " Q"]
    sd: Float[np.ndarray, " Q"]
    mean_mcse: Float[np.ndarray, " Q"]
    sd_mcse: Float[np.ndarray, " Q"]
    is_constant: Bool[np.ndarray, " Q"]

    @classmethod
    def of(cls, draws: xr.Dataset, fraction: float) -> _Moments:
        mean = _flat(draws.mean(("chain", "draw")))
        if draws.sizes["chain"] * draws.sizes["draw"] == 1:
            nothing = np.zeros_like(mean)
            return cls(mean, nothing, nothing, nothing, np.zeros(mean.shape, bool))
        sd = _flat(draws.std(("chain", "draw"), ddof=1))
        with np.errstate(invalid="ignore"):  # of constants, whose errors are not used
            mean_mcse, sd_mcse = (_flat(az.mcse(draws, method=of)) for of in ("mean", "sd"))
        return cls(
            mean=mean,
            sd=sd,
            mean_mcse=mean_mcse / np.sqrt(fraction),
            sd_mcse=sd_mcse / np.sqrt(fraction),
            is_constant=sd <= _CONSTANT * np.maximum(1.0, np.abs(mean)),
        )

    def part(self, chosen: Bool[np.ndarray, " Q"]) -> _Moments:
        """The moments of the chosen sites."""
        return _Moments(*(getattr(self, entry.name)[chosen] for entry in fields(self)))


def _flat(by_site: xr.Dataset) -> Float[np.ndarray, " Q"]:
    return np.concatenate([np.ravel(by_site[name].to_numpy()) for name in sorted(by_site, key=str)])


def site_names(draws: xr.Dataset) -> tuple[str, ...]:
    """Names of the scalar sites, in the order of `Accuracy`."""
    names = []
    for name in sorted(draws, key=str):
        shape = draws[name].isel(chain=0, draw=0).shape
        indices = [",".join(map(str, index)) for index in np.ndindex(shape)]
        names += [f"{name}[{index}]" if index else str(name) for index in indices]
    return tuple(names)
