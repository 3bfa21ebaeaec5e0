"""Select models by their predictions of held-out bags, and compare with selection by the bound."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import arviz as az
import jax
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...inference import coordinate_ascent
from ...inference.posterior import Posterior
from ...inference.runtime.progress import Progress
from ...models.model import Model, observations, random_key
from ..measures.scores import bag_log_loss

__all__ = ["CRITERIA", "Prepared", "Selection", "select"]

CRITERIA = ("loo", "cross_validation", "elbo")
# Criteria on held-out bags.
_PREDICTIVE = ("loo", "cross_validation")

type Fit = Callable[..., Posterior]
type Recipe = Callable[[Bags], Model | Prepared]


def _as_they_are(bags: Bags) -> Bags:
    return bags


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model made from training bags, and bags as it reads them.

    Attributes
    ----------
    model : Model
    bags : Bags
        The training bags, scaled or scored as the model wants them.
    prepare : callable
        The same for other bags: by the training bags, whatever labels these others have.

    Examples
    --------
    A recipe, for `select`, of a model on features that the training bags scale:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import Prepared
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> def scaled(training):
    ...     model = VWSGP(RBF(9.0, 1.0), np.array([[-1.0], [1.0]]))
    ...     return Prepared(model, training.standardize(), lambda bags: bags.standardize(training))
    >>> prepared = scaled(bags)
    >>> prepared.bags.instances.mean(axis=0).round(1)
    array([-0.])
    >>> prepared.prepare(Bags.from_list([[[3.0]]])).instances.round(1)
    array([[1.4]])
    """

    model: Model
    bags: Bags = field(repr=False)
    prepare: Callable[[Bags], Bags] = field(default=_as_they_are, repr=False)


@dataclass(frozen=True, eq=False)
class Selection:
    """Models side by side, by their predictions of held-out bags and by their bounds.

    Attributes
    ----------
    by : str
        The criterion that chooses.
    elpd : dict of dict of arrays (B,)
        By criterion (``loo``, ``cross_validation``) and model: log p(label of a bag | other bags),
        bags in the same order for all models.
    elbo : dict of float
        By model; NaN where the engine has none, or the model is known up to a constant only (a ψ
        that is not the logistic one), so that its bound is no bound on log p(labels).
    num_refitted : dict of int
        By model: bags that it was fitted without, where weights could not leave them out.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import Selection, select
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> points = np.array([[0.0], [3.0]])
    >>> models = {
    ...     f"length scale {scale}": VWSGP(RBF(9.0, scale), points) for scale in (0.1, 1.0)
    ... }
    >>> selection: Selection = select(models, bags, seed=0, criteria=("loo",), engine=laplace)
    >>> for sentence in selection.sentences:
    ...     print(sentence)
    length scale 1.0 is chosen by loo
    >>> {name: of_bags.round(1) for name, of_bags in selection.elpd["loo"].items()}
    {'length scale 0.1': array([-0.9, -0.5, -0.7, -0.7]),
     'length scale 1.0': array([-0.8, -0.2, -0.4, -0.4])}
    """

    by: str
    elpd: dict[str, dict[str, Float[np.ndarray, " B"]]] = field(repr=False)
    elbo: dict[str, float]
    num_refitted: dict[str, int]

    @property
    def chosen(self) -> str:
        """The best model by the criterion."""
        return self.chosen_by[self.by]

    @property
    def chosen_by(self) -> dict[str, str]:
        """The best model by each criterion that is known."""
        best = {
            criterion: max(by_model, key=lambda name: by_model[name].sum())
            for criterion, by_model in self.elpd.items()
        }
        known = {name: bound for name, bound in self.elbo.items() if np.isfinite(bound)}
        return best | ({"elbo": max(known, key=known.__getitem__)} if known else {})

    @property
    def table(self) -> pd.DataFrame:
        """A row for each model, the best by the criterion first.

        Returns
        -------
        DataFrame
            For each predictive criterion its sum over bags in nats, how far that is below the
            best model's, and the standard error of the difference, by bag. ``refitted``: how many
            bags leave-one-out had to fit anew without. ``elbo``. ``chosen_by``: the criteria that
            choose the model.
        """
        table = pd.DataFrame(index=pd.Index(list(self.elbo), name="model"))
        for criterion, by_model in self.elpd.items():
            table[criterion] = {name: one.sum() for name, one in by_model.items()}
            behind = {name: self._behind(criterion, name) for name in by_model}
            table[f"{criterion}_behind"] = {name: found[0] for name, found in behind.items()}
            table[f"{criterion}_behind_error"] = {name: found[1] for name, found in behind.items()}
            if criterion == "loo":
                table["refitted"] = self.num_refitted
        table["elbo"] = self.elbo
        table["chosen_by"] = [
            ", ".join(criterion for criterion, best in self.chosen_by.items() if best == name)
            for name in table.index
        ]
        return table.sort_values(self.by, ascending=False)

    def _behind(self, criterion: str, name: str) -> tuple[float, float]:
        """Difference of a model from the best by the criterion, and its standard error."""
        by_model = self.elpd[criterion]
        difference = by_model[self.chosen_by[criterion]] - by_model[name]
        error = np.sqrt(len(difference)) * difference.std(ddof=1)
        return float(difference.sum()), float(error)

    @property
    def sentences(self) -> list[str]:
        """Which model each criterion chooses, and the loss from following another criterion."""
        return [*self._choices()]

    def _choices(self) -> Iterator[str]:
        agree = [criterion for criterion, best in self.chosen_by.items() if best == self.chosen]
        yield f"{self.chosen} is chosen by {' and '.join(agree)}"
        for criterion, best in self.chosen_by.items():
            if best == self.chosen:
                continue
            if self.by not in self.elpd:
                yield f"{criterion} chooses {best}"
                continue
            behind, error = self._behind(self.by, best)
            yield (
                f"{criterion} chooses {best}, which predicts worse by {behind:.1f} ± {error:.1f} "
                f"nats over all bags ({self.by})"
                + (": within two standard errors" if behind < 2 * error else "")
            )


def select(
    models: Mapping[str, Model | Recipe],
    bags: Bags,
    *,
    seed: int | Array,
    by: str = "loo",
    criteria: tuple[str, ...] = CRITERIA,
    engine: Fit = coordinate_ascent,
    num_folds: int = 10,
    progress: bool = False,
    **options: Any,
) -> Selection:
    """Choose among models by their predictions of held-out bags.

    What is asked of each bag is log p(its label | the other bags), as the engine would say it.
    Leave-one-bag-out weights a sampler's draws by 1/p(label | draw), Pareto smoothed; where k̂ of
    these weights is above 0.7 (less for fewer than 2,200 draws) the model is fitted again without
    the bag. An approximation is fitted again without each bag: weights would take from q what the
    bag had given, had q been exact.

    Parameters
    ----------
    models : dict of Model or callable
        By the names that they have in the table. A function of training bags, which returns a
        `Model` or a `Prepared`, is called again for each fold, and for all bags but one: kernels,
        scores and scaling that it learns see no held-out bag.
    bags : Bags
        With labels, or targets.
    seed : int or JAX key
        Of fits and folds.
    by : {"loo", "cross_validation", "elbo"}
        What chooses.
    criteria : tuple of str
        What stands in the table; ``by`` among them.
    engine : callable
        (model, bags, seed=…) → `Posterior`.
    num_folds : int
        Of cross-validation.
    progress : bool
        Whether to draw a bar.
    **options
        Of the engine.

    Returns
    -------
    Selection

    Raises
    ------
    ValueError
        If there is no model, a criterion is unknown, a fit failed, bags are without labels, the
        bound is to choose where there is none, or a part of a model may have been learned from the
        labels of held-out bags.
    NotImplementedError
        If a model has no likelihood of labels or targets; its ``leave_one_out_note`` says so.

    References
    ----------
    Vehtari, Gelman and Gabry (2017), practical Bayesian model evaluation by leave-one-out.

    Examples
    --------
    A kernel that decays within 0.1 learns nothing for other bags:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import select
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> points = np.array([[0.0], [3.0]])
    >>> models = {
    ...     f"length scale {scale}": VWSGP(RBF(9.0, scale), points) for scale in (0.1, 1.0)
    ... }
    >>> selection = select(models, bags, seed=0, criteria=("loo",), engine=laplace)
    >>> selection.chosen
    'length scale 1.0'
    >>> selection.table[["loo", "chosen_by"]].round(1)
                      loo chosen_by
    model
    length scale 1.0 -1.8       loo
    length scale 0.1 -2.7
    """
    _check(models, by, criteria)
    key = random_key(seed)
    trials = [
        _Trial(name, model, partial(engine, **options), bags, key) for name, model in models.items()
    ]
    for trial in trials:
        trial.check(criteria)
    with Progress("models", len(models), shown=progress) as bar:
        found = {}
        for trial in trials:
            found[trial.name] = trial.judged(criteria, num_folds)
            bar.advance(1)
    without = [name for name, one in found.items() if np.isnan(one.elbo)]
    if by == "elbo" and without:
        raise ValueError(
            f"no bound on the evidence is known for {', '.join(map(repr, without))}, so that it "
            "cannot choose; expected an engine with a bound and the logistic ψ, or another "
            "criterion: loo, cross_validation"
        )
    return Selection(
        by=by,
        elpd={
            criterion: {name: one.elpd[criterion] for name, one in found.items()}
            for criterion in _PREDICTIVE
            if criterion in criteria
        },
        elbo={name: one.elbo for name, one in found.items()},
        num_refitted={name: one.num_refitted for name, one in found.items()},
    )


def _check(models: Mapping[str, Any], by: str, criteria: tuple[str, ...]) -> None:
    if not models:
        raise ValueError("models is empty; expected at least one, by name")
    for criterion in (by, *criteria):
        if criterion not in CRITERIA:
            raise ValueError(
                f"criterion {criterion!r} is unknown; expected some of {', '.join(CRITERIA)}"
            )
    if by not in criteria:
        raise ValueError(f"by is {by!r}, which is not among criteria={criteria}; add it")


@dataclass(frozen=True)
class _Judged:
    """The criteria of one model."""

    elpd: dict[str, Float[np.ndarray, " B"]]
    elbo: float
    num_refitted: int


@dataclass(frozen=True)
class _Trial:
    """One model or the recipe for it, with the bags and the engine that fit it."""

    name: str
    model: Model | Recipe
    fit: Fit
    bags: Bags
    key: Array

    def check(self, criteria: tuple[str, ...]) -> None:
        """Refuse a model whose held-out predictions would not be what they seem."""
        if not isinstance(self.model, Model):
            return
        observations(self.model, self.bags, "select")
        if self.model.leave_one_out_note:
            raise NotImplementedError(self.model.leave_one_out_note)
        if self.model.learned_from_labels and set(criteria) & set(_PREDICTIVE):
            raise ValueError(
                f"model {self.name!r} was given with {self.model.learned_from_labels}: held-out "
                "bags would predict their own labels; give a function of training bags that makes "
                "it, which select calls for each fold"
            )

    def judged(self, criteria: tuple[str, ...], num_folds: int) -> _Judged:
        whole, _ = self._fitted(self.bags)
        elpd, num_refitted = {}, 0
        if "loo" in criteria:
            elpd["loo"], num_refitted = self._leave_one_out(whole)
        if "cross_validation" in criteria:
            elpd["cross_validation"] = self._cross_validated(num_folds)
        bound = whole.elbo if whole.model.is_normalised else None
        elbo = float("nan") if bound is None else float(bound[-1])
        return _Judged(elpd, elbo, num_refitted)

    def _leave_one_out(self, whole: Posterior) -> tuple[Float[np.ndarray, " B"], int]:
        """Leave-one-out predictions by a sampler's weights, and by refits where these are bad."""
        if not (whole.is_mcmc and isinstance(self.model, Model)):
            every = range(self.bags.num_bags)
            return np.array([self._without(bag) for bag in every]), self.bags.num_bags
        with warnings.catch_warnings():  # what they warn of is done here
            warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto", UserWarning)
            found: Any = az.loo(whole.tree_with_log_likelihood(), pointwise=True)
        elpd, khat = np.array(found.elpd_i, dtype=float), np.asarray(found.pareto_k)
        # A k̂ that is no number is of weights that say nothing.
        bad = np.flatnonzero(~(khat <= found.good_k))
        for bag in bad:
            elpd[bag] = self._without(int(bag))
        return elpd, len(bad)

    def _cross_validated(self, num_folds: int) -> Float[np.ndarray, " B"]:
        """Predictions of held-out folds, the same folds for all models."""
        fold_seed = int(jax.random.randint(self.key, (), 0, 2**31 - 1))
        pairs = self.bags.folds(num_folds, seed=fold_seed)
        return np.concatenate([self._held_out(train, test) for train, test in pairs])

    def _without(self, bag: int) -> float:
        """log p(label of a bag | all other bags), by a fit to these."""
        left_out = np.arange(self.bags.num_bags) == bag
        return float(self._held_out(self.bags.select(~left_out), self.bags.select(left_out))[0])

    def _held_out(self, train: Bags, test: Bags) -> Float[np.ndarray, " L"]:
        """log p(label | training bags) of test bags."""
        posterior, prepare = self._fitted(train)
        return -bag_log_loss(posterior.predict(prepare(test.without_labels())), test)

    def _fitted(self, bags: Bags) -> tuple[Posterior, Callable[[Bags], Bags]]:
        """A fit to training bags, and how other bags are prepared for it."""
        made = self.model if isinstance(self.model, Model) else self.model(bags)
        if not isinstance(made, Prepared):
            made = Prepared(made, bags)
        posterior = self.fit(made.model, made.bags, seed=self.key)
        if posterior.status.kind == "failed":
            raise ValueError(
                f"{posterior.engine} failed on model {self.name!r} ({posterior.status.sentence}); "
                "leave the model out, or choose another engine"
            )
        return posterior, made.prepare
