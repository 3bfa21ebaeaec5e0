"""An engine on every kept reference: its errors, and its seconds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from ..datasets.arguments import known_or_nearest
from ..diagnostics.divergence import divergence_of
from ..diagnostics.joint import two_sample_of
from ..diagnostics.measures.target_densities import target_densities
from ..diagnostics.verdict import Assessment, Verdict, gather, judge
from ..inference import Posterior
from .entries import ENTRIES
from .stored import DATABASE, Reference, is_kept, load_reference

__all__ = ["benchmark_engine", "names_with", "rows_of_reference"]

# Columns from the table of a comparison, and columns that are added.
_MEASURES = (
    *("status", "seconds", "wall_seconds", "mean_error", "worst_error", "sd_ratio", "coverage_90"),
    *("khat", "ess_per_second"),
)
_OTHERS = ("warmup_seconds", "kl", "classifier_accuracy")
_NAME = "the engine"
# Fresh draws of an approximation, as `compare` takes them.
_NUM_DRAWS = 4000


def benchmark_engine(
    engine: Callable[..., Posterior],
    *,
    seed: int,
    tags: Sequence[str] = (),
    folder: str | os.PathLike[str] = DATABASE,
    **settings: object,
) -> pd.DataFrame:
    """Run an engine on the problems of kept references, and measure its errors and seconds.

    Parameters
    ----------
    engine : callable
        ``(model, bags, *, seed, …) → Posterior``, such as those of `milzoo.inference.ENGINES`.
    seed : int
    tags : sequence of str
        Only references with all of these; every one if empty.
    folder : path
    **settings
        Settings of the engine.

    Returns
    -------
    DataFrame
        A row for each reference: ``status``, ``seconds`` (compilation apart), ``wall_seconds``,
        ``mean_error`` and ``worst_error`` of means in reference sds, ``sd_ratio``,
        ``coverage_90`` of the central 90 % intervals, ``khat``, ``ess_per_second`` and
        ``warmup_seconds`` of chains, ``kl`` of approximations with a density in nats, and
        ``classifier_accuracy``, which is ½ where the draws cannot be told apart. If an engine
        refuses the model, ``status`` is its message and the numbers are NaN.

    Raises
    ------
    ValueError
        If a tag is unknown, or no reference with all the tags is kept.

    Examples
    --------
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.references import benchmark_engine
    >>> table = benchmark_engine(coordinate_ascent, seed=0, tags=["exact"])
    >>> table[["mean_error", "sd_ratio"]].round(1)
                                mean_error  sd_ratio
    reference
    vwsgp-gaussian-simulated-9         0.0       1.0
    """
    chosen = {_NAME: partial(engine, **settings)}
    rows = [
        rows_of_reference(load_reference(name, folder), chosen, seed=seed)
        for name in names_with(tags, folder)
    ]
    return pd.concat(rows).drop(columns="engine").set_index("reference")


def rows_of_reference(
    reference: Reference, engines: Mapping[str, Callable[..., Posterior]], *, seed: int
) -> pd.DataFrame:
    """Run engines on the problem of one reference.

    Parameters
    ----------
    reference : Reference
    engines : mapping of str to callable
        By the name that the rows give them.
    seed : int

    Returns
    -------
    DataFrame
        A row for each engine: ``engine``, ``reference``, and the columns of `benchmark_engine`.
    """
    exact = _assessed(reference.posterior, seed)
    return pd.DataFrame(
        {"engine": name, "reference": reference.name, **_measured(reference, exact, engine, seed)}
        for name, engine in engines.items()
    )


def names_with(tags: Sequence[str], folder: str | os.PathLike[str] = DATABASE) -> list[str]:
    """Names of the kept references that have all of the tags.

    Parameters
    ----------
    tags : sequence of str
    folder : path

    Returns
    -------
    list of str

    Raises
    ------
    ValueError
        If a tag is unknown, or no reference with all the tags is kept.
    """
    known = sorted({tag for entry in ENTRIES.values() for tag in entry.tags})
    for tag in tags:
        if tag not in known:
            raise ValueError(f"unknown tag {tag!r}; {known_or_nearest(tag, known)}")
    names = [
        entry.name
        for entry in ENTRIES.values()
        if set(tags) <= set(entry.tags) and is_kept(entry.name, folder)
    ]
    if not names:
        raise ValueError(
            f"no reference with the tags {', '.join(tags) or '(none)'} is kept in {folder}; make "
            "one by `milzoo reference make NAME`"
        )
    return names


def _measured(
    reference: Reference, exact: Assessment, engine: Callable[..., Posterior], seed: int
) -> dict[str, object]:
    model, bags = reference.posterior.model, reference.posterior.bags
    try:
        found = engine(model, bags, seed=seed)
    except (NotImplementedError, ValueError) as refusal:
        nothing: dict[str, object] = dict.fromkeys((*_MEASURES, *_OTHERS), math.nan)
        return nothing | {"status": str(refusal)}
    verdict = _judged(found, reference.name, exact, seed)
    row, test = verdict.row(), two_sample_of(verdict, random=np.random.default_rng(seed))
    warmup = math.nan if found.sampling_seconds is None else found.seconds - found.sampling_seconds
    kl = math.nan
    if verdict.assessment.weighted is not None:
        value, error = reference.log_evidences[0][:2]
        kl = divergence_of(verdict.assessment, value, error, reference.name).kl
    others = warmup, kl, math.nan if test is None else test.accuracy
    return {name: row[name] for name in _MEASURES} | dict(zip(_OTHERS, others, strict=True))


def _assessed(posterior: Posterior, seed: int) -> Assessment:
    return gather(posterior, test=None, num_draws=_NUM_DRAWS, seed=seed)


def _judged(found: Posterior, reference: str, exact: Assessment, seed: int) -> Verdict:
    """The verdict of `compare`, without parts that have no column here and compile for seconds."""
    assessments = {_NAME: _assessed(found, seed), reference: exact}
    densities = target_densities({name: one.posterior.model for name, one in assessments.items()})
    return judge(_NAME, assessments, densities, reference=reference, test=None)
