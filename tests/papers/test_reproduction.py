"""Attempts: what is fitted on which bags, what is kept, and what is not run again."""

import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from milzoo.datasets import load
from milzoo.diagnostics import cross_validate_bags
from milzoo.estimators import MIKernelSVM, ScoreLearner
from milzoo.models import NeighbourScore
from milzoo.papers import (
    Attempt,
    Cell,
    Exhibit,
    Paper,
    Protocol,
    Published,
    reproduce,
    reproduction,
    scores_by_setting,
)
from milzoo.papers.results import read, read_all
from sklearn.model_selection import (
    GridSearchCV,
    ParameterGrid,
    ShuffleSplit,
    StratifiedKFold,
    cross_val_score,
)

from .conftest import DATA, GRID, HONEST, neighbours

FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)


def threes(name, bags, seed):
    return list(FOLDS.split(np.zeros(len(bags)), bags.labels))


def only_neighbours(bags, memory):
    return ScoreLearner(NeighbourScore(12)), {}


@pytest.fixture(scope="module")
def known(paper, tmp_path_factory):
    """The first table run whole: its results, and the folder that has them."""
    folder = tmp_path_factory.mktemp("known")
    return reproduce(paper, paper.exhibits[0], folder, jobs=1, report=[].append), folder


@pytest.fixture
def again(known, tmp_path):
    """The results of the first table, which `run` then finds as known."""
    results, folder = known
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return results


@pytest.fixture
def run(paper, tmp_path):
    """Run a table of the made-up paper; its results, and what was reported."""

    def run(number=0, paper=paper, folder=tmp_path, **options):
        said = []
        settings = {"jobs": 1, "report": said.append} | options
        return reproduce(paper, paper.exhibits[number], folder, **settings), said

    return run


def value(results, method, protocol, score):
    (found,) = [
        one for one in results if (one.method, one.protocol, one.score) == (method, protocol, score)
    ]
    return found


@pytest.mark.in_ci
def test_an_honest_attempt_is_a_nested_search(known):
    bags = load(DATA)
    inner = StratifiedKFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(neighbours(bags, None)[0], GRID, cv=inner, scoring="accuracy")
    expected = cross_val_score(search, bags, bags.labels, cv=FOLDS)
    found = value(known[0], "neighbours", "honest", "accuracy")
    assert found.value == pytest.approx(expected.mean(), abs=1e-6)
    assert found.sd == pytest.approx(expected.std(ddof=1), abs=1e-6)
    assert (found.num_splits, found.num_tested, found.setting) == (3, 40, "")


@pytest.mark.in_ci
def test_the_test_bags_choose_where_the_paper_let_them(known):
    bags = load(DATA)
    means = {
        f"neighbourhood_score={setting['neighbourhood_score']}": cross_val_score(
            ScoreLearner(**setting), bags, bags.labels, cv=FOLDS
        ).mean()
        for setting in ParameterGrid(GRID)
    }
    found = value(known[0], "neighbours", "as published", "accuracy")
    assert found.value == pytest.approx(max(means.values()), abs=1e-6)
    assert found.setting == max(means, key=means.__getitem__)


def test_seconds_are_of_the_middle_split(run, monkeypatch):
    """The first fit compiles."""

    def timed(candidates, *arguments, **options):
        found = cross_validate_bags(candidates, *arguments, **options)
        seconds = {name: [9.0, 1.0, 2.0] for name in candidates}
        return SimpleNamespace(by_fold=found.by_fold, fit_seconds=seconds)

    monkeypatch.setattr(reproduction, "cross_validate_bags", timed)
    found = value(run(protocols=["honest"])[0], "neighbours", "honest", "accuracy")
    assert found.fit_seconds == 2.0


def test_seconds_as_a_score_are_of_a_second_fit(monkeypatch):
    """The first one compiles, and leaves transformed bags in the folder."""
    calls = []

    def timed(candidates, *arguments, jobs):
        found = cross_validate_bags(candidates, *arguments, jobs=1)
        calls.append(jobs)
        seconds = {name: np.full(3, 9.0 / len(calls) ** 2) for name in candidates}
        return SimpleNamespace(by_fold=found.by_fold, fit_seconds=seconds)

    monkeypatch.setattr(reproduction, "cross_validate_bags", timed)
    cell = Cell("one", DATA, {"seconds": Published(2.0)}, (Attempt(HONEST, only_neighbours),))
    table = Exhibit("table-1", "Seconds", (cell,))
    paper = Paper("author-2000", "Author (2000)", (table,), remarks="")
    found = {one.score: one.value for one in reproduce(paper, table, None, jobs=2)}
    assert calls == [1, 1]
    assert found["seconds"] == 2.25
    assert found["accuracy"] > 0.5


def test_the_best_of_splits_is_reported_with_its_size(known):
    bags = load(DATA)
    splits = ShuffleSplit(3, test_size=1 / 3, random_state=0)
    inner = StratifiedKFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(neighbours(bags, None)[0], GRID, cv=inner, scoring="accuracy")
    expected = cross_val_score(search, bags, bags.labels, cv=splits, scoring="roc_auc")
    found = value(known[0], "best of three", "as published", "auc")
    assert found.value == pytest.approx(expected.max(), abs=1e-6)
    assert found.num_tested == 14
    assert math.isnan(found.sd)


@pytest.mark.in_ci
def test_the_test_bags_set_the_threshold_where_they_did():
    """Every threshold between two decision values, and beyond them, is tried."""
    bags = load(DATA)
    splits = list(FOLDS.split(np.zeros(len(bags)), bags.labels))
    peeking = Protocol(
        "as published", "Three folds.", threes, threshold_by="test bags", peeks="thresholds"
    )
    found = reproduction.scores_of_attempt(
        Attempt(peeking, only_neighbours), bags, splits, seed=0, jobs=1
    ).by_split["accuracy"]
    for (training, test), accuracy in zip(splits, found, strict=True):
        fitted = ScoreLearner(NeighbourScore(12)).fit(bags[training])
        decision, truth = fitted.decision_function(bags[test]), bags.labels[test]
        thresholds = [*decision, np.inf]
        best = max(np.mean((decision >= one) == truth) for one in thresholds)
        assert accuracy == pytest.approx(best)
    assert (
        found.mean()
        > cross_val_score(ScoreLearner(NeighbourScore(12)), bags, bags.labels, cv=FOLDS).mean()
    )


def test_what_is_known_is_not_run_again(run, again, monkeypatch):
    monkeypatch.setattr(reproduction, "cross_validate_bags", None)
    second, said = run()
    assert list(map(str, second)) == list(map(str, again))  # NaN is not itself
    assert [sentence.endswith("known") for sentence in said] == [True] * 3
    with pytest.raises(TypeError):
        run(again=True)


def test_the_same_attempt_of_another_table_is_taken_over(run, again, paper, monkeypatch):
    monkeypatch.setattr(reproduction, "cross_validate_bags", None)
    found, _ = run(1)
    assert {one.method for one in found} == {"kNN"}
    expected = value(again, "neighbours", "honest", "accuracy").value
    assert value(found, "kNN", "honest", "accuracy").value == expected
    # Where two tables have it, it is taken over once.
    third = replace(paper.exhibits[1], name="table-3")
    found, _ = run(1, paper=replace(paper, exhibits=(paper.exhibits[0], third)))
    assert value(found, "kNN", "honest", "accuracy").value == expected


@pytest.mark.usefixtures("again")
def test_an_attempt_with_other_settings_is_run_again(run, paper):
    """The method's grid has changed; the result that is out of date is gone."""
    wider = GRID | {"min_positive": [1, 2]}
    cell = paper.exhibits[0].cells[0]
    attempts = tuple(
        replace(attempt, method=lambda bags, memory: (neighbours(bags, memory)[0], wider))
        for attempt in cell.attempts
    )
    exhibit = replace(paper.exhibits[0], cells=(replace(cell, attempts=attempts),))
    changed = replace(paper, exhibits=(exhibit,))
    results, said = run(paper=changed)
    assert not any(sentence.endswith("known") for sentence in said)
    accuracies = [one for one in results if one.score == "accuracy" and one.method == "neighbours"]
    assert len(accuracies) == 2


def test_a_folder_of_kernels_leaves_the_fingerprint(paper):
    cell = paper.exhibits[0].cells[0]

    def of(**settings):
        attempt = replace(cell.attempts[0], method=lambda *_: (MIKernelSVM(**settings), {}))
        return reproduction.fingerprint(cell, attempt, load(DATA), seed=0)

    assert of(memory="kernels") == of()
    assert of(penalty=2.0) != of()


@pytest.mark.in_ci
def test_a_run_that_is_stopped_keeps_what_it_has(run, tmp_path, monkeypatch):
    real, calls = reproduction.cross_validate_bags, []

    def stopped(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(reproduction, "cross_validate_bags", stopped)
    with pytest.raises(KeyboardInterrupt):
        run()
    path = tmp_path / "author-2000" / "table-1.csv"
    assert {one.protocol for one in read(path)} == {"as published"}
    results, said = run()
    assert [sentence.endswith("known") for sentence in said] == [True, False, False]
    assert list(map(str, read(path))) == list(map(str, read_all(tmp_path)))
    assert [one.attempt for one in read(path)] == [one.attempt for one in results]


def test_every_score_that_applies_is_kept(known):
    """Instances have labels in this scene."""
    scores = {one.score for one in known[0] if one.protocol == "honest"}
    assert {"accuracy", "auc", "f1", "instance_auc", "instance_average_precision"} <= scores
    assert "log_loss" not in scores


def test_a_toy_runs_each_method_once_and_keeps_nothing(run, tmp_path):
    results, _ = run(folder=None, toy=True)
    assert {(one.method, one.num_splits) for one in results} == {
        ("neighbours", 2),
        ("best of three", 2),
    }
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("again")
def test_results_of_methods_that_left_the_table_are_dropped(run, paper):
    (first, *_) = paper.exhibits[0].cells
    shorter = replace(paper.exhibits[0], cells=(replace(first, attempts=first.attempts[1:]),))
    results, _ = run(paper=replace(paper, exhibits=(shorter,)), again=True)
    assert {one.attempt[::2] for one in results} == {("neighbours", "honest")}


def test_protocols_methods_and_data_can_be_chosen(run, paper):
    results, _ = run(protocols=("honest",), methods=("neighbours",))
    assert {(one.method, one.protocol) for one in results} == {("neighbours", "honest")}
    (first, *others) = paper.exhibits[0].cells
    two = replace(paper.exhibits[0], cells=(replace(first, data="not at hand"), *others))
    results, _ = run(paper=replace(paper, exhibits=(two,)), folder=None, data=(DATA,))
    assert {one.method for one in results} == {"best of three"}


def test_scores_of_settings_are_on_test_bags(known, paper):
    ((cell, attempt, scores),) = scores_by_setting(
        paper.exhibits[0], protocols=("as published",), methods=("neighbours",), jobs=1
    )
    assert (cell.method, attempt.protocol.name) == ("neighbours", "as published")
    assert len(scores) == len(ParameterGrid(GRID))
    chosen = value(known[0], "neighbours", "as published", "accuracy")
    assert scores["accuracy"].max() == pytest.approx(chosen.value, abs=1e-6)
    assert scores["accuracy"].idxmax() == chosen.setting
    cell = paper.exhibits[0].cells[0]
    fixed = replace(cell.attempts[0], method=lambda bags, memory: (neighbours(bags, memory)[0], {}))
    exhibit = replace(paper.exhibits[0], cells=(replace(cell, attempts=(fixed,)),))
    assert not list(scores_by_setting(exhibit, jobs=1))


def test_nothing_of_a_test_bag_is_seen_in_fitting(run, paper):
    """A planted method that remembers bags: its test bags are never among them."""

    class Remembers(ScoreLearner):
        def fit(self, bags, y=None):
            self.seen_ = set(bags.names)
            return super().fit(bags, y)

        def decision_function(self, bags):
            assert bags.labels is None or len(bags) < 40
            return np.array([float(name in self.seen_) for name in bags.names])

        def predict(self, bags):
            return self.classes_[self.decision_function(bags).astype(int)]

    cell = paper.exhibits[0].cells[0]
    honest = replace(
        cell.attempts[1], method=lambda bags, memory: (Remembers(NeighbourScore(1)), {})
    )
    exhibit = replace(paper.exhibits[0], cells=(replace(cell, attempts=(honest,)),))
    results, _ = run(paper=replace(paper, exhibits=(exhibit,)), folder=None)
    # No test bag is remembered: all are predicted 0, and half of the bags are.
    assert value(results, "neighbours", "honest", "accuracy").value == pytest.approx(0.5, abs=0.06)
    assert value(results, "neighbours", "honest", "f1").value == 0
