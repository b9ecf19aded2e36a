"""Compilation of the user's functions by JAX, with LAPACK called on one matrix at a time to avoid a deadlock.

On a CPU, an XLA call of LAPACK on a batch occupies one thread of a pool and hands parts of the batch to other threads
of the same pool. As many such calls at once as there are cores, in one program or in two, wait for one another forever.
Calls on single matrices do not. Fourier transforms may wait in the same way; :func:`compiled` lets them use one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core

from .. import interrupts

Made = TypeVar("Made")

#: Primitives that call LAPACK, by their names, because not all of them are public.
_LAPACK = {
    "cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product", "lu", "ormqr", "qr", "schur",
    "svd", "triangular_solve", "tridiagonal", "tridiagonal_solve",
}  # fmt: skip
#: Primitives that call another program. Their derivative rules are ignored: all derivatives have been taken.
_CALLS = {"checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat2"}
_WITHOUT_POOL = {"xla_cpu_multi_thread_eigen": False}
#: Number of rows of a block, for which a program is compiled. Larger: few rows take longer. Smaller: more calls.
_BLOCK = 2**12


def compiled(function: Callable[..., Made]) -> Callable[..., Made]:
    """Return ``jax.jit`` of a function that runs the user's code; it does not hang if this code calls LAPACK."""
    plain = jax.jit(function)
    chosen: list[Callable[..., Made]] = []

    def call(*given: object) -> Made:
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(given)):  # the outer program is the one to rewrite
            return plain(*given)
        interrupts.check()
        if not chosen:
            text = plain.lower(*given).as_text()  # names LAPACK in a program for a CPU
            options = _WITHOUT_POOL if "stablehlo.fft" in text else None
            waits = "lapack" in text or options
            chosen.append(jax.jit(one_by_one(function), compiler_options=options) if waits else plain)
        return chosen[0](*given)

    return call


def in_blocks(program: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """Apply a compiled program to blocks of `_BLOCK` rows, so that it is compiled for this number of rows only.

    Parameters
    ----------
    program : callable
        Returns arrays with as many rows as its arguments; each row depends on the same row of the arguments only.
    *arrays : arrays (m, ...)

    Returns
    -------
    array or tuple of arrays (m, ...)
        The output of ``program`` for all rows.
    """
    count = len(arrays[0])
    parts = []
    for start in range(0, max(count, 1), _BLOCK):
        rows = np.minimum(np.arange(start, start + _BLOCK), count - 1) if count else slice(0)
        parts.append(jax.tree.map(np.asarray, program(*(jnp.asarray(x[rows]) for x in arrays))))
    return jax.tree.map(lambda *blocks: np.concatenate(blocks)[:count], *parts)


def one_by_one(function: Callable[..., Made]) -> Callable[..., Made]:
    """Return ``function`` with LAPACK called on one matrix at a time; the result is not for jax.grad or jax.vmap."""

    def rewritten(*given: object) -> Made:
        traced, shape = jax.make_jaxpr(function, return_shape=True)(*given)
        found = _evaluated(traced, jax.tree.leaves(given))
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return rewritten


def _evaluated(traced: core.ClosedJaxpr, given: Sequence[Any]) -> list[Any]:
    """Return the outputs of a ``traced`` function for arguments ``given``; LAPACK is called on one matrix at a time."""
    jaxpr = traced.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*traced.consts, *given], strict=True))

    def of(variable: core.Var | core.Literal) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for equation in jaxpr.eqns:
        found = _result(equation.primitive, [of(variable) for variable in equation.invars], equation.params)
        values.update(zip(equation.outvars, found, strict=True))
    return [of(variable) for variable in jaxpr.outvars]


def _result(primitive: core.Primitive, given: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    if primitive.name in _LAPACK and max(x.ndim for x in given) > 2:
        return _mapped(primitive, given, options)
    if primitive.name in _CALLS:
        called = options["call_jaxpr" if "call_jaxpr" in options else "jaxpr"]
        return _evaluated(called if isinstance(called, core.ClosedJaxpr) else core.ClosedJaxpr(called, ()), given)
    found = primitive.bind(*given, **{name: _rewritten(value) for name, value in options.items()})
    return found if primitive.multiple_results else [found]


def _mapped(primitive: core.Primitive, given: list[Any], options: dict[str, Any]) -> Sequence[Any]:
    """Return the outputs of a LAPACK primitive for batched matrices ``given``, called on one matrix at a time."""
    batch = max(given, key=lambda x: x.ndim).shape[:-2]  # some also take vectors
    rows = [x.reshape(math.prod(batch), *x.shape[len(batch) :]) for x in given]
    found = jax.lax.map(lambda row: primitive.bind(*row, **options), rows)
    return [x.reshape(*batch, *x.shape[1:]) for x in (found if primitive.multiple_results else [found])]


def _rewritten(option: Any) -> Any:
    """Return a parameter of a primitive; functions in it, such as bodies of loops, are rewritten as well."""
    if isinstance(option, core.ClosedJaxpr):
        given = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) for x in option.in_avals]
        return jax.make_jaxpr(lambda *given: _evaluated(option, given))(*given)
    if isinstance(option, tuple):
        made = [_rewritten(part) for part in option]
        return type(option)(*made) if hasattr(option, "_fields") else tuple(made)
    return option
