"""Download of data sets: a file is checked, and appears as a whole or not at all.

pooch downloads into a temporary file in the same folder, compares the SHA-256, and moves the file to its place.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ...core.progress import Progress
from .catalogue import StoredFile, StoredSet
from .locate import VARIABLE, cache_directory, candidates, difference

#: Seconds to wait for a connection, and for the next bytes.
TIMEOUTS = (15.0, 60.0)
_CHUNK = 1 << 16


class DownloadError(OSError):
    """A file could not be fetched from any of its addresses."""


def download_directory(to: Path | None = None) -> Path:
    """Return the directory for files: the given one, else that of ``$ASYMPTOTIX_DATA``, else the cache."""
    named = to or os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else cache_directory()


def get(owner: StoredSet, to: Path | None = None, *, progress: bool | None = None) -> Iterator[tuple[Path, str]]:
    """Fetch missing or damaged files of a data set, and yield the path of each file with a text on what was done.

    Parameters
    ----------
    owner : StoredSet
    to : path or None
        Directory of data, created if it does not exist; see `download_directory`.
    progress : bool or None
        False: no progress bar; None and True: see :class:`asymptotix.core.progress.Progress`.

    Raises
    ------
    DownloadError
        If all addresses of a file failed. The message has the reason for each.
    OSError
        If the directory cannot be written to.
    """
    place = download_directory(to)
    for file in owner.instead:
        path = place / owner.folder / file.name
        if path.is_file() and difference(file, path) is None:
            yield path, "is there, and holds all of it"
            return
    for file in owner.files:
        there = [path for path in candidates(owner, file, place) if path.is_file()]
        if there and difference(file, there[0]) is None:
            yield there[0], "is there"
        else:
            path = place / owner.folder / file.name
            download(file, path, progress=progress)
            yield path, "replaces a damaged one" if there else "fetched"


def download(file: StoredFile, path: Path, *, progress: bool | None = None) -> None:
    """Fetch one file to ``path``, from the first of its addresses that works."""
    mode = _mode_of_files_in(path.parent)
    failures = []
    for url in file.urls:
        failure = _attempt(file, url, path, progress)
        if failure is None:
            path.chmod(mode)  # only the owner may read a temporary file
            return
        failures.append(f"{url}: {failure}")
    raise DownloadError(f"{path.name} could not be fetched. {'; '.join(failures)}")


def _attempt(file: StoredFile, url: str, path: Path, progress: bool | None) -> str | None:
    """Download ``file`` from ``url`` to ``path``; return a description of the failure, or None after success."""
    pooch = _pooch()
    import requests

    try:
        with Progress(file.size // 1000, f"{path.name}, kB", enabled=progress) as shown:
            fetch = pooch.HTTPDownloader(
                progressbar=_Shown(shown, file.size), chunk_size=_CHUNK, timeout=TIMEOUTS,
                headers={"Accept-Encoding": "identity"},  # the SHA-256 belongs to the file without encoding
            )  # fmt: skip
            pooch.retrieve(url, f"sha256:{file.sha256}", path.name, path.parent, downloader=fetch)
    except _Unusable as error:
        return str(error)
    except requests.RequestException as error:
        return _in_words(error)
    except ValueError as error:
        if "hash" not in str(error):
            raise
        return f"what it sent has another SHA-256 than {file.sha256} and was thrown away"
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror or error}") from error
    return None


class _Unusable(Exception):
    """Raised if a server's answer is not the requested file."""


class _Shown:
    """Progress bar with the methods that pooch calls; it raises an error if a server sends more than ``size`` bytes."""

    def __init__(self, progress: Progress, size: int) -> None:
        self._progress, self._size, self._done, self.total = progress, size, 0, size

    def update(self, amount: int) -> None:
        self._done += amount
        if self._done > self._size + _CHUNK:  # pooch counts the last piece as a full one
            raise _Unusable(f"it sends more than the {self._size:,} bytes that are expected")
        self._progress.advance(min(self._done, self._size) // 1000 - self._progress.done)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


def _mode_of_files_in(folder: Path) -> int:
    """Create ``folder`` if it does not exist, and return the permission bits of a new file in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{secrets.token_hex(8)}.probe"
        probe.touch()
        mode = probe.stat().st_mode & 0o777
        probe.unlink()
    except OSError as error:
        raise OSError(
            error.errno, f"{folder} cannot be written to ({error.strerror}); name another directory with --to"
        ) from error
    return mode


def _in_words(error: Exception) -> str:
    """Return a description of a failed request, without the names of objects that ``requests`` prints."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"it answers {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "it does not answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection ended early"
    if isinstance(error, requests.ConnectionError):
        return "there is no connection to it"
    return str(error)


def _pooch() -> ModuleType:
    try:
        import pooch
    except ImportError as error:
        raise ImportError("downloads need pooch: pip install 'asymptotix[data]'") from error
    pooch.get_logger().setLevel("WARNING")
    return pooch
