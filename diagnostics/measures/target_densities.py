"""The target density of a posterior: its model, described by the differences from other models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import jax
import numpy as np
from numpyro.distributions import Distribution

from ...models.model import Model
from ...models.numerics.representation import call, call_of_distribution
from ...models.parts.likelihoods import Likelihood

__all__ = ["in_words", "is_logistic", "is_same_model", "target_densities"]


def target_densities(models: dict[str, Model]) -> dict[str, str]:
    """Describe each model by its differences from the others, or from the logistic model.

    Parameters
    ----------
    models : dict of Model
        Dataclasses of one class.

    Returns
    -------
    dict of str
        Such as ``logistic``, ``probit`` or ``GammaScaleMixture(alpha=1.0, beta=2.5),
        variance=4.0``; empty strings where all models are alike, and normalised.
    """
    described = {name: _parts(model) for name, model in models.items()}
    # One without a normalised density may have no posterior at all, which readers must be told.
    needs_observation = not all(model.is_normalised for model in models.values())

    def is_named(part: str) -> bool:
        differs = len({words.get(part) for words in described.values()}) > 1
        return differs or (needs_observation and part == _OBSERVATION)

    parts = dict.fromkeys(part for words in described.values() for part in words)
    named = [part for part in parts if is_named(part)]
    return {
        name: ", ".join(words[part] for part in named if part in words)
        for name, words in described.items()
    }


def is_logistic(model: Model) -> bool:
    """Whether labels depend on the latent function by the logistic one."""
    return model.observation == "logistic"


def is_same_model(one: Model, other: Model) -> bool:
    """Whether nothing but values of hyper-parameters, or priors of them, may set the two apart."""
    return _without_hyperparameters(one) == _without_hyperparameters(other)


def _without_hyperparameters(model: Model) -> dict[str, str]:
    described = _parts(model).items()
    return {part: words for part, words in described if part not in model.hyperparameters}


_OBSERVATION = "observation"


def _parts(model: Model) -> dict[str, str]:
    """Each field that makes the model what it is, in words; the observation model first."""
    words = {_OBSERVATION: _said(model.observation)}
    for name, value in _fields(model):
        if name in model.observation_fields:
            words |= _parts_of_likelihood(value) if isinstance(value, Likelihood) else {}
            continue
        if value is None or isinstance(value, np.ndarray):
            continue
        if is_dataclass(value):
            words[name] = type(value).__name__
            words |= {inner: f"{inner}={in_words(v)}" for inner, v in _fields(value)}
        else:
            words[name] = f"{name}={in_words(value)}"
    return words


def _said(observation: object) -> str:
    return observation if isinstance(observation, str) else in_words(observation)


def _parts_of_likelihood(likelihood: Likelihood) -> dict[str, str]:
    """Fields that are hyper-parameters by the names of their sites."""
    marks = {site: object() for site in likelihood.hyperparameters}
    marked = likelihood.with_values(marks)
    site_of = {
        name: site
        for name, value in _fields(marked)
        for site, mark in marks.items()
        if value is mark
    }
    named = ((site_of.get(name, name), value) for name, value in _fields(likelihood))
    return {name: f"{name}={in_words(value)}" for name, value in named}


def _fields(value: object) -> Iterator[tuple[str, object]]:
    if is_dataclass(value):
        yield from ((entry.name, getattr(value, entry.name)) for entry in fields(value))


def in_words(value: object) -> str:
    """Describe a model, or a part of it, as a constructor call without its arrays.

    Numbers have six digits: no sampler runs for long enough to see a smaller difference.

    Examples
    --------
    >>> from numpyro.distributions import LogNormal
    >>> from milzoo.diagnostics.measures.target_densities import in_words
    >>> in_words(LogNormal(0, 1 / 3)), in_words(100)
    ('LogNormal(loc=0.0, scale=0.333333)', '100.0')
    """
    if isinstance(value, Distribution):
        return call_of_distribution(value, in_words)
    if is_dataclass(value):
        shown = [(n, v) for n, v in _fields(value) if not isinstance(v, np.ndarray)]
        return call(value, [f"{name}={in_words(inner)}" for name, inner in shown])
    if isinstance(value, int | float | np.number | jax.Array) and np.ndim(value) == 0:
        return repr(float(f"{float(value):.6g}"))
    return repr(value)
