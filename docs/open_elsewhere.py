"""Copy the notebooks for Colab and other hosts, with a first cell that installs the wheel.

With the address of a repository on GitHub whose pages are this site, the pages of the notebooks
also get badges that open them in Colab and Binder.

    python docs/open_elsewhere.py NOTEBOOKS FOLDER_OF_THE_WHEEL [OWNER/NAME]
"""

import sys
from importlib.metadata import version
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

FOLDER = "elsewhere"  # of the site
WHEEL = f"milzoo-{version('milzoo')}-py3-none-any.whl"
INSTALL = """# Install milzoo where it is missing. Upload the wheel first if it has no address.
import importlib.util

if importlib.util.find_spec("milzoo") is None:
    %pip install --quiet {wheel} altair vl-convert-python"""
BADGES = """[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab})
[![Open in Binder](https://mybinder.org/badge_logo.svg)]({binder})"""


def that_installs(notebook: NotebookNode, repository: str = "") -> NotebookNode:
    """A copy without outputs, whose first cell installs the wheel where milzoo is missing."""
    copy = nbformat.from_dict(notebook)
    copy.cells.insert(0, new_code_cell(INSTALL.format(wheel=address_of_wheel(repository))))
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return copy


def address_of_wheel(repository: str) -> str:
    """On the pages of the repository; beside the notebook if there is none."""
    if not repository:
        return f"./{WHEEL}"
    owner, name = repository.split("/")
    return f"https://{owner}.github.io/{name}/{FOLDER}/{WHEEL}"


def with_badges(notebook: NotebookNode, name: str, repository: str) -> NotebookNode:
    """A copy with links to Colab and Binder behind its first cell."""
    copy = nbformat.from_dict(notebook)
    colab = f"https://colab.research.google.com/github/{repository}/blob/gh-pages/{FOLDER}/{name}"
    binder = f"https://mybinder.org/v2/gh/{repository}/HEAD?labpath=examples/{name}"
    copy.cells.insert(1, new_markdown_cell(BADGES.format(colab=colab, binder=binder)))
    return copy


def main(notebooks: Path, out: Path, repository: str = "") -> None:
    """Write the copies beside the wheel, and the badges into the notebooks themselves."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(notebooks.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        nbformat.write(that_installs(notebook, repository), out / path.name)
        if repository:
            nbformat.write(with_badges(notebook, path.name, repository), path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]), *sys.argv[3:])
