"""Reference posteriors as files, in the layout of posteriordb: JSON, and compressed draws."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import xarray as xr
from jaxtyping import Float

from ..diagnostics.measures.accuracy import site_names
from ..inference.evidence import LogEvidence
from ..inference.posterior import Posterior, sampled_posterior
from ..inference.runtime.chains import ChainRun
from ..inference.runtime.densities import log_joint
from ..inference.runtime.programs import Stopwatch
from ..models.model import Draws
from .entries import Entry, entry_named
from .gates import Gate

__all__ = [
    "DATABASE",
    "Reference",
    "is_kept",
    "largest_difference",
    "load_reference",
    "moments_of",
    "save_entry",
    "save_reference",
]

# Beside this file, and in the wheel.
DATABASE = Path(__file__).parent / "database"
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class Reference:
    """Reference draws of an entry, with their gates, log evidences and moments.

    Attributes
    ----------
    name : str
    draws : Dataset
        Thinned draws of the latent sites, (chain, draw, …).
    gates : tuple of Gate
    log_evidences : tuple of LogEvidence
        Estimates by two methods.
    moments : dict of dict of float
        Mean, sd and quantiles of every number, each with its Monte-Carlo standard error.
    points : dict of arrays (10, …)
        Ten of the draws.
    log_density : array (10,)
        log p(point, observations) under the marginal program.
    made : dict
        Seed, settings, versions, date, commit.

    Examples
    --------
    >>> from milzoo.references import Reference, load_reference
    >>> def summary(reference: Reference) -> str:
    ...     passed = sum(gate.passed for gate in reference.gates)
    ...     return f"{reference.name}: {passed} of {len(reference.gates)} gates passed"
    >>> summary(load_reference("vwsgp-gaussian-simulated-9"))
    'vwsgp-gaussian-simulated-9: 8 of 8 gates passed'
    """

    name: str
    draws: xr.Dataset
    gates: tuple[Gate, ...]
    log_evidences: tuple[LogEvidence, LogEvidence]
    moments: dict[str, dict[str, float]]
    points: Draws
    log_density: Float[np.ndarray, " P"]
    made: dict[str, Any]

    @property
    def entry(self) -> Entry:
        """The entry: the model and bags whose posterior the draws are from."""
        return entry_named(self.name)

    @property
    def passed(self) -> bool:
        """Whether every gate is passed."""
        return all(gate.passed for gate in self.gates)

    @cached_property
    def posterior(self) -> Posterior:
        """The draws as a posterior, to compare others with; its model and bags are made anew."""
        model, bags = self.entry.problem()
        draws = {name: self.draws[name].to_numpy() for name in model.latent_sites}
        run = ChainRun(draws, statistics={}, warmup_seconds=0.0, sampling_seconds=0.0)
        return sampled_posterior(model, bags, engine="reference", run=run, watch=Stopwatch())

    def largest_density_error(self) -> float:
        """Largest relative error of the densities at the points, against those of today's code."""
        model, bags = self.entry.problem()
        found = log_joint(model, "marginal", self.points, bags)
        return float(np.max(np.abs(found / self.log_density - 1)))


def moments_of(draws: xr.Dataset) -> dict[str, dict[str, float]]:
    """Means, sds and quantiles of all scalar sites, with Monte-Carlo standard errors.

    Parameters
    ----------
    draws : Dataset

    Returns
    -------
    dict of dict of float
        By the name of the site, such as ``inducing_value[3]``.
    """
    over = ["chain", "draw"]
    columns = {
        "mean": draws.mean(over),
        "mean_mcse": az.mcse(draws, method="mean"),
        "sd": draws.std(over, ddof=1),
        "sd_mcse": az.mcse(draws, method="sd"),
    }
    for probability in _QUANTILES:
        name = f"quantile_{100 * probability:02.0f}"
        columns[name] = draws.quantile(probability, over).drop_vars("quantile")
        columns[f"{name}_mcse"] = az.mcse(draws, method="quantile", prob=probability)
    flat = {name: _by_site(values) for name, values in columns.items()}
    return {
        site: {name: float(values[k]) for name, values in flat.items()}
        for k, site in enumerate(site_names(draws))
    }


def _by_site(values: xr.Dataset) -> Float[np.ndarray, " Q"]:
    """Values of all scalar sites, in the order of `site_names`."""
    return np.concatenate([np.ravel(values[name]) for name in sorted(values, key=str)])


def largest_difference(
    one: dict[str, dict[str, float]], other: dict[str, dict[str, float]]
) -> float:
    """The largest difference of two sets of moments, in Monte-Carlo standard errors of it.

    Parameters
    ----------
    one, other : dict of dict of float
        As `moments_of` makes them, of the same sites.

    Returns
    -------
    float
        Over all sites, means, sds and quantiles.
    """
    return max(
        abs(ours[name] - other[site][name])
        / math.hypot(ours[f"{name}_mcse"], other[site][f"{name}_mcse"])
        for site, ours in one.items()
        for name in ours
        if not name.endswith("_mcse")
    )


def save_entry(
    entry: Entry,
    sizes: dict[str, list[int]] | None = None,
    folder: str | os.PathLike[str] = DATABASE,
) -> None:
    """Write the description of an entry to a file, and why it has no draws if it has none.

    Parameters
    ----------
    entry : Entry
    sizes : dict of list of int, or None
        The shape of each site that draws are kept of; None if none are.
    folder : path
        ``posteriors/NAME.json`` below it.
    """
    described = {
        "name": entry.name,
        "about": entry.about,
        "keywords": list(entry.tags),
        "data": entry.data,
        "model": repr(entry.problem()[0]),
    }
    if sizes is None:
        described |= {"reference_posterior_name": None, "reason": entry.reason}
    else:
        described |= {"dimensions": sizes, "reference_posterior_name": entry.name}
    path = _paths(entry.name, folder)[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, described)


def save_reference(reference: Reference, folder: str | os.PathLike[str] = DATABASE) -> None:
    """Write a reference to files: its description, its gates and moments, its draws in 32 bit.

    Parameters
    ----------
    reference : Reference
    folder : path
        ``posteriors/NAME.json``, ``reference_posteriors/info/NAME.json`` and
        ``reference_posteriors/draws/NAME.npz`` below it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from milzoo.references import load_reference, save_reference
    >>> save_reference(load_reference("diverse-density-two-concepts-2"), "my_database")
    >>> sorted(path.parent.name for path in Path("my_database").rglob("*.*"))
    ['draws', 'info', 'posteriors']
    """
    _, info, draws = _paths(reference.name, folder)
    for path in (info, draws):
        path.parent.mkdir(parents=True, exist_ok=True)
    sizes = {str(name): list(site.shape[2:]) for name, site in reference.draws.items()}
    save_entry(reference.entry, sizes, folder)
    _write(
        info,
        {
            "name": reference.name,
            "inference": reference.made,
            "gates": [
                asdict(gate) | {"value": _finite(gate.value), "passed": gate.passed}
                for gate in reference.gates
            ],
            "log_evidence": [
                one._asdict() | {"khat": _finite(one.khat)} for one in reference.log_evidences
            ],
            "moments": reference.moments,
            "points": {name: values.tolist() for name, values in reference.points.items()},
            "log_density": reference.log_density.tolist(),
        },
    )
    arrays = {str(name): site.to_numpy().astype("f4") for name, site in reference.draws.items()}
    np.savez_compressed(draws, allow_pickle=False, **arrays)


def is_kept(name: str, folder: str | os.PathLike[str] = DATABASE) -> bool:
    """Whether the files of a reference are in a folder."""
    return all(path.is_file() for path in _paths(name, folder))


def load_reference(name: str, folder: str | os.PathLike[str] = DATABASE) -> Reference:
    """Load the kept reference of an entry, from the files of this package or of a folder.

    Parameters
    ----------
    name : str
        A key of `ENTRIES`.
    folder : path

    Returns
    -------
    Reference

    Raises
    ------
    ValueError
        If there is no such entry.
    FileNotFoundError
        If its draws are not kept in the folder; ``milzoo reference make NAME`` makes them. Or if
        there is a reason to keep none.

    Examples
    --------
    >>> from milzoo.references import load_reference
    >>> reference = load_reference("vwsgp-gaussian-simulated-9")
    >>> dict(reference.draws.sizes)
    {'chain': 10, 'draw': 1000, 'inducing_value_dim_0': 9}
    >>> moments = reference.moments["inducing_value[0]"]
    >>> print(f"{moments['mean']:.2f}, Monte-Carlo error {moments['mean_mcse']:.3f}")
    1.01, Monte-Carlo error 0.003
    """
    entry = entry_named(name)
    _, info, draws = _paths(name, folder)
    if entry.reason:
        raise FileNotFoundError(f"no reference draws of {name} are kept: {entry.reason}")
    if not is_kept(name, folder):
        raise FileNotFoundError(
            f"no reference draws of {name} in {folder}; expected {info.name} and {draws.name}: "
            f"make them by `milzoo reference make {name}`"
        )
    told = json.loads(info.read_text("utf-8"))
    with np.load(draws) as arrays:
        sites = {
            site: (["chain", "draw", *(f"{site}_dim_{k}" for k in range(values.ndim - 2))], values)
            for site, values in ((site, arrays[site].astype(float)) for site in arrays)
        }
    one, other = (
        LogEvidence(**each | {"khat": _number(each["khat"])}) for each in told["log_evidence"]
    )
    return Reference(
        name=name,
        draws=xr.Dataset(sites),
        gates=tuple(
            Gate(each["name"], _number(each["value"]), each["limit"], each["must_be"])
            for each in told["gates"]
        ),
        log_evidences=(one, other),
        moments=told["moments"],
        points={site: np.array(values) for site, values in told["points"].items()},
        log_density=np.array(told["log_density"]),
        made=told["inference"],
    )


def _paths(name: str, folder: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    draws = Path(folder) / "reference_posteriors"
    return (
        Path(folder) / "posteriors" / f"{name}.json",
        draws / "info" / f"{name}.json",
        draws / "draws" / f"{name}.npz",
    )


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(f"{text}\n", "utf-8")


def _finite(value: float) -> float | None:
    """The value, or None (null) where it is not finite: JSON cannot store it."""
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value
