"""The report: all files there, the page whole by itself, and failures that say what to do."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial

import numpy as np
import numpyro.distributions as dist
import pytest
from matplotlib import pyplot as plt
from milzoo.datasets import Bags
from milzoo.diagnostics import compare
from milzoo.inference import Posterior, coordinate_ascent, grid, maximum_a_posteriori, nuts
from milzoo.inference.posterior import Status
from milzoo.models import GammaScaleMixture, ScaleMixture

pytestmark = pytest.mark.in_ci


@pytest.fixture(scope="module")
def folder(comparison, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parent") / "report"
    assert comparison.save_report(folder) == folder / "report.html"
    return folder


def test_the_report_has_all_its_files(folder):
    assert {path.name for path in folder.iterdir()} == {
        *("report.html", "metrics.json", "cavi.nc", "nuts.nc", "gibbs.nc", "elbo.png"),
        *("trace_nuts.png", "rank_nuts.png", "trace_gibbs.png", "rank_gibbs.png", "forest.png"),
        *("khat.png", "marginals.png", "probabilities.png", "calibration.png"),
        *("instance_calibration.png", "bag.png", "leave_one_out.png", "predictive_check.png"),
        *("prior_predictive.png", ".milzoo"),
    }


def test_the_page_holds_each_figure_and_needs_no_network(folder):
    page = (folder / "report.html").read_text("utf-8")
    assert len(re.findall("<img ", page)) == len(list(folder.glob("*.png")))
    assert len(re.findall('src="data:image/png;base64,', page)) == page.count("<img ")
    assert not re.search("https?:|<script|<link", page)
    questions = ["What was fitted", "Did the samplers", "How large", "Can draws", "How many nats"]
    questions += ["Does it", "Which model", "The verdicts in full"]
    positions = [page.index(f'">{question}', page.index("</nav>")) for question in questions]
    assert positions == sorted(positions)


def test_the_page_opens_with_a_verdict_on_each_engine(folder, comparison):
    page = html.unescape((folder / "report.html").read_text("utf-8"))
    opening = page[: page.index("<nav")]
    lines = re.findall(r"<b>(.*?)</b> <strong>(.*?)</strong> (.*?)</li>", opening)
    assert lines == [(name, *one) for name, one in comparison.headlines.items()]
    assert "<table" not in opening and "<p>" not in opening


def test_each_link_of_the_contents_has_its_section(folder):
    page = (folder / "report.html").read_text("utf-8")
    links = re.findall('<a href="#(.*?)">', page)
    assert len(links) == len(set(links)) == page.count("<h2")
    assert all(f'<h2 id="{link}">' in page for link in links)


def test_each_figure_stands_under_its_conclusion(folder, comparison):
    page = html.unescape((folder / "report.html").read_text("utf-8"))
    headings = re.findall(r"<h3>(.*?)</h3><figure>", page)
    assert len(headings) == page.count("<figure>") and all(headings)
    table = comparison.table
    worst = table["worst_error"].idxmax()
    assert f"The largest error of a mean is {worst}'s: {table['worst_error'].max():.2g}" in page
    error, chance = table.loc["nuts", ["calibration_error", "calibration_chance"]]
    assert "Calibration error on bags: " in page
    assert f"{error:.2f} ({chance:.2f} by chance) (nuts)" in page
    assert f"cavi's probabilities are {table.loc['cavi', 'probability_difference']:.3f}" in page


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Writes into the title what a reader would see: figures drawn of all figures, and whether the page
# is wider than its window. What goes wrong on the page is written to the console.
PROBE = """<script>window.onload = () => {
  const figures = [...document.images];
  const drawn = figures.filter(one => one.complete && one.naturalWidth > 50 && one.width > 50);
  const fits = document.documentElement.scrollWidth <= window.innerWidth;
  document.title = `${drawn.length} of ${figures.length}, ${fits ? "fits" : "too wide"}`;
}</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium, Debian's package chromium, is not here")
@pytest.mark.parametrize("width", [1200, 400], ids=["wide", "narrow"])
def test_a_browser_draws_each_figure_and_complains_of_nothing(folder, tmp_path, width):
    page = tmp_path / "probed.html"
    page.write_text((folder / "report.html").read_text("utf-8") + PROBE, "utf-8")
    browser = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    browser += [f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}"]
    run = subprocess.run(
        [*browser, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2000:]
    number = len(list(folder.glob("*.png")))
    assert f"<title>{number} of {number}, fits</title>" in run.stdout
    assert not re.findall(r".*CONSOLE.*", run.stderr)


@pytest.mark.slow
def test_the_page_has_the_sentences_and_escapes_names(posteriors, tmp_path):
    name = "<u> & co"  # a tag that the page has none of
    page = compare({name: posteriors["cavi"]}).save_report(tmp_path).read_text("utf-8")
    assert "&lt;u&gt; &amp; co" in page and "<u>" not in page
    assert (tmp_path / "_u____co.nc").exists()


def test_the_metrics_are_the_table_as_plain_json(folder, comparison):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads((folder / "metrics.json").read_text("utf-8"), parse_constant=refuse)
    assert content["sentences"] == comparison.sentences
    assert content["headlines"]["cavi"]["word"] == comparison.headlines["cavi"].word
    assert content["joint"]["cavi"]["stein_p"] == comparison.joint["cavi"].stein.p_value
    assert content["reference"] == comparison.reference
    for name, row in content["engines"].items():
        for column, value in row.items():
            expected = comparison.table.loc[name, column]
            assert value == expected or (value is None and np.isnan(expected))


@pytest.mark.slow
def test_report_names_its_origin(posteriors, tmp_path):
    comparison = compare({"cavi": posteriors["cavi"]})
    page = comparison.save_report(tmp_path, origin="a <script>, seed 0;").read_text("utf-8")
    made_by = json.loads((tmp_path / "metrics.json").read_text("utf-8"))["made_by"]
    assert re.match(r"a <script>, seed 0; milzoo \S+, jax \S+, numpyro \S+, arviz \S+;", made_by)
    assert "Made by: a &lt;script&gt;, seed 0; milzoo" in page


@pytest.mark.slow
def test_hyperparameters_with_priors_are_drawn_like_other_sites(problem, tmp_path):
    training, test, model = problem
    kernel = replace(model.kernel, variance=dist.LogNormal(1.0, 0.5))
    model = replace(model, kernel=kernel, mean=dist.Normal(-1.5, 0.5))
    posterior = nuts(model, training, seed=0, num_warmup=100, num_samples=50)
    comparison = compare({"nuts": posterior}, test=test)
    page = comparison.save_report(tmp_path).read_text("utf-8")
    assert "variance=LogNormal(loc=1.0, scale=0.5)" in page and " at 0x" not in page
    labels = [text.get_text() for text in comparison.plot_forest(max_sites=10).axes[0].texts]
    assert {"variance", "mean", "inducing_value[7]"} < set(labels) and len(labels) == 10


def failed(posterior):
    """What is left of an approximation whose numbers overflowed."""
    tree = posterior.tree.copy(deep=True)
    tree["posterior"]["inducing_value"].values[:] = np.nan
    return replace(
        posterior,
        tree=tree,
        status=Status("failed", "the bound is not finite"),
        elbo=np.array([-30.0, -20.0, np.nan, np.nan]),
        approximation=posterior.approximation
        and replace(posterior.approximation, mean=np.full(8, np.nan)),
    )


@pytest.mark.slow
def test_failed_engine_does_not_spoil_the_report(posteriors, problem, tmp_path):
    comparison = compare(
        {"cavi": failed(posteriors["cavi"]), "nuts": posteriors["nuts"]}, test=problem[1]
    )
    page = comparison.save_report(tmp_path).read_text("utf-8")
    assert "cavi failed (the bound is not finite)" in page
    written = {path.name for path in tmp_path.iterdir()}
    assert {"elbo.png", "forest.png", "calibration.png", "trace_nuts.png"} < written
    assert "probabilities.png" not in written  # there is nothing to compare with
    assert np.isfinite(comparison.plot_elbo().axes[0].get_ylim()).all()


@pytest.mark.slow
def test_a_failed_reference_leaves_a_report(posteriors, problem, tmp_path):
    kinds = {
        "broken": failed(posteriors["nuts"]),
        "nuts": posteriors["nuts"],
        "cavi": posteriors["cavi"],
    }
    comparison = compare(kinds, reference="broken", test=problem[1])
    comparison.save_report(tmp_path)
    assert "but it failed" in comparison.reference_sentence
    assert "broken's" not in comparison.sentences["cavi"]
    assert (tmp_path / "probabilities.png").exists()
    assert not (tmp_path / "trace_broken.png").exists()


def test_where_all_failed_the_report_says_so(posteriors, problem, tmp_path):
    comparison = compare({"cavi": failed(posteriors["cavi"])}, test=problem[1])
    page = comparison.save_report(tmp_path).read_text("utf-8")
    assert "cavi failed" in page
    assert {path.suffix for path in tmp_path.glob("[!.]*")} == {".html", ".json", ".nc", ".png"}
    with pytest.raises(ValueError, match="every posterior failed"):
        comparison.plot_forest()


@pytest.mark.slow
def test_the_page_says_which_model_each_posterior_is_about(posteriors, problem, tmp_path):
    training, _, model = problem
    moved = coordinate_ascent(model.with_hyperparameters({"variance": 5.0}), training, seed=0)
    comparison = compare({"nuts": posteriors["nuts"], "learned": moved})
    page = comparison.save_report(tmp_path / "values").read_text("utf-8")
    assert "different target densities: nuts: variance=4.0; learned: variance=5.0" in page
    gamma = replace(model, scale_mixture=GammaScaleMixture(1.0, 2.0))
    alone = compare({"cavi": coordinate_ascent(gamma, training, seed=0)})
    page = alone.save_report(tmp_path / "gamma").read_text("utf-8")
    assert re.search(
        r"<th>target density</th>\s*<td>GammaScaleMixture\(alpha=1.0, beta=2.0\)</td>", page
    )


NOTE = "an instance's probability is that of a bag that holds it alone"


@pytest.mark.slow
def test_model_without_instance_labels_explains_its_instance_scores(
    posteriors, problem, tmp_path, monkeypatch
):
    _, test, model = problem
    cavi = {"cavi": posteriors["cavi"]}

    def page(test):
        report = compare(cavi, test=test).save_report(tmp_path)
        return html.unescape(report.read_text("utf-8"))

    assert "Instance scores:" not in page(test)
    monkeypatch.setattr(type(model), "instance_note", NOTE, raising=False)
    assert f"Instance scores: {NOTE}." in page(test)
    assert NOTE not in page(replace(test, instance_labels=None))  # nothing is scored


def test_two_names_that_make_one_file_are_refused(posteriors, tmp_path):
    nuts = posteriors["nuts"]
    comparison = compare({"a b": nuts, "A_B": nuts}, reference="a b")
    with pytest.raises(ValueError, match="'a b' and 'A_B' would be saved in one file"):
        comparison.save_report(tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_a_saved_posterior_can_be_read_back(folder, posteriors):
    again = Posterior.load(folder / "nuts.nc")
    assert again.tree["posterior"].equals(posteriors["nuts"].tree["posterior"])


@pytest.mark.slow
def test_a_posterior_that_no_file_can_hold_is_noted(problem, tmp_path):
    training, _, model = problem
    scale_mixture = ScaleMixture.from_log_density(lambda f: -0.1 * f**2)
    posterior = coordinate_ascent(replace(model, scale_mixture=scale_mixture), training, seed=0)
    page = compare({"cavi": posterior}).save_report(tmp_path).read_text("utf-8")
    assert "cavi is not among the files" in page
    assert not list(tmp_path.glob("*.nc"))


def test_a_folder_that_is_a_file_is_refused(comparison, tmp_path):
    taken = tmp_path / "report"
    taken.write_text("mine")
    with pytest.raises(OSError, match=r"report cannot be written: .* is a file"):
        comparison.save_report(taken)
    assert taken.read_text() == "mine"


def test_a_folder_without_permission_is_refused(comparison, tmp_path, monkeypatch):
    def no(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", no)  # root may write anywhere
    with pytest.raises(PermissionError, match="cannot be written: permission denied"):
        comparison.save_report(tmp_path / "report")


@pytest.mark.slow
def test_the_figures_leave_no_trace_in_pyplot(comparison):
    comparison.plot_forest()
    comparison.plot_rank("nuts")
    assert plt.get_fignums() == []


def test_the_forest_shows_as_many_sites_as_asked_for(comparison):
    labels = [text.get_text() for text in comparison.plot_forest(max_sites=3).axes[0].texts]
    assert len(labels) == 3 and all(label.startswith("inducing_value[") for label in labels)


def test_plots_without_data_are_refused(posteriors):
    sampler = compare({"nuts": posteriors["nuts"]})
    for picture, message in (
        (sampler.plot_elbo, "no posterior has a bound"),
        (sampler.plot_khat, "no posterior is an approximation"),
        (sampler.plot_probabilities, "no test bags"),
        (sampler.plot_calibration, "no test bags"),
        (sampler.plot_bag, "no test bags"),
        (
            partial(sampler.plot_leave_one_out, "gibbs"),
            "expected a posterior .* leave bags out: nuts",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            picture()


def test_instances_without_known_labels_have_no_calibration(posteriors, problem):
    test = replace(problem[1], instance_labels=None)
    comparison = compare({"nuts": posteriors["nuts"]}, test=test)
    with pytest.raises(ValueError, match="no label of a test instance is known"):
        comparison.plot_calibration("instances")
    assert comparison.table["instance_calibration_error"].isna().all()


def test_the_calibration_drawn_is_that_of_the_table(comparison):
    for of, column in (("bags", "calibration_error"), ("instances", "instance_calibration_error")):
        titles = [panel.get_title() for panel in comparison.plot_calibration(of).axes]
        for name, error in comparison.table[column].items():
            assert any(title.startswith(f"{name}\nerror {error:.3f},") for title in titles)


def test_plotted_bag_is_the_most_disputed_positive_one(comparison):
    test = comparison.test
    by_engine = [one.instance_probability for one in comparison.predictions.values()]
    dispute = np.ptp(by_engine, axis=0)
    positive = np.flatnonzero(np.asarray(test.labels) == 1)
    expected = max(positive, key=lambda bag: dispute[np.asarray(test.bag_index) == bag].max())
    title = f"bag {test.names[expected]}, positive"
    assert comparison.plot_bag().get_suptitle() == title
    assert comparison.plot_bag(int(positive[0])).get_suptitle() != title or expected == positive[0]


def test_plotted_bag_is_small_and_positive_if_possible(comparison):
    test = comparison.test
    num_large = 31  # instances of the first bag; others have four
    index = np.maximum(np.arange(test.num_instances) - num_large + 4, 0) // 4
    by_engine = [one.instance_probability for one in comparison.predictions.values()]
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    dispute = np.maximum.reduceat(np.ptp(by_engine, axis=0), starts)
    small = 1 + np.argsort(dispute[1:])
    assert dispute[0] > dispute[small[0]]  # the large one is not passed over for want of dispute

    def drawn(positive):
        labels = np.isin(np.arange(index[-1] + 1), positive).astype(int)
        bags = Bags.from_arrays(test.instances, index, labels)
        return replace(comparison, test=bags).plot_bag().get_suptitle()

    least, most = small[0], small[-1]
    assert drawn([0, least]) == f"bag {least}, positive"
    assert drawn([0]) == f"bag {most}, negative"


@pytest.mark.slow
def test_images_are_drawn_if_it_is_said_how(comparison, tmp_path):
    images = np.zeros((comparison.test.num_instances, 6))
    with pytest.raises(ValueError, match=r"expected .* 12 pixels each, for image_shape=\(3, 4\)"):
        comparison.save_report(tmp_path, image_shape=(3, 4), images=images)
    figure = comparison.plot_bag(image_shape=(2, 3), images=images)
    assert len(figure.axes[0].child_axes) > 0


@pytest.mark.slow
def test_densities_are_drawn_of_all_that_have_one(comparison, posteriors, problem):
    figure = comparison.plot_marginals(max_sites=3)
    drawn = [panel for panel in figure.axes if panel.lines]
    assert len(drawn) == 3 and all(len(panel.lines) >= 3 for panel in drawn)
    assert [text.get_text() for text in figure.legends[0].texts] == ["cavi", "nuts", "gibbs"]
    training, _, model = problem
    point = compare({"point": maximum_a_posteriori(model, training, seed=0)})
    with pytest.raises(ValueError, match="no posterior has draws to plot"):
        point.plot_marginals()


@pytest.mark.slow
def test_bounds_are_plotted_beside_a_known_evidence(problem):
    training, _, model = problem
    small = replace(model, inducing_points=model.inducing_points[:2])
    posteriors = {
        "cavi": coordinate_ascent(small, training, seed=0),
        "grid": grid(small, training, seed=0, num_points=61),
    }
    comparison = compare(posteriors, reference="grid")
    sentence = "The reference is grid, the exact posterior, summed up on a grid."
    assert comparison.reference_sentence == sentence
    figure = comparison.plot_elbo()
    (panel,) = (one for one in figure.axes if one.get_title())
    evidence = posteriors["grid"].elbo[-1]
    assert panel.get_xlabel() == f"recorded step (dashed: log evidence, {evidence:,.2f})"
    assert panel.get_ylim()[1] > evidence > posteriors["cavi"].elbo[-1]
    # A grid by itself has nothing to be beside.
    assert "grid: ends at" in compare({"grid": posteriors["grid"]}).plot_elbo().axes[0].get_title()
