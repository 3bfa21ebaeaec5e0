"""Registry of the PyMC programs of the models.

PyMC is optional and takes seconds to import, so that each program imports it only when called.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from ...datasets.bags import Bags
from ..bmil import BMIL
from ..cardinality import CardinalityModel
from ..coupled_vgpmil import CoupledVGPMIL
from ..diverse_density import DiverseDensity
from ..dpmil import DPMIL
from ..gpmil import GPMIL
from ..probit_gpmil import ProbitGPMIL
from ..score_threshold import ScoreThreshold
from ..vgpmil import VGPMIL
from ..vwsgp import VWSGP

if TYPE_CHECKING:
    import pymc

__all__ = ["pymc_program"]


@singledispatch
def pymc_program(model: Any, bags: Bags, *, program: str = "marginal") -> pymc.Model:
    """Build the PyMC program of a model; ``pymc_program.register`` adds one for a class of models.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels or targets.
    program : str
        Name of one of the model's programs.

    Returns
    -------
    pymc.Model

    Raises
    ------
    NotImplementedError
        If the model has no PyMC program.
    ImportError
        If PyMC is not installed.
    """
    raise NotImplementedError(
        f"{type(model).__name__} has no program in PyMC, BMIL, CardinalityModel, CoupledVGPMIL, "
        "DiverseDensity, DPMIL, GPMIL, ScoreThreshold, ProbitGPMIL, VGPMIL and VWSGP have; "
        "sample with nuts instead"
    )


@pymc_program.register
def _(model: BMIL, bags: Bags, *, program: str = "marginal") -> Any:
    from .bmil import bmil_program

    return bmil_program(model, bags, program=program)


@pymc_program.register
def _(model: CardinalityModel, bags: Bags, *, program: str = "marginal") -> Any:
    from .cardinality import cardinality_program

    return cardinality_program(model, bags, program=program)


@pymc_program.register
def _(model: CoupledVGPMIL, bags: Bags, *, program: str = "marginal") -> Any:
    from .coupled_vgpmil import coupled_vgpmil_program

    return coupled_vgpmil_program(model, bags, program=program)


@pymc_program.register
def _(model: DPMIL, bags: Bags, *, program: str = "marginal") -> Any:
    from .dpmil import dpmil_program

    return dpmil_program(model, bags, program=program)


@pymc_program.register
def _(model: DiverseDensity, bags: Bags, *, program: str = "marginal") -> Any:
    from .diverse_density import diverse_density_program

    return diverse_density_program(model, bags, program=program)


@pymc_program.register
def _(model: GPMIL, bags: Bags, *, program: str = "marginal") -> Any:
    from .gpmil import gpmil_program

    return gpmil_program(model, bags, program=program)


@pymc_program.register
def _(model: ScoreThreshold, bags: Bags, *, program: str = "marginal") -> Any:
    from .score_threshold import score_threshold_program

    return score_threshold_program(model, bags, program=program)


@pymc_program.register
def _(model: ProbitGPMIL, bags: Bags, *, program: str = "marginal") -> Any:
    from .probit_gpmil import probit_gpmil_program

    return probit_gpmil_program(model, bags, program=program)


@pymc_program.register
def _(model: VGPMIL, bags: Bags, *, program: str = "marginal") -> Any:
    from .vgpmil import vgpmil_program

    return vgpmil_program(model, bags, program=program)


@pymc_program.register
def _(model: VWSGP, bags: Bags, *, program: str = "marginal") -> Any:
    from .vwsgp import vwsgp_program

    return vwsgp_program(model, bags, program=program)
