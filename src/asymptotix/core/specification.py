"""Descriptions of models, problems and algorithms that can be written to a file and read back.

A description is a frozen dataclass that derives from :class:`Specification`. This alone allows it to be saved with a
result, rebuilt from a file and swept over its numeric fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import reprlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from .describing.declared_types import alternatives, as_declared, declared_fields, declares_number, is_number, item_type
from .describing.fingerprints import FINGERPRINT_LENGTH, SAMPLE_LENGTH
from .markup.description import description_html

_REGISTRY: dict[str, type[Specification]] = {}
#: Relative tolerance, and absolute one in units of the median value, within which values of two functions are equal.
#: Larger: another function is not detected. Smaller: the same function is refused where it is rounded differently, on
#: another machine or JAX version (1e-15, which the function may amplify; 1e-7 in single precision).
SAME_VALUES_RTOL, SAME_VALUES_ATOL = 1e-6, 1e-9


class Specification:
    """Base class of all descriptions. A subclass, also one of another package, is registered under its class name.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import asymptotix as asx
    >>> @dataclass(frozen=True)
    ... class Coin(asx.Specification):
    ...     bias: float = 0.5
    >>> Coin(bias=0.3)
    Coin(bias=0.3)
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = _REGISTRY.get(cls.__name__)
        # A module may define a name twice: when a notebook cell is run again, or by dataclass(slots=True).
        if known is not None and known.__module__ != cls.__module__:
            raise TypeError(
                f"a Specification named {cls.__name__!r} exists already in {known.__module__}; "
                f"choose another class name in {cls.__module__}"
            )
        _REGISTRY[cls.__name__] = cls

    #: Pairs (field, snapshot of the function in that field). A specification that computes with a user's function
    #: declares ``snapshots: tuple[...] = field(init=False, repr=False, default=())`` and sets it when it is made.
    snapshots: ClassVar[Any] = ()

    def function(self, field: str) -> Any:
        """Return the function to call for the field named ``field``: its snapshot, or else the function it holds.

        A user's function may change while it stays the same object. The snapshot does not change, and two models hold
        the same snapshot only if their functions were the same. So computations and caches use the snapshot.
        """
        return dict(self.snapshots).get(field) or getattr(self, field)

    def function_values(self, field: str) -> np.ndarray | None:
        """Return at most 32 values of the function in ``field``, at :func:`fixed_points`. Files identify it by them.

        Default: None; then a file accepts any function as the saved one.
        """
        return None

    def function_sample(self, field: str) -> np.ndarray | None:
        """Return at most 512 values of the function in ``field``, at :func:`far_points` times a scale, for example.

        Default: None; files then compare :meth:`function_values` and :meth:`function_code` only.
        """
        return None

    def function_scale(self, field: str) -> float:
        """Return the factor on the arguments of :meth:`function_sample`. Only samples of equal factor are compared."""
        return 1.0

    def function_code(self, field: str) -> str | None:
        """Return :func:`program_digest` of the function in the field named ``field``. Default: None, not compared."""
        return None

    def _repr_html_(self) -> str:
        return description_html(self)


S = TypeVar("S", bound=Specification)


def describe(
    obj: Specification, *, arrays: MutableMapping[str, np.ndarray] | None = None, keep_functions: bool = False
) -> dict[str, Any]:
    """Return a specification as a dictionary that JSON can hold.

    Parameters
    ----------
    obj
        The specification.
    arrays
        If given, NumPy and JAX arrays are put into this mapping under their dotted path, such as "MyProblem.model.x",
        and the dictionary holds ``{"array": path}`` instead; otherwise they become nested lists.
    keep_functions
        Keep functions as objects, for a comparison in memory. Otherwise a function becomes its name and, if the
        specification can evaluate it, its values at fixed points.

    Returns
    -------
    dict
        ``{"type": class name, field: value, ...}``, nested where the fields are specifications themselves.
    """
    return _encode_specification(obj, type(obj).__name__, arrays, keep_functions)


def _encode_specification(
    obj: Specification, path: str, arrays: MutableMapping[str, np.ndarray] | None, keep_functions: bool
) -> dict[str, Any]:
    described: dict[str, Any] = {"type": type(obj).__name__}
    for name in declared_fields(obj):
        value = getattr(obj, name)
        if keep_functions and callable(value):
            value = obj.function(name)
        value = encode(value, path=f"{path}.{name}", arrays=arrays, keep_functions=keep_functions)
        described[name] = {**value, **_fingerprint(obj, name)} if _is_function(value) else value
    return described


def encode(
    value: object,
    *,
    path: str,
    arrays: MutableMapping[str, np.ndarray] | None = None,
    keep_functions: bool = False,
) -> Any:
    """Return one value of a field as :func:`describe` does; ``path`` is its dotted name in errors and in ``arrays``."""
    if value is None or type(value) in (bool, int, float, str):  # checked first, for the speed of long lists
        return value

    def inside(item: object, name: object) -> Any:
        return encode(item, path=f"{path}.{name}", arrays=arrays, keep_functions=keep_functions)

    if isinstance(value, Specification):
        return _encode_specification(value, path, arrays, keep_functions)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [inside(item, i) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {"mapping": {str(k): inside(v, k) for k, v in value.items()}}
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if arrays is None or array.ndim == 0:
            return array.tolist()
        arrays[path] = array
        return {"array": path}
    if callable(value):
        return value if keep_functions else {"callable": _qualified_name(value)}
    raise TypeError(
        f"{path} holds a {type(value).__name__}, which cannot be described; accepted are specifications, "
        "numbers, strings, None, arrays, functions, and tuples or mappings of these"
    )


def _fingerprint(obj: Specification, field: str) -> dict[str, Any]:
    """Return ``{"values": [...], ...}``, which identifies the function in a field; {} if it cannot be evaluated."""
    try:
        values = obj.function_values(field)
        values = None if values is None else np.asarray(values, float).ravel()
    except Exception:  # a user's function may raise anything: it need not be defined outside the law of its data
        return {}
    if values is None or not np.isfinite(values).all():
        return {}
    return {"values": values[:FINGERPRINT_LENGTH].tolist(), **_close_look(obj, field)}


def _close_look(obj: Specification, field: str) -> dict[str, Any]:
    """Return ``{"sample": [...], "code": ...}``, which distinguishes functions that differ only at rare arguments.

    A value of the sample that is not finite becomes None. A ``scale`` of the sample other than one is added.
    """
    found: dict[str, Any] = {}
    try:
        sample, code = obj.function_sample(field), obj.function_code(field)
        scale = obj.function_scale(field)
    except Exception:  # as above
        return found
    if sample is not None:
        numbers = np.asarray(sample, float).ravel()[:SAMPLE_LENGTH]
        found["sample"] = [float(f"{x:.8g}") if np.isfinite(x) else None for x in numbers]
        found |= {"scale": scale} if scale != 1 else {}
    if code is not None:
        found["code"] = code
    return found


def weakly_known(described: object, path: str = "") -> list[str]:
    """Return the dotted names of described functions that have values but no sample (files of earlier versions)."""
    if not isinstance(described, Mapping):
        return []
    if _is_function(described):
        return [path.lstrip(".")] if "values" in described and "sample" not in described else []
    return [found for name, value in described.items() for found in weakly_known(value, f"{path}.{name}")]


def _is_function(described: object) -> bool:
    return isinstance(described, Mapping) and "callable" in described and "type" not in described


def build(described: Mapping[str, Any], *, arrays: Mapping[str, np.ndarray] | None = None) -> Any:
    """Return the object of which :func:`describe` returned the description.

    Parameters
    ----------
    described
        ``{"type": class name, field: value, ...}``. Fields with a default may be left out; lists are accepted
        where the field is declared as a tuple or an array.
    arrays
        Dotted path -> array, for the entries ``{"array": path}`` of the description.

    Raises
    ------
    ValueError
        For an unknown type or field, for a missing field, and for a function, which a file cannot hold.
    """
    if not isinstance(described, Mapping) or "type" not in described:
        raise ValueError(f"a description needs the key 'type', got {_shortened(described)}")
    cls = _find_class(described["type"])
    accepted = declared_fields(cls)
    given = {name: value for name, value in described.items() if name != "type"}
    for name in given:
        if name not in accepted:
            raise ValueError(
                f"{cls.__name__} has no field {_shortened(name)}{_hint(name, accepted)}; it has {_listed(accepted)}"
            )
    values = {name: decode(value, declared=accepted[name], arrays=arrays) for name, value in given.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.__name__} cannot be built from {_listed(given)}: {error}") from error


def decode(value: object, *, declared: object = None, arrays: Mapping[str, np.ndarray] | None = None) -> Any:
    """Return the value that :func:`encode` encoded. ``declared`` is the annotation of its field, such as a tuple."""
    if value is None or type(value) in (bool, int, float, str):  # checked first, for the speed of long lists
        return value
    if isinstance(value, Mapping):
        if _is_function(value):
            raise ValueError(
                f"the function {value['callable']!r} cannot be rebuilt from a description; "
                "give the problem itself: load(path, problem=...)"
            )
        if set(value) == {"array"}:
            if arrays is None or not isinstance(value["array"], str) or value["array"] not in arrays:
                raise ValueError(f"the array {value['array']!r} of the description is missing")
            return np.asarray(arrays[value["array"]])
        if set(value) == {"mapping"} and isinstance(value["mapping"], Mapping):
            return {key: decode(item, arrays=arrays) for key, item in value["mapping"].items()}
        return build(value, arrays=arrays)
    if isinstance(value, tuple | list):
        members = alternatives(declared)
        if not {tuple, list} & set(members) and ("Array" in str(declared) or "ndarray" in str(declared)):
            return np.asarray(value)
        items = [decode(item, declared=item_type(declared), arrays=arrays) for item in value]
        return items if members == (list,) else tuple(items)
    return value


def numeric_fields(obj: Specification) -> dict[str, float | None]:
    """Return name -> value of the fields that hold a number, in a specification and the specifications inside it.

    A field that is None but declared as a number (``float | None``) is included. If a name occurs more than once, the
    outermost value is returned; :func:`with_fields` refuses to change such a name.
    """
    found: dict[str, float | None] = {}
    for path, owner in _walk(obj):
        value = getattr(owner, path[-1])
        if is_number(value) or (value is None and declares_number(declared_fields(owner)[path[-1]])):
            found.setdefault(path[-1], value)
    return found


def with_fields(obj: S, **values: object) -> S:
    """Return a copy with the named fields changed, at any depth of the specification.

    Raises
    ------
    ValueError
        For a name that does not exist or exists more than once, and for a fraction in an integer field.
    """
    places: dict[str, list[tuple[str, ...]]] = {}
    declared: dict[tuple[str, ...], object] = {}
    for path, owner in _walk(obj):
        places.setdefault(path[-1], []).append(path)
        declared[path] = declared_fields(owner)[path[-1]]
    changes: dict[tuple[str, ...], object] = {}
    for name, value in values.items():
        paths = places.get(name, [])
        if not paths:
            raise ValueError(
                f"{type(obj).__name__} has no field {name!r}{_hint(name, places)}; it has {_listed(places)}"
            )
        if len(paths) > 1:
            both = " and ".join(".".join((type(obj).__name__, *path)) for path in paths)
            raise ValueError(f"{name!r} is ambiguous: it names {both}; change the description itself")
        changes[paths[0]] = as_declared(name, value, declared[paths[0]])
    return _replaced(obj, changes)


def differences(first: object, second: object, *, path: str = "") -> list[str]:
    """List the dotted names, after the prefix ``path``, at which two descriptions differ.

    Functions kept as objects must be one object or compare equal. Described functions must agree in their values and,
    if both come from one version of JAX, in the digests of their programs. A function without these is not compared.
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if _is_function(first) and _is_function(second):
            return [] if _same_function(first, second) else [f"{path}: another function".lstrip(".")]
        if first.get("type") != second.get("type"):
            return [f"{path}.type".lstrip(".")]
        names = list(dict.fromkeys([*first, *second]))
        missing = object()
        return [
            found
            for name in names
            for found in differences(first.get(name, missing), second.get(name, missing), path=f"{path}.{name}")
        ]
    if callable(first) and callable(second):
        return [] if _same_object(first, second) else [f"{path}: another function".lstrip(".")]
    if first == second or (first != first and second != second):
        return []
    return [path.lstrip(".")]


def value_at(described: object, path: str) -> object:
    """Return the value of a description under a dotted name; None where it has no such name."""
    for name in path.split("."):
        described = described.get(name) if isinstance(described, Mapping) else None
    return described


def differing(first: Specification, second: Specification) -> list[str]:
    """List the dotted names at which two specifications differ. Functions must be one object or compare equal."""
    return differences(describe(first, keep_functions=True), describe(second, keep_functions=True))


def _same_object(first: object, second: object) -> bool:
    """Return whether two functions are one object or compare equal, as two accesses to a bound method do."""
    try:
        return first is second or bool(first == second)
    except Exception:  # the comparison of a callable object may raise
        return False


def _same_function(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two described functions agree in values, sample and digest, each only if both have it."""
    names = ("values", "sample") if first.get("scale", 1.0) == second.get("scale", 1.0) else ("values",)
    if not all(_same_values(first.get(name), second.get(name)) for name in names):
        return False
    (version, _, code), (other, _, other_code) = (str(one.get("code", "")).partition(":") for one in (first, second))
    return version != other or code == other_code


def _same_values(first: ArrayLike | None, second: ArrayLike | None) -> bool:
    if first is None or second is None:
        return True
    if np.shape(first) != np.shape(second):
        return False
    a, b = (np.array(one, float) for one in (first, second))  # an entry None becomes nan
    unit = np.nanmedian(abs(a[a != 0])) if np.any(a[np.isfinite(a)]) else 1.0
    return np.allclose(a, b, rtol=SAME_VALUES_RTOL, atol=SAME_VALUES_ATOL * unit, equal_nan=True)


def _replaced(obj: Any, changes: Mapping[tuple[str, ...], object]) -> Any:
    if not changes:
        return obj
    own = {path[0]: value for path, value in changes.items() if len(path) == 1}
    inside: dict[str, dict[tuple[str, ...], object]] = {}
    for path, value in changes.items():
        if len(path) > 1:
            inside.setdefault(path[0], {})[path[1:]] = value
    nested = {name: _replaced(getattr(obj, name), deeper) for name, deeper in inside.items()}
    return dataclasses.replace(obj, **own, **nested)


def _walk(obj: Specification) -> list[tuple[tuple[str, ...], Specification]]:
    """Return (path, owner) of every field, outermost first: the names down to the field, and its specification."""
    found: list[tuple[tuple[str, ...], Specification]] = []
    level: list[tuple[tuple[str, ...], Specification]] = [((), obj)]
    while level:
        deeper = []
        for prefix, owner in level:
            for name in declared_fields(owner):
                found.append(((*prefix, name), owner))
                if isinstance(value := getattr(owner, name), Specification):
                    deeper.append(((*prefix, name), value))
        level = deeper
    return found


def _find_class(name: object) -> type[Specification]:
    if not isinstance(name, str):
        raise ValueError(f"a type must be the name of a class, got {_shortened(name)}")
    package = importlib.import_module(__name__.partition(".")[0])
    if name not in _REGISTRY:
        # The package imports its theories when their names are first asked for.
        getattr(package, name, None)
    if name not in _REGISTRY:
        for public in package.__all__:  # import everything, so that all known types are registered
            getattr(package, public)
        raise ValueError(
            f"unknown type {_shortened(name)}{_hint(name, _REGISTRY)}; known are {_listed(_REGISTRY)}. "
            "If another package or script defines it, import that first"
        )
    return _REGISTRY[name]


def _qualified_name(function: Callable) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _hint(name: str, accepted: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), list(accepted), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _shortened(value: object) -> str:
    return reprlib.repr(value) if not isinstance(value, str) or len(value) > 200 else repr(value)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
