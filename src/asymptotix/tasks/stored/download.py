"""Fetching a data set: checked, resumed where it was interrupted, and there as a whole or not at all.

What arrives is kept in a file of its own beside the place of the wanted one, ``.NAME.part``. Where a connection breaks
or the user stops, it stays, and the next call asks the server for the rest only. When all bytes are there pooch
compares the sum and moves the file to its place; a wrong one is thrown away, and the next address or call begins anew.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.progress import Progress
from .catalogue import StoredFile, StoredSet
from .locate import VARIABLE, cache_directory, candidates, difference

if TYPE_CHECKING:
    import requests

#: Seconds to wait for a connection, and for the next bytes.
TIMEOUTS = (15.0, 60.0)
_CHUNK = 1 << 16


class DownloadError(OSError):
    """A file could not be fetched from any of its addresses."""


def download_directory(to: Path | None = None) -> Path:
    """Where files are put: the directory given, else that of ``$ASYMPTOTIX_DATA``, else the cache."""
    named = to or os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else cache_directory()


def get(owner: StoredSet, to: Path | None = None, *, progress: bool | None = None) -> Iterator[tuple[Path, str]]:
    """Fetch what is missing or damaged of a data set, and yield each file with what was done.

    Parameters
    ----------
    owner : StoredSet
    to : path or None
        Directory of data, made if it is not there; see `download_directory`.
    progress : bool or None
        As that of `Progress`.

    Raises
    ------
    DownloadError
        That says of every address why it did not work.
    OSError
        Where the directory cannot be written to.
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
    """Fetch one file to ``path``, from the first of its addresses that gives it."""
    _writable_folder(path.parent)
    failures = []
    for url in file.urls:
        with _part_of(path) as part:
            resumed = _size(part) > 0
            failure = _attempt(file, url, path, part, progress)
            if failure is not None and resumed and _size(part) == 0:  # what an earlier call left may have been wrong
                failure = _attempt(file, url, path, part, progress)
        if failure is None:
            return
        failures.append(f"{url}: {failure}")
    raise DownloadError(f"{path.name} could not be fetched. {'; '.join(failures)}")


def _attempt(file: StoredFile, url: str, path: Path, part: Path, progress: bool | None) -> str | None:
    """Fetch from one address; what went wrong, in words, or None."""
    pooch = _pooch()
    import requests

    try:
        with Progress(file.size // 1000, f"{path.name}, kB", enabled=progress) as shown:
            _complete(file, url, part, lambda done: shown.advance(done // 1000 - shown.done))
        # pooch leaves what is at the path only if it has the sum, and then there was nothing to fetch.
        moved = lambda _url, temporary, _pooch: os.replace(part, temporary)  # noqa: E731
        pooch.retrieve(url, f"sha256:{file.sha256}", path.name, path.parent, downloader=moved)
    except (_Unusable, requests.RequestException) as error:
        kept = _size(part)
        left = f" ({kept:,} of {file.size:,} bytes are kept, and the next call goes on from there)" if kept else ""
        return f"{_in_words(error)}{left}"
    except ValueError as error:
        if "hash" not in str(error):
            raise
        return f"what it sent has another SHA-256 than {file.sha256} and was thrown away"
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror or error}") from error
    return None


class _Unusable(Exception):
    """What a server answers is not what was asked for, in words."""


def _complete(file: StoredFile, url: str, part: Path, report: Callable[[int], None]) -> None:
    """Ask for what is missing in the part, and add it."""
    import requests

    have = _size(part) if _size(part) <= file.size else 0
    if have < file.size:
        # Without compression on the way: the sum and the range are of the bytes of the file.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUTS) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                raise _Unusable(f"it has no bytes after {have:,}")
            response.raise_for_status()
            begin = _begin(response, have)
            _refuse_another_size(response, begin, file.size)
            _write(response, part, begin, file.size, report)
    with open(part, "rb") as stream:
        os.fsync(stream.fileno())  # before the name that promises all of it


def _begin(response: requests.Response, have: int) -> int:
    """Where the bytes of an answer begin: a server may not know ranges, and then sends all."""
    if response.status_code != 206:
        return 0
    answered = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if answered.strip() != str(have):
        raise _Unusable(f"it answers the range from {have} with {response.headers.get('Content-Range')!r}")
    return have


def _refuse_another_size(response: requests.Response, begin: int, size: int) -> None:
    """A page that says sorry, and a later version, are told by their length before anything is written."""
    length = response.headers.get("Content-Length", "")
    encoded = response.headers.get("Content-Encoding", "identity") != "identity"
    if length.isdigit() and not encoded and begin + int(length) != size:
        raise _Unusable(f"it offers {begin + int(length):,} bytes, and {size:,} are expected")


def _write(response: requests.Response, part: Path, begin: int, size: int, report: Callable[[int], None]) -> None:
    done = begin
    with open(part, "r+b" if part.exists() else "w+b") as stream:
        stream.truncate(begin)
        stream.seek(begin)
        report(done)
        for chunk in response.iter_content(_CHUNK):
            done += len(chunk)
            if done > size:
                part.unlink()
                raise _Unusable(f"it sends more than the {size:,} bytes that are expected")
            stream.write(chunk)
            report(done)
        stream.flush()
    if done < size:
        raise _Unusable("the connection ended early")


@contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """The file that collects what arrives. Where another process is at it, one of our own that is not kept."""
    shared = path.with_name(f".{path.name}.part")
    lock = _locked(shared)
    part = shared if lock is not None else shared.with_name(f"{shared.name}.{secrets.token_hex(8)}")
    try:
        yield part
    finally:
        if lock is None:
            part.unlink(missing_ok=True)
        else:
            if _size(part) == 0 and _is_at(lock, part):
                part.unlink()
            os.close(lock)


def _locked(shared: Path) -> int | None:
    """A descriptor that holds the part for this process, or None where another one has it."""
    try:
        import fcntl
    except ImportError:  # Windows: two downloads of one file at a time find a wrong sum, and say so
        return os.open(shared, os.O_RDWR | os.O_CREAT, 0o666)
    while True:
        descriptor = os.open(shared, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, shared):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # a file system that knows no locks
            return descriptor
        os.close(descriptor)  # whoever had it moved it to its place meanwhile


def _is_at(descriptor: int, path: Path) -> bool:
    return path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())


def _writable_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{secrets.token_hex(8)}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(
            error.errno, f"{folder} cannot be written to ({error.strerror}); name another directory with --to"
        ) from error


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _in_words(error: Exception) -> str:
    """What went wrong, without the objects that requests prints."""
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


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise ImportError("downloads need pooch: pip install 'asymptotix[data]'") from error
    pooch.get_logger().setLevel("WARNING")
    return pooch
