"""Kandemir and Hamprecht (2014): tables and figures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from ..datasets.bags import Bags
from ..estimators import KISVM, MISVM, BayesianMIL, KernelPCA, miSVM
from .comparators import comparator, comparators, on_features
from .exhibits import Attempt, Cell, Choice, Exhibit, Paper, Published, not_at_hand
from .protocols import Protocol, stratified_folds

__all__ = ["PAPER"]

PUBLISHED = Protocol(
    "as published",
    "Ten folds drawn with the seed; 100 kernel principal components of the training bags. Of DPMIL "
    "nothing is chosen; settings of other methods by three folds inside the training bags.",
    stratified_folds(10),
)
HONEST = Protocol(
    "honest",
    "The same folds. The number of components of DPMIL (10, 20, 50 or 100) is chosen by the "
    "accuracy on bags of three folds inside the training bags, and so are settings of other "
    "methods, which have the standardised features in place of components.",
    stratified_folds(10),
)
TIMED = Protocol(
    "as published",
    "Ten folds drawn with the seed; 100 kernel principal components of the training bags, whose "
    "seconds are not counted. No setting is chosen. Every fold is fitted twice in one process, and "
    "the second fit is timed.",
    stratified_folds(10),
)
FEW_COMPONENTS = Protocol(
    "as published",
    "The same folds; 20 kernel principal components, which do well on them, and the α of the row.",
    stratified_folds(10),
    chosen_by="test bags",
    peeks="20 components had been tried on the folds that are reported",
)


def _dpmil(bags: Bags, memory: str | None) -> Choice:
    """DPMIL with the paper's settings: hard labels, K = 20, α = 2, at most 100 iterations."""
    return on_features(KernelPCA(100), _hard_dpmil(), {})


def _dpmil_of_few(concentration: float, bags: Bags, memory: str | None) -> Choice:
    """The same on 20 components, with another α."""
    return on_features(KernelPCA(20), _hard_dpmil(model__concentration=concentration), {})


def _hard_dpmil(**settings: float) -> BayesianMIL:
    """DPMIL with hard labels and at most 100 iterations; K = 20 and α = 2 are its defaults."""
    return BayesianMIL(
        "dpmil",
        "coordinate_ascent",
        seed=0,
        engine__label_update="hard",
        engine__max_steps=100,
        **settings,
    )


def _dpmil_chosen(bags: Bags, memory: str | None) -> Choice:
    pipeline, _ = _dpmil(bags, memory)
    return pipeline, {"features__num_components": [10, 20, 50, 100]}


def _timed(method: str, bags: Bags, memory: str | None) -> Choice:
    """A method with its default settings; components are kept in the folder ``memory``."""
    every: dict[str, Any] = {
        "DPMIL": _hard_dpmil(),
        "KISVM-B": KISVM("bag"),
        "mi-SVM": miSVM(),
        "KISVM-I": KISVM("instance"),
        "GPMIL": BayesianMIL("gpmil", "laplace", seed=0),
        "MISVM": MISVM(),
    }
    return on_features(KernelPCA(100), every[method], {}, memory)


def _on_components(name: str, bags: Bags, memory: str | None) -> Choice:
    """A comparator on 100 kernel principal components."""
    return on_features(KernelPCA(100), *comparators(100, memory)[name], memory)


_AT_HAND, _HOCKEY = "rec.sport.hockey", "newsgroups/rec_sport_hockey"
_COMPARATORS = {
    "B-KISVM": "Bag-KI-SVM",
    "miSVM": "mi-SVM",
    "I-KISVM": "Inst-KI-SVM",
    "GPMIL": "GPMIL-S",
    "MISVM": "MI-SVM",
}
_COLUMNS = ("DPMIL", "B-KISVM", "miSVM", "I-KISVM", "GPMIL", "MISVM")
_SCORES = {
    "alt.atheism": (0.67, 0.68, 0.53, 0.46, 0.44, 0.38),
    "comp.graphics": (0.79, 0.47, 0.65, 0.62, 0.49, 0.07),
    "comp.os.ms-windows.misc": (0.51, 0.38, 0.42, 0.14, 0.36, 0.03),
    "comp.sys.ibm.pc.hardware": (0.67, 0.31, 0.57, 0.38, 0.35, 0.10),
    "comp.sys.mac.hardware": (0.76, 0.39, 0.56, 0.64, 0.54, 0.27),
    "comp.windows.x": (0.73, 0.37, 0.56, 0.35, 0.36, 0.04),
    "misc.forsale": (0.45, 0.29, 0.31, 0.25, 0.33, 0.10),
    "rec.autos": (0.76, 0.45, 0.51, 0.42, 0.38, 0.34),
    "rec.motorcycles": (0.69, 0.52, 0.09, 0.61, 0.46, 0.27),
    "rec.sport.baseball": (0.74, 0.52, 0.18, 0.41, 0.38, 0.22),
    "rec.sport.hockey": (0.91, 0.66, 0.27, 0.64, 0.43, 0.75),
    "sci.crypt": (0.68, 0.47, 0.57, 0.26, 0.31, 0.32),
    "sci.electronics": (0.90, 0.42, 0.83, 0.65, 0.71, 0.34),
    "sci.med": (0.73, 0.55, 0.37, 0.44, 0.32, 0.44),
    "sci.space": (0.70, 0.51, 0.46, 0.33, 0.32, 0.20),
    "soc.religion.christian": (0.72, 0.53, 0.05, 0.45, 0.45, 0.40),
    "talk.politics.guns": (0.64, 0.43, 0.57, 0.32, 0.38, 0.01),
    "talk.politics.mideast": (0.80, 0.60, 0.77, 0.49, 0.46, 0.60),
    "talk.politics.misc": (0.60, 0.50, 0.61, 0.38, 0.29, 0.30),
    "talk.religion.misc": (0.51, 0.32, 0.08, 0.34, 0.32, 0.04),
}
_WHY_DPMIL = (
    "60 positive posts are few for Gaussians in 100 dimensions: told all labels of the training "
    "posts, the same model has 0.71 (`python benchmarks/dpmil_newsgroups.py`); with 20 components "
    "it has 0.86 ± 0.03 without them, 1.9 standard errors below what is printed, with an α of 0.5, "
    "2 or 8; chosen inside the training bags, the number of components gives 0.77"
)
_WHY_KEYS = (
    "which instances of a bag are ranked: these methods are said to find one of each bag, and "
    "where it alone keeps its score both KISVM have 0.68 to 0.74 and MISVM 0.70 to 0.74 over six "
    "settings; with all ranked they have 0.83 to 0.95 (`python benchmarks/hockey_by_setting.py`)"
)
_WHY_MI_SVM = (
    "how folds are ranked: with all of them together miSVM has 0.33 ± 0.06 at ℓ = 10 and C = 1, "
    "and 0.39 to 0.41 at four of five other settings, as scores of one fold's machine are not "
    "those of another's; fold by fold it has 0.56 to 0.59 there "
    "(`python benchmarks/hockey_by_setting.py`)"
)
_WHY_GPMIL = (
    "the length scale, which the paper does not tell: GPMIL-S has 0.14 at the median distance of "
    "instances, which is its default, and 0.92 at 0.1 (`python benchmarks/hockey_by_setting.py`)"
)
# Of text categorization and of Barrett's cancer.
_SECONDS = {
    "DPMIL": (2.9, 44.7),
    "KISVM-B": (11.0, 107.7),
    "mi-SVM": (12.2, 126.6),
    "KISVM-I": (10.1, 15.3),
    "GPMIL": (90.5, 1491.7),
    "MISVM": (4.1, 10.8),
}
_WHY_SECONDS = (
    "the machine and the programs, ten years apart: solvers of support vector machines have become "
    "quicker, and the Laplace approximation is compiled"
)


def _seconds(method: str) -> Cell:
    published = {"seconds": Published(_SECONDS[method][0])}
    attempts = (Attempt(TIMED, partial(_timed, method)),)
    return Cell(method, _HOCKEY, published, attempts, why=_WHY_SECONDS)


def _cell(data: str, method: str, score: float) -> Cell:
    published = {"instance_average_precision": Published(score)}
    if data != _AT_HAND:
        missing = "labels of instances, or the set itself, are not at hand"
        return Cell(method, data, published, missing=missing)
    published |= {"instance_f1": Published(), "auc": Published()}
    if method == "DPMIL":
        attempts = (Attempt(PUBLISHED, _dpmil), Attempt(HONEST, _dpmil_chosen))
        return Cell(method, _HOCKEY, published, attempts, why=_WHY_DPMIL)
    known = _COMPARATORS[method]
    attempts = (
        Attempt(PUBLISHED, partial(_on_components, known)),
        Attempt(HONEST, comparator(known)),
    )
    why = {"GPMIL": _WHY_GPMIL, "miSVM": _WHY_MI_SVM}.get(method, _WHY_KEYS)
    return Cell(method, _HOCKEY, published, attempts, why=why)


# Sets whose posts have no labels here, so that bags are ranked.
_WITHOUT_LABELS = (
    "newsgroups/alt_atheism",
    "newsgroups/comp_graphics",
    "newsgroups/comp_sys_mac_hardware",
    "newsgroups/rec_autos",
    "newsgroups/sci_crypt",
    "newsgroups/sci_electronics",
    "newsgroups/sci_space",
    "newsgroups/talk_politics_guns",
    "newsgroups/talk_religion_misc",
)


def _of_bags(data: str) -> Iterator[Cell]:
    """Two methods on a set for which the paper has no AUC of bags."""
    for method, made in (
        ("DPMIL", _dpmil),
        ("MISVM", partial(_on_components, _COMPARATORS["MISVM"])),
    ):
        yield Cell(method, data, {"auc": Published()}, (Attempt(PUBLISHED, made),))


def _of_few_components(concentration: float) -> Cell:
    """DPMIL on hockey, with an α that may be another than the paper's."""
    attempt = Attempt(FEW_COMPONENTS, partial(_dpmil_of_few, concentration))
    scores = {"instance_average_precision": Published(), "auc": Published()}
    return Cell(f"DPMIL, 20 components, α = {concentration:g}", _HOCKEY, scores, (attempt,))


def _mi_kernel(data: str) -> Cell:
    """What the paper does not compare with."""
    attempt = Attempt(HONEST, comparator("MI-Kernel"))
    return Cell("MI-Kernel", data, {"auc": Published()}, (attempt,))


_BARRETT = "the Barrett's cancer images"
_PATCHES = {
    "DPMIL": (0.718, 0.74),
    "GPMIL": (0.658, 0.54),
    "I-KISVM": (0.654, 0.45),
    "B-KISVM": (0.647, 0.48),
    "mi-SVM": (0.627, 0.71),
    "MISVM": (0.469, 0.64),
    "SVM on labels of patches": (0.835, 0.82),
}

PAPER = Paper(
    name="kandemir-2014",
    citation="Kandemir and Hamprecht (2014), Instance label prediction by Dirichlet process "
    "multiple instance learning, UAI.",
    remarks="Ten folds, “the standard data splits”, which are not published with the data at hand. "
    "Features of all methods are 100 kernel principal components, ℓ = √100. The averages of VF and "
    "VFr are from another paper; VF is not built here, as neither paper tells its graph. Where "
    "instances have no labels here, bags are ranked; `python benchmarks/dpmil_all_newsgroups.py` "
    "does so with 20 components too, with three values of α.",
    exhibits=(
        Exhibit(
            "figure-1",
            "A scene of bags and clusters",
            verdict="reproduced",
            finding="in a scene drawn after the figure DPMIL finds three clusters of negative "
            "instances and two of positive ones",
            command="python examples/clusters_of_witnesses.py --out docs",
            picture="kandemir2014_scene.png",
        ),
        Exhibit(
            "figure-2",
            "The model as a graph",
            missing="a drawing of the model, without numbers; `DPMIL` is that model",
        ),
        Exhibit(
            "table-1",
            "AUC-PR of instances on twenty newsgroups",
            finding="DPMIL has few positive posts for 100 dimensions, and comes near what is "
            "printed with 20 where the reported folds choose; KI-SVM and MI-SVM come near "
            "what is printed where one instance of each bag is ranked, and mi-SVM where all folds "
            "are ranked together; length scales are not told; of the nine sets where bags are "
            "ranked MI-SVM has a higher AUC than DPMIL on eight",
            cells=(
                *(
                    _cell(data, method, score)
                    for data, row in _SCORES.items()
                    for method, score in zip(_COLUMNS, row, strict=True)
                ),
                *chain.from_iterable(map(_of_bags, _WITHOUT_LABELS)),
                *map(_of_few_components, (0.5, 2.0, 8.0)),
                *map(_mi_kernel, (_HOCKEY, *_WITHOUT_LABELS)),
            ),
        ),
        Exhibit(
            "table-2",
            "Accuracy and F1 on Barrett's cancer",
            not_at_hand(
                _PATCHES,
                (("Barrett's cancer", "instance_accuracy"), ("Barrett's cancer", "instance_f1")),
                _BARRETT,
            ),
        ),
        Exhibit("figure-3", "Predicted patches of tissue cores", missing=_BARRETT),
        Exhibit(
            "figure-4",
            "Weights of the clusters on Barrett's cancer",
            missing=_BARRETT,
            finding="in the scene of figure 1 coordinate ascent has 4.3 clusters of negative "
            "instances and 3.2 of positive ones",
            command="python examples/clusters_of_witnesses.py --out docs",
            picture="kandemir2014_components.png",
        ),
        Exhibit(
            "figure-5",
            "Patches of three clusters",
            missing=_BARRETT,
            finding="in bags of MNIST digits the five largest positive clusters are two ways of "
            "writing a 2 and three of writing a 9, and the sixth is of 7s",
            command="MILZOO_DATA=… python examples/exemplars_of_clusters.py --out "
            "docs/exemplars_of_clusters.png",
            picture="exemplars_of_clusters.png",
        ),
        Exhibit("figure-6", "The bound by iteration on Barrett's cancer", missing=_BARRETT),
        Exhibit(
            "table-3",
            "Seconds of training",
            (
                *map(_seconds, _SECONDS),
                *not_at_hand(
                    {method: seconds[1:] for method, seconds in _SECONDS.items()},
                    (("Barrett's cancer", "seconds"),),
                    _BARRETT,
                ),
            ),
            finding="in text DPMIL is the quickest of six in the paper and the slowest here, with "
            "five starts",
        ),
    ),
)
