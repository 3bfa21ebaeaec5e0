"""Problems with reference posteriors, and what makes each hard or easy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse
from numpyro.distributions import LogNormal, Normal

from ..datasets import Bags, load, simulate, simulate_instances
from ..datasets.arguments import look_up
from ..models import (
    BMIL,
    DPMIL,
    GPMIL,
    RBF,
    VGPMIL,
    VWSGP,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    CoupledVGPMIL,
    DiverseDensity,
    GammaScaleMixture,
    Gaussian,
    Logistic,
    NegativeBinomial,
    NeighbourScore,
    NormalCardinality,
    Probit,
    ProbitGPMIL,
    ScoreThreshold,
    StudentT,
    scored,
)
from ..models.model import Model

__all__ = ["ENTRIES", "Entry", "entry_named"]

type Problem = tuple[Model, Bags]


@dataclass(frozen=True)
class Entry:
    """A problem, model and bags, with a reference posterior; or the reason why it has none.

    Attributes
    ----------
    name : str
    about : str
        What makes it hard or easy, in a sentence.
    tags : tuple of str
    problem : callable
        Makes the model and its bags, the same each time.
    data : str
        The name of the data set, or how it is made, in words.
    first : {"nuts", "gibbs", "grid"}
        The sampler whose draws are kept.
    second : {"gibbs", "nutpie", "tempered_smc"}
        Another, by which they are checked.
    evidence : {"laplace", "tempered_smc", "flow"}
        The engine of the second estimate of the log evidence.
    settings : dict
        Of the sampler whose draws are kept, besides lengths; `nuts` has ``mass_matrix="auto"``
        where they do not say.
    reason : str
        Why no draws are kept; empty where they are.

    Examples
    --------
    >>> from milzoo.datasets import simulate, simulate_instances
    >>> from milzoo.models import VWSGP
    >>> from milzoo.references import Entry
    >>> def problem():
    ...     design = simulate_instances(20, 3, num_features=2, seed=0)
    ...     model = VWSGP.for_bags(design, num_inducing=4)
    ...     return model, simulate(model, design, seed=0)[0]
    >>> entry = Entry("mine", "Four values: nearly Gaussian.", ("bags",), problem, "drawn")
    >>> model, bags = entry.problem()
    >>> bags
    Bags(20 bags (4 positive, 16 negative) of 3 to 3 instances, 60 instances of 2 features)
    """

    name: str
    about: str
    tags: tuple[str, ...]
    problem: Callable[[], Problem]
    data: str
    first: Literal["nuts", "gibbs", "grid"] = "nuts"
    second: Literal["gibbs", "nutpie", "tempered_smc"] = "gibbs"
    evidence: Literal["laplace", "tempered_smc", "flow"] = "laplace"
    settings: dict[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def sampler_settings(self) -> dict[str, Any]:
        """All settings of the sampler whose draws are kept, besides lengths."""
        return {"mass_matrix": "auto"} | self.settings if self.first == "nuts" else self.settings


# ------------------------------------------------------------------ bags that are published


def _vgpmil_digits(num_inducing: int) -> Problem:
    bags = load("digits").split(0.7, seed=0)[0].standardize()
    return VGPMIL.as_published(bags, num_inducing=num_inducing, variance=5.0, mean=-3.0), bags


def _gamma_digits() -> Problem:
    bags = load("digits").standardize()
    model = VGPMIL.for_bags(bags, 50, variance=0.5, length_scale=8.0, mean=0.0)
    return replace(model, scale_mixture=GammaScaleMixture(1.0, 1.0)), bags


def _vgpmil_musk2() -> Problem:
    bags = load("musk2").standardize()
    return VGPMIL.for_bags(bags, num_inducing=20), bags


def _vwsgp_musk1(likelihood: Any) -> Problem:
    bags = load("musk1").standardize()
    return VWSGP.as_published(bags, num_inducing=20, likelihood=likelihood), bags


def _neighbours_of_musk1() -> Problem:
    bags = scored([NeighbourScore(k) for k in (1, 3, 9)], load("musk1").standardize())
    return ScoreThreshold(), bags.standardize()


# ------------------------------------------------------------------ bags that are drawn


def _drawn(model: Any, num_bags: int, num_features: int = 2) -> Problem:
    """Bags of up to four instances, their labels or targets drawn from the model itself."""
    return model, simulate(model, _design(num_bags, num_features), seed=1)[0]


def _design(num_bags: int, num_features: int = 2) -> Bags:
    return simulate_instances(num_bags, range(1, 5), num_features=num_features, seed=3)


def _nine_points() -> np.ndarray:
    return np.array([[x, y] for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)])


def _drawn_targets(likelihood: Any) -> Problem:
    return _drawn(VWSGP(RBF(2.0, 1.0), _nine_points(), likelihood=likelihood), 60)


def _priors() -> Problem:
    """Targets drawn from a process whose variance, length scale and noise are to be inferred."""
    _, bags = _drawn_targets(Gaussian(0.5))
    kernel = RBF(LogNormal(0.0, 1.0), LogNormal(0.0, 0.5))
    likelihood = Gaussian(LogNormal(-1.0, 1.0))
    return VWSGP(kernel, _nine_points(), likelihood=likelihood), bags


def _cardinality_model() -> Problem:
    return _drawn(CardinalityModel(NormalCardinality(0.5, 0.2), weight_scale=2.0), 60, 4)


def _bmil() -> Problem:
    return _drawn(BMIL(shape=1.0, rate=1.0, intercept_mean=-1.0), 40, 4)


def _gpmil() -> Problem:
    return _drawn(GPMIL(RBF(4.0, 1.0), _design(12).instances, mean=-1.5), 12)


def _probit_gpmil() -> Problem:
    return _drawn(ProbitGPMIL(RBF(4.0, 1.0), _nine_points(), mean=-1.5), 60)


def _coupled_vgpmil() -> Problem:
    """Instances in a row, each with those beside it as neighbours."""

    def in_a_row(size: int) -> scipy.sparse.csr_array:
        beside = np.eye(size, k=1) + np.eye(size, k=-1)
        return scipy.sparse.csr_array(beside)

    design = _design(60)
    design = design.with_edges([in_a_row(int(size)) for size in design.bag_sizes])
    model = CoupledVGPMIL(RBF(4.0, 1.0), _nine_points(), mean=-1.5, coupling=0.5)
    return model, simulate(model, design, seed=1)[0]


def _dpmil() -> Problem:
    """Instances on a line, of two classes with two components each."""
    model = DPMIL(np.zeros(1), np.full(1, 0.25), 8.0, mean_strength=0.2, max_components=2)
    return _drawn(model, 12, 1)


def _cardinality_gp() -> Problem:
    kernel = CardinalityKernel(CardinalityModel(), np.array([0.5, -0.3]), RBF(1.0, 1.0))
    return _drawn(CardinalityGP.at_bags(kernel, _design(30), variance=2.0), 30)


def _two_concepts() -> Problem:
    """Positive bags with an instance at 3 and one at −3, negative ones at neither."""
    random = np.random.default_rng(1)
    pairs = [np.array([[3.0], [-3.0]]) + 0.1 * random.normal(size=(2, 1)) for _ in range(4)]
    others = [np.full((1, 1), value) for value in (0.2, -0.2, 6.0, -6.0)]
    bags = Bags.from_list([*pairs, *others], labels=[1] * 4 + [0] * 4)
    return DiverseDensity(concept_prior=Normal(0.0, 3.0)), bags


def _three_modes() -> Problem:
    """A Gamma scale mixture with as much mass at f ≈ 0 as far out on both sides."""
    near = [np.full((3, 1), 0.1 * b) for b in range(4)]
    bags = Bags.from_list(near, labels=[0, 1, 0, 1])
    kernel, scale_mixture = RBF(4.4, 3.0), GammaScaleMixture(1.0, 1.0)
    return VGPMIL(kernel, bags.instances[[0, -1]], mean=0.0, scale_mixture=scale_mixture), bags


def _drawn_as(num_bags: int) -> str:
    return f"simulate_instances({num_bags}, 1 to 4, seed=3), simulate(seed=1)"


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "vgpmil-digits-20",
            "Twenty values under a noisy maximum with instance labels summed out: correlated, and "
            "skewed where bags are few.",
            ("instances", "correlated", "skewed"),
            lambda: _vgpmil_digits(20),
            "digits",
            second="nutpie",
            evidence="tempered_smc",
        ),
        Entry(
            "vgpmil-digits-50",
            "The same with fifty values.",
            ("instances", "correlated", "skewed"),
            lambda: _vgpmil_digits(50),
            "digits",
            second="nutpie",
            evidence="flow",
        ),
        Entry(
            "vgpmil-musk2-20",
            "Twenty values under 6,598 instances in 102 bags.",
            ("instances", "many instances"),
            _vgpmil_musk2,
            "musk2",
            second="nutpie",
            evidence="flow",
        ),
        Entry(
            "vgpmil-three-modes-2",
            "Two values under a Gamma scale mixture: a near mode with 45 % of the mass and two far "
            "ones, behind barriers that no chain crosses.",
            ("instances", "two numbers", "multimodal"),
            _three_modes,
            "four bags of three equal instances",
            first="grid",
            second="tempered_smc",
            evidence="tempered_smc",
        ),
        Entry(
            "vgpmil-gamma-digits-50",
            "A Gamma scale mixture on digits, whose far modes have all the mass.",
            ("instances", "runaway"),
            _gamma_digits,
            "digits",
            reason="the mode that chains and approximations find is 60,000 nats lower than others "
            "that lie hundreds of prior sds away, and no two samplers agree on those",
        ),
        Entry(
            "vwsgp-musk1-20",
            "Twenty values under the logistic likelihood of 92 bags: nearly Gaussian.",
            ("bags", "easy"),
            lambda: _vwsgp_musk1(Logistic()),
            "musk1",
        ),
        Entry(
            "vwsgp-probit-musk1-20",
            "The same with the probit.",
            ("bags", "easy"),
            lambda: _vwsgp_musk1(Probit()),
            "musk1",
        ),
        Entry(
            "vwsgp-gaussian-simulated-9",
            "Nine values, targets with Gaussian errors: a Gaussian posterior, known exactly.",
            ("targets", "easy", "exact"),
            lambda: _drawn_targets(Gaussian(0.5)),
            _drawn_as(60),
        ),
        Entry(
            "vwsgp-student-simulated-9",
            "Nine values, targets with errors of Student's t with three degrees of freedom.",
            ("targets", "outliers"),
            lambda: _drawn_targets(StudentT(3.0, 0.5)),
            _drawn_as(60),
        ),
        Entry(
            "vwsgp-counts-simulated-9",
            "Nine values, counts with a negative binomial distribution.",
            ("targets", "counts"),
            lambda: _drawn_targets(NegativeBinomial(3)),
            _drawn_as(60),
        ),
        Entry(
            "vwsgp-priors-simulated-12",
            "Nine values with the variance, the length scale and the noise that they depend on.",
            ("targets", "hyper-parameters", "skewed"),
            _priors,
            _drawn_as(60),
            second="nutpie",
            evidence="flow",
            settings={"mass_matrix": "low_rank", "target_accept": 0.99},
        ),
        Entry(
            "probit-gpmil-simulated-9",
            "Nine values under probit labels of instances, observed by their maximum in each bag: "
            "skewed, and much wider than an approximation that treats utilities as observed.",
            ("instances", "skewed"),
            _probit_gpmil,
            _drawn_as(60),
        ),
        Entry(
            "coupled-vgpmil-simulated-9",
            "Nine values under a noisy maximum of labels whose log odds are averaged over "
            "neighbours: skewed.",
            ("instances", "skewed"),
            _coupled_vgpmil,
            f"{_drawn_as(60)}, neighbours in a row",
        ),
        Entry(
            "gpmil-simulated-25",
            "The values of 25 instances, observed only by the soft maximum of each of 12 bags.",
            ("instances", "skewed"),
            _gpmil,
            _drawn_as(12),
            second="nutpie",
            evidence="flow",
        ),
        Entry(
            "dpmil-simulated-10",
            "Two components of each class on a line: clusters have no names, and one component may "
            "have all instances.",
            ("mixture", "multimodal"),
            _dpmil,
            _drawn_as(12),
            first="gibbs",
            second="tempered_smc",
            evidence="tempered_smc",
            settings={"thin": 3},
        ),
        Entry(
            "cardinality-gp-simulated-30",
            "The values of 30 bags under the logistic likelihood: as many unknowns as labels.",
            ("bags", "skewed"),
            _cardinality_gp,
            _drawn_as(30),
        ),
        Entry(
            "cardinality-model-simulated-4",
            "Four weights of a conditional random field, instance labels summed out.",
            ("weights", "skewed"),
            _cardinality_model,
            _drawn_as(60),
            second="nutpie",
            evidence="tempered_smc",
        ),
        Entry(
            "bmil-simulated-5",
            "Four weights with priors of Student's t, and an intercept: heavy tails where features "
            "are irrelevant.",
            ("weights", "heavy tails"),
            _bmil,
            _drawn_as(40),
            second="nutpie",
            evidence="tempered_smc",
        ),
        Entry(
            "score-threshold-musk1-2",
            "A threshold and its softness, the index of the score summed out.",
            ("two numbers", "skewed"),
            _neighbours_of_musk1,
            "musk1",
            first="grid",
            second="nutpie",
        ),
        Entry(
            "diverse-density-two-concepts-2",
            "A concept that may be at 3 or at −3, and its scale.",
            ("two numbers", "multimodal"),
            _two_concepts,
            "eight bags: an instance at 3 and one at −3 in each positive one",
            first="grid",
            second="tempered_smc",
            evidence="tempered_smc",
        ),
    )
}


def entry_named(name: str) -> Entry:
    """Look up an entry by its name.

    Raises
    ------
    ValueError
        If there is no such entry; the message has the nearest name.

    Examples
    --------
    >>> from milzoo.references import entry_named
    >>> print(entry_named("vwsgp-counts-simulated-9").about)
    Nine values, counts with a negative binomial distribution.
    """
    return look_up("reference", name, ENTRIES)
