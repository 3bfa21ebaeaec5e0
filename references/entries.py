"""Problems that have reference posteriors, and what is hard about each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..datasets import Bags, load, simulate, simulate_instances
from ..datasets.arguments import look_up
from ..models import (
    RBF,
    VGPMIL,
    VWSGP,
    Gaussian,
    Logistic,
    NegativeBinomial,
    Probit,
    StudentT,
)
from ..models.model import Model

__all__ = ["ENTRIES", "Entry", "entry_named"]

type Problem = tuple[Model, Bags]


@dataclass(frozen=True)
class Entry:
    """A posterior that is worth keeping draws of.

    Attributes
    ----------
    name : str
    about : str
        What is hard about it, or easy, in a sentence.
    tags : tuple of str
    problem : callable
        Makes the model and its bags, the same each time.
    data : str
        The name of the data set, or the words for how it is made.
    second : {"gibbs", "nutpie"}
        The sampler that shares no code with `nuts`, by which its draws are checked.
    evidence : {"laplace", "tempered_smc"}
        The engine of the second estimate of the log evidence.
    settings : dict
        Of `nuts`, besides lengths.
    """

    name: str
    about: str
    tags: tuple[str, ...]
    problem: Callable[[], Problem]
    data: str
    second: Literal["gibbs", "nutpie"] = "gibbs"
    evidence: Literal["laplace", "tempered_smc"] = "laplace"
    settings: dict[str, Any] = field(default_factory=lambda: {"mass_matrix": "auto"})


def _vgpmil_digits() -> Problem:
    bags = load("digits").split(0.7, seed=0)[0].standardize()
    return VGPMIL.as_published(bags, num_inducing=20, variance=5.0, mean=-3.0), bags


def _vwsgp_musk1(likelihood: Any) -> Problem:
    bags = load("musk1").standardize()
    return VWSGP.as_published(bags, num_inducing=20, likelihood=likelihood), bags


def _simulated_targets(likelihood: Any) -> Problem:
    """Targets of 60 bags of up to four instances, drawn from the model itself."""
    design = simulate_instances(60, range(1, 5), num_features=2, seed=3)
    points = np.array([[x, y] for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)])
    model = VWSGP(RBF(2.0, 1.0), points, likelihood=likelihood)
    return model, simulate(model, design, seed=1)[0]


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "vgpmil-digits-20",
            "Twenty values under a noisy maximum with instance labels summed out: correlated, and "
            "skewed where bags are few.",
            ("instances", "correlated", "skewed"),
            _vgpmil_digits,
            "digits",
            second="nutpie",
            evidence="tempered_smc",
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
            lambda: _simulated_targets(Gaussian(0.5)),
            "simulate_instances(60, 1 to 4, seed=3), simulate(seed=1)",
        ),
        Entry(
            "vwsgp-student-simulated-9",
            "Nine values, targets with errors of Student's t with three degrees of freedom.",
            ("targets", "outliers"),
            lambda: _simulated_targets(StudentT(3.0, 0.5)),
            "simulate_instances(60, 1 to 4, seed=3), simulate(seed=1)",
        ),
        Entry(
            "vwsgp-counts-simulated-9",
            "Nine values, counts with a negative binomial distribution.",
            ("targets", "counts"),
            lambda: _simulated_targets(NegativeBinomial(3)),
            "simulate_instances(60, 1 to 4, seed=3), simulate(seed=1)",
        ),
    )
}


def entry_named(name: str) -> Entry:
    """The entry of a name.

    Raises
    ------
    ValueError
        If there is none; the message has the nearest name.
    """
    return look_up("reference", name, ENTRIES)
