"""Differences in standard errors, outcomes, files of results, and pages."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from milzoo.papers import Attempt, Cell, Exhibit, Protocol, Published, compared, outcomes_of
from milzoo.papers.figures import draw
from milzoo.papers.pages import page_of, write_pages
from milzoo.papers.protocols import stratified_folds
from milzoo.papers.results import Outcome, Result, outcome_of, path_of, read, write

from .conftest import DATA, HONEST, MAXIMUM, PEEKING, neighbours

NOWHERE = Path("/nowhere")


def result(**fields):
    known = {
        "exhibit": "table-1",
        "method": "neighbours",
        "data": DATA,
        "protocol": "as published",
        "score": "accuracy",
        "value": 0.84,
        "sd": 0.05,
        "num_splits": 4,
        "num_tested": 100,
        "setting": "k=3",
        "fingerprint": "abc",
        "seed": 0,
        "seconds": 2.5,
        "fit_seconds": 0.5,
        "date": "2026-01-01",
        "commit": "1a2b3c4",
        "machine": "2 cores",
        "versions": "jax 1",
    }
    return Result(**(known | fields))


def cell_with(published, score="accuracy"):
    attempts = (Attempt(PEEKING, neighbours), Attempt(HONEST, neighbours))
    return Cell("neighbours", DATA, {score: published}, attempts)


def difference(published, *results, score="accuracy"):
    exhibit = Exhibit("table-1", "Scores", (cell_with(published, score),))
    (found,) = compared(exhibit, results)
    return found.difference


def test_the_printed_error_and_ours_add_up():
    """√(0.06² + (0.16/√4)²) = 0.1."""
    found = difference(Published(0.99, 0.06), result(sd=0.16))
    assert found == pytest.approx(-1.5)


def test_an_accuracy_without_error_is_binomial():
    """√(0.9·0.1/100) = 0.03."""
    assert difference(Published(0.90), result()) == pytest.approx(-2)


def test_other_scores_have_the_error_of_our_mean():
    """0.05/√4."""
    found = difference(Published(0.89), result(score="auc"), score="auc")
    assert found == pytest.approx(-2)


def test_a_maximum_has_no_error_of_a_mean():
    assert result(sd=math.nan).error == 0
    assert math.isnan(difference(Published(0.89), result(score="auc", sd=math.nan), score="auc"))


def test_seconds_are_not_compared_in_standard_errors():
    assert math.isnan(difference(Published(2.9), result(score="seconds"), score="seconds"))


def test_the_papers_own_protocol_decides():
    honest = result(protocol="honest", value=0.6)
    assert difference(Published(0.90), result(), honest) == pytest.approx(-2)
    assert difference(Published(0.90), honest) == pytest.approx(-10)
    assert math.isnan(difference(Published(0.90, 0.02)))


def test_outcomes_of_tables(paper):
    table = paper.exhibits[0]
    near, far = result(value=0.9), result(value=0.6)
    auc = result(method="best of three", score="auc", value=0.75)
    assert outcome_of(table, []).state == "not done yet"
    assert outcome_of(table, [near]).state == "not done yet"
    assert outcome_of(table, [near, auc]).state == "reproduced"
    assert outcome_of(table, [far, auc]).state == "differs"
    sentence = outcome_of(table, [far, auc]).sentence
    assert sentence == "1 of 2 numbers within two standard errors, 1 not possible"
    assert outcome_of(paper.exhibits[2], []).state == "not possible here"


def test_scores_without_published_ones_stand_beside(paper):
    """They are run and shown, and compared with nothing."""
    attempts = (Attempt(HONEST, neighbours),)
    cells = (
        Cell("neighbours", "scans", {"accuracy": Published(0.9)}, missing="the scans"),
        Cell("neighbours", DATA, {"accuracy": Published()}, attempts),
    )
    table = Exhibit("table-1", "Scores", cells, finding="here it is better")
    assert outcome_of(table, []).state == "not done yet"
    run = result(protocol="honest", value=0.84, setting="")
    outcome = outcome_of(table, [run])
    assert (outcome.state, outcome.sentence) == (
        "not possible here",
        "the scans; here it is better",
    )
    text = page_of(replace(paper, exhibits=(table,)), {"table-1": [run]}, {"table-1": outcome})
    assert f"| neighbours | {DATA} | accuracy |  |  | 0.840 ± 0.025 |  |" in text


def test_what_is_shown_instead_stands_beside_what_is_missing():
    figure = Exhibit("figure-1", "Patches", missing="the images", finding="digits have clusters")
    outcome = outcome_of(figure, [])
    assert (outcome.state, outcome.sentence) == (
        "not possible here",
        "the images; digits have clusters",
    )


def test_a_file_gives_back_what_was_written(tmp_path):
    path = tmp_path / "author-2000" / "table-1.csv"
    results = [result(), result(setting='k=3, "a", b', sd=math.nan)]
    write(path, results, "milzoo reproduce author-2000/table-1")
    assert path.read_text().startswith("# milzoo reproduce author-2000/table-1\n")
    first, second = read(path)
    assert first == results[0]
    assert second.setting == results[1].setting and math.isnan(second.sd)
    assert read(tmp_path / "none.csv") == []


def test_a_file_of_another_version_is_refused(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text("# milzoo\nmethod,value\nkNN,1\n")
    with pytest.raises(
        ValueError, match=r"old.csv has the columns \['method', 'value'\]; expected"
    ):
        read(path)


def test_a_page_shows_numbers_protocols_and_reasons(paper, tmp_path):
    results = [result(value=0.6), result(protocol="honest", value=0.55, setting="")]
    write(path_of(tmp_path, paper, paper.exhibits[0]), results, "milzoo reproduce")
    (page,) = write_pages([paper], tmp_path)
    text = page.read_text()
    assert page.name == "author-2000.md"
    row = "| neighbours | kandemir2014 | accuracy | 0.900 | 0.600 ± 0.025 (k=3) | 0.550 ± 0.025 "
    assert row + "| -10.0 |" in text
    assert "- *neighbours on kandemir2014*: the scene is another one." in text
    assert "*as published*: Three folds, settings by the test bags. Peeking: settings are" in text
    assert "Figure 1 | A picture | not possible here | a camera" in text
    assert "seed 0; commit 1a2b3c4; 2 cores" in text
    # Both results are of one attempt each, of 2.5 seconds.
    assert "5 s in all, 2026-01-01;" in text


def test_a_page_tells_how_far_protocols_are_apart(paper):
    cells = (cell_with(Published(0.90)), replace(cell_with(Published(0.90)), method="others"))
    paper = replace(paper, exhibits=(Exhibit("table-1", "Accuracy", cells),))
    values = {"as published": (0.90, 0.85), "honest": (0.80, 0.83)}
    results = [
        result(method=method, protocol=protocol, value=value)
        for protocol, of_methods in values.items()
        for method, value in zip(("neighbours", "others"), of_methods, strict=True)
    ]
    sentence = "less that by the honest one: +0.060 in the mean over 2 rows (+0.020 to +0.100)."
    outcomes = outcomes_of(paper, NOWHERE)
    assert sentence in page_of(paper, {"table-1": results}, outcomes)
    assert "the honest one:" not in page_of(paper, {"table-1": results[:-1]}, outcomes)


def test_a_reproduced_number_needs_no_reason(paper):
    text = page_of(paper, {"table-1": [result(value=0.9)]}, outcomes_of(paper, NOWHERE))
    assert "the scene is another one" not in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Cell("kNN", DATA, {"accuracy": Published(92.4)}, missing="it"),
            f"kNN on {DATA}: accuracy is 92.4; expected a fraction from 0 to 1",
        ),
        (lambda: Cell("kNN", DATA, {}), "has 0 attempts and is missing ''"),
        (
            lambda: Cell("kNN", DATA, {"recall": Published(0.5)}, missing="it"),
            "has the scores recall; expected some of accuracy",
        ),
        (lambda: Exhibit("table-1", "Scores"), "expected one of cells, a verdict"),
        (
            lambda: Exhibit("figure-1", "A picture", verdict="differs"),
            "a verdict needs a finding, and the command",
        ),
        (
            lambda: replace(MAXIMUM, name="honest"),
            "reports the maximum and says that it peeks at 'the best of three",
        ),
        (
            lambda: Protocol("honest", "Folds.", stratified_folds(3), chosen_by="test bags"),
            "chooses by test bags.*peeks at 'nothing'",
        ),
        (
            lambda: Protocol("as published", "", stratified_folds(3), threshold_by="test bags"),
            "sets thresholds by test bags.*peeks at 'nothing'",
        ),
        (
            lambda: Exhibit(
                "figure-1",
                "A curve",
                (cell_with(Published(0.9)),),
                verdict="differs",
                finding="low",
            ),
            "a verdict on cells whose numbers are not printed",
        ),
    ],
)
def test_data_that_contradict_themselves_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_verdict_on_numbers_waits_for_them(paper, tmp_path):
    cells = (cell_with(Published()),)
    curve = Exhibit("figure-2", "A curve", cells, verdict="reproduced", finding="it falls")
    paper = replace(paper, exhibits=(curve,))
    assert outcomes_of(paper, tmp_path)["figure-2"].state == "not done yet"
    write(path_of(tmp_path, paper, curve), [result()], "milzoo reproduce")
    assert outcomes_of(paper, tmp_path)["figure-2"] == Outcome("reproduced", "it falls")


def test_citations_name_the_page(paper):
    assert page_of(paper, {}, outcomes_of(paper, NOWHERE)).startswith("# Author (2000)\n")


def test_a_picture_stands_on_the_page_beside_its_command(paper):
    """Pages are in a folder below that of the pictures."""
    scene = Exhibit(
        "figure-2",
        "A scene",
        verdict="reproduced",
        finding="it is there",
        command="python scene.py",
        picture="scene.png",
    )
    paper = replace(paper, exhibits=(scene,))
    text = page_of(paper, {}, outcomes_of(paper, NOWHERE))
    assert "`python scene.py`\n\n![A scene: it is there](../scene.png)" in text


def test_a_figure_of_tables_has_their_outcome(paper, tmp_path):
    """Published 0.9 as a grey bar, ours 0.6 with 0.05/√4 beside it."""
    figure = Exhibit("figure-2", "All scores", of=("table-1",))
    paper = replace(paper, exhibits=(figure, *paper.exhibits))
    results = [result(value=0.6)]
    write(path_of(tmp_path, paper, paper.exhibits[1]), results, "milzoo reproduce")
    assert outcomes_of(paper, tmp_path)["figure-2"].state == "not done yet"
    (page,) = write_pages([paper], tmp_path)
    assert "![All scores, by table 1](author-2000/figure-2.png)" in page.read_text()
    assert (tmp_path / "author-2000" / "figure-2.png").stat().st_size > 1000
    drawn = draw(paper, figure, {"table-1": results})
    (panel,) = drawn.axes
    heights = sorted(patch.get_height() for patch in panel.patches)
    assert heights == pytest.approx([0.6, 0.9])
    bars = [bar for bar in panel.containers if hasattr(bar, "errorbar")]
    (segment,) = bars[1].errorbar.lines[2][0].get_segments()
    assert segment[:, 1] == pytest.approx([0.575, 0.625])


def test_seconds_stand_against_the_auc(paper):
    table = Exhibit("table-1", "Scores", (cell_with(Published(0.9), "auc"),))
    figure = Exhibit("figure-2", "Seconds", of=("table-1",), shows="seconds")
    paper = replace(paper, exhibits=(table, figure))
    drawn = draw(paper, figure, {"table-1": [result(score="auc", value=0.7)]})
    (panel,) = drawn.axes
    ((x, y),) = panel.lines[0].get_xydata()
    assert (x, y) == (0.5, 0.7)


def test_a_figure_of_two_tables_has_the_worse_outcome(paper, tmp_path):
    table, *others = paper.exhibits
    second = replace(table, name="table-3")
    figure = Exhibit("figure-2", "All scores", of=("table-1", "table-3"))
    paper = replace(paper, exhibits=(figure, table, second, *others))
    auc = result(method="best of three", score="auc", value=0.75)
    for one, value in ((table, 0.9), (second, 0.6)):
        results = [result(exhibit=one.name, value=value), replace(auc, exhibit=one.name)]
        write(path_of(tmp_path, paper, one), results, "milzoo reproduce")
    outcomes = outcomes_of(paper, tmp_path)
    assert outcomes["table-1"].state == "reproduced"
    assert outcomes["table-3"].state == outcomes["figure-2"].state == "differs"
    assert outcomes["figure-2"].sentence == (
        "drawn from the results of table 1 and table 3; table 3: " + outcomes["table-3"].sentence
    )
