"""Fingerprints with which a file identifies a function: its values at fixed points, and a digest of its program."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...numerics.programs.program_listing import program_listing

#: Largest numbers of values of a function that a file stores: those in files of all versions, and those added in newer
#: files. Smaller: functions that differ only at rare arguments count as the same. Larger: larger files.
FINGERPRINT_LENGTH, SAMPLE_LENGTH = 32, 512
#: Version of the listing of programs for :func:`program_digest`. Digests of different versions are not compared.
_LISTING = 2


def fixed_points(*shape: int) -> np.ndarray:
    """Return test arguments of this shape like independent N(0, 1), equal on every machine and NumPy version."""
    k = np.arange(1, math.prod(shape) + 1, dtype=float)
    uniform = np.clip((k * k * 0.5 * (math.sqrt(5) - 1)) % 1, 1e-9, 1 - 1e-9)  # Weyl: pairs fill the square evenly
    return (np.log(uniform / (1 - uniform)) / 1.702).reshape(shape)  # the logistic law nearest to the normal one


def far_points(*shape: int) -> np.ndarray:
    """Return :func:`fixed_points` with every second row (along the first axis) doubled, for larger arguments."""
    points = fixed_points(*shape)
    points[1::2] *= 2
    return points


def condensed(values: ArrayLike, length: int = FINGERPRINT_LENGTH) -> np.ndarray:
    """Return at most ``length`` numbers that represent the values (points, ...) of a function.

    Values with more entries than fit are projected on fixed directions, so that every entry contributes.
    """
    rows = np.asarray(values, float)
    rows = rows.reshape(len(rows), -1)[:length]
    room = length // len(rows)
    return (rows if rows.shape[1] <= room else rows @ fixed_points(rows.shape[1], room)).ravel()


def program_digest(function: Callable[..., Any], *shapes: tuple[int, ...]) -> str:
    """Return "version:digest" of a function's JAX program, one argument per shape, constants included.

    The version is that of JAX and of the listing. The caller sets JAX to double precision.
    """
    import jax

    digest = hashlib.sha256("\n".join(program_listing(function, *shapes)).encode())
    return f"{jax.__version__} listing {_LISTING}:{digest.hexdigest()}"
