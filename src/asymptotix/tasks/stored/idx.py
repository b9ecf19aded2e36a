"""The IDX format of MNIST and similar data sets: a big-endian header, then the numbers."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTES = b"\x00\x00\x08"


def read_idx(path: Path) -> np.ndarray:
    """Return the array of an IDX file of unsigned bytes, packed by gzip or not.

    Raises
    ------
    ValueError
        If the file is cut short or has another format. The message names the file.
    """
    data = Path(path).read_bytes()
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file: {error}") from error
    if len(data) < 4 or not data.startswith(_UNSIGNED_BYTES):
        raise ValueError(f"{path} must be an IDX file of unsigned bytes; it begins with {data[:4]!r}")
    begin = 4 + 4 * data[3]
    if len(data) < begin:
        raise ValueError(f"{path} is cut short inside its header")
    shape = struct.unpack(f">{data[3]}I", data[4:begin])
    if len(data) - begin != math.prod(shape):
        raise ValueError(f"{path} must hold {math.prod(shape):,} numbers of shape {shape}, got {len(data) - begin:,}")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)
