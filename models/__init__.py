"""Generative models of bags as NumPyro programs, one file for each paper."""

from .bmil import BMIL
from .cardinality import (
    AtLeastOne,
    CardinalityModel,
    MajorityCardinality,
    NormalCardinality,
)
from .cardinality_gp import CardinalityGP
from .coupled_vgpmil import CoupledVGPMIL
from .diverse_density import DiverseDensity
from .dpmil import DPMIL
from .gpmil import GPMIL
from .parts.cardinality_kernel import CardinalityKernel, MeanCardinalityKernel
from .parts.kernels import (
    RBF,
    CorrelationKernel,
    Cosine,
    Kernel,
    Linear,
    Matern32,
    Matern52,
    Product,
    StationaryKernel,
    Sum,
)
from .parts.likelihoods import Gaussian, Logistic, NegativeBinomial, Probit, StudentT
from .parts.neighbours import NeighbourScore, ParzenScore, scored
from .parts.scale_mixtures import GammaScaleMixture, PolyaGammaScaleMixture, ScaleMixture
from .parts.tinygp_kernel import TinyGPKernel
from .probit_gpmil import ProbitGPMIL
from .score_threshold import ScoreThreshold
from .vgpmil import VGPMIL
from .vwsgp import VWSGP

__all__ = [
    "BMIL",
    "DPMIL",
    "GPMIL",
    "RBF",
    "VGPMIL",
    "VWSGP",
    "AtLeastOne",
    "CardinalityGP",
    "CardinalityKernel",
    "CardinalityModel",
    "CorrelationKernel",
    "Cosine",
    "CoupledVGPMIL",
    "DiverseDensity",
    "GammaScaleMixture",
    "Gaussian",
    "Kernel",
    "Linear",
    "Logistic",
    "MajorityCardinality",
    "Matern32",
    "Matern52",
    "MeanCardinalityKernel",
    "NegativeBinomial",
    "NeighbourScore",
    "NormalCardinality",
    "ParzenScore",
    "PolyaGammaScaleMixture",
    "Probit",
    "ProbitGPMIL",
    "Product",
    "ScaleMixture",
    "ScoreThreshold",
    "StationaryKernel",
    "StudentT",
    "Sum",
    "TinyGPKernel",
    "scored",
]
