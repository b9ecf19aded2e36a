"""Arrays where the work on them is done: JAX's on an accelerator, NumPy's on a CPU.

JAX compiles a program for every new size, and on a CPU that takes longer than a run of moderate size does. NumPy has
nothing to compile, and its products of one thread take no longer than those of JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Made = TypeVar("Made")


def on_cpu() -> bool:
    """Whether arrays are NumPy's."""
    return jax.default_backend() == "cpu"


def placed(x: Any) -> Any:
    """An array of numbers in single precision."""
    return np.asarray(x, np.float32) if on_cpu() else jnp.asarray(x, jnp.float32)


def compiled_for_jax(work: Callable[..., Made], **options: Any) -> Callable[..., Made]:
    """``work`` as one program where an argument is an array of JAX, with products in full single precision.

    Where all are NumPy's it is called as it is. ``options`` are those of ``jax.jit``.
    """

    def traced(*args: Any) -> Made:
        with jax.default_matmul_precision("highest"):
            return work(*args)

    program = jax.jit(traced, **options)

    @wraps(work)
    def called(*args: Any) -> Made:
        return (program if any(isinstance(x, jax.Array) for x in args) else work)(*args)

    return called
