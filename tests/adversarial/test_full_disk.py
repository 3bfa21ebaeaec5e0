"""On a disk without space every writer says so, and leaves what was there."""

import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.datasets.writing import check_writable, written_together
from milzoo.diagnostics import compare
from milzoo.inference import Posterior, coordinate_ascent
from milzoo.inference.runtime.checkpoint import BlockFolder, Journal
from milzoo.models import VGPMIL

_NUMBERS = np.arange(20_000.0)  # 160 kB, more than the disk has
_RUN = {"engine": "nuts"}


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """A disk of 200 kB."""
    folder = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {getattr(error, 'stderr', error)}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def full_disk(small_disk):
    """The disk with 30 kB left at most; what a test writes there is deleted."""
    (small_disk / "filling").write_bytes(bytes(170_000))
    yield small_disk
    subprocess.run(f"rm -rf {small_disk}/* {small_disk}/.[!.]*", shell=True, check=True)


@pytest.fixture(scope="module")
def bags():
    random = np.random.default_rng(0)
    return Bags.from_list(list(random.normal(size=(400, 5, 3))), np.arange(400) % 2)


@pytest.fixture(scope="module")
def posterior(bags):
    model = VGPMIL.for_bags(bags, num_inducing=2, seed=0)
    return coordinate_ascent(model, bags, seed=0, num_draws=60, max_steps=3)


def fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as opened:
        while True:
            opened.write(bytes(4096))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


WRITERS = {
    "posterior": lambda posterior, bags, file: posterior.save(file),
    "bags": lambda posterior, bags, file: bags.to_parquet(file),
    "predictions": lambda posterior, bags, file: posterior.predict_to_parquet(bags, file, mass=0.9),
    "report": lambda posterior, bags, file: compare({"cavi": posterior}).save_report(
        file.parent / "report", force=True
    ),
    "block": lambda posterior, bags, file: BlockFolder(file.parent / "run", _RUN).write(
        1, _NUMBERS, _NUMBERS, 0.0
    ),
}


def _report_as_files(posterior, bags, file):
    with written_together(file.parent / "report", force=True) as unfinished:
        for name in ("report.html", "metrics.json", "cavi.nc"):
            (unfinished / name).write_bytes(bytes(30_000))


WRITERS["files of a report"] = _report_as_files


@pytest.mark.parametrize(
    "writer",
    [pytest.param(one, marks=[pytest.mark.slow] if one == "report" else []) for one in WRITERS],
)
def test_a_full_disk_keeps_the_older_file(full_disk, posterior, bags, writer):
    file = full_disk / "file"
    file.write_text("old")
    (full_disk / "report").mkdir()
    (full_disk / "report" / "report.html").write_text("old")
    BlockFolder(full_disk / "run", _RUN).write(0, np.zeros(1), np.zeros(1), 0.0)
    before = contents(full_disk)
    with pytest.raises(OSError, match=r"cannot be written: no space left on device; what was"):
        WRITERS[writer](posterior, bags, file)
    assert contents(full_disk) == before


def test_a_journal_on_a_full_disk_keeps_its_entries(full_disk):
    journal = Journal(full_disk / "journal", _RUN)
    journal.append({"n": 1})
    with pytest.raises(OSError, match="journal cannot be written: no space left on device"):
        journal.append({"numbers": _NUMBERS.tolist()})
    (full_disk / "filling").unlink()
    again = Journal(full_disk / "journal", _RUN)
    assert again.entries == [{"n": 1}]
    again.append({"n": 2})
    assert Journal(full_disk / "journal", _RUN).entries == [{"n": 1}, {"n": 2}]


def test_a_full_disk_is_found_before_the_work(small_disk):
    fill(small_disk / "filling")
    with pytest.raises(OSError, match="cannot be written: no space left where"):
        check_writable(small_disk / "x.nc")
    (small_disk / "filling").unlink()


def test_a_disk_for_reading_alone_is_refused(small_disk, posterior):
    posterior.save(small_disk / "x.nc")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        with pytest.raises(OSError, match="cannot be written: no permission to write in"):
            posterior.save(small_disk / "x.nc")
        assert Posterior.load(small_disk / "x.nc").engine == posterior.engine
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
