"""Files that are there as a whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from pathlib import Path

#: Age at which a temporary file counts as left behind. What is written lies in memory already, so that a writer is done
#: with its file within seconds; an hour is more than the slowest network disk takes, and a living one is never removed.
LEFT_BEHIND_SECONDS = 3600.0


def write_whole(path: str | os.PathLike, data: bytes | memoryview) -> None:
    """Put ``data`` into the place of what is at ``path``, which is replaced by all of it or stays untouched.

    It is written under a name of its own beside its place, synced to the disk and then moved there. The name is random:
    two threads, and two containers that give their process the same number, never write to one file. What killed
    writers of the same path left behind is removed.

    Raises
    ------
    OSError
        That names the path, where the disk is full or the place cannot be written to.
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


def _checked_target(path: str | os.PathLike) -> Path:
    """The file that a path means: where it is a link, the one that it points to."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise OSError(errno.ENOENT, f"there is no folder {target.parent}")
    if target.is_dir():
        raise OSError(errno.EISDIR, f"it is a folder; name a file in it, such as {target / 'result.nc'}")
    if target.exists() and not target.is_file():  # a device would be replaced by a file
        raise OSError(errno.EINVAL, "it is neither a file nor a new name")
    if target.exists() and not os.access(target, os.W_OK):  # moving another file there would not ask
        raise OSError(errno.EACCES, "it is write-protected")
    return target


def _write_synced(temporary: Path, data: bytes | memoryview, *, like: Path) -> None:
    """Write a new file, with the permissions of ``like`` if that exists and those of any new file otherwise."""
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        if like.exists() and hasattr(os, "fchmod"):
            os.fchmod(descriptor, stat.S_IMODE(like.stat().st_mode))
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)  # a full disk may say so only now
    finally:
        os.close(descriptor)


def _remove_left_behind(target: Path, *, beside: Path) -> None:
    """Remove old temporary files of a target. Age is told by the clock that stamped our own: a server's may be off."""
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
    """Sync the new name to the disk, where the platform can: the file itself is safe, and so is the old one."""
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
