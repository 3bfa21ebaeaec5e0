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


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(
            path,
            id=path.stem,
            # This one draws figure 1 of Castro-Macías et al.
            marks=pytest.mark.in_ci if path.stem == "03_when_a_bound_lies" else pytest.mark.slow,
        )
        for path in NOTEBOOKS
    ],
)
def test_a_small_notebook_runs_and_keeps_its_claims(notebook, tmp_path):
    command = [sys.executable, "-W", "error", notebook, "--toy"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_is_as_notebooks_here_are(notebook):
    text = notebook.read_text()
    cells = cells_of(text)
    # An exercise adds two, a question and a solution.
    assert 15 <= len(cells) - 2 * text.count("\n# **Exercise ") <= 33
    assert cells[0].startswith(" [markdown]\n# # ")
    # Figures are no pyplot's, and are shown all the same.
    assert "\n# %matplotlib inline\n" in cells[2]
    assert text.count("\nassert ") + text.count("    assert ") >= 3
    assert f"python examples/{notebook.name} [--toy]" in cells[0]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_says_what_one_will_learn(notebook):
    aims = cells_of(notebook.read_text())[1]
    assert aims.startswith(" [markdown]\n# **You will learn**\n#\n# - ")
    assert aims.count("\n# - ") == 3


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_has_one_figure_with_a_slider(notebook):
    assert notebook.read_text().count("plot_with_slider(") == 1


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_each_exercise_has_a_hidden_solution_that_asserts(notebook):
    """Runs of the notebook at small size run the solutions too."""
    cells = cells_of(notebook.read_text())
    questions = [number for number, cell in enumerate(cells) if "\n# **Exercise " in cell]
    assert 3 <= len(questions) <= 5
    assert "\n# ## Exercises\n" in cells[questions[0]]
    for count, number in enumerate(questions, start=1):
        assert f"\n# **Exercise {count}.** " in cells[number]
        assert cells[number + 1].startswith(' tags=["hide-cell"]\n')
        assert re.search(r"^ *(assert |np\.testing\.assert_)", cells[number + 1], re.MULTILINE)


def cells_of(text: str) -> list[str]:
    """The cells of a percent script, each without its marker."""
    return re.split(r"^# %%", text, flags=re.MULTILINE)[1:]
