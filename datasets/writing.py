"""Files that are written whole or not at all, and checks of paths before work starts."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import shutil
import sys
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = [
    "UNFINISHED",
    "check_folder",
    "check_own_folder",
    "check_writable",
    "refusals_named",
    "synced",
    "written_together",
    "written_whole",
]

# The end of the names of files that are being written; a killed process may leave some behind.
UNFINISHED = ".unfinished"
# Characters of a file's own name that its unfinished one begins with: names have a limit of bytes.
_KEPT = 40
# In a folder of `written_together`: the names of the files that it wrote.
_MARKER = ".milzoo"
_SHOWN = 5
# Arguments of Linux's renameat2: paths as they are given, and that two are exchanged.
_HERE, _EXCHANGE = -100, 2
_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def check_writable(path: str | os.PathLike) -> Path:
    """Find out, before work starts, whether a file can be written. Nothing is created.

    Parameters
    ----------
    path : path
        Of the file; folders above it that do not exist are made when it is written.

    Returns
    -------
    Path
        Where the file will be: that of its target, where it is a link.

    Raises
    ------
    ValueError
        If the path has characters that no file name can have.
    OSError
        If it is a folder or a device, if the name is too long, or if its folder is a file, is full
        or may not be written to. The type tells which (`PermissionError`, …).
    """
    file = Path(path)
    _check_characters(file)
    with refusals_named(file):
        file = file.resolve()
        if file.is_dir():
            raise IsADirectoryError(_refusal(file, "it is a folder; give the name of a file"))
        if file.exists() and not file.is_file():
            raise OSError(_refusal(file, "it is not a regular file; give another name"))
        check_folder(file.parent)
        # Names may be too long for the unfinished file, and for the last one.
        for name in (file, _unfinished(file)):
            with suppress(FileNotFoundError, NotADirectoryError):
                name.lstat()
    return file


def check_folder(folder: Path) -> None:
    """Raise an error unless files can be written in a folder, or in one that is to be made.

    Raises
    ------
    ValueError, OSError
        As `check_writable`.
    """
    _check_characters(folder)
    with refusals_named(folder):
        with suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # raises an error for names that are too long
        existing = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        if not existing.is_dir():
            raise NotADirectoryError(
                _refusal(folder, f"{existing} is a file; give the name of a folder")
            )
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(
                _refusal(folder, f"no permission to write in {existing}; give another folder")
            )
        usage = shutil.disk_usage(existing)
        if usage.total and not usage.free:  # some network disks say 0 of 0
            raise OSError(
                _refusal(folder, f"no space left where {existing} is; make some, or give another")
            )


def check_own_folder(folder: str | os.PathLike, *, force: bool = False) -> Path:
    """Find out, before work starts, whether `written_together` may write to a folder.

    Parameters
    ----------
    folder : path
    force : bool
        Whether files that it did not make may be overwritten.

    Returns
    -------
    Path

    Raises
    ------
    FileExistsError
        If the folder has files, and no sign that `written_together` made it.
    ValueError, OSError
        As `check_writable`.
    """
    folder = Path(folder)
    check_folder(folder)
    if not force and folder.is_dir() and not (folder / _MARKER).exists():
        _refuse(folder, sorted(one.name for one in folder.iterdir() if one.suffix != UNFINISHED))
    return folder


@contextmanager
def written_together(folder: str | os.PathLike, *, force: bool = False) -> Iterator[Path]:
    """Yield an empty folder to write files to; in the end they are in ``folder``, all at once.

    Files that an earlier call wrote there, and this one did not, are deleted: their names stand in
    a file of the folder, ``.milzoo``. Other files stay. After an error the folder is unchanged. Two
    processes write one after the other. On Linux the new folder takes the place of the old one in
    one step. Where that cannot be (other systems, a folder that is mounted, or that the process is
    in), files move one by one, and a process that dies between two of them leaves some of both.

    Parameters
    ----------
    folder : path
    force : bool
        Whether files that no such call wrote may be overwritten.

    Yields
    ------
    Path
        Of the unfinished folder, beside or within ``folder``.

    Raises
    ------
    FileExistsError
        If a file would be overwritten that no such call wrote.
    ValueError, OSError
        As `check_own_folder`; OSError also if something cannot be written to the end.
    """
    folder = check_own_folder(folder, force=force)
    unfinished = _unfinished(folder if _may_be_exchanged(folder) else folder / "files")
    is_new = not folder.exists()
    try:
        with refusals_named(folder):
            unfinished.mkdir(parents=True)
        with refusals_named(folder, _OF_WRITING):
            yield unfinished
        with refusals_named(folder):
            _put_in_place(unfinished, folder, force=force)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # of a folder that has files now
                folder.rmdir()


def _may_be_exchanged(folder: Path) -> bool:
    """Whether a new folder beside may take the place of this one, as nothing depends on it."""
    if (
        sys.platform != "linux"
        or folder.is_symlink()
        or not os.access(folder.parent, os.W_OK | os.X_OK)
    ):
        return False
    if not folder.exists():
        return True
    at_work_there = Path.cwd().is_relative_to(folder.resolve())
    here, above = folder.stat(), folder.parent.stat()
    is_mounted, is_ours = here.st_dev != above.st_dev, here.st_uid == os.geteuid()
    return is_ours and not is_mounted and not at_work_there


def _put_in_place(unfinished: Path, folder: Path, *, force: bool) -> None:
    new, old = sorted(file.name for file in unfinished.iterdir()), _own_files(folder)
    others = {file.name for file in folder.iterdir()} if folder.exists() else set()
    others -= {*old, _MARKER, unfinished.name}
    if not force:
        _refuse(folder, [name for name in new if name in others])
    for name in new:
        synced(unfinished / name)
    is_beside = unfinished.parent == folder.parent
    if is_beside and _exchanged(unfinished, folder, new, {*new, *old}, others - {*new}):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder):
        _move(unfinished, folder, new, old)


def _exchanged(
    unfinished: Path, folder: Path, new: list[str], own: set[str], others: set[str]
) -> bool:
    """Give the new folder the name of the old one, in one step, if the system can do that.

    Files of others are linked into the new folder first. The caller deletes the old folder.
    """
    is_plain = all((folder / name).is_file() for name in others)
    if not is_plain or any((folder / name).is_dir() for name in own):
        return False
    try:
        for name in others:
            os.link(folder / name, unfinished / name, follow_symlinks=False)
        _write_marker(unfinished, new)
        if folder.exists():
            shutil.copymode(folder, unfinished)
            _exchange(unfinished, folder)
        else:
            unfinished.rename(folder)
    except OSError:
        return False
    with suppress(OSError):
        synced(folder.parent)
    _keep_latecomers(unfinished, folder, {*own, *others, _MARKER})
    return True


def _keep_latecomers(left: Path, folder: Path, known: set[str]) -> None:
    """Move files that somebody wrote to the old folder while it was exchanged."""
    if left.exists():
        for file in left.iterdir():
            if file.name not in known and not (folder / file.name).exists():
                file.rename(folder / file.name)


def _exchange(one: Path, other: Path) -> None:
    """Exchange two names at once, as Linux can.

    Raises
    ------
    OSError
        If the system or the disk cannot do that.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _move(unfinished: Path, folder: Path, new: list[str], old: list[str]) -> None:
    """Move all files to the folder, one by one, and delete those of the call before."""
    # Should this process die half-way, all files are still known as our own.
    _write_marker(folder, {*old, *new})
    for name in new:
        (unfinished / name).replace(folder / name)
    for name in set(old) - set(new):
        (folder / name).unlink(missing_ok=True)
    _write_marker(folder, new)


def _own_files(folder: Path) -> list[str]:
    """Files that an earlier call wrote; only plain names, whatever the marker says."""
    try:
        names = json.loads((folder / _MARKER).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str) and _is_plain(name)]


def _is_plain(name: str) -> bool:
    return Path(name).name == name and name.strip(".") != ""


def _write_marker(folder: Path, names: Iterable[str]) -> None:
    with written_whole(folder / _MARKER) as file:
        file.write_text(json.dumps({"files": sorted(names)}), encoding="utf-8")


def _refuse(folder: Path, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise FileExistsError(
            f"{folder} has files that were not written here by milzoo "
            f"({', '.join(names[:_SHOWN])}{more}); give another folder, or force=True (--force) to "
            "overwrite those of the same names"
        )


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait for other processes that move files to the folder, where the system has such locks."""
    try:
        import fcntl
    except ImportError:  # on Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def written_whole(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a new path beside ``path`` to write to; in the end it becomes that file.

    The content is on the disk before the name changes hands. Whatever happens before, a full disk
    or the death of the process, an older file at ``path`` is as it was.

    Parameters
    ----------
    path : path

    Yields
    ------
    Path
        Of the unfinished file, in the same folder.

    Raises
    ------
    ValueError, OSError
        As `check_writable`; OSError also if it cannot be written to the end.
    """
    file = check_writable(path)
    unfinished = _unfinished(file)
    try:
        with refusals_named(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        # The block may also read: only what no reading raises is about this file.
        with refusals_named(file, _OF_WRITING):
            yield unfinished
        with refusals_named(file):
            synced(unfinished)
            unfinished.replace(file)
        with suppress(OSError):  # not every system can do this, and the file is there
            synced(file.parent)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def synced(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unfinished(file: Path) -> Path:
    return file.with_name(f"{file.name[:_KEPT]}.{secrets.token_hex(4)}{UNFINISHED}")


def _refusal(path: Path, reason: str) -> str:
    return f"{path} cannot be written: {reason}"


@contextmanager
def refusals_named(path: Path, numbers: Container[int | None] | None = None) -> Iterator[None]:
    """Give errors of the operating system the name of the file, and say that nothing was lost.

    Errors of the operating system have an ``errno``. Those raised here have none, and pass as they
    are.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or (numbers is not None and error.errno not in numbers):
            raise
        reason = os.strerror(error.errno).lower()
        raise type(error)(_refusal(path, f"{reason}; what was there is as it was")) from error


def _check_characters(path: Path) -> None:
    try:
        known = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        known = False
    if not known:
        raise ValueError(
            f"{os.fspath(path)!r} cannot be written: file names cannot have these characters; "
            "give another name"
        )
