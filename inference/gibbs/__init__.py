"""Gibbs sampling by data augmentation: one file for each kind of sweep."""

from . import bag_latent, dpmil, probit_gpmil, vgpmil  # noqa: F401  they register their sweeps
from .sampler import gibbs

__all__ = ["gibbs"]
