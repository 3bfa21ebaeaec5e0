"""The command line: ``milzoo compare vgpmil digits``."""

from .program import main

__all__ = ["main"]
