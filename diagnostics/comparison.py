"""Posteriors of one model side by side: a table, a sentence for each, pictures, a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from ..datasets.arguments import check_counts
from ..datasets.bags import Bags
from ..inference.posterior import Posterior
from ..models.model import part_of_bags, random_key
from .compared import Compared
from .measures.target_densities import target_densities
from .plots import figures
from .report import metrics, write_report
from .verdict import best_reference, gather, judge

__all__ = ["Comparison", "compare"]


@runtime_checkable
class KeptPosterior(Protocol):
    """A posterior that is kept under a name, such as a `milzoo.references.Reference`."""

    @property
    def name(self) -> str:
        """What a table calls it."""
        ...

    @property
    def posterior(self) -> Posterior:
        """Its draws."""
        ...


@dataclass(frozen=True)
class Comparison(Compared):
    """Verdicts on the reliability of posteriors, with plots and a report.

    Attributes
    ----------
    posteriors : dict of Posterior
    reference : str or None
        The posterior that errors are measured against.
    is_chosen : bool
        Whether the reference was chosen, not asked for.
    test : Bags or None
    verdicts : dict of Verdict
        All that was measured.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import Comparison, compare
    >>> from milzoo.inference import coordinate_ascent, grid, laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> engines = (coordinate_ascent, laplace, grid)
    >>> posteriors = {engine.__name__: engine(model, bags, seed=0) for engine in engines}
    >>> comparison: Comparison = compare(posteriors)
    >>> for name, headline in comparison.headlines.items():
    ...     print(f"{name}: {headline.word}, {headline.reason}")
    coordinate_ascent: overconfident, its 90 % intervals hold 81 % of grid's draws
    laplace: reliable, its 90 % intervals hold 86 % of grid's draws
    grid: reliable, it is exact
    """

    def metrics(self) -> dict[str, Any]:
        """Table and sentences as JSON's types.

        None stands where a measure does not apply, and the strings ``"-inf"`` and ``"inf"`` for
        infinite ones, which JSON does not have: k̂ is ``"-inf"`` where an approximation is exact.
        """
        return metrics(self)

    def plot_forest(self, max_sites: int = 12) -> Figure:
        """Means and intervals of the sites on which the posteriors differ most."""
        return figures.forest(self, max_sites)

    def plot_elbo(self) -> Figure:
        """The bound by step, for the engines that have one."""
        return figures.elbo(self)

    def plot_trace(self, engine: str | None = None) -> Figure:
        """Traces of a sampler's worst-mixed sites; of the reference if none is named."""
        return figures.trace(self, engine)

    def plot_rank(self, engine: str | None = None) -> Figure:
        """Ranks of a sampler's worst-mixed sites, by chain; of the reference if none is named."""
        return figures.rank(self, engine)

    def plot_khat(self) -> Figure:
        """PSIS k̂ of each approximation, beside the limits for it."""
        return figures.khat(self)

    def plot_probabilities(self) -> Figure:
        """Probabilities of the test bags, with intervals, against the reference's."""
        return figures.probabilities(self)

    def plot_targets(self) -> Figure:
        """Predicted targets of the test bags, with 90 % predictive intervals, against the truth."""
        return figures.targets(self)

    def plot_calibration(self, of: Literal["bags", "instances"] = "bags") -> Figure:
        """Observed frequency by predicted probability on test bags, by isotonic regression.

        Of instances it is that of those whose label is known.
        """
        return figures.calibration(self, of)

    def plot_marginals(self, max_sites: int = 6) -> Figure:
        """Densities of the sites on which the posteriors differ most, one over the other."""
        return figures.marginals(self, max_sites)

    def plot_leave_one_out(self, engine: str | None = None) -> Figure:
        """k̂ of leaving each bag out; of the reference, or of the first that can, if none is named.

        Raises
        ------
        ValueError
            If the posterior cannot leave a bag out.
        """
        return figures.leave_one_out(self, engine)

    def plot_bag(
        self,
        bag: int | None = None,
        *,
        image_shape: tuple[int, int] | None = None,
        images: Float[np.ndarray, "N P"] | None = None,
    ) -> Figure:
        """Instances of one test bag with intervals; see `milzoo.diagnostics.plot_bag`.

        Parameters
        ----------
        bag : int or None
            Which; None for the positive one whose instances the posteriors see most differently.
        image_shape, images
            As there.
        """
        return figures.bag(self, bag, image_shape=image_shape, images=images)

    def save_report(
        self,
        folder: str | PathLike,
        *,
        origin: str = "",
        image_shape: tuple[int, int] | None = None,
        images: Float[np.ndarray, "N P"] | None = None,
        force: bool = False,
    ) -> Path:
        """Write ``report.html``, its figures, ``metrics.json`` and a NetCDF file per posterior.

        The files replace those of an earlier report all at once; after an error that one stays.

        Parameters
        ----------
        folder : path
            Made if it is not there.
        origin : str
            What made it (data, split, seed, command), so that it can be made again; put on the
            page and into ``metrics.json`` beside the versions of the packages.
        image_shape, images
            Of the test instances, if they are images; see `plot_bag`.
        force : bool
            Whether to write to a folder that has files, though no report is there.

        Returns
        -------
        Path
            Of the page, which holds its figures and needs no network.

        Raises
        ------
        OSError
            If the folder cannot be written; `FileExistsError` if it has files of others.
        ValueError
            If images have another number of pixels.
        """
        return write_report(
            self, Path(folder), origin, image_shape=image_shape, images=images, force=force
        )


def compare(
    posteriors: Mapping[str, Posterior],
    *,
    reference: str | KeptPosterior | None = None,
    test: Bags | None = None,
    num_draws: int = 4000,
    seed: int | Array = 0,
) -> Comparison:
    """Judge posteriors of one model on the same bags, side by side.

    Errors are measured site by site in the reference's posterior sds and come with their
    Monte-Carlo errors; k̂ is that of the ratios of the exact marginal posterior to the
    approximation; predictions are scored on ``test``.

    Parameters
    ----------
    posteriors : mapping of str to Posterior
        By the name that the table gives them. Other scale mixtures, values of hyper-parameters
        (also learned ones) or priors are allowed, and are told apart as other target densities;
        other inducing points are refused.
    reference : str, Reference or None
        The one to measure errors against: the name of one of them, or a kept one
        (`milzoo.references.load_reference`), which joins them under its own. If left out: of the
        logistic model if there is one, then an exact posterior, then the sampler that has mixed,
        with the largest smallest effective sample size.
    test : Bags or None
        Held-out bags, features scaled as in training, with labels or targets, as the posteriors
        predict.
    num_draws : int
        Fresh draws of each approximation, for k̂ and for its errors.
    seed : int or JAX key
        Of these draws. They judge, they are no result: the default makes a report repeatable.

    Returns
    -------
    Comparison

    Raises
    ------
    TypeError
        If the posteriors have no names, or are something else; if the seed is no integer or key.
    ValueError
        If the posteriors are not of the same bags or not of comparable models, some predict labels
        and some targets, the reference is none of them, the test bags do not have what is
        predicted, or there are no draws to judge by.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import compare
    >>> from milzoo.inference import coordinate_ascent, grid, laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> engines = (coordinate_ascent, laplace, grid)
    >>> comparison = compare({engine.__name__: engine(model, bags, seed=0) for engine in engines})
    >>> print(comparison.reference_sentence)
    The reference is grid, the exact posterior, summed up on a grid.
    >>> comparison.table["sd_ratio"].round(1)
    engine
    coordinate_ascent    0.8
    laplace              0.9
    grid                 NaN
    Name: sd_ratio, dtype: float64
    """
    check_counts(num_draws=num_draws)
    random_key(seed)
    _check_mapping(posteriors)
    if not (reference is None or isinstance(reference, str)):
        posteriors, reference = _joined(posteriors, reference)
    _check(posteriors, reference, test)
    assessments = {
        name: gather(posterior, test=test, num_draws=num_draws, seed=seed)
        for name, posterior in posteriors.items()
    }
    densities = target_densities({name: posterior.model for name, posterior in posteriors.items()})
    chosen = best_reference(assessments, densities) if reference is None else reference
    verdicts = {
        name: judge(name, assessments, densities, reference=chosen, test=test)
        for name in assessments
    }
    disputed_by = tuple(name for name, verdict in verdicts.items() if verdict.disputes_reference)
    verdicts = {
        name: replace(verdict, disputed_by=disputed_by) for name, verdict in verdicts.items()
    }
    return Comparison(dict(posteriors), chosen, reference is None, test, verdicts)


def _check_mapping(posteriors: Mapping[str, Posterior]) -> None:
    if not isinstance(posteriors, Mapping):
        raise TypeError(
            f"posteriors is a {type(posteriors).__name__}; expected a mapping of names to "
            "posteriors, such as {'nuts': posterior}"
        )
    if not posteriors:
        raise ValueError("posteriors is empty; expected at least one, by name")


def _joined(
    posteriors: Mapping[str, Posterior], kept: KeptPosterior
) -> tuple[dict[str, Posterior], str]:
    """The posteriors and a kept one, and the name of that."""
    if not isinstance(kept, KeptPosterior):
        raise TypeError(
            f"reference is a {type(kept).__name__}; expected the name of one of the posteriors, or "
            "a reference, as milzoo.references.load_reference returns it"
        )
    if kept.name in posteriors:
        raise ValueError(
            f"posteriors has a {kept.name!r} besides the reference of that name; give it another"
        )
    return {**posteriors, kept.name: kept.posterior}, kept.name


def _check(posteriors: Mapping[str, Posterior], reference: str | None, test: Bags | None) -> None:
    for name, posterior in posteriors.items():
        if not isinstance(posterior, Posterior):
            raise TypeError(
                f"posteriors has a {type(posterior).__name__} as {name!r}; expected a Posterior, "
                "as engines return it"
            )
    if reference is not None and reference not in posteriors:
        near = get_close_matches(reference, posteriors, n=1, cutoff=0.0)
        raise ValueError(
            f"reference is {reference!r}, none of the posteriors; did you mean {near[0]!r}?"
        )
    (first, one), *rest = posteriors.items()
    for name, other in rest:
        _check_same_kind(first, one, name, other)
    if test is not None and getattr(test, part_of_bags(one.model)) is None:
        raise ValueError(
            f"test bags have no {part_of_bags(one.model)}; compare scores predictions against "
            "them: pass bags that have them, or leave test out"
        )
    for name, other in rest:
        _check_same_bags(first, one.bags, name, other.bags)
        _check_same_sites(first, one, name, other)


def _check_same_kind(first: str, one: Posterior, name: str, other: Posterior) -> None:
    ours, theirs = part_of_bags(one.model), part_of_bags(other.model)
    if ours != theirs:
        raise ValueError(
            f"posterior {first!r} predicts {ours} and {name!r} predicts {theirs}; expected all of "
            "one kind: compare each kind by itself"
        )


def _check_same_bags(first: str, one: Bags, name: str, other: Bags) -> None:
    for part in ("bag_index", "labels", "targets", "instances", "edges"):
        ours, theirs = (np.asarray(getattr(bags, part)) for bags in (one, other))
        if not np.array_equal(ours, theirs):
            raise ValueError(
                f"posteriors {first!r} and {name!r} are of different bags (their {part} differ); "
                "expected all of the same training bags"
            )


def _check_same_sites(first: str, one: Posterior, name: str, other: Posterior) -> None:
    if type(one.model) is not type(other.model):
        raise ValueError(
            f"posteriors {first!r} and {name!r} are of different models, {one.model.name} and "
            f"{other.model.name}; expected one model, fitted by several engines"
        )
    for part in fields(one.model):  # type: ignore[arg-type]
        ours, theirs = getattr(one.model, part.name), getattr(other.model, part.name)
        if isinstance(ours, np.ndarray) and not np.array_equal(ours, theirs):
            raise ValueError(
                f"posteriors {first!r} and {name!r} have different {part.name}, so their sites are "
                "different quantities; fit all engines to one model object"
            )
