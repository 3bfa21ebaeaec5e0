"""Any model with any engine as an estimator of scikit-learn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from ..datasets.arguments import checked_seed, known_or_nearest, look_up
from ..datasets.bags import Bags
from ..inference import ENGINES
from ..inference.posterior import Posterior
from ..inference.prediction import Prediction, TargetPrediction
from ..models.model import Model, part_of_bags
from ..models.registry import models_by_name, settable
from .contract import (
    BagRegressor,
    ProbabilisticBagClassifier,
    ScoresInstances,
    two_columns,
)

__all__ = ["BayesianMIL", "BayesianMILRegressor"]

type Engine = Callable[..., Posterior]

_NESTED = ("model", "engine")


class _FitsPosterior:
    """A model, an engine and their settings as parameters, and the posterior that they give."""

    model: Any
    engine: str | Engine
    seed: int
    posterior_: Posterior

    def __init__(self, model: Any, engine: str | Engine, *, seed: int, **settings: Any) -> None:
        self.model = model
        self.engine = engine
        self.seed = seed
        self._settings = settings
        self._check_names(settings)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, with the settings of the model and of the engine that are given.

        Parameters
        ----------
        deep : bool
            Without effect: the settings are parameters of the estimator itself.

        Returns
        -------
        dict
        """
        own = {"model": self.model, "engine": self.engine, "seed": self.seed}
        return own | self._settings

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name: ``model__variance``, ``engine__max_steps``, ``seed``.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a name is unknown, with the nearest one.
        """
        own = {name: params.pop(name) for name in ("model", "engine", "seed") if name in params}
        for name, value in own.items():
            setattr(self, name, value)
        self._settings = self._settings | params
        self._check_names(params)
        return self

    def _check_names(self, settings: Iterable[str]) -> None:
        """Refuse settings that neither the model nor the engine has."""
        for name in settings:
            owner, _, setting = name.partition("__")
            if owner not in _NESTED or not setting:
                nested = {"model": _settings_of(self.model), "engine": _options_of(self.engine)}
                known = [f"{one}__{of}" for one in _NESTED for of in nested[one] or ["…"]]
                hint = known_or_nearest(name, known)
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; {hint}")
            known = _settings_of(self.model) if owner == "model" else _options_of(self.engine)
            if known is not None and setting not in known:
                raise ValueError(
                    f"{type(self).__name__}: the {owner} {_shown(getattr(self, owner))} has no "
                    f"setting {setting!r}; {known_or_nearest(setting, known)}"
                )

    def _given(self, owner: str) -> dict[str, Any]:
        """Settings of the model or options of the engine, without the prefix."""
        prefix = f"{owner}__"
        return {
            name.removeprefix(prefix): value
            for name, value in self._settings.items()
            if name.startswith(prefix)
        }

    def _posterior(self, bags: Bags, part: str) -> Posterior:
        """Make the model for the bags, and fit it.

        Raises
        ------
        ValueError
            If the model learns from another part of the bags.
        """
        model = self._model_for(bags)
        if part_of_bags(model) != part:
            raise ValueError(
                f"{type(self).__name__}: {type(model).__name__} with these settings learns from "
                f"{part_of_bags(model)} of bags; use "
                + ("BayesianMILRegressor" if part == "labels" else "BayesianMIL")
            )
        return _engine(self.engine)(model, bags, seed=self.seed, **self._given("engine"))

    def _model_for(self, bags: Bags) -> Model:
        made_by, settings = _model(self.model), self._given("model")
        if isinstance(made_by, type):
            return made_by.for_bags(bags, seed=checked_seed(self.seed), **settings)
        if _is_ready(made_by):
            return replace(made_by, **settings)
        return made_by(bags, seed=checked_seed(self.seed), **settings)


class BayesianMIL(_FitsPosterior, ScoresInstances, ProbabilisticBagClassifier):
    """Classify bags by the posterior of a model: P(T* = 1) of each bag, P(y* = 1) of each instance.

    Parameters
    ----------
    model : type, str, Model or callable
        A class such as `VWSGP`, or its short name, which ``for_bags`` makes a model of for the
        training bags; a ready model, which stays as it is; or a function of training bags and
        ``seed``.
    engine : str or callable
        Such as ``"coordinate_ascent"``, or the function.
    seed : int
        Of the model's choices and of the engine.
    **settings
        ``model__variance=0.5`` is a setting of the model, ``engine__max_steps=50`` an option of the
        engine; so they are called in a search too.

    Attributes
    ----------
    posterior_ : Posterior
        With the model that was made, ``posterior_.model``.
    classes_ : array (2,)
    n_features_in_ : int

    Raises
    ------
    ValueError
        If a name of a setting is unknown.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import BayesianMIL
    >>> training, test = load("digits").split(0.7, seed=0)
    >>> training, test = training.standardize(), test.standardize(training)
    >>> classifier = BayesianMIL("vgpmil", "coordinate_ascent", seed=0, model__num_inducing=50)
    >>> classifier.fit(training).predict_proba(test[4:8])[:, 1].round(2).tolist()
    [0.67, 0.84, 0.22, 0.18]
    >>> test.labels[4:8].tolist()
    [1, 1, 0, 1]
    >>> round(classifier.score(test), 2)
    0.9
    """

    def predict_instances_proba(self, bags: Bags) -> Float[np.ndarray, "N 2"]:
        """Probabilities that each instance is negative and positive, as the model defines it.

        Parameters
        ----------
        bags : Bags
            Their labels are not used.

        Returns
        -------
        array (N, 2)
        """
        return two_columns(self._prediction(self._unlabelled(bags)).instance_probability)

    def _fit(self, bags: Bags) -> None:
        self.posterior_ = self._posterior(bags, "labels")

    def _probability(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return self._prediction(bags).bag_probability

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        """Log odds, of a predictive without rounding to a probability first."""
        return self._prediction(bags).bag_log_odds

    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        return self._prediction(bags).instance_log_odds

    def _prediction(self, bags: Bags) -> Prediction:
        predicted = self.posterior_.predict(bags)
        assert isinstance(predicted, Prediction)
        return predicted


class BayesianMILRegressor(_FitsPosterior, BagRegressor):
    """Predict the target of a bag by the posterior of a model of targets.

    Parameters
    ----------
    model, engine, seed, **settings
        As those of `BayesianMIL`; of a model that learns from targets, such as `VWSGP` with
        ``model__likelihood=Gaussian(0.1)``.

    Attributes
    ----------
    posterior_ : Posterior
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators import BayesianMILRegressor
    >>> from milzoo.models import Gaussian
    >>> bags = load("digits").standardize()
    >>> bags = bags.with_targets(np.add.reduceat(bags.instance_labels, bags.starts))
    >>> training, test = bags.split(0.7, seed=0)
    >>> settings = {"model__likelihood": Gaussian(0.5), "model__num_inducing": 50}
    >>> regressor = BayesianMILRegressor("vwsgp", "coordinate_ascent", seed=0, **settings)
    >>> round(regressor.fit(training).score(test), 2)  # R² of how many 2s and 9s there are
    0.51
    """

    def predict_interval(self, bags: Bags, mass: float = 0.9) -> Float[np.ndarray, "2 B"]:
        """Equal-tailed interval of each bag's predictive distribution, lower and upper end.

        Parameters
        ----------
        bags : Bags
            Their targets are not used.
        mass : float
            Its probability.

        Returns
        -------
        array (2, B)
        """
        return self._prediction(self._unlabelled(bags)).bag_interval(mass)

    def predict_instances(self, bags: Bags) -> Float[np.ndarray, " N"]:
        """What each instance adds to the target of its bag, the posterior mean.

        Parameters
        ----------
        bags : Bags

        Returns
        -------
        array (N,)
        """
        return self._prediction(self._unlabelled(bags)).instance_contribution

    def _fit(self, bags: Bags) -> None:
        self.posterior_ = self._posterior(bags, "targets")

    def _predict(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return self._prediction(bags).bag_target

    def _prediction(self, bags: Bags) -> TargetPrediction:
        predicted = self.posterior_.predict(bags)
        assert isinstance(predicted, TargetPrediction)
        return predicted


def _model(model: Any) -> Any:
    """A model's class by its short name; what is no name stays."""
    return look_up("model", model, models_by_name()) if isinstance(model, str) else model


def _engine(engine: str | Engine) -> Engine:
    """An engine by its name; what is no name stays."""
    return look_up("engine", engine, ENGINES) if isinstance(engine, str) else engine


def _is_ready(model: Any) -> bool:
    return is_dataclass(model) and not isinstance(model, type) and hasattr(model, "marginal")


def _settings_of(model: Any) -> list[str] | None:
    """Names of the settings of a model; None where a function makes it, or it is none."""
    made_by = models_by_name().get(model) if isinstance(model, str) else model
    if isinstance(made_by, type) and hasattr(made_by, "for_bags"):
        return list(settable(made_by))
    if made_by is None or not _is_ready(made_by):
        return None
    return [one.name for one in fields(made_by)]


def _options_of(engine: str | Engine) -> list[str] | None:
    """Names of the options of an engine; None where it takes any, or is none."""
    function = ENGINES.get(engine) if isinstance(engine, str) else engine
    if not callable(function):
        return None
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return [one.name for one in parameters if one.name not in ("model", "bags", "seed")]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
