"""The papers' tables as they were typed: what the papers themselves add up, and what is said."""

import re
from pathlib import Path

import numpy as np
import pytest
from milzoo.datasets import available, load
from milzoo.papers import PAPERS, Published, exhibits_named, outcomes_of
from milzoo.papers.reproduction import attempts_of, fingerprint
from milzoo.papers.results import outcome_of, read

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TABLES = [(paper, exhibit) for paper in PAPERS for exhibit in paper.exhibits if exhibit.cells]
# Printed below or beside the tables.
HAJIMIRSADEGHI_AVERAGES = {
    "MICPM": 79.8,
    "MICPK-SVM": 83.2,
    "MICPKL": 85.2,
    "MIMN": 83.2,
    "MIRealBoost": 77.4,
    "ClassSetMaxRBM-XOR": 79.8,
    "MI-CRF": 81.8,
    "MIGraph": 81.6,
    "miGraph": 83.0,
    "ALP-SVM": 81.6,
    "MILES": 78.8,
    "MI-Kernel": 81.0,
    "mi-SVM": 78.0,
    "MI-SVM": 77.2,
}
KANDEMIR_AVERAGES = {
    "DPMIL": 0.70,
    "B-KISVM": 0.47,
    "miSVM": 0.45,
    "I-KISVM": 0.43,
    "GPMIL": 0.40,
    "MISVM": 0.26,
}


# Settings that are read off the data have the last digits of a processor.
@pytest.mark.slow
@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize(("paper", "exhibit"), TABLES, ids=lambda one: one.name)
def test_kept_results_are_of_methods_as_they_are(paper, exhibit):
    """Else the command of a table, which keeps what is known, would run it again."""
    kept = read(RESULTS / paper.name / f"{exhibit.name}.csv")
    fingerprints = {(one.attempt, one.fingerprint) for one in kept}
    for cell, attempt in attempts_of(exhibit):
        mark = fingerprint(cell, attempt, load(cell.data), 0)
        assert ((cell.method, cell.data, attempt.protocol.name), mark) in fingerprints


@pytest.mark.parametrize(
    ("figure", "loss", "expected"),
    [
        ("figure-5", ("as published", "Proposed", 20), "4.6 points are lost with a fifth"),
        ("figure-5", ("as published", "Proposed", 33), "and 8.6 with a third"),
        ("figure-5", ("honest", "Proposed", 20), "11.6 and 15.0 are lost"),
        ("figure-5", ("honest", "Proposed", 33), "11.6 and 15.0 are lost"),
        ("figure-6", ("honest", "Proposed", 20), "the score loses 15.1 points"),
        ("figure-6", ("honest", "Proposed", 33), "and 19.9 with a third"),
        ("figure-6", ("honest", "MILES", 20), "MILES 12.9 and 21.6"),
        ("figure-6", ("honest", "MILES", 33), "MILES 12.9 and 21.6"),
    ],
)
def test_losses_by_flipped_labels_are_those_of_results(figure, loss, expected):
    """In the mean over data sets, in points."""
    protocol, method, fraction = loss
    ((paper, exhibit),) = exhibits_named(f"venkatesan-2015/{figure}")
    kept = read(RESULTS / paper.name / f"{figure}.csv")
    accuracy = {
        (one.method, one.data): 100 * one.value
        for one in kept
        if (one.score, one.protocol) == ("accuracy", protocol)
    }
    data = sorted({one for _, one in accuracy})
    lost = [
        accuracy[f"{method}, 0% flipped", one] - accuracy[f"{method}, {fraction}% flipped", one]
        for one in data
    ]
    assert expected in exhibit.finding
    assert f"{np.mean(lost):.1f}" in expected


def column(name, score):
    """Published numbers by method."""
    ((_, exhibit),) = exhibits_named(name)
    found = {}
    for cell in exhibit.cells:
        printed = cell.published.get(score, Published()).value
        if printed is not None:
            found.setdefault(cell.method, []).append(printed)
    return found


def test_accuracies_have_the_printed_averages():
    found = column("hajimirsadeghi-2017/table-1", "accuracy")
    averages = {method: round(100 * np.mean(row), 1) for method, row in found.items()}
    assert averages == HAJIMIRSADEGHI_AVERAGES


def test_half_of_the_bags_of_each_label_is_scored():
    ((_, exhibit),) = exhibits_named("kandemir-2016/table-3")
    (attempt,) = next(cell.attempts for cell in exhibit.cells if cell.attempts)
    bags = load("kandemir2014")
    splits = attempt.protocol.splits("kandemir2014", bags, 0)
    assert len({tuple(sorted(training)) for training, _ in splits}) == 20
    for training, test in splits:
        assert sorted([*training, *test]) == list(range(len(bags)))
        for label in (0, 1):
            assert 2 * (bags.labels[test] == label).sum() == (bags.labels == label).sum()


def test_the_printed_sd_is_over_five_folds():
    """0.8832 ± 0.0202 in print; the sd has divisor 5, and 0.0202/√4 is the error of the mean."""
    ((_, exhibit),) = exhibits_named("castro-macias-2024/table-6")
    first = exhibit.cells[0]
    assert (first.method, first.published["accuracy"].value) == ("G-VGPMIL, M = 50", 0.8832)
    assert first.published["accuracy"].error == pytest.approx(0.0101)


def test_objects_have_the_printed_means():
    """The mean of DMIL is 75.55, and 75.5 in print."""
    found = column("kandemir-2016/table-2", "average_precision")
    for row, mean in zip(found.values(), (83.7, 82.4, 75.5, 73.0, 77.7), strict=True):
        assert len(row) == 20
        assert abs(100 * np.mean(row) - mean) <= 0.051


def test_newsgroups_have_the_printed_averages():
    """The paper rounds to two digits."""
    found = column("kandemir-2014/table-1", "instance_average_precision")
    assert {len(row) for row in found.values()} == {20}
    for method, average in KANDEMIR_AVERAGES.items():
        assert abs(np.mean(found[method]) - average) <= 0.0051


@pytest.mark.parametrize(("number", "data"), [(6, "musk1"), (7, "musk2")])
def test_each_model_stands_with_each_number_of_points(number, data):
    ((_, exhibit),) = exhibits_named(f"castro-macias-2024/table-{number}")
    expected = {f"{m}, M = {n}" for m in ("VGPMIL", "G-VGPMIL") for n in (50, 100, 200)}
    assert {cell.method for cell in exhibit.cells} == expected
    assert {cell.data for cell in exhibit.cells} == {data}


def test_names_of_exhibits_are_the_papers_numbers():
    numbers = {
        "kandemir-2014": (3, 6),
        "venkatesan-2015": (4, 6),
        "kandemir-2016": (3, 2),
        "hajimirsadeghi-2017": (1, 1),
        "castro-macias-2024": (9, 12),
    }
    for paper in PAPERS:
        tables, figures = numbers[paper.name]
        expected = {f"table-{n}" for n in range(1, tables + 1)}
        expected |= {f"figure-{n}" for n in range(1, figures + 1)}
        assert {exhibit.name for exhibit in paper.exhibits} == expected
        assert len(paper.exhibits) == tables + figures


@pytest.mark.parametrize(("paper", "exhibit"), TABLES, ids=lambda one: one.name)
def test_what_is_attempted_is_on_known_data(paper, exhibit):
    for cell in exhibit.cells:
        if cell.attempts:
            assert cell.data in available()
        assert len({attempt.protocol.name for attempt in cell.attempts}) == len(cell.attempts)
    names = [(cell.method, cell.data) for cell in exhibit.cells]
    assert len(set(names)) == len(names)


def test_without_results_each_exhibit_has_an_outcome():
    for paper in PAPERS:
        for exhibit in paper.exhibits:
            assert outcomes_of(paper, Path("/nowhere"))[exhibit.name].sentence
            if not exhibit.of:
                assert (outcome_of(exhibit, []).state == "not done yet") == bool(
                    exhibit.to_do or any(cell.attempts for cell in exhibit.cells)
                )


def test_pictures_and_commands_of_exhibits_exist():
    repository = Path(__file__).resolve().parents[2]
    for paper in PAPERS:
        for exhibit in paper.exhibits:
            if exhibit.picture:
                assert exhibit.command
                assert (repository / "docs" / exhibit.picture).exists()
            for script in re.findall(r"python (\S+\.py)", exhibit.command):
                assert (repository / script).exists()


def test_a_paper_by_name_has_all_its_exhibits():
    assert len(list(exhibits_named("venkatesan-2015"))) == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "castro-macias-2023",
            "unknown paper 'castro-macias-2023'; did you mean 'castro-macias-2024'",
        ),
        ("kandemir-2016/table-9", "unknown table or figure of kandemir-2016 'table-9'"),
    ],
)
def test_unknown_names_are_told(name, message):
    with pytest.raises((KeyError, ValueError), match=message):
        list(exhibits_named(name))
