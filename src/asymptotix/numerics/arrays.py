"""Types of arrays of either kind, NumPy or JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import jax

#: An array of NumPy or JAX: functions on it run as they are and inside compiled programs.
Array: TypeAlias = "np.ndarray | jax.Array"
#: For functions that return the kind of array that they are given.
OneKind = TypeVar("OneKind", np.ndarray, "jax.Array", "np.ndarray | jax.Array")
