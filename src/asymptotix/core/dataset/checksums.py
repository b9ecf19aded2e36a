"""Checksums of a file's bytes, and of the values of every variable and attribute of a dataset.

SHA-256 is in every Python, is computed faster than a disk reads, and detects every accidental change. The seal, a
checksum at the end of a file, is checked before HDF5 reads the file, because HDF5 may never return on damaged bytes (3
of 3,000 flipped bits). A copy that xarray made has no seal, but the checksums of its values still hold.
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
    """Return the line with the SHA-256 of ``data`` that is appended to it. HDF5 ignores bytes after its own end."""
    return _SEAL + hashlib.sha256(data).hexdigest().encode() + b"\n"


def is_broken(data: bytes) -> bool:
    """Return whether the bytes of a file end with a seal that does not match them; False if they have no seal."""
    inside = memoryview(data)[: max(len(data) - _SEAL_LENGTH, 0)]
    end = data[len(inside) :]
    return end.startswith(_SEAL) and end != seal(inside)


def checksums(ds: xr.Dataset, attributes: Iterable[str]) -> dict[str, str]:
    """Return name -> SHA-256 of every variable of a dataset, and "attribute <name>" -> SHA-256 of these attributes."""
    of_variables = {str(name): _of_variable(variable, name in ds.coords) for name, variable in ds.variables.items()}
    return of_variables | {f"attribute {name}": _hashed(_plain(ds.attrs[name])) for name in attributes}


def first_difference(now: Mapping[str, str], written: Mapping[str, str]) -> str | None:
    """Return a phrase for the first item whose :func:`checksums` differ; None if all are equal."""
    for name in dict.fromkeys([*written, *now]):
        if name not in now:
            return f"{name} is missing"
        if name not in written:
            return f"{name} was added to it"
        if now[name] != written[name]:
            return f"{name} is not what was written"
    return None


def _of_variable(variable: xr.Variable, is_coordinate: bool) -> str:
    # netCDF stores a number and a list of one number in the same way.
    attributes = {str(name): _plain(value) for name, value in variable.attrs.items()}
    described = [list(map(str, variable.dims)), list(variable.shape), is_coordinate, sorted(attributes.items())]
    return _hashed(described, _canonical(np.asarray(variable.values)))


def _hashed(described: object, data: bytes = b"") -> str:
    text = json.dumps(described, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode() + b"\0" + data).hexdigest()


def _plain(value: object) -> list[Any]:
    return np.atleast_1d(np.asarray(value)).ravel().tolist()


def _canonical(array: np.ndarray) -> bytes:
    """Return an array's values as bytes that do not depend on the machine or on the number of bits in the file."""
    if array.dtype.kind == "f":
        return b"f" + np.where(np.isnan(array), np.nan, array).astype("<f8").tobytes()  # NaN has many bit patterns
    if array.dtype.kind in "iu":
        return b"i" + array.astype("<i8").tobytes()
    if array.dtype.kind == "b":
        return b"b" + array.astype("u1").tobytes()
    return b"t" + json.dumps(array.ravel().tolist(), default=repr).encode()
