"""Closed-form variational inference: one protocol, its drivers, and a file for each kind of q."""

from . import (  # noqa: F401  they register their closed forms
    coupled_vgpmil,
    dpmil,
    probit_gpmil,
    sparse_gp,
)
from .algorithm import ClosedForm, GaussianForm, Options, closed_form
from .coordinate_ascent import coordinate_ascent
from .linear_response import linear_response
from .natural_gradient import natural_gradient

__all__ = [
    "ClosedForm",
    "GaussianForm",
    "Options",
    "closed_form",
    "coordinate_ascent",
    "linear_response",
    "natural_gradient",
]
