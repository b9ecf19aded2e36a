"""The type of an array of either kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import jax

#: An array of NumPy or JAX: functions on it run as they are and inside compiled programs.
Array: TypeAlias = "np.ndarray | jax.Array"
