"""Checksums: of a file's bytes, and of every variable and attribute of a dataset by what a reader sees.

SHA-256: it is in every Python, processors compute it faster than a disk reads, and no accident gets past it. The seal
at the end of a file is looked at before HDF5 reads it, which may go on for ever with damaged bytes (3 of 3,000 flipped
bits). The checksums of values stay true in a copy that xarray made, which has no seal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

_SEAL = b"\n# asymptotix: sha256 of all bytes before this line: "
_SEAL_LENGTH = len(_SEAL) + 64 + 1


def seal(data: bytes | memoryview) -> bytes:
    """The line that ends a file of these bytes. HDF5 does not look behind its own end."""
    return _SEAL + hashlib.sha256(data).hexdigest().encode() + b"\n"


def is_broken(data: bytes) -> bool:
    """Whether a file has a seal that does not fit."""
    inside = memoryview(data)[: max(len(data) - _SEAL_LENGTH, 0)]
    end = data[len(inside) :]
    return end.startswith(_SEAL) and end != seal(inside)


def checksums(ds: xr.Dataset, attributes: Iterable[str]) -> dict[str, str]:
    """Checksum of every variable of a dataset, and of those of its attributes that are named."""
    of_variables = {str(name): _of_variable(variable, name in ds.coords) for name, variable in ds.variables.items()}
    return of_variables | {f"attribute {name}": _hashed(_plain(ds.attrs[name])) for name in attributes}


def first_difference(now: Mapping[str, str], written: Mapping[str, str]) -> str | None:
    """What is not as it was written, in words; None where all is."""
    for name in dict.fromkeys([*written, *now]):
        if name not in now:
            return f"{name} is missing"
        if name not in written:
            return f"{name} was added to it"
        if now[name] != written[name]:
            return f"{name} is not what was written"
    return None


def _of_variable(variable: xr.Variable, is_coordinate: bool) -> str:
    # In the file an attribute of one number and a list of one are the same.
    attributes = {str(name): _plain(value) for name, value in variable.attrs.items()}
    described = [list(map(str, variable.dims)), list(variable.shape), is_coordinate, sorted(attributes.items())]
    return _hashed(described, _canonical(np.asarray(variable.values)))


def _hashed(described: Any, data: bytes = b"") -> str:
    text = json.dumps(described, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode() + b"\0" + data).hexdigest()


def _plain(value: Any) -> list[Any]:
    return np.atleast_1d(np.asarray(value)).ravel().tolist()


def _canonical(array: np.ndarray) -> bytes:
    """The values as bytes that do not depend on the machine, nor on the width that a file keeps them in."""
    if array.dtype.kind == "f":
        return b"f" + np.where(np.isnan(array), np.nan, array).astype("<f8").tobytes()  # there are many NaN
    if array.dtype.kind in "iu":
        return b"i" + array.astype("<i8").tobytes()
    if array.dtype.kind == "b":
        return b"b" + array.astype("u1").tobytes()
    return b"t" + json.dumps(array.ravel().tolist(), default=repr).encode()
