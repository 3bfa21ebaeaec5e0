"""When, by which code and on what machine a kept number was made."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

__all__ = ["provenance"]

_PACKAGES = ("milzoo", "jax", "numpyro", "arviz", "scikit-learn")


def provenance() -> dict[str, str]:
    """What is kept beside a number, so that it can be made again.

    Returns
    -------
    dict of str
        ``date``; ``commit`` of the working copy that this runs in, empty where the package is
        installed otherwise; ``machine``; ``versions``.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": " ".join(f"{name} {version(name)}" for name in _PACKAGES)
        + f" python {platform.python_version()}",
    }


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
