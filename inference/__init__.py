"""How do we compute it? Engines; every one takes (model, bags) and returns a Posterior."""

from .closed_form import coordinate_ascent, natural_gradient
from .concepts import EMDD, DiverseDensityLearner
from .gibbs import gibbs
from .grid import grid
from .importance import ImportanceResampled
from .kernel_machines import (
    CardinalityKernelClassifier,
    CardinalityKernelLearner,
    CardinalityKernelSVM,
)
from .laplace import laplace
from .maximum_a_posteriori import maximum_a_posteriori
from .measure_machines import Elbow, MeasureClassifier, MeasureLearner, choose_by_elbow
from .nuts import nuts
from .posterior import Posterior, Status
from .prediction import Prediction, TargetPrediction
from .prototypes import PrototypeClassifier, PrototypeLearner
from .pymc_nuts import pymc_nuts
from .svi import svi

# Every engine: (model, bags, *, seed, …) → Posterior. The command line offers these.
ENGINES = (
    coordinate_ascent,
    natural_gradient,
    laplace,
    svi,
    maximum_a_posteriori,
    grid,
    nuts,
    gibbs,
    pymc_nuts,
)

__all__ = [
    "EMDD",
    "ENGINES",
    "CardinalityKernelClassifier",
    "CardinalityKernelLearner",
    "CardinalityKernelSVM",
    "DiverseDensityLearner",
    "Elbow",
    "ImportanceResampled",
    "MeasureClassifier",
    "MeasureLearner",
    "Posterior",
    "Prediction",
    "PrototypeClassifier",
    "PrototypeLearner",
    "Status",
    "TargetPrediction",
    "choose_by_elbow",
    "coordinate_ascent",
    "gibbs",
    "grid",
    "laplace",
    "maximum_a_posteriori",
    "natural_gradient",
    "nuts",
    "pymc_nuts",
    "svi",
]
