"""Castro-Macías et al. (2024): tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from joblib import Memory
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_memory

from ..datasets.arguments import POSITIVE, WHOLE, optional
from ..datasets.bags import Bags
from ..datasets.checks import num_distinct_rows
from ..estimators import PCAOfInstances, StandardizeInstances
from ..estimators.contract import ProbabilisticBagClassifier, ScoresInstances
from ..inference import coordinate_ascent
from ..inference.posterior import Posterior
from ..models import RBF, VGPMIL, GammaScaleMixture
from ..models.numerics.log_odds import log_odds
from .comparators import on_features
from .exhibits import Attempt, Cell, Choice, Exhibit, Paper, Published
from .protocols import Protocol, Split, stratified_folds
from .published_vgpmil import PublishedVGPMIL, set_aside

__all__ = ["PAPER", "StoppedVGPMIL"]

# Fraction of the training bags whose AUC is watched; the paper has "a validation subset".
_VALIDATION = 0.2
# Epochs without a rise of it that halt the ascent, as in the paper.
_PATIENCE = 10
_MOST_STEPS = 200

# M, the model, and each score with what stands after ±.
type _Row = tuple[int, str, tuple[tuple[float, float], ...]]

HONEST = Protocol(
    "honest",
    "Five stratified folds. The AUC on a fifth of the training bags halts the ascent; α, β and "
    "the length scale are chosen by three folds inside the training bags.",
    stratified_folds(5),
)
HONEST_ON_DIGITS = Protocol(
    "honest",
    "Five stratified folds. The AUC on a fifth of the training bags halts the ascent; α and β are "
    "chosen by three folds inside the training bags, and the kernel is the paper's.",
    stratified_folds(5),
)
PUBLISHED = Protocol(
    "as published",
    "Five stratified folds. The AUC on a fifth of the training bags halts the ascent; α and β "
    "are those of the highest accuracy on the test bags.",
    stratified_folds(5),
    chosen_by="test bags",
    peeks="α and β are chosen by the accuracy that is reported",
)


def _training_bags(name: str, bags: Bags, seed: int) -> list[Split]:
    """Five stratified folds, not shuffled; each fit is scored on its own training bags."""
    folds = StratifiedKFold(5).split(np.zeros(len(bags)), bags.labels)
    return [(training, training) for training, _ in folds]


BY_THE_SCRIPTS = Protocol(
    "as published",
    "Five stratified folds. The test bags of a fold are not used: the log loss of its training "
    "bags ends the training, and the scores are of these. α and β are those of the highest "
    "accuracy.",
    _training_bags,
    chosen_by="test bags",
    peeks="the bags that are scored are those that were trained on",
)


def _set_aside(name: str, bags: Bags, seed: int) -> list[Split]:
    """Five stratified folds, not shuffled; scored is what `PublishedVGPMIL` sets aside."""
    labels = np.asarray(bags.labels)
    trained = [training for training, _ in StratifiedKFold(5).split(labels, labels)]
    return [(training, training[set_aside(labels[training])[1]]) for training in trained]


BY_THE_SCRIPTS_ON_DIGITS = Protocol(
    "as published",
    "Five stratified folds. The test bags of a fold are not used: the log loss of a tenth of its "
    "training bags, which is not fitted, ends the training, and the scores are of these. α and β "
    "are those of the highest accuracy.",
    _set_aside,
    chosen_by="test bags",
    peeks="the bags that are scored are those that ended the training and chose α and β",
)


class StoppedVGPMIL(ScoresInstances, ProbabilisticBagClassifier):
    """VGPMIL or G-VGPMIL as in the paper's experiments: H = 100, stopped by validation bags.

    Labels of instances are updated with the maximum of the others plugged in, and the probability
    of a bag is the largest one of its instances. The ascent is halted where ten steps in a row have
    not raised the AUC on a fifth of the training bags, and stays where it is then: at the step of
    the highest AUC bags are ranked, but their probabilities are on the wrong side of a half.

    Parameters
    ----------
    num_inducing : int
        M; all distinct instances if these are fewer.
    length_scale : float
        ℓ, in units of the features.
    alpha, beta : float or None
        Of the Gamma scale mixture; None for the logistic likelihood.
    seed : int
        Of the validation bags, k-means and the ascent.
    memory : str, joblib.Memory or None
        Folder in which inducing points are kept: a search over α and β then finds them once.

    Attributes
    ----------
    posterior_ : Posterior
    classes_ : array (2,)
    n_features_in_ : int
    """

    _rules = {
        "num_inducing": WHOLE,
        "length_scale": POSITIVE,
        "alpha": optional(POSITIVE, "for the logistic likelihood"),
        "beta": optional(POSITIVE, "for the logistic likelihood"),
    }

    def __init__(
        self,
        num_inducing: int,
        length_scale: float,
        alpha: float | None = None,
        beta: float | None = None,
        *,
        seed: int,
        memory: str | Memory | None = None,
    ) -> None:
        self.num_inducing = num_inducing
        self.length_scale = length_scale
        self.alpha = alpha
        self.beta = beta
        self.seed = seed
        self.memory = memory

    def _fit(self, bags: Bags) -> None:
        fitted, watched = _split_off(bags, self.seed)
        scale_mixture: dict[str, Any] = {}
        if self.alpha is not None and self.beta is not None:
            scale_mixture = {"scale_mixture": GammaScaleMixture(self.alpha, self.beta)}
        points = check_memory(self.memory).cache(_inducing_points)(
            bags, self.num_inducing, self.seed
        )
        model = VGPMIL(RBF(0.5, self.length_scale), points, sharpness=100.0, **scale_mixture)

        def auc(posterior: Posterior) -> float:
            return float(roc_auc_score(watched.labels, _largest(posterior, watched)))

        self.posterior_ = coordinate_ascent(
            model,
            fitted,
            seed=self.seed,
            label_update="plug_in_max",
            max_steps=_MOST_STEPS,
            tolerance=0.0,
            callback=auc,
            patience=_PATIENCE,
            keep_best=False,
            num_draws=100,
        )

    def _probability(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return _largest(self.posterior_, bags)

    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        return log_odds(_of_instances(self.posterior_, bags))


def _inducing_points(bags: Bags, num_inducing: int, seed: int) -> Float[np.ndarray, "M D"]:
    """Centres of k-means, or all distinct instances if these are fewer."""
    num_inducing = min(num_inducing, num_distinct_rows(np.asarray(bags.instances)))
    return np.asarray(VGPMIL.as_published(bags, num_inducing, seed=seed).inducing_points)


def _split_off(bags: Bags, seed: int) -> tuple[Bags, Bags]:
    """Bags to fit, and stratified ones to watch."""
    splitter = StratifiedShuffleSplit(1, test_size=_VALIDATION, random_state=seed)
    ((fitted, watched),) = splitter.split(np.zeros(len(bags)), bags.labels)
    return bags[np.sort(fitted)], bags[np.sort(watched)]


def _of_instances(posterior: Posterior, bags: Bags) -> Float[np.ndarray, " N"]:
    predicted: Any = posterior.predict(bags.without_labels())
    return predicted.instance_probability


def _largest(posterior: Posterior, bags: Bags) -> Float[np.ndarray, " B"]:
    return np.maximum.reduceat(_of_instances(posterior, bags), bags.starts)


_ALPHA_BETA = {"alpha": [0.5, 1.0], "beta": [1.0, 2.5, 4.0]}


@dataclass(frozen=True)
class _Table:
    """One of the paper's tables of scores.

    Attributes
    ----------
    data : str
    length_scale : float
        √D: the paper's l is D, and our ℓ² is its l.
    features : object
        Transformer of the features, or ``"passthrough"``.
    scores : tuple of str
        In the order of the columns.
    honest : Protocol
    factors : tuple of float
        Of the length scale, to choose from.
    scripts : Protocol
        That of the authors' scripts.
    alpha : tuple of float
        Those of the scripts.
    by_scripts : tuple of int
        M of the rows that are run by it; the others are run by the paper's own words.
    """

    data: str
    length_scale: float
    features: Any
    scores: tuple[str, ...]
    honest: Protocol = HONEST
    factors: tuple[float, ...] = (0.5, 1.0, 2.0)
    scripts: Protocol = BY_THE_SCRIPTS
    alpha: tuple[float, ...] = (1.0,)
    by_scripts: tuple[int, ...] = (50, 100, 200)

    def published_method(
        self, gamma: bool, num_inducing: int, bags: Bags, memory: str | None
    ) -> Choice:
        """The classifier of the scripts or of the paper's words, and the grid of its α and β."""
        if num_inducing not in self.by_scripts:
            return self._stopped(gamma, num_inducing, memory)
        sets_aside = self.scripts is BY_THE_SCRIPTS_ON_DIGITS
        classifier = PublishedVGPMIL(num_inducing, sets_aside=sets_aside, seed=0)
        grid = {"alpha": list(self.alpha), "beta": _ALPHA_BETA["beta"]} if gamma else {}
        features = self.features
        if sets_aside:
            features = make_pipeline(features, StandardizeInstances())
        return on_features(features, classifier, grid, memory)

    def _stopped(self, gamma: bool, num_inducing: int, memory: str | None) -> Choice:
        """The classifier with the paper's kernel, and the grid of its α and β."""
        classifier = StoppedVGPMIL(num_inducing, self.length_scale, seed=0, memory=memory)
        return on_features(self.features, classifier, dict(_ALPHA_BETA) if gamma else {}, memory)

    def honest_method(
        self, gamma: bool, num_inducing: int, bags: Bags, memory: str | None
    ) -> Choice:
        """The classifier, and its grid with length scales added."""
        classifier, grid = self._stopped(gamma, num_inducing, memory)
        scales = [factor * self.length_scale for factor in self.factors]
        return classifier, grid | {"classify__length_scale": scales}

    def cells(self, rows: tuple[_Row, ...], why: Mapping[str, str]) -> tuple[Cell, ...]:
        """Cells of all rows; ``why`` by the name of the method, or by ``""`` of all others."""
        return tuple(self._cell(*row, why) for row in rows)

    def _cell(
        self,
        num_inducing: int,
        method: str,
        numbers: tuple[tuple[float, float], ...],
        why: Mapping[str, str],
    ) -> Cell:
        gamma = method == "G-VGPMIL"
        # The scripts print the sd over five folds, of divisor 5: its standard error is half of it.
        published = {
            score: Published(value, error=sd / 2)
            for score, (value, sd) in zip(self.scores, numbers, strict=True)
        }
        protocol = self.scripts if num_inducing in self.by_scripts else PUBLISHED
        attempts = (
            Attempt(protocol, partial(self.published_method, gamma, num_inducing)),
            Attempt(self.honest, partial(self.honest_method, gamma, num_inducing)),
        )
        name = f"{method}, M = {num_inducing}"
        reason = why.get(name, why.get("", ""))
        return Cell(name, self.data, published, attempts, why=reason)


_BAG_SCORES = ("accuracy", "f1", "auc")
_ALL_SCORES = ("instance_accuracy", "instance_f1", "instance_auc", *_BAG_SCORES)
_MNIST_PCA: tuple[_Row, ...] = (
    (
        50,
        "G-VGPMIL",
        (
            (0.9342, 0.0040),
            (0.6769, 0.0305),
            (0.9232, 0.0056),
            (0.8481, 0.0153),
            (0.8430, 0.0180),
            (0.9166, 0.0136),
        ),
    ),
    (
        50,
        "VGPMIL",
        (
            (0.9296, 0.0013),
            (0.6352, 0.0083),
            (0.9246, 0.0071),
            (0.8438, 0.0110),
            (0.8327, 0.0117),
            (0.9125, 0.0098),
        ),
    ),
    (
        100,
        "G-VGPMIL",
        (
            (0.9431, 0.0029),
            (0.7183, 0.0178),
            (0.9559, 0.0032),
            (0.8841, 0.0139),
            (0.8780, 0.0151),
            (0.9470, 0.0069),
        ),
    ),
    (
        100,
        "VGPMIL",
        (
            (0.9425, 0.0033),
            (0.7171, 0.0209),
            (0.9500, 0.0032),
            (0.8756, 0.0188),
            (0.8699, 0.0203),
            (0.9414, 0.0071),
        ),
    ),
    (
        200,
        "G-VGPMIL",
        (
            (0.9563, 0.0023),
            (0.7962, 0.0137),
            (0.9720, 0.0009),
            (0.9131, 0.0132),
            (0.9110, 0.0140),
            (0.9656, 0.0030),
        ),
    ),
    (
        200,
        "VGPMIL",
        (
            (0.9570, 0.0040),
            (0.8006, 0.0247),
            (0.9695, 0.0020),
            (0.9147, 0.0137),
            (0.9133, 0.0148),
            (0.9654, 0.0056),
        ),
    ),
)
_MNIST_RAW: tuple[_Row, ...] = (
    (
        50,
        "G-VGPMIL",
        (
            (0.9016, 0.0036),
            (0.5365, 0.0448),
            (0.8703, 0.0150),
            (0.7384, 0.0193),
            (0.7500, 0.0274),
            (0.8355, 0.0234),
        ),
    ),
    (
        50,
        "VGPMIL",
        (
            (0.8961, 0.0039),
            (0.3636, 0.0346),
            (0.8549, 0.0094),
            (0.7016, 0.0189),
            (0.6311, 0.0301),
            (0.8035, 0.0168),
        ),
    ),
    (
        100,
        "G-VGPMIL",
        (
            (0.9113, 0.0018),
            (0.5681, 0.0147),
            (0.8827, 0.0056),
            (0.7653, 0.0147),
            (0.7710, 0.0141),
            (0.8581, 0.0114),
        ),
    ),
    (
        100,
        "VGPMIL",
        (
            (0.9052, 0.0016),
            (0.4397, 0.0224),
            (0.8737, 0.0059),
            (0.7522, 0.0074),
            (0.7050, 0.0154),
            (0.8408, 0.0079),
        ),
    ),
    (
        200,
        "G-VGPMIL",
        (
            (0.9160, 0.0024),
            (0.5764, 0.0241),
            (0.8835, 0.0096),
            (0.7822, 0.0114),
            (0.7792, 0.0160),
            (0.8630, 0.0152),
        ),
    ),
    (
        200,
        "VGPMIL",
        (
            (0.9051, 0.0016),
            (0.4338, 0.0107),
            (0.8760, 0.0065),
            (0.7491, 0.0075),
            (0.6986, 0.0099),
            (0.8476, 0.0082),
        ),
    ),
)
_MUSK1: tuple[_Row, ...] = (
    (50, "G-VGPMIL", ((0.8832, 0.0202), (0.8917, 0.0182), (0.9607, 0.0133))),
    (50, "VGPMIL", ((0.8832, 0.0180), (0.8916, 0.0175), (0.9580, 0.0136))),
    (100, "G-VGPMIL", ((0.9050, 0.0224), (0.9078, 0.0209), (0.9711, 0.0160))),
    (100, "VGPMIL", ((0.8886, 0.0178), (0.8956, 0.0171), (0.9682, 0.0137))),
    (200, "G-VGPMIL", ((0.9023, 0.0258), (0.9080, 0.0233), (0.9669, 0.0159))),
    (200, "VGPMIL", ((0.8806, 0.0271), (0.8900, 0.0218), (0.9617, 0.0141))),
)
_MUSK2: tuple[_Row, ...] = (
    (50, "G-VGPMIL", ((0.8308, 0.0298), (0.7806, 0.0382), (0.9006, 0.0247))),
    (50, "VGPMIL", ((0.8358, 0.0412), (0.7790, 0.0609), (0.8978, 0.0219))),
    (100, "G-VGPMIL", ((0.8603, 0.0210), (0.8228, 0.0174), (0.9281, 0.0228))),
    (100, "VGPMIL", ((0.8530, 0.0316), (0.7970, 0.0492), (0.9230, 0.0303))),
    (200, "G-VGPMIL", ((0.8971, 0.0293), (0.8617, 0.0385), (0.9605, 0.0100))),
    (200, "VGPMIL", ((0.8800, 0.0234), (0.8340, 0.0365), (0.9488, 0.0156))),
)

_ON_DIGITS = "(`python benchmarks/vgpmil_on_digits.py`)"
_OF_THE_SCRIPTS = (
    "which bags are scored, and the kernel: the authors' scripts learn it, and score the tenth of "
    "the training bags that ended the training; on musk1 their protocol gives what is printed, and "
    "on digits it is not run here yet"
)
_FINDING_ON_DIGITS = "the authors' scripts score other bags, with a learned kernel"
_WHY_PCA = {
    "": _OF_THE_SCRIPTS,
    "VGPMIL, M = 200": "when the ascent is halted: after five steps instances have 0.956, 0.798 "
    f"and 0.970, and after 12, which is where it is, 0.946, 0.740 and 0.963 {_ON_DIGITS}",
    "G-VGPMIL, M = 100": "where the inducing points stand: instances have 0.950 and 0.771 with "
    "k-means centres of all, as here, and 0.935 and 0.690 with random instances; what is printed "
    f"lies between {_ON_DIGITS}; the scripts have centres of the instances of each label",
}
_WHY_RAW = {
    "": f"{_OF_THE_SCRIPTS}; at random instances in place of k-means centres one or two bags of a "
    "hundred less are right (`python benchmarks/vgpmil_on_digits.py --pixels`)"
}
_WHY_MUSK2 = {
    "": "the bags that are scored: the authors' scripts score the training bags, as in table 6, "
    "where this gives what is printed; the test AUC is 0.50 to 0.82 under eleven settings, and up "
    "to 0.95 on the training bags (`python benchmarks/vgpmil_on_musk.py`)"
}
_RSNA = "the CT scans of RSNA, and the features of the attention network"
_CQ500 = "the CT scans of CQ500, and the features of the attention network"

PAPER = Paper(
    name="castro-macias-2024",
    citation="Castro-Macías, Morales-Álvarez, Wu, Molina and Katsaggelos (2024), Hyperbolic secant "
    "representation of the logistic function: application to probabilistic multiple instance "
    "learning for CT intracranial hemorrhage detection, Artificial Intelligence 331.",
    remarks="What the paper leaves open, the authors' code tells "
    "(github.com/Franblueee/psi-VGPMIL, commit d35e2ef). There are five stratified folds. "
    "On musk1 and musk2 the training bags end the training by their log loss, and the "
    "scores are of these training bags. On MNIST a tenth of the training bags does both, "
    "and the test fold is used for nothing. Kernels start from (v, l) = (0.5, D) and are "
    "learned, without log Z; features are standardised, H is 10¹², inducing points are "
    "k-means centres of the instances of each label. Principal components are those of "
    "all bags. After ± stands the sd over the five folds, and here its standard error, "
    "which is half of it. Table 6 is run by that protocol. Tables 4, 5 and 7 are run by "
    "the paper's own words: the AUC of a validation subset ends the training, the kernel "
    "stays as it starts, and test bags are scored. The kernel is printed as v exp(−‖x − "
    "x'‖/(2l)) and called RBF; it is ‖x − x'‖², so that l is ℓ². Features of musk are "
    "standardised here, and pixels lie between 0 and 1. On digits both protocols have the "
    "same numbers: inner folds choose the α and β that are best on the test bags. Seconds "
    "of the tables of digits were taken beside other work: no order of theirs means "
    "anything.",
    exhibits=(
        Exhibit(
            "figure-1",
            "θ(x) of Pólya-Gamma and of a Gamma scale mixture",
            verdict="reproduced",
            finding="θ(0) is ¼ for Pólya-Gamma and α/β for a Gamma scale mixture, which falls "
            "faster",
            command="make notebooks",
        ),
        Exhibit(
            "table-1",
            "Sizes of the data sets",
            verdict="reproduced",
            finding="MNIST, musk1 and musk2 have the paper's numbers of bags and instances, MNIST "
            "8,750 positive instances in our draw for 8,774; the text of §6.1 swaps the numbers of "
            "positive and negative ones; RSNA and CQ500 are not at hand",
            command='MILZOO_DATA=… python -c "from milzoo.datasets import load; '
            "print(*map(load, ('mnist', 'musk1', 'musk2')), sep='\\n')\"",
        ),
        Exhibit(
            "figure-2",
            "Bags of digits with predictions",
            verdict="reproduced",
            finding="the positive digit is the likeliest of its bag; by equation 36 the positive "
            "bag has a probability of 0.96 ± 0.01 and the negative one 0.95 ± 0.01, so that the "
            "accuracies of the tables are of bags scored by their likeliest instance",
            command="MILZOO_DATA=… python examples/digits_with_uncertainty.py --out "
            "docs/digits_with_uncertainty.png",
            picture="digits_with_uncertainty.png",
        ),
        Exhibit(
            "figure-3",
            "Seconds of training against AUC on MNIST",
            of=("table-4", "table-5"),
            shows="seconds",
        ),
        Exhibit("figure-4", "Scores on MNIST", of=("table-4", "table-5")),
        Exhibit(
            "figure-5",
            "Seconds of training against AUC on musk1 and musk2",
            of=("table-6", "table-7"),
            shows="seconds",
        ),
        Exhibit(
            "figure-6",
            "Scores on musk1 and musk2",
            of=("table-6", "table-7"),
        ),
        Exhibit(
            "figure-7",
            "The attention network",
            missing="a drawing of a network, without numbers",
        ),
        Exhibit("figure-8", "Seconds of training against AUC on RSNA", missing=_RSNA),
        Exhibit("figure-9", "Scores on RSNA", missing=_RSNA),
        Exhibit("figure-10", "A scan of RSNA with predictions", missing=_RSNA),
        Exhibit("table-2", "AUC of several approaches on RSNA", missing=_RSNA),
        Exhibit("figure-11", "Seconds of training against AUC on CQ500", missing=_CQ500),
        Exhibit("figure-12", "Scores on CQ500", missing=_CQ500),
        Exhibit("table-3", "AUC of several approaches on CQ500", missing=_CQ500),
        Exhibit(
            "table-4",
            "Scores on MNIST PCA",
            finding=_FINDING_ON_DIGITS,
            cells=_Table(
                "mnist",
                30**0.5,
                PCAOfInstances(30),
                _ALL_SCORES,
                HONEST_ON_DIGITS,
                (1.0,),
                BY_THE_SCRIPTS_ON_DIGITS,
                by_scripts=(50,),
            ).cells(_MNIST_PCA, _WHY_PCA),
        ),
        Exhibit(
            "table-5",
            "Scores on MNIST RAW",
            finding=_FINDING_ON_DIGITS,
            cells=_Table(
                "mnist",
                784**0.5,
                "passthrough",
                _ALL_SCORES,
                HONEST_ON_DIGITS,
                (1.0,),
                BY_THE_SCRIPTS_ON_DIGITS,
                by_scripts=(50,),
            ).cells(_MNIST_RAW, _WHY_RAW),
        ),
        Exhibit(
            "table-6",
            "Scores on musk1",
            cells=_Table("musk1", 166**0.5, StandardizeInstances(), _BAG_SCORES).cells(_MUSK1, {}),
        ),
        Exhibit(
            "table-7",
            "Scores on musk2",
            finding="the authors' scripts score the training bags, with a learned kernel",
            cells=_Table(
                "musk2", 166**0.5, StandardizeInstances(), _BAG_SCORES, alpha=(0.5, 1.0)
            ).cells(_MUSK2, _WHY_MUSK2),
        ),
        Exhibit("table-8", "Scores on RSNA", missing=_RSNA),
        Exhibit("table-9", "Scores on CQ500", missing=_CQ500),
    ),
)
