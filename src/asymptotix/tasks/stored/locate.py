"""Search for the files of a data set, and comparison with the published files.

The places of the search are a directory that the caller names, then the directory of the environment variable
ASYMPTOTIX_DATA, then the cache of ``asymptotix data get``. Each has a folder per data set: omniglot/, mnist/,
fashion_mnist/, trec/, bert_vocab/. The first file found is used, or refused if it is damaged: a damaged file is never
skipped silently.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from .catalogue import StoredFile, StoredSet, stored_set

VARIABLE = "ASYMPTOTIX_DATA"
_CHUNK = 1 << 20


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def stored_file(data_set: str, name: str, directory: Path | None = None, *, verify: bool = True) -> Path:
    """Return the path of a data set's file, after a comparison with the published file.

    A gzip file may be repacked, or unpacked (then its name ends before ``.gz``), if its content is the published one.

    Parameters
    ----------
    data_set : "omniglot", "mnist", "fashion-mnist", "trec" or "bert-vocab"
    name : str
        Name of the file, as it is published.
    directory : path or None
        First directory of the search; it must exist. After it come ``$ASYMPTOTIX_DATA`` and the cache.
    verify : bool
        Whether the file must be the published one; False accepts stand-ins of the same name and format.

    Raises
    ------
    FileNotFoundError
        If there is no such file. The message names the places searched and the command that gets the file.
    ValueError
        If the file that was found is not the published one.
    """
    owner = stored_set(data_set)
    file = owner.file(name)
    looked = places(directory)
    for place in looked.values():
        for path in candidates(owner, file, place):
            if path.is_file():
                if verify and (wrong := difference(file, path)):
                    raise ValueError(f"{path} is not the published file: {wrong}; {_remedy(owner, place)}")
                return path
    raise not_found(owner, f"{owner.folder}/{name}", looked)


def places(directory: Path | None = None) -> dict[str, Path]:
    """Return name -> directory for the search, in its order: "directory", "$ASYMPTOTIX_DATA", "cache".

    The first two are left out if not given; FileNotFoundError is raised if a given directory does not exist.
    """
    named = {"directory": directory, f"${VARIABLE}": os.environ.get(VARIABLE) or None}
    found = {}
    for name, place in named.items():
        if place is not None:
            found[name] = Path(place).expanduser()
            if not found[name].is_dir():
                raise FileNotFoundError(f"{name} must be a directory of data, and there is none at {place}")
    return found | {"cache": cache_directory()}


def cache_directory() -> Path:
    """Return the default directory of ``asymptotix data get``: the user's cache on this platform."""
    home = Path.home()
    if sys.platform == "darwin":
        caches = home / "Library" / "Caches"
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return caches / "asymptotix" / "data"


def candidates(owner: StoredSet, file: StoredFile, place: Path) -> Iterator[Path]:
    """Yield the paths that a file may have in the directory of data ``place``: as published, and unpacked from gzip."""
    yield place / owner.folder / file.name
    if file.content_sha256 is not None:
        yield place / owner.folder / file.name.removesuffix(".gz")


def difference(file: StoredFile, path: Path) -> str | None:
    """Return how the file at ``path`` differs from the published one; None if the file or its content is the same."""
    with open(path, "rb") as stream:
        sha256 = _sha256(stream)
    if sha256 in (file.sha256, file.content_sha256):
        return None
    if file.content_sha256 is not None:
        try:
            with gzip.open(path, "rb") as stream:
                if _sha256(stream) == file.content_sha256:
                    return None
        except (EOFError, gzip.BadGzipFile, zlib.error):
            pass
    if (size := path.stat().st_size) != file.size and file.content_sha256 is None:
        return f"it has {size:,} bytes instead of {file.size:,}"
    return f"its SHA-256 is {sha256}, and {file.sha256} is expected"


def not_found(owner: StoredSet, what: str, looked: dict[str, Path]) -> FileNotFoundError:
    """Return the error that ``what`` is missing, with the directories ``looked`` and the command that gets the data.

    ``looked`` is a result of :func:`places`.
    """
    where = {"directory": "not given", f"${VARIABLE}": "not set"} | looked
    said = ", ".join(f"{name} ({path})" for name, path in where.items())
    return FileNotFoundError(f"{what} is in none of: {said}; get it with: asymptotix data get {owner.name}")


def _remedy(owner: StoredSet, place: Path) -> str:
    return f"get it anew with: asymptotix data get {owner.name} --to {place}"


def _sha256(stream: _Readable) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
