"""What do we believe? One paper, one file: the generative models as NumPyro programs."""

from .dpmil import DPMIL
from .kernels import RBF
from .scale_mixtures import GammaMixing, PolyaGammaMixing, ScaleMixture
from .vgpmil import VGPMIL
from .vwsgp import VWSGP

__all__ = ["DPMIL", "RBF", "VGPMIL", "VWSGP", "GammaMixing", "PolyaGammaMixing", "ScaleMixture"]
