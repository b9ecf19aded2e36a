"""Arrays of the library that does the work: JAX on an accelerator, NumPy on a CPU.

JAX compiles a program for every new size, and on a CPU this takes longer than a run of moderate size. NumPy compiles
nothing, and on one thread its products are as fast as those of JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.arrays import Array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Made = TypeVar("Made")


def on_cpu() -> bool:
    """Return whether work is done on a CPU, with NumPy arrays."""
    return jax.default_backend() == "cpu"


def placed(x: ArrayLike) -> Array:
    """Return an array in single precision: NumPy's on a CPU, JAX's on an accelerator."""
    return np.asarray(x, np.float32) if on_cpu() else jnp.asarray(x, jnp.float32)


def compiled_for_jax(work: Callable[..., Made], **options: Any) -> Callable[..., Made]:
    """Return ``work`` as one compiled program for JAX arrays, with products in full single precision.

    If all arguments are NumPy arrays, ``work`` is called without compilation. ``options`` go to ``jax.jit``.
    """

    def traced(*args: Any) -> Made:
        with jax.default_matmul_precision("highest"):
            return work(*args)

    program = jax.jit(traced, **options)

    @wraps(work)
    def called(*args: Any) -> Made:
        return (program if any(isinstance(x, jax.Array) for x in args) else work)(*args)

    return called
