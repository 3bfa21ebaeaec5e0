"""Data: the container `Bags`, data sets by name, preprocessing and simulators."""

from .bags import Bags
from .catalogue import available, image_shape, load, published_folds
from .kernel_pca import kernel_pca
from .mil_unit_tests import (
    BagsOfUnitTest,
    presence_based,
    presence_based_log_odds,
    standard_assumption,
    standard_assumption_log_odds,
    threshold_based,
    threshold_based_log_odds,
)
from .patch_on_grid import patch_on_grid, patch_on_grid_log_odds
from .simulation import simulate, simulate_instances
from .streaming import BagStream, stream

__all__ = [
    "BagStream",
    "Bags",
    "BagsOfUnitTest",
    "available",
    "image_shape",
    "kernel_pca",
    "load",
    "patch_on_grid",
    "patch_on_grid_log_odds",
    "presence_based",
    "presence_based_log_odds",
    "published_folds",
    "simulate",
    "simulate_instances",
    "standard_assumption",
    "standard_assumption_log_odds",
    "stream",
    "threshold_based",
    "threshold_based_log_odds",
]
