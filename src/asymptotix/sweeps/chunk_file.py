"""The file of a chunk: a result like any other, followed by the same numbers in a form that is fast to read.

Reading netCDF takes milliseconds per file, and a store may have ten thousand files. HDF5 ignores all bytes after its
own end. These bytes are a line of JSON that describes the arrays, then the arrays as they are in memory, little-endian.
The checksum at the very end covers the whole file, so the two forms cannot disagree unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.dataset.assemble import RESERVED
from ..core.dataset.checksums import seal
from ..core.dataset.files import Saved, serialised
from ..core.problem import Outcome
from ..core.result import Result
from ..core.status import Status

_MARK = b"\n# asymptotix: numbers of a chunk: "


def chunk_bytes(name: str, result: Result) -> bytes:
    """Return the bytes of the file of chunk ``name``, which xarray and `asymptotix.load` read like any result."""
    provenance = {**result.provenance, "chunk": name}
    saved = Saved(result.ds, result.problem, result.kind, result.algorithm, result.settings, provenance)
    told, arrays = _described(result)
    header = json.dumps({"chunk": name, "provenance": result.provenance, **told}).encode()
    # The block ends with the position at which it begins.
    netcdf = bytes(serialised(saved))
    block = _MARK + header + b"\n" + b"".join(arrays) + b"\n%020d" % len(netcdf)
    data = netcdf + block
    return data + seal(data)


def is_whole(data: bytes, name: str) -> bool:
    """Return whether the bytes ``data`` of a file have the right checksum and belong to the chunk ``name``."""
    inside = memoryview(data)[: -len(seal(b""))]
    return data[len(inside) :] == seal(inside) and name.encode() in data


def read_chunk(data: bytes) -> tuple[dict[str, Any], Iterator[Outcome]]:
    """Return the provenance in the bytes of a complete chunk file, and its points or runs in the order of the chunk."""
    end = len(data) - len(seal(b""))
    first = int(data[end - 20 : end]) + len(_MARK)
    line_end = data.index(b"\n", first)
    told = json.loads(data[first:line_end])
    columns, at = {}, line_end + 1
    for name, dtype, shape in told["columns"]:
        count = int(np.prod(shape, dtype=int))
        array = np.frombuffer(data, dtype, count, at).reshape(shape)
        columns[name] = array
        at += array.nbytes
    return told["provenance"], _points(told, columns)


def _points(told: dict[str, Any], columns: dict[str, np.ndarray]) -> Iterator[Outcome]:
    shape = tuple(told["shape"])
    for k, place in enumerate(np.ndindex(shape)):
        values: dict[str, np.ndarray | np.generic] = {name: column[place] for name, column in columns.items()}
        yield Outcome(values, Status.from_code(told["status_code"][k]), words=told["status"][k])


def _described(result: Result) -> tuple[dict[str, Any], list[bytes]]:
    """Return a description for JSON (shape of the grid, columns, statuses), and the bytes of each column's array."""
    ds = result.ds
    dims = list(ds["status"].dims)
    told: dict[str, Any] = {"shape": list(ds["status"].shape), "columns": []}
    told |= {name: ds[name].values.ravel().astype(str).tolist() for name in ("status", "status_code")}
    arrays = []
    for name, variable in ds.data_vars.items():
        if name in RESERVED:
            continue
        values = variable.transpose(*dims, ...).values
        values = values.astype(values.dtype.newbyteorder("<"))
        told["columns"].append([str(name), values.dtype.str, list(values.shape)])
        arrays.append(values.tobytes())
    return told, arrays
