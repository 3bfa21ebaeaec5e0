"""Engines: every one takes (model, bags) and returns a Posterior.

Examples
--------
>>> from milzoo.inference import ENGINES
>>> print(*ENGINES, sep=", ")
coordinate_ascent, natural_gradient, laplace, svi, pathfinder, maximum_a_posteriori,
grid, nuts, gibbs, ensemble, tempered_smc, pymc_nuts
"""

from .closed_form import coordinate_ascent, linear_response, natural_gradient
from .ensemble import ensemble
from .evidence import LogEvidence, log_evidence
from .flat_engine import FlatDensity, flat_density, flat_engine
from .gibbs import gibbs
from .grid import grid
from .importance import ImportanceResampled
from .laplace import laplace
from .maximum_a_posteriori import maximum_a_posteriori
from .nuts import nuts
from .pathfinder import pathfinder
from .posterior import Posterior, Status
from .prediction import Prediction, TargetPrediction
from .pymc_nuts import pymc_nuts
from .runtime.compilation_cache import keep_programs
from .svi import svi
from .tempered_smc import tempered_smc

# Every engine, by its name: (model, bags, *, seed, …) → Posterior. The command line offers these.
ENGINES = {
    engine.__name__: engine
    for engine in (
        coordinate_ascent,
        natural_gradient,
        laplace,
        svi,
        pathfinder,
        maximum_a_posteriori,
        grid,
        nuts,
        gibbs,
        ensemble,
        tempered_smc,
        pymc_nuts,
    )
}

__all__ = [
    "ENGINES",
    "FlatDensity",
    "ImportanceResampled",
    "LogEvidence",
    "Posterior",
    "Prediction",
    "Status",
    "TargetPrediction",
    "coordinate_ascent",
    "ensemble",
    "flat_density",
    "flat_engine",
    "gibbs",
    "grid",
    "keep_programs",
    "laplace",
    "linear_response",
    "log_evidence",
    "maximum_a_posteriori",
    "natural_gradient",
    "nuts",
    "pathfinder",
    "pymc_nuts",
    "svi",
    "tempered_smc",
]
