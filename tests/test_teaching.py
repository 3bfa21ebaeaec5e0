"""Slides, copies of the notebooks for other hosts, and the instructor's page."""

import base64
import importlib.util
import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

REPOSITORY = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((REPOSITORY / "examples").glob("[0-9]*.py"))


def script(path: str):
    """A script of the documentation, as a module."""
    specification = importlib.util.spec_from_file_location(Path(path).stem, REPOSITORY / path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def notebooks():
    return [jupytext.read(path) for path in NOTEBOOKS]


@pytest.fixture(scope="module")
def slides(notebooks):
    return script("docs/slides/build.py").deck(notebooks)


def test_the_slides_are_twenty_and_have_titles(slides):
    assert 18 <= len(slides) <= 22
    assert all(re.search(r"^##? \S", slide[0].source, re.MULTILINE) for slide in slides)


def test_every_notebook_is_in_the_slides(slides, notebooks):
    titles = {slide[0].source.removeprefix("# ") for slide in slides}
    of_notebooks = {re.search(r"^# (.+)$", one.cells[0].source, re.M)[1] for one in notebooks}
    assert of_notebooks <= titles


@pytest.mark.in_ci
def test_the_slides_load_nothing_from_the_network(slides):
    page = script("docs/slides/build.py").as_page(slides)
    assert len(re.findall(r"<section[^>]*>\s*<section", page)) == len(slides)
    assert 'src="reveal/dist/reveal.js"' in page
    assert "<math " in page and "$" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S)
    loaded = re.findall(r'(?:src|href)="([^"#][^"]*)"|url\(([^)]+)\)|from \'([^\']+)', page)
    assert not [one for one in map("".join, loaded) if re.match(r"[\"']?(https?:)?//", one)]


@pytest.mark.parametrize("repository", ["", "someone/milzoo"])
def test_copies_install_the_wheel_where_milzoo_is_missing(notebooks, repository):
    elsewhere = script("docs/open_elsewhere.py")
    copy = elsewhere.that_installs(notebooks[0], repository)
    assert len(copy.cells) == len(notebooks[0].cells) + 1
    program = TransformerManager().transform_cell(copy.cells[0].source)
    installed = []

    class Shell:
        def run_line_magic(self, magic, line, *_):
            installed.append((magic, line))

    where = {"get_ipython": Shell}
    exec(program, where)
    assert not installed
    exec(program.replace('"milzoo"', '"no_module_has_this_name"'), where)
    assert [magic for magic, _ in installed] == ["pip"]
    assert elsewhere.address_of_wheel(repository) in installed[0][1]
    assert elsewhere.address_of_wheel(repository).startswith("https:") is bool(repository)


def test_badges_stand_below_the_title_of_a_notebook(notebooks):
    badged = script("docs/open_elsewhere.py").with_badges(notebooks[0], "01.ipynb", "someone/zoo")
    assert badged.cells[0] == notebooks[0].cells[0]
    assert "github/someone/zoo/blob/gh-pages/elsewhere/01.ipynb" in badged.cells[1].source
    assert "gh/someone/zoo/HEAD?labpath=examples/01.ipynb" in badged.cells[1].source


def test_a_card_of_the_gallery_has_the_first_picture(tmp_path):
    pictures = [base64.b64encode(content).decode() for content in (b"first", b"second")]
    outputs = [new_output("display_data", {"image/png": picture}) for picture in pictures]
    cells = [new_markdown_cell("# 1. Labels on bags\n\nText"), new_code_cell(outputs=outputs)]
    nbformat.write(new_notebook(cells=cells), tmp_path / "01_bags.ipynb")
    nbformat.write(new_notebook(cells=cells[:1]), tmp_path / "07_counting.ipynb")
    page = script("docs/gallery.py").gallery(tmp_path)
    assert (tmp_path / "pictures" / "01_bags.png").read_bytes() == b"first"
    assert re.findall(r":img-top: (.*)", page) == ["pictures/01_bags.png"]
    assert re.findall(r":link: (.*)", page) == ["01_bags", "07_counting"]
    assert "grid-item-card} Labels on bags\n" in page


def test_the_gallery_has_an_idea_of_each_notebook():
    assert sorted(script("docs/gallery.py").IDEAS) == [path.stem for path in NOTEBOOKS]


def test_the_page_for_instructors_lists_every_notebook(notebooks):
    page = (REPOSITORY / "docs/teaching.md").read_text("utf-8")
    for path, notebook in zip(NOTEBOOKS, notebooks, strict=True):
        title = re.search(r"^# (.+)$", notebook.cells[0].source, re.MULTILINE)[1]
        assert f"| [{title}](notebooks/{path.stem}) |" in page


def test_the_page_for_instructors_names_cells_that_are_there(notebooks):
    """Headings in quotes behind the number of a notebook stand in that notebook."""
    page = (REPOSITORY / "docs/teaching.md").read_text("utf-8")
    named = re.findall(r"Notebook (\d+), “([^”]+)”", page)
    assert len(named) >= 12
    for number, heading in named:
        text = "\n".join(cell.source for cell in notebooks[int(number) - 1].cells)
        assert re.search(rf"^## {re.escape(heading)}$", text, re.MULTILINE), (number, heading)
