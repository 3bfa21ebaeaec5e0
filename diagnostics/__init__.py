"""How far may we trust it? Everything that judges a Posterior or compares several."""

from .clusters import plot_components, plot_scene
from .comparison import Comparison, compare
from .correction import importance_resample
from .selection import Selection, select
from .simulation_calibration import SimulationCalibration, simulation_calibration
from .surfaces import Surface, plot_surfaces

__all__ = [
    "Comparison",
    "Selection",
    "SimulationCalibration",
    "Surface",
    "compare",
    "importance_resample",
    "plot_components",
    "plot_scene",
    "plot_surfaces",
    "select",
    "simulation_calibration",
]
