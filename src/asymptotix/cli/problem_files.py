"""Reading problems described in TOML, with the arrays and the functions that the TOML file names."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ..core.problem import Problem

#: Pattern of the name of a function, ``module:function``.
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
SECTIONS = ("imports", "problem", "solve", "simulate", "thresholds", "sweep")


def read_problem(file: Path, verb: str, *, allow_imports: bool = False) -> tuple[Problem, dict[str, Any]]:
    """Return the problem of a TOML file, and the section of ``verb`` (such as "solve") as keyword arguments.

    Grids in the section become arrays. An array of the problem is ``{ npz = "data.npz", array = "inputs" }``, its path
    relative to the TOML file. A function is ``"module:function"``. Its module is named by ``imports`` or is in the
    folder of the TOML file, and is never part of Python's standard library. Reading the problem runs these modules.
    Installed modules are trusted; a module in the folder of the TOML file may have come with it and needs
    ``allow_imports``.
    """
    document = _toml(file)
    _no_other_names(document, SECTIONS, f"section or key of {file}")
    if "problem" not in document:
        raise ValueError(f"{file} has no section [problem]; `asymptotix --help` shows a whole file")
    if verb not in document and verb != "thresholds":
        there = ", ".join(f"[{_printable(name)}]" for name in document)
        raise ValueError(f"{file} has no section [{verb}] that says where to {verb}; it has {there}")
    if not isinstance(section := document.get(verb, {}), dict):
        raise ValueError(f"{verb} of {file} must be a section [{verb}], got {section!r}")
    from ..core.specification import build

    imports = document.get("imports", [])
    _import_modules(imports, file, allow_imports)
    problem = build(_resolved(document["problem"], file, imports, allow_imports))
    return problem, {name: _value(f"{verb}.{name}", value) for name, value in section.items()}


def _toml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not even text
        raise ValueError(f"{file} is not valid TOML: {error}") from error


def _resolved(value: object, file: Path, imports: Sequence[str], allow_imports: bool) -> Any:
    """Return ``value``, a part of the section [problem], with arrays and functions in place of their names."""
    if isinstance(value, list):
        return [_resolved(item, file, imports, allow_imports) for item in value]
    if isinstance(value, str) and FUNCTION.fullmatch(value):
        return _function(value, file, imports, allow_imports)
    if not isinstance(value, dict):
        return value
    if "npz" in value:
        return _array(value, file)
    return {name: _resolved(item, file, imports, allow_imports) for name, item in value.items()}


def _function(named: str, file: Path, imports: Sequence[str], allow_imports: bool) -> Callable[..., Any]:
    module, _, name = named.partition(":")
    _check_module_of_function(named, module, file, imports)
    _import_modules([module], file, allow_imports)
    found = getattr(sys.modules[module], name, None)
    if not callable(found):
        there = "has none of that name" if found is None else f"holds {found!r} under that name"
        raise ValueError(f"{named!r} must name a function as module:function, but {module} {there}")
    return found


def _check_module_of_function(named: str, module: str, file: Path, imports: Sequence[str]) -> None:
    """Raise ValueError for a function that was not written for problems, such as ``builtins:exit``."""
    accepted = "accepted are functions of modules that imports = [...] names or that lie beside the file"
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"{named!r} must not be a function of Python's standard library; {accepted}")
    is_named = any(module == name or module.startswith(f"{name}.") for name in imports)
    if not is_named and _is_installed(module, file.resolve().parent):
        raise ValueError(f"{named!r} must be imported: write imports = [{module!r}] above [problem]; {accepted}")


def _array(given: Mapping[str, Any], file: Path) -> np.ndarray:
    import numpy as np

    _no_other_names(given, ("npz", "array"), "key of an array")
    if not all(isinstance(given.get(key), str) for key in ("npz", "array")):
        raise ValueError(f'an array needs a file and a name: {{ npz = "data.npz", array = "inputs" }}, got {given!r}')
    path = file.parent / given["npz"]
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}, which {file} takes the array {given['array']!r} from")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no .npz file of arrays")
    with np.load(path, allow_pickle=False) as arrays:
        if given["array"] not in arrays:
            raise ValueError(f"{path} has no array {given['array']!r}; it has {_listed(arrays.files)}")
        try:
            return arrays[given["array"]]
        except (ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise ValueError(f"array {given['array']!r} of {path} cannot be read: {error}") from error


def _import_modules(names: object, file: Path, allow_beside: bool) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f'imports must be a list of module names such as ["my_problems"], got {names!r}')
    folder, path = file.resolve().parent, sys.path
    # Python may have put the folder in which it was started on the path.
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
                sys.path = [*installed, *others, str(folder)]  # last: its modules must not hide installed ones
            _import(name)
        finally:
            sys.path = path


def _is_installed(name: str, folder: Path) -> bool:
    """Return whether a module is found outside of ``folder``. Only its top package is searched: nothing is run."""
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    # The module may have been imported from the folder before.
    return spec is not None and Path(spec.origin or "").resolve().parent not in (folder, folder / top)


def _lies_in(name: str, folder: Path) -> bool:
    return importlib.machinery.PathFinder.find_spec(name.partition(".")[0], [str(folder)]) is not None


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        raise ImportError(f"imports: {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _value(name: str, value: object) -> Any:
    """Return the ``value`` of the key ``name``, such as "solve.alpha": a grid given by its ends becomes an array.

    Any other value, such as an algorithm or ``fixed``, is returned unchanged.
    """
    if not isinstance(value, dict) or "type" in value or name.endswith(".fixed"):
        return value
    if name == "sweep.over":
        return {own: _value(f"{name}.{own}", inside) for own, inside in value.items()}
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


def _no_other_names(given: Mapping[str, object], accepted: Sequence[str], what: str) -> None:
    if unknown := [name for name in given if name not in accepted]:
        raise ValueError(f"unknown {what}: {_listed(unknown)}; accepted are {', '.join(accepted)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_printable, names))


def _printable(name: str) -> str:
    """Return a name from a file, quoted if it has unusual characters: a terminal would obey escape sequences."""
    return name if re.fullmatch(r"[\w.-]+", name) else repr(name)
