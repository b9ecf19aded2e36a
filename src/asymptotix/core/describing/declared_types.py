"""Types of the fields of a dataclass, read from their annotations."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import typing

import numpy as np


def declared_fields(obj: object) -> dict[str, object]:
    """Return name -> annotation for every field that the constructor takes, of a dataclass or of an instance."""
    return _fields_of_class(obj if isinstance(obj, type) else type(obj))


@functools.cache
def _fields_of_class(cls: type) -> dict[str, object]:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} must be a dataclass: decorate it with @dataclasses.dataclass(frozen=True)")
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError):  # a name that only a type checker sees: use the annotations as written
        hints = {}
    return {f.name: hints.get(f.name, f.type) for f in dataclasses.fields(cls) if f.init}


def item_type(declared: object) -> object:
    """Return the item type of a tuple or list annotation, else None: tuple[np.ndarray, ...] | None gives np.ndarray."""
    for part in (declared, *typing.get_args(declared)):
        if typing.get_origin(part) in (tuple, list):
            return typing.get_args(part)[0]
    return None


def alternatives(declared: object) -> tuple[object, ...]:
    """Return the types in an annotation, without their parameters: int | tuple[int, ...] gives (int, tuple)."""
    if isinstance(declared, str):
        named: dict[str, type] = {"int": int, "float": float, "bool": bool, "list": list, "tuple": tuple}
        return tuple(named.get(part.split("[")[0].strip(), part.strip()) for part in declared.split("|"))
    is_union = typing.get_origin(declared) is typing.Union or type(declared).__name__ == "UnionType"
    parts = typing.get_args(declared) if is_union else (declared,)
    return tuple(typing.get_origin(part) or part for part in parts)


def declares_number(declared: object) -> bool:
    return any(part in (int, float) for part in alternatives(declared))


def as_declared(name: str, value: object, declared: object) -> object:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    members = alternatives(declared)
    if int in members and float not in members and isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"{name} must be an integer, got {value}")
        return int(value)
    return value


def is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
