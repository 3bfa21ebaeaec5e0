"""An engine on every kept reference: how wrong it is, and how long it takes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import pandas as pd

from ..datasets.arguments import known_or_nearest
from ..diagnostics import compare
from ..inference import Posterior
from .entries import ENTRIES
from .stored import DATABASE, Reference, is_kept, load_reference

__all__ = ["benchmark_engine"]

# Of the comparison with a reference.
_MEASURES = (
    *("status", "seconds", "wall_seconds", "mean_error", "worst_error", "sd_ratio", "coverage_90"),
    *("khat", "ess_per_second"),
)
_NAME = "the engine"


def benchmark_engine(
    engine: Callable[..., Posterior],
    *,
    seed: int,
    tags: Sequence[str] = (),
    folder: str | os.PathLike[str] = DATABASE,
    **settings: object,
) -> pd.DataFrame:
    """Run an engine on the problems of kept references, and measure it against their draws.

    Parameters
    ----------
    engine : callable
        ``(model, bags, *, seed, …) → Posterior``, such as those of `milzoo.inference.ENGINES`.
    seed : int
    tags : sequence of str
        Only references with all of these; every one if empty.
    folder : path
    **settings
        Of the engine.

    Returns
    -------
    DataFrame
        A row for each reference: ``status``, ``seconds`` (compilation apart), ``wall_seconds``,
        ``mean_error`` and ``worst_error`` of means in reference sds, ``sd_ratio``,
        ``coverage_90`` of the central 90 % intervals, ``khat``, ``ess_per_second`` and
        ``warmup_seconds`` of chains, ``kl`` of approximations with a density in nats, and
        ``classifier_accuracy``, which is ½ where nothing can be told. An engine that does not take
        the model has its message as the status, and no numbers.

    Raises
    ------
    ValueError
        If a tag is unknown, or no reference with all the tags is kept.
    """
    rows = {
        name: _measured(load_reference(name, folder), engine, seed, settings)
        for name in _names(tags, folder)
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "reference"
    return table


def _names(tags: Sequence[str], folder: str | os.PathLike[str]) -> list[str]:
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
    reference: Reference,
    engine: Callable[..., Posterior],
    seed: int,
    settings: dict[str, object],
) -> dict[str, object]:
    model, bags = reference.entry.problem()
    measures = (*_MEASURES, "warmup_seconds", "kl", "classifier_accuracy")
    try:
        found = engine(model, bags, seed=seed, **settings)
    except (NotImplementedError, ValueError) as refusal:
        nothing: dict[str, object] = dict.fromkeys(measures, math.nan)
        return nothing | {"status": str(refusal)}
    comparison = compare({_NAME: found}, reference=reference)
    row = comparison.table.loc[_NAME]
    divergence, joint = comparison.divergence_table, comparison.joint_table
    warmup = math.nan if found.sampling_seconds is None else found.seconds - found.sampling_seconds
    return {name: row[name] for name in _MEASURES} | {
        "warmup_seconds": warmup,
        "kl": divergence["kl"].get(_NAME, math.nan),
        "classifier_accuracy": joint["classifier_accuracy"].get(_NAME, math.nan),
    }
