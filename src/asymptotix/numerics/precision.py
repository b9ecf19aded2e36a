"""Scopes in which JAX and NumPy have the settings and the precision of this library, whatever the user has set.

A user's settings may make JAX refuse to promote ranks or types, stop at every NaN, or draw other random numbers from
the same seed. They may make NumPy raise where a number underflows. Such settings are meant for the user's own
programs. Inside a scope both libraries have their defaults, also for the user's functions that this library calls.
The scopes never change JAX's global flags.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

from . import interrupts

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

#: Settings of JAX and their values inside a scope. Settings that change no number stay as the user has them.
OF_JAX = {
    "numpy_rank_promotion": "allow",
    "numpy_dtype_promotion": "standard",
    "threefry_partitionable": True,
    "default_prng_impl": "threefry2x32",
    "debug_nans": False,
    "debug_infs": False,
}
OF_NUMPY: dict[str, Any] = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


class _Here(threading.local):
    """Flags per thread: whether it is inside a scope for NumPy, and for JAX. A scope inside a scope does not repeat the
    settings, so that an ``errstate`` in between keeps its effect.
    """

    numpy = False
    jax = False


_here = _Here()


class own_settings:
    """Scope in which JAX and NumPy have the settings of this library; the user's settings hold outside it.

    The scope is a context manager and a decorator, also of generator functions, and may be nested. The settings belong
    to one thread; :func:`carried` takes them to another thread. A ``with`` block must not contain a ``yield``: the
    caller would then run with these settings until it asks for the next item. Decorate the generator function instead:
    the decorator leaves the scope at every yield.

    Examples
    --------
    >>> import numpy as np
    >>> before = np.seterr(under="raise")
    >>> with own_settings():
    ...     np.exp(-np.array([1000.0]))
    array([0.])
    >>> _ = np.seterr(**before)
    """

    #: Whether JAX computes in 64 bits inside the scope; None leaves JAX's precision unchanged.
    x64: bool | None = None

    def __init__(self) -> None:
        self._scopes: list[ExitStack] = []

    def __enter__(self) -> Self:
        with ExitStack() as scope:
            if not _here.numpy:
                scope.enter_context(np.errstate(**OF_NUMPY))
                _enter("numpy", scope)
            # JAX has settings only once it is imported. The import is slow, and not every problem needs JAX.
            if self.x64 is not None or "jax" in sys.modules:
                self._enter_jax(scope)
            self._scopes.append(scope.pop_all())
        return self

    def _enter_jax(self, scope: ExitStack) -> None:
        import jax

        if not _here.jax:
            for name, value in OF_JAX.items():
                scope.enter_context(getattr(jax, name)(value))
            _enter("jax", scope)
        if self.x64 is not None:
            scope.enter_context(jax.enable_x64(self.x64))

    def __exit__(self, *error: Any) -> None:
        self._scopes.pop().__exit__(*error)

    @classmethod
    def quietly(cls) -> own_settings:
        """Return a new scope that does not check for signals when it is entered, for the steps of a generator."""
        return cls()

    def __call__(self, function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        if inspect.isgeneratorfunction(function):
            return _each_step_inside(type(self), function)

        @functools.wraps(function)
        def inside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
            with type(self)():
                return function(*args, **kwargs)

        return inside


class double_precision(own_settings):
    """Scope of :class:`own_settings` in which JAX computes in float64.

    Entering the scope is a point between two steps of work, so it checks for signals to stop.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> with double_precision():
    ...     jnp.ones(2).dtype
    dtype('float64')

    >>> @double_precision()
    ... def halves(n):
    ...     for k in range(n):
    ...         yield jnp.asarray(k / 2)
    >>> [half.dtype.name for half in halves(2)]
    ['float64', 'float64']
    """

    x64 = True
    _looks = True

    @classmethod
    def quietly(cls) -> double_precision:
        scope = cls()
        scope._looks = False
        return scope

    def __enter__(self) -> Self:
        refuse_after_fork()
        if self._looks:
            interrupts.check()
        return super().__enter__()


class single_precision(double_precision):
    """Scope of :class:`own_settings` in which JAX computes in float32, whatever the user has set. For experiments."""

    x64 = False


def carried(work: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return a function that calls ``work``, in any thread, with the settings that this thread has now."""
    if not _here.numpy:
        return work
    made = _settings_with(sys.modules["jax"].config.jax_enable_x64 if _here.jax else None)

    @functools.wraps(work)
    def inside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        with made():
            return work(*args, **kwargs)

    return inside


@functools.cache
def _settings_with(x64: bool | None) -> type[own_settings]:
    return type("settings_with", (own_settings,), {"x64": x64})


def _enter(library: str, scope: ExitStack) -> None:
    """Mark this thread as inside a scope of ``library``, "numpy" or "jax", until the stack ``scope`` closes."""
    setattr(_here, library, True)
    scope.callback(setattr, _here, library, False)


def _each_step_inside(settings: type[own_settings], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with settings.quietly():
            steps = function(*args, **kwargs)
        resume, value = steps.send, None
        while True:
            try:
                with settings.quietly():
                    item = resume(value)
            except StopIteration as stop:
                return stop.value
            try:
                resume, value = steps.send, (yield item)
            except GeneratorExit:
                with settings.quietly():
                    steps.close()
                raise
            except BaseException as error:
                resume, value = steps.throw, error

    return generator


_forked = False  # whether an ancestor of this process had used JAX when it forked


def refuse_after_fork() -> None:
    """Raise RuntimeError in a process that was forked after JAX was used. The message says what to do instead."""
    if _forked:
        raise RuntimeError(
            "this process was forked after JAX was used, and JAX would hang in it: start workers with "
            "multiprocessing.get_context('spawn'), or fork them before the first call"
        )


def _look_back() -> None:
    global _forked
    _forked = _forked or _jax_runs()


def _jax_runs() -> bool:
    """Return whether JAX has started its threads. A process that has only imported JAX can be forked."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None:
        return False
    # The function is not public. In a version of JAX without it, imported counts as used.
    return getattr(bridge, "backends_are_initialized", lambda: True)()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look_back)
