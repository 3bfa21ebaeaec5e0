"""All that is measured of one posterior: its chains or its k̂, its errors, its predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass

import arviz as az
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from ..datasets.bags import Bags
from ..inference.posterior import Posterior, Prediction
from ..inference.programs import log_joint
from ..models.model import Model
from .accuracy import Accuracy, accuracy, pareto_khat
from .convergence import Convergence, continuous_sites, convergence
from .scores import PredictionDifference, Scores, prediction_difference, score

__all__ = ["Evidence", "Verdict", "gather", "judge", "targets"]

# Fields that an engine may learn: other values of them are no other kind of model.
_HYPERPARAMETERS = ("kernel", "mean")
# Sites this many times larger than an approximation has them: another region altogether.
_RUNAWAY = 10.0


@dataclass(frozen=True)
class Evidence:
    """What is known of a posterior by itself, before it is compared with another.

    Attributes
    ----------
    posterior : Posterior
    draws : Dataset
        Of its continuous sites, dimensions chain and draw: a sampler's stored ones, fresh
        independent ones of an approximation.
    convergence : Convergence or None
        Of a sampler.
    khat : float
        Of an approximation, against the exact marginal of its own model; NaN for a sampler.
    prediction : Prediction or None
        Of the test bags, if there are any.
    """

    posterior: Posterior
    draws: xr.Dataset = field(repr=False)
    convergence: Convergence | None
    khat: float
    prediction: Prediction | None = field(repr=False)

    @property
    def failed(self) -> bool:
        """Whether the engine says so, or a draw is not finite."""
        finite = all(bool(np.isfinite(site).all()) for site in self.draws.data_vars.values())
        return self.posterior.status.kind == "failed" or not finite


@dataclass(frozen=True)
class Verdict:
    """What is known of a posterior among others.

    Attributes
    ----------
    evidence : Evidence
    target : str
        The model it is about, in what sets it apart from the others; empty if nothing does.
    reference : str or None
        The posterior that all are compared with; None if there is none, or it is this one.
    has_other_target : bool
        Whether the reference is about another model.
    own_reference : str or None
        A sampler of this posterior's own target, where the reference has another one.
    own_reference_mixed : bool
        Whether that sampler's chains have mixed.
    accuracy, own_accuracy : Accuracy or None
        Against each of them.
    size, own_size : float
        Mean |value| of the compared sites, here and under ``own_reference``.
    scores : Scores or None
        On the test bags.
    difference : PredictionDifference or None
        From the reference's predictions.
    """

    evidence: Evidence
    target: str
    reference: str | None
    has_other_target: bool
    own_reference: str | None
    own_reference_mixed: bool
    accuracy: Accuracy | None
    own_accuracy: Accuracy | None
    size: float
    own_size: float
    scores: Scores | None
    difference: PredictionDifference | None

    def row(self) -> dict[str, object]:
        """The row of the table, by column."""
        posterior, chains = self.evidence.posterior, self.evidence.convergence
        error, own, scores = self.accuracy, self.own_accuracy, self.scores
        return {
            "target": self.target,
            "status": self.status,
            "seconds": posterior.seconds,
            "compile_seconds": posterior.compile_seconds,
            "elbo": _last(posterior.elbo),
            "rhat": chains.rhat if chains else math.nan,
            "ess_bulk": chains.ess_bulk if chains else math.nan,
            "ess_tail": chains.ess_tail if chains else math.nan,
            "ess_per_second": chains.ess_per_second if chains else math.nan,
            "divergences": chains.divergences if chains else math.nan,
            "khat": self.evidence.khat,
            "mean_error": error.mean_error if error else math.nan,
            "worst_error": error.worst_error if error else math.nan,
            "error_mcse": error.mean_error_mcse if error else math.nan,
            "sd_ratio": error.mean_sd_ratio if error else math.nan,
            "largest_z": error.largest_z if error and chains else math.nan,
            "own_reference": self.own_reference or "",
            "own_mean_error": own.mean_error if own else math.nan,
            "own_sd_ratio": own.mean_sd_ratio if own else math.nan,
            "size": self.size,
            **{
                name.name: getattr(scores, name.name) if scores else math.nan
                for name in fields(Scores)
            },
            "probability_difference": self.difference.probability if self.difference else math.nan,
        }

    @property
    def is_left_behind(self) -> bool:
        """Whether its own model's posterior lies elsewhere, at values many times larger."""
        is_sampler = self.evidence.convergence is not None
        return not is_sampler and self.own_size > _RUNAWAY * self.size

    @property
    def status(self) -> str:
        """The engine's own status; of a sampler that ran to its end, whether its chains mixed."""
        if self.evidence.failed:
            return "failed"
        chains = self.evidence.convergence
        if chains is None:
            return self.evidence.posterior.status.kind
        return chains.verdict


def _last(elbo: Float[np.ndarray, " T"] | None) -> float:
    return math.nan if elbo is None or len(elbo) == 0 else float(elbo[-1])


def gather(
    posterior: Posterior, *, test: Bags | None, num_draws: int, seed: int | Array
) -> Evidence:
    """Judge one posterior by itself.

    Parameters
    ----------
    posterior : Posterior
    test : Bags or None
    num_draws : int
        Fresh draws of an approximation.
    seed : int or JAX key
        Of these draws.

    Returns
    -------
    Evidence
    """
    prediction = None if test is None else posterior.predict(test)
    if posterior.is_mcmc:
        draws = continuous_sites(posterior.tree["posterior"].to_dataset())
        return Evidence(posterior, draws, convergence(posterior), math.nan, prediction)
    fresh = posterior.draws(num_draws, seed=seed)
    log_target = log_joint(posterior.model.marginal(), fresh, posterior.bags)
    log_approximation = posterior.log_density(fresh)
    khat = math.nan if log_approximation is None else pareto_khat(log_target, log_approximation)
    one_chain = {name: value[None] for name, value in fresh.items()}
    dims = {name: list(names) for name, names in posterior.model.dims.items() if name in fresh}
    tree = az.from_dict({"posterior": one_chain}, dims=dims)
    return Evidence(
        posterior, continuous_sites(tree["posterior"].to_dataset()), None, khat, prediction
    )


def judge(
    name: str,
    evidence: dict[str, Evidence],
    targets: dict[str, str],
    *,
    reference: str | None,
    test: Bags | None,
) -> Verdict:
    """Compare one posterior with the reference and, where that has another target, with its own.

    Parameters
    ----------
    name : str
    evidence : dict of Evidence
        Of all posteriors.
    targets : dict of str
        As from `targets`.
    reference : str or None
    test : Bags or None

    Returns
    -------
    Verdict
    """
    mine = evidence[name]
    others = None if reference in (None, name) else reference
    own = _own_reference(name, evidence, targets, reference)
    own_chains = evidence[own].convergence if own else None
    sites = sorted(set.intersection(*(set(map(str, e.draws.data_vars)) for e in evidence.values())))

    def error_against(other: str | None) -> Accuracy | None:
        if other is None or mine.failed or evidence[other].failed:
            return None
        return accuracy(mine.draws[sites], evidence[other].draws[sites])

    scores = difference = None
    if test is not None and mine.prediction is not None and not mine.failed:
        scores = score(mine.prediction, test)
        theirs = evidence[others].prediction if others else None
        if theirs is not None:
            difference = prediction_difference(mine.prediction, theirs, test)
    return Verdict(
        evidence=mine,
        target=targets[name],
        reference=others,
        has_other_target=others is not None and targets[name] != targets[others],
        own_reference=own,
        own_reference_mixed=own_chains is not None and own_chains.mixed,
        accuracy=error_against(others),
        own_accuracy=error_against(own),
        size=_size(mine.draws[sites]),
        own_size=_size(evidence[own].draws[sites]) if own else math.nan,
        scores=scores,
        difference=difference,
    )


def _own_reference(
    name: str, evidence: dict[str, Evidence], targets: dict[str, str], reference: str | None
) -> str | None:
    """The sampler of this target with the largest smallest ESS, if the reference has another."""
    if reference is None or targets[name] == targets[reference]:
        return None
    samplers = [other for other in evidence if other != name and targets[other] == targets[name]]
    return best_sampler({other: evidence[other] for other in samplers})


def best_sampler(evidence: dict[str, Evidence]) -> str | None:
    """The sampler with the largest smallest ESS, bulk or tail; None if there is none."""
    ess = {
        name: min(known.convergence.ess_bulk, known.convergence.ess_tail)
        for name, known in evidence.items()
        if known.convergence is not None and not known.failed
    }
    return max(ess, key=lambda name: ess[name]) if ess else None


def _size(draws: xr.Dataset) -> float:
    values = np.concatenate([np.abs(site.to_numpy()).ravel() for site in draws.data_vars.values()])
    return float(values.mean())


def targets(models: dict[str, Model]) -> dict[str, str]:
    """What sets each model apart from the others, hyper-parameters aside.

    Parameters
    ----------
    models : dict of Model
        Dataclasses of one class.

    Returns
    -------
    dict of str
        Such as ``logistic`` or ``GammaMixing(alpha=1.0, beta=2.5)``; empty strings where all
        models are alike.
    """
    described = {name: _description(model) for name, model in models.items()}
    parts = next(iter(described.values()))
    differing = [part for part in parts if len({d[part] for d in described.values()}) > 1]
    return {name: ", ".join(d[part] for part in differing) for name, d in described.items()}


def _description(model: Model) -> dict[str, str]:
    """Each field that makes the model what it is, in words."""
    words = {"priors": f"priors on {', '.join(model.priors)}" if model.priors else "no priors"}
    if not is_dataclass(model):
        return words
    for entry in fields(model):
        value = getattr(model, entry.name)
        if isinstance(value, np.ndarray) or entry.name in _HYPERPARAMETERS:
            continue
        words[entry.name] = (
            _mixing_name(value) if entry.name == "mixing" else f"{entry.name}={value!r}"
        )
    return words


def _mixing_name(mixing: object) -> str:
    if type(mixing).__name__ == "PolyaGammaMixing":
        return "logistic"
    # A function in it would be printed with its address.
    return repr(mixing) if " at 0x" not in repr(mixing) else type(mixing).__name__
