"""Text listings of the operations in the user's functions, as JAX traces them; digests are made from the listings."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jax.extend import core
    from numpy.typing import ArrayLike


def program_listing(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Iterator[str]:
    """Yield, as lines of text, the operations and constants of a function of float64 arrays of these ``shapes``.

    Arrays of constants are rounded, because they may come from another machine. Conversions between precisions are left
    out, so that the listing is the same in 32 and 64 bits.
    """
    import jax

    given = [jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes]
    traced = jax.make_jaxpr(lambda *x: function(*x))(*given)  # a new function, because JAX keeps old traces
    yield from listing(traced.jaxpr, traced.consts, exact=False)


def listing(jaxpr: core.Jaxpr, constants: Sequence[ArrayLike], *, exact: bool) -> Iterator[str]:
    """Yield, as lines of text, the operations of a traced function and of all functions in it, such as loop bodies.

    Variables are numbered in order of appearance; ``constants`` are the values of ``jaxpr.constvars``. ``exact`` keeps
    all digits of constants, and all types; without it see :func:`program_listing`.
    """
    from jax.extend import core

    numbers: dict[core.Var, int] = {}
    next_number = itertools.count()

    def named(x: Any) -> str:
        if isinstance(x, core.Literal):
            return _number(x.val, exact)
        if x not in numbers:
            numbers[x] = next(next_number)
        return f"#{numbers[x]} {x.aval if exact else (x.aval.shape, x.aval.dtype.kind)}"

    yield f"program {[named(x) for x in (*jaxpr.constvars, *jaxpr.invars)]}"
    for constant in constants:
        yield _number(constant, exact)
    for equation in jaxpr.eqns:
        if not exact and _changes_precision(equation):
            made, given = equation.outvars[0], equation.invars[0]
            if not isinstance(given, core.Literal):
                numbers[made] = numbers[given]
                continue
        given = [named(x) for x in equation.invars]
        yield f"{equation.primitive.name} {given} {[named(x) for x in equation.outvars]}"
        for name, option in sorted(equation.params.items()):
            yield name
            yield from _option(option, exact)
    yield f"returns {[named(x) for x in jaxpr.outvars]}"


def _changes_precision(equation: Any) -> bool:
    """Return whether a traced operation only converts real numbers to real numbers, or integers to integers."""
    if equation.primitive.name != "convert_element_type":
        return False
    kinds = {x.aval.dtype.kind for x in (equation.invars[0], equation.outvars[0])}
    return len(kinds) == 1 and bool(kinds & {"f", "i"})


def _option(option: object, exact: bool) -> Iterator[str]:
    from jax.extend import core

    if isinstance(option, core.ClosedJaxpr):
        yield from listing(option.jaxpr, option.consts, exact=exact)
    elif isinstance(option, core.Jaxpr):
        yield from listing(option, (), exact=exact)
    elif isinstance(option, tuple | list):
        yield f"{len(option)}"
        for part in option:
            yield from _option(part, exact)
    elif hasattr(option, "__array__"):
        yield _number(option, exact)
    else:
        text = re.sub(r"0x[0-9a-f]+", "", str(option))  # addresses differ from trace to trace
        yield text if exact else re.sub(r"(float|int)(32|64)", r"\1", text)


def _number(value: object, exact: bool) -> str:
    """Return the shape of a constant, and its hash if ``exact``, else its entries (six digits in float arrays)."""
    import jax

    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.extended):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if exact:
        return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    if array.ndim == 0 or array.dtype.kind not in "fc":
        return f"{array.shape}{array.tolist()}"
    return f"{array.shape}" + " ".join(f"{x:.6g}" for x in array.ravel().tolist())
