"""Gibbs sampling by exact conditionals: one file per model."""

from .sampler import gibbs

__all__ = ["gibbs"]
