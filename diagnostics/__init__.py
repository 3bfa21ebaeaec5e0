"""Diagnostics of a Posterior, and comparisons of several."""

from .checks.calibration_power import CalibrationPower, calibration_power
from .checks.criticism import (
    PredictiveCheck,
    interval_coverage,
    predictive_check,
    prior_sensitivity,
)
from .checks.cross_validation import CrossValidation, cross_validate_bags
from .checks.posterior_calibration import posterior_calibration
from .checks.prior_predictive import PriorPredictive, prior_predictive
from .checks.selection import Prepared, Selection, select
from .checks.simulation_calibration import SimulationCalibration, simulation_calibration
from .comparison import Comparison, compare
from .measures.correction import importance_resample
from .measures.relevance import Relevance, expected_information, relevance
from .plots.clusters import plot_components, plot_scene
from .plots.inside_a_bag import plot_bag
from .plots.slider import SliderFigure, plot_with_slider
from .plots.surfaces import Surface, plot_surfaces

__all__ = [
    "CalibrationPower",
    "Comparison",
    "CrossValidation",
    "PredictiveCheck",
    "Prepared",
    "PriorPredictive",
    "Relevance",
    "Selection",
    "SimulationCalibration",
    "SliderFigure",
    "Surface",
    "calibration_power",
    "compare",
    "cross_validate_bags",
    "expected_information",
    "importance_resample",
    "interval_coverage",
    "plot_bag",
    "plot_components",
    "plot_scene",
    "plot_surfaces",
    "plot_with_slider",
    "posterior_calibration",
    "predictive_check",
    "prior_predictive",
    "prior_sensitivity",
    "relevance",
    "select",
    "simulation_calibration",
]
