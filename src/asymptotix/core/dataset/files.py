"""Results in netCDF files: the dataset, with problem, algorithm, settings and provenance as its attributes.

Plain xarray opens such a file. Arrays of the problem's description are separate variables, named by their dotted path.
A seal at the end of the file and the attribute ``checksums`` reveal damage.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray.backends import H5NetCDFStore

from ..definitions.observable import with_attributes
from ..problem import Algorithm, Problem, definitions
from ..specification import build, decode, describe, differences, encode, value_at, weakly_known, with_fields
from ..status import Status
from .checksums import checksums, first_difference, is_broken, seal
from .whole_file import read_whole, write_whole

if TYPE_CHECKING:
    import h5py

#: Version of the format of files. 1: a status is only a sentence, no checksums, functions by name. 2: status codes,
#: checksums, values of functions.
SCHEMA_VERSION = 2
#: Kinds of result, and attributes of a file that are descriptions in JSON.
KINDS = ("theory", "experiment", "thresholds")
DESCRIBED = ("problem", "algorithm", "settings", "provenance")
#: Largest length in characters, and number of nested levels, of a description that is accepted. Real ones are far
#: smaller: arrays are stored apart.
MOST_CHARACTERS = 2**24
MOST_LEVELS = 64
#: Number of characters of an error's text that are shown: the error may quote a long value.
MOST_WORDS = 1000
#: Largest accepted ratio of unpacked to packed bytes. Deflate, HDF5's compression, reaches at most 1032. Larger: a
#: small damaged file may fill the memory.
MOST_PER_BYTE = 1100
#: Number of unpacked bytes that are accepted from a file of any length, whatever the ratio.
ALWAYS_UNPACKED = 2**26


@dataclass(frozen=True)
class Saved:
    """The content of a file: the arguments of :class:`asymptotix.Result`."""

    ds: xr.Dataset
    problem: Problem
    kind: str
    algorithm: Algorithm | None
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]


# ---------------------------------------------------------------------------------------------- writing


def write(path: str | os.PathLike, saved: Saved) -> None:
    """Write a file that :func:`read` reads. It appears under its name only when it is complete.

    HDF5 writes to memory only: after a disk error it would write again on closing and end the process. The bytes are
    read back before they go to the disk, so that an unreadable file never replaces another one.
    """
    data = serialised(saved)
    try:
        _parsed(path, _opened(data))
    except ValueError as error:
        raise ValueError(f"{path} is not written, because it could not be read: {error}") from error
    write_whole(path, data)


def serialised(saved: Saved) -> memoryview:
    """Return the bytes of the file that :func:`write` writes."""
    arrays: dict[str, np.ndarray] = {}
    algorithm = None if saved.algorithm is None else describe(saved.algorithm, arrays=arrays)
    attributes = {
        "schema_version": SCHEMA_VERSION,
        "kind": saved.kind,
        "problem": json.dumps(describe(saved.problem, arrays=arrays)),
        "algorithm": json.dumps(algorithm),
        "settings": json.dumps(encode(saved.settings, path="settings", arrays=arrays)),
        "provenance": json.dumps(saved.provenance),
    }
    extra = {name: ([f"{name}.{i}" for i in range(array.ndim)], array) for name, array in arrays.items()}
    ds = saved.ds.assign(extra).assign_attrs(attributes)
    return sealed(ds.assign_attrs(checksums=json.dumps(checksums(ds, attributes))))


def sealed(ds: xr.Dataset) -> memoryview:
    """Return a dataset as the bytes of a netCDF file with a seal at its end. :func:`opened` reads them."""
    _require_h5netcdf()
    import h5netcdf

    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        ds.dump_to_store(H5NetCDFStore(file))
    line = seal(buffer.getbuffer())
    buffer.seek(0, io.SEEK_END)
    buffer.write(line)
    return buffer.getbuffer()


# ---------------------------------------------------------------------------------------------- reading


def read(path: str | os.PathLike, problem: Problem | None = None, free: Collection[str] = ()) -> Saved:
    """Read a file that :func:`write` wrote. ``problem`` is needed only if the saved problem holds a function.

    ``problem`` may differ from the saved one in the fields named in ``free`` only, which take the saved values.
    """
    if problem is not None and not isinstance(problem, Problem):
        raise TypeError(f"problem must be the problem that was saved, or be left out, got {problem!r}")
    ds = opened(path)
    attributes = _parsed(path, ds)
    with naming(path):
        arrays = {name: ds[name].values for name in _array_names([attributes[name] for name in DESCRIBED])}
        saved = _problem(attributes["problem"], arrays, problem, free)
        algorithm = _algorithm(attributes["algorithm"], arrays)
        settings = decode(attributes["settings"], arrays=arrays)
        if not isinstance(settings, Mapping):
            raise ValueError(f"its settings must be a mapping, got {type(settings).__name__}")
        # Variables in files of earlier versions have no attributes; attributes that a file has are kept.
        ds = with_attributes(_with_codes(ds.drop_vars(list(arrays))), definitions(saved, algorithm))
    ds.attrs = {}
    return Saved(ds, saved, attributes["kind"], algorithm, settings, attributes["provenance"])


def opened(path: str | os.PathLike) -> xr.Dataset:
    """Return the dataset of a netCDF file; raise a ValueError if its seal does not match or it is no netCDF."""
    _require_h5netcdf()
    data = read_whole(path)
    if is_broken(data):
        raise ValueError(f"{path} is damaged: its bytes are not those that were written")
    try:
        return _opened(data)
    except _TooLarge as error:
        raise ValueError(f"{path} {error}") from None
    except Exception as error:  # HDF5, h5netcdf and xarray raise errors of many types
        raise ValueError(
            f"{path} cannot be read as netCDF; it may be truncated or of another format: {error}"
        ) from error


class _TooLarge(ValueError):
    """Raised for a file that declares more data than its bytes can hold."""


@contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Scope in which any error, such as one of an unexpected description, becomes a ValueError that names ``path``."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{path}: {str(error)[:MOST_WORDS] or type(error).__name__}") from error


def _opened(data: bytes | memoryview) -> xr.Dataset:
    import h5py

    with h5py.File(io.BytesIO(data), "r") as file:  # where this raises, h5netcdf would also print a traceback
        dict(file.attrs)
        _refuse_more_than_it_holds(file, len(data))
    with xr.open_dataset(io.BytesIO(data), engine="h5netcdf") as opened:
        return opened.load()


def _refuse_more_than_it_holds(file: h5py.File, length: int) -> None:
    """Raise if a file declares large variables that were never written: HDF5 would fill them on reading."""
    import h5py

    claimed = sum(int(item.nbytes) for item in file.values() if isinstance(item, h5py.Dataset))
    if claimed > max(ALWAYS_UNPACKED, MOST_PER_BYTE * length):
        raise _TooLarge(
            f"is not loaded: its {length / 1e3:.3g} kB claim to hold {claimed / 1e9:.3g} GB, more than compression can "
            "explain. If you trust the file, xarray.open_dataset(path, engine='h5netcdf') opens it without loading it"
        )


def _parsed(path: str | os.PathLike, ds: xr.Dataset) -> dict[str, Any]:
    """Return kind and attributes, decoded from JSON; raise if the file is damaged or its version is unknown."""
    if "schema_version" not in ds.attrs or "kind" not in ds.attrs:
        raise ValueError(f"{path} was not written by asymptotix: it has no schema_version")
    version = ds.attrs["schema_version"]
    if not isinstance(version, int | np.integer) or version < 1:
        raise ValueError(f"{path} has no known schema version: it must be 1 to {SCHEMA_VERSION}, got {version!r}")
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema version {version}, this asymptotix reads up to {SCHEMA_VERSION}: upgrade it"
        )
    if version >= 2:
        _check_whole(path, ds)
    if not isinstance(kind := ds.attrs["kind"], str) or kind not in KINDS:
        raise ValueError(f"{path} is of an unknown kind: it must be one of {', '.join(KINDS)}, got {kind!r}")
    attributes: dict[str, Any] = {name: _from_json(path, name, ds.attrs.get(name)) for name in DESCRIBED}
    if not isinstance(attributes["provenance"], dict):
        raise ValueError(f"{path} is damaged: its provenance is no mapping")
    return {"kind": kind, **attributes}


def _check_whole(path: str | os.PathLike, ds: xr.Dataset) -> None:
    written = _from_json(path, "checksums", ds.attrs.get("checksums"))
    if not isinstance(written, dict):
        raise ValueError(f"{path} is damaged: its checksums are no mapping")
    covered = [name for name in ds.attrs if name != "checksums" and f"attribute {name}" in written]
    if difference := first_difference(checksums(ds, map(str, covered)), written):
        raise ValueError(f"{path} is damaged or was changed: {difference}")


def _from_json(path: str | os.PathLike, name: str, text: Any) -> Any:
    """Return an attribute decoded from JSON; raise if it is so long or so deep that building it might not end."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: its attribute {name!r} is missing or is no JSON") from error
    except RecursionError as error:
        raise ValueError(f"{path}: its attribute {name!r} is nested too deeply") from error
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{path}: its attribute {name!r} is too long, {len(text)} of at most {MOST_CHARACTERS}")
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [item for outer in level for item in _items(outer)]
    if level:
        raise ValueError(f"{path}: its attribute {name!r} is nested too deeply, more than {MOST_LEVELS} levels")
    return value


def _problem(described: Any, arrays: Mapping[str, np.ndarray], given: Problem | None, free: Collection[str]) -> Problem:
    if given is not None:
        saved = _inlined(described, arrays)
        found = differences(saved, describe(given))
        if fixed := [path for path in found if path.rpartition(".")[2] not in free]:
            raise ValueError(f"the problem given differs from the one saved in {', '.join(fixed)}")
        if weak := weakly_known(saved):
            warnings.warn(
                f"the file was written by an earlier version, which kept only a few values of {', '.join(weak)}:"
                " a function that differs from it only in rare places is not detected; save the file again",
                stacklevel=2,
            )
        return with_fields(given, **{path.rpartition(".")[2]: value_at(saved, path) for path in found})
    problem = build(described, arrays=arrays)
    if not isinstance(problem, Problem):
        raise ValueError(f"its problem is a {type(problem).__name__}, which is no Problem")
    return problem


def _algorithm(described: Any, arrays: Mapping[str, np.ndarray]) -> Algorithm | None:
    algorithm = None if described is None else build(described, arrays=arrays)
    if algorithm is not None and not isinstance(algorithm, Algorithm):
        raise ValueError(f"its algorithm is a {type(algorithm).__name__}, which is no Algorithm")
    return algorithm


def _inlined(described: object, arrays: Mapping[str, np.ndarray]) -> object:
    """Return a description in which every ``{"array": path}`` is replaced by the array as lists, for a comparison."""
    if isinstance(described, dict):
        if set(described) == {"array"}:
            return arrays[described["array"]].tolist()
        return {name: _inlined(value, arrays) for name, value in described.items()}
    return [_inlined(item, arrays) for item in described] if isinstance(described, list) else described


def _array_names(described: object) -> list[str]:
    if isinstance(described, dict) and set(described) == {"array"}:
        return [described["array"]]
    return [name for item in _items(described) for name in _array_names(item)]


def _items(described: object) -> list[Any]:
    return list(described.values()) if isinstance(described, dict) else described if isinstance(described, list) else []


def _with_codes(ds: xr.Dataset) -> xr.Dataset:
    """Return the dataset with a variable ``status_code``; raise if ``status`` or ``converged`` is missing.

    Files of schema version 1 hold only sentences, from which the codes are derived.
    """
    for name, kinds in (("status", "OUT"), ("converged", "b")):
        if name not in ds.data_vars or ds[name].dtype.kind not in kinds or ds[name].dims != ds["status"].dims:
            raise ValueError(f"its variable {name!r}, which says how every point ended, is missing or of another type")
    if "status_code" in ds:
        for code in np.unique(ds["status_code"].values.astype(str)):
            Status.from_code(str(code))
        return ds
    pairs = zip(ds["status"].values.ravel(), ds["converged"].values.ravel(), strict=True)
    codes = np.array([Status.from_words(words, converged).code for words, converged in pairs], dtype=str)
    return ds.assign(status_code=(ds["status"].dims, codes.reshape(ds["status"].shape)))


def _require_h5netcdf() -> None:
    # h5netcdf can be installed without h5py, and then cannot write.
    if missing := [name for name in ("h5netcdf", "h5py") if importlib.util.find_spec(name) is None]:
        raise ImportError(f"saving and loading results needs {' and '.join(missing)}: pip install h5netcdf h5py")
