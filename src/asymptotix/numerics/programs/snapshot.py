"""Snapshots of functions that the user writes.

A function may change while it stays the same object: it may read a global variable, or an attribute of a callable
object, that gets a new value. A cache with the function's identity as key, as in JAX, then returns old numbers. Models
therefore compute with a snapshot: the program of the function at the time when the model was made. As the program of a
snapshot never changes, its identity is a correct key of any cache.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from ..precision import double_precision, single_precision
from .program_listing import listing

if TYPE_CHECKING:
    import jax
    from jax.extend import core
    from numpy.typing import DTypeLike

    #: A traced function and the structure of its result.
    Program: TypeAlias = tuple[core.ClosedJaxpr, Any]

Shape = tuple[int, ...]


class Snapshot:
    """The program of a function at the time of the snapshot; made by :func:`snapshot`.

    A call evaluates the program. If there is no program for the shapes or types of the arguments, it calls the function
    itself.

    Parameters
    ----------
    function : callable
    shapes : tuple of int
        Shapes of the arguments.
    leading : bool
        Whether arguments may have more axes in front, over which the function is mapped.
    """

    def __init__(self, function: Callable[..., Any], shapes: tuple[Shape, ...], leading: bool) -> None:
        self.function, self.shapes, self.leading = function, shapes, leading
        traced = [(1, *shape) for shape in shapes] if leading else shapes
        with double_precision():
            program = _traced(function, traced, np.float64)
            lines = () if program is None else _with_derivative(program[0], traced)
            #: Digest of the program and its derivative, with all digits of all constants; of an empty text if the
            #: function cannot be traced.
            self.digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        #: Programs by the type of the arguments.
        self._programs = {} if program is None else {"float64": program}

    def _program(self, dtype: str) -> Program | None:
        """Return the program for ``dtype``, "float64" or "float32"; None if the function cannot be traced.

        The program for float32 is traced when it is first needed. If the function has changed by then, ValueError is
        raised.
        """
        if dtype == "float32" and dtype not in self._programs:
            # A second trace in double precision shows whether it is still the same function.
            if Snapshot(self.function, self.shapes, self.leading).digest != self.digest:
                raise ValueError(
                    f"{self.function!r} has changed since the model was made: a variable that it reads has another "
                    "value; make the model again"
                )
            with single_precision():
                shapes = [(1, *shape) for shape in self.shapes] if self.leading else self.shapes
                if found := _traced(self.function, shapes, np.float32):
                    self._programs[dtype] = found
        return self._programs.get(dtype)

    def __call__(self, *given: Any) -> Any:
        import jax
        import jax.numpy as jnp
        from jax.extend import core

        arrays = [jnp.asarray(x) for x in given]
        types = {x.dtype.name for x in arrays}
        fits = len(arrays) == len(self.shapes) and len(types) == 1 and bool(self._programs)
        ends = [x.shape[x.ndim - len(end) if self.leading else 0 :] for x, end in zip(arrays, self.shapes, strict=fits)]
        if not fits or tuple(ends) != self.shapes or not types <= {"float32", "float64"}:
            return self.function(*given)
        program = self._program(*types)
        if program is None:
            # A function with NumPy integers that was traced in double precision may fail in single precision.
            with double_precision():
                found = self(*(x.astype(np.float64) for x in arrays))
                narrow = {np.dtype(np.float64): np.float32}
                return jax.tree.map(lambda y: y.astype(narrow.get(y.dtype, y.dtype)), found)
        traced, structure = program

        def evaluated(*arrays: jax.Array) -> Any:
            return jax.tree.unflatten(structure, core.jaxpr_as_fun(traced)(*arrays))

        if not self.leading:
            return evaluated(*arrays)
        batch = arrays[0].shape[: arrays[0].ndim - len(self.shapes[0])]
        rows = [x.reshape(math.prod(batch), 1, *end) for x, end in zip(arrays, ends, strict=True)]
        return jax.tree.map(lambda y: y.reshape(*batch, *y.shape[2:]), jax.vmap(evaluated)(*rows))

    def __repr__(self) -> str:
        return repr(self.function)

    def __reduce__(self) -> tuple[Callable[..., Snapshot], tuple[object, ...]]:
        return _again, (self.function, self.shapes, self.leading)


#: Snapshots in use, by function, shapes, `leading` and digest. A cache that still holds results of a snapshot also
#: holds the snapshot, so that the next model of the same unchanged function finds both.
_in_use: WeakValueDictionary[tuple, Snapshot] = WeakValueDictionary()


def snapshot(function: Callable[..., Any], *shapes: Shape, leading: bool = False) -> Snapshot:
    """Return the snapshot of a function for these shapes: the same object as long as the program is the same.

    A function that JAX cannot trace is identified by the object itself.

    Parameters
    ----------
    function : callable
        A snapshot is returned as it is.
    shapes : tuple of int
        Shapes of the arguments.
    leading : bool
        Whether arguments may have more axes in front, over which the function is mapped.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> square = snapshot(jnp.square, ())
    >>> square is snapshot(jnp.square, ())
    True
    """
    if isinstance(function, Snapshot):
        return function
    made = Snapshot(function, shapes, leading)
    try:
        key: tuple[object, int | None] = (function, hash(function))
    except TypeError:
        key = (id(function), None)  # unique, because the snapshot keeps the function alive
    return _in_use.setdefault((key, shapes, leading, made.digest), made)


def _again(function: Callable[..., Any], shapes: tuple[Shape, ...], leading: bool) -> Snapshot:
    return snapshot(function, *shapes, leading=leading)


def _traced(function: Callable[..., Any], shapes: Sequence[Shape], dtype: DTypeLike) -> Program | None:
    """Return the program of a function of these shapes and the structure of its result; None if JAX cannot trace it."""
    import jax

    given = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    try:
        # A new function at every call: JAX keeps the traces of functions that it has seen.
        traced, shape = jax.make_jaxpr(lambda *x: function(*x), return_shape=True)(*given)
    except Exception:  # any error of the user's function; the trial of the model reports it
        return None
    return traced, jax.tree.structure(shape)


def _with_derivative(traced: core.ClosedJaxpr, shapes: Sequence[Shape]) -> Iterator[str]:
    """Yield the lines of the listing of a program, and of its derivative if the user has written a rule for it."""
    import jax
    from jax.extend import core

    yield from listing(traced.jaxpr, traced.consts, exact=True)
    if not _has_own_rules(traced.jaxpr):
        return

    def derivative(*x: jax.Array) -> Any:
        y, pulled_back = jax.vjp(core.jaxpr_as_fun(traced), *x)
        return pulled_back(y)

    try:
        ruled = jax.make_jaxpr(derivative)(*(jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes))
    except Exception:  # there is no such derivative
        return
    yield from listing(ruled.jaxpr, ruled.consts, exact=True)


def _has_own_rules(jaxpr: core.Jaxpr) -> bool:
    """Return whether a program has derivative rules of the user; those of JAX, as for ``relu``, do not count."""
    import jax

    def is_own(equation: core.JaxprEqn) -> bool:
        if not equation.primitive.name.startswith("custom_"):
            return False
        called = next(_inner(list(equation.params.values())), None)
        place = getattr(getattr(called, "debug_info", None), "func_src_info", None)
        return os.path.dirname(jax.__file__) not in str(place)

    return any(
        is_own(equation) or any(map(_has_own_rules, _inner(list(equation.params.values())))) for equation in jaxpr.eqns
    )


def _inner(option: object) -> Iterator[core.Jaxpr]:
    """Yield the programs in one parameter of a traced operation, such as the body of a loop, also from nested lists."""
    from jax.extend import core

    if isinstance(option, core.ClosedJaxpr):
        yield option.jaxpr
    elif isinstance(option, core.Jaxpr):
        yield option
    elif isinstance(option, tuple | list):
        for part in option:
            yield from _inner(part)
