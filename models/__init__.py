"""What do we believe? One paper, one file: the generative models as NumPyro programs."""

from .kernels import RBF
from .scale_mixtures import GammaMixing, PolyaGammaMixing, ScaleMixture
from .vgpmil import VGPMIL

__all__ = ["RBF", "VGPMIL", "GammaMixing", "PolyaGammaMixing", "ScaleMixture"]
