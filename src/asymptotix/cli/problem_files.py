"""Problems described in TOML: reading them, and importing the modules that they name."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.problem import Problem

SECTIONS = ("imports", "problem", "solve", "simulate", "thresholds")


def read_problem(file: Path, verb: str, *, allow_imports: bool = False) -> tuple[Problem, dict[str, Any]]:
    """Read the problem of a TOML file and the section of one verb, its grids expanded.

    Modules that it imports are run. Those of the environment are the user's own; one beside the file came with it and
    needs ``allow_imports``.
    """
    document = _toml(file)
    _no_other_names(document, SECTIONS, f"section or key of {file}")
    if "problem" not in document:
        raise ValueError(f"{file} has no section [problem]; `asymptotix --help` shows a whole file")
    if verb not in document and verb != "thresholds":
        there = ", ".join(f"[{name}]" for name in document)
        raise ValueError(f"{file} has no section [{verb}] that says where to {verb}; it has {there}")
    if not isinstance(section := document.get(verb, {}), dict):
        raise ValueError(f"{verb} of {file} must be a section [{verb}], got {section!r}")
    from ..core.specification import build

    _import_modules(document.get("imports", []), file, allow_imports)
    problem = build(document["problem"])
    return problem, {name: _value(f"{verb}.{name}", value) for name, value in section.items()}


def _toml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not even text
        raise ValueError(f"{file} is not valid TOML: {error}") from error


def _import_modules(names: Any, file: Path, allow_beside: bool) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f'imports must be a list of module names such as ["my_problems"], got {names!r}')
    folder, path = file.resolve().parent, sys.path
    # Python itself may have put the folder it was started in there.
    installed = [entry for entry in path if Path(entry or os.curdir).resolve() not in (folder, Path.cwd())]
    others = [entry for entry in path if entry not in installed]
    for name in names:
        try:
            sys.path = installed
            if not _is_installed(name, folder):
                if _lies_in(name, folder) and not allow_beside:
                    raise ImportError(
                        f"{file} imports {name!r}, a module that lies beside it and is not installed; importing runs "
                        "it: if you trust it, allow that with --allow-imports"
                    )
                sys.path = [*installed, *others, str(folder)]  # last: it must not stand in for what is installed
            _import(name)
        finally:
            sys.path = path


def _is_installed(name: str, folder: Path) -> bool:
    """Whether a module is found elsewhere than in a folder. Only its outermost package is sought: nothing is run."""
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    # It may have been imported from the folder before.
    return spec is not None and Path(spec.origin or "").resolve().parent not in (folder, folder / top)


def _lies_in(name: str, folder: Path) -> bool:
    return importlib.machinery.PathFinder.find_spec(name.partition(".")[0], [str(folder)]) is not None


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        raise ImportError(f"imports: {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _value(name: str, value: Any) -> Any:
    """A grid given by its ends as an array; anything else, an algorithm or what is held too, as it is."""
    if not isinstance(value, dict) or "type" in value or name == "solve.fixed":
        return value
    _no_other_names(value, ("start", "stop", "num", "spacing"), f"key of {name}")
    if missing := [key for key in ("start", "stop", "num") if key not in value]:
        raise ValueError(f"{name} needs {', '.join(missing)}: {{ start = 0.1, stop = 1.0, num = 10 }}")
    import numpy as np

    from ..numerics import checks

    spacing = checks.one_of(f"{name}.spacing", value.get("spacing", "linear"), ("linear", "log"))
    check = checks.positive if spacing == "log" else checks.number
    start, stop = (check(f"{name}.{key}", value[key]) for key in ("start", "stop"))
    num = checks.integer(f"{name}.num", value["num"], minimum=1)
    return np.geomspace(start, stop, num) if spacing == "log" else np.linspace(start, stop, num)


def _no_other_names(given: Mapping[str, Any], accepted: Sequence[str], what: str) -> None:
    if unknown := [name for name in given if name not in accepted]:
        raise ValueError(f"unknown {what}: {', '.join(unknown)}; accepted are {', '.join(accepted)}")
