"""Cross-validation of several classifiers: folds, paired differences, corrected intervals."""

from __future__ import annotations

import numpy as np
import pytest
from milzoo.datasets import load
from milzoo.diagnostics import cross_validate_bags
from milzoo.diagnostics.checks.cross_validation import _holm, corrected_interval
from milzoo.diagnostics.measures.reliability import reliability
from milzoo.estimators import BayesianMIL, ScoreLearner
from milzoo.models import VWSGP, NeighbourScore
from scipy.integrate import quad
from scipy.special import gamma
from sklearn.model_selection import StratifiedKFold

CLASSIFIERS = {
    "k = 1": ScoreLearner(NeighbourScore(1)),
    "k = 3": ScoreLearner(NeighbourScore(3)),
}


@pytest.fixture(scope="module")
def scene():
    return load("kandemir2014")


@pytest.fixture(scope="module")
def found(scene):
    return cross_validate_bags(CLASSIFIERS, scene, 4, repeats=2, seed=0, jobs=1)


@pytest.mark.in_ci
def test_each_fold_is_scored_on_its_test_bags(scene, found):
    assert len(found.folds) == 8
    for fold, (training, test) in enumerate(found.folds):
        fitted = ScoreLearner(NeighbourScore(3)).fit(scene[training])
        assert found.by_fold.loc[("k = 3", fold), "accuracy"] == fitted.score(scene[test])
    tested = np.sort(np.concatenate([test for _, test in found.folds]))
    np.testing.assert_array_equal(tested, np.repeat(np.arange(len(scene)), 2))


@pytest.mark.slow
def test_the_table_has_means_over_folds(found):
    table = found.table()
    assert list(table.index) == list(CLASSIFIERS)
    means = found.by_fold.loc["k = 1"].mean()
    assert table.loc["k = 1", "auc"] == pytest.approx(means["auc"])
    assert "log_loss" not in table  # neighbourhood scores are no probabilities
    assert {"instance_auc", "instance_f1", "fit_seconds", "predict_seconds"} <= set(table)


def test_differences_are_paired(found):
    difference = found.differences("auc").loc["k = 3"]
    by_fold = found.by_fold["auc"]
    paired = by_fold.loc["k = 3"] - by_fold.loc["k = 1"]
    assert difference["difference"] == pytest.approx(paired.mean())
    assert difference["num_folds"] == 8
    assert found.test_ratio == pytest.approx(1 / 3)
    turned = found.differences("auc", reference="k = 3").loc["k = 1"]
    assert turned["difference"] == pytest.approx(-paired.mean())
    assert turned["low"] == pytest.approx(-difference["high"])


def test_interval_has_nadeau_and_bengios_width():
    """By Student's density, integrated here."""
    differences = np.array([0.3, -0.1, 0.2, 0.0, np.nan])
    mean, low, high, p, num = corrected_interval(differences, 1 / 3, 0.9)
    assert (mean, num) == (pytest.approx(0.1), 4)
    error = np.sqrt((1 / 4 + 1 / 3) * np.sum((differences[:4] - 0.1) ** 2) / 3)

    def density(t):  # of 3 degrees of freedom
        return gamma(2) / (np.sqrt(3 * np.pi) * gamma(1.5)) * (1 + t**2 / 3) ** -2

    assert quad(density, (low - mean) / error, (high - mean) / error)[0] == pytest.approx(0.9)
    assert p == pytest.approx(2 * quad(density, mean / error, np.inf)[0])


def test_intervals_of_few_or_equal_differences():
    assert corrected_interval(np.array([0.2]), 0.1, 0.9)[0] == 0.2
    assert np.isnan(corrected_interval(np.array([0.2]), 0.1, 0.9)[1:4]).all()
    assert corrected_interval(np.full(3, 0.0), 0.1, 0.9) == (0.0, 0.0, 0.0, 1.0, 3)
    assert corrected_interval(np.full(3, 0.5), 0.1, 0.9) == (0.5, 0.5, 0.5, 0.0, 3)


@pytest.mark.in_ci
def test_the_correction_keeps_its_level_where_folds_overlap():
    """Differences of folds with equal correlation ρ = n_test/(n_test + n_train), and mean 0.

    That is the correlation that Nadeau and Bengio's correction assumes. Of 4,000 intervals at 95 %,
    the number that misses 0 is binomial: 137 to 265 with a probability above 1 − 1e-5. Uncorrected
    ones miss it in a fifth to a quarter.
    """
    random = np.random.default_rng(0)
    ratio, num = 1 / 9, 10
    correlation = ratio / (1 + ratio)
    shared = np.sqrt(correlation) * random.normal(size=(4000, 1))
    drawn = shared + np.sqrt(1 - correlation) * random.normal(size=(4000, num))
    p = np.array([corrected_interval(one, ratio, 0.95)[3] for one in drawn])
    uncorrected = np.array([corrected_interval(one, 0.0, 0.95)[3] for one in drawn])
    assert 137 <= np.sum(p < 0.05) <= 265
    assert np.mean(uncorrected < 0.05) > 0.1


def test_holm_corrects_for_the_number_of_comparisons():
    found = _holm(np.array([0.04, 0.01, np.nan, 0.03]))
    np.testing.assert_allclose(found, [0.06, 0.03, np.nan, 0.06])


def test_folds_come_in_several_forms(scene):
    splitter = StratifiedKFold(4)
    pairs = list(splitter.split(scene.labels, scene.labels))
    tested_in = np.empty((len(scene), 1), dtype=int)
    for fold, (_, test) in enumerate(pairs):
        tested_in[test] = fold + 1
    few = {"k = 1": CLASSIFIERS["k = 1"]}
    tables = [
        cross_validate_bags(few, scene, folds, jobs=1).by_fold
        for folds in (splitter, pairs, tested_in)
    ]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


@pytest.mark.slow
def test_processes_give_the_same_as_one(scene, found):
    two = cross_validate_bags(CLASSIFIERS, scene, 4, repeats=2, seed=0, jobs=2)
    np.testing.assert_array_equal(found.by_fold, two.by_fold)


@pytest.mark.slow
def test_probabilities_of_all_folds_have_one_calibration(scene):
    vwsgp = BayesianMIL(VWSGP, "coordinate_ascent", seed=0, model__num_inducing=10)
    classifiers = {"VWSGP": vwsgp} | CLASSIFIERS
    found = cross_validate_bags(classifiers, scene, 2, seed=0, jobs=1)
    parts = found.classifications["VWSGP"]
    together = np.concatenate([part.probability for part in parts])
    truth = np.concatenate([part.truth for part in parts])
    assert found.table().loc["VWSGP", "calibration_error"] == reliability(together, truth).error
    with pytest.raises(ValueError, match="k = 1 gives no probabilities"):
        found.reliability_of("k = 1")


def test_bad_input_is_refused(scene, found):
    with pytest.raises(ValueError, match="there are no classifiers; expected at least one"):
        cross_validate_bags({}, scene, 2, seed=0)
    with pytest.raises(TypeError, match="seed is None; expected an integer"):
        cross_validate_bags(CLASSIFIERS, scene, 2, jobs=1)
    with pytest.raises(ValueError, match=r"folds have shape \(3,\) and type int64; expected \(40,"):
        cross_validate_bags(CLASSIFIERS, scene, np.array([1, 2, 1]), jobs=1)
    with pytest.raises(ValueError, match="bags have no labels; expected bags that are labelled"):
        cross_validate_bags(CLASSIFIERS, scene.without_labels(), 2, seed=0)
    none = {"none": ScoreLearner(NeighbourScore(1), min_positive=0)}
    with pytest.raises(RuntimeError, match="none failed on fold 0: ScoreLearner min_positive is"):
        cross_validate_bags(none, scene, 2, seed=0, jobs=1)
    with pytest.raises(ValueError, match="unknown score 'aucc'; did you mean 'auc'"):
        found.differences("aucc")
    with pytest.raises(ValueError, match="unknown reference 'k = 2'; did you mean"):
        found.differences("auc", reference="k = 2")
