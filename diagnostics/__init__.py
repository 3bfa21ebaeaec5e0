"""How far may we trust it? Everything that judges a Posterior or compares several."""

from .clusters import plot_components, plot_scene
from .comparison import Comparison, compare

__all__ = ["Comparison", "compare", "plot_components", "plot_scene"]
