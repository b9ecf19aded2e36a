"""Arrays and a description in one file: npz with a seal at its end, and the first member says what it is.

``numpy.load`` opens such a file. Nothing is pickled, and no library beside NumPy is needed where networks are trained.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core.dataset.checksums import seal
from ...core.dataset.whole_file import write_whole

#: Name of the member that comes first, by which also a damaged file is known as one of ours.
_HEADER = "asymptotix"
_BEGIN = b"PK\x03\x04"
_SEAL_LENGTH = len(seal(b""))


class DamagedFile(ValueError):
    """A file that we wrote, and that is no longer as it was written."""


def write_arrays(path: str | os.PathLike, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file that :func:`read_arrays` reads; it appears only when it is complete."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{_HEADER: np.array(json.dumps(header))}, **arrays)
    line = seal(buffer.getbuffer())
    buffer.seek(0, io.SEEK_END)
    buffer.write(line)
    write_whole(path, buffer.getbuffer())


def read_arrays(path: str | os.PathLike, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file whose header names this ``kind``.

    Raises
    ------
    DamagedFile
        Where it is ours and was cut off or changed.
    ValueError
        Where it is something else.
    """
    data = _contents(path)
    inside, end = data[:-_SEAL_LENGTH], data[-_SEAL_LENGTH:]
    if end != seal(inside):
        if _names_us(data):
            raise DamagedFile(f"{path} is damaged: it was cut off or changed after it was written")
        raise ValueError(f"{path} was not written by asymptotix as a {kind}")
    try:
        with np.load(io.BytesIO(inside), allow_pickle=False) as members:
            arrays = {name: members[name] for name in members.files}
        header = json.loads(str(arrays.pop(_HEADER)))
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} was not written by asymptotix as a {kind}: {error}") from error
    if not isinstance(header, dict) or header.get("kind") != kind:
        raise ValueError(f"{path} must hold a {kind}, got a {header.get('kind') if isinstance(header, dict) else '?'}")
    return header, arrays


def _names_us(data: bytes) -> bool:
    """Whether the first member of a zip file is our header, as far as there is anything left of it."""
    begin, name = data[: len(_BEGIN)], data[30 : 30 + len(_HEADER)]
    return _BEGIN.startswith(begin) and _HEADER.encode().startswith(name)


def _contents(path: str | os.PathLike) -> bytes:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be the name of a file, got {path!r}")
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it")
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not Path(path).is_file():  # a pipe would be waited for
        raise ValueError(f"{path} is not a file that can be read")
    return Path(path).read_bytes()
