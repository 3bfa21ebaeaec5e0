"""Errors of one posterior against another: means, sds and intervals, with Monte-Carlo errors."""

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
# Probabilities of the quantiles that are compared: the ends of both intervals, and the median.
_PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Accuracy:
    """Errors of one posterior's means, sds and intervals against a reference, site by site.

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
    sd_ratio, sd_ratio_mcse : array (Q,)
        sd / reference sd, and its Monte-Carlo standard error, from both sides.
    width_ratio : array (Q,)
        Width of the central 90 % interval over that of the reference.
    coverage_90, coverage_50 : array (Q,)
        Probability under the reference of the central 90 % and 50 % intervals.
    coverage_mcse : array (Q,)
        Monte-Carlo standard error of ``coverage_90``, from both sides.
    z : array (7Q,)
        Differences of means, sds and five quantiles in their Monte-Carlo standard errors.
    frozen : array (Q,)
        Whether the site is constant on one side alone, or on both at two values.
    """

    names: tuple[str, ...]
    error: Float[np.ndarray, " Q"]
    error_mcse: Float[np.ndarray, " Q"]
    sd_ratio: Float[np.ndarray, " Q"]
    sd_ratio_mcse: Float[np.ndarray, " Q"]
    width_ratio: Float[np.ndarray, " Q"]
    coverage_90: Float[np.ndarray, " Q"]
    coverage_50: Float[np.ndarray, " Q"]
    coverage_mcse: Float[np.ndarray, " Q"]
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
    def mean_sd_ratio_mcse(self) -> float:
        """Monte-Carlo standard error of a site's sd ratio, averaged over sites."""
        return float(np.mean(self.sd_ratio_mcse))

    @property
    def mean_coverage(self) -> tuple[float, float]:
        """Mean over sites of the reference's probability of the 90 % and the 50 % intervals."""
        return float(np.mean(self.coverage_90)), float(np.mean(self.coverage_50))

    @property
    def mean_coverage_mcse(self) -> float:
        """Monte-Carlo standard error of a site's coverage, averaged over sites."""
        return float(np.mean(self.coverage_mcse))

    @property
    def largest_z(self) -> float:
        """Largest |z| over all means, sds and quantiles."""
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
    """Compare means, sds and quantiles of all sites.

    Parameters
    ----------
    draws, reference : Dataset
        The same sites, with dimensions chain and draw. Monte-Carlo standard errors are by ArviZ's
        effective sizes: Markov chains and independent draws (as one chain) are taken as they are.
    fractions : tuple of float
        Of draws and of reference, where they are resampled: as of `independent_fraction`.

    Returns
    -------
    Accuracy

    Notes
    -----
    A quantile is compared by the probability F of what is below the reference's, under both. The
    standard error of 2 arcsin √F is 1/√ESS, whatever F is, and errors of it are nearly Gaussian.
    """
    ours, theirs = map(_Sites.of, (draws, reference), fractions)
    scale = np.maximum(1.0, np.abs(theirs.mean))
    has_one_value = np.abs(ours.mean - theirs.mean) <= _CONSTANT * scale
    kept = ~(ours.is_constant & theirs.is_constant & has_one_value)
    ours, theirs = ours.part(kept), theirs.part(kept)
    frozen = ours.is_constant | theirs.is_constant

    def infinite_if_frozen(value: np.ndarray) -> np.ndarray:
        return np.where(frozen, np.inf, value)

    with np.errstate(divide="ignore", invalid="ignore"):  # of frozen sites
        z = _differences(ours, theirs)
        ratio = np.where(ours.is_constant & theirs.is_constant, 1.0, ours.sd / theirs.sd)
        relative = np.hypot(ours.sd_mcse / ours.sd, theirs.sd_mcse / theirs.sd)
        wide, narrow = ours.interval(0), ours.interval(1)
        coverage, inner = theirs.probability(*wide), theirs.probability(*narrow)
        return Accuracy(
            names=tuple(itertools.compress(site_names(reference), kept)),
            error=infinite_if_frozen((ours.mean - theirs.mean) / theirs.sd),
            error_mcse=infinite_if_frozen(np.hypot(ours.mean_mcse, theirs.mean_mcse) / theirs.sd),
            sd_ratio=ratio,
            sd_ratio_mcse=np.where(ours.sd > 0, ratio * relative, 0.0),
            width_ratio=np.where(frozen, ratio, _width(wide) / _width(theirs.interval(0))),
            coverage_90=coverage,
            coverage_50=inner,
            coverage_mcse=np.hypot(
                *(np.sqrt(coverage * (1 - coverage) / one.tail_ess) for one in (ours, theirs))
            ),
            z=np.concatenate([infinite_if_frozen(one) for one in z]),
            frozen=frozen,
        )


def _differences(ours: _Sites, theirs: _Sites) -> list[Float[np.ndarray, " Q"]]:
    """Differences of means, sds and quantiles, in standard errors."""
    differences = [
        (ours.mean - theirs.mean) / np.hypot(ours.mean_mcse, theirs.mean_mcse),
        (ours.sd - theirs.sd) / np.hypot(ours.sd_mcse, theirs.sd_mcse),
    ]
    for quantile, *sizes in zip(theirs.quantiles, ours.ess, theirs.ess, strict=True):
        angles = [2 * np.arcsin(np.sqrt(one.below(quantile))) for one in (ours, theirs)]
        error = np.sqrt(sum(1 / size for size in sizes))
        differences.append((angles[0] - angles[1]) / error)
    return differences


def _width(interval: tuple[np.ndarray, np.ndarray]) -> Float[np.ndarray, " Q"]:
    lower, upper = interval
    return upper - lower


@dataclass(frozen=True)
class _Sites:
    """Draws of all scalar sites: moments and quantiles, with what their errors follow from."""

    values: Float[np.ndarray, "Q S"]
    mean: Float[np.ndarray, " Q"]
    sd: Float[np.ndarray, " Q"]
    mean_mcse: Float[np.ndarray, " Q"]
    sd_mcse: Float[np.ndarray, " Q"]
    is_constant: Bool[np.ndarray, " Q"]
    quantiles: Float[np.ndarray, "5 Q"]
    ess: Float[np.ndarray, "5 Q"]

    @classmethod
    def of(cls, draws: xr.Dataset, fraction: float) -> _Sites:
        values = _by_site(draws)
        mean = values.mean(axis=1)
        quantiles = np.quantile(values, _PROBABILITIES, axis=1)
        if values.shape[1] == 1:
            nothing, infinite = np.zeros_like(mean), np.full_like(quantiles, np.inf)
            is_constant = np.zeros(mean.shape, bool)
            return cls(values, mean, nothing, nothing, nothing, is_constant, quantiles, infinite)
        sd = values.std(axis=1, ddof=1)
        with np.errstate(invalid="ignore"):  # of constants, whose errors are not used
            mean_mcse, sd_mcse = (_flat(az.mcse(draws, method=of)) for of in ("mean", "sd"))
            ess = [_flat(az.ess(draws, method="quantile", prob=prob)) for prob in _PROBABILITIES]
        return cls(
            values=values,
            mean=mean,
            sd=sd,
            mean_mcse=mean_mcse / np.sqrt(fraction),
            sd_mcse=sd_mcse / np.sqrt(fraction),
            is_constant=sd <= _CONSTANT * np.maximum(1.0, np.abs(mean)),
            quantiles=quantiles,
            ess=np.stack(ess) * fraction,
        )

    @property
    def tail_ess(self) -> Float[np.ndarray, " Q"]:
        """The smaller effective size of the two ends of the 90 % interval."""
        return np.minimum(self.ess[0], self.ess[-1])

    def part(self, chosen: Bool[np.ndarray, " Q"]) -> _Sites:
        """The chosen sites."""
        return _Sites(
            self.values[chosen],
            *(getattr(self, entry.name)[..., chosen] for entry in fields(self)[1:]),
        )

    def interval(self, depth: int) -> tuple[Float[np.ndarray, " Q"], Float[np.ndarray, " Q"]]:
        """Ends of a central interval: the widest, or the next one inside."""
        return self.quantiles[depth], self.quantiles[-1 - depth]

    def below(self, value: Float[np.ndarray, " Q"]) -> Float[np.ndarray, " Q"]:
        """P(site ≤ value)."""
        return (self.values <= value[:, None]).mean(axis=1)

    def probability(
        self, lower: Float[np.ndarray, " Q"], upper: Float[np.ndarray, " Q"]
    ) -> Float[np.ndarray, " Q"]:
        """P(lower ≤ site ≤ upper)."""
        is_inside = (lower[:, None] <= self.values) & (self.values <= upper[:, None])
        return is_inside.mean(axis=1)


def _by_site(draws: xr.Dataset) -> Float[np.ndarray, "Q S"]:
    """All draws of each scalar site."""
    columns = []
    for name in sorted(draws, key=str):
        site = draws[name].transpose("chain", "draw", ...).to_numpy()
        columns.append(site.reshape(site.shape[0] * site.shape[1], -1).T)
    return np.concatenate(columns).astype(float)


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
