"""Data files, the data folder and checkpoints that are damaged or are something else."""

import gzip
import json

import numpy as np
import pytest
from milzoo.datasets import load, published_folds
from milzoo.inference.runtime.checkpoint import BlockFolder, Journal

_RUN = {"engine": "nuts"}
_CSV = "bag,bag_label,instance_label,x0\na,0,0,1.5\na,0,0,2.5\nb,1,,3.5\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with a data set named mine."""
    monkeypatch.setenv("MILZOO_DATA", str(tmp_path))
    (tmp_path / "mine.csv.gz").write_bytes(gzip.compress(_CSV.encode()))
    return tmp_path


# ------------------------------------------------------------------------- data files


def test_a_whole_file_is_read(folder):
    assert load("mine").num_instances == 3


def _compressed(text: str | bytes) -> bytes:
    return gzip.compress(text if isinstance(text, bytes) else text.encode())


DAMAGED = {
    "cut off": _compressed(_CSV * 50)[:-20],
    "cut to the header": _compressed(_CSV)[:8],
    "not compressed": _CSV.encode(),
    "nothing": b"",
    "nothing, compressed": _compressed(""),
    "not UTF-8": _compressed(_CSV.encode().replace(b"a", b"\xff")),
    "another kind": b"PK\x03\x04 an archive",
    "a broken checksum": _compressed(_CSV)[:-8] + b"\0" * 8,
    "two columns of one name": _compressed(_CSV.replace("instance_label", "x0")),
    "ragged": _compressed(_CSV + "c,0,0,1,2,3,4\n"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_data_file_is_named(folder, kind):
    (folder / "mine.csv.gz").write_bytes(DAMAGED[kind])
    with pytest.raises(ValueError, match=r"mine\.csv\.gz cannot be read \(.*; expected a whole"):
        load("mine")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("bag,bag_label\na,0\n", ValueError, "no numeric column"),
        ("bag,x0\na,0\n", KeyError, "has no column 'bag_label'"),
        ("bag_label,x0\n0,1\n", KeyError, "has no column 'bag'"),
        (_CSV.replace("2.5", "many"), TypeError, "column 'x0' has type .*; expected numbers"),
        (_CSV.replace("2.5", "inf"), ValueError, "bag 'a', row 1 holds inf"),
        (_CSV.replace("2.5", ""), ValueError, "bag 'a', row 1 holds nan"),
        (_CSV.replace("a,0,0,2.5", "a,1,0,2.5"), ValueError, "bag 'a' has two labels"),
        ("bag,bag_label,x0\n", ValueError, "is empty"),
    ],
)
def test_a_data_file_of_another_format_is_named(folder, text, error, message):
    (folder / "mine.csv.gz").write_bytes(_compressed(text))
    with pytest.raises(error, match=rf"mine\.csv\.gz: .*({message})"):
        load("mine")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"\0" * 100])
def test_a_damaged_archive_of_images_is_named(folder, content):
    (folder / "mnist.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"mnist\.npz cannot be read"):
        load("mnist")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\0", b"bug,rep1\na,1\n", b'"'])
def test_damaged_folds_are_named(folder, content):
    (folder / "folds").mkdir()
    (folder / "folds" / "mine.folds.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.folds\.csv cannot be read"):
        published_folds("mine")


def test_a_data_folder_that_is_a_file_is_refused(folder, monkeypatch):
    """No download begins."""
    monkeypatch.setenv("MILZOO_DATA", str(folder / "mine.csv.gz"))
    with pytest.raises(NotADirectoryError, match=r"MILZOO_DATA is .*mine\.csv\.gz, a file"):
        load("musk1")
    with pytest.raises(NotADirectoryError, match=r"data_folder is .*, a file; expected the folder"):
        load("musk1", data_folder=folder / "mine.csv.gz")


def test_an_empty_data_folder_is_refused(monkeypatch):
    monkeypatch.setenv("MILZOO_DATA", "")
    with pytest.raises(ValueError, match="MILZOO_DATA is empty; expected the path of a folder"):
        load("musk1")


# ------------------------------------------------------------------------ checkpoints


@pytest.fixture
def blocks(tmp_path):
    folder = BlockFolder(tmp_path / "run", _RUN)
    for number in range(2):
        folder.write(number, np.arange(3.0), np.arange(50.0), 1.0)
    return folder


def test_a_truncated_block_is_named(blocks, tmp_path):
    file = tmp_path / "run" / "block_000001.npz"
    whole = file.read_bytes()
    for hundredth in range(100):
        file.write_bytes(whole[: len(whole) * hundredth // 100])
        for read in (lambda: blocks.state(np.zeros(3)), lambda: blocks.blocks(np.zeros(50))):
            with pytest.raises(ValueError, match=r"block_000001\.npz is damaged .*; delete it"):
                read()


def test_flipped_bits_of_blocks_are_named_or_harmless(blocks, tmp_path):
    """Zip archives have checksums of what they hold, but not of all that they say of it."""
    file = tmp_path / "run" / "block_000001.npz"
    whole, random, refused = file.read_bytes(), np.random.default_rng(0), 0
    for place in random.choice(len(whole), size=300, replace=False):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.integers(8)
        file.write_bytes(damaged)
        try:
            state, rows = blocks.state(np.zeros(3)), blocks.blocks(np.zeros(50))
        except ValueError as error:
            assert "block_000001.npz is damaged" in str(error)  # noqa: PT017
            refused += 1
        else:
            np.testing.assert_array_equal(state, np.arange(3.0))
            np.testing.assert_array_equal(rows[1][0], np.arange(50.0))
    assert refused > 200


def test_a_header_that_is_none_is_refused(tmp_path):
    BlockFolder(tmp_path, _RUN).write(0, np.zeros(1), np.zeros(1), 0.0)
    for content in (b"", b"\xff\xfe", b"[" * 50_000, b"[]", b"3", b'{"milzoo": 3}'):
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"holds no run of milzoo; give a new path"):
            BlockFolder(tmp_path, _RUN)


def test_a_damaged_line_of_a_journal_is_dropped(tmp_path):
    """What is after it, too; numbers that were not written never come back."""
    journal = Journal(tmp_path / "journal", _RUN)
    written = [{"pit": [number / 7.0, float("nan")]} for number in range(20)]
    for entry in written:
        journal.append(entry)
    whole, random = (tmp_path / "journal").read_bytes(), np.random.default_rng(0)
    begin = whole.index(b"\n") + 1
    for place in random.choice(np.arange(begin, len(whole)), size=300, replace=False):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.integers(8)
        (tmp_path / "journal").write_bytes(damaged)
        found = Journal(tmp_path / "journal", _RUN).entries
        assert json.dumps(found) == json.dumps(written[: len(found)])
        line = whole[begin:place].count(b"\n")
        assert line <= len(found) + 1


@pytest.mark.parametrize("line", ["3", "null", "[" * 50_000, "[]", '{"number": []}', "{}"])
def test_a_line_of_something_else_is_dropped(tmp_path, line):
    journal = Journal(tmp_path / "journal", _RUN)
    journal.append({"n": 0})
    with (tmp_path / "journal").open("a") as file:
        file.write(f"{line}\n")
    again = Journal(tmp_path / "journal", _RUN)
    assert again.entries == [{"n": 0}]
    again.append({"n": 1})
    assert Journal(tmp_path / "journal", _RUN).entries == [{"n": 0}, {"n": 1}]
