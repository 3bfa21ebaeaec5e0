"""Tests of all sites at once: against the reference's draws, and against the model's density."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float

from ..inference.gaussian import whitened_program
from ..inference.importance import ImportanceResampled
from ..inference.posterior import Posterior, flat_draws
from ..inference.runtime.densities import log_joint
from ..models.model import Draws
from .checks.stein import SteinTest, stein_test
from .checks.two_sample import TwoSampleTest, by_chain, evenly, independent_number, two_sample_test
from .verdict import Assessment, Verdict

__all__ = ["JointTest", "joint_sentences", "joint_table", "joint_tests", "two_sample_of"]

# p-values below it are told as a difference.
_LEVEL = 0.01
# Draws whose scores are looked at, and instances times draws up to which these are quick.
_SCORED, _MOST_WORK = 1000, 2 * 10**7


@dataclass(frozen=True)
class JointTest:
    """Tests of all sites of a posterior at once; None where one does not apply.

    Attributes
    ----------
    two_sample : TwoSampleTest or None
        Against the draws of ``reference``.
    stein : SteinTest or None
        Against the density of its own model.
    reference : str or None
    """

    two_sample: TwoSampleTest | None
    stein: SteinTest | None
    reference: str | None


def joint_tests(
    verdicts: Mapping[str, Verdict], *, missed: Collection[str], seed: int
) -> dict[str, JointTest]:
    """Test each posterior that did not fail and has more than one draw.

    Against the reference where that can judge others, has the same target density and missed no
    mode.

    Parameters
    ----------
    verdicts : dict of Verdict
    missed : collection of str
        Posteriors that did not visit a mode.
    seed : int
        Of permutations and bootstraps.

    Returns
    -------
    dict of JointTest
        By the name of the posterior; without those that no test applies to.
    """
    found = {}
    for name, verdict in verdicts.items():
        random = np.random.default_rng(seed)
        two_sample = two_sample_of(verdict, missed=missed, random=random)
        stein = _stein(verdict.assessment, random)
        if two_sample is not None or stein is not None:
            peer = verdict.reference
            judge = peer.name if peer is not None and two_sample is not None else None
            found[name] = JointTest(two_sample, stein, judge)
    return found


def two_sample_of(
    verdict: Verdict, *, missed: Collection[str] = (), random: np.random.Generator
) -> TwoSampleTest | None:
    """Test whether a classifier can tell a posterior's draws from its reference's.

    Parameters
    ----------
    verdict : Verdict
    missed : collection of str
        Posteriors that did not visit a mode.
    random : Generator
        Of permutations and of directions.

    Returns
    -------
    TwoSampleTest or None
        None if the posterior cannot be tested, or its reference cannot judge others, has another
        target density or missed a mode.
    """
    peer = verdict.reference
    if (
        peer is None
        or verdict.has_other_target_density
        or not peer.assessment.can_judge
        or peer.name in missed
        or not _is_testable(verdict.assessment)
    ):
        return None
    ours, theirs = verdict.assessment, peer.assessment
    sites = [name for name in ours.draws if name in theirs.draws]
    log_ratio = None  # of densities, where this one has a density of the model's own sites
    if ours.weighted is not None and not ours.posterior.model.estimands:
        log_ratio = partial(_log_ratio, ours.posterior)
    sides = ours.draws[sites], theirs.draws[sites]
    return two_sample_test(*sides, random=random, log_ratio=log_ratio)


def _log_ratio(posterior: Posterior, draws: Draws) -> Float[np.ndarray, " K"]:
    """log p(D, θ) − log q(θ) at draws of any posterior of the model."""
    latent = {name: draws[name] for name in posterior.model.latent_sites}
    log_approximation = posterior.log_density(latent)
    assert log_approximation is not None
    log_target_density = log_joint(posterior.model, "marginal", latent, posterior.bags)
    # Where neither has a density, it is not q's draw.
    return np.nan_to_num(log_target_density - log_approximation, nan=np.inf)


def _is_testable(assessment: Assessment) -> bool:
    """Whether its draws are independent, or can be thinned until they are."""
    chains = assessment.convergence
    is_resampled = isinstance(assessment.posterior.approximation, ImportanceResampled)
    return not (
        assessment.failed
        or assessment.is_point
        or is_resampled
        or (chains is not None and not chains.mixed)
    )


def _stein(assessment: Assessment, random: np.random.Generator) -> SteinTest | None:
    """Against the model's density, if it has a gradient that is quick."""
    if not _is_testable(assessment):
        return None
    model, bags = assessment.posterior.model, assessment.posterior.bags
    if model.gradient_note or model.estimands or bags.num_instances * _SCORED > _MOST_WORK:
        return None
    chains = assessment.draws[list(model.latent_sites)]
    values = by_chain(chains)
    chosen = evenly(values, min(_SCORED, independent_number(values)))
    draws = flat_draws(chains.isel(draw=chosen))
    with jax.enable_x64(True):
        return stein_test(whitened_program(model, bags), draws, random=random)


def joint_table(found: Mapping[str, JointTest]) -> pd.DataFrame:
    """A row for each posterior.

    Parameters
    ----------
    found : dict of JointTest

    Returns
    -------
    DataFrame
        ``classifier_accuracy``, ``classifier_error`` and ``classifier_p`` (against the reference),
        ``stein``, ``stein_error`` and ``stein_p`` (against the model's density); NaN where a test
        does not apply.
    """
    rows = {name: _row(one) for name, one in found.items()}
    columns = ("classifier_accuracy", "classifier_error", "classifier_p")
    columns += ("stein", "stein_error", "stein_p")
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(columns), dtype=float)
    table.index.name = "engine"
    return table


def _row(found: JointTest) -> list[float]:
    two_sample, stein = found.two_sample, found.stein
    nothing = [math.nan] * 3
    return [
        *(nothing if two_sample is None else two_sample[:3]),
        *(nothing if stein is None else stein[:3]),
    ]


def joint_sentences(found: Mapping[str, JointTest]) -> list[str]:
    """What the tests say of each posterior.

    Parameters
    ----------
    found : dict of JointTest

    Returns
    -------
    list of str
    """
    return [" ".join(filter(None, _sentences(name, one))) for name, one in found.items()]


def _sentences(name: str, found: JointTest) -> Iterator[str]:
    two_sample, stein = found.two_sample, found.stein
    if two_sample is not None:
        yield _told_apart(name, two_sample, found.reference)
    if stein is not None:
        chance = (
            f"kernel Stein discrepancy {stein.discrepancy:.2g}, 0 ± {stein.error:.1g} by chance"
        )
        if stein.p_value > _LEVEL:
            yield f"By the model's density nothing is wrong with draws of {name} ({chance})."
        else:
            yield f"By the model's density draws of {name} are not of its posterior ({chance})."


def _told_apart(name: str, found: TwoSampleTest, reference: str | None) -> str:
    percent, error = 100 * found.accuracy, 100 * found.accuracy_error
    said = f"{percent:.1f} % of draws, 50 ± {error:.1f} % by chance"
    if found.p_value > _LEVEL:
        return f"A classifier cannot tell {name} from {reference}: it is right of {said}."
    where, wrong = found.direction, ""
    if found.is_best:
        wrong = f"; probabilities are wrong by up to {100 * found.total_variation:.0f} %"
    return (
        f"A classifier tells {name} from {reference}: it is right of {said}{wrong}. They differ "
        f"most along a direction like {where.site} (correlation {where.correlation:.2f}): there "
        f"{name}'s mean is {where.distance:.2f} sd away, and its sd {where.sd_ratio:.2f} times "
        f"{reference}'s."
    )
