"""Checks of the user's input.

Each check returns the cleaned value, or raises a TypeError or ValueError that names the argument (``name``), the value
and the accepted values. The checks are in the lowest layer because every layer uses them, including the other numerics.
"""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Option = TypeVar("Option")

#: Largest accepted integer: above any sensible size, count or parameter, and within the range of a float.
LARGEST_INTEGER = 2**200


def named(value: object) -> str:
    """Return the ``repr`` of a value for an error message; for a class, a text which states that it is a class."""
    return f"the class {value.__name__}, not an instance" if isinstance(value, type) else repr(value)


def number(name: str, x: object, accepted: str = "a number", *, infinite: bool = False) -> float:
    """Return ``x`` as a float, or as an int if it is an integer; raise an error for a bool or if ``x`` is no number.

    Infinity is accepted only if ``infinite`` is True, and NaN never. An error names the argument ``name`` and what is
    ``accepted``.
    """
    if isinstance(x, np.ndarray) and x.ndim == 0:
        x = x.item()
    if isinstance(x, bool | np.bool_) or not isinstance(x, numbers.Real):
        raise TypeError(f"{name} must be {accepted}, got {x!r}")
    if x != x:
        raise ValueError(f"{name} must be {accepted}, got nan")
    if isinstance(x, numbers.Integral):
        if abs(int(x)) > LARGEST_INTEGER:
            raise ValueError(f"{name} must be {accepted}, got an integer of {int(x).bit_length()} bits")
        return int(x)
    value = float(x)
    if math.isinf(value) and not infinite:
        raise ValueError(f"{name} must be finite, got {value}")
    return value


def positive(name: str, x: object, *, infinite: bool = False) -> float:
    """Return the number ``x`` if x > 0, else raise an error that names ``name``; infinity needs ``infinite``."""
    value = number(name, x, "positive", infinite=infinite)
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value


def non_negative(name: str, x: object) -> float:
    """Return the number ``x`` if x >= 0, else raise an error that names the argument ``name``."""
    value = number(name, x, "non-negative")
    if not value >= 0:
        raise ValueError(f"{name} must be non-negative, got {value}")
    return value


def share(name: str, x: object) -> float:
    """Return ``x`` as a float if 0 < x < 1, else raise an error that names the argument ``name``."""
    value = number(name, x, "in (0, 1)")
    if not 0 < value < 1:
        raise ValueError(f"{name} must be in (0, 1), got {value}")
    return float(value)


def at_least(name: str, x: object, bound: float) -> float:
    """Return the number ``x`` if x >= bound, else raise an error that names the argument ``name``."""
    value = number(name, x, f"at least {bound}")
    if not value >= bound:
        raise ValueError(f"{name} must be at least {bound}, got {value}")
    return value


def probability(name: str, x: object, *, closed: bool = False) -> float:
    """Return ``x`` if 0 <= x < 1 (0 <= x <= 1 if ``closed``), else raise an error that names the argument ``name``."""
    accepted = "in [0, 1]" if closed else "in [0, 1)"
    value = number(name, x, accepted)
    if not (0 <= value < 1 or (closed and value == 1)):
        raise ValueError(f"{name} must be {accepted}, got {value}")
    return value


def integer(name: str, x: object, minimum: int | None = None, maximum: int = 2**63 - 1) -> int:
    """Return ``x`` as an int if it is a whole number, such as 3.0, from ``minimum`` to ``maximum``."""
    accepted = "an integer" if minimum is None else f"an integer of at least {minimum}"
    if maximum < 2**63 - 1:
        accepted += f" and at most {maximum}"
    value = number(name, x, accepted)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{name} must be {accepted}, got {value}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be {accepted}, got {value}")
    if value > maximum:
        raise ValueError(f"{name} must be {accepted}, got {value}")
    return int(value)


def one_of(name: str, x: Option, options: Collection[Option]) -> Option:
    """Return ``x`` if it equals one of ``options`` in type and value, else raise ValueError with all options."""
    for option in options:
        if type(x) is type(option) and x == option:
            return x
    raise ValueError(f"{name} must be one of {', '.join(repr(option) for option in options)}, got {x!r}")


def dimensions(name: str, x: ArrayLike) -> int:
    """Return the number of axes of ``x``, 0 for a number; raise ValueError that names ``name`` for a ragged list."""
    try:
        return np.ndim(x)
    except Exception as error:  # ragged lists, and any error that an object raises in its conversion
        raise ValueError(f"{name} must be a number or an array of numbers, got {x!r}") from error


def _of_symbols(x: object) -> str:
    """Return advice for an error message if ``x`` is a symbol of JAX, as inside ``jax.jit``; "" for other values."""
    from jax.core import Tracer

    if not isinstance(x, Tracer):
        return ""
    return ": call this function outside of jax.jit, jax.grad and jax.vmap; asx.gradient gives derivatives"


def real_array(name: str, x: object) -> np.ndarray:
    """Return ``x`` as a real array (integers stay integers); raise an error for NaN, bools and ragged lists."""
    try:
        array = np.asarray(x)
    except Exception as error:  # ragged lists, and any error that an object raises in its conversion
        raise ValueError(f"{name} must be an array of numbers, got {_briefly(x)}{_of_symbols(x)}") from error
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be real numbers, got {_briefly(x)}")
    if np.isnan(array).any():
        raise ValueError(f"{name} must not contain nan, got {_short(array)}")
    return array


def finite_grid(name: str, x: Any) -> np.ndarray:
    """Return ``x``, a number or a 1-D sequence of finite numbers, as a 1-D float array; raise an error for others."""
    array = np.atleast_1d(real_array(name, x)).astype(float)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a number or a non-empty 1-D sequence, got shape {np.shape(x)}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {_short(array)}")
    return array


def positive_grid(name: str, x: ArrayLike, *, most: float = math.inf) -> np.ndarray:
    """Return ``x``, a number or a 1-D sequence, as a 1-D float array of positive entries up to ``most``."""
    grid = finite_grid(name, x)
    for value in grid:
        positive(name, float(value))
        if value > most:
            raise ValueError(f"{name} must be at most {most:g}, got {value:g}")
    return grid


def array_of_shape(name: str, x: object, shape: Sequence[int | None]) -> np.ndarray:
    """Return ``x`` as a finite float array if it has the given shape, in which None stands for any length."""
    array = real_array(name, x).astype(float)
    fits = len(shape) == array.ndim and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    if not fits:
        wanted = "(" + ", ".join("any" if want is None else str(want) for want in shape) + ")"
        raise ValueError(f"{name} must have shape {wanted}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {_short(array)}")
    return array


def _briefly(x: object) -> str:
    """Return the text of an argument that is no number; of a long list or array, the first two entries."""
    entries = x.tolist() if isinstance(x, np.ndarray) else x
    if isinstance(entries, list | tuple) and len(entries) > 4:
        return f"{len(entries)} entries, {', '.join(map(reprlib.repr, entries[:2]))}, ..."
    return repr(x)


def _short(array: np.ndarray) -> str:
    if array.size <= 8:
        return np.array2string(array)
    bad = np.argwhere(~np.isfinite(array))
    return f"{len(bad)} of {array.size} entries that are not, the first at {tuple(int(k) for k in bad[0])}"
