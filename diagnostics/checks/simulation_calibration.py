"""Simulation-based calibration: draw a truth from the prior, data from the truth, and fit.

Over such simulations the rank of the truth among posterior draws is uniform for every function of
parameters and data, if an engine's posterior is that of the model (Talts et al. 2018; Modrák et al.
2023 for functions of the data, such as the log likelihood).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from arviz_stats.base.array import array_stats
from jaxtyping import Array, Bool, Float
from matplotlib.figure import Figure
from numpyro.handlers import substitute
from scipy import stats

from ...datasets.arguments import check_counts, check_probability
from ...datasets.bags import Bags
from ...datasets.simulation import draw_sites
from ...inference.posterior import Posterior
from ...inference.runtime.chains import map_over_devices
from ...inference.runtime.checkpoint import Entry, Journal, identity
from ...inference.runtime.densities import log_likelihood_of_one
from ...inference.runtime.progress import Progress
from ...inference.traceable import TraceableEngine, traceable_engine
from ...models.model import Model, random_key
from ..plots.panels import pit_differences
from .calibration_power import level_of_a_test, smallest_gap

__all__ = ["PARTS", "SimulationCalibration", "Trial", "calibrated", "simulation_calibration"]

type Sites = Mapping[str, np.ndarray | Array]
type Quantities = Callable[[Bags, Sites], dict[str, Array]]
type WholeEngine = Callable[..., Posterior]

# Sites that a program draws of the bags, and the field of `Bags` for each.
PARTS = {"bag_label": "labels", "bag_target": "targets", "instances": "instances"}
# Numbers of a site that are ranked at most.
_MOST_NUMBERS = 20
# ESS per draw below which ranks pile up at the ends, as those of too narrow a posterior do.
_LEAST_EFFICIENCY = 0.75
# The fewest draws that have an ESS.
_FEWEST_DRAWS = 4
# Data sets that one program of an accelerator fits at once.
_TOGETHER = 64


@dataclass(frozen=True, eq=False)
class SimulationCalibration:
    r"""Ranks and deviations of the truth in the posteriors of simulated data.

    Attributes
    ----------
    subject : str
        Engine and model.
    pit : dict of arrays (S,)
        By quantity: the fraction of draws below the truth, (rank + u)/(num_draws + 1),
        u ~ U(0, 1), so that it is uniform on [0, 1] where the posterior is right.
    deviation : dict of arrays (S,)
        By quantity: truth less posterior mean, in posterior sds.
    has_converged : array (S,)
        Whether draws are finite and an iteration with a stopping rule met it (`TraceableDraws`);
        of an engine that is a function, whether an approximation is ``converged``.
    num_draws : int
    relative_efficiency : float
        ESS per draw, the smallest over quantities, median over simulations; 1 of an engine whose
        draws are independent.
    false_alarm_rate : float
        Of one look at all quantities of an engine that is right.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import simulate_instances
    >>> from milzoo.diagnostics import SimulationCalibration, simulation_calibration
    >>> from milzoo.models import RBF, VWSGP
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> bags = simulate_instances(10, 2, 1, seed=0)
    >>> found: SimulationCalibration = simulation_calibration(
    ...     model, "laplace", bags, seed=0, simulations=100
    ... )
    >>> found.num_simulations, found.num_draws, found.is_calibrated
    (100, 99, True)
    >>> for sentence in found.sentences:
    ...     print(sentence)
    laplace on vwsgp: nothing found in 100 simulations of 3 quantities; a distribution function of
    ranks that is nowhere 0.24 from uniform would pass
    """

    subject: str
    pit: dict[str, Float[np.ndarray, " S"]] = field(repr=False)
    deviation: dict[str, Float[np.ndarray, " S"]] = field(repr=False)
    has_converged: Bool[np.ndarray, " S"] = field(repr=False)
    num_draws: int
    relative_efficiency: float
    false_alarm_rate: float

    @property
    def num_simulations(self) -> int:
        """The number of simulations S."""
        return len(self.has_converged)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each quantity.

        Returns
        -------
        DataFrame
            ``p_uniform``: Kolmogorov and Smirnov's, exact, of the PIT values p being uniform (SBC).
            ``p_coverage``: the same of ``|2p − 1|``, which is more sensitive to too narrow or too
            wide a posterior: whether central intervals hold the truth as often as they say.
            ``p_symmetric``: Wilcoxon's signed ranks, of p being symmetric around ½ (VSBC, Yao et
            al. 2018): it finds a biased mean, not a wrong width. ``mean_deviation`` and
            ``mean_deviation_error``: of the truth, in posterior sds, and its standard error.
            ``rms_deviation``: root mean square of the deviations; of a Gaussian posterior without
            bias how many times too small its sds are (1.016 if not at all, by 99 draws).
            ``is_uniform`` (of SBC and coverage), ``is_symmetric``: at the rate
            ``false_alarm_rate`` over all quantities together.
        """
        rows = {name: self._row(name) for name in self.pit}
        table = pd.DataFrame.from_dict(rows, orient="index")
        smallest = table[["p_uniform", "p_coverage"]].min(axis=1)
        table["is_uniform"] = smallest >= self._level_of_a_test
        table["is_symmetric"] = table["p_symmetric"] >= 2 * self._level_of_a_test
        return table

    @property
    def _level_of_a_test(self) -> float:
        """Bonferroni's level, over two tests of each quantity."""
        return level_of_a_test(self.false_alarm_rate, len(self.pit))

    def _row(self, name: str) -> dict[str, float]:
        pit, deviation = self.pit[name], self.deviation[name]
        known = deviation[np.isfinite(deviation)]
        some = len(known) > 1
        return {
            "p_uniform": float(stats.kstest(pit, "uniform").pvalue),
            "p_coverage": float(stats.kstest(np.abs(2 * pit - 1), "uniform").pvalue),
            "p_symmetric": float(stats.wilcoxon(pit - 0.5).pvalue),
            "mean_deviation": float(known.mean()) if some else np.nan,
            "mean_deviation_error": float(known.std(ddof=1) / np.sqrt(len(known)))
            if some
            else np.nan,
            "rms_deviation": float(np.sqrt(np.mean(known**2))) if some else np.nan,
        }

    @property
    def not_uniform(self) -> list[str]:
        """Quantities whose PIT values leave the band, the worst first."""
        table = self.table
        smallest = table[["p_uniform", "p_coverage"]].min(axis=1)[~table["is_uniform"]]
        return [str(name) for name in smallest.sort_values().index]

    @property
    def is_calibrated(self) -> bool:
        """Whether nothing was found: all uniform, all converged, draws of chains independent."""
        enough = self.relative_efficiency >= _LEAST_EFFICIENCY
        return enough and bool(self.has_converged.all()) and not self.not_uniform

    @property
    def smallest_gap(self) -> float:
        """The smallest distance from uniform that the test can detect."""
        return smallest_gap(self.num_simulations, self._level_of_a_test)

    @property
    def sentences(self) -> list[str]:
        """Findings in words."""
        return [*self._cautions(), *self._findings()]

    def _cautions(self) -> Iterator[str]:
        unconverged = int((~self.has_converged).sum())
        if unconverged:
            yield (
                f"{self.subject} did not converge in {unconverged} of {self.num_simulations} "
                "simulations, or its draws were not finite there; an engine that fails is not "
                "calibrated"
            )
        if not self.relative_efficiency >= _LEAST_EFFICIENCY:
            yield (
                f"draws of {self.subject} depend on each other (ESS per draw "
                f"{self.relative_efficiency:.2f}), so that ranks pile up at the ends even where "
                "the sampler is right: raise thin, or give each draw more samples"
            )

    def _findings(self) -> Iterator[str]:
        table = self.table
        for name in self.not_uniform:
            row = table.loc[name].to_dict()
            mean = f"{row['mean_deviation']:+.2f} ± {row['mean_deviation_error']:.2f}"
            smallest = min(row["p_uniform"], row["p_coverage"])
            symmetry = f"one-sided (p = {row['p_symmetric']:.1g})"
            yield (
                f"{name} is not calibrated (p = {smallest:.1g}): the truth deviates from the "
                f"posterior mean by {mean} posterior sds on average, {row['rms_deviation']:.2f} in "
                "the root mean square; "
                f"its ranks are {'symmetric' if row['is_symmetric'] else symmetry}"
            )
        if not self.not_uniform:
            yield (
                f"{self.subject}: nothing found in {self.num_simulations} simulations of "
                f"{len(self.pit)} quantities; a distribution function of ranks that is nowhere "
                f"{self.smallest_gap:.2f} from uniform would pass"
            )

    def tree(self) -> xr.DataTree:
        """PIT values as simuk has them: group ``prior_sbc``, a draw for each simulation."""
        return az.from_dict({"prior_sbc": {name: pit[None] for name, pit in self.pit.items()}})

    def plot(self) -> Figure:
        """Plot how far the distribution functions of PIT values are from uniform, with bands.

        Returns
        -------
        Figure
            A panel for each quantity; bands hold all lines of an engine that is right, except in
            at most a fraction ``false_alarm_rate`` of runs.
        """
        return pit_differences(
            self.pit,
            band=self.smallest_gap,
            wrong=self.not_uniform,
            title=f"{self.subject}, {self.num_simulations} simulations",
        )


def simulation_calibration(
    model: Model,
    engine: str | TraceableEngine | WholeEngine,
    bags: Bags,
    *,
    seed: int | Array,
    simulations: int,
    num_draws: int = 99,
    quantities: Quantities | None = None,
    false_alarm_rate: float = 1e-4,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
    **options: Any,
) -> SimulationCalibration:
    """Fit an engine to data sets drawn from the model, and rank the truth among its draws.

    Simulation i depends on the seed and on i alone. Engines by name, and any `TraceableEngine`, are
    compiled once for all data sets, and fit as many at once as there are devices. An engine that is
    a function fits one after another.

    Parameters
    ----------
    model : Model
        With priors from which it draws, and numbers as hyper-parameters or priors of them.
    engine : str, TraceableEngine or callable
        ``"nuts"``, ``"gibbs"``, ``"ensemble"``, ``"tempered_smc"``, ``"coordinate_ascent"``,
        ``"linear_response"``, ``"laplace"`` or ``"svi"``. A callable takes (model, bags, seed=…)
        and returns a `Posterior`, as `milzoo.inference`'s functions do.
    bags : Bags
        The design: labels or targets are drawn for its instances. Of a model that draws instances
        their number is kept, and the labels of the bags, which have no parameter.
    seed : int or JAX key
    simulations : int
        S.
    num_draws : int
        Of each posterior; ranks run from 0 to it.
    quantities : callable or None
        (bags, sites) → scalars by name, traced by JAX; None for the first 20 numbers of every
        latent site (of clusters, which have no names, none), and the log likelihood.
    false_alarm_rate : float
        Of one look at all quantities.
    checkpoint : path or None
        A file that each finished simulation is written to. Run again with the same arguments, a
        run that was killed goes on behind the last one, and ends as if it had not been.
    progress : bool
        Whether to draw a bar.
    **options
        Of an engine by name: those of `milzoo.inference.traceable.traceable_engine`; of a callable
        its own.

    Returns
    -------
    SimulationCalibration

    Raises
    ------
    ValueError
        If the engine is unknown, a number is out of range, the checkpoint is of another run, or a
        `TraceableEngine` comes with options.
    NotImplementedError
        If the engine cannot fit the model, or its prior cannot be drawn from.

    References
    ----------
    Talts et al. (2018); Modrák et al. (2023); Yao, Vehtari, Simpson and Gelman (2018).

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import simulate_instances
    >>> from milzoo.diagnostics import simulation_calibration
    >>> from milzoo.models import RBF, VWSGP
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> bags = simulate_instances(10, 2, 1, seed=0)
    >>> found = simulation_calibration(model, "coordinate_ascent", bags, seed=0, simulations=200)
    >>> found.table[["rms_deviation", "is_uniform"]].round(1)
                      rms_deviation  is_uniform
    inducing_value 0            1.9       False
    inducing_value 1            1.1        True
    log likelihood              2.6       False
    """
    trial = Trial(model, bags, quantities, num_draws)
    return calibrated(
        trial,
        engine,
        options,
        key=random_key(seed),
        simulations=simulations,
        false_alarm_rate=false_alarm_rate,
        checkpoint=checkpoint,
        progress=progress,
    )


def calibrated(
    trial: Trial,
    engine: str | TraceableEngine | WholeEngine,
    options: dict[str, Any],
    *,
    key: Array,
    simulations: int,
    false_alarm_rate: float,
    checkpoint: str | os.PathLike | None,
    progress: bool,
) -> SimulationCalibration:
    """Run the simulations of a trial, as `simulation_calibration` says."""
    check_counts(simulations=simulations)
    check_probability(false_alarm_rate=false_alarm_rate)
    chosen = _chosen(engine, options)
    name = engine if isinstance(engine, str) else _name(chosen)
    with jax.enable_x64(True):
        if isinstance(chosen, TraceableEngine):
            entries_of = trial.compiled(chosen, key)
        else:
            entries_of = trial.one_after_another(chosen, key)
        entries = _run(entries_of, simulations, _open(checkpoint, trial, chosen, key), progress)
    subject = f"{name} on {trial.model.name}{trial.where}"
    return _summary(subject, entries, trial.num_draws, false_alarm_rate)


def _chosen(
    engine: str | TraceableEngine | WholeEngine, options: dict[str, Any]
) -> TraceableEngine | WholeEngine:
    if isinstance(engine, str):
        return traceable_engine(engine, **options)
    if not isinstance(engine, TraceableEngine):
        return partial(engine, **options)
    if options:
        raise ValueError(
            f"{type(engine).__name__} was given with {', '.join(options)}; its options are its own "
            "fields: make another one"
        )
    return engine


def _name(engine: TraceableEngine | WholeEngine) -> str:
    if isinstance(engine, TraceableEngine):
        return type(engine).__name__
    return _name(engine.func) if isinstance(engine, partial) else engine.__name__


def _usual_quantities(model: Model, bags: Bags, sites: Sites) -> dict[str, Array]:
    """The numbers in the latent sites, and the log likelihood."""
    given = {name: sites[name] for name in model.latent_sites}
    values = {
        f"{name} {index}" if jnp.ndim(site) else name: value
        for name, site in ({} if model.estimands else given).items()
        for index, value in enumerate(jnp.ravel(site)[:_MOST_NUMBERS])
    }
    by_bag = log_likelihood_of_one(model.marginal(), given, bags)
    return values | {"log likelihood": jnp.sum(by_bag)}


# --------------------------------------------------------------------- one simulation


@dataclass(frozen=True, eq=False)
class Trial:
    """The model, design and quantities that all simulations share.

    Attributes
    ----------
    model : Model
    design : Bags
    quantities : callable or None
    num_draws : int
    """

    where: ClassVar[str] = ""

    model: Model
    design: Bags
    quantities: Quantities | None
    num_draws: int

    def __post_init__(self) -> None:
        if self.num_draws < _FEWEST_DRAWS:
            raise ValueError(f"num_draws is {self.num_draws}; expected at least {_FEWEST_DRAWS}")

    def origin(self) -> dict[str, Any]:
        """The source of the truths, if not the prior, as a checkpoint's header names it."""
        return {}

    def simulate(self, key: Array) -> tuple[Sites, Sites]:
        """Draw the true sites, and the parts of the bags that they generate."""
        unlabelled = self.design.without_labels()
        truth = draw_sites(self.model, unlabelled, key)
        if "instances" in truth and self.design.labels is not None:
            given_labels = substitute(self.model, {"bag_label": jnp.asarray(self.design.labels)})
            truth = draw_sites(given_labels, unlabelled, key)
        drawn = {part: truth[name] for name, part in PARTS.items() if name in truth}
        if "labels" in drawn:
            drawn["labels"] = drawn["labels"].astype(int)
        if "targets" in drawn:  # counts are targets too
            drawn["targets"] = drawn["targets"].astype(float)
        return drawn, truth

    def bags_with(self, drawn: Sites) -> Bags:
        """The design with what was drawn."""
        return replace(self.design.without_labels(), **drawn)

    def rank(self, drawn: Sites, truth: Sites, sites: Sites, key: Array) -> dict[str, Any]:
        """PIT values and deviations of the truth among draws, by quantity."""
        bags, of = self.bags_with(drawn), self.quantities or partial(_usual_quantities, self.model)
        shared = {name: draws for name, draws in sites.items() if name in truth}
        values = jax.lax.map(lambda site: of(bags, site), shared)
        true = of(bags, {name: truth[name] for name in shared})
        chance = jax.random.uniform(key, (len(values),))
        pit, deviation = {}, {}
        for u, (name, draws) in zip(chance, values.items(), strict=True):
            below, equal = jnp.sum(draws < true[name]), jnp.sum(draws == true[name])
            # Among equal values every rank of the truth is equally likely.
            pit[name] = (below + u * (equal + 1)) / (self.num_draws + 1)
            deviation[name] = (true[name] - jnp.mean(draws)) / jnp.std(draws, ddof=1)
        return {"pit": pit, "deviation": deviation, "values": values}

    def compiled(self, engine: TraceableEngine, key: Array) -> EntriesOf:
        """Simulations of a traceable engine, some at once."""
        engine.check(self.model, self.bags_with(self.simulate(key)[0]))

        def one(key: Array) -> dict[str, Any]:
            simulate_key, engine_key, rank_key = jax.random.split(key, 3)
            drawn, truth = self.simulate(simulate_key)
            found = engine.draws(self.model, self.bags_with(drawn), engine_key, self.num_draws)
            ranked = self.rank(drawn, truth, found.sites, rank_key)
            return ranked | {"has_converged": found.has_converged}

        several, num_together = map_over_devices(one, together=_TOGETHER)

        def entries(first: int) -> list[Entry]:
            numbers = jnp.arange(first, first + num_together)
            keys = jax.vmap(partial(jax.random.fold_in, key))(numbers)
            found = jax.tree.map(np.asarray, several(keys))
            return [
                _entry(jax.tree.map(lambda leaf, n=n: leaf[n], found), engine.are_independent)
                for n in range(num_together)
            ]

        return entries

    def one_after_another(self, engine: WholeEngine, key: Array) -> EntriesOf:
        """Simulations of an engine that takes bags and returns a posterior."""
        simulate, rank = jax.jit(self.simulate), jax.jit(self.rank)

        def entries(first: int) -> list[Entry]:
            keys = jax.random.split(jax.random.fold_in(key, first), 4)
            drawn, truth = simulate(keys[0])
            bags = self.bags_with(jax.tree.map(np.asarray, drawn))
            posterior = engine(self.model, bags, seed=keys[1])
            sites = _draws_of(posterior, self.num_draws, keys[2])
            ranked = jax.tree.map(np.asarray, rank(drawn, truth, sites, keys[3]))
            converged = np.asarray(posterior.is_mcmc or posterior.status.kind == "converged")
            return [_entry(ranked | {"has_converged": converged}, not posterior.is_mcmc)]

        return entries


# Number of the first simulation → entries of it and perhaps of some after it.
type EntriesOf = Callable[[int], list[Entry]]


def _draws_of(posterior: Posterior, num_draws: int, key: Array) -> dict[str, np.ndarray]:
    """Fresh draws of an approximation; of chains, stored draws evenly apart."""
    if not posterior.is_mcmc:
        return posterior.draws(num_draws, seed=key)
    stored = posterior.stored_draws()
    available = len(next(iter(stored.values())))
    if available < num_draws:
        raise ValueError(
            f"{posterior.engine} kept {available} draws; expected at least num_draws={num_draws}: "
            "give it more samples, or ask for fewer draws"
        )
    evenly = np.linspace(0, available - 1, num_draws).astype(int)
    return {name: value[evenly] for name, value in stored.items()}


def _entry(found: dict[str, Any], is_independent: bool) -> Entry:
    """The ranks, deviations and ESS of one simulation, as numbers that JSON can hold."""
    values = found["values"]
    finite = all(np.isfinite(draws).all() for draws in values.values())
    ess = {
        name: np.ravel(array_stats.ess(draws[None], chain_axis=0, draw_axis=1)).tolist()[0]
        for name, draws in ({} if is_independent else values).items()
    }
    return {
        "pit": {name: float(value) for name, value in found["pit"].items()},
        "deviation": {name: float(value) for name, value in found["deviation"].items()},
        "ess": ess,
        "has_converged": bool(found["has_converged"]) and finite,
    }


# --------------------------------------------------------------------- all simulations


def _open(
    checkpoint: str | os.PathLike | None, trial: Trial, engine: Any, key: Array
) -> Journal | None:
    if checkpoint is None:
        return None
    run = identity(
        trial.model,
        trial.design,
        engine=engine,
        quantities=trial.quantities or _usual_quantities,
        num_draws=trial.num_draws,
        seed=key,
        **trial.origin(),
    )
    return Journal(checkpoint, run)


def _run(
    entries_of: EntriesOf, simulations: int, journal: Journal | None, progress: bool
) -> list[Entry]:
    entries = list(journal.entries) if journal else []
    with Progress("simulations", simulations, shown=progress) as bar:
        bar.advance(min(len(entries), simulations))
        while len(entries) < simulations:
            for entry in entries_of(len(entries))[: simulations - len(entries)]:
                if journal:
                    journal.append(entry)
                entries.append(entry)
                bar.advance(1)
    return entries[:simulations]


def _summary(
    subject: str, entries: list[Entry], num_draws: int, rate: float
) -> SimulationCalibration:
    def by_quantity(what: str) -> dict[str, np.ndarray]:
        names = entries[0][what]
        return {name: np.array([entry[what][name] for entry in entries]) for name in names}

    # A quantity that does not vary among draws has no ESS.
    varying = [ess[np.isfinite(ess)] for ess in by_quantity("ess").values()]
    ess_per_draw = [np.median(ess) / num_draws for ess in varying if ess.size]
    return SimulationCalibration(
        subject=subject,
        pit=by_quantity("pit"),
        deviation=by_quantity("deviation"),
        has_converged=np.array([entry["has_converged"] for entry in entries]),
        num_draws=num_draws,
        relative_efficiency=float(min(ess_per_draw)) if ess_per_draw else 1.0,
        false_alarm_rate=rate,
    )
