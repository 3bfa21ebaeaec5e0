"""Checks that arrays fit into memory, before work starts."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["available_memory", "check_memory"]

_SIZE_OF_NUMBER = 8


def available_memory() -> int:
    """Bytes of memory available without swapping; all memory where the system does not say.

    Returns
    -------
    int
    """
    said = Path("/proc/meminfo")
    if said.exists() and (found := re.search(r"MemAvailable:\s+(\d+) kB", said.read_text())):
        return int(found.group(1)) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(numbers: int, what: str, remedy: str) -> None:
    """Raise an error if so many 64-bit numbers do not fit into the memory that is available.

    Parameters
    ----------
    numbers : int
    what : str
        Name of the arrays, for the message.
    remedy : str
        What to do instead.

    Raises
    ------
    MemoryError
    """
    needed, available = numbers * _SIZE_OF_NUMBER, available_memory()
    if needed > available:
        raise MemoryError(
            f"{what} would take {needed / 1e9:,.1f} GB, and {available / 1e9:,.1f} GB of memory "
            f"are available; {remedy}"
        )
