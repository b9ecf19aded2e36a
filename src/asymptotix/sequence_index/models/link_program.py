"""Exact properties of a link that follow from its traced program, without an evaluation at any point.

Three properties are read off the list of operations.

- Whether all operations are analytic. A property of the link on some interval (constant, affine) then holds everywhere.
- Which branches the other operations take: the larger side of a maximum, the integer of ``floor``. On all indices with
  the same branches the link is one analytic function, so it is constant on all of them or on none; values that are
  equal on some of them only are equal by rounding.
- Which operations at the end of the program are reversible: a strictly monotone function of an output carries the same
  information. Without its reversible operations ``tanh(4 z)`` is ``z``, whose large values differ in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from ...numerics.arrays import Array
from ...numerics.precision import double_precision
from .scaled_volume import scaled_log_volume

#: Calls of functions whose operations become part of the program itself.
_CALLS = {"jit", "pjit", "closed_call", "core_call"}
#: Operations that move numbers without losing any.
_MOVES = {"reshape", "squeeze", "broadcast_in_dim", "transpose", "rev", "copy", "copy_p", "stack", "concatenate"}
_ANALYTIC = _MOVES | {
    "add", "add_any", "asinh", "atan", "cos", "cosh", "cumsum", "div", "dot_general", "erf", "erfc", "exp", "exp2",
    "expm1", "integer_pow", "iota", "log1p", "logistic", "mul", "neg", "reduce_prod", "reduce_sum", "sin", "sinh",
    "slice", "split", "square", "sub", "tanh",
}  # fmt: skip
#: Analytic functions with custom derivatives; the operations in their programs are not all analytic.
_ANALYTIC_FUNCTIONS = {"logaddexp", "logsumexp", "_softmax", "softmax", "log_softmax"}
#: Operations with branches, and the numbers that identify the branch taken, as a function of arguments and result.
_BRANCHES: dict[str, Callable[[list[Any], jax.Array, dict[str, Any]], jax.Array]] = {
    "abs": lambda given, made, _: given[0] > 0,
    "argmax": lambda given, made, _: made,
    "argmin": lambda given, made, _: made,
    "cbrt": lambda given, made, _: given[0] > 0,
    "ceil": lambda given, made, _: made,
    "clamp": lambda given, made, _: 2 * (given[1] > given[2]) + (given[1] < given[0]),
    "floor": lambda given, made, _: made,
    "is_finite": lambda given, made, _: made,
    "max": lambda given, made, _: given[0] > given[1],
    "min": lambda given, made, _: given[0] > given[1],
    "reduce_max": lambda given, made, options: given[0] == jnp.max(given[0], axis=options["axes"], keepdims=True),
    "reduce_min": lambda given, made, options: given[0] == jnp.min(given[0], axis=options["axes"], keepdims=True),
    "rem": lambda given, made, _: jnp.round((given[0] - made) / given[1]),
    "round": lambda given, made, _: made,
    "select_n": lambda given, made, _: given[0],
    "sign": lambda given, made, _: made,
    **dict.fromkeys(("eq", "ge", "gt", "le", "lt", "ne"), lambda given, made, _: made),
}
#: Operations that read or write at positions, and which of their arguments are the positions.
_PLACES = {
    "dynamic_slice": slice(1, None), "dynamic_update_slice": slice(2, None), "gather": slice(1, 2),
    "scatter": slice(1, 2), "scatter-add": slice(1, 2),
}  # fmt: skip
#: Operations on the results of branches, which add no branches of their own.
_LOGIC = {"and", "not", "or", "xor", "stop_gradient"}

#: log|f'(x)| of strictly monotone functions f of one number, finite also where f' itself underflows.
_LOG_SLOPES: dict[str, Callable[[Array], Array]] = {
    "neg": jnp.zeros_like,
    "copy": jnp.zeros_like,
    "asinh": lambda x: -0.5 * jnp.log1p(x**2),
    "atan": lambda x: -jnp.log1p(x**2),
    "cbrt": lambda x: -np.log(3) - 2 / 3 * jnp.log(jnp.abs(x)),
    "erf": lambda x: np.log(2 / np.sqrt(np.pi)) - x**2,
    "erfc": lambda x: np.log(2 / np.sqrt(np.pi)) - x**2,
    "exp": lambda x: x,
    "exp2": lambda x: x * np.log(2) + np.log(np.log(2)),
    "expm1": lambda x: x,
    "log": lambda x: -jnp.log(x),
    "log1p": lambda x: -jnp.log1p(x),
    "logistic": lambda x: -jnp.logaddexp(x, 0.0) - jnp.logaddexp(-x, 0.0),
    "rsqrt": lambda x: -np.log(2) - 1.5 * jnp.log(x),
    "sinh": lambda x: jnp.logaddexp(x, -x) - np.log(2),
    "sqrt": lambda x: -np.log(2) - 0.5 * jnp.log(x),
    "tanh": lambda x: 2 * (np.log(2) - jnp.logaddexp(x, -x)),
}


class Step(NamedTuple):
    """One reversible operation on a number: the function f and the function log|f'|."""

    apply: Callable[[Array], Array]
    log_slope: Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Leaf:
    """An intermediate result that the output determines, and the reversible steps from it to the output."""

    variable: core.Var
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class LinkProgram:
    """A link R^n -> R^k as a list of operations without calls, every repeated operation once.

    Attributes
    ----------
    jaxpr : ClosedJaxpr
    leaves : tuple of Leaf
        Without noise the leaves determine the output, and the output determines the leaves.
    analytic : bool
        Whether the operations prove that the link is an analytic function of its indices.
    branching : bool
        Whether the operations prove that the link is analytic among indices with the same :meth:`branches`.
    same : dict
        Variables whose computation repeats that of an earlier variable, and this earlier variable.
    plain : bool
        Whether numbers of the output and numbers of the leaves correspond one to one, so that volumes factorise.
    """

    jaxpr: core.ClosedJaxpr
    leaves: tuple[Leaf, ...]
    analytic: bool
    branching: bool
    same: dict[core.Var, core.Var]
    plain: bool

    @classmethod
    @double_precision()
    def of(cls, link: Callable[[jax.Array], jax.Array], size: int) -> LinkProgram:
        """Trace a link of ``size`` indices and return its program."""
        traced = jax.make_jaxpr(link)(jax.ShapeDtypeStruct((size,), jnp.float64))
        flat = jax.make_jaxpr(lambda z: _evaluated(traced, [z]))(jax.ShapeDtypeStruct((size,), jnp.float64))
        same = _same_values(flat)
        depends = _dependent(flat.jaxpr)
        found = [leaf for one in flat.jaxpr.outvars for leaf in _leaves(one, _Trace(flat, same, depends))]
        distinct = {id(leaf.variable): leaf for leaf in found}
        needed = _needed(flat, [leaf.variable for leaf in distinct.values()], same)
        leaves = tuple(leaf for leaf in distinct.values() if leaf.variable in needed)
        outputs = sum(_size(one) for one in flat.jaxpr.outvars)
        plain = len(leaves) == len(found) and sum(_size(leaf.variable) for leaf in leaves) == outputs
        return cls(flat, leaves, _is_analytic(flat.jaxpr), _is_analytic(flat.jaxpr, branching=True), same, plain)

    def branches(self, z: jax.Array) -> jax.Array:
        """Return numbers (b,) that identify the branches taken at indices z (n,)."""
        taken: list[jax.Array] = []
        _environment(self.jaxpr, {self.jaxpr.jaxpr.invars[0]: z}, taken)
        return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(one).astype(float) for one in taken)])

    def shown(self, z: jax.Array) -> jax.Array:
        """Return the values of all leaves at indices z (n,), joined into one vector (m,)."""
        values = _environment(self.jaxpr, {self.jaxpr.jaxpr.invars[0]: z})
        return jnp.concatenate([jnp.ravel(values[leaf.variable]).astype(z.dtype) for leaf in self.leaves])

    def log_volume(self, shown: Array, frame: Any = None) -> jax.Array:
        """Return log sqrt(det F^T H^T H F) with H = dy/du, the differential of the outputs with respect to leaves u.

        Parameters
        ----------
        shown : array (m,)
            The leaves u.
        frame : array (m, r), optional
            Directions F in which the leaves can move. By default the unit matrix.
        """
        if self.plain and frame is None:
            return jnp.sum(self._log_slopes(shown))
        frame = jnp.eye(len(shown)) if frame is None else frame
        if self.plain:
            return scaled_log_volume(self._log_slopes(shown), frame)
        inner = self._inner
        which, log_slopes = self._ends(inner, self._values(shown))
        H = jax.jacfwd(lambda u: self._joined(inner, self._values(u)))(shown)
        return scaled_log_volume(log_slopes, jnp.where(which[:, None] >= 0, (H @ frame)[which], 0.0))

    def _log_slopes(self, shown: Array) -> jax.Array:
        """Return log|dy/du| (m,) at values ``shown`` (m,) of the leaves u, if each output depends on one number u."""
        found = []
        for leaf, x in zip(self.leaves, self._parts(shown), strict=True):
            total = jnp.zeros(x.shape)
            for step in leaf.steps:
                total = total + step.log_slope(x)
                x = step.apply(x)
            found.append(jnp.ravel(total))
        return jnp.concatenate(found)

    def _parts(self, shown: Array) -> list[jax.Array]:
        """Split the vector (m,) of all leaves into one array per leaf, in the leaf's shape."""
        ends = np.cumsum([_size(leaf.variable) for leaf in self.leaves])
        return [
            part.reshape(leaf.variable.aval.shape)  # pyright: ignore[reportAttributeAccessIssue]
            for part, leaf in zip(jnp.split(shown, ends[:-1]), self.leaves, strict=True)
        ]

    def _values(self, shown: Array) -> dict[core.Var, Array]:
        """Return variable -> value, for all variables of the program that the values (m,) of the leaves determine."""
        known = {leaf.variable: part for leaf, part in zip(self.leaves, self._parts(shown), strict=True)}
        known |= {variable: known[first] for variable, first in self.same.items() if first in known}
        return _environment(self.jaxpr, known)

    @property
    def _inner(self) -> list[core.Var]:
        """Variables to which the outputs are reduced by undoing reversible operations; some are functions of leaves."""
        trace = _Trace(self.jaxpr, self.same, _dependent(self.jaxpr.jaxpr))
        found = [leaf.variable for one in self.jaxpr.jaxpr.outvars for leaf in _leaves(one, trace)]
        return list(dict.fromkeys(found))

    def _joined(self, inner: list[core.Var], values: dict[core.Var, Array]) -> jax.Array:
        """Return the values of the ``inner`` variables, joined into one vector (K,)."""
        return jnp.concatenate([jnp.ravel(values[variable]).astype(float) for variable in inner])

    def _ends(self, inner: list[core.Var], values: dict[core.Var, Array]) -> tuple[jax.Array, jax.Array]:
        """Return two arrays (k,): for each output f(x), the position of x in :meth:`_joined`, and log|f'(x)|.

        The position is -1 for a constant output. ``values`` are the values of all variables.
        """
        depends = _dependent(self.jaxpr.jaxpr)
        starts = dict(zip(inner, np.cumsum([0, *(_size(variable) for variable in inner)]), strict=False))

        def back(variable: Any) -> tuple[jax.Array, jax.Array]:
            shape = variable.aval.shape
            if isinstance(variable, core.Literal) or variable not in depends:
                return jnp.full(shape, -1), jnp.zeros(shape)
            variable = self.same.get(variable, variable)
            if variable in starts:
                return starts[variable] + jnp.arange(math.prod(shape)).reshape(shape), jnp.zeros(shape)
            made = next(one for one in self.jaxpr.jaxpr.eqns if variable in one.outvars)
            moving = [x for x in made.invars if not isinstance(x, core.Literal) and x in depends]
            if _keeps_numbers(made):
                return back(moving[0])
            if made.primitive.name in _MOVES:
                parts = zip(*map(back, made.invars), strict=True)
                which, log_slopes = (made.primitive.bind(*part, **made.params) for part in parts)
                return which, log_slopes
            step = _reversible(made, moving, self.jaxpr)
            assert step is not None  # as in the search for leaves
            which, log_slopes = back(moving[0])
            return which, log_slopes + step.log_slope(_value(values, moving[0]))

        ends = [back(one) for one in self.jaxpr.jaxpr.outvars]
        which, log_slopes = (jnp.concatenate([jnp.ravel(one) for one in column]) for column in zip(*ends, strict=True))
        return which, log_slopes


class _Trace(NamedTuple):
    jaxpr: core.ClosedJaxpr
    same: dict[core.Var, core.Var]
    depends: set[core.Var]


def _evaluated(closed: core.ClosedJaxpr, given: Sequence[Any], taken: list[jax.Array] | None = None) -> list[Any]:
    """Return the results of a traced function for arguments ``given``; append branches to the list ``taken``."""
    values = _environment(closed, dict(zip(closed.jaxpr.invars, given, strict=True)), taken)
    return [_value(values, variable) for variable in closed.jaxpr.outvars]


def _environment(
    closed: core.ClosedJaxpr, values: Mapping[core.Var, Array], taken: list[jax.Array] | None = None
) -> dict[core.Var, Array]:
    """Return variable -> value for the variables in ``values`` and all that they determine.

    The numbers that identify the branches taken are appended to the list ``taken``.
    """
    values = {**dict(zip(closed.jaxpr.constvars, closed.consts, strict=True)), **values}
    for equation in closed.jaxpr.eqns:
        if any(variable in values for variable in equation.outvars):
            continue
        if not all(isinstance(variable, core.Literal) or variable in values for variable in equation.invars):
            continue
        given = [_value(values, variable) for variable in equation.invars]
        name, options = equation.primitive.name, equation.params
        if name in _CALLS or (taken is not None and name == "custom_jvp_call"):
            made = _evaluated(options["jaxpr" if "jaxpr" in options else "call_jaxpr"], given, taken)
        else:
            bound = equation.primitive.get_bind_params(options)
            functions, options = bound if isinstance(bound, tuple) else ((), bound)  # a pair before JAX 0.10
            made = equation.primitive.bind(*functions, *given, **options)
            made = made if equation.primitive.multiple_results else [made]
        if taken is not None and name in _BRANCHES:
            taken.append(_BRANCHES[name](given, made[0], equation.params))
        values.update(zip(equation.outvars, made, strict=True))
    return values


def _value(values: dict[core.Var, Array], variable: core.Var | core.Literal) -> Any:
    return variable.val if isinstance(variable, core.Literal) else values[variable]


def _dependent(jaxpr: core.Jaxpr) -> set[core.Var]:
    """Return the variables that depend on the indices."""
    found = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(not isinstance(x, core.Literal) and x in found for x in equation.invars):
            found.update(equation.outvars)
    return found


def _same_values(closed: core.ClosedJaxpr) -> dict[core.Var, core.Var]:
    """Return a mapping from variables to the first variable with the same computation, or to themselves."""
    first: dict[object, list[core.Var]] = {}
    same: dict[core.Var, core.Var] = {}
    for equation in closed.jaxpr.eqns:
        inputs = tuple(
            ("number", str(x.val), str(x.aval)) if isinstance(x, core.Literal) else id(same.get(x, x))
            for x in equation.invars
        )
        options = tuple((name, str(value)) for name, value in sorted(equation.params.items()))
        key = (equation.primitive.name, inputs, options)
        if any(callable(value) for value in equation.params.values()):
            continue  # a custom function may compute anything
        known = first.setdefault(key, equation.outvars)
        same.update(zip(equation.outvars, known, strict=True))
    return same


def _leaves(variable: core.Var | core.Literal, trace: _Trace, steps: tuple[Step, ...] = ()) -> list[Leaf]:
    """Return the leaves of a variable: the variables that remain when the reversible operations before it are undone.

    ``steps`` are reversible operations that follow the variable; they become part of every leaf's steps.
    """
    if isinstance(variable, core.Literal) or variable not in trace.depends:
        return []
    variable = trace.same.get(variable, variable)
    made = next((one for one in trace.jaxpr.jaxpr.eqns if variable in one.outvars), None)
    if made is None:
        return [Leaf(variable, steps)]
    moving = [x for x in made.invars if not isinstance(x, core.Literal) and x in trace.depends]
    if made.primitive.name in _MOVES or _keeps_numbers(made):
        # The operation changes places and shapes of numbers; only steps that work for every shape may follow it.
        if all(_shapeless(step) for step in steps):
            return [leaf for one in moving for leaf in _leaves(one, trace, steps)]
        return [Leaf(variable, steps)]
    step = _reversible(made, moving, trace.jaxpr)
    return [Leaf(variable, steps)] if step is None else _leaves(moving[0], trace, (step, *steps))


def _shapeless(step: Step) -> bool:
    return not getattr(step.apply, "shaped", False)


def _keeps_numbers(equation: Any) -> bool:
    """Return whether an operation only converts numbers to another type, without losing digits."""
    if equation.primitive.name != "convert_element_type":
        return False
    old, new = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    return bool(jnp.issubdtype(new, jnp.floating)) and np.dtype(new).itemsize >= min(8, np.dtype(old).itemsize)


def _reversible(equation: core.JaxprEqn, moving: list[Any], closed: core.ClosedJaxpr) -> Step | None:
    """Return the operation as a step if it is an elementwise, strictly monotone function; else None.

    ``moving`` are its arguments that depend on the indices; ``closed`` is the program, for constant arguments.
    """
    if len(moving) != 1 or len(equation.outvars) != 1 or not jnp.issubdtype(moving[0].aval.dtype, jnp.floating):
        return None
    name, options = equation.primitive.name, equation.params
    if len(equation.invars) == 1 and name in _LOG_SLOPES:
        return Step(lambda x: equation.primitive.bind(x, **options), _LOG_SLOPES[name])
    if name == "integer_pow" and options["y"] % 2 == 1:
        y = options["y"]
        return Step(lambda x: x**y, lambda x: np.log(abs(y)) + (y - 1) * jnp.log(jnp.abs(x)))
    if len(equation.invars) != 2:
        return None
    first = moving[0] is equation.invars[0]
    other = equation.invars[1 if first else 0]
    constant = np.asarray(other.val if isinstance(other, core.Literal) else _environment(closed, {})[other], float)
    if not np.isfinite(constant).all():
        return None
    if constant.ndim and (constant == constant.flat[0]).all():
        constant = constant.reshape(-1)[0]  # the same for numbers of any shape
    return _with_constant(name, constant, first)


def _with_constant(name: str, c: np.ndarray, first: bool) -> Step | None:
    """Return an operation of a number and a constant ``c`` as a step; None if it is not reversible.

    ``first``: the number is the first argument, the constant the second.
    """
    if name in ("add", "sub"):
        sign = 1.0 if first or name == "add" else -1.0
        shift = -c if first and name == "sub" else c
        return _step(lambda x: sign * x + shift, jnp.zeros_like, c)
    if name == "pow" and first and c.ndim == 0:
        # An even power of a number of either sign is not reversible; a power with a fractional exponent has base > 0.
        if c == np.round(c) and c % 2 == 0:
            return None
        return _step(lambda x: x**c, lambda x: np.log(abs(c)) + (c - 1) * jnp.log(jnp.abs(x)), c)
    if not np.all(c != 0):
        return None
    size = np.log(np.abs(c))
    if name == "mul":
        return _step(lambda x: c * x, lambda x: size, c)
    if name == "div" and first:
        return _step(lambda x: x / c, lambda x: -size, c)
    if name == "div":
        return _step(lambda x: c / x, lambda x: size - 2 * jnp.log(jnp.abs(x)), c)
    return None


def _step(apply: Callable[[Array], Array], log_slope: Callable[[Array], Array], constant: np.ndarray) -> Step:
    apply.shaped = constant.ndim > 0  # type: ignore[attr-defined]
    return Step(apply, log_slope)


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


def _needed(closed: core.ClosedJaxpr, leaves: list[core.Var], same: Mapping[core.Var, core.Var]) -> set[core.Var]:
    """Return the leaves that are no functions of other leaves; ``same`` maps repeated variables to the first one."""
    kept = list(leaves)
    constants = {same.get(x, x) for x in _environment(closed, {})}
    for leaf in reversed(leaves):
        known = {*constants, *(other for other in kept if other is not leaf)}
        for equation in closed.jaxpr.eqns:
            if all(isinstance(x, core.Literal) or same.get(x, x) in known for x in equation.invars):
                known.update(same.get(x, x) for x in equation.outvars)
        if leaf in known:
            kept = [other for other in kept if other is not leaf]
    return set(kept)


def _is_analytic(jaxpr: core.Jaxpr, branching: bool = False) -> bool:
    """Return whether all operations that depend on the indices are analytic; with ``branching``, on every branch."""
    depends = _dependent(jaxpr)
    return all(
        _is_known(one, depends, branching)
        for one in jaxpr.eqns
        if any(not isinstance(x, core.Literal) and x in depends for x in one.invars)
    )


def _is_known(equation: Any, depends: set[core.Var], branching: bool) -> bool:
    name, options = equation.primitive.name, equation.params
    if name in _PLACES:  # numbers from fixed places
        return not any(x in depends for x in equation.invars[_PLACES[name]] if not isinstance(x, core.Literal))
    if name == "select_n" and equation.invars[0] not in depends:
        return True
    if name == "custom_jvp_call":
        inner = options["call_jaxpr"].jaxpr
        return options.get("name") in _ANALYTIC_FUNCTIONS or _is_analytic(inner, branching)
    if name in _CALLS:
        return _is_analytic(options["jaxpr"].jaxpr, branching)
    if name == "convert_element_type":
        old = equation.invars[0].aval.dtype
        real = jnp.issubdtype(options["new_dtype"], jnp.floating)
        return bool(real or (branching and not jnp.issubdtype(old, jnp.floating)))
    return name in _ANALYTIC or (branching and (name in _BRANCHES or name in _LOGIC))
