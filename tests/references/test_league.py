"""The league: fronts, seconds to an error, and what the picture draws."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from milzoo.inference import coordinate_ascent, laplace
from milzoo.references.league import (
    LEAGUE,
    errors,
    in_order,
    league,
    lines_of_table,
    lines_of_tags,
    pareto_front,
    picture,
    seconds_to_error,
)

GAUSSIAN, MUSK = "vwsgp-gaussian-simulated-9", "vwsgp-musk1-20"


def test_a_front_has_all_points_that_none_beats():
    seconds = np.array([1.0, 2.0, 2.0, 3.0, 4.0, np.nan])
    error = np.array([0.5, 0.5, 0.2, 0.3, 0.1, 0.0])
    assert pareto_front(seconds, error).tolist() == [True, False, True, False, True, False]


def test_equal_points_are_both_on_the_front():
    assert pareto_front(np.ones(2), np.ones(2)).all()


@pytest.fixture(scope="module")
def table():
    """A quick and wrong engine, chains, and one that takes the first model alone."""
    rows = [
        ("quick", GAUSSIAN, 0.1, 0.5, np.nan, np.nan),
        ("quick", MUSK, 0.3, 0.05, np.nan, np.nan),
        ("chains", GAUSSIAN, 20.0, 0.02, 100.0, 5.0),
        ("chains", MUSK, 40.0, 0.02, 50.0, 0.5),
        ("chosen", GAUSSIAN, 30.0, 0.03, np.nan, np.nan),
        ("chosen", MUSK, np.nan, np.nan, np.nan, np.nan),
    ]
    numbers = ["seconds", "mean_error", "ess_per_second", "warmup_seconds"]
    columns = ["engine", "reference", *numbers]
    return pd.DataFrame(rows, columns=columns).assign(sd_ratio=1.0)


def test_an_error_is_that_of_means_or_of_sds(table):
    narrow = table.assign(sd_ratio=[1.0, 0.9, 1.3, 1.0, 0.5, np.nan])
    np.testing.assert_allclose(errors(narrow), [0.5, 0.1, 0.3, 0.02, 0.5, np.nan])
    assert np.isinf(seconds_to_error(narrow, 0.1)[[0, 2, 4]]).all()


def test_chains_reach_an_error_by_their_rate(table):
    """A mean of n draws is wrong by √(2/π)/√n on average: by 0.1 of an sd with 64 of them."""
    number = 64
    means = np.random.default_rng(0).normal(size=(10_000, number)).mean(axis=1)
    assert np.abs(means).mean() == pytest.approx(0.1, rel=0.02)
    expected = [np.inf, 0.3, 5.0 + number / 100, 0.5 + number / 50, 30.0, np.nan]
    np.testing.assert_allclose(seconds_to_error(table, 0.1), expected, rtol=0.01)


def test_hundreds_of_seconds_have_no_exponent(table):
    long = table.iloc[[1]].assign(seconds=121.4)
    assert lines_of_table(long)[-1] == f"| `{MUSK}` | 121 |"


def test_particles_are_drawn_at_the_end(table):
    """They have an effective size, and no warm-up: half a run has no draws."""
    particles = table.iloc[[3]].assign(warmup_seconds=0.0)
    assert seconds_to_error(particles, 0.1).tolist() == [40.0]


def test_a_table_has_seconds_or_the_error_that_stays(table):
    assert lines_of_table(table) == [
        "| reference | quick | chains | chosen |",
        "|---|---|---|---|",
        f"| `{GAUSSIAN}` | (0.5) | 5.6 | 30 |",
        f"| `{MUSK}` | 0.3 | 1.8 | – |",
    ]


def test_a_tag_has_how_often_and_how_soon(table):
    """Of bags and of targets there is one reference; both are easy, one is exact."""
    assert lines_of_tags(table) == [
        "| tag | quick | chains | chosen |",
        "|---|---|---|---|",
        "| targets | **0/1** | **1/1, 5.6 s** | 1/1, 30 s |",
        "| easy | **1/2, 0.3 s** | **2/2, 3.7 s** | 1/1, 30 s |",
        "| exact | **0/1** | **1/1, 5.6 s** | 1/1, 30 s |",
        "| bags | **1/1, 0.3 s** | **1/1, 1.8 s** | – |",
    ]


def test_the_picture_has_medians_and_their_front(table):
    more = table.iloc[[0, 0]].assign(
        reference=["vwsgp-student-simulated-9", "vwsgp-counts-simulated-9"],
        seconds=[0.2, 0.9],
        mean_error=[0.4, 0.1],
    )
    figure = picture(pd.concat([table, more]))
    targets, bags, legend = (panel for panel in figure.axes if panel.get_title() or panel.lines)
    assert (targets.get_title(), bags.get_title()) == ("targets", "bags")
    drawn = [line.get_xydata().tolist() for line in targets.lines]
    for median in ([0.2, 0.4], [20.0, 0.02], [30.0, 0.03]):
        assert [median] in drawn
    front = [points for points in drawn if len(points) == 2 and points[1] == [20.0, 0.02]]
    assert front == [[[0.2, 0.4], [20.0, 0.02]]]
    assert [text.get_text() for text in legend.get_legend().get_texts()] == [
        "quick",
        "chains",
        "chosen",
    ]


def test_the_picture_of_a_benchmark_has_one_engine(table):
    """`benchmark_engine` has references as its index, and no name of the engine."""
    of_one = table[table["engine"] == "quick"].drop(columns="engine").set_index("reference")
    figure = picture(of_one)
    drawn = [line.get_xydata().tolist() for panel in figure.axes for line in panel.lines]
    assert [[0.1, 0.5]] in drawn and [[0.3, 0.05]] in drawn
    assert figure.axes[2].get_legend().get_texts()[0].get_text() == "the engine"


def test_rows_keep_the_order_of_entries_by_engine():
    one, other = (
        pd.DataFrame({"engine": ["second", "first"], "reference": name})
        for name in (MUSK, GAUSSIAN)
    )
    table = in_order([other, one])
    assert list(table["engine"]) == ["second", "second", "first", "first"]
    assert list(table["reference"]) == [MUSK, GAUSSIAN] * 2
    assert list(table.index) == [0, 1, 2, 3]


@pytest.mark.in_ci
def test_leagues_have_rows_by_engine_and_reference():
    found = league({"ascent": coordinate_ascent, "laplace": laplace}, seed=0, tags=["exact"])
    assert list(found["engine"]) == ["ascent", "laplace"]
    assert list(found["reference"]) == [GAUSSIAN] * 2
    assert (found["worst_error"] < 0.04).all()


def test_the_page_has_the_tables_of_the_kept_run():
    docs = Path(__file__).resolve().parents[2] / "docs"
    kept = pd.read_csv(docs / "league" / "league.csv")
    assert list(kept["engine"].unique()) == list(LEAGUE)
    page = (docs / "which_engine_when.md").read_text("utf-8")
    for lines in (lines_of_tags(kept), lines_of_table(kept)):
        assert "\n".join(lines) in page


SAYS_ITS_CORES = """
import os
from milzoo.references import league

def cores(model, bags, *, seed):
    raise ValueError(f"{len(os.sched_getaffinity(0))} core, seed {seed}")

if __name__ == "__main__":
    print(*league({"cores": cores}, seed=3, tags=["exact"], jobs=1)["status"])
"""


@pytest.mark.in_ci
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="a system that holds no cores")
def test_an_engine_of_the_league_has_one_core(tmp_path):
    program = tmp_path / "says_its_cores.py"
    program.write_text(SAYS_ITS_CORES)
    told = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "1 core, seed 3"


COMPILES = """
import re
from pathlib import Path
import jax
from milzoo.references import league

programs = []

def compiles(model, bags, *, seed):
    for number in range(100):
        programs.append(jax.jit(lambda value, number=number: value + number))
        programs[-1](1.0)
    maps = Path("/proc/self/maps").read_text()
    raise ValueError(len(re.findall(r"r-xp \\S+ \\S+ 0 *$", maps, re.M)))

if __name__ == "__main__":
    print(*league({"compiles": compiles}, seed=0, tags=["easy"], jobs=1)["status"])
"""


@pytest.mark.in_ci
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="a system that tells no maps")
def test_programs_of_a_reference_are_given_back(tmp_path, data_folder):
    """Each takes maps of memory, some of them executable ones without a file."""
    program = tmp_path / "compiles.py"
    program.write_text(COMPILES)
    told = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    maps = [int(number) for number in told.stdout.split()]
    assert len(maps) == 3
    assert max(maps) - min(maps) < 100


def test_more_jobs_than_cores_are_refused():
    with pytest.raises(ValueError, match=r"jobs is 1000; expected at most \d+, the number of"):
        league({"laplace": laplace}, seed=0, tags=["exact"], jobs=1000)
