"""The numbered examples: each is a notebook that is prose first, and what it claims is asserted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((REPOSITORY / "examples").glob("[0-9]*.py"))


def test_there_are_some():
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs_at_small_size_and_holds_what_it_claims(notebook, tmp_path):
    command = [sys.executable, "-W", "error", notebook, "--toy"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_is_as_notebooks_here_are(notebook):
    text = notebook.read_text()
    cells = re.split(r"^# %%", text, flags=re.MULTILINE)[1:]
    assert 15 <= len(cells) <= 30
    assert cells[0].startswith(" [markdown]\n# # ")
    # Figures are no pyplot's, and are shown all the same.
    assert "\n# %matplotlib inline\n" in cells[1]
    assert text.count("\nassert ") + text.count("    assert ") >= 3
    assert f"python examples/{notebook.name} [--toy]" in cells[0]
