"""Coordinate ascent on closed-form bounds: one file per model, the updates of its paper."""

from .coordinate_ascent import coordinate_ascent

__all__ = ["coordinate_ascent"]
