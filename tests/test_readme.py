"""The README and the guides show what is true."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from milzoo import models
from milzoo.datasets import load
from milzoo.inference import coordinate_ascent
from milzoo.inference.closed_form.algorithm import closed_form
from milzoo.inference.gibbs.sweep import sweep_of
from milzoo.models import VGPMIL
from milzoo.models.pymc.registry import pymc_program

REPOSITORY = Path(__file__).resolve().parent.parent
TEN_LINES = REPOSITORY / "examples" / "verdict_in_ten_lines.py"
FOLDS = REPOSITORY / "examples" / "cross_validation_in_ten_lines.py"


def printed_by(script, *arguments):
    """What an example prints; its own assertions hold if it ends well."""
    command = [sys.executable, REPOSITORY / "examples" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def is_drawn(picture):
    return picture.stat().st_size > 10_000


def test_programs_of_the_readme_are_the_examples():
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    programs = [TEN_LINES.read_text("utf-8"), FOLDS.read_text("utf-8")]
    assert re.findall(r"```python\n(.*?)```", readme, re.DOTALL) == programs


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text("utf-8").splitlines()) <= 150


def test_the_readme_tells_which_engines_take_a_model():
    """Its table of models has the registries' own answers."""
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .* \| (yes|–) \| (yes|–) \| (yes|–) \|$", readme, re.M)
    told = {name: tuple(answer == "yes" for answer in answers) for name, *answers in rows}
    classes = {cls.__name__: cls for cls in vars(models).values() if isinstance(cls, type)}
    registries = (closed_form, sweep_of, pymc_program)
    assert told == {
        name: tuple(
            registry.dispatch(classes[name]) is not registry.dispatch(object)
            for registry in registries
        )
        for name in told
    }


@pytest.mark.slow
def test_cross_validation_in_ten_lines_gives_a_table():
    printed = printed_by(FOLDS)
    assert re.search(r"^vgpmil +0\.\d", printed, re.M)
    assert re.search(r"^MI-Kernel +-?0\.\d", printed, re.M)


@pytest.mark.slow
def test_example_gives_the_verdict():
    printed = printed_by(TEN_LINES)
    assert re.search(r"CAVI's mean has an error of 0\.\d+ sd", printed)
    assert re.search(r"NUTS's 4 × 1,000 draws show no sign of poor mixing", printed)


@pytest.mark.in_ci  # a figure of a paper
def test_the_example_of_learning_curves_holds_what_it_says(tmp_path):
    picture = tmp_path / "curves.png"
    printed = printed_by("closed_form_against_svi.py", "--toy", "--out", picture)
    assert len(re.findall(r"within a nat of its end after \d passes", printed)) == 2
    assert len(re.findall(r"accuracy (?:is )?0\.\d{3}, to 0\.02 from pass \d", printed)) == 4
    assert is_drawn(picture)


@pytest.mark.in_ci  # a figure of a paper
def test_the_example_of_clusters_holds_what_it_says(tmp_path):
    printed = printed_by("clusters_of_witnesses.py", "--toy", "--out", tmp_path)
    assert len(re.findall(r"3 large negative clusters and 2 positive ones", printed)) == 2
    assert is_drawn(tmp_path / "kandemir2014_scene.png")
    assert is_drawn(tmp_path / "kandemir2014_components.png")


@pytest.mark.in_ci  # a figure of a paper
def test_the_example_of_exemplars_finds_pure_clusters(tmp_path):
    picture = tmp_path / "exemplars.png"
    printed = printed_by("exemplars_of_clusters.py", "--toy", "--out", picture)
    found = re.findall(r"^(\w+) cluster of \d+ instances: (\d) of 8", printed, re.MULTILINE)
    assert [name for name, _ in found] == ["negative"] * 6 + ["positive"] * 6
    positive = [int(number) for _, number in found]
    assert max(positive[:6]) <= 2
    assert min(positive[6:9]) >= 6
    assert is_drawn(picture)


@pytest.mark.in_ci  # a figure of a paper
def test_the_example_of_digits_prints_each_with_its_sd(tmp_path):
    picture = tmp_path / "digits.png"
    printed = printed_by("digits_with_uncertainty.py", "--toy", "--out", picture)
    assert len(re.findall(r"truth [01], P = 0\.\d{3} ± 0\.\d{3}", printed)) == 20
    assert len(re.findall(r"P\(T = 1\) = \d\.\d{3} ± 0\.\d{3}", printed)) == 2
    assert is_drawn(picture)


@pytest.mark.in_ci  # a figure of a paper
def test_the_example_of_prototypes_holds_what_its_page_says(tmp_path):
    lines = printed_by("prototypes_of_a_scene.py", "--out", tmp_path).splitlines()
    page = (REPOSITORY / "docs" / "accuracy.md").read_text("utf-8")
    assert len(lines) == 9
    for line in lines:
        what, printed = re.fullmatch(r"(.*): (.*) \[.*\]", line).groups()
        assert f"| {what} | {printed} |" in page
    assert is_drawn(tmp_path / "venkatesan2015_peaks.png")


@pytest.mark.slow
def test_the_calibration_example_has_its_pages_rows(tmp_path):
    printed = printed_by("calibration_of_every_engine.py", "--toy", "--out", tmp_path)
    page = (REPOSITORY / "docs" / "which_engine_to_trust.md").read_text("utf-8")
    header, _, *rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert header in page
    assert len(rows) == 7
    for row in rows:
        assert f"\n{row.split(' | ')[0]} | " in page
    # Forty simulations are enough for these two.
    assert re.search(r"^\| coordinate_ascent, mean field \| \d+ \| [1-6] of 6", "\n".join(rows))
    assert re.search(r"^\| nuts \| \d+ \| 0 of 6", "\n".join(rows), re.MULTILINE)
    assert is_drawn(tmp_path / "calibration_of_coordinate_ascent.png")


@pytest.mark.slow
def test_two_processes_of_the_example_share_one_posterior(tmp_path):
    bags = load("digits").select(np.arange(60))
    for number, chosen in enumerate((np.arange(25), np.arange(25, 60))):
        bags.select(chosen).to_parquet(tmp_path / "cut" / str(number) / "bags.parquet")
    script = REPOSITORY / "examples" / "bags_on_all_machines.py"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = [sys.executable, script, tmp_path / "cut", "--out", tmp_path / "out", "--inducing", "9"]
    others = ["--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process"]
    both = [subprocess.Popen([*start, *others, n], stdout=subprocess.PIPE, text=True) for n in "01"]
    printed = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    bound = float(re.search(r"the bound is (-\d+\.\d+)", printed[0]).group(1))
    model = VGPMIL.for_bags(bags.select(np.arange(25)), num_inducing=9)
    expected = coordinate_ascent(model, bags, seed=0)
    assert bound == pytest.approx(expected.elbo[-1], abs=0.006)
    written = pd.concat(
        [pd.read_parquet(tmp_path / "out" / f"predictions-{number}.parquet") for number in (0, 1)]
    )
    instances = expected.predict(bags).instance_probability
    np.testing.assert_allclose(written["instance_probability"], instances, atol=1e-4)


PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
PAGES += sorted((REPOSITORY / "docs" / "models").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_targets_links_and_scripts_of_pages_exist(page):
    text = page.read_text("utf-8")
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)", text)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        target = page.parent / path
        # Between pages links have no suffix; notebooks are made from the examples.
        notebook = REPOSITORY / "examples" / f"{target.name}.py"
        is_made = path == "notebooks/index"  # by docs/gallery.py
        assert is_made or any(one.exists() for one in (target, Path(f"{target}.md"), notebook)), (
            path
        )
    for script in set(re.findall(r"python ((?:benchmarks|examples)/\S+\.py)", text)):
        assert (REPOSITORY / script).exists(), script


def commands_and_programs(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page that a reader types, each with its language."""
    return re.findall(r"```(bash|python)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@pytest.mark.slow
def test_every_step_of_get_started_works_as_printed(tmp_path, monkeypatch):
    """In an empty folder, one after the other, in the environment that the first step makes."""
    install, *steps = commands_and_programs(REPOSITORY / "docs" / "get_started.md")
    monkeypatch.setenv("PATH", f"{tmp_path / '.venv' / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("MILZOO_DATA", raising=False)
    files = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    for language, text in (install, *steps):
        command = ["bash", "-ec", text] if language == "bash" else ["python", "-c", text]
        run = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert run.returncode == 0, f"{text}\n{run.stderr[-2000:]}"
    assert (tmp_path / "report" / "report.html").stat().st_size > 100_000


@pytest.mark.in_ci
@pytest.mark.parametrize("page", ["choosing_an_engine", "scale"])
def test_programs_of_a_guide_run(page, tmp_path):
    programs = [text for _, text in commands_and_programs(REPOSITORY / "docs" / f"{page}.md")]
    for program in programs:
        command = [sys.executable, "-c", program]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    assert programs


@pytest.mark.slow
def test_twelve_lines_give_a_table_of_eight_methods(tmp_path):
    """From a file to the table, as the guide has it."""
    guide = (REPOSITORY / "docs/comparators.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len([line for line in program.splitlines() if line]) <= 12
    load("kandemir2014").to_frame().to_csv(tmp_path / "bags.csv", index=False)
    outcome = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    rows = [line.split()[0] for line in outcome.stdout.splitlines() if line]
    assert rows.count("MIForest") == 2
    assert {"BayesianMIL", "CitationKNN", "MILBoost", "MiGraph", "miSVM"} <= set(rows)


SAMPLERS = (
    "blackjax_nuts",
    "blackjax_pathfinder",
    "nutpie_low_rank",
    "pymc_sample",
    "numpyro_guide",
    "flowjax_flow",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_from_elsewhere_runs_as_printed(name):
    """In under 15 lines; exact samplers have no error, variational ones a small one."""
    if name.startswith("flowjax"):
        pytest.importorskip("flowjax")
    first, program = _imports_and_sampler(name)
    body = program.split(f"def {name}")[1].split("\n\n\n")[0]
    assert len([line for line in body.splitlines() if line]) < 15
    told = f"{first}\n{program.replace('print(benchmark_engine(', 'found = (benchmark_engine(')}"
    told += "\nprint(*found.loc[['status', 'worst_error', 'sd_ratio']].iloc[:, 0])"
    outcome = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    status, worst, ratio = outcome.stdout.split()[-3:]
    assert status == "converged"
    is_exact = name in ("blackjax_nuts", "nutpie_low_rank", "pymc_sample")
    # Of nine means of some 3,000 effective draws: four standard errors.
    assert float(worst) < (0.08 if is_exact else 0.5)
    assert float(ratio) == pytest.approx(1.0, abs=0.05)


def test_the_page_of_samplers_lists_the_tested_ones():
    page = (REPOSITORY / "docs/adding_an_engine.md").read_text("utf-8")
    assert re.findall(r"^def (\w+)\(target_density\):", page, re.MULTILINE) == list(SAMPLERS)
    assert page.count("```python") == len(SAMPLERS) + 1


def _imports_and_sampler(name: str) -> tuple[str, str]:
    page = (REPOSITORY / "docs/adding_an_engine.md").read_text("utf-8")
    first, *others = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (program,) = (block for block in others if f"def {name}(" in block)
    return first, program
