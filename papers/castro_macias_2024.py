"""Castro-Macías et al. (2024): tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

# Of a printed table: what stands before the scores, and these, each with what stands after ±.
type _Row = tuple[list[str], list[tuple[float, float]]]

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


def _rows(table: str) -> Iterator[_Row]:
    for line in table.strip().splitlines():
        label, _, numbers = line.partition("|")
        pairs = (number.split("±") for number in numbers.split())
        yield label.split(), [(float(value), float(sd)) for value, sd in pairs]


def _published(scores: tuple[str, ...], numbers: list[tuple[float, float]]) -> dict[str, Published]:
    """The scripts print the sd over five folds, of divisor 5: its standard error is half of it."""
    return {
        score: Published(value, error=sd / 2)
        for score, (value, sd) in zip(scores, numbers, strict=True)
    }


def _of_scans(data: str, scores: tuple[str, ...], table: str, missing: str) -> tuple[Cell, ...]:
    """Cells of scans, which are not at hand."""
    return tuple(
        Cell(f"{m}, D = {d}, M = {n}", data, _published(scores, numbers), missing=missing)
        for (d, n, m), numbers in _rows(table)
    )


def _aucs(data: str, table: Mapping[str, tuple[float, float | None]], missing: str) -> tuple:
    """Cells of several approaches to scans, which are not at hand."""
    return tuple(
        Cell(method, data, {"auc": Published(auc, sd and sd / 2)}, missing=missing)
        for method, (auc, sd) in table.items()
    )


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
    """

    data: str
    length_scale: float
    features: Any
    scores: tuple[str, ...]
    honest: Protocol = HONEST
    factors: tuple[float, ...] = (0.5, 1.0, 2.0)
    scripts: Protocol = BY_THE_SCRIPTS
    alpha: tuple[float, ...] = (1.0,)

    def published_method(
        self, gamma: bool, num_inducing: int, bags: Bags, memory: str | None
    ) -> Choice:
        """The classifier of the scripts, and the grid of its α and β."""
        sets_aside = self.scripts is BY_THE_SCRIPTS_ON_DIGITS
        classifier = PublishedVGPMIL(num_inducing, sets_aside=sets_aside, seed=0)
        grid = {"alpha": list(self.alpha), "beta": _ALPHA_BETA["beta"]} if gamma else {}
        features = self.features
        if sets_aside:
            features = make_pipeline(features, StandardizeInstances())
        return on_features(features, classifier, grid, memory)

    def honest_method(
        self, gamma: bool, num_inducing: int, bags: Bags, memory: str | None
    ) -> Choice:
        """The classifier of the paper's words, and the grid of its α, β and length scale."""
        classifier = StoppedVGPMIL(num_inducing, self.length_scale, seed=0, memory=memory)
        grid = dict(_ALPHA_BETA) if gamma else {}
        grid["length_scale"] = [factor * self.length_scale for factor in self.factors]
        return on_features(self.features, classifier, grid, memory)

    def cells(self, table: str, why: Mapping[str, str]) -> tuple[Cell, ...]:
        """Cells of all rows; ``why`` by the name of the method, or by ``""`` of all others."""
        return tuple(self._cell(*row, why) for row in _rows(table))

    def _cell(
        self, label: list[str], numbers: list[tuple[float, float]], why: Mapping[str, str]
    ) -> Cell:
        num_inducing, method = int(label[0]), label[1]
        gamma = method == "G-VGPMIL"
        published = _published(self.scores, numbers)
        attempts = (
            Attempt(self.scripts, partial(self.published_method, gamma, num_inducing)),
            Attempt(self.honest, partial(self.honest_method, gamma, num_inducing)),
        )
        name = f"{method}, M = {num_inducing}"
        reason = why.get(name, why.get("", ""))
        return Cell(name, self.data, published, attempts, why=reason)


_BAG_SCORES = ("accuracy", "f1", "auc")
_ALL_SCORES = ("instance_accuracy", "instance_f1", "instance_auc", *_BAG_SCORES)
# Tables 4 to 9: M and the model, or D, M and the model; each score with what stands after ±.
_MNIST_PCA = """
50 G-VGPMIL  | .9342±.0040  .6769±.0305  .9232±.0056  .8481±.0153  .8430±.0180  .9166±.0136
50 VGPMIL    | .9296±.0013  .6352±.0083  .9246±.0071  .8438±.0110  .8327±.0117  .9125±.0098
100 G-VGPMIL | .9431±.0029  .7183±.0178  .9559±.0032  .8841±.0139  .8780±.0151  .9470±.0069
100 VGPMIL   | .9425±.0033  .7171±.0209  .9500±.0032  .8756±.0188  .8699±.0203  .9414±.0071
200 G-VGPMIL | .9563±.0023  .7962±.0137  .9720±.0009  .9131±.0132  .9110±.0140  .9656±.0030
200 VGPMIL   | .9570±.0040  .8006±.0247  .9695±.0020  .9147±.0137  .9133±.0148  .9654±.0056
"""
_MNIST_RAW = """
50 G-VGPMIL  | .9016±.0036  .5365±.0448  .8703±.0150  .7384±.0193  .7500±.0274  .8355±.0234
50 VGPMIL    | .8961±.0039  .3636±.0346  .8549±.0094  .7016±.0189  .6311±.0301  .8035±.0168
100 G-VGPMIL | .9113±.0018  .5681±.0147  .8827±.0056  .7653±.0147  .7710±.0141  .8581±.0114
100 VGPMIL   | .9052±.0016  .4397±.0224  .8737±.0059  .7522±.0074  .7050±.0154  .8408±.0079
200 G-VGPMIL | .9160±.0024  .5764±.0241  .8835±.0096  .7822±.0114  .7792±.0160  .8630±.0152
200 VGPMIL   | .9051±.0016  .4338±.0107  .8760±.0065  .7491±.0075  .6986±.0099  .8476±.0082
"""
_MUSK1 = """
50 G-VGPMIL  | .8832±.0202  .8917±.0182  .9607±.0133
50 VGPMIL    | .8832±.0180  .8916±.0175  .9580±.0136
100 G-VGPMIL | .9050±.0224  .9078±.0209  .9711±.0160
100 VGPMIL   | .8886±.0178  .8956±.0171  .9682±.0137
200 G-VGPMIL | .9023±.0258  .9080±.0233  .9669±.0159
200 VGPMIL   | .8806±.0271  .8900±.0218  .9617±.0141
"""
_MUSK2 = """
50 G-VGPMIL  | .8308±.0298  .7806±.0382  .9006±.0247
50 VGPMIL    | .8358±.0412  .7790±.0609  .8978±.0219
100 G-VGPMIL | .8603±.0210  .8228±.0174  .9281±.0228
100 VGPMIL   | .8530±.0316  .7970±.0492  .9230±.0303
200 G-VGPMIL | .8971±.0293  .8617±.0385  .9605±.0100
200 VGPMIL   | .8800±.0234  .8340±.0365  .9488±.0156
"""
_RSNA_SCORES = """
8 50 G-VGPMIL    | .9395±.0020  .7791±.0125  .9508±.0053  .8907±.0172  .8855±.0154  .9595±.0081
8 50 VGPMIL      | .9410±.0016  .7926±.0054  .9592±.0034  .8840±.0100  .8823±.0095  .9594±.0075
8 100 G-VGPMIL   | .9399±.0018  .7823±.0123  .9434±.0045  .8867±.0202  .8818±.0190  .9585±.0080
8 100 VGPMIL     | .9410±.0015  .7903±.0049  .9597±.0036  .8880±.0160  .8851±.0156  .9594±.0076
8 200 G-VGPMIL   | .9401±.0018  .7835±.0109  .9408±.0052  .8867±.0174  .8820±.0164  .9585±.0079
8 200 VGPMIL     | .9411±.0013  .7875±.0041  .9603±.0037  .8933±.0207  .8883±.0211  .9595±.0074
32 50 G-VGPMIL   | .9251±.0103  .7554±.0307  .9418±.0078  .8613±.0229  .8648±.0186  .9572±.0044
32 50 VGPMIL     | .9337±.0080  .7647±.0292  .9523±.0054  .8933±.0189  .8904±.0176  .9573±.0049
32 100 G-VGPMIL  | .9254±.0105  .7563±.0311  .9425±.0075  .8600±.0276  .8641±.0239  .9568±.0053
32 100 VGPMIL    | .9329±.0080  .7600±.0292  .9527±.0053  .8907±.0182  .8873±.0170  .9571±.0053
32 200 G-VGPMIL  | .9266±.0120  .7562±.0344  .9426±.0074  .8640±.0248  .8657±.0204  .9574±.0050
32 200 VGPMIL    | .9325±.0079  .7568±.0287  .9531±.0052  .8893±.0187  .8854±.0180  .9573±.0049
128 50 G-VGPMIL  | .9245±.0069  .7586±.0162  .9407±.0044  .8773±.0124  .8793±.0119  .9648±.0073
128 50 VGPMIL    | .9347±.0070  .7716±.0217  .9529±.0047  .9080±.0154  .9057±.0151  .9658±.0067
128 100 G-VGPMIL | .9276±.0057  .7509±.0178  .9412±.0061  .9067±.0112  .9029±.0121  .9648±.0075
128 100 VGPMIL   | .9353±.0070  .7721±.0219  .9532±.0046  .9120±.0129  .9089±.0130  .9653±.0067
128 200 G-VGPMIL | .9258±.0068  .7601±.0171  .9409±.0047  .8853±.0181  .8858±.0168  .9652±.0065
128 200 VGPMIL   | .9350±.0079  .7683±.0254  .9540±.0047  .9133±.0184  .9097±.0186  .9651±.0068
"""
_CQ500_SCORES = """
8 50 G-VGPMIL    | .8310±.0115  .8115±.0108  .9213±.0058
8 50 VGPMIL      | .8041±.0131  .7923±.0122  .9213±.0063
8 100 G-VGPMIL   | .8322±.0065  .8105±.0073  .9230±.0066
8 100 VGPMIL     | .8110±.0117  .7966±.0109  .9215±.0062
8 200 G-VGPMIL   | .8310±.0093  .8103±.0079  .9208±.0058
8 200 VGPMIL     | .8265±.0082  .8092±.0077  .9217±.0062
32 50 G-VGPMIL   | .8233±.0271  .7900±.0394  .8823±.0284
32 50 VGPMIL     | .8022±.0273  .7752±.0377  .8769±.0298
32 100 G-VGPMIL  | .8245±.0263  .7904±.0391  .8818±.0280
32 100 VGPMIL    | .8063±.0284  .7778±.0384  .8772±.0294
32 200 G-VGPMIL  | .8290±.0230  .7927±.0385  .8825±.0288
32 200 VGPMIL    | .8127±.0309  .7829±.0423  .8783±.0293
128 50 G-VGPMIL  | .8470±.0210  .8216±.0297  .9080±.0174
128 50 VGPMIL    | .8221±.0279  .8044±.0328  .9030±.0180
128 100 G-VGPMIL | .8448±.0170  .8207±.0307  .9113±.0185
128 100 VGPMIL   | .8290±.0237  .8096±.0300  .9029±.0181
128 200 G-VGPMIL | .8485±.0190  .8230±.0321  .9113±.0185
128 200 VGPMIL   | .8327±.0235  .8114±.0306  .9039±.0180
"""

# Tables 2 and 3. The first five have data sets of their own, and print no ±.
_AUC_ON_RSNA = {
    "Saab et al.": (0.91, None),
    "Jnawali et al.": (0.87, None),
    "Titano et al.": (0.88, None),
    "Sato et al.": (0.87, None),
    "Arbabshirani et al.": (0.85, None),
    "VGPMIL": (0.9644, 0.0086),
    "DGPMIL2": (0.957, None),
    "G-VGPMIL": (0.966, 0.0065),
}
_AUC_ON_CQ500 = {
    "Chilamkurthy et al.": (0.94, None),
    "Nguyen et al.": (0.96, None),
    "Monteiro et al.": (0.83, None),
    "VGPMIL": (0.9062, 0.007),
    "DGPMIL2": (0.909, None),
    "G-VGPMIL": (0.923, 0.0066),
}

_WHY_PCA = {
    "G-VGPMIL, M = 50": "the choice of β: with 2.5 instances have an F1 of 0.626, and with 4, "
    "which has the higher accuracy of bags, 0.722; what is printed lies between (`--by-setting`)",
    "G-VGPMIL, M = 100": "the choice of β: 2.5 and 4 have nearly the same accuracy of bags, 0.886 "
    "and 0.889, and with 2.5 instances have 0.943, 0.725 and 0.953, which is near what is printed "
    "(`--by-setting`)",
}
_WHY_RAW = {
    "G-VGPMIL, M = 50": "α, which is 1 in the scripts, where the paper's grid has ½ too: with "
    "α = ½ and β = 2.5 instances have 0.901, 0.582 and 0.885 and bags 0.739, 0.770 and 0.850, all "
    "within two standard errors (`python benchmarks/scripts_varied.py table-5 "
    "--methods 'G-VGPMIL, M = 50' --alpha 0.5 --beta 2.5`)",
    "G-VGPMIL, M = 100": "not found; what is printed lies between two settings: instances have an "
    "F1 of 0.456 with α = 1 and β = 4, and with α = ½ and β = 2.5 one of 0.614 (`python "
    "benchmarks/scripts_varied.py table-5 --methods 'G-VGPMIL, M = 100' --alpha 0.5 --beta 2.5`)",
    "G-VGPMIL, M = 200": "not found; as with M = 100, F1 above all are below what is printed",
    "VGPMIL, M = 100": "not found: one number of six, and by 2.4 standard errors",
    "VGPMIL, M = 200": "not found: in the paper 200 inducing points are no better than 100, and "
    "here they are",
}
_WHY_MUSK2 = {
    "G-VGPMIL, M = 200": "not found: the highest AUC of the six settings is 0.930 (`--by-setting`)",
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
    "centres of the instances of each label by OpenCV's k-means, which starts in a box. "
    "Principal components are those of all bags; here they are of the training bags. After ± "
    "stands the sd over the five folds, and here its standard error, which is half of it. The "
    "column “as published” is by that protocol, the honest one by the paper's own words: the AUC "
    "of a validation subset ends the training, the kernel stays as it starts, and test bags are "
    "scored. The kernel is "
    "printed as v exp(−‖x − x'‖/(2l)) and called RBF; it is ‖x − x'‖², so that l is ℓ². By the "
    "paper's own words features of musk are standardised, and pixels lie between 0 and 1. "
    "Seconds were taken beside other work: no order of theirs means anything. Rows of table 4 with "
    "M = 200 are still of k-means that starts from instances (commit 77ebc75).",
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
        Exhibit(
            "table-2",
            "AUC of several approaches on RSNA",
            _aucs("RSNA", _AUC_ON_RSNA, f"{_RSNA}; the data of the others"),
        ),
        Exhibit("figure-11", "Seconds of training against AUC on CQ500", missing=_CQ500),
        Exhibit("figure-12", "Scores on CQ500", missing=_CQ500),
        Exhibit(
            "table-3",
            "AUC of several approaches on CQ500",
            _aucs("CQ500", _AUC_ON_CQ500, _CQ500),
        ),
        Exhibit(
            "table-4",
            "Scores on MNIST PCA",
            finding="by the authors' scripts all of VGPMIL comes back, and G-VGPMIL but for β",
            cells=_Table(
                "mnist",
                30**0.5,
                PCAOfInstances(30),
                _ALL_SCORES,
                HONEST_ON_DIGITS,
                (1.0,),
                BY_THE_SCRIPTS_ON_DIGITS,
            ).cells(_MNIST_PCA, _WHY_PCA),
        ),
        Exhibit(
            "table-5",
            "Scores on MNIST RAW",
            finding="with k-means as the authors' scripts have it, which starts in the box of all "
            "digits and makes inducing points of single ones, VGPMIL comes back with M = 50, and "
            "but for one number with M = 100; k-means that starts from digits has an accuracy of "
            "0.83 with M = 50, for 0.71 (`python benchmarks/scripts_varied.py table-5 "
            "--from-instances`); G-VGPMIL has more than VGPMIL with each M, as in the paper",
            cells=_Table(
                "mnist",
                784**0.5,
                "passthrough",
                _ALL_SCORES,
                HONEST_ON_DIGITS,
                (1.0,),
                BY_THE_SCRIPTS_ON_DIGITS,
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
            cells=_Table(
                "musk2", 166**0.5, StandardizeInstances(), _BAG_SCORES, alpha=(0.5, 1.0)
            ).cells(_MUSK2, _WHY_MUSK2),
        ),
        Exhibit("table-8", "Scores on RSNA", _of_scans("RSNA", _ALL_SCORES, _RSNA_SCORES, _RSNA)),
        Exhibit(
            "table-9", "Scores on CQ500", _of_scans("CQ500", _BAG_SCORES, _CQ500_SCORES, _CQ500)
        ),
    ),
)
