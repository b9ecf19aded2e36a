"""Trials of the functions that a user writes, a loss and a penalty, when a problem is made.

A function that would end in a traceback of JAX, or in meaningless numbers, is refused with a one-sentence error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.precision import double_precision
from ...numerics.programs.compiled import compiled
from ...numerics.programs.snapshot import Snapshot, snapshot
from ..model import AttentionIndex
from ..streams import TRIAL_MATRICES
from .losses import teacher_output

#: Number of random matrices at which a loss is tried.
_TRIALS = 16
#: Eigenvalues at which a penalty is tried, in units of the target's: zero, and up to far beyond any learned eigenvalue.
_SIZES = np.concatenate([[0.0], np.geomspace(1e-3, 30.0, 60)])
#: Largest relative error by rounding of slopes and curvatures. Smaller: valid functions may be refused.
_ROUNDING = 1e-9
#: Number of bisections that reduce an interval of four percent to neighbouring floats, and the interval around zero to
#: less than 1e-26.
_HALVINGS = 60
#: Smallest relative change of a slope between neighbouring floats that counts as a jump, a million roundings.
_JUMP = 1e-9
#: Distance from a kink t at which its one-sided slopes are taken: relative to t, and absolute for a kink at zero.
_ASIDE, _TINY = 1e-13, 1e-30


def try_loss(loss: Callable[..., Any], model: AttentionIndex) -> bool:
    """Return whether loss(y, h) is convex in h in all trials; raise ValueError if it is not a valid loss.

    The trials use symmetric Gaussian T x T matrices h, as large as those of the target, and outputs y of a target of
    the same size.
    """
    return _loss_trial_on(loss, model).convex


def unit_of_loss(loss: Callable[..., Any], model: AttentionIndex) -> float:
    """Return the unit of a loss(y, h): its mean change from h = 0 to an h as large as the target's, a power of two.

    In this unit the loss is of order one, independent of the user's unit.
    """
    return _loss_trial_on(loss, model).unit


def try_penalty(penalty: Callable[..., Any], *, positive: bool, size: float = 1.0) -> None:
    """Raise ValueError unless a penalty r(t) is convex and grows with |t|, for all t or, if ``positive``, for t >= 0.

    ``size`` is the size of the target's eigenvalues.
    """
    _penalty_trial(snapshot(penalty, ()), positive, size)


class LossTrial(NamedTuple):
    """Results of the trials of a loss: whether it is convex in all of them, and its :func:`unit_of_loss`."""

    convex: bool
    unit: float


def _loss_trial_on(loss: Callable[..., Any], model: AttentionIndex) -> LossTrial:
    size = float(2.0 ** np.round(0.5 * np.log2(model.noisy_signal)))  # rounded: a sweep needs few trials
    T = model.tokens
    known = snapshot(loss, (T, T), (T, T))
    return _loss_trial(known, T, model.activation, model.teacher_beta, size)


class PenaltyFunctions(NamedTuple):
    """A penalty r(t), r'(t) and r''(t), elementwise in double precision, and the places where r is not smooth."""

    value: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    curvature: Callable[[np.ndarray], np.ndarray]
    kinks: tuple[tuple[float, float, float], ...]
    """Tuples (t, r' below t, r' above t), ascending, for jumps of r' and, with equal slopes, for jumps of r''."""


def penalty_functions(penalty: Callable[..., Any]) -> PenaltyFunctions:
    """Return the user's penalty r(t) with its derivatives and kinks, compiled once."""
    return _penalty_functions(snapshot(penalty, ()))


# These caches identify a function by its snapshot, so that a function that has changed is tried and compiled again.


@functools.lru_cache(maxsize=32)
def _penalty_functions(penalty: Snapshot) -> PenaltyFunctions:
    slope = jax.grad(penalty)

    def in_double(f: Callable[..., Any]) -> Callable[[np.ndarray], np.ndarray]:
        elementwise = compiled(jax.vmap(f))

        @double_precision()
        def evaluate(t: np.ndarray) -> np.ndarray:
            return np.asarray(elementwise(np.asarray(t, float)))

        return evaluate

    value, slopes, curvature = in_double(penalty), in_double(slope), in_double(jax.grad(slope))
    return PenaltyFunctions(value, slopes, curvature, _kinks(slopes, curvature))


def _kinks(slope: Callable[[np.ndarray], np.ndarray], curvature: Callable[[np.ndarray], np.ndarray]) -> tuple:
    """Return the jumps (t, r' below t, r' above t) of r' and r'', ascending, at 0 and for |t| from 1e-9 to 1e9.

    They are found by bisection of intervals of four percent. At most one jump is found in each interval.
    """
    side = np.geomspace(1e-9, 1e9, 9 * 2 * 60 + 1)
    grid = np.concatenate([-side[::-1], [0.0], side])
    ends = np.maximum(abs(grid[1:]), abs(grid[:-1]))
    slopes = np.maximum(abs(slope(grid))[1:], abs(slope(grid))[:-1])
    found: dict[float, tuple[float, float, float]] = {}
    # Far out a slope may be constant up to rounding, so a jump of the curvature counts only if it would change the
    # slope. Where slope and curvature both jump, the jump of the slope is kept.
    for f, least in ((curvature, slopes / ends), (slope, slopes)):
        low, high = _narrowed(f, grid)
        jump, size = abs(f(high) - f(low)), abs(f(grid))
        sizes = np.maximum(np.maximum(size[1:], size[:-1]), least)
        for k in np.flatnonzero(jump > _JUMP * np.maximum(sizes, np.finfo(float).tiny)):
            t = 0.0 if low[k] <= 0 <= high[k] else float(high[k])
            aside = max(_ASIDE * abs(t), _TINY)  # at the kink itself JAX may give the mean of both slopes
            before, at, after = (float(side) for side in slope(np.array([t - aside, t, t + aside])))
            for known in [other for other in found if abs(other - t) <= 2 * aside]:  # found in the next interval too
                del found[known]
            found[t] = (t, before, after) if f is slope else (t, at, at)
    return tuple(found[t] for t in sorted(found))


def _narrowed(f: Callable[[np.ndarray], np.ndarray], grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bisect every grid interval to neighbouring floats, keeping the half where f changes more; return both ends."""
    low, high = grid[:-1].copy(), grid[1:].copy()
    left, right = f(low), f(high)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        at = f(middle)
        first = abs(at - left) >= abs(right - at)
        low, left = np.where(first, low, middle), np.where(first, left, at)
        high, right = np.where(first, middle, high), np.where(first, at, right)
    return low, high


@functools.lru_cache(maxsize=64)
def _loss_trial(loss: Snapshot, tokens: int, activation: str, beta: float, size: float) -> LossTrial:
    teacher = teacher_output(AttentionIndex(tokens, activation=activation, beta=beta))
    first, second = np.triu_indices(tokens)
    R, h = size * np.random.default_rng(TRIAL_MATRICES).standard_normal((2, _TRIALS, len(first)))

    def symmetric(entries: jax.Array) -> jax.Array:
        upper = jnp.zeros((tokens, tokens)).at[first, second].set(entries)
        return upper + upper.T - jnp.diag(jnp.diag(upper))

    def of_entries(loss: Callable[..., Any], r: jax.Array, entries: jax.Array) -> Any:
        return loss(teacher(symmetric(r)), symmetric(entries))

    what = f"a JAX function loss(y, h) of two arrays of shape ({tokens}, {tokens}) that returns a number"
    value, slope, curvature = _tried("loss", what, loss, of_entries, R, h)
    if not abs(slope).max() > 0:
        raise ValueError(f"loss must depend on h, got {loss!r}, which does not")
    at_zero, *_ = _tried("loss", what, loss, of_entries, R, 0 * h)
    change = float(abs(value - at_zero).mean()) or float(abs(slope).mean()) * size
    convex = bool(np.linalg.eigvalsh(curvature).min() >= -_ROUNDING * abs(curvature).max())
    return LossTrial(convex, float(2.0 ** np.round(np.log2(change))))


@functools.lru_cache(maxsize=64)
def _penalty_trial(penalty: Snapshot, positive: bool, size: float) -> None:
    t = size * (_SIZES if positive else np.concatenate([-_SIZES[:0:-1], _SIZES]))
    what = "a JAX function r(t) of one number that returns a number"
    value, slope, _ = _tried("penalty", what, penalty, lambda penalty, _, x: penalty(x[0]), 0 * t[:, None], t[:, None])
    slope = slope[:, 0]
    # The slope of a secant of a convex function lies between the slopes of the function at both ends.
    steps = np.stack([slope[:-1], np.diff(value) / np.diff(t), slope[1:]])
    falls = np.flatnonzero((np.diff(steps, axis=0) < -_ROUNDING * abs(slope).max() - 1e-7 * abs(steps[1])).any(axis=0))
    if falls.size:
        left, right = t[falls[0]], t[falls[0] + 1]
        raise ValueError(
            f"penalty must be convex, or the learned matrix is not unique; got {penalty!r}, which is not between "
            f"t = {left:.3g} and {right:.3g}: slopes {slope[falls[0]]:.3g} and {slope[falls[0] + 1]:.3g}"
        )
    if not slope[-1] > 0 or not (positive or slope[0] < 0):
        side = f"t = {t[-1]:g}" if not slope[-1] > 0 else f"t = {t[0]:g}"
        raise ValueError(f"penalty must grow towards large |t|, got {penalty!r}, which does not at {side}")


def _tried(
    name: str,
    what: str,
    function: Snapshot,
    of_sample: Callable[[Callable[..., Any], jax.Array, jax.Array], Any],
    *samples: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values, slopes and, for a loss, curvatures of ``function`` at several samples, or raise a ValueError.

    ``of_sample(function, a, b)`` evaluates it at one sample of both arrays; derivatives are in b. ``name`` and ``what``
    (a description of a valid function) are for the error.
    """

    def scalar(*sample: jax.Array, called: Callable[..., Any] = function) -> jax.Array:
        value = jnp.asarray(of_sample(called, *sample))
        if value.shape != ():
            raise _NoNumberError(f"an array of shape {value.shape}")
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise _NoNumberError(f"a number of the type {value.dtype}")
        return value

    def all_of(*sample: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        slope = jax.grad(scalar, argnums=1)
        curvature = jax.jacfwd(slope, argnums=1) if name == "loss" else lambda *_: jnp.zeros((1, 1))
        return scalar(*sample), slope(*sample), curvature(*sample)

    try:
        with double_precision():
            found = [np.asarray(part) for part in compiled(jax.vmap(all_of))(*samples)]
            # The user's function itself, traced again: it must give the same values.
            again = np.asarray(compiled(jax.vmap(lambda *sample: scalar(*sample, called=function.function)))(*samples))
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
    """Error: the user's function returned something else than a real number."""
