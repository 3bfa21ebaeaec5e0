"""Problems for calibrating samplers: models, designs of a few bags, and ranked quantities."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy.sparse
from jax.nn import logsumexp
from milzoo.datasets import Bags
from milzoo.diagnostics import SimulationCalibration, simulation_calibration
from milzoo.inference.nuts import NUTSChain
from milzoo.inference.traceable import TraceableChain, TraceableEngine
from milzoo.models import (
    BMIL,
    DPMIL,
    GPMIL,
    RBF,
    VGPMIL,
    CardinalityModel,
    CoupledVGPMIL,
    DiverseDensity,
    Logistic,
    NegativeBinomial,
    NormalCardinality,
    Probit,
    ProbitGPMIL,
    ScoreThreshold,
    StudentT,
)
from milzoo.models.dpmil import expected_occupied
from milzoo.models.parts.likelihoods import Likelihood
from milzoo.models.vwsgp import VWSGP
from numpyro.handlers import seed, substitute, trace

WARMUP = 150


@dataclass(frozen=True)
class Problem:
    """A model, a design and a test bag for simulation-based calibration.

    Attributes
    ----------
    model : VGPMIL, CoupledVGPMIL, VWSGP, GPMIL, ProbitGPMIL, CardinalityModel, ScoreThreshold, …
    design : Bags
        The bags that labels are simulated for.
    test_bag : Bags
        The one bag that is predicted.
    latent : str
        The site whose first value is ranked where the sampler has it.
    """

    model: (
        VGPMIL
        | VWSGP
        | GPMIL
        | ProbitGPMIL
        | CardinalityModel
        | ScoreThreshold
        | DiverseDensity
        | BMIL
    )
    design: Bags
    test_bag: Bags
    latent: str = ""

    def quantities(self, bags, sites):
        """Ranked quantities: the sampler's sites, a prediction, the log likelihood."""
        given = {name: sites[name] for name in self.model.latent_sites}
        values = {
            f"{name} {m}": value
            for name, site in given.items()
            for m, value in enumerate(jnp.atleast_1d(site))
        }
        if self.latent in sites:
            values[f"{self.latent} 0"] = sites[self.latent][0]

        def label_distribution(some_bags):
            program = seed(substitute(self.model.marginal(), given), jax.random.key(0))
            return trace(program).get_trace(some_bags)[self.model.observed_site]["fn"]

        observed = bags.labels if self.model.observed_site == "bag_label" else bags.targets
        values["prediction of a test bag"] = label_distribution(self.test_bag).mean[0]
        values["log likelihood"] = label_distribution(bags).log_prob(observed).sum()
        return values


@dataclass(frozen=True)
class MixtureProblem:
    """A model of the instances, drawn for bags of given labels.

    Attributes
    ----------
    model : DPMIL
    design : Bags
        With labels, which have no parameter; its instances give the sizes alone.
    """

    model: DPMIL
    design: Bags

    def quantities(self, bags, sites):
        """Ranked quantities, none of which depends on the names of clusters."""
        mixtures, rule = self.model.mixtures(sites), self.model.label_rule(bags)
        log_components = mixtures.log_components(bags.instances)
        log_density = logsumexp(log_components, axis=1)
        occupied = expected_occupied(log_components, rule)
        return {
            # The last instance is in a positive bag.
            "log odds of an instance": log_density[1, -1] - log_density[0, -1],
            "log density of a bag": rule.log_evidence(log_density)[0],
            "log likelihood": rule.log_evidence(log_density).sum(),
            "occupied, negative": occupied[0],
            "occupied, positive": occupied[1],
            "log density at the centre, negative": mixtures.log_density(jnp.zeros((1, 2)))[0, 0],
            "log density at the centre, positive": mixtures.log_density(jnp.zeros((1, 2)))[1, 0],
        }


INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])


def design_and_test_bag(sizes: list[int]) -> tuple[Bags, Bags]:
    random = np.random.default_rng(7)
    design, test_bag = (
        Bags.from_list([random.normal(size=(size, 2)) for size in some]) for some in (sizes, [2])
    )
    return design, test_bag


def vgpmil_problem() -> Problem:
    """Six bags of one to four instances."""
    model = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)
    return Problem(model, *design_and_test_bag([1, 2, 3, 4, 2, 3]), latent="latent")


def coupled_vgpmil_problem() -> Problem:
    """Twelve bags of one to four instances, all of a bag neighbours.

    The coupling is strong, and inducing values tell little: else to forget the edges hardly moves
    ranks.
    """
    design, test_bag = (
        bags.with_edges([all_neighbours(size) for size in bags.bag_sizes.tolist()])
        for bags in design_and_test_bag([4, 1, 2, 3, 2, 3] * 2)
    )
    model = CoupledVGPMIL(RBF(4.0, 0.8), INDUCING_POINTS, mean=-0.8, coupling=0.75)
    return Problem(model, design, test_bag, latent="latent")


def all_neighbours(size: int) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(np.ones((size, size)) - np.eye(size))


def gpmil_problem() -> Problem:
    """Twelve bags of one to four instances."""
    model = GPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)
    return Problem(model, *design_and_test_bag([1, 2, 3, 4, 2, 3] * 2), latent="latent")


def probit_gpmil_problem() -> Problem:
    """Twelve bags of one to four instances."""
    model = ProbitGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)
    return Problem(model, *design_and_test_bag([1, 2, 3, 4, 2, 3] * 2), latent="latent")


def vwsgp_problem(likelihood: Likelihood) -> Problem:
    """Thirty bags of one to six instances; k̄ is a sixth of the variance of the bag latent value.

    To forget k̄ in Gibbs' draw of u hardly moves ranks: it takes this many bags to show.
    """
    model = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=likelihood)
    sizes = [6, 1, 2, 4, 3, 5] * 5
    return Problem(model, *design_and_test_bag(sizes), latent="bag_latent")


def cardinality_problem() -> Problem:
    """Twenty bags of one to six instances, and priors on all that may have one."""
    potential = NormalCardinality(mu=dist.Beta(4.0, 4.0), sigma=0.2)
    scale = dist.LogNormal(0.0, 0.5)
    model = CardinalityModel(potential, scale, weight_prior="laplace", intercept_scale=1.0)
    return Problem(model, *design_and_test_bag([6, 1, 2, 4, 3] * 4))


def score_threshold_problem() -> Problem:
    """Fifteen bags of one to six instances; the features, two scores, are fixed."""
    model = ScoreThreshold(dist.Normal(0.5, 1.0), dist.LogNormal(-1.0, 0.5))
    return Problem(model, *design_and_test_bag([6, 1, 2, 4, 3] * 3))


def diverse_density_problem() -> Problem:
    """Fifteen bags of one to six instances among which a concept is wide: peaks are not apart."""
    model = DiverseDensity(dist.Normal(0.0, 1.0), dist.LogNormal(-0.3, 0.4))
    return Problem(model, *design_and_test_bag([6, 1, 2, 4, 3] * 3))


def bmil_problem() -> Problem:
    """Twenty bags of one to six instances; tails of the weights that a short chain explores."""
    model = BMIL(shape=2.0, rate=2.0, intercept_scale=1.0, intercept_mean=-1.0)
    return Problem(model, *design_and_test_bag([6, 1, 2, 4, 3] * 4))


def dpmil_problem(covariance: str) -> MixtureProblem:
    """Eight bags of one to four instances; components about two sd apart."""
    design, _ = design_and_test_bag([1, 2, 3, 4, 2, 3, 4, 3])
    scale = np.eye(2) / 4 if covariance == "full" else np.ones(2) / 4
    model = DPMIL(np.zeros(2), scale, 4.0, mean_strength=0.2, max_components=3)
    return MixtureProblem(model, replace(design, labels=np.array([0, 1] * 4)))


PROBLEMS = {
    "vgpmil": vgpmil_problem(),
    "coupled vgpmil": coupled_vgpmil_problem(),
    "vwsgp": vwsgp_problem(Logistic()),
    "probit vwsgp": vwsgp_problem(Probit()),
    "student vwsgp": vwsgp_problem(StudentT()),
    "counting vwsgp": vwsgp_problem(NegativeBinomial(2)),
    "cardinality": cardinality_problem(),
    "score threshold": score_threshold_problem(),
    "diverse density": diverse_density_problem(),
    "bmil": bmil_problem(),
    "gpmil": gpmil_problem(),
    "probit gpmil": probit_gpmil_problem(),
    "dpmil": dpmil_problem("full"),
    "diagonal dpmil": dpmil_problem("diagonal"),
}


def nuts_on(program: str, **options):
    """Function of model and labelled bags that gives a NUTS chain on the named program."""
    return partial(NUTSChain.for_model, num_warmup=WARMUP, program=program, **options)


def calibrate(
    chain_for, *, problem: Problem, simulations: int, thinning: int, key: int
) -> SimulationCalibration:
    """Simulate and sample.

    Parameters
    ----------
    chain_for : callable
        (model, labelled bags) → an object with ``init``, ``step`` and ``sites``.
    problem : Problem or MixtureProblem
    simulations : int
    thinning : int
        Steps from one retained draw to the next.
    key : int
    """
    chain = TraceableChain(chain_for, num_warmup=WARMUP, thin=thinning)
    return calibrate_engine(chain, problem=problem, simulations=simulations, key=key)


def calibrate_engine(
    engine: TraceableEngine, *, problem: Problem, simulations: int, key: int
) -> SimulationCalibration:
    """Simulate, and sample by any traceable engine."""
    return simulation_calibration(
        problem.model,
        engine,
        problem.design,
        seed=key,
        simulations=simulations,
        quantities=problem.quantities,
    )
