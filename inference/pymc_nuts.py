"""The No-U-Turn samplers of PyMC and nutpie, on a model's PyMC program."""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array

from ..datasets.arguments import check, check_counts, one_of
from ..datasets.bags import Bags
from ..models.model import observations, random_key
from ..models.pymc.registry import pymc_program
from .arguments import engine
from .posterior import Posterior, sampled_posterior
from .runtime.chains import ChainRun
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch

if TYPE_CHECKING:
    import pymc
    import xarray as xr

__all__ = ["pymc_nuts"]

_SAMPLERS = ("nutpie", "pymc")
# nutpie's names of them.
_MASS_MATRICES = {"diagonal": "diag", "low_rank": "low_rank"}
# ArviZ's names for what nutpie calls otherwise; PyMC's own sampler speaks ArviZ already.
_STATISTICS = {
    "diverging": "diverging",
    "energy": "energy",
    "acceptance_rate": "mean_tree_accept",
    "n_steps": "n_steps",
    "step_size": "step_size",
}


@engine
def pymc_nuts(
    model,
    bags: Bags,
    *,
    seed: int | Array,
    num_warmup: int = 500,
    num_samples: int = 1000,
    num_chains: int = 4,
    program: str = "marginal",
    sampler: str = "nutpie",
    mass_matrix: str = "diagonal",
    target_accept: float = 0.8,
    progress: bool = False,
) -> Posterior:
    """Sample the exact posterior in PyMC, with a program and a sampler of its own.

    Parameters
    ----------
    model : BMIL, CardinalityModel, DPMIL, GPMIL, VGPMIL or VWSGP
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
    num_warmup, num_samples, num_chains : int
        At least 1. Draws per chain; chains run at once, one on each core.
    program : {"marginal", "full"}
        With everything summed out that can be, or with the latent function values, or BMIL's
        precisions, as sites. DPMIL and CardinalityModel have no such sites, and the first program
        alone.
    sampler : {"nutpie", "pymc"}
        nutpie (in Rust, on code compiled by Numba), or PyMC's own (in Python, a new process for
        each chain: a script that calls it needs ``if __name__ == "__main__":``). The tree says
        which, under ``sample_stats``, attribute ``inference_library``.
    mass_matrix : {"diagonal", "low_rank"}
        Whose inverse stands for the posterior's covariance: variances alone, or nutpie's diagonal
        that is corrected in few directions.
    target_accept : float
        Acceptance probability that the step size is tuned to.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior

    Raises
    ------
    ImportError
        If PyMC or nutpie is not installed.
    NotImplementedError
        If the model has no program in PyMC.
    ValueError
        If the sampler, its mass matrix or the program has another name, PyMC has no such program,
        a count is not positive, a prior or ψ is not one that PyMC has too, or a mixture has too
        many unknown numbers for gradients.

    Notes
    -----
    ``seconds`` and ``sampling_seconds`` are wall-clock time. nutpie does not say when a chain's
    warm-up ends: its time is split in proportion to the leapfrog steps, which all cost the same.
    PyMC times each draw; what its processes take to start counts as compilation.

    References
    ----------
    Hoffman and Gelman (2014); Abril-Pla et al. (2023), PyMC; Seyboldt, Carlson and Carpenter
    (2026), nutpie.

    Examples
    --------
    Most of the seconds compile the program:

    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import pymc_nuts
    >>> from milzoo.models import BMIL
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = BMIL.for_bags(bags)
    >>> posterior = pymc_nuts(model, bags, seed=0, num_warmup=200, num_samples=200, num_chains=2)
    >>> new = Bags.from_list([[[2.9]], [[0.1]]])
    >>> (posterior.predict(new).bag_probability > 0.5).astype(int)  # predicted labels
    array([1, 0])
    """
    if not isinstance(sampler, str) or sampler not in _SAMPLERS:
        nearest = difflib.get_close_matches(str(sampler), _SAMPLERS, n=1, cutoff=0.0)
        raise ValueError(
            f"sampler is {sampler!r}; expected 'nutpie' or 'pymc' (nearest: {nearest[0]!r})"
        )
    _check_mass_matrix(mass_matrix, sampler)
    make_program = pymc_program.dispatch(type(model))
    if make_program is pymc_program.dispatch(object):
        make_program(model, bags)  # raises
    check_counts(num_warmup=num_warmup)  # nutpie panics without any
    check_number_of_unknowns(model, "pymc_nuts")
    watch = Stopwatch()
    observations(model, bags, "pymc_nuts")
    started = time.perf_counter()
    pymc_model = make_program(model, bags, program=program)
    sites = [v.name for v in pymc_model.unobserved_RVs if v.name in {*model.dims, *model.priors}]
    settings: dict[str, Any] = {
        "tune": num_warmup,
        "draws": num_samples,
        "chains": num_chains,
        "cores": min(num_chains, os.cpu_count() or 1),
        "target_accept": target_accept,
    }
    integer_seed = int(jax.random.bits(random_key(seed)) >> 1)
    if sampler == "nutpie":
        settings["adaptation"] = _MASS_MATRICES[mass_matrix]
    run_sampler = _run_nutpie if sampler == "nutpie" else _run_pymc
    run = run_sampler(pymc_model, sites, settings, integer_seed, progress, started)
    posterior = sampled_posterior(model, bags, engine="pymc_nuts", run=run, watch=watch)
    posterior.tree["sample_stats"].attrs.update(
        inference_library=sampler,
        inference_library_version=importlib.metadata.version(sampler),
        mass_matrix=mass_matrix,
    )
    return posterior


def _check_mass_matrix(mass_matrix: str, sampler: str) -> None:
    check("mass_matrix", mass_matrix, one_of(*_MASS_MATRICES))
    if mass_matrix == "low_rank" and sampler == "pymc":
        raise ValueError(
            "mass_matrix is 'low_rank', which PyMC's own sampler does not have; take "
            "sampler='nutpie', or mass_matrix='diagonal'"
        )


def _run_nutpie(
    pymc_model: pymc.Model,
    sites: list[str],
    settings: dict[str, Any],
    seed: int,
    progress: bool,
    started: float,
) -> ChainRun:
    try:
        import nutpie
    except ImportError as error:
        raise ImportError(
            "nutpie is not installed, and sampler='nutpie' needs it: pip install 'milzoo[pymc]'"
        ) from error
    compiled = nutpie.compile_pymc_model(pymc_model, var_names=sites)
    compile_seconds = time.perf_counter() - started
    started = time.perf_counter()
    trace = nutpie.sample(compiled, seed=seed, progress_bar=progress, **settings)
    seconds = time.perf_counter() - started
    steps = int(trace["sample_stats"]["n_steps"].sum())
    sampling_seconds = (
        seconds * steps / (steps + int(trace["warmup_sample_stats"]["n_steps"].sum()))
    )
    return ChainRun(
        _draws(trace, sites),
        {ours: trace["sample_stats"][its].to_numpy() for ours, its in _STATISTICS.items()},
        seconds - sampling_seconds,
        sampling_seconds,
        compile_seconds,
    )


def _run_pymc(
    pymc_model: pymc.Model,
    sites: list[str],
    settings: dict[str, Any],
    seed: int,
    progress: bool,
    started: float,
) -> ChainRun:
    import pymc

    with pymc_model:
        trace = pymc.sample(
            **settings,
            nuts_sampler="pymc",
            var_names=sites,
            random_seed=seed,
            progressbar=progress,
            quiet=not progress,
            discard_tuned_samples=False,
            compute_convergence_checks=False,
            # JAX has threads, and a fork of a process with threads may hang.
            mp_ctx="spawn",
        )
    total_seconds = time.perf_counter() - started
    # Chains take turns on the cores; each draw tells when it began and how long it took.
    began, took = (
        trace["sample_stats"][f"perf_counter_{name}"].to_numpy() for name in ("start", "diff")
    )
    warmup_began = trace["warmup_sample_stats"]["perf_counter_start"].to_numpy()
    cores = settings["cores"]
    warmup_seconds = float((began[:, 0] - warmup_began[:, 0]).sum()) / cores
    sampling_seconds = float((began[:, -1] + took[:, -1] - began[:, 0]).sum()) / cores
    return ChainRun(
        _draws(trace, sites),
        {name: trace["sample_stats"][name].to_numpy() for name in _STATISTICS},
        warmup_seconds,
        sampling_seconds,
        total_seconds - warmup_seconds - sampling_seconds,
    )


def _draws(trace: xr.DataTree, sites: list[str]) -> dict[str, np.ndarray]:
    return {name: trace["posterior"][name].to_numpy() for name in sites}
