"""Build the slides: what each notebook teaches, and the figures that its cells mark for slides.

A cell with ``slideshow={"slide_type": "slide"}`` begins a slide, and one with ``"-"`` continues it.
All other cells are left to the notebook.

    python docs/slides/build.py NOTEBOOKS OUT
"""

import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import nbformat
import sphinx_revealjs
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbconvert import SlidesExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

HERE = Path(__file__).resolve().parent
TITLE = """# Bayesian models for multiple-instance learning

Closed-form variational inference and exact MCMC, side by side.

The slides show the aims and the main figures of the notebooks. Arrow keys turn the pages."""


def deck(notebooks: Iterable[NotebookNode]) -> list[list[NotebookNode]]:
    """Cells of each slide: a title, and for each notebook its aims and its marked cells."""
    of_notebooks = [slide for notebook in notebooks for slide in slides_of(notebook)]
    return [[new_markdown_cell(TITLE)], *of_notebooks]


def slides_of(notebook: NotebookNode) -> Iterator[list[NotebookNode]]:
    """Cells of each slide of one notebook; the first has its title and its aims."""
    title = heading_in(notebook.cells[0].source, level=1)
    aims = [cell for cell in notebook.cells if cell.source.startswith("**You will learn**")]
    yield [new_markdown_cell(f"# {title}"), *aims]

    section, slide = "", None
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            section = heading_in(cell.source, level=2) or section
        kind = cell.metadata.get("slideshow", {}).get("slide_type")
        if kind == "slide":
            if slide:
                yield slide
            slide = [new_markdown_cell(f"*{title}*\n\n## {section}")]
        if kind and slide:
            slide.append(cell)
    if slide:
        yield slide


def heading_in(markdown: str, level: int) -> str:
    """The last heading of this level; empty if there is none."""
    headings = re.findall(rf"^{'#' * level} (.+)$", markdown, flags=re.MULTILINE)
    return headings[-1] if headings else ""


def as_notebook(slides: list[list[NotebookNode]]) -> NotebookNode:
    """One notebook of all slides, without code and printed lines."""
    cells = []
    for slide in slides:
        for position, cell in enumerate(slide):
            copy = nbformat.from_dict(cell)
            copy.metadata = {"slideshow": {"slide_type": "-" if position else "slide"}}
            if copy.cell_type == "code":
                copy.outputs = [one for one in copy.outputs if one.output_type != "stream"]
            cells.append(copy)
    return new_notebook(cells=cells, metadata={"title": "milzoo"})


def as_page(slides: list[list[NotebookNode]]) -> str:
    """HTML of the slides; formulas are MathML, which needs no script."""
    exporter = SlidesExporter(
        template_name=HERE.name,
        extra_template_basedirs=[str(HERE.parent)],
        reveal_url_prefix="reveal",
        exclude_input=True,
    )
    exporter.register_filter("markdown2html", html_of_markdown)
    page, _ = exporter.from_notebook_node(as_notebook(slides))
    return page


def html_of_markdown(source: str) -> str:
    """HTML with each formula as MathML."""

    def formula(content: str, options: dict) -> str:
        return convert(content, display="block" if options["display_mode"] else "inline")

    parser = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, renderer=formula)
    return parser.render(source)


def main(notebooks: Path, out: Path) -> None:
    """Write the slides of executed notebooks, with all that they load."""
    executed = [nbformat.read(path, as_version=4) for path in sorted(notebooks.glob("*.ipynb"))]
    shutil.copytree(
        Path(sphinx_revealjs.__file__).parent / "_static/revealjs/dist",
        out / "reveal/dist",
        dirs_exist_ok=True,
    )
    (out / "index.html").write_text(as_page(deck(executed)), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
