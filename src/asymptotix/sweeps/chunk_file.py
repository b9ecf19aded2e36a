"""The file of a chunk: a result as any other, and behind it the same numbers in a form that is read at once.

netCDF takes milliseconds for each file, and a store may have ten thousand of them. HDF5 does not look behind its own
end: there lie a line of JSON that says what follows, and the arrays as they are in memory, little-endian. The seal at
the very end holds for all of it, so that the two cannot disagree unnoticed.
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
    """The file of the chunk of that name: plain xarray and `asymptotix.load` read it as they read any result."""
    provenance = {**result.provenance, "chunk": name}
    saved = Saved(result.ds, result.problem, result.kind, result.algorithm, result.settings, provenance)
    told, arrays = _described(result)
    header = json.dumps({"chunk": name, "provenance": result.provenance, **told}).encode()
    # The end of the block says where it begins.
    netcdf = bytes(serialised(saved))
    block = _MARK + header + b"\n" + b"".join(arrays) + b"\n%020d" % len(netcdf)
    data = netcdf + block
    return data + seal(data)


def is_whole(data: bytes, name: str) -> bool:
    """Whether a file is sealed, unbroken, and of the chunk of that name."""
    inside = memoryview(data)[: -len(seal(b""))]
    return data[len(inside) :] == seal(inside) and name.encode() in data


def read_chunk(data: bytes) -> tuple[dict[str, Any], Iterator[Outcome]]:
    """Where the numbers of a whole file come from, and its points in their order."""
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
        values: dict[str, Any] = {name: column[place] for name, column in columns.items()}
        yield Outcome(values, Status.from_code(told["status_code"][k]), words=told["status"][k])


def _described(result: Result) -> tuple[dict[str, Any], list[bytes]]:
    """What the arrays are, in JSON, and the arrays."""
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
