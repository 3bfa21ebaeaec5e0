"""How far may we trust it? Everything that judges a Posterior or compares several."""

from .comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
