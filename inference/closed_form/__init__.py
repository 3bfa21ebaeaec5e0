"""Closed-form variational inference: one protocol, its drivers, and a file for each kind of q."""

from . import dpmil, sparse_gp  # noqa: F401  they register their closed forms
from .algorithm import ClosedForm, Options, closed_form
from .coordinate_ascent import coordinate_ascent
from .natural_gradient import natural_gradient

__all__ = [
    "ClosedForm",
    "Options",
    "closed_form",
    "coordinate_ascent",
    "natural_gradient",
]
