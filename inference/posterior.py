"""The posterior that every engine returns: draws in an ArviZ tree, with model, bags and status."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import jax
import numpy as np
import xarray as xr
from arviz_base import from_dict
from arviz_stats.base.array import array_stats
from jaxtyping import Array, Float, Int

from ..datasets.arguments import check_counts
from ..datasets.bags import Bags
from ..datasets.checks import as_table
from ..datasets.edges import Edges
from ..datasets.on_disk import parquet_writer
from ..datasets.streaming import BagStream
from ..datasets.writing import check_writable
from ..models.model import Draws, Model, Program, part_of_bags, random_key
from ..models.numerics.fields import is_of_type
from ..models.numerics.memory import check_memory
from ..models.numerics.threads import one_lapack_thread
from . import serialization
from .prediction import Prediction, TargetPrediction
from .runtime.chains import ChainRun
from .runtime.chunks import in_pieces
from .runtime.densities import log_likelihood
from .runtime.programs import Stopwatch

__all__ = [
    "LARGEST_RHAT",
    "Approximation",
    "Posterior",
    "Status",
    "approximate_posterior",
    "flat_draws",
    "sampled_posterior",
    "superchains_of",
]


# Of chains that agree, rank-normalised and split (Vehtari et al., 2021).
LARGEST_RHAT = 1.01
# Draws times instances that are predicted at once: 128 MiB, unless there are so many draws that
# calls would be for a handful of instances; and of so few draws, kernels would be larger.
_NUMBERS_AT_ONCE = 2**24
_FEWEST_AT_ONCE, _MOST_AT_ONCE = 1024, 2**14


# Variables of saved posteriors with the edges of the bags.
_EDGES = ("edge_row", "edge_column", "edge_weight")

_Kind = Literal["converged", "max_steps", "failed", "collapsed", "disagreed"]


@dataclass(frozen=True)
class Status:
    """How a run ended, in a word and in a sentence.

    ``collapsed`` is a run that converged, to hyper-parameters under which no feature matters;
    ``disagreed`` one that converged, but to other approximations from other starts.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import Status, coordinate_ascent
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> coordinate_ascent(model, bags, seed=0).status.kind
    'converged'
    >>> stopped: Status = coordinate_ascent(model, bags, seed=0, max_steps=2).status
    >>> stopped.kind
    'max_steps'
    >>> stopped.sentence
    'the bound moved by +0.046 at the last step, 2'
    """

    kind: _Kind
    sentence: str


@runtime_checkable
class Approximation(Protocol):
    """The approximation q that an engine returns; a frozen dataclass of arrays."""

    def draws(self, model: Any, bags: Any, key: Array, num_draws: int) -> Draws:
        """Draws from q of the latent sites of ``model.marginal()``; bags of a stream are None."""
        ...

    def log_density(self, model: Any, bags: Any, draws: Draws) -> Float[np.ndarray, " S"] | None:
        """log q of each draw; None of a point."""
        ...

    def guide(self, model: Any) -> Program:
        """q as a NumPyro guide."""
        ...


@runtime_checkable
class Predictive(Protocol):
    """An approximation under which predictive densities of instances have a closed form."""

    def log_predictive(self, model: Any, bags: Bags) -> Float[np.ndarray, "2 N"]:
        """Log densities of new instances, of negative and of positive ones."""
        ...


@dataclass(frozen=True, eq=False)
class Posterior:
    """The outcome of one engine on one model and one set of bags.

    Attributes
    ----------
    model : Model
        With the values that the engine learned, if it learned any.
    engine : str
        Name of the engine.
    tree : xarray.DataTree
        ArviZ groups ``posterior``, ``sample_stats`` (samplers only), ``observed_data``,
        ``constant_data``. What follows from draws is computed when asked for:
        ``log_likelihood``, ``draws_with_estimands``.
    status : Status
    seconds : float
        Of fitting, or of warm-up and sampling; compilation apart.
    compile_seconds : float
        Of tracing and compiling programs, in the whole call.
    wall_seconds : float
        From the call of the engine to its return: fitting, compilation and all else.
    sampling_seconds : float or None
        The part of ``seconds`` after warm-up; None for an approximation.
    elbo : array (T,) or None
        The evidence lower bound after each step (``svi``: each block of steps), if there is one.
    approximation : Approximation or None
        None for a sampler.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import Posterior, laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = laplace(model, bags, seed=0)
    >>> posterior.engine, posterior.status.kind
    ('laplace', 'converged')
    >>> posterior.stored_draws()["inducing_value"].mean(axis=0).round(1)
    array([-1.3,  2.5])
    >>> posterior.save("posterior.nc")
    >>> Posterior.load("posterior.nc").predict(bags).bag_probability.round(1)
    array([0.7, 0.8, 0.2, 0.3])
    """

    model: Model
    engine: str
    tree: xr.DataTree = field(repr=False)
    status: Status
    seconds: float
    compile_seconds: float
    wall_seconds: float
    sampling_seconds: float | None = None
    elbo: Float[np.ndarray, " T"] | None = field(default=None, repr=False)
    approximation: Approximation | None = field(default=None, repr=False)

    @property
    def is_mcmc(self) -> bool:
        """Whether the draws are those of a Markov chain, so that R̂ and ESS mean something."""
        return self.approximation is None

    @property
    def bags(self) -> Bags:
        """The bags of the posterior, rebuilt from the tree.

        Raises
        ------
        ValueError
            If they came from a stream, and are not kept.
        """
        if not self.keeps_bags:
            raise ValueError(
                f"posterior of {self.engine} was learned from a stream and keeps no bags, by which "
                "it could be judged; fit a part of them in memory and compare that"
            )
        return _bags_of(self.tree)

    @property
    def keeps_bags(self) -> bool:
        """Whether the bags are in the tree: those of a stream are not."""
        return "constant_data" in self.tree.children

    @property
    def guide(self) -> Program:
        """The approximation as a NumPyro guide, for ``Predictive`` and ``Trace_ELBO``.

        Raises
        ------
        ValueError
            If the posterior is a sampler's.
        """
        return self._approximation("guide").guide(self.model)

    def draws(self, num_draws: int, *, seed: int | Array) -> Draws:
        """Independent draws of an approximation; a sampler's stored draws, resampled.

        Parameters
        ----------
        num_draws : int
        seed : int or JAX key

        Returns
        -------
        dict of arrays
            Latent sites by name, draws first.
        """
        check_counts(num_draws=num_draws)
        key = random_key(seed)
        if self.approximation is not None:
            bags = self.bags if self.keeps_bags else None
            return self.approximation.draws(self.model, bags, key, num_draws)
        stored = self.stored_draws()
        available = len(next(iter(stored.values())))
        chosen = np.asarray(jax.random.choice(key, available, (num_draws,)))
        return {name: value[chosen] for name, value in stored.items()}

    def stored_draws(self) -> Draws:
        """All draws in the tree, chains one after another."""
        return flat_draws(self.tree["posterior"].to_dataset())

    @cached_property
    def draws_with_estimands(self) -> xr.Dataset:
        """The group ``posterior`` with what ``model.estimands_of`` says of its draws.

        Computed when first asked for. The tree of a sampler has them: its status is about them.

        Raises
        ------
        ValueError
            If it is an approximation's and keeps no bags.
        """
        stored = self.tree["posterior"].to_dataset()
        if self.is_mcmc:
            return stored
        bags = self.bags
        implied = with_estimands(self.model, bags, self._stored_by_chain())
        return _dataset(self.model, bags, implied)

    @cached_property
    def log_likelihood(self) -> xr.DataArray:
        """log p(label or target of a bag | draw), with dims chain, draw, bag.

        Computed when first asked for. For a model of instances it is that of the instances of a
        bag given its label.

        Raises
        ------
        ValueError
            If the posterior keeps no bags.
        """
        bags, stored = self.bags, self.tree["posterior"].to_dataset()
        flat = flat_draws(stored)
        latent = {name: flat[name] for name in self.model.latent_sites}
        by_bag = log_likelihood(self.model, "marginal", latent, bags)
        return xr.DataArray(
            by_bag.reshape(stored.sizes["chain"], stored.sizes["draw"], -1),
            dims=("chain", "draw", "bag"),
            coords={"chain": stored["chain"], "draw": stored["draw"], "bag": list(bags.names)},
            name=self.model.observed_site,
        )

    def tree_with_log_likelihood(self) -> xr.DataTree:
        """The tree with a group ``log_likelihood``, which `arviz.loo` reads.

        Returns
        -------
        xarray.DataTree
            A copy: ``tree`` stays as it is.

        Raises
        ------
        ValueError
            If the posterior keeps no bags.
        """
        tree = self.tree.copy()
        tree["log_likelihood"] = xr.DataTree(self.log_likelihood.to_dataset())
        return tree

    def _stored_by_chain(self) -> Draws:
        stored = self.tree["posterior"].to_dataset()
        return {str(name): value.to_numpy() for name, value in stored.data_vars.items()}

    def log_density(self, draws: Draws) -> Float[np.ndarray, " S"] | None:
        """log q of each draw, or None for a sampler or a point, which have no density."""
        if self.approximation is None:
            return None
        bags = self.bags if self.keeps_bags else None
        return self.approximation.log_density(self.model, bags, draws)

    def predict_to_parquet(
        self,
        bags: Bags | BagStream,
        path: str | PathLike,
        *,
        mass: float | None = None,
        **options: Any,
    ) -> None:
        """Write what `predict` says to a Parquet file, chunk by chunk, in bounded memory.

        The file has a row for each instance, in the order of the bags that are read: ``bag``,
        ``bag_probability`` and ``instance_probability``, or ``bag_target`` and
        ``instance_contribution``; with intervals also ``bag_lower``, ``bag_upper``,
        ``instance_lower``, ``instance_upper``.

        Parameters
        ----------
        bags : Bags or BagStream
            With the features that the model was made for; labels are not used.
        path : path
            Conventionally ``*.parquet``; written whole, or not at all.
        mass : float or None
            Of the intervals; None for none.
        **options
            Of the model's own ``predict``.

        Raises
        ------
        ValueError
            If the path is among the files that are read, or one of them is bad.
        """
        file = check_writable(path)
        if isinstance(bags, BagStream) and bags.path.resolve() in (
            file.resolve(),
            file.resolve().parent,
        ):
            raise ValueError(f"{file} is among the files that are read; give a path elsewhere")
        num_draws = len(next(iter(self.stored_draws().values())))
        length = min(max(_FEWEST_AT_ONCE, _NUMBERS_AT_ONCE // num_draws), _MOST_AT_ONCE)
        if isinstance(bags, BagStream):
            length = min(length, bags.chunk_instances)
        length = min(length, bags.num_instances)
        with parquet_writer(file) as write:
            for piece in in_pieces(bags, length):
                write(_rows(piece, self.predict(piece, **options), mass))

    def predict(self, bags: Bags | BagStream, **options: Any) -> Prediction | TargetPrediction:
        """The predictive distribution of the given bags and their instances, over all stored draws.

        Parameters
        ----------
        bags : Bags
            With the features that the model was made for; labels are not used.
        **options
            Of the model's own ``predict``.

        Returns
        -------
        Prediction or TargetPrediction
            Probabilities of labels, or predictive distributions of targets.

        Raises
        ------
        TypeError
            If the bags are a stream: `predict_to_parquet` takes these.
        ValueError
            If a prediction is not a number, as after a run that failed.
        MemoryError
            If there is not enough memory for all draws of all instances.
        """
        if isinstance(bags, BagStream):
            raise TypeError(
                "predict was given a stream, whose predictions no memory may hold; write them down "
                "with predict_to_parquet(stream, path)"
            )
        num_draws = len(next(iter(self.stored_draws().values())))
        check_memory(
            num_draws * (bags.num_bags + bags.num_instances),
            f"predictions of {bags.num_instances:,} instances by {num_draws:,} draws",
            "write them to a file with predict_to_parquet(bags, path), or fit with fewer num_draws",
        )
        predicted = self._predict(bags, options)
        is_finite = predicted.is_finite(np.asarray(bags.bag_index))[: bags.num_bags]
        if not is_finite.all():
            bag = int(np.argmin(is_finite))
            raise ValueError(
                f"the prediction of bag {bags.names[bag] if bags.names else bag!r} by "
                f"{self.engine} is not a number: {self.status.sentence}; expected features of the "
                f"scale that it was fitted on, and these reach {np.abs(bags.instances).max():.3g}"
            )
        return predicted

    def _predict(self, bags: Bags, options: dict[str, Any]) -> Prediction | TargetPrediction:
        needs_estimands = bool(self.model.predicts_by)
        draws = flat_draws(self.draws_with_estimands) if needs_estimands else self.stored_draws()
        if self.model.observed_site == "bag_target":
            return TargetPrediction.of(self.model, draws, bags, **options)
        if isinstance(self.approximation, Predictive):
            options["log_predictive"] = self.approximation.log_predictive(self.model, bags)
        predicted = self.model.predict(draws, bags, **options)
        known = predicted.get("bag_log_odds"), predicted.get("instance_log_odds")
        return Prediction(predicted["bag_probability"], predicted["instance_probability"], *known)

    def save(self, path: str | PathLike) -> None:
        """Write everything to one NetCDF file.

        Parameters
        ----------
        path : path
            Conventionally ``*.nc``.

        Raises
        ------
        ValueError
            If the model holds a function (``ScaleMixture``), which no file can hold.
        OSError
            If the file cannot be written; what was there is as it was.
        """
        metadata = {
            "model": serialization.encode(self.model),
            "approximation": None
            if self.approximation is None
            else serialization.encode(self.approximation),
            "engine": self.engine,
            "status": [self.status.kind, self.status.sentence],
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "wall_seconds": self.wall_seconds,
            "sampling_seconds": self.sampling_seconds,
            "elbo": None if self.elbo is None else self.elbo.tolist(),
        }
        serialization.write_tree(path, self.tree, metadata)

    @classmethod
    def load(cls, path: str | PathLike) -> Posterior:
        """Read what ``save`` wrote. Nothing in the file is run: see ``SECURITY.md``.

        Raises
        ------
        ValueError
            If the file is damaged, of another format, or holds no posterior of this package.
        OSError
            If it cannot be opened.
        """
        tree, metadata = serialization.read_tree(path)
        with serialization.refused(Path(path)):
            return _posterior_of(tree, metadata)

    def _approximation(self, wanted: str) -> Approximation:
        if self.approximation is None:
            raise ValueError(
                f"posterior of {self.engine} has no {wanted}: it is a set of draws; fit an "
                "approximation (coordinate_ascent, laplace, svi) for one"
            )
        return self.approximation


# Of a file, by name.
_ENTRIES: dict[str, Any] = {
    "format": int,
    "model": dict,
    "approximation": dict | None,
    "engine": str,
    "status": list,
    "seconds": float,
    "compile_seconds": float,
    "wall_seconds": float,
    "sampling_seconds": float | None,
    "elbo": list | None,
}


def _posterior_of(tree: xr.DataTree, metadata: dict[str, Any]) -> Posterior:
    """A posterior from what a file holds, which may be anything.

    Raises
    ------
    ValueError
        If it makes no posterior.
    """
    for name, kind in _ENTRIES.items():
        if name not in metadata or not is_of_type(metadata[name], kind):
            found, expected = str(metadata.get(name))[:200], getattr(kind, "__name__", kind)
            raise ValueError(f"its {name} is {found}; expected {expected}")
    status, elbo = metadata["status"], metadata["elbo"]
    if len(status) != 2 or status[0] not in get_args(_Kind) or not isinstance(status[1], str):
        raise ValueError(f"its status is {str(status)[:200]}; expected a word and a sentence")
    if elbo is not None and not all(isinstance(one, float) for one in elbo):
        raise ValueError("its elbo holds something else than numbers")
    model = serialization.decode(metadata["model"])
    if not isinstance(model, Model):
        raise ValueError(f"its model is a {type(model).__name__}")
    approximation = serialization.decode(metadata["approximation"])
    if approximation is not None and not isinstance(approximation, Approximation):
        raise ValueError(f"its approximation is a {type(approximation).__name__}")
    posterior = Posterior(
        model=model,
        engine=metadata["engine"],
        tree=tree,
        status=Status(status[0], status[1]),
        seconds=metadata["seconds"],
        compile_seconds=metadata["compile_seconds"],
        wall_seconds=metadata["wall_seconds"],
        sampling_seconds=metadata["sampling_seconds"],
        elbo=None if elbo is None else np.array(elbo),
        approximation=approximation,
    )
    _check_draws(posterior)
    if posterior.keeps_bags:
        _check_bags(posterior)
    return posterior


def _check_draws(posterior: Posterior) -> None:
    """Raise an error unless the tree has draws of all sites of the model."""
    if "posterior" not in posterior.tree.children:
        raise ValueError("it has no group posterior")
    group = posterior.tree["posterior"].to_dataset()
    for site in posterior.model.latent_sites:
        if site not in group:
            raise ValueError(f"its group posterior has no {site}")
        draws, dims = group[site], posterior.model.dims
        # A model need not name the axes of all its sites.
        names = ("chain", "draw", *dims.get(site, draws.dims[2:]))
        if draws.dtype.kind not in "biuf" or draws.dims != names:
            raise ValueError(
                f"its {site} is of type {draws.dtype} with dims {draws.dims}; expected numbers "
                f"with {names}"
            )


def _check_bags(posterior: Posterior) -> None:
    """Raise an error unless the bags are as a constructor of `Bags` makes them."""
    try:
        bags = posterior.bags
    except (KeyError, AttributeError) as error:
        raise ValueError(f"its bags lack {error}") from error
    index, known = np.asarray(bags.bag_index), bags.instance_labels
    if index.dtype.kind != "i" or not np.array_equal(np.unique(index), np.arange(bags.num_bags)):
        raise ValueError("its bag_index does not number the bags from 0 on")
    if (np.diff(index) < 0).any():
        raise ValueError("its bag_index is not in order")
    if bags.targets is not None:
        bags.with_targets(bags.targets)
    if bags.edges is not None:
        _check_edges(bags, bags.edges)
    Bags.checked(
        instances=as_table(bags.instances, "instances"),
        bag_index=index,
        labels=bags.labels,
        instance_labels=None if known is None else np.asarray(known),
        names=bags.names,
        row_of=int,
        is_part=True,  # warned about when they came in: not again
    )
    part = part_of_bags(posterior.model)
    if getattr(bags, part) is None:
        raise ValueError(f"its bags have no {part}, from which the model learns")


def _check_edges(bags: Bags, edges: Edges) -> None:
    """Raise an error unless the edges are as `Bags.with_edges` makes them."""
    numbers = np.concatenate([edges.row, edges.column])
    if numbers.dtype.kind != "i" or not np.isin(numbers, np.arange(bags.num_instances)).all():
        raise ValueError("its edges are between other instances than there are")
    again = bags.with_edges(edges.as_matrix(bags.num_instances)).edges
    if not all(map(np.array_equal, edges, again or ())):
        raise ValueError("its edges are not in order")


def _rows(
    bags: Bags, predicted: Prediction | TargetPrediction, mass: float | None
) -> dict[str, np.ndarray]:
    """A row for each instance of these bags, the first of those that were predicted."""
    columns = predicted.columns()
    if mass is not None:
        for of, interval in (
            ("bag", predicted.bag_interval(mass)),
            ("instance", predicted.instance_interval(mass)),
        ):
            columns |= {f"{of}_lower": interval[0], f"{of}_upper": interval[1]}
    index = np.asarray(bags.bag_index)
    by_row = {
        name: values[index] if name.startswith("bag") else values[: bags.num_instances]
        for name, values in columns.items()
    }
    return {"bag": np.array(bags.names)[index]} | by_row


def sampled_posterior(
    model: Model,
    bags: Bags,
    *,
    engine: str,
    run: ChainRun,
    watch: Stopwatch,
    num_superchains: int | None = None,
) -> Posterior:
    """Wrap what a sampler left behind.

    Parameters
    ----------
    model : Model
    bags : Bags
    engine : str
    run : ChainRun
    watch : Stopwatch
        Started with the call of the engine.
    num_superchains : int or None
        Points that chains began at, as many at each, in order; None if each began at its own.

    Returns
    -------
    Posterior
        ``status`` is ``failed`` if a draw is not finite, and ``converged`` if the chains agree;
        `compare` tells more.
    """
    draws = without_padding(run.draws, model, bags)
    # R̂ is that of the estimands.
    tree = _tree(model, bags, with_estimands(model, bags, draws), run.statistics)
    if num_superchains is not None:
        tree["sample_stats"].attrs["num_superchains"] = num_superchains
    status = _mixed(tree, model.estimands or model.latent_sites)
    return Posterior(
        model=model,
        engine=engine,
        tree=tree,
        status=status,
        seconds=run.warmup_seconds + run.sampling_seconds,
        compile_seconds=watch.compile_seconds + (run.compile_seconds or 0.0),
        wall_seconds=watch.wall_seconds,
        sampling_seconds=run.sampling_seconds,
    )


def without_padding(draws: Draws, model: Model, bags: Bags) -> Draws:
    """Draws of sites by instance and by bag, cut to those that are there.

    Parameters
    ----------
    draws : dict of arrays
        With axes of instances or bags last, as ``model.dims`` names them.
    model : Model
    bags : Bags

    Returns
    -------
    dict of arrays
    """
    sizes = {"instance": bags.num_instances, "bag": bags.num_bags}

    def cut(name: str, values: np.ndarray) -> np.ndarray:
        dims = model.dims.get(name, ())
        return values[(..., *(slice(sizes.get(dim)) for dim in dims))]

    return {name: cut(name, values) for name, values in draws.items()}


def superchains_of(tree: xr.DataTree) -> Int[np.ndarray, " C"] | None:
    """The superchain of each chain: those that began at one point.

    Parameters
    ----------
    tree : xarray.DataTree
        Of a sampler.

    Returns
    -------
    array (C,) or None
        None if each chain began at a point of its own.
    """
    statistics = tree.children.get("sample_stats")  # plain Gibbs has none
    number = None if statistics is None else statistics.attrs.get("num_superchains")
    if number is None:
        return None
    num_chains = tree["posterior"].sizes["chain"]
    return np.repeat(np.arange(int(number)), num_chains // int(number))


def largest_rhat(draws: Draws, superchains: Int[np.ndarray, " C"] | None = None) -> float:
    """Largest rank-normalised split R̂ of all numbers that vary; nested R̂ by superchains.

    Parameters
    ----------
    draws : dict of arrays (C, K, ...)
    superchains : array (C,) or None
        The superchain of each chain; None where each is by itself.

    Returns
    -------
    float
        NaN where all draws are alike.
    """
    with np.errstate(invalid="ignore", divide="ignore"):  # of what is the same in all draws
        by_site = [
            array_stats.rhat(value, chain_axis=0, draw_axis=1)
            if superchains is None
            else array_stats.rhat_nested(value, superchains, chain_axis=0, draw_axis=1)
            for value in draws.values()
        ]
    every = np.concatenate([np.ravel(rhat) for rhat in by_site])
    # A probability that is 1 in all draws has none; neither have draws that are all alike.
    return float(np.nanmax(every)) if np.isfinite(every).any() else np.nan


def _mixed(tree: xr.DataTree, names: tuple[str, ...]) -> Status:
    posterior = tree["posterior"].to_dataset()
    draws = {name: posterior[name].to_numpy() for name in names if name in posterior}
    if not all(np.isfinite(value).all() for value in draws.values()):
        return Status("failed", "a draw is not finite: the sampler left the support of the model")
    chains, length = next(iter(draws.values())).shape[:2]
    if length < 4:
        return Status("max_steps", f"{length} draws a chain are too few to judge")
    superchains = superchains_of(tree)
    worst = largest_rhat(draws, superchains)
    rhat = "R̂" if superchains is None else "nested R̂"
    sentence = f"{chains} × {length} draws after warm-up, worst {rhat} {worst:.3f}"
    return Status("converged" if worst < LARGEST_RHAT else "max_steps", sentence)


def approximate_posterior(
    model: Model,
    bags: Bags | None,
    approximation: Approximation,
    *,
    engine: str,
    key: Array,
    num_draws: int,
    status: Status,
    seconds: float,
    watch: Stopwatch,
    elbo: Float[np.ndarray, " T"] | None,
) -> Posterior:
    """Wrap an approximation, with draws from it in the tree as one chain.

    Parameters
    ----------
    model : Model
    bags : Bags or None
        None where they came from a stream: the tree then has draws alone.
    approximation : Approximation
    engine : str
    key : array
        Of the draws.
    num_draws : int
    status : Status
    seconds : float
    watch : Stopwatch
        Started with the call of the engine.
    elbo : array (T,) or None

    Returns
    -------
    Posterior
    """
    check_counts(num_draws=num_draws)
    # Idle threads of BLAS would hold up whatever JAX does next.
    with one_lapack_thread():
        draws = approximation.draws(model, bags, key, num_draws)
    tree = _tree(model, bags, {name: value[None] for name, value in draws.items()}, {})
    return Posterior(
        model=model,
        engine=engine,
        tree=tree,
        status=status,
        seconds=seconds,
        compile_seconds=watch.compile_seconds,
        wall_seconds=watch.wall_seconds,
        elbo=elbo,
        approximation=approximation,
    )


def _tree(model: Model, bags: Bags | None, draws: Draws, statistics: Draws) -> xr.DataTree:
    own_dims = {name: list(dims) for name, dims in model.dims.items()}
    if bags is None:
        return from_dict({"posterior": draws}, dims=own_dims, check_conventions=False)
    constant = {"instances": bags.instances, "bag_index": bags.bag_index}
    if bags.instance_labels is not None:
        constant["true_instance_label"] = bags.instance_labels
    if bags.edges is not None:
        constant |= dict(zip(_EDGES, bags.edges, strict=True))
    known = {"bag_label": bags.labels, "bag_target": bags.targets}
    observed = {name: value for name, value in known.items() if value is not None}
    groups = {
        "posterior": draws,
        "sample_stats": statistics,
        "observed_data": observed,
        "constant_data": constant,
    }
    own_dims |= {name: ["bag"] for name in observed}
    return from_dict(
        {name: group for name, group in groups.items() if group},
        dims=own_dims
        | {
            "instances": ["instance", "feature"],
            "bag_index": ["instance"],
            "true_instance_label": ["instance"],
        }
        | {name: ["edge"] for name in _EDGES},
        coords={"bag": list(bags.names)},
        check_conventions=False,  # there may be more chains than draws
    )


def with_estimands(model: Model, bags: Bags, draws: Draws) -> Draws:
    """Draws by chain, and what the model says that these imply.

    Parameters
    ----------
    model : Model
    bags : Bags
    draws : dict of arrays (C, K, ...)

    Returns
    -------
    dict of arrays (C, K, ...)
    """
    chains, length = next(iter(draws.values())).shape[:2]
    latent = {name: draws[name].reshape(-1, *draws[name].shape[2:]) for name in model.latent_sites}
    implied = model.estimands_of(latent, bags)
    return draws | {
        name: value.reshape(chains, length, *value.shape[1:]) for name, value in implied.items()
    }


def _dataset(model: Model, bags: Bags, draws: Draws) -> xr.Dataset:
    """Draws by chain with the names of their axes."""
    dims = {name: list(names) for name, names in model.dims.items() if name in draws}
    has_bags = any("bag" in names for names in dims.values())
    coords = {"bag": list(bags.names)} if has_bags else {}
    named = {"dims": dims, "coords": coords, "check_conventions": False}
    return from_dict({"posterior": draws}, **named)["posterior"].to_dataset()


def flat_draws(draws: xr.Dataset) -> Draws:
    """Draws of a dataset by name, chains one after another.

    Parameters
    ----------
    draws : Dataset
        With dims chain, draw, ….

    Returns
    -------
    dict of arrays
        Draws first.
    """
    return {
        str(name): value.to_numpy().reshape(-1, *value.shape[2:])
        for name, value in draws.data_vars.items()
    }


def _bags_of(tree: xr.DataTree) -> Bags:
    constant = tree["constant_data"].to_dataset()
    known, has_edges = "true_instance_label" in constant, _EDGES[0] in constant
    observed = tree["observed_data"].to_dataset()

    def part(name: str) -> np.ndarray | None:
        return observed[name].to_numpy() if name in observed else None

    # Checked when they came in, and warned about: not again.
    return Bags(
        instances=constant["instances"].to_numpy(),
        bag_index=constant["bag_index"].to_numpy(),
        labels=part("bag_label"),
        instance_labels=constant["true_instance_label"].to_numpy() if known else None,
        names=tuple(str(name) for name in observed["bag"].to_numpy()),
        num_bags=observed.sizes["bag"],
        targets=part("bag_target"),
        edges=Edges(*(constant[name].to_numpy() for name in _EDGES)) if has_edges else None,
    )
