"""Gibbs sampling by data augmentation: one file for each kind of sweep."""

from .sampler import gibbs

__all__ = ["gibbs"]
