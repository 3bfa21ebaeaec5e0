"""Data: the container `Bags`, data sets by name, preprocessing and simulators."""

from .bags import Bags
from .catalogue import available, image_shape, load, published_folds
from .kernel_pca import kernel_pca
from .simulation import simulate, simulate_instances
from .streaming import BagStream, stream

__all__ = [
    "BagStream",
    "Bags",
    "available",
    "image_shape",
    "kernel_pca",
    "load",
    "published_folds",
    "simulate",
    "simulate_instances",
    "stream",
]
