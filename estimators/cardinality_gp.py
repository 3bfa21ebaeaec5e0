"""A Gaussian process on the mean cardinality kernel, learned from other bags than the process."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold

from ..datasets.arguments import POSITIVE, WHOLE, Rule, checked_seed, instance_of, is_whole
from ..datasets.bags import Bags
from ..inference.closed_form.coordinate_ascent import coordinate_ascent
from ..inference.posterior import Posterior
from ..models.cardinality import CardinalityModel
from ..models.cardinality_gp import CardinalityGP
from ..models.parts.cardinality_kernel import MeanCardinalityKernel
from ..models.parts.kernels import RBF
from ..models.parts.sparse_gp import USUAL_VARIANCE
from .bayesian import BayesianMIL
from .contract import ProbabilisticBagClassifier
from .instance_kernels import LENGTH_SCALE, InstanceKernel

__all__ = ["CardinalityGPClassifier"]


class CardinalityGPClassifier(ProbabilisticBagClassifier):
    r"""A Gaussian process on the mean cardinality kernel, no label of a bag used twice.

    .. math::
        θ_s &\sim p(θ \mid D_{-j}), \qquad
        \bar k_j = \frac{1}{S} \sum_s k_{θ_s}, \\
        P(Y^* = 1 \mid X^*) &= \frac{1}{J} \sum_j P(Y^* = 1 \mid X^*, \bar k_j, D_j)

    The training bags are dealt into J parts D_j. For each part a cardinality model is fitted to the
    other parts, the kernel is averaged over S draws of its posterior, and a process on that kernel
    is trained on the part. Predicted is the mean of the J processes.

    Parameters
    ----------
    cardinality : BayesianMIL
        A `CardinalityModel` with an engine, such as ``BayesianMIL(CardinalityModel, "nuts",
        seed=0)``. Its potential may have priors on μ and σ.
    length_scale : float or None
        ℓ of the kernel between instances; None for √D.
    variance : float
        v of the process.
    num_draws : int
        S.
    num_parts : int
        J, at least 2.
    seed : int
        Of the parts, and of the draws.

    Attributes
    ----------
    cardinality_posteriors_ : list of Posterior
        p(θ | D₋ⱼ), one for each part.
    posteriors_ : list of Posterior
        Of the processes, each with its `MeanCardinalityKernel`.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    A fit takes J posteriors of the cardinality model, and J times what a `CardinalityKernelSVM`
    takes. A kernel and a process that learn from the same labels count each twice: see
    docs/accuracy.md for what that costs.

    References
    ----------
    Hajimirsadeghi and Mori (2017): the kernel, at one θ and with the labels used twice.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.estimators import BayesianMIL, CardinalityGPClassifier
    >>> instances = [[0.0], [3.0]], [[2.9], [0.4]], [[0.1], [0.3]], [[-0.2], [0.5]]
    >>> bags = Bags.from_list(instances, labels=[1, 1, 0, 0])
    >>> cardinality = BayesianMIL("cardinality", "laplace", seed=0)
    >>> classifier = CardinalityGPClassifier(cardinality, num_draws=4, seed=0).fit(bags)
    >>> new = Bags.from_list([[[3.1], [0.0]], [[0.2], [0.0]]])
    >>> classifier.predict_proba(new)[:, 1].round(2).tolist()
    [0.6, 0.39]
    """

    _rules = {
        "cardinality": instance_of(
            BayesianMIL, expected='an estimator such as BayesianMIL(CardinalityModel, "nuts", …)'
        ),
        "length_scale": LENGTH_SCALE,
        "variance": POSITIVE,
        "num_draws": WHOLE,
        "num_parts": Rule(
            "an integer of at least 2", lambda value: is_whole(value) and bool(value >= 2)
        ),
    }

    def __init__(
        self,
        cardinality: BayesianMIL,
        length_scale: float | None = None,
        variance: float = USUAL_VARIANCE,
        num_draws: int = 32,
        num_parts: int = 2,
        *,
        seed: int,
    ) -> None:
        self.cardinality = cardinality
        self.length_scale = length_scale
        self.variance = variance
        self.num_draws = num_draws
        self.num_parts = num_parts
        self.seed = seed

    def _fit(self, bags: Bags) -> None:
        seed = checked_seed(self.seed)
        labels = np.asarray(bags.labels)
        fewest = int(np.bincount(labels).min())
        if fewest < self.num_parts:
            raise ValueError(
                f"{type(self).__name__} num_parts is {self.num_parts}, but only {fewest} bags have "
                f"one of the labels, n_samples={len(bags)}; expected at least one of each label in "
                "each part"
            )
        parts = StratifiedKFold(self.num_parts, shuffle=True, random_state=seed)
        fitted = [
            self._fit_part(bags[others], bags[part])
            for others, part in parts.split(np.zeros(len(labels)), labels)
        ]
        self.cardinality_posteriors_ = [kernel for kernel, _ in fitted]
        self.posteriors_ = [process for _, process in fitted]

    def _fit_part(self, others: Bags, part: Bags) -> tuple[Posterior, Posterior]:
        """The kernel from the other parts, the process from this one."""
        learned = clone(self.cardinality).fit(others).posterior_
        model = as_cardinality_model(learned.model)
        draws = learned.draws(self.num_draws, seed=self.seed)
        between = InstanceKernel.of("rbf", self.length_scale, part.num_features)
        instance_kernel = RBF(1.0, between.length_scale)
        kernel = MeanCardinalityKernel.of(model, draws, others, instance_kernel)
        process = CardinalityGP.at_bags(kernel, part, self.variance)
        return learned, coordinate_ascent(process, part, seed=self.seed)

    def _probability(self, bags: Bags) -> Float[np.ndarray, " B"]:
        predicted = [one.predict(bags) for one in self.posteriors_]
        return np.mean([one.columns()["bag_probability"] for one in predicted], axis=0)


def as_cardinality_model(model: Any) -> CardinalityModel:
    """The model, refused where it is no cardinality model.

    Raises
    ------
    TypeError
        If it is another one.
    """
    if not isinstance(model, CardinalityModel):
        raise TypeError(
            f"CardinalityGPClassifier cardinality fits a {type(model).__name__}; expected a "
            "CardinalityModel"
        )
    return model
