"""The door that data come in by: one container, data sets by name, simulators."""

from .bags import Bags
from .catalogue import available, load, published_folds
from .simulation import simulate, simulate_instances

__all__ = ["Bags", "available", "load", "published_folds", "simulate", "simulate_instances"]
