"""Type aliases for arrays that may be of NumPy or of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import jax

#: An array of NumPy or JAX, for functions that run both directly and inside compiled programs.
Array: TypeAlias = "np.ndarray | jax.Array"
#: Type variable for functions that return an array of the same library as their argument.
OneKind = TypeVar("OneKind", np.ndarray, "jax.Array", "np.ndarray | jax.Array")
