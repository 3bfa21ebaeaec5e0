"""How far may we trust it? Everything that judges a Posterior or compares several."""

from .clusters import plot_components, plot_scene
from .comparison import Comparison, compare
from .correction import importance_resample
from .criticism import (
    PredictiveCheck,
    interval_coverage,
    predictive_check,
    prior_sensitivity,
)
from .inside_a_bag import plot_bag
from .selection import Selection, select
from .simulation_calibration import SimulationCalibration, simulation_calibration
from .surfaces import Surface, plot_surfaces

__all__ = [
    "Comparison",
    "PredictiveCheck",
    "Selection",
    "SimulationCalibration",
    "Surface",
    "compare",
    "importance_resample",
    "interval_coverage",
    "plot_bag",
    "plot_components",
    "plot_scene",
    "plot_surfaces",
    "predictive_check",
    "prior_sensitivity",
    "select",
    "simulation_calibration",
]
