"""Every engine on every kept reference: a table, a summary by tag, and a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from multiprocessing.queues import Queue
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..datasets.arguments import check_counts
from ..diagnostics.plots.panels import COLOURS, GREY, MARKERS, STYLE, rows_of_panels
from ..inference import (
    Posterior,
    coordinate_ascent,
    gibbs,
    laplace,
    nuts,
    pathfinder,
    pymc_nuts,
    svi,
    tempered_smc,
)
from ..models.numerics.threads import one_thread
from .benchmarking import names_with, rows_of_reference
from .entries import ENTRIES, entry_named
from .stored import load_reference

__all__ = [
    "LEAGUE",
    "errors",
    "in_order",
    "league",
    "lines_of_table",
    "lines_of_tags",
    "pareto_front",
    "picture",
    "rows_as_they_come",
    "seconds_to_error",
]

# Engines by the name that tables have: those that a user would take, at their usual lengths.
LEAGUE: Mapping[str, Callable[..., Posterior]] = {
    "coordinate_ascent": coordinate_ascent,
    "laplace": laplace,
    "svi": svi,
    "svi, flow": partial(svi, guide="flow"),
    "pathfinder": pathfinder,
    "nuts, auto": partial(nuts, mass_matrix="auto"),
    "gibbs": gibbs,
    "nutpie": partial(pymc_nuts, sampler="nutpie", mass_matrix="low_rank"),
    "tempered_smc, 200": partial(tempered_smc, num_particles=200),
}
# Errors of 10,000 reference draws: E|z|/√10,000, below which engines cannot be told apart.
_FLOOR = math.sqrt(2 / math.pi) / 100


def league(
    engines: Mapping[str, Callable[..., Posterior]] = LEAGUE,
    *,
    seed: int,
    tags: Sequence[str] = (),
    jobs: int | None = None,
) -> pd.DataFrame:
    """Run engines on all kept references, and collect their errors and seconds in a table.

    Every engine runs in a process that has one core, whatever ``jobs`` is, so that seconds are
    those of one core. On systems that cannot bind a process to a core, such as macOS, they are
    not.

    Parameters
    ----------
    engines : mapping of str to callable
        By the name that the table gives them; functions of modules, or partial ones of these.
    seed : int
    tags : sequence of str
        As in `benchmark_engine`.
    jobs : int or None
        References at a time, no more than there are cores: as many if None.

    Returns
    -------
    DataFrame
        The rows of `benchmark_engine`, with the columns ``engine`` and ``reference`` before them.

    Raises
    ------
    ValueError
        If there are more jobs than cores, or as in `benchmark_engine`.

    Examples
    --------
    >>> from milzoo.inference import coordinate_ascent, laplace
    >>> from milzoo.references import league
    >>> engines = {"coordinate_ascent": coordinate_ascent, "laplace": laplace}
    >>> table = league(engines, seed=0, tags=["exact"], jobs=1)  # doctest: +SKIP
    >>> table[["engine", "reference"]]  # doctest: +SKIP
                  engine                   reference
    0  coordinate_ascent  vwsgp-gaussian-simulated-9
    1            laplace  vwsgp-gaussian-simulated-9
    """
    return in_order(rows_as_they_come(engines, seed=seed, tags=tags, jobs=jobs))


def rows_as_they_come(
    engines: Mapping[str, Callable[..., Posterior]],
    *,
    seed: int,
    tags: Sequence[str] = (),
    jobs: int | None = None,
) -> Iterator[pd.DataFrame]:
    """The rows of `league`, a reference at a time, as they finish.

    Parameters
    ----------
    engines, seed, tags, jobs
        As in `league`.

    Yields
    ------
    DataFrame
        A row for each engine.
    """
    cores = _cores()
    jobs = len(cores) if jobs is None else jobs
    check_counts(jobs=jobs)
    if jobs > len(cores):
        raise ValueError(f"jobs is {jobs}; expected at most {len(cores)}, the number of cores")
    # The longest first, or the others' cores wait for it at the end.
    names = sorted(names_with(tags), key=_has_few_instances)
    context = get_context("spawn")
    free = context.Queue()
    for core in cores[:jobs]:
        free.put(core)
    run = partial(_rows_of, engines=engines, seed=seed)
    pool = ProcessPoolExecutor(min(jobs, len(names)), context, initializer=_begin, initargs=(free,))
    try:
        for finished in as_completed([pool.submit(run, name) for name in names]):
            yield finished.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _cores() -> list[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _begin(free: Queue[int]) -> None:
    """Bind this process to a core, before JAX makes as many threads as there are cores."""
    core = free.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    one_thread().__enter__()  # for as long as the process lives


def _has_few_instances(name: str) -> bool:
    return "many instances" not in entry_named(name).tags


def _rows_of(
    name: str, *, engines: Mapping[str, Callable[..., Posterior]], seed: int
) -> pd.DataFrame:
    rows = rows_of_reference(load_reference(name), engines, seed=seed)
    # Linux gives a process 65,530 maps of memory, and programs of a dozen references take more.
    jax.clear_caches()
    return rows


def in_order(rows: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """The rows of references as one table: engine by engine, references as `ENTRIES` has them.

    Parameters
    ----------
    rows : iterable of DataFrame
        Of each reference, with engines in one order.

    Returns
    -------
    DataFrame
    """
    table = pd.concat(rows, ignore_index=True)
    order = {
        "engine": {name: k for k, name in enumerate(table["engine"].unique())},
        "reference": {name: k for k, name in enumerate(ENTRIES)},
    }
    return table.sort_values(
        ["engine", "reference"], key=lambda names: names.map(order[names.name]), ignore_index=True
    )


def errors(table: pd.DataFrame) -> Float[np.ndarray, " R"]:
    """Error of each row: that of its means or that of its sds, whichever is larger.

    Parameters
    ----------
    table : DataFrame
        As `league` makes it.

    Returns
    -------
    array (R,)
        The larger of ``mean_error`` and the distance of ``sd_ratio`` from 1; NaN where an engine
        refused the model.
    """
    of_sds = np.abs(table["sd_ratio"].to_numpy(float) - 1.0)
    return np.maximum(table["mean_error"].to_numpy(float), of_sds)


def seconds_to_error(table: pd.DataFrame, error: float = 0.1) -> Float[np.ndarray, " R"]:
    """Seconds until the mean error of means and sds is at most ``error`` reference sds.

    Chains with E effective draws a second have, t seconds after warm-up, a mean error of means of
    √(2/π)/√(E t), and a smaller one of sds. So they need 2/(π E error²) seconds after warm-up.
    Other engines need all their seconds; so does SMC, whose particles are drawn at the end. The
    result is ∞ where the error of the whole run is larger.

    Parameters
    ----------
    table : DataFrame
        As `league` makes it.
    error : float
        In reference sds.

    Returns
    -------
    array (R,)
        For each row; NaN where an engine refused the model.
    """
    rate = table["ess_per_second"].to_numpy(float)
    took, wrong = table["seconds"].to_numpy(float), errors(table)
    warmup = table["warmup_seconds"].to_numpy(float)
    by_rate = warmup + 2 / (math.pi * rate * error**2)
    found = np.where(np.isfinite(rate) & (warmup > 0), by_rate, took)
    found = np.where(wrong <= error, found, math.inf)
    return np.where(np.isnan(wrong), math.nan, found)


def lines_of_table(table: pd.DataFrame, error: float = 0.1) -> list[str]:
    """Seconds to an error as a table in Markdown: a line for each reference, engines beside it.

    Parameters
    ----------
    table : DataFrame
        As `league` makes it.
    error : float
        In reference sds.

    Returns
    -------
    list of str
        A cell has the seconds; its error in parentheses where an engine does not reach it; a dash
        where it refused the model.
    """
    engines = list(table["engine"].unique())
    pairs = zip(seconds_to_error(table, error), errors(table), strict=True)
    cells = [_cell(seconds, wrong) for seconds, wrong in pairs]
    wide = table.assign(cell=cells).pivot(index="reference", columns="engine", values="cell")
    wide = wide.loc[table["reference"].unique(), engines]
    return _markdown("reference", engines, {f"`{name}`": row for name, row in wide.iterrows()})


def lines_of_tags(table: pd.DataFrame, error: float = 0.1) -> list[str]:
    """Successes and seconds of engines by tag, as a table in Markdown: a line for each tag.

    Parameters
    ----------
    table : DataFrame
        As `league` makes it.
    error : float
        In reference sds.

    Returns
    -------
    list of str
        A cell has the number of references on which an engine reaches the error, of those that it
        accepts, and its median seconds there. It is bold where no engine has both a lower median
        error and a lower median of seconds of whole runs.
    """
    engines = list(table["engine"].unique())
    told = table.assign(error=errors(table), to_error=seconds_to_error(table, error))
    told = told[np.isfinite(told["error"])]
    rows = {}
    for tag in dict.fromkeys(tag for name in told["reference"] for tag in entry_named(name).tags):
        has_tag = told["reference"].map(lambda name, tag=tag: tag in entry_named(name).tags)
        groups = told[has_tag].groupby("engine", sort=False)
        medians = groups[["seconds", "error"]].median()
        front = pareto_front(medians["seconds"].to_numpy(), medians["error"].to_numpy())
        best = set(medians.index[front])
        cells = {name: _cell_of_tag(own["to_error"], name in best) for name, own in groups}
        rows[tag] = [cells.get(name, "–") for name in engines]
    return _markdown("tag", engines, rows)


def _markdown(heading: str, columns: Sequence[str], rows: Mapping[str, Iterable[str]]) -> list[str]:
    return [
        f"| {heading} | {' | '.join(columns)} |",
        f"|---{'|---' * len(columns)}|",
        *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()),
    ]


def _cell_of_tag(seconds: pd.Series, is_best: bool) -> str:
    there = seconds[np.isfinite(seconds)]
    cell = f"{len(there)}/{len(seconds)}"
    if len(there):
        cell = f"{cell}, {_in_seconds(there.median())} s"
    return f"**{cell}**" if is_best else cell


def _cell(seconds: float, wrong: float) -> str:
    if math.isnan(seconds):
        return "–"
    return f"({wrong:.2g})" if math.isinf(seconds) else _in_seconds(seconds)


def _in_seconds(number: float) -> str:
    return f"{number:.0f}" if number >= 99.5 else f"{number:.2g}"


def pareto_front(
    seconds: Float[np.ndarray, " R"], error: Float[np.ndarray, " R"]
) -> Bool[np.ndarray, " R"]:
    """Whether no other point is better in one of two numbers and not worse in the other.

    Parameters
    ----------
    seconds, error : array (R,)
        Less is better; a point with NaN is never on the front.

    Returns
    -------
    array (R,)
    """
    both = np.column_stack([seconds, error])
    is_told = np.isfinite(both).all(axis=1)
    no_worse = (both[:, None] <= both[None]).all(axis=2)  # NaN is worse than all
    better = (both[:, None] < both[None]).any(axis=2)
    return is_told & ~(no_worse & better).any(axis=0)


def picture(table: pd.DataFrame) -> Figure:
    """Errors against seconds: a panel for each kind of model.

    A small mark is an engine on a reference, a large one its median. The line joins the medians
    that no other engine beats in both. The dotted line is the error of the reference draws.

    Parameters
    ----------
    table : DataFrame
        As `league` makes it, or `benchmark_engine`.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import pandas as pd
    >>> from milzoo.references import picture
    >>> row = {"reference": "vwsgp-gaussian-simulated-9", "seconds": 0.1, "sd_ratio": 0.9}
    >>> errors = {"laplace": 0.02, "svi": 0.3}
    >>> rows = [row | {"engine": name, "mean_error": error} for name, error in errors.items()]
    >>> figure = picture(pd.DataFrame(rows))
    >>> figure.axes[0].get_title(), figure.axes[0].get_ylabel()
    ('targets', 'error of means or sds')
    """
    if "engine" not in table:  # of one engine, which has no name
        table = table.reset_index().assign(engine="the engine")
    looks = dict(zip(table["engine"].unique(), _looks(), strict=False))
    kinds = table["reference"].map(lambda name: entry_named(name).tags[0])
    with mpl.rc_context(STYLE):
        figure, panels = rows_of_panels(kinds.nunique() + 1, height=3.4)
        for panel, kind in zip(panels, kinds.unique(), strict=False):
            _draw_kind(panel, table[kinds == kind], looks)
            panel.set(title=kind, xlabel="seconds, compilation apart")
            panel.set_ylabel("error of means or sds")
        for name, look in looks.items():
            panels[-1].plot([], [], linestyle="", label=name, **look)
        panels[-1].legend(loc="center left")
        panels[-1].set_axis_off()
    return figure


def _looks() -> list[dict[str, Any]]:
    """A colour and a marker for each engine: filled ones first, hollow when colours begin again."""
    pairs = list(zip(COLOURS, MARKERS, strict=True))
    filled = [{"color": colour, "marker": marker} for colour, marker in pairs]
    return filled + [look | {"markerfacecolor": "none"} for look in filled]


def _draw_kind(panel: Axes, rows: pd.DataFrame, looks: Mapping[str, dict[str, Any]]) -> None:
    told = rows.assign(error=errors(rows))
    told = told[np.isfinite(told["error"])]
    medians = told.groupby("engine", sort=False)[["seconds", "error"]].median()
    for engine, median in medians.iterrows():
        own, look = told[told["engine"] == engine], looks[str(engine)]
        panel.plot(own["seconds"], own["error"], linestyle="", alpha=0.35, ms=4, **look)
        panel.plot(median["seconds"], median["error"], linestyle="", ms=9, **look)
    front = medians[pareto_front(medians["seconds"].to_numpy(), medians["error"].to_numpy())]
    front = front.sort_values("seconds")
    panel.plot(front["seconds"], front["error"], color=GREY, linewidth=1, zorder=0)
    panel.axhline(_FLOOR, color=GREY, linestyle=":", linewidth=1, zorder=0)
    panel.set(xscale="log", yscale="log")
