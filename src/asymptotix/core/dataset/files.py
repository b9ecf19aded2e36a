"""Results in netCDF files: the dataset, and in its attributes what it is a result of.

Plain xarray opens such a file. Arrays of the description are variables of their own, named by their dotted path.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..problem import Algorithm, Problem
from ..specification import build, decode, describe, differences, encode
from ..status import Status

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Saved:
    """What a file holds: the numbers, and what they are a result of. See :class:`asymptotix.Result`."""

    ds: xr.Dataset
    problem: Problem
    kind: str
    algorithm: Algorithm | None
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]


def write(path: str | os.PathLike, saved: Saved) -> None:
    """Write a file that :func:`read` reads; it appears only when it is complete."""
    _require_h5netcdf()
    path = Path(path)
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
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        saved.ds.assign(extra).assign_attrs(attributes).to_netcdf(unfinished, engine="h5netcdf")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: str | os.PathLike, problem: Problem | None = None) -> Saved:
    """Read what :func:`write` wrote; ``problem`` is needed only where it holds a function."""
    _require_h5netcdf()
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with xr.open_dataset(path, engine="h5netcdf") as opened:
            ds = opened.load()
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as netCDF; it may be truncated or of another format: {error}"
        ) from error
    attributes = _checked_attributes(path, ds)
    arrays = {name: ds[name].values for name in _array_names(attributes)}
    try:
        saved = _problem(attributes["problem"], arrays, problem)
        algorithm = attributes["algorithm"] and build(attributes["algorithm"], arrays=arrays)
        settings = decode(attributes["settings"], arrays=arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    ds = _with_codes(ds.drop_vars(list(arrays)))
    ds.attrs = {}
    return Saved(ds, saved, attributes["kind"], algorithm, settings, attributes["provenance"])


def _problem(described: dict[str, Any], arrays: Mapping[str, np.ndarray], given: Problem | None) -> Problem:
    if given is None:
        return build(described, arrays=arrays)
    differing = differences(_inlined(described, arrays), describe(given))
    if differing:
        raise ValueError(f"the problem given differs from the one saved in {', '.join(differing)}")
    return given


def _inlined(described: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A description with the arrays it refers to written out, so that it can be compared."""
    if isinstance(described, dict):
        if set(described) == {"array"}:
            return arrays[described["array"]].tolist()
        return {name: _inlined(value, arrays) for name, value in described.items()}
    return [_inlined(item, arrays) for item in described] if isinstance(described, list) else described


def _checked_attributes(path: Path, ds: xr.Dataset) -> dict[str, Any]:
    if "schema_version" not in ds.attrs or "kind" not in ds.attrs:
        raise ValueError(f"{path} was not written by asymptotix: it has no schema_version")
    version = ds.attrs["schema_version"]
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema version {version}, this asymptotix reads up to {SCHEMA_VERSION}: upgrade it"
        )
    attributes: dict[str, Any] = {"kind": ds.attrs["kind"]}
    for name in ("problem", "algorithm", "settings", "provenance"):
        try:
            attributes[name] = json.loads(ds.attrs[name])
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path} is damaged: its attribute {name!r} is missing or is no JSON") from error
    return attributes


def _with_codes(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with its status codes. Files of schema 1 hold words only, from which they are read here, once."""
    if "status_code" in ds or not {"status", "converged"} <= set(ds.data_vars):
        return ds
    pairs = zip(ds["status"].values.ravel(), ds["converged"].values.ravel(), strict=True)
    codes = np.array([Status.from_words(words, converged).code for words, converged in pairs], dtype=str)
    return ds.assign(status_code=(ds["status"].dims, codes.reshape(ds["status"].shape)))


def _array_names(described: Any) -> list[str]:
    if isinstance(described, dict):
        if set(described) == {"array"}:
            return [described["array"]]
        return [name for value in described.values() for name in _array_names(value)]
    return [name for item in described for name in _array_names(item)] if isinstance(described, list) else []


def _require_h5netcdf() -> None:
    # h5netcdf is installed without h5py too, and then cannot write.
    if missing := [name for name in ("h5netcdf", "h5py") if importlib.util.find_spec(name) is None]:
        raise ImportError(
            f"saving and loading results needs {' and '.join(missing)}: pip install h5netcdf h5py"
        )
