"""What a posterior is about: its model, in what sets it apart from the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from inspect import signature

import jax
import numpy as np
from numpyro.distributions import Distribution, TransformedDistribution
from numpyro.distributions.transforms import Transform

from ..models.likelihoods import Likelihood, Logistic
from ..models.model import Model
from ..models.scale_mixtures import PolyaGammaMixing

__all__ = ["in_words", "is_logistic", "is_same_model", "targets"]


def targets(models: dict[str, Model]) -> dict[str, str]:
    """What sets each model apart from the others, or their ψ from the logistic one.

    Parameters
    ----------
    models : dict of Model
        Dataclasses of one class.

    Returns
    -------
    dict of str
        Such as ``logistic``, ``probit`` or ``GammaMixing(alpha=1.0, beta=2.5), variance=4.0``;
        empty strings where all models are alike, and no other ψ than the logistic one in them.
    """
    described = {name: _parts(model) for name, model in models.items()}
    # Another ψ may have no posterior at all, which readers must be told; another likelihood has.
    needs_kind = not all(map(has_logistic_mixing, models.values()))

    def is_named(part: str) -> bool:
        differs = len({words.get(part) for words in described.values()}) > 1
        return differs or (needs_kind and part == _KIND)

    parts = dict.fromkeys(part for words in described.values() for part in words)
    named = [part for part in parts if is_named(part)]
    return {
        name: ", ".join(words[part] for part in named if part in words)
        for name, words in described.items()
    }


def is_logistic(model: Model) -> bool:
    """Whether labels come of the evidence by the logistic function, not another ψ or likelihood."""
    return has_logistic_mixing(model) and isinstance(_likelihood_of(model), Logistic)


def is_same_model(one: Model, other: Model) -> bool:
    """Whether nothing but values of hyper-parameters, or priors of them, may set the two apart."""
    return _without_hyperparameters(one) == _without_hyperparameters(other)


def has_logistic_mixing(model: Model) -> bool:
    """Whether ψ is the logistic one: with another the density is known up to a constant only."""
    return isinstance(_mixing_of(model), PolyaGammaMixing)


def _mixing_of(model: Model) -> object:
    """ψ of a model; the logistic function's where it has no other."""
    return getattr(model, "mixing", PolyaGammaMixing())


def _likelihood_of(model: Model) -> Likelihood:
    """What labels or targets are given the evidence; a model without a choice has labels."""
    return getattr(model, "likelihood", Logistic())


def _without_hyperparameters(model: Model) -> dict[str, str]:
    hyperparameters = getattr(model, "hyperparameters", {})
    return {part: words for part, words in _parts(model).items() if part not in hyperparameters}


# The part of a model that is its ψ and its likelihood.
_KIND = "kind"


def _parts(model: Model) -> dict[str, str]:
    """Each field that makes the model what it is, in words; ψ or the likelihood first."""
    words = {_KIND: _kind(model)}
    for name, value in _fields(model):
        if name == "likelihood":
            words |= _parts_of_likelihood(_likelihood_of(model))
        if name in ("mixing", "likelihood") or value is None or isinstance(value, np.ndarray):
            continue
        if is_dataclass(value):
            words[name] = type(value).__name__
            words |= {inner: f"{inner}={in_words(v)}" for inner, v in _fields(value)}
        else:
            words[name] = f"{name}={in_words(value)}"
    return words


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


def _kind(model: Model) -> str:
    return _likelihood_of(model).name if has_logistic_mixing(model) else in_words(_mixing_of(model))


def _fields(value: object) -> Iterator[tuple[str, object]]:
    if is_dataclass(value):
        yield from ((entry.name, getattr(value, entry.name)) for entry in fields(value))


def in_words(value: object) -> str:
    """A model, or a part of it, as it would be written down; arrays of its fields left out.

    Numbers have six digits: no sampler runs for long enough to see a smaller difference.

    Examples
    --------
    >>> from numpyro.distributions import LogNormal
    >>> in_words(LogNormal(0, 1 / 3)), in_words(100)
    ('LogNormal(loc=0.0, scale=0.333333)', '100.0')
    """
    if isinstance(value, Distribution):
        return _call(value, _made_from(value))
    if is_dataclass(value):
        shown = [(n, v) for n, v in _fields(value) if not isinstance(v, np.ndarray)]
        return _call(value, [f"{name}={in_words(inner)}" for name, inner in shown])
    if isinstance(value, int | float | np.number | jax.Array) and np.ndim(value) == 0:
        return repr(float(f"{float(value):.6g}"))
    return repr(value)


def _made_from(law: Distribution) -> list[str]:
    """The arguments of a law."""
    if type(law) is TransformedDistribution:  # it keeps them under other names
        steps = law.transforms
        return [in_words(law.base_dist), *(_call(step, _numbers(step)) for step in steps)]
    names = [name for name in signature(type(law)).parameters if name != "validate_args"]
    return [f"{name}={in_words(getattr(law, name))}" for name in names]


def _numbers(transform: Transform) -> list[str]:
    return [in_words(leaf) for leaf in jax.tree.leaves(transform)]


def _call(value: object, arguments: list[str]) -> str:
    return f"{type(value).__name__}({', '.join(arguments)})"
