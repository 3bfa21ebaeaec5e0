"""Criticise a model: predictive checks, coverage of the truth, sensitivity to the prior."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import arviz as az
import jax
import numpy as np
import pandas as pd
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from ...datasets.arguments import check_counts, check_probability
from ...datasets.bags import Bags
from ...inference.posterior import Posterior
from ...inference.prediction import TargetPrediction
from ...inference.runtime.densities import log_joint
from ...models.model import observations, random_key, split_key
from ..plots.panels import predictive_statistics
from .prior_predictive import replicates_from_the_prior, two_sided_p

__all__ = [
    "MUCH_SENSITIVITY",
    "PredictiveCheck",
    "interval_coverage",
    "predictive_check",
    "prior_sensitivity",
]

# (labels or targets of bags, replicates first; the bags) → a number for each replicate.
type Statistic = Callable[[Float[np.ndarray, "S B"], Bags], Float[np.ndarray, " S"]]

# Probability that a check of labels drawn from the posterior calls any of its statistics rare.
_RARE = 0.05
# Of power scaling, as ArviZ has it.
MUCH_SENSITIVITY = 0.05


def positive_fraction(labels: Float[np.ndarray, "S B"], bags: Bags) -> Float[np.ndarray, " S"]:
    """The fraction of bags that are positive."""
    return labels.mean(axis=1)


def correlation_with_size(labels: Float[np.ndarray, "S B"], bags: Bags) -> Float[np.ndarray, " S"]:
    """Correlation of label (or target) and size: large bags have more chances of a witness."""
    return _correlation(labels, np.asarray(bags.bag_sizes, dtype=float))


def correlation_with_farthest(
    labels: Float[np.ndarray, "S B"], bags: Bags
) -> Float[np.ndarray, " S"]:
    """Correlation of label and distance of a bag's farthest instance from the overall mean."""
    deviation = np.asarray(bags.instances) - np.asarray(bags.instances).mean(axis=0)
    farthest = np.maximum.reduceat(np.linalg.norm(deviation, axis=1), np.asarray(bags.starts))
    return _correlation(labels, farthest)


def _correlation(
    values: Float[np.ndarray, "S B"], other: Float[np.ndarray, " B"]
) -> Float[np.ndarray, " S"]:
    """0 where one of the two does not vary."""
    values, other = values - values.mean(axis=1, keepdims=True), other - other.mean()
    size = np.sqrt((values**2).sum(axis=1) * (other**2).sum())
    return np.divide(values @ other, size, out=np.zeros(len(values)), where=size > 0)


OF_LABELS: dict[str, Statistic] = {
    "fraction of positive bags": positive_fraction,
    "correlation with size": correlation_with_size,
    "correlation with farthest instance": correlation_with_farthest,
}
OF_TARGETS: dict[str, Statistic] = {
    "mean": lambda targets, bags: targets.mean(axis=1),
    "sd": lambda targets, bags: targets.std(axis=1),
    "lowest": lambda targets, bags: targets.min(axis=1),
    "highest": lambda targets, bags: targets.max(axis=1),
    "correlation with size": correlation_with_size,
}


@dataclass(frozen=True, eq=False)
class PredictiveCheck:
    """Statistics of replicated data under the prior and the posterior, and of the observed data.

    Attributes
    ----------
    observed : dict of float
        By statistic.
    prior, posterior : dict of arrays (S,)
        The same of replicates of all bags, drawn from the model and from the posterior.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import PredictiveCheck, predictive_check
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> check: PredictiveCheck = predictive_check(laplace(model, bags, seed=0), seed=0)
    >>> {name: round(value, 2) for name, value in check.observed.items()}
    {'fraction of positive bags': 0.5, 'correlation with size': 0.0,
     'correlation with farthest instance': 0.99}
    >>> round(float(check.prior["fraction of positive bags"].mean()), 1)
    0.5
    """

    observed: dict[str, float]
    prior: dict[str, Float[np.ndarray, " S"]] = field(repr=False)
    posterior: dict[str, Float[np.ndarray, " S"]] = field(repr=False)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each statistic: observed, mean and sd of replicates, two-sided p-values.

        p is no level of a test: of the posterior it is on the safe side, the data being used twice.
        """
        rows = {
            name: {
                "observed": value,
                **_row("prior", self.prior[name], value),
                **_row("posterior", self.posterior[name], value),
            }
            for name, value in self.observed.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def sentences(self) -> list[str]:
        """Which statistics of the data the model does not reproduce, corrected for their number."""
        return list(self._findings())

    def _findings(self) -> Iterator[str]:
        rare = _RARE / len(self.observed)  # Bonferroni's
        for name, row in self.table.iterrows():
            if row["posterior_p"] < rare:
                yield (
                    f"{name} is {row['observed']:.3g}, and {row['posterior_mean']:.3g} ± "
                    f"{row['posterior_sd']:.2g} in replicates (p = {row['posterior_p']:.2g}): the "
                    "model does not make data like these"
                )
            elif row["prior_p"] < rare:
                yield (
                    f"{name} is {row['observed']:.3g}, and {row['prior_mean']:.3g} ± "
                    f"{row['prior_sd']:.2g} under the prior (p = {row['prior_p']:.2g}): data like "
                    "these were not expected, but the posterior makes them"
                )

    def plot(self) -> Figure:
        """Replicates under prior and posterior, and where the data are; a panel a statistic."""
        return predictive_statistics(self.observed, self.prior, self.posterior)


def _row(of: str, replicates: Float[np.ndarray, " S"], observed: float) -> dict[str, float]:
    return {
        f"{of}_mean": float(replicates.mean()),
        f"{of}_sd": float(replicates.std(ddof=1)),
        f"{of}_p": float(two_sided_p(replicates, observed)),
    }


def predictive_check(
    posterior: Posterior,
    *,
    seed: int | Array,
    statistics: Mapping[str, Statistic] | None = None,
    num_replicates: int = 1000,
) -> PredictiveCheck:
    """Compare replicated labels (targets) of all bags with the observed ones.

    Parameters
    ----------
    posterior : Posterior
    seed : int or JAX key
    statistics : dict of callables or None
        (labels of all bags, replicates first; bags) → a number for each replicate; None for the
        fraction of positive bags and the correlation of labels with sizes and with farthest
        instances (mean, sd and extremes of targets). A statistic that is the same number of all
        replicates and of the data, such as a correlation with sizes that are all equal, is left
        out.
    num_replicates : int

    Returns
    -------
    PredictiveCheck

    Raises
    ------
    NotImplementedError
        If replicated labels say nothing of the model (its ``replication_note`` says why), or its
        prior cannot be drawn from.

    References
    ----------
    Gelman, Meng and Stern (1996); Gabry et al. (2019).

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import predictive_check
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> check = predictive_check(laplace(model, bags, seed=0), seed=0)
    >>> check.table[["observed", "posterior_mean"]].round(1)
                                        observed  posterior_mean
    fraction of positive bags                0.5             0.5
    correlation with size                    0.0            -0.1
    correlation with farthest instance       1.0             0.5
    >>> check.sentences  # all that the model does not reproduce
    []
    """
    check_counts(num_replicates=num_replicates)
    model, bags = posterior.model, posterior.bags
    if model.replication_note:
        raise NotImplementedError(model.replication_note)
    if statistics is None:
        statistics = OF_LABELS if model.observed_site == "bag_label" else OF_TARGETS
    prior_key, posterior_key = split_key(random_key(seed))
    observed = np.asarray(observations(model, bags, "predictive_check"), dtype=float)[None]
    before = replicates_from_the_prior(model, bags, prior_key, num_replicates)
    after = _from_the_posterior(posterior, posterior_key, num_replicates)
    values = {
        name: tuple(of(labels, bags) for labels in (observed, before, after))
        for name, of in statistics.items()
    }
    values = {name: each for name, each in values.items() if np.ptp(np.concatenate(each)) > 0}
    return PredictiveCheck(
        observed={name: float(seen[0]) for name, (seen, _, _) in values.items()},
        prior={name: replicated for name, (_, replicated, _) in values.items()},
        posterior={name: replicated for name, (_, _, replicated) in values.items()},
    )


def _from_the_posterior(posterior: Posterior, key: Array, num: int) -> Float[np.ndarray, "S B"]:
    stored = posterior.stored_draws()
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    chosen = random.integers(len(next(iter(stored.values()))), size=num)
    draws = {name: value[chosen] for name, value in stored.items()}
    if posterior.model.observed_site == "bag_target":
        predicted = TargetPrediction.of(posterior.model, draws, posterior.bags)
        return predicted.replicated(jax.random.fold_in(key, 1))
    chance = posterior.model.predict(draws, posterior.bags)["bag_probability"]
    return (random.random(chance.shape) < chance).astype(float)


def interval_coverage(
    draws: Mapping[str, Float[np.ndarray, "S ..."]],
    truth: Mapping[str, Float[np.ndarray, "..."]],
    *,
    levels: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95),
) -> pd.DataFrame:
    """Coverage: the fraction of true values that lie in central intervals.

    Parameters
    ----------
    draws : dict of arrays
        Sites by name, draws first, as ``posterior.stored_draws()`` has them.
    truth : dict of arrays
        As `simulate` gives it; sites that are in both are counted, number by number.
    levels : tuple of float
        Of the intervals.

    Returns
    -------
    DataFrame
        A row for each level: ``covered``, the fraction of true values inside, and ``num_values``.
        Values of one posterior depend on each other; for a test there is `simulation_calibration`.

    Raises
    ------
    ValueError
        If a level is no probability, no site is in both, or a site has the values 0 and 1 alone.

    Examples
    --------
    Draws that are half as wide as the truths hold too few of these in their intervals:

    >>> import numpy as np
    >>> from milzoo.diagnostics import interval_coverage
    >>> random = np.random.default_rng(0)
    >>> draws = {"weight": random.normal(0, 0.5, size=(1000, 2000))}
    >>> truth = {"weight": random.normal(size=2000)}
    >>> interval_coverage(draws, truth, levels=(0.5, 0.9)).round(1)
           covered  num_values
    level
    0.5        0.3        2000
    0.9        0.6        2000
    """
    shared = sorted(set(draws) & set(truth))
    if not shared:
        raise ValueError(
            f"truth has {', '.join(sorted(truth))}, and draws have {', '.join(sorted(draws))}; "
            "expected a site that is in both"
        )
    for level in levels:
        check_probability(level=level)
    for name in shared:
        if np.isin(draws[name], (0, 1)).all() and np.isin(truth[name], (0, 1)).all():
            raise ValueError(
                f"{name} has the values 0 and 1 alone, and central intervals of such a site hold "
                "everything or nothing; leave it out, or judge its probabilities by `reliability`"
            )
    below = np.concatenate(
        [np.ravel((np.asarray(draws[name]) < np.asarray(truth[name])).mean(0)) for name in shared]
    )
    from_the_middle = np.abs(2 * below - 1)
    rows = {
        level: {"covered": float((from_the_middle <= level).mean()), "num_values": below.size}
        for level in levels
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("level")


def prior_sensitivity(posterior: Posterior) -> pd.DataFrame:
    """Sensitivity of the posterior to power scaling of the prior or the likelihood, by ArviZ.

    Draws are weighted as if the density of the prior, or of the likelihood, were raised to a power
    close to 1, and compared with what they were. Of an approximation it is q that is weighted.

    Parameters
    ----------
    posterior : Posterior

    Returns
    -------
    DataFrame
        A row for each number of the latent sites: ``prior``, ``likelihood`` (more than 0.05 is
        much) and ``diagnosis``, as `arviz.psense_summary` has them.

    References
    ----------
    Kallioinen et al. (2024), detecting and diagnosing prior and likelihood sensitivity.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import prior_sensitivity
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = laplace(model, bags, seed=0)
    >>> prior_sensitivity(posterior).round(2)
                       prior  likelihood                      diagnosis
    inducing_value[0]   0.07        0.17  potential prior-data conflict
    inducing_value[1]   0.11        0.18  potential prior-data conflict
    """
    model, tree = posterior.model, posterior.tree_with_log_likelihood()
    sites = {name: posterior.stored_draws()[name] for name in model.latent_sites}
    by_bag = posterior.log_likelihood
    both = log_joint(model, "marginal", sites, posterior.bags).reshape(by_bag.shape[:2])
    log_prior = az.from_dict({"log_prior": {"prior": both - by_bag.sum("bag").to_numpy()}})
    tree["log_prior"] = log_prior["log_prior"]
    with _without_messages(logging.getLogger("arviz_stats.psense")):  # the table says the same
        found: Any = az.psense_summary(tree, var_names=list(model.latent_sites))
    return found


@contextmanager
def _without_messages(logger: logging.Logger) -> Iterator[None]:
    def refuse(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
