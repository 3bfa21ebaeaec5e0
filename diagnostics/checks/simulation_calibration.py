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
from typing import Any

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

from ...datasets.bags import Bags
from ...datasets.simulation import draw_sites
from ...inference.inside import Inside, inside
from ...inference.posterior import Posterior
from ...inference.runtime.chains import spread_over_devices
from ...inference.runtime.checkpoint import Entry, Journal, identity
from ...inference.runtime.densities import log_likelihood_of_one
from ...inference.runtime.progress import Progress
from ...models.model import Model, random_key
from ...models.numerics.arguments import check_counts, check_probability
from ..plots.panels import pit_differences

__all__ = ["SimulationCalibration", "simulation_calibration"]

type Sites = Mapping[str, np.ndarray | Array]
type Quantities = Callable[[Bags, Sites], dict[str, Array]]
type WholeEngine = Callable[..., Posterior]

# What a program draws of the bags, as a part of `Bags`.
_PARTS = {"bag_label": "labels", "bag_target": "targets", "instances": "instances"}
# Of the numbers in a site, the first so many are ranked.
_MOST_NUMBERS = 20
# Below it ranks of a chain's draws pile up at the ends, as those of too narrow a posterior do.
_LEAST_EFFECTIVE = 0.75
# An ESS needs as many.
_FEWEST_DRAWS = 4
# One program of an accelerator fits so many data sets at once.
_TOGETHER = 64


@dataclass(frozen=True, eq=False)
class SimulationCalibration:
    r"""How often the truth lay where in the posteriors of simulated data.

    Attributes
    ----------
    subject : str
        Engine and model.
    pit : dict of arrays (S,)
        By quantity: the share of draws below the truth, (rank + u)/(num_draws + 1), u ~ U(0, 1), so
        that it is uniform on [0, 1] where the posterior is right.
    deviation : dict of arrays (S,)
        By quantity: truth less posterior mean, in posterior sds.
    is_settled : array (S,)
        Whether draws are finite and an engine that comes to an end by itself did (`DrawsInside`);
        of one that is a function, whether an approximation is ``converged``.
    num_draws : int
    effective_share : float
        ESS for each draw of the quantity that has fewest, median over simulations; 1 of an engine
        whose draws are independent.
    false_alarm_rate : float
        Of one look at all quantities of an engine that is right.
    """

    subject: str
    pit: dict[str, Float[np.ndarray, " S"]] = field(repr=False)
    deviation: dict[str, Float[np.ndarray, " S"]] = field(repr=False)
    is_settled: Bool[np.ndarray, " S"] = field(repr=False)
    num_draws: int
    effective_share: float
    false_alarm_rate: float

    @property
    def num_simulations(self) -> int:
        """S."""
        return len(self.is_settled)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each quantity.

        Returns
        -------
        DataFrame
            ``p_uniform``: Kolmogorov and Smirnov's, exact, of the PIT values p being uniform (SBC).
            ``p_coverage``: the same of |2p − 1|, which sees too narrow or too wide a law sooner:
            whether central intervals hold the truth as often as they say. ``p_symmetric``:
            Wilcoxon's signed ranks, of p being symmetric around ½ (VSBC, Yao et al. 2018): too
            narrow or too wide a law may be, one that is shifted is not. ``shift`` and
            ``shift_error``: mean deviation of the truth, in posterior sds, and its standard error.
            ``spread``: root mean square of the deviations; of a Gaussian posterior that is not
            shifted how many times too small its sds are (1.016 if not at all, by 99 draws).
            ``is_uniform`` (of SBC and coverage), ``is_symmetric``: at the rate
            ``false_alarm_rate`` over all quantities together.
        """
        rows = {name: self._row(name) for name in self.pit}
        table = pd.DataFrame.from_dict(rows, orient="index")
        smallest = table[["p_uniform", "p_coverage"]].min(axis=1)
        table["is_uniform"] = smallest >= self._share_of_a_test
        table["is_symmetric"] = table["p_symmetric"] >= 2 * self._share_of_a_test
        return table

    @property
    def _share_of_a_test(self) -> float:
        """Bonferroni's, over two tests of each quantity."""
        return self.false_alarm_rate / (2 * len(self.pit))

    def _row(self, name: str) -> dict[str, float]:
        pit, deviation = self.pit[name], self.deviation[name]
        known = deviation[np.isfinite(deviation)]
        some = len(known) > 1
        return {
            "p_uniform": float(stats.kstest(pit, "uniform").pvalue),
            "p_coverage": float(stats.kstest(np.abs(2 * pit - 1), "uniform").pvalue),
            "p_symmetric": float(stats.wilcoxon(pit - 0.5).pvalue),
            "shift": float(known.mean()) if some else np.nan,
            "shift_error": float(known.std(ddof=1) / np.sqrt(len(known))) if some else np.nan,
            "spread": float(np.sqrt(np.mean(known**2))) if some else np.nan,
        }

    @property
    def not_uniform(self) -> list[str]:
        """Quantities whose PIT values leave the band, the worst first."""
        table = self.table
        smallest = table[["p_uniform", "p_coverage"]].min(axis=1)[~table["is_uniform"]]
        return [str(name) for name in smallest.sort_values().index]

    @property
    def is_calibrated(self) -> bool:
        """Whether nothing was found: all uniform, all settled, draws of chains independent."""
        enough = self.effective_share >= _LEAST_EFFECTIVE
        return enough and bool(self.is_settled.all()) and not self.not_uniform

    @property
    def smallest_gap(self) -> float:
        """The distance from uniform that a distribution function must have to be seen."""
        return float(stats.kstwo.isf(self._share_of_a_test, self.num_simulations))

    @property
    def sentences(self) -> list[str]:
        """What was found, in words."""
        return [*self._cautions(), *self._findings()]

    def _cautions(self) -> Iterator[str]:
        unsettled = int((~self.is_settled).sum())
        if unsettled:
            yield (
                f"{self.subject} did not come to an end in {unsettled} of {self.num_simulations} "
                "simulations, or its draws were not finite there; nothing is calibrated that fails"
            )
        if not self.effective_share >= _LEAST_EFFECTIVE:
            yield (
                f"draws of {self.subject} depend on each other (ESS {self.effective_share:.2f} a "
                "draw), so that ranks pile up at the ends even where the sampler is right: raise "
                "thin, or give each draw more samples"
            )

    def _findings(self) -> Iterator[str]:
        table = self.table
        for name in self.not_uniform:
            row = table.loc[name].to_dict()
            smallest = min(row["p_uniform"], row["p_coverage"])
            symmetry = f"one-sided (p = {row['p_symmetric']:.1g})"
            yield (
                f"{name} is not calibrated (p = {smallest:.1g}): the truth lies {row['shift']:+.2f}"
                f" ± {row['shift_error']:.2f} posterior sds from the mean and {row['spread']:.2f} "
                f"sds around it; its ranks are {'symmetric' if row['is_symmetric'] else symmetry}"
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
        """How far the distribution functions of PIT values are from uniform, with their bands.

        Returns
        -------
        Figure
            A panel for each quantity; bands hold all lines of an engine that is right but in a
            share ``false_alarm_rate`` of runs, at most.
        """
        return pit_differences(
            self.pit,
            band=self.smallest_gap,
            wrong=self.not_uniform,
            title=f"{self.subject}, {self.num_simulations} simulations",
        )


def simulation_calibration(
    model: Model,
    engine: str | Inside | WholeEngine,
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
    """Fit an engine to data sets drawn from the model, and see where the truth lies in its draws.

    Simulation i depends on the seed and on i alone. Engines by name, and others that are `Inside`,
    are compiled once for all data sets, and fit as many at once as there are devices; an engine as
    a function fits one after another.

    Parameters
    ----------
    model : Model
        With priors from which it draws, and numbers as hyper-parameters or priors of them.
    engine : {"nuts", "gibbs", "coordinate_ascent", "laplace", "svi"}, Inside or callable
        A callable takes (model, bags, seed=…) and returns a `Posterior`, as `milzoo.inference`'s
        functions do.
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
        Of an engine by name: those of `milzoo.inference.inside.inside`; of a callable its own.

    Returns
    -------
    SimulationCalibration

    Raises
    ------
    ValueError
        If the engine is unknown, a number is out of range, the checkpoint is of another run, or an
        `Inside` comes with options.
    NotImplementedError
        If the engine has no way with the model.

    References
    ----------
    Talts et al. (2018); Modrák et al. (2023); Yao, Vehtari, Simpson and Gelman (2018).
    """
    check_counts(simulations=simulations)
    check_probability(false_alarm_rate=false_alarm_rate)
    if num_draws < _FEWEST_DRAWS:
        raise ValueError(f"num_draws is {num_draws}; expected at least {_FEWEST_DRAWS}")
    key = random_key(seed)
    chosen = _chosen(engine, options)
    ranked = partial(_usual_quantities, model) if quantities is None else quantities
    name = engine if isinstance(engine, str) else _name(chosen)
    trial = _Trial(model, bags, ranked, num_draws)
    with jax.enable_x64(True):
        if isinstance(chosen, Inside):
            entries_of = trial.compiled(chosen, key)
        else:
            entries_of = trial.one_after_another(chosen, key)
        entries = _run(entries_of, simulations, _open(checkpoint, trial, chosen, key), progress)
    return _summary(f"{name} on {model.name}", entries, num_draws, false_alarm_rate)


def _chosen(engine: str | Inside | WholeEngine, options: dict[str, Any]) -> Inside | WholeEngine:
    if isinstance(engine, str):
        return inside(engine, **options)
    if not isinstance(engine, Inside):
        return partial(engine, **options)
    if options:
        raise ValueError(
            f"{type(engine).__name__} was given with {', '.join(options)}; its options are its own "
            "fields: make another one"
        )
    return engine


def _name(engine: Inside | WholeEngine) -> str:
    if isinstance(engine, Inside):
        return type(engine).__name__
    return _name(engine.func) if isinstance(engine, partial) else engine.__name__


def _usual_quantities(model: Model, bags: Bags, sites: Sites) -> dict[str, Array]:
    """The numbers in the latent sites, and the log likelihood."""
    given = {name: sites[name] for name in model.latent_sites}
    values = {
        f"{name} {place}" if jnp.ndim(site) else name: value
        for name, site in ({} if model.estimands else given).items()
        for place, value in enumerate(jnp.ravel(site)[:_MOST_NUMBERS])
    }
    by_bag = log_likelihood_of_one(model.marginal(), given, bags)
    return values | {"log likelihood": jnp.sum(by_bag)}


# --------------------------------------------------------------------- one simulation


@dataclass(frozen=True, eq=False)
class _Trial:
    """What all simulations have in common."""

    model: Model
    design: Bags
    quantities: Quantities
    num_draws: int

    def simulate(self, key: Array) -> tuple[Sites, Sites]:
        """What is drawn of the bags, by part, and the truth behind it."""
        truth = draw_sites(self.model, self.design, key)
        if "instances" in truth and self.design.labels is not None:
            held = substitute(self.model, {"bag_label": jnp.asarray(self.design.labels)})
            truth = draw_sites(held, self.design, key)
        drawn = {part: truth[name] for name, part in _PARTS.items() if name in truth}
        if "labels" in drawn:
            drawn["labels"] = drawn["labels"].astype(int)
        if "targets" in drawn:  # counts are targets too
            drawn["targets"] = drawn["targets"].astype(float)
        return drawn, truth

    def bags_with(self, drawn: Sites) -> Bags:
        """The design with what was drawn."""
        return replace(self.design.without_labels(), **drawn)

    def place(self, drawn: Sites, truth: Sites, sites: Sites, key: Array) -> dict[str, Any]:
        """Where the truth lies among draws; by quantity."""
        bags = self.bags_with(drawn)
        shared = {name: draws for name, draws in sites.items() if name in truth}
        values = jax.lax.map(lambda site: self.quantities(bags, site), shared)
        true = self.quantities(bags, {name: truth[name] for name in shared})
        chance = jax.random.uniform(key, (len(values),))
        pit, deviation = {}, {}
        for u, (name, draws) in zip(chance, values.items(), strict=True):
            below, equal = jnp.sum(draws < true[name]), jnp.sum(draws == true[name])
            # Among equals the truth is as likely in each place.
            pit[name] = (below + u * (equal + 1)) / (self.num_draws + 1)
            deviation[name] = (true[name] - jnp.mean(draws)) / jnp.std(draws, ddof=1)
        return {"pit": pit, "deviation": deviation, "values": values}

    def compiled(self, engine: Inside, key: Array) -> EntriesOf:
        """Simulations of an engine that is traced, some at once."""
        engine.check(self.model, self.bags_with(self.simulate(key)[0]))

        def one(key: Array) -> dict[str, Any]:
            simulate_key, engine_key, place_key = jax.random.split(key, 3)
            drawn, truth = self.simulate(simulate_key)
            found = engine.draws(self.model, self.bags_with(drawn), engine_key, self.num_draws)
            placed = self.place(drawn, truth, found.sites, place_key)
            return placed | {"is_settled": found.is_settled}

        several, num_together = spread_over_devices(one, together=_TOGETHER)

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
        simulate, place = jax.jit(self.simulate), jax.jit(self.place)

        def entries(first: int) -> list[Entry]:
            keys = jax.random.split(jax.random.fold_in(key, first), 4)
            drawn, truth = simulate(keys[0])
            bags = self.bags_with(jax.tree.map(np.asarray, drawn))
            posterior = engine(self.model, bags, seed=keys[1])
            sites = _draws_of(posterior, self.num_draws, keys[2])
            placed = jax.tree.map(np.asarray, place(drawn, truth, sites, keys[3]))
            settled = np.asarray(posterior.is_mcmc or posterior.status.kind == "converged")
            return [_entry(placed | {"is_settled": settled}, not posterior.is_mcmc)]

        return entries


# Number of the first simulation → entries of it and perhaps of some after it.
type EntriesOf = Callable[[int], list[Entry]]


def _draws_of(posterior: Posterior, num_draws: int, key: Array) -> dict[str, np.ndarray]:
    """Fresh ones of an approximation; of chains, stored ones evenly apart."""
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
    """What is kept of one simulation."""
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
        "is_settled": bool(found["is_settled"]) and finite,
    }


# --------------------------------------------------------------------- all simulations


def _open(
    checkpoint: str | os.PathLike | None, trial: _Trial, engine: Any, key: Array
) -> Journal | None:
    if checkpoint is None:
        return None
    run = identity(
        trial.model,
        trial.design,
        engine=engine,
        quantities=trial.quantities,
        num_draws=trial.num_draws,
        seed=key,
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
    shares = [np.median(ess) / num_draws for ess in varying if ess.size]
    return SimulationCalibration(
        subject=subject,
        pit=by_quantity("pit"),
        deviation=by_quantity("deviation"),
        is_settled=np.array([entry["is_settled"] for entry in entries]),
        num_draws=num_draws,
        effective_share=float(min(shares)) if shares else 1.0,
        false_alarm_rate=rate,
    )
