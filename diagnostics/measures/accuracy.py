"""Errors of one posterior against another, in posterior sds, with Monte-Carlo errors."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import arviz as az
import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

__all__ = ["Accuracy", "accuracy"]

# An sd this small is the rounding of a site that does not vary.
_CONSTANT = 1e-12


@dataclass(frozen=True)
class Accuracy:
    """Errors of one posterior's means and sds against a reference, site by site.

    Sites that do not vary, such as a probability that is 1 to the last digit, are left out; but not
    for a point, which has one draw, no sd and no Monte-Carlo error.

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
    """

    names: tuple[str, ...]
    error: Float[np.ndarray, " Q"]
    error_mcse: Float[np.ndarray, " Q"]
    sd_ratio: Float[np.ndarray, " Q"]
    z: Float[np.ndarray, " _"]

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


def accuracy(draws: xr.Dataset, reference: xr.Dataset) -> Accuracy:
    """Compare means and sds of all sites.

    Parameters
    ----------
    draws, reference : Dataset
        The same sites, with dimensions chain and draw. Monte-Carlo standard errors are ArviZ's, so
        both Markov chains and independent draws (as one chain) are taken for what they are.

    Returns
    -------
    Accuracy
    """
    ours, theirs = _Moments.of(draws), _Moments.of(reference)
    varies = np.minimum(ours.relative_sd, theirs.relative_sd) > _CONSTANT
    ours, theirs = ours.part(varies), theirs.part(varies)
    mean_mcse = np.hypot(ours.mean_mcse, theirs.mean_mcse)
    sd_mcse = np.hypot(ours.sd_mcse, theirs.sd_mcse)
    return Accuracy(
        names=tuple(itertools.compress(site_names(reference), varies)),
        error=(ours.mean - theirs.mean) / theirs.sd,
        error_mcse=mean_mcse / theirs.sd,
        sd_ratio=ours.sd / theirs.sd,
        z=np.concatenate([(ours.mean - theirs.mean) / mean_mcse, (ours.sd - theirs.sd) / sd_mcse]),
    )


@dataclass(frozen=True)
class _Moments:
    """Means and sds of all scalar sites, with their Monte-Carlo standard errors."""

    mean: Float[np.ndarray, " Q"]
    sd: Float[np.ndarray, " Q"]
    mean_mcse: Float[np.ndarray, " Q"]
    sd_mcse: Float[np.ndarray, " Q"]
    relative_sd: Float[np.ndarray, " Q"]  # by the size of the mean, at least 1

    @classmethod
    def of(cls, draws: xr.Dataset) -> _Moments:
        mean = _flat(draws.mean(("chain", "draw")))
        if draws.sizes["chain"] * draws.sizes["draw"] == 1:
            nothing = np.zeros_like(mean)
            return cls(mean, nothing, nothing, nothing, relative_sd=nothing + np.inf)
        sd = _flat(draws.std(("chain", "draw"), ddof=1))
        return cls(
            mean=mean,
            sd=sd,
            mean_mcse=_flat(az.mcse(draws, method="mean")),
            sd_mcse=_flat(az.mcse(draws, method="sd")),
            relative_sd=sd / np.maximum(1.0, np.abs(mean)),
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
