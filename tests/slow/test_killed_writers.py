"""Writers that are killed at random moments leave the old file or the new one, never a part."""

import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.inference import Posterior, coordinate_ascent
from milzoo.models import VGPMIL

_KILLS = 20

# Each writes "old" and "new" in turns until it is killed.
_PREAMBLE = """
import itertools, sys
from pathlib import Path
from milzoo.datasets import Bags
from milzoo.datasets.writing import written_together, written_whole
from milzoo.inference import Posterior

folder, sources = Path(sys.argv[1]), Path(sys.argv[2])
posteriors = [Posterior.load(sources / name) for name in ("old.nc", "new.nc")]

def in_turns(write):
    for turn in itertools.count():
        write(turn % 2)
        if turn == 1:
            print("ready", flush=True)

"""
_WRITERS = {
    "save": "in_turns(lambda n: posteriors[n].save(folder / 'x.nc'))",
    "predictions": """
bags = posteriors[0].bags
in_turns(lambda n: posteriors[n].predict_to_parquet(bags, folder / "x.parquet"))
""",
    "bags": """
bags = posteriors[0].bags
parts = [bags, bags.select(range(100))]
in_turns(lambda n: parts[n].to_parquet(folder / "x.parquet"))
""",
    "files of a report": """
def write(n):
    with written_together(folder) as unfinished:
        for name in ("metrics.json", "report.html", "x.nc"):
            (unfinished / name).write_text(("old", "new")[n] * 100_000)

in_turns(write)
""",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Two posteriors of one size, with different draws."""
    folder = tmp_path_factory.mktemp("sources")
    numbers = np.random.default_rng(0)
    bags = Bags.from_list(list(numbers.normal(size=(400, 5, 3))), np.arange(400) % 2)
    model = VGPMIL.for_bags(bags, num_inducing=5, seed=0)
    for seed, name in enumerate(("old.nc", "new.nc")):
        coordinate_ascent(model, bags, seed=seed, num_draws=500).save(folder / name)
    return folder


def kill_while_it_writes(writer: str, folder: Path, sources: Path, seconds: float) -> None:
    command = [sys.executable, "-c", _PREAMBLE + _WRITERS[writer], str(folder), str(sources)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
        process.kill()


def contents(folder: Path) -> dict[str, bytes]:
    """Files but for those that were unfinished, and the marker."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.suffix != ".unfinished" and path.name != ".milzoo"
    }


@pytest.fixture(scope="module")
def wholes(sources, tmp_path_factory):
    """What each writer writes for the old and the new, by file name."""
    posteriors = [Posterior.load(sources / name) for name in ("old.nc", "new.nc")]
    bags = posteriors[0].bags
    folder = tmp_path_factory.mktemp("wholes")

    def written(write, name):
        both = []
        for number in range(2):
            write(number, folder / name)
            both.append((folder / name).read_bytes())
        return {name: both}

    text = [b"old" * 100_000, b"new" * 100_000]
    return {
        "predictions": written(
            lambda n, file: posteriors[n].predict_to_parquet(bags, file), "x.parquet"
        ),
        "bags": written(
            lambda n, file: (bags, bags.select(range(100)))[n].to_parquet(file), "x.parquet"
        ),
        "files of a report": dict.fromkeys(("metrics.json", "report.html", "x.nc"), text),
    }


@pytest.mark.parametrize("writer", _WRITERS)
def test_a_killed_writer_leaves_old_or_new(writer, sources, wholes, tmp_path):
    moments = random.Random(0)
    folders = [tmp_path / str(number) for number in range(_KILLS)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda folder: kill_while_it_writes(
                    writer, folder, sources, moments.uniform(0.0, 0.5)
                ),
                folders,
            )
        )
    draws = [
        Posterior.load(sources / name).stored_draws()["inducing_value"].tobytes()
        for name in ("old.nc", "new.nc")
    ]
    for folder in folders:
        found = contents(folder)
        if writer == "save":
            again = Posterior.load(folder / "x.nc")
            assert again.stored_draws()["inducing_value"].tobytes() in draws
        else:
            assert set(found) == set(wholes[writer])
            assert any(
                all(content == wholes[writer][name][number] for name, content in found.items())
                for number in range(2)
            )


def test_two_processes_leave_the_files_of_one(tmp_path):
    """Whoever moves its files last has all of them there."""
    script = """
import sys, time
from pathlib import Path
from milzoo.datasets.writing import written_together

print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    with written_together(sys.argv[1]) as unfinished:
        for number in range(10):
            (unfinished / f"{number}.txt").write_text(sys.argv[2])
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), word],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for word in ("one", "other")
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        process.communicate("go\n")
        assert process.returncode == 0
    texts = {path.read_text() for path in tmp_path.glob("*.txt")}
    assert len(texts) == 1 and len(list(tmp_path.glob("*.txt"))) == 10
    assert sorted(tmp_path.glob("*.unfinished")) == []
