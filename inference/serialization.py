"""Models and approximations as JSON, exactly, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpyro.distributions as dist

from .. import models
from ..models.parts.scale_mixtures import ScaleMixture

__all__ = ["decode", "encode", "register"]

_CLASSES: dict[str, type] = {name: getattr(models, name) for name in models.__all__}


def register[T: type](cls: T) -> T:
    """Make a frozen dataclass known to ``decode``; a class decorator."""
    _CLASSES[cls.__name__] = cls
    return cls


def encode(value: Any) -> Any:
    """Turn a frozen dataclass of numbers, arrays and NumPyro distributions into JSON's types.

    Floats keep every digit: JSON prints the shortest string that reads back the same.

    Parameters
    ----------
    value : object

    Returns
    -------
    object
        Of dicts, lists, strings and numbers.

    Raises
    ------
    ValueError
        If the value holds a function.

    Examples
    --------
    >>> decode(encode(models.GammaMixing(0.5, 2.5)))
    GammaMixing(alpha=0.5, beta=2.5)
    """
    if isinstance(value, ScaleMixture):
        raise ValueError(
            "mixing is a ScaleMixture made from a function, which no file can hold; save the "
            "draws with posterior.tree.to_netcdf, or use PolyaGammaMixing or GammaMixing"
        )
    if isinstance(value, dist.Distribution):
        return _encode_distribution(value)
    if is_dataclass(value) and not isinstance(value, type) and type(value).__name__ in _CLASSES:
        content = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {"class": type(value).__name__, "fields": content}
    if callable(value):
        raise ValueError(
            f"a potential is {value!r}, a function of your own, which no file can hold; save the "
            "draws with posterior.tree.to_netcdf, or use NormalCardinality, MajorityCardinality or "
            "AtLeastOne"
        )
    if isinstance(value, np.ndarray) or hasattr(value, "__jax_array__") or hasattr(value, "dtype"):
        array = np.asarray(value)
        return {"array": array.tolist(), "dtype": str(array.dtype), "shape": list(array.shape)}
    return value


def _encode_distribution(prior: dist.Distribution) -> dict[str, Any]:
    parameters = {name: getattr(prior, name) for name in prior.arg_constraints}
    try:
        rebuilt = type(prior)(**parameters).shape() == prior.shape()
    except TypeError:
        rebuilt = False
    if not rebuilt:
        raise ValueError(
            f"a prior is a {type(prior).__name__}, of which {sorted(parameters)} do not tell all, "
            "so no file can hold it; save the draws with posterior.tree.to_netcdf, or use a plain "
            "NumPyro distribution such as LogNormal or Gamma"
        )
    encoded = {name: encode(parameter) for name, parameter in parameters.items()}
    return {"distribution": type(prior).__name__, "parameters": encoded}


def decode(value: Any) -> Any:
    """Decode a value that ``encode`` has encoded.

    Parameters
    ----------
    value : object

    Returns
    -------
    object

    Raises
    ------
    ValueError
        If a class is not known to this version of the package.
    """
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.array(value["array"], dtype=value["dtype"]).reshape(value["shape"])
    if "distribution" in value:
        parameters = {name: decode(item) for name, item in value["parameters"].items()}
        return getattr(dist, value["distribution"])(**parameters)
    if value["class"] not in _CLASSES:
        raise ValueError(
            f"file holds a {value['class']}, which this version of milzoo does not know; "
            f"expected one of {', '.join(sorted(_CLASSES))}"
        )
    content = {name: decode(item) for name, item in value["fields"].items()}
    return _CLASSES[value["class"]](**content)
