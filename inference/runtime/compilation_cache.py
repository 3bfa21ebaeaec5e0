"""Compiled programs kept between processes, in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import pooch

__all__ = ["keep_programs"]

# The least recently used are removed beyond this.
_MOST_BYTES = 2**29
# What compiles sooner is not worth a file.
_SECONDS = 0.05


def keep_programs() -> Path | None:
    """Let JAX keep compiled programs on disk, so that the next process need not compile them.

    The command line and the notebooks call it first. They keep at most 512 MiB, in the folder
    ``milzoo/programs`` of the user's cache. A cache that JAX was given already stays
    (``JAX_COMPILATION_CACHE_DIR``); ``JAX_ENABLE_COMPILATION_CACHE=false`` switches any off.

    Returns
    -------
    Path or None
        The folder; None where JAX has another, or this one cannot be made.

    Notes
    -----
    It sets flags of JAX, and must be called before the first program is compiled. It also sets them
    in the environment: processes started later, such as those of a cross-validation, keep programs
    in the same folder.

    Examples
    --------
    Call it before anything is compiled:

    >>> import jax
    >>> from milzoo.inference import keep_programs
    >>> folder = keep_programs()
    >>> print("programs are kept in", folder or jax.config.jax_compilation_cache_dir)
    programs are kept in /...
    """
    if jax.config.jax_compilation_cache_dir is not None:
        return None
    folder = Path(pooch.os_cache("milzoo")) / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    for flag, value in (
        ("jax_compilation_cache_dir", str(folder)),
        ("jax_compilation_cache_max_size", _MOST_BYTES),
        ("jax_persistent_cache_min_compile_time_secs", _SECONDS),
    ):
        jax.config.update(flag, value)
        os.environ[flag.upper()] = str(value)
    return folder
