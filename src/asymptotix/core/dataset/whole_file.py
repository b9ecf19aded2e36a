"""Atomic writing, and reading: a file exists complete or not at all, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from pathlib import Path

#: Age in seconds above which a temporary file counts as left behind by a killed writer. Smaller: the file of a running
#: writer on a slow network disk could be removed. Larger: such files stay longer.
LEFT_BEHIND_SECONDS = 3600.0


def write_whole(path: str | os.PathLike, data: bytes | memoryview) -> None:
    """Replace the file at ``path`` by ``data``, completely or not at all.

    The data are written to a temporary file in the same folder, synced to the disk and then renamed. The temporary name
    is random: two threads, or two containers whose processes have the same number, never write to the same file.
    Temporary files that killed writers of the same path left behind are removed.

    Raises
    ------
    OSError
        If the disk is full or the path cannot be written to; the error names the path.
    """
    try:
        target = _checked_target(path)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
        try:
            _write_synced(temporary, data, like=target)
            _remove_left_behind(target, beside=temporary)
            os.replace(temporary, target)
        finally:  # after the move there is nothing to remove
            temporary.unlink(missing_ok=True)
        _sync_folder(target.parent)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror or error}") from error


def read_whole(path: str | os.PathLike) -> bytes:
    """Return the bytes of a file, or raise an error that names the path and the reason."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be the name of a file, got {path!r}")
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it")
    if not file.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not file.is_file():  # reading a pipe would wait for a writer
        raise ValueError(f"{path} is not a file that can be read")
    try:
        return file.read_bytes()
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be read: {error.strerror}") from error


def _checked_target(path: str | os.PathLike) -> Path:
    """Return the file to write: for a link, the file that it points to. Raise an OSError if it cannot be written."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise OSError(errno.ENOENT, f"there is no folder {target.parent}")
    if target.is_dir():
        raise OSError(errno.EISDIR, f"it is a folder; name a file in it, such as {target / 'result.nc'}")
    if target.exists() and not target.is_file():  # a device would be replaced by a file
        raise OSError(errno.EINVAL, "it is neither a file nor a new name")
    if target.exists() and not os.access(target, os.W_OK):  # renaming would replace it all the same
        raise OSError(errno.EACCES, "it is write-protected")
    return target


def _write_synced(temporary: Path, data: bytes | memoryview, *, like: Path) -> None:
    """Write ``data`` to a new file and sync it to the disk. It gets the permissions of ``like`` if that exists."""
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        if like.exists() and hasattr(os, "fchmod"):
            os.fchmod(descriptor, stat.S_IMODE(like.stat().st_mode))
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)  # a full disk may be reported only here
    finally:
        os.close(descriptor)


def _remove_left_behind(target: Path, *, beside: Path) -> None:
    """Remove temporary files of ``target`` that are older than an hour.

    Ages are measured against our new file ``beside``, because a file server's clock may differ from ours.
    """
    pattern = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]+\.partial")
    now = beside.stat().st_mtime
    for name in os.listdir(target.parent):
        if pattern.fullmatch(name):
            try:
                if now - (found := target.with_name(name)).stat().st_mtime > LEFT_BEHIND_SECONDS:
                    found.unlink()
            except OSError:  # another writer removed it, or it belongs to somebody else
                continue


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk if the platform can; otherwise the old or the new file is still intact."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
