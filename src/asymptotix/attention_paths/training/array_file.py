"""Files of named arrays with a JSON header: an npz archive, whose first member is the header, and a checksum.

``numpy.load`` opens such a file. Nothing is pickled, and NumPy suffices to write it.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.dataset.checksums import seal
from ...core.dataset.whole_file import read_whole, write_whole

#: Name of the first member of the archive. It shows that asymptotix wrote a file, even if the file is damaged.
_HEADER = "asymptotix"
_BEGIN = b"PK\x03\x04"
_SEAL_LENGTH = len(seal(b""))


class DamagedFile(ValueError):
    """Raised for a file that asymptotix wrote and that was changed or cut off afterwards."""


def write_arrays(path: str | os.PathLike, header: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file for `read_arrays`; it appears only when complete. ``header`` has JSON values, one being "kind"."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{_HEADER: np.array(json.dumps(header))}, **arrays)
    line = seal(buffer.getbuffer())
    buffer.seek(0, io.SEEK_END)
    buffer.write(line)
    write_whole(path, buffer.getbuffer())


def read_arrays(path: str | os.PathLike, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and name -> array of a file whose header entry "kind" is ``kind``.

    Raises
    ------
    DamagedFile
        If asymptotix wrote the file and it was cut off or changed afterwards.
    ValueError
        If the file is not of this kind.
    """
    data = read_whole(path)
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
    """Return whether ``data`` begins like a file of asymptotix; a file cut off within its beginning counts too."""
    begin, name = data[: len(_BEGIN)], data[30 : 30 + len(_HEADER)]
    return _BEGIN.startswith(begin) and _HEADER.encode().startswith(name)
