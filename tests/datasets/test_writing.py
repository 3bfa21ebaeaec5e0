"""Files are written whole or not at all, and refusals come before the work."""

import json
import os
import sys
from pathlib import Path

import pytest
from milzoo.datasets import writing
from milzoo.datasets.writing import (
    check_own_folder,
    check_writable,
    written_together,
    written_whole,
)


def write(folder: Path, content: str = "new", **files: str) -> None:
    with written_together(folder) as unfinished:
        for name, text in ({"a.txt": content, "b.txt": content} | files).items():
            (unfinished / name).write_text(text)


def fail_half_way(unfinished: Path) -> None:
    unfinished.write_text("half")
    raise KeyError


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --------------------------------------------------------------------------- one file


def test_a_file_appears_when_it_is_whole(tmp_path):
    file = tmp_path / "new" / "x.txt"
    with written_whole(file) as unfinished:
        unfinished.write_text("half")
        assert not file.exists() and unfinished.parent == file.parent
        unfinished.write_text("whole")
    assert file.read_text() == "whole" and names_in(file.parent) == ["x.txt"]


def test_an_error_leaves_the_older_file(tmp_path):
    file = tmp_path / "x.txt"
    file.write_text("old")
    with pytest.raises(KeyError), written_whole(file) as unfinished:
        fail_half_way(unfinished)
    assert file.read_text() == "old" and names_in(tmp_path) == ["x.txt"]


def test_errors_of_reading_keep_their_words(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*absent'"),
        written_whole(tmp_path / "x.txt"),
    ):
        (tmp_path / "absent").read_text()


def test_the_target_of_a_link_is_written(tmp_path):
    file, link = tmp_path / "x.txt", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    with written_whole(link) as unfinished:
        unfinished.write_text("new")
    assert link.is_symlink() and file.read_text() == "new"


def test_long_names_leave_room_for_unfinished_ones(tmp_path):
    file = tmp_path / ("é" * 127)  # 254 bytes of 255
    with written_whole(file) as unfinished:
        unfinished.write_text("new")
    assert file.read_text() == "new"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("n" * 300, OSError, "name too long"),
        ("n" * 300 + "/x.nc", OSError, "name too long"),
        ("\ud800.nc", ValueError, "file names cannot have these characters"),
        ("a\0b.nc", ValueError, "file names cannot have these characters"),
        ("file/x.nc", NotADirectoryError, "file is a file; give the name of a folder"),
        ("folder", IsADirectoryError, "it is a folder; give the name of a file"),
        ("folder/..", IsADirectoryError, "it is a folder"),
        ("/dev/null", OSError, "it is not a regular file"),
    ],
)
def test_what_cannot_be_written_is_refused_first(tmp_path, name, error, message):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(error, match=f"cannot be written: .*{message}"):
        check_writable(tmp_path / name)
    with pytest.raises(error, match=message), written_whole(tmp_path / name):
        pytest.fail("the work began")
    assert names_in(tmp_path) == ["file", "folder"]


def test_a_closed_folder_is_refused_first(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(PermissionError, match="no permission to write in"):
        check_writable(tmp_path / "new" / "x.nc")


# ------------------------------------------------------------------- files of one folder


def test_files_replace_those_of_the_call_before(tmp_path):
    folder = tmp_path / "report"
    write(folder, "old", **{"c.txt": "old"})
    (folder / "notes.txt").write_text("mine")
    write(folder, "new")
    assert names_in(folder) == [".milzoo", "a.txt", "b.txt", "notes.txt"]
    assert (folder / "a.txt").read_text() == (folder / "b.txt").read_text() == "new"


@pytest.mark.parametrize("why", ["no such call", "at work there", "a folder of others"])
def test_files_move_where_folders_cannot_be_exchanged(tmp_path, monkeypatch, why):
    folder = tmp_path / "report"
    write(folder, "old", **{"c.txt": "old"})
    (folder / "notes.txt").write_text("mine")
    if why == "no such call":
        monkeypatch.setattr(writing, "_exchange", no_such_call)
    elif why == "at work there":
        monkeypatch.chdir(folder)
    else:
        (folder / "sources").mkdir()
    before = folder.stat().st_ino
    write(folder, "new")
    assert folder.stat().st_ino == before
    (folder / "sources").mkdir(exist_ok=True)
    assert names_in(folder) == [".milzoo", "a.txt", "b.txt", "notes.txt", "sources"]
    assert (folder / "a.txt").read_text() == (folder / "b.txt").read_text() == "new"
    assert (folder / "notes.txt").read_text() == "mine" and names_in(tmp_path) == ["report"]


def no_such_call(*_) -> None:
    raise OSError(38, "Function not implemented")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges folders in one step")
def test_a_new_folder_takes_the_place_at_once(tmp_path, monkeypatch):
    """The old files are whole until then, and others' files are in both."""
    folder, seen = tmp_path / "report", []
    write(folder, "old")
    (folder / "notes.txt").write_text("mine")
    folder.chmod(0o750)
    exchange = writing._exchange

    def spied(one, other):
        seen.append({path.name: path.read_text() for path in other.glob("[!.]*")})
        exchange(one, other)

    monkeypatch.setattr(writing, "_exchange", spied)
    write(folder, "new")
    assert seen == [{"a.txt": "old", "b.txt": "old", "notes.txt": "mine"}]
    assert names_in(folder) == [".milzoo", "a.txt", "b.txt", "notes.txt"]
    assert folder.stat().st_mode & 0o777 == 0o750 and names_in(tmp_path) == ["report"]


def test_a_file_that_comes_meanwhile_stays(tmp_path, monkeypatch):
    """Somebody writes to the folder when the others' files have been counted."""
    folder, exchange = tmp_path / "report", writing._exchange
    write(folder, "old")

    def late(one, other):
        (other / "late.txt").write_text("mine")
        exchange(one, other)

    monkeypatch.setattr(writing, "_exchange", late)
    write(folder, "new")
    assert names_in(folder) == [".milzoo", "a.txt", "b.txt", "late.txt"]
    assert (folder / "late.txt").read_text() == "mine"


def test_a_folder_of_others_by_our_name_stays(tmp_path):
    folder = tmp_path / "report"
    write(folder, "old")
    (folder / "b.txt").unlink()
    (folder / "b.txt").mkdir()
    (folder / "b.txt" / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match="report cannot be written: is a directory"):
        write(folder, "new")
    assert (folder / "b.txt" / "notes.txt").read_text() == "mine"


def test_an_error_leaves_the_older_files(tmp_path):
    folder = tmp_path / "report"
    write(folder, "old")
    with pytest.raises(KeyError), written_together(folder) as unfinished:
        fail_half_way(unfinished / "a.txt")
    assert names_in(folder) == [".milzoo", "a.txt", "b.txt"]
    assert (folder / "a.txt").read_text() == "old"


def test_an_error_leaves_no_new_folder(tmp_path):
    with pytest.raises(KeyError), written_together(tmp_path / "report"):
        raise KeyError
    assert names_in(tmp_path) == []


def test_files_of_others_are_not_overwritten(tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"not written here by milzoo \(a\.txt\); .*--force"):
        check_own_folder(tmp_path)
    with pytest.raises(FileExistsError, match=r"\(a\.txt\)"):
        write(tmp_path)
    assert names_in(tmp_path) == ["a.txt"] and (tmp_path / "a.txt").read_text() == "mine"
    with written_together(tmp_path, force=True) as unfinished:
        (unfinished / "a.txt").write_text("new")
    assert (tmp_path / "a.txt").read_text() == "new"


def test_many_files_of_others_are_not_all_named(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(FileExistsError, match=r"0\.txt, .*4\.txt and 4 more\)"):
        check_own_folder(tmp_path)


def test_others_files_in_a_folder_of_ours_stay(tmp_path):
    """They may have come since, under a name that a new report has."""
    write(tmp_path, "old")
    (tmp_path / "c.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"\(c\.txt\)"):
        write(tmp_path, **{"c.txt": "new"})
    assert (tmp_path / "c.txt").read_text() == "mine" and (tmp_path / "a.txt").read_text() == "old"


@pytest.mark.parametrize(
    "marker", ["", "[]", '{"files": 3}', json.dumps({"files": ["../mine", "/tmp", 3, ".."]})]
)
def test_a_marker_leads_to_no_other_folder(tmp_path, marker):
    """Files that it names are deleted: so only plain names count."""
    (tmp_path / "mine").write_text("mine")
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / ".milzoo").write_text(marker)
    write(folder)
    assert (tmp_path / "mine").read_text() == "mine"
    assert names_in(folder) == [".milzoo", "a.txt", "b.txt"]
