"""The report: all files there, the page whole by itself, and failures that say what to do."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from milzoo.diagnostics import compare
from milzoo.inference import Posterior, coordinate_ascent
from milzoo.models import ScaleMixture


@pytest.fixture(scope="module")
def folder(comparison, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parent") / "report"
    assert comparison.save_report(folder) == folder / "report.html"
    return folder


def test_the_report_has_all_its_files(folder):
    assert {path.name for path in folder.iterdir()} == {
        *("report.html", "metrics.json", "cavi.nc", "nuts.nc", "gibbs.nc", "elbo.png"),
        *("trace_nuts.png", "rank_nuts.png", "trace_gibbs.png", "rank_gibbs.png", "forest.png"),
        *("khat.png", "probabilities.png", "calibration.png"),
    }


def test_the_page_holds_each_figure_and_needs_no_network(folder):
    page = (folder / "report.html").read_text("utf-8")
    assert len(re.findall("<img ", page)) == len(list(folder.glob("*.png")))
    assert len(re.findall('src="data:image/png;base64,', page)) == page.count("<img ")
    assert not re.search("https?:|<script|<link", page)
    questions = ["What was run", "Did the samplers work", "How far off", "Does it matter"]
    places = [page.index(f"<h2>{question}") for question in questions]
    assert places == sorted(places)


def test_the_page_has_the_sentences_and_escapes_names(posteriors, tmp_path):
    name = "<b> & co"
    page = compare({name: posteriors["cavi"]}).save_report(tmp_path).read_text("utf-8")
    assert "&lt;b&gt; &amp; co" in page and "<b>" not in page
    assert (tmp_path / "_b____co.nc").exists()


def test_the_metrics_are_the_table_as_plain_json(folder, comparison):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads((folder / "metrics.json").read_text("utf-8"), parse_constant=refuse)
    assert content["sentences"] == comparison.sentences
    assert content["reference"] == comparison.reference
    for name, row in content["engines"].items():
        for column, value in row.items():
            expected = comparison.table.loc[name, column]
            assert value == expected or (value is None and np.isnan(expected))


def test_a_saved_posterior_can_be_read_back(folder, posteriors):
    again = Posterior.load(folder / "nuts.nc")
    assert again.tree["posterior"].equals(posteriors["nuts"].tree["posterior"])


def test_a_posterior_that_no_file_can_hold_is_noted(problem, tmp_path):
    training, _, model = problem
    mixing = ScaleMixture.from_log_density(lambda f: -0.1 * f**2)
    posterior = coordinate_ascent(replace(model, mixing=mixing), training, seed=0)
    page = compare({"cavi": posterior}).save_report(tmp_path).read_text("utf-8")
    assert "cavi is not among the files" in page
    assert not list(tmp_path.glob("*.nc"))


def test_a_folder_that_is_a_file_is_refused(comparison, tmp_path):
    taken = tmp_path / "report"
    taken.write_text("mine")
    with pytest.raises(OSError, match=r"report folder .*report cannot be written .*not taken"):
        comparison.save_report(taken)
    assert taken.read_text() == "mine"


def test_a_folder_without_permission_is_refused(comparison, tmp_path, monkeypatch):
    def no(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", no)  # root may write anywhere
    with pytest.raises(PermissionError, match=r"cannot be written \(Permission denied\)"):
        comparison.save_report(tmp_path / "report")


def test_the_figures_leave_no_trace_in_pyplot(comparison):
    comparison.plot_forest()
    comparison.plot_rank("nuts")
    assert plt.get_fignums() == []


def test_the_forest_shows_as_many_sites_as_asked_for(comparison):
    labels = [text.get_text() for text in comparison.plot_forest(max_sites=3).axes[0].texts]
    assert len(labels) == 3 and all(label.startswith("inducing_value[") for label in labels)


def test_pictures_of_what_is_not_there_are_refused(posteriors):
    sampler = compare({"nuts": posteriors["nuts"]})
    for picture, message in (
        (sampler.plot_elbo, "no posterior has a bound"),
        (sampler.plot_khat, "no posterior is an approximation"),
        (sampler.plot_probabilities, "no test bags"),
        (sampler.plot_calibration, "no test bags"),
    ):
        with pytest.raises(ValueError, match=message):
            picture()
