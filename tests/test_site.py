"""The guides: they build without a warning, and name only what is there."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import milzoo.datasets
import milzoo.diagnostics
import milzoo.estimators
import milzoo.estimators.deep
import milzoo.inference
import milzoo.inference.closed_form
import milzoo.models
import milzoo.papers
import milzoo.references
import pytest
from milzoo.diagnostics import Comparison
from milzoo.diagnostics.measures.columns import MEASURES

REPOSITORY = Path(__file__).resolve().parent.parent
WINGS = (
    milzoo.datasets,
    milzoo.models,
    milzoo.inference,
    milzoo.estimators,
    milzoo.diagnostics,
    milzoo.references,
    milzoo.papers,
)
GUIDES = sorted((REPOSITORY / "docs").glob("*.md"))


@pytest.mark.in_ci
def test_the_site_builds_without_a_warning(tmp_path):
    docs, site = tmp_path / "docs", tmp_path / "site"
    shutil.copytree(REPOSITORY / "docs", docs, ignore=shutil.ignore_patterns("notebooks"))
    (docs / "notebooks").mkdir()
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):  # pages include them
        shutil.copy(REPOSITORY / name, tmp_path)
    made = [sys.executable, "-m", "jupytext", "--quiet", "--to", "ipynb"]
    made += ["--update-metadata", json.dumps({"language_info": {"name": "python"}})]  # as once run
    for example in (REPOSITORY / "examples").glob("[0-9]*.py"):
        notebook = docs / f"notebooks/{example.stem}.ipynb"
        subprocess.run([*made, "--output", notebook, example], check=True, timeout=120)
    # As make site does.
    subprocess.run([sys.executable, docs / "gallery.py"], check=True)
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", docs, site]
    run = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")}
    assert {"index.html", "symbols.html", "notebooks/01_bags.html"} <= pages
    # Constants stand on the page of their wing, with its example.
    names = {
        f"{wing.__name__}.{name}"
        for wing in WINGS
        for name in wing.__all__
        if callable(getattr(wing, name))
    }
    made = {page.removeprefix("api/").removesuffix(".html") for page in pages}
    assert names - {"milzoo.estimators.miSVM"} <= made
    # make slides has not run.
    assert local_links_that_lead_nowhere(site) == {("teaching.html", "slides/index.html")}
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not formulas_with_unread_commands(text), page
        assert not re.search(r"0x[0-9a-f]{8}", text), page  # an address in memory


def formulas_with_unread_commands(page: str) -> list[str]:
    """Formulas of a page in which a command of TeX, or an end of a column, is still text."""
    formulas = re.findall(r"<math.*?</math>", page, re.DOTALL)
    return [one for one in formulas if re.search(r"\\|<mi>&</mi>", one)]


def local_links_that_lead_nowhere(site: Path) -> set[tuple[str, str]]:
    """Links between pages whose file is not there, with the page that has them."""
    return {
        (page.relative_to(site).as_posix(), link)
        for page in site.rglob("*.html")
        for link in re.findall(r'(?:href|src)="([^"#?:]+)["#?]', page.read_text("utf-8"))
        if not (page.parent / unquote(link)).exists()
    }


def test_exactly_the_columns_of_the_table_are_explained():
    guide = (REPOSITORY / "docs/reading_a_comparison.md").read_text("utf-8")
    terms = re.findall(r"^(`.*`)\n: ", guide, flags=re.MULTILINE)
    named = {name for term in terms for name in re.findall(r"`([^`]+)`", term)}
    columns = {measure.column for measure in MEASURES}
    own = {"seconds", "wall_seconds", "compile_seconds", "ess_per_second", "own_reference"}
    own |= {"own_mean_error", "own_sd_ratio", "size", "error_mcse", "rmse"}  # said by labels
    own |= {"target_difference", "sd_ratio_mcse", "coverage_mcse"}
    own |= {column for column in columns if column.startswith("instance_")}
    properties = {name.removeprefix("comparison.") for name in named if "comparison." in name}
    assert all(hasattr(Comparison, name) for name in properties)
    explained = {name for name in named if "comparison." not in name} - {"instance_…"}
    assert explained <= columns
    assert columns - explained == own


@pytest.mark.parametrize("guide", GUIDES, ids=[guide.stem for guide in GUIDES])
def test_guides_name_only_what_is_there(guide):
    wings = (*WINGS, milzoo.estimators.deep, milzoo.inference.closed_form)
    public = {name for wing in wings for name in wing.__all__}
    called = set(re.findall(r"`([A-Za-z_]+)\(", guide.read_text("utf-8")))
    classes = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w*)`", guide.read_text("utf-8")))
    internal = {"BagLabelByCount", "SparseConditional"}
    elsewhere = {"BayesianGaussianMixture", "GridSearchCV", "StratifiedGroupKFold", "len"}
    methods = {"augmented", "model", "predict", "posterior", "transform"}
    assert (called | classes) - public - internal - elsewhere <= methods


def test_no_two_columns_have_one_label():
    """Rows of the report are found by their labels."""
    labels = [measure.label for measure in MEASURES]
    assert len(set(labels)) == len(labels)
