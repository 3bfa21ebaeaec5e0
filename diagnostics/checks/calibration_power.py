"""What a simulation-based calibration would find, said before it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from ...datasets.arguments import check_counts, check_probability
from ...models.model import random_key

__all__ = ["CalibrationPower", "calibration_power", "level_of_a_test", "smallest_gap"]

# Calibrations that are simulated.
_TRIALS = 400
# Halvings of an interval of log sd ratios, or of biases.
_HALVINGS = 12
# The strongest faults that are looked for: an sd ratio of 1/8 or 8, a bias of 8 posterior sds.
_STRONGEST = 8.0


@dataclass(frozen=True)
class CalibrationPower:
    """The faults of one quantity that a calibration finds with a given probability.

    Attributes
    ----------
    simulations, num_quantities : int
    power : float
        The probability.
    narrow, wide : float
        The sd, in posterior sds, at and below (above) which a Gaussian is found to be too narrow
        (too wide); 0 (infinity) where the strongest fault that is looked for, 8 times, is not.
    bias : float
        Deviation of the mean, in posterior sds, from which on it is found.

    Examples
    --------
    >>> from milzoo.diagnostics import CalibrationPower, calibration_power
    >>> power: CalibrationPower = calibration_power(200, num_quantities=3, seed=0)
    >>> print(power.sentence)
    200 simulations of 3 quantities find, with probability 0.8, an sd below 0.69 or above 1.44 of
    the posterior's, or a bias of 0.44 posterior sds
    """

    simulations: int
    num_quantities: int
    power: float
    narrow: float
    wide: float
    bias: float

    @property
    def sentence(self) -> str:
        """The faults in words."""
        narrow = [f"below {self.narrow:.2f}"] if self.narrow > 0 else []
        wide = [f"above {self.wide:.2f}"] if np.isfinite(self.wide) else []
        sds = " or ".join(narrow + wide)
        faults = [f"an sd {sds} of the posterior's"] if sds else []
        if np.isfinite(self.bias):
            faults.append(f"a bias of {self.bias:.2f} posterior sds")
        return (
            f"{self.simulations} simulations of {self.num_quantities} quantities find, with "
            f"probability {self.power:.2g}, {', or '.join(faults) or 'no fault, however large'}"
        )


def calibration_power(
    simulations: int,
    *,
    num_quantities: int,
    seed: int | Array,
    num_draws: int = 99,
    false_alarm_rate: float = 1e-4,
    power: float = 0.8,
) -> CalibrationPower:
    r"""Find the faults that `simulation_calibration` would detect, without running it.

    The posterior of one quantity is Gaussian, θ ~ N(0, 1) in its own units, and the engine's is
    N(b, r²) instead: a draw is below the truth with probability Φ((θ − b)/r). Ranks of S truths
    are simulated, and r and b found at which one of the two tests of that quantity rejects with
    the given probability. The other quantities are right; each takes an equal part of the level.

    Parameters
    ----------
    simulations : int
        S.
    num_quantities : int
        Of one look.
    seed : int or JAX key
        Of the simulated ranks.
    num_draws : int
        L, of each posterior.
    false_alarm_rate : float
        Of one look at all quantities.
    power : float

    Returns
    -------
    CalibrationPower

    Raises
    ------
    ValueError
        If a count is below 1, or a rate is no probability.

    References
    ----------
    Talts et al. (2018); Modrák et al. (2023), on what ranks can and cannot find.

    Examples
    --------
    >>> from milzoo.diagnostics import calibration_power
    >>> few, more = (calibration_power(number, num_quantities=3, seed=0) for number in (100, 200))
    >>> round(few.bias, 1), round(more.bias, 1)  # in posterior sds
    (0.6, 0.4)
    """
    check_counts(simulations=simulations, num_quantities=num_quantities, num_draws=num_draws)
    check_probability(false_alarm_rate=false_alarm_rate, power=power)
    random = np.random.default_rng(np.asarray(jax.random.key_data(random_key(seed))))
    truth = random.normal(size=(_TRIALS, simulations))
    for_ranks = random.integers(2**63)
    gap = smallest_gap(simulations, level_of_a_test(false_alarm_rate, num_quantities))

    def is_found(bias: float, ratio: float) -> bool:
        chance = stats.norm.cdf((truth - bias) / ratio)
        same = np.random.default_rng(for_ranks)  # so that found or not depends on the fault alone
        rank = same.binomial(num_draws, chance)
        pit = (rank + same.random(rank.shape)) / (num_draws + 1)
        farthest = np.maximum(_from_uniform(pit), _from_uniform(np.abs(2 * pit - 1)))
        return float(np.mean(farthest > gap)) >= power

    log_strongest = float(np.log(_STRONGEST))
    narrow = _smallest(lambda size: is_found(0.0, np.exp(-size)), log_strongest)
    wide = _smallest(lambda size: is_found(0.0, np.exp(size)), log_strongest)
    return CalibrationPower(
        simulations=simulations,
        num_quantities=num_quantities,
        power=power,
        narrow=float(np.exp(-narrow)),
        wide=float(np.exp(wide)),
        bias=_smallest(lambda size: is_found(size, 1.0), _STRONGEST),
    )


def level_of_a_test(false_alarm_rate: float, num_quantities: int) -> float:
    """Bonferroni's level, over two tests of each quantity: of uniform ranks, and of coverage."""
    return false_alarm_rate / (2 * num_quantities)


def smallest_gap(simulations: int, level: float) -> float:
    """The smallest distance from uniform that one test detects, Kolmogorov and Smirnov's, exact."""
    return float(stats.kstwo.isf(level, simulations))


def _from_uniform(pit: Float[np.ndarray, "T S"]) -> Float[np.ndarray, " T"]:
    """Kolmogorov and Smirnov's distance of each row from the uniform distribution."""
    ordered, num = np.sort(pit, axis=1), pit.shape[1]
    above, below = np.arange(1, num + 1) / num - ordered, ordered - np.arange(num) / num
    return np.maximum(above, below).max(axis=1)


def _smallest(is_found: Callable[[float], bool], largest: float) -> float:
    """The smallest size of a fault that is found; infinity if the largest is not."""
    if not is_found(largest):
        return np.inf
    low, high = 0.0, largest
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high
