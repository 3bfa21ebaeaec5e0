"""Closed-form variational inference: one protocol, its drivers, and a file for each kind of q."""

from .coordinate_ascent import coordinate_ascent
from .natural_gradient import natural_gradient

__all__ = ["coordinate_ascent", "natural_gradient"]
