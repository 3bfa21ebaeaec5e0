"""The command ``milzoo compare``: parse its arguments, fit every engine, compare."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..datasets import Bags, image_shape, kernel_pca, load
from ..datasets.arguments import known_or_nearest, look_up
from ..diagnostics import Comparison, prior_predictive
from ..diagnostics import compare as compare_posteriors
from ..inference import ENGINES, Posterior
from ..models.model import part_of_bags
from ..models.registry import models_by_name, settable
from .printing import Display

__all__ = [
    "Plan",
    "images_of_test_bags",
    "run",
]

_TRAINING_SHARE = 0.7
# Where the defaults of an engine leave the chains too short to judge others by.
_ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    "gibbs": {"num_warmup": 100, "num_samples": 2000, "thin": 8}
}


@dataclass(frozen=True)
class Plan:
    """The parsed arguments of a comparison, checked before anything is computed.

    Attributes
    ----------
    model : type
        With a constructor ``for_bags``.
    data : str
    engines : dict of callables
        By name.
    settings : dict
        Keyword arguments of ``for_bags``.
    seed : int
    kernel_pca : int or None
        Components that the features are reduced to.
    skips_refusals : bool
        Whether an engine that cannot fit the model is left out.
    """

    model: type
    data: str
    engines: dict[str, Callable[..., Posterior]]
    settings: dict[str, Any]
    seed: int
    kernel_pca: int | None = None
    skips_refusals: bool = False

    @property
    def protocol(self) -> str:
        """Describe how the data are split and prepared."""
        reduced = f", then {self.kernel_pca} kernel principal components" if self.kernel_pca else ""
        return (
            f"{_TRAINING_SHARE:.0%} of the bags of {self.data} to train on, standardised by them"
            f"{reduced}, seed {self.seed}"
        )

    @classmethod
    def read(
        cls,
        model: str,
        data: str,
        engines: list[str] | None,
        settings: list[str],
        *,
        seed: int,
        kernel_pca: int | None = None,
    ) -> Plan:
        """Look up every name.

        Parameters
        ----------
        model, data : str
        engines : list of str or None
            None for the usual ones of the model, those left out that refuse its settings.
        settings : list of str
            ``NAME=VALUE`` each.
        seed : int
        kernel_pca : int or None
            Components that the features are reduced to.

        Returns
        -------
        Plan

        Raises
        ------
        ValueError
            If a name is unknown (with the nearest known one) or a value is no number.
        """
        chosen = look_up("model", model, models_by_name())
        skips_refusals = engines is None
        engines = list(chosen.usual_engines) if engines is None else engines
        if not engines:
            raise ValueError(f"no engines; expected some of {', '.join(ENGINES)}")
        return cls(
            model=chosen,
            data=data,
            engines={name: look_up("engine", name, ENGINES) for name in engines},
            settings=dict(_setting(chosen, text) for text in settings),
            seed=seed,
            kernel_pca=kernel_pca,
            skips_refusals=skips_refusals,
        )


def run(plan: Plan, display: Display) -> Comparison:
    """Split, standardise, fit, compare.

    Parameters
    ----------
    plan : Plan
    display : Display
        Told what goes on.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If the model is to learn from targets and the data have labels only.
    """
    bags = load(plan.data)
    training, test = bags.split(_TRAINING_SHARE, seed=plan.seed)
    training, test = training.standardize(), test.standardize(training)
    if plan.kernel_pca is not None:
        training, test = kernel_pca(training, test, num_components=plan.kernel_pca)
    model = plan.model.for_bags(training, seed=plan.seed, **plan.settings)
    _check_targets(plan, model, bags)
    display.say(f"{model!r}")
    display.say(f"{training.num_bags} bags to train on, {test.num_bags} to test on")
    for sentence in _expected(model, training, plan.seed):
        display.say(sentence)
    posteriors = {}
    for name, engine in plan.engines.items():
        try:
            posteriors[name] = _fit(name, engine, model, training, plan.seed, display)
        except (ValueError, NotImplementedError) as error:
            if not plan.skips_refusals or name == plan.model.usual_engines[0]:
                raise
            display.say(f"{name} is left out: {error}")
    for name in _preferred_sampler(posteriors):
        for word, companion in model.companions.items():
            title, engine = f"{name} ({word})", plan.engines[name]
            posteriors[title] = _fit(title, engine, companion, training, plan.seed, display)
    return compare_posteriors(posteriors, test=test, seed=plan.seed)


def images_of_test_bags(plan: Plan) -> dict[str, Any]:
    """Images of test instances, before they are standardised, for `Comparison.save_report`."""
    shape = image_shape(plan.data)
    if shape is None:
        return {}
    _, test = load(plan.data).split(_TRAINING_SHARE, seed=plan.seed)
    return {"image_shape": shape, "images": np.asarray(test.instances)}


def _check_targets(plan: Plan, model: Any, bags: Bags) -> None:
    """Refuse data without targets, in words for the command line."""
    if part_of_bags(model) == "targets" and bags.targets is None:
        settings = ", ".join(f"{name}={value}" for name, value in plan.settings.items())
        raise ValueError(
            f"{model.name} with {settings} learns from a number for each bag, and the bags of "
            f"{plan.data} have labels only; use other settings, data of your own with a column "
            "bag_target, or bags.with_targets in Python"
        )


def _expected(model: Any, training: Bags, seed: int) -> list[str]:
    """What the prior expects of the training bags, where it can be drawn from."""
    try:
        return prior_predictive(model, training, seed=seed).sentences
    except NotImplementedError:
        return []


def _preferred_sampler(posteriors: dict[str, Posterior]) -> list[str]:
    """``nuts``, or else the first sampler, or none."""
    samplers = [name for name, posterior in posteriors.items() if posterior.is_mcmc]
    return sorted(samplers, key=lambda name: name != "nuts")[:1]


def _fit(
    name: str,
    engine: Callable[..., Posterior],
    model: Any,
    training: Bags,
    seed: int,
    display: Display,
) -> Posterior:
    """Run one engine and show its times and warnings."""
    options = _ENGINE_OPTIONS.get(engine.__name__, {}) | {"progress": display.progress}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = engine(model, training, seed=seed, **options)
    display.say(
        f"{name}: {posterior.seconds:.1f} s, and {posterior.compile_seconds:.1f} s to compile"
    )
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        display.say(f"{name} warns: {text}")
    return posterior


def _setting(model: Any, text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` as a keyword argument of ``model.for_bags``."""
    name, separator, value = text.partition("=")
    name = name.strip()
    if not separator:
        raise ValueError(f"--set {text!r} has no '='; expected NAME=VALUE, as in num_inducing=50")
    whole = settable(model)
    if name not in whole:
        raise ValueError(
            f"unknown setting {name!r} of {model.name}; {known_or_nearest(name, whole)}"
        )
    value = value.strip()
    if name not in model.settings:
        return name, _number(name, value, whole=whole[name])
    try:
        return name, model.settings[name](value)
    except ValueError as error:
        raise ValueError(f"setting {name} is {value!r}; {error}") from error


def _number(name: str, value: str, *, whole: bool) -> float | int:
    try:
        return int(value) if whole else float(value)
    except ValueError as error:
        expected = "a whole number" if whole else "a number"
        raise ValueError(f"setting {name} is {value!r}; expected {expected}") from error
