"""Leave-one-out predictions of bags by Pareto-smoothed importance sampling (PSIS-LOO, by ArviZ)."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float
from scipy import stats

from ...inference.maximum_a_posteriori import PointApproximation
from ...inference.posterior import Posterior
from ...inference.prediction import TargetPrediction
from ...inference.runtime.densities import log_joint
from ...models.model import observations
from ..measures.reliability import reliability

__all__ = [
    "HeldOutCalibration",
    "held_out_calibration",
    "leave_one_out",
    "leave_one_out_of_all",
    "leave_one_out_sentences",
    "leave_one_out_table",
    "why_none_is_held_out",
]


def leave_one_out(posterior: Posterior) -> Any:
    """Compute log p(label of a bag | the other bags) under the exact model, by weights.

    Draws are weighted by 1/p(label | draw), Pareto smoothed; those of an approximation q by
    p(draw, labels)/q(draw) too, so that the estimate is of the model, not of q. k̂ of the weights
    says for which bags they work. `select` fits again where they do not.

    Parameters
    ----------
    posterior : Posterior

    Returns
    -------
    arviz ELPDData
        With ``elpd_i`` and ``pareto_k`` by bag.

    Raises
    ------
    NotImplementedError
        If the model has no likelihood of labels or targets; its ``leave_one_out_note`` says so.
    ValueError
        If the posterior failed, is a point, or has a kernel or scores learned from all labels.

    References
    ----------
    Vehtari, Gelman and Gabry (2017); Magnusson et al. (2019), Bayesian leave-one-out for large
    data, of approximations.
    """
    why = _why_not(posterior)
    if posterior.model.leave_one_out_note:
        raise NotImplementedError(why)
    if why:
        raise ValueError(why)
    with warnings.catch_warnings():  # k̂ is there to be read
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto", UserWarning)
        draws = posterior.stored_draws()
        sites = {name: draws[name] for name in posterior.model.latent_sites}
        log_q = None if posterior.is_mcmc else posterior.log_density(sites)
        tree = posterior.tree_with_log_likelihood()
        if log_q is None:
            tree["log_likelihood"] = xr.DataTree(_without_ties(posterior.log_likelihood))
            return az.loo(tree, pointwise=True)
        log_p = log_joint(posterior.model, "marginal", sites, posterior.bags)
        return az.loo_approximate_posterior(
            tree, np.asarray(log_p), np.asarray(log_q), pointwise=True
        )


def _without_ties(log_likelihood: xr.DataArray) -> xr.Dataset:
    """The log likelihood, of bags whose largest weights are equal apart by 1e-12 from draw to draw.

    ArviZ fits no tail to equal weights: those of a bag that every draw is sure of.
    """
    of_draws = log_likelihood.stack(sample=("chain", "draw")).transpose("sample", "bag")
    largest = np.sort(of_draws.to_numpy(), axis=0)[:_FEWEST_IN_TAIL]
    steps = xr.ones_like(log_likelihood.isel(bag=0, drop=True))
    steps = steps.copy(data=1e-12 * np.arange(steps.size).reshape(steps.shape))
    tied = xr.DataArray(np.ptp(largest, axis=0) == 0, dims="bag")
    return (log_likelihood + steps * tied).rename(log_likelihood.name).to_dataset()


def why_none_is_held_out(posteriors: Mapping[str, Posterior]) -> Iterator[str]:
    """Why the posteriors do not allow leave-one-out: each reason once, as a sentence."""
    reasons = dict.fromkeys(filter(None, map(_why_not, posteriors.values())))
    yield from (f"{reason[0].upper()}{reason[1:]}." for reason in reasons)


def leave_one_out_of_all(posteriors: Mapping[str, Posterior]) -> dict[str, Any]:
    """`leave_one_out` of each posterior that allows it."""
    return {name: leave_one_out(one) for name, one in posteriors.items() if not _why_not(one)}


def leave_one_out_table(found: Mapping[str, Any]) -> pd.DataFrame:
    """Table of posteriors by their predictions of held-out bags, the best first.

    Parameters
    ----------
    found : dict of ELPDData
        As `leave_one_out` gives them, all of the same bags.

    Returns
    -------
    DataFrame
        ``elpd`` in nats over all bags with ``se``; ``elpd_diff`` from the best with ``dse``, by
        bag; ``p``, the effective number of parameters; ``bad_bags``, those with a k̂ beyond
        weighting; ``worst_khat``. With more than a tenth of bad bags ``elpd`` means nothing: such
        rows come last, and no other is measured against them.
    """
    if not found:
        return pd.DataFrame(columns=[*_COLUMNS, "bad_bags", "worst_khat"])
    sound = {name: one for name, one in found.items() if _is_sound(one)} or found
    best = max(sound, key=lambda name: sound[name].elpd)
    table = az.compare(dict(found), reference=best, round_to="none")[[*_COLUMNS]]
    table["bad_bags"] = [_num_bad(found[name]) for name in table.index]
    table["worst_khat"] = [float(np.max(found[name].pareto_k)) for name in table.index]
    table.index.name = "engine"
    return table.loc[sorted(table.index, key=lambda name: (name not in sound, -found[name].elpd))]


# Standard errors from which on a difference counts.
_CLEAR = 2.0
# ArviZ fits the tail to a fifth of the draws, and to five at least.
_FEWEST_DRAWS, _FEWEST_IN_TAIL = 25, 5
_COLUMNS = ("elpd", "se", "elpd_diff", "dse", "p")


def leave_one_out_sentences(
    found: Mapping[str, Any], target_densities: Mapping[str, str], unmixed: Collection[str] = ()
) -> Iterator[str]:
    """Sentences on the models' predictions of held-out bags, and which numbers are provisional.

    Parameters
    ----------
    found : dict of ELPDData
    target_densities : dict of str
        The target density of each posterior, by its name.
    unmixed : collection of str
        Samplers whose chains have not mixed.
    """
    for name in found:
        if name in unmixed:
            yield f"{name}'s chains have not mixed: its sum over held-out bags is provisional."
    for name, one in found.items():
        if _num_bad(one):
            yield (
                f"{name} cannot leave out {_num_bad(one)} of {one.n_data_points} bags by weights "
                f"(k̂ up to {float(np.max(one.pareto_k)):.2f}): its sum is provisional; "
                "milzoo.diagnostics.select fits again without such bags."
            )
    if len({target_densities[name] for name in found}) == 1:
        yield "All have one target density: differences between them come from the engines."
        return
    best, *others = leave_one_out_table(
        _soundest_by_target_density(found, target_densities)
    ).itertuples()
    for other in others:
        one, two = (f"{target_densities[name]} (by {name})" for name in (best.Index, other.Index))
        ahead = f"{-other.elpd_diff:.1f} ± {other.dse:.1f} nats"
        if -other.elpd_diff > _CLEAR * other.dse:
            yield f"{one} predicts held-out bags better than {two}, by {ahead}."
        else:
            yield (
                f"{one} is ahead of {two} by {ahead} on held-out bags, which these bags cannot "
                "tell from no difference."
            )


def _soundest_by_target_density(
    found: Mapping[str, Any], target_densities: Mapping[str, str]
) -> dict[str, Any]:
    """For each model the posterior whose weights are best."""
    by_soundness = sorted(found, key=lambda name: _num_bad(found[name]), reverse=True)
    names = {target_densities[name]: name for name in by_soundness}
    return {name: found[name] for name in names.values()}


@dataclass(frozen=True)
class HeldOutCalibration:
    """Whether held-out bags are positive as often, or their targets as large, as predicted.

    Attributes
    ----------
    error : float
        Calibration error of the probabilities of labels (`reliability`); of targets Kolmogorov and
        Smirnov's distance of their probability integral transforms (LOO-PIT) from uniform.
    by_chance : float
        Its mean where the probabilities are right.
    p_value : float
    num_bags, num_influential : int
        Held-out bags, and those that are too influential for weights.
    """

    error: float
    by_chance: float
    p_value: float
    num_bags: int
    num_influential: int


def held_out_calibration(posterior: Posterior, found: Any) -> HeldOutCalibration | None:
    """Judge the model on its own training bags, each predicted from the others.

    P(T_b = 1 | T_−b) is p(t_b | T_−b) where t_b = 1, and one less that where t_b = 0. Of targets
    the PIT is P(Y ≤ y_b | Y_−b), by the same weights (`arviz.loo_pit`).

    Parameters
    ----------
    posterior : Posterior
        Draws of the exact posterior: the weights are those of its likelihood alone.
    found : ELPDData
        Its `leave_one_out`.

    Returns
    -------
    HeldOutCalibration or None
        None where more than a tenth of the bags are too influential for weights: the others would
        be a selection.

    References
    ----------
    Gabry et al. (2019), section 5; Säilynoja et al. (2025), Recommendations for visual predictive
    checks, of binary outcomes, whose PIT says nothing.
    """
    if not _is_sound(found):
        return None
    good = _is_good(found)
    counts = int(good.sum()), _num_bad(found)
    seen = np.asarray(observations(posterior.model, posterior.bags, "held_out_calibration"))
    if posterior.model.observed_site == "bag_target":
        return _of_targets(_held_out_pit(posterior)[good], *counts)
    right = np.exp(np.asarray(found.elpd_i))
    probability = np.clip(np.where(seen == 1, right, 1 - right), 0.0, 1.0)[good]
    curve = reliability(probability, seen[good])
    return HeldOutCalibration(curve.error, curve.error_if_calibrated, curve.p_value, *counts)


def _held_out_pit(posterior: Posterior) -> Float[np.ndarray, " B"]:
    """P(Y_b ≤ y_b | the targets of the others), from a replicate of each draw."""
    tree, site = posterior.tree_with_log_likelihood(), posterior.model.observed_site
    predicted = TargetPrediction.of(posterior.model, posterior.stored_draws(), posterior.bags)
    by_chain = posterior.log_likelihood
    replicated = predicted.replicated(0).reshape(by_chain.shape)
    tree["posterior_predictive"] = xr.DataTree(xr.Dataset({site: by_chain.copy(data=replicated)}))
    return np.asarray(az.loo_pit(tree, var_names=site)[site])


def _of_targets(
    pit: Float[np.ndarray, " B"], num_bags: int, num_influential: int
) -> HeldOutCalibration:
    found = stats.kstest(pit, "uniform")
    by_chance = float(stats.kstwo.mean(num_bags))
    return HeldOutCalibration(
        float(found.statistic), by_chance, float(found.pvalue), num_bags, num_influential
    )


def _is_sound(one: Any) -> bool:
    return 10 * _num_bad(one) <= int(one.n_data_points)


def _num_bad(one: Any) -> int:
    """Number of bags whose k̂ is too large for weighting, or not finite."""
    return int((~_is_good(one)).sum())


def _is_good(one: Any) -> Bool[np.ndarray, " B"]:
    return np.asarray(one.pareto_k) <= one.good_k


def _why_not(posterior: Posterior) -> str:
    """Why no bag can be held out; empty if it can."""
    if posterior.model.leave_one_out_note:
        return posterior.model.leave_one_out_note
    if posterior.model.learned_from_labels:
        return (
            f"{posterior.model.name} is fitted with {posterior.model.learned_from_labels}: weights "
            "cannot leave a bag out of these; select makes the model again without each bag"
        )
    if posterior.status.kind == "failed":
        return (
            f"posterior of {posterior.engine} failed ({posterior.status.sentence}); expected one "
            "with draws"
        )
    if isinstance(posterior.approximation, PointApproximation):
        return (
            f"posterior of {posterior.engine} is a point, without draws to weigh; expected a "
            "sampler's or an approximation's"
        )
    draws = posterior.tree["posterior"].sizes
    if (num_draws := draws["chain"] * draws["draw"]) < _FEWEST_DRAWS:
        return (
            f"posterior of {posterior.engine} has {num_draws} draws; a bag is held out by the "
            f"tail of its weights, which needs at least {_FEWEST_DRAWS}"
        )
    return ""
