"""Functions that the user writes, tried when a problem is made: a loss and a penalty.

What would end in a traceback of JAX, or in numbers without a meaning, is refused in one sentence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.compiled import compiled
from ...numerics.precision import double_precision
from ..model import AttentionIndex
from ..streams import TRIAL_MATRICES
from .losses import teacher_output

_TRIALS = 16
#: Eigenvalues at which a penalty is tried: zero, and sizes far beyond those of any learned matrix in units of a target.
_SIZES = np.concatenate([[0.0], np.geomspace(1e-3, 30.0, 60)])
#: Share of the largest slope or curvature that counts as rounding.
_ROUNDING = 1e-9


def try_loss(loss: Callable[..., Any], model: AttentionIndex) -> bool:
    """Whether a loss is convex in h as far as trials tell; raises where it is no loss at all.

    It is tried on symmetric Gaussian matrices h of the size T and on outputs y of a target of that kind.
    """
    return _once(_loss_trial, loss, model.tokens, model.activation, model.teacher_beta)


def try_penalty(penalty: Callable[..., Any], *, positive: bool) -> None:
    """Raise where a penalty r(t) is no convex function that grows: at t >= 0, or everywhere unless ``positive``."""
    _once(_penalty_trial, penalty, positive)


def _once(trial: Callable[..., Any], function: Callable[..., Any], *others: Any) -> Any:
    """A trial that is not repeated for every problem of a sweep, unless the function cannot be hashed."""
    try:
        hash(function)
    except TypeError:
        return trial.__wrapped__(function, *others)  # type: ignore[attr-defined]
    return trial(function, *others)


@functools.lru_cache(maxsize=64)
def _loss_trial(loss: Callable[..., Any], tokens: int, activation: str, beta: float) -> bool:
    teacher = teacher_output(AttentionIndex(tokens, activation=activation, beta=beta))
    first, second = np.triu_indices(tokens)
    R, h = np.random.default_rng(TRIAL_MATRICES).standard_normal((2, _TRIALS, len(first)))

    def symmetric(entries: Any) -> Any:
        upper = jnp.zeros((tokens, tokens)).at[first, second].set(entries)
        return upper + upper.T - jnp.diag(jnp.diag(upper))

    def of_entries(r: Any, entries: Any) -> Any:
        return loss(teacher(symmetric(r)), symmetric(entries))

    what = f"a JAX function loss(y, h) of two arrays of shape ({tokens}, {tokens}) that returns a number"
    _, slope, curvature = _tried("loss", what, loss, of_entries, R, h)
    if not abs(slope).max() > 0:
        raise ValueError(f"loss must depend on h, got {loss!r}, which does not")
    return bool(np.linalg.eigvalsh(curvature).min() >= -_ROUNDING * abs(curvature).max())


@functools.lru_cache(maxsize=64)
def _penalty_trial(penalty: Callable[..., Any], positive: bool) -> None:
    t = _SIZES if positive else np.concatenate([-_SIZES[:0:-1], _SIZES])
    what = "a JAX function r(t) of one number that returns a number"
    value, slope, _ = _tried("penalty", what, penalty, lambda _, x: penalty(x[0]), 0 * t[:, None], t[:, None])
    slope = slope[:, 0]
    # Of a convex function a secant is at least as steep as the tangent at its left end, and at most at its right.
    steps = np.stack([slope[:-1], np.diff(value) / np.diff(t), slope[1:]])
    falls = np.flatnonzero((np.diff(steps, axis=0) < -_ROUNDING * abs(slope).max() - 1e-7 * abs(steps[1])).any(axis=0))
    if falls.size:
        left, right = t[falls[0]], t[falls[0] + 1]
        raise ValueError(
            f"penalty must be convex, or the learned matrix is not unique; got {penalty!r}, which is not between "
            f"t = {left:.3g} and {right:.3g}: slopes {slope[falls[0]]:.3g} and {slope[falls[0] + 1]:.3g}"
        )
    if not slope[-1] > 0 or not (positive or slope[0] < 0):
        side = "t = 30" if not slope[-1] > 0 else "t = -30"
        raise ValueError(f"penalty must grow towards large |t|, got {penalty!r}, which does not at {side}")


def _tried(
    name: str, what: str, function: Any, of_sample: Callable[[Any, Any], Any], *samples: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, slopes and curvatures (those of a loss) of a function in the second argument at several samples."""

    def scalar(*sample: Any) -> Any:
        value = jnp.asarray(of_sample(*sample))
        if value.shape != ():
            raise _NoNumberError(f"an array of shape {value.shape}")
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise _NoNumberError(f"a number of the type {value.dtype}")
        return value

    def all_of(*sample: Any) -> Any:
        slope = jax.grad(scalar, argnums=1)
        curvature = jax.jacfwd(slope, argnums=1) if name == "loss" else lambda *_: jnp.zeros((1, 1))
        return scalar(*sample), slope(*sample), curvature(*sample)

    try:
        with double_precision():
            found = [np.asarray(part) for part in compiled(jax.vmap(all_of))(*samples)]
            again = np.asarray(compiled(jax.vmap(lambda *sample: scalar(*sample)))(*samples))  # traced anew
    except _NoNumberError as error:
        raise ValueError(f"{name} must be {what}; got {function!r}, which returns {error}") from None
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{name} must be {what}; got {function!r}, which raised {type(error).__name__}: {reason}"
        ) from error
    for part, words in zip(found, ("a finite value", "a finite slope", "a finite curvature"), strict=True):
        if not np.isfinite(part).all():
            bad = int(np.argwhere(~np.isfinite(part))[0][0])
            at = f" at t = {samples[1][bad, 0]:.3g}" if name == "penalty" else ""
            raise ValueError(f"{name} must have {words}{at}, got {function!r}, which has {part[bad].ravel()[0]}")
    if abs(again - found[0]).max() > _ROUNDING * abs(found[0]).max():
        raise ValueError(f"{name} must give the same number whenever it is called, got {function!r}, which does not")
    return found[0], found[1], found[2]


class _NoNumberError(Exception):
    """A function returned something else than a real number."""
