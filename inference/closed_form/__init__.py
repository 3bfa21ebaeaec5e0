"""Ascent on closed-form bounds: one file per model, the updates of its paper."""

from .coordinate_ascent import coordinate_ascent
from .natural_gradient import natural_gradient

__all__ = ["coordinate_ascent", "natural_gradient"]
