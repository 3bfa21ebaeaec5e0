"""Models and approximations as JSON, exactly, and back; files that know when they are damaged.

A file of a posterior is an HDF5 file, as NetCDF libraries read it, and a last line with its format
and the SHA-256 digest of all before. The digest is compared before HDF5 sees a byte. What has a
right digest may still be written by a stranger: only known classes are made from it, by their
constructors, and links, filters and sizes that this package does not write are refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpyro.distributions as dist
import xarray as xr

from .. import models
from ..datasets.writing import written_whole
from ..models.numerics.fields import wrong_type
from ..models.parts.cardinality_kernel import BagKernel
from ..models.parts.hyperpriors import component_distributions
from ..models.parts.kernels import Kernel
from ..models.parts.scale_mixtures import ScaleMixture
from ..models.parts.tinygp_kernel import TinyGPKernel

__all__ = ["FORMAT", "decode", "encode", "read_tree", "refused", "register", "write_tree"]

# Of the files: 1 had no digest, and 2 the names of classes and sites before 1.0.
FORMAT = 3

_CLASSES: dict[str, Any] = {
    name: cls for name in models.__all__ if is_dataclass(cls := getattr(models, name))
}
_PLAIN = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|bfloat16")
_LAST_LINE = "\nmilzoo posterior, format {}, sha256 {}\n"
_LONGEST_LAST_LINE = 200
_AT_ONCE = 2**24  # bytes


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
    >>> from milzoo import models
    >>> from milzoo.inference.serialization import decode, encode
    >>> decode(encode(models.GammaScaleMixture(0.5, 2.5)))
    GammaScaleMixture(alpha=0.5, beta=2.5)
    """
    if isinstance(value, ScaleMixture):
        raise ValueError(
            "scale_mixture is a ScaleMixture made from a function, which no file can hold; save "
            "the draws with posterior.tree.to_netcdf, or use PolyaGammaScaleMixture or "
            "GammaScaleMixture"
        )
    if isinstance(value, TinyGPKernel):
        raise ValueError(
            "kernel is a TinyGPKernel, made from tinygp's classes or a function, which no file can "
            "hold; save the draws with posterior.tree.to_netcdf, or use a kernel such as RBF"
        )
    if isinstance(value, Kernel | BagKernel) and type(value).__name__ not in _CLASSES:
        raise ValueError(
            f"kernel is a {type(value).__name__}, a class that no file can name; tell it by "
            "milzoo.inference.serialization.register"
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
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"by_name": {str(name): encode(item) for name, item in value.items()}}
    return value


def _encode_distribution(prior: dist.Distribution) -> dict[str, Any]:
    if isinstance(prior, dist.Independent):
        components = encode(component_distributions(prior))
        given = {"base_dist": components, "reinterpreted_batch_ndims": 1}
        return {"distribution": "Independent", "parameters": given}
    parameters = {name: getattr(prior, name) for name in prior.arg_constraints}
    try:
        rebuilt = type(prior)(**parameters).shape() == prior.shape()
    except TypeError:
        rebuilt = False
    if not rebuilt:
        raise ValueError(
            f"a prior is a {type(prior).__name__}; {sorted(parameters)} do not describe it fully, "
            "so no file can hold it; save the draws with posterior.tree.to_netcdf, or use a plain "
            "NumPyro distribution such as LogNormal or Gamma"
        )
    encoded = {name: encode(parameter) for name, parameter in parameters.items()}
    return {"distribution": type(prior).__name__, "parameters": encoded}


def decode(value: Any) -> Any:
    """Decode a value that ``encode`` has encoded.

    Only registered dataclasses, distributions of NumPyro and arrays of numbers are made.

    Parameters
    ----------
    value : object

    Returns
    -------
    object

    Raises
    ------
    ValueError
        If a class is not known to this version of the package, or its constructor refuses what it
        is given; if an array is of something else than numbers.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"array": content, "dtype": dtype, "shape": shape, **others} if not others:
            return _decode_array(content, dtype, shape)
        case {"by_name": dict(given), **others} if not others:
            return {name: decode(item) for name, item in given.items()}
        case {"distribution": str(name), "parameters": dict(given), **others} if not others:
            return _made(_distribution(name), name, given)
        case {"class": str(name), "fields": dict(given), **others} if not others:
            if name not in _CLASSES:
                raise ValueError(
                    f"file holds a {name}, which this version of milzoo does not know; "
                    f"expected one of {', '.join(sorted(_CLASSES))}"
                )
            return _made(_CLASSES[name], name, given)
    raise ValueError(
        f"file holds an object of {sorted(value)}; expected an array, a distribution, a class or "
        "values by name"
    )


def _decode_array(content: Any, dtype: Any, shape: Any) -> np.ndarray:
    if not (isinstance(dtype, str) and _PLAIN.fullmatch(dtype)):
        raise ValueError(f"file holds an array of {dtype!r}; expected one of numbers")
    try:
        return np.array(content, dtype=dtype).reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"file holds an array that is none: {error}") from error


def _distribution(name: str) -> type:
    cls = getattr(dist, name, None) if name in dist.__all__ else None
    if not (isinstance(cls, type) and issubclass(cls, dist.Distribution)):
        raise ValueError(f"file holds a {name!r}; expected a distribution of NumPyro")
    return cls


def _made(cls: type, name: str, given: dict[str, Any]) -> Any:
    content = {field: decode(item) for field, item in given.items()}
    try:
        made = cls(**content)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"file holds a {name} that cannot be made: {error}") from error
    wrong = wrong_type(made) if is_dataclass(made) else None
    if wrong is not None:
        raise ValueError(f"file holds a {name} whose {wrong} is of another type")
    return made


# ------------------------------------------------------------------------------- files


def write_tree(path: str | PathLike, tree: xr.DataTree, metadata: dict[str, Any]) -> None:
    """Write a tree and its metadata to a file, whole or not at all.

    Parameters
    ----------
    path : path
    tree : DataTree
    metadata : dict
        Of JSON's types.

    Raises
    ------
    OSError, ValueError
        As `written_whole`.
    """
    tree = tree.copy()
    tree.attrs = {"milzoo": json.dumps({"format": FORMAT, **metadata})}
    checked = {node.path: _with_checksums(node.to_dataset(inherit=False)) for node in tree.subtree}
    # Where a disk is full, HDF5 ends the process: so it writes to memory.
    memory = io.BytesIO()
    tree.to_netcdf(memory, engine="h5netcdf", encoding=checked)
    with (
        memory.getbuffer() as content,
        written_whole(path) as unfinished,
        unfinished.open("wb") as file,
    ):
        file.write(content)
        file.write(_LAST_LINE.format(FORMAT, hashlib.sha256(content).hexdigest()).encode())


def _with_checksums(group: xr.Dataset) -> dict[str, dict[str, Any]]:
    """Encoding with HDF5's own checksums, which other programs verify as they read."""
    return {
        str(name): {"fletcher32": True}
        for name, variable in group.variables.items()
        if variable.ndim and variable.size and variable.dtype.kind in "biuf"
    }


def read_tree(path: str | PathLike) -> tuple[xr.DataTree, dict[str, Any]]:
    """Read what `write_tree` wrote.

    Parameters
    ----------
    path : path

    Returns
    -------
    DataTree
    dict
        The metadata.

    Raises
    ------
    ValueError
        If the file is cut off or damaged, of another format, or not written by `write_tree`.
    OSError
        If it cannot be opened.
    """
    file = Path(path)
    with refused(file):
        _check_digest(file)
        try:
            with h5py.File(file) as opened:
                _check_content(opened)
            tree = xr.load_datatree(file, engine="h5netcdf")
        except (ValueError, RecursionError):
            raise
        except Exception as error:  # of HDF5, h5py or xarray, as the content has it
            raise ValueError(f"it is no NetCDF file with groups ({error})") from error
        return tree, _metadata(tree)


@contextmanager
def refused(file: Path) -> Iterator[None]:
    """Give errors about the content of a file its name and a remedy."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, ValueError) else "its content is nested without end"
        raise ValueError(
            f"{file} holds no posterior that can be read: {reason}; expected a whole file of "
            "Posterior.save: take another copy, or fit again"
        ) from error


def _check_digest(file: Path) -> None:
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - _LONGEST_LAST_LINE))
        ending = opened.read()
        pattern = re.escape(_LAST_LINE).replace(r"\{\}", r"(\w{1,64})").encode()
        found = re.search(pattern + rb"\Z", ending)
        if found is None:
            raise ValueError(
                f"it has no digest in its last line, as files of format {FORMAT} have, so it is "
                "cut off, of an earlier version or of another program"
            )
        version, digest = (part.decode() for part in found.groups())
        if version != str(FORMAT):
            raise ValueError(f"it is of format {version}, and this version reads format {FORMAT}")
        if digest != _digest(opened, size - len(found.group())):
            raise ValueError("its content is not what was saved: its digest differs")


def _digest(opened: Any, length: int) -> str:
    opened.seek(0)
    digest = hashlib.sha256()
    while length > 0:
        part = opened.read(min(length, _AT_ONCE))
        digest.update(part)
        length -= len(part)
        if not part:
            break
    return digest.hexdigest()


def _check_content(opened: h5py.Group) -> None:
    """Refuse what leads out of the file, and what would be larger in memory than it is in it."""
    for name in opened:
        if not isinstance(opened.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{opened.name}: {name} is a link that leads elsewhere")
        item = opened[name]
        if isinstance(item, h5py.Group):
            _check_content(item)
        elif not isinstance(item, h5py.Dataset) or item.is_virtual or item.external:
            raise ValueError(f"{item.name} has its content elsewhere")
        elif item.size and item.id.get_storage_size() < item.nbytes and not _is_dimension(item):
            raise ValueError(f"{item.name} is not stored in full")


def _is_dimension(item: h5py.Dataset) -> bool:
    """Whether it is the length of a dimension, without values."""
    return bytes(item.attrs.get("NAME", b"")).startswith(b"This is a netCDF dimension")


def _metadata(tree: xr.DataTree) -> dict[str, Any]:
    text = tree.attrs.pop("milzoo", None)
    if not isinstance(text, str):
        raise ValueError("it has no milzoo metadata")
    try:
        metadata = json.loads(text)
    except ValueError as error:
        raise ValueError(f"its metadata are no JSON ({error})") from error
    if not isinstance(metadata, dict):
        raise ValueError(f"its metadata are a {type(metadata).__name__}; expected a dict")
    return metadata
