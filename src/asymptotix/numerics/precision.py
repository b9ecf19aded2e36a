"""Double precision inside a scope of our own; JAX's global flag is never touched."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

from .threads import refuse_after_fork

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


class double_precision:
    """JAX computes in float64 inside the scope, and as before outside it.

    Works as a context manager and as a decorator, also of generator functions, and may be nested. The setting
    belongs to the thread. A ``with`` block must not contain a ``yield``: the caller would then run in float64
    until it asks for the next item. Decorate the generator function instead, which leaves the scope at every
    yield.

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

    def __init__(self) -> None:
        self._scopes: list[Any] = []

    def __enter__(self) -> None:
        import jax  # here, because importing JAX takes long and not every user of this module computes

        refuse_after_fork()
        scope = jax.enable_x64(True)
        scope.__enter__()
        self._scopes.append(scope)

    def __exit__(self, *error: Any) -> None:
        self._scopes.pop().__exit__(*error)

    def __call__(self, function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        if inspect.isgeneratorfunction(function):
            return _each_step_in_double_precision(function)

        @functools.wraps(function)
        def in_double_precision(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
            with double_precision():
                return function(*args, **kwargs)

        return in_double_precision


def _each_step_in_double_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with double_precision():
            steps = function(*args, **kwargs)
        resume, value = steps.send, None
        while True:
            try:
                with double_precision():
                    item = resume(value)
            except StopIteration as stop:
                return stop.value
            try:
                resume, value = steps.send, (yield item)
            except GeneratorExit:
                with double_precision():
                    steps.close()
                raise
            except BaseException as error:
                resume, value = steps.throw, error

    return generator
