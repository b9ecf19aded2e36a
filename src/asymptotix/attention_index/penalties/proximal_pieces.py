"""Intervals of t on which the proximal map of a penalty is smooth, and the map itself on these pieces.

The proximal map t(p) of a convex penalty r is the root of

    y(t) = r'(t) + stiffness t = p.

A penalty may be smooth and yet steep: sqrt(t^2 + w^2) has almost a kink where w is small. A quadrature rule over p then
needs boundaries of panels around the steep place. The pieces between these boundaries are found by bisection in t. On a
piece the logarithm of y' is resolved by a few Legendre polynomials and changes little, so that y' has no zero and no
pole near the piece, and the inverse function t(p) is as smooth as y. A steep place between the points at which y' is
evaluated is detected, because there y changes by more than the integral of y'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from ...numerics.iteration import increasing_root
from ..spectra.convolution import Array

Elementwise = Callable[[np.ndarray], np.ndarray]

#: Number of points of a piece at which the curvature of the penalty is evaluated. Smaller: pieces are shorter.
_POINTS = 12
#: Largest last Legendre coefficients of log y' on a piece. Larger: 28 nodes per piece do not resolve t(p).
_TAIL = 1e-3
#: Largest change of log y' on a piece. Larger: t(p) may be too steep for the nodes of the piece.
_CHANGE = np.log(10.0)
#: Largest difference, relative to the change of y on a piece, between this change and the integral of y'. Larger: steep
#: places between the points remain undetected.
_HIDDEN = 1e-4
#: Product of the length of a piece in t and its length in y, relative to those of all pieces, below which a piece is
#: not divided. It bounds the error that a piece makes in an average over t.
_SMALLEST = 1e-12
#: Number of intervals that a piece is divided into.
_PARTS = 4
#: Largest number of divisions of one piece, and largest number of pieces. With more pieces the remaining steep places
#: are left as they are; the comparison of two quadrature rules contains their error.
_MOST_DIVISIONS, _MOST_PIECES = 60, 1000
#: Largest number of rounds in which neighbouring pieces are joined. Smaller: more pieces, so slower averages.
_MOST_ROUNDS = 12
#: Error of t, relative to the largest t, that counts as rounding.
_ROUNDED = 1e-16
#: Step, relative to the length of a piece that is too small to be divided, at which t is accurate enough there.
_ROUGH = 1e-3
#: Least size of the arrays on which a user's functions are evaluated. Sizes grow by factors of 4, so that few programs
#: are compiled.
_LEAST_SIZE = 256


class PenaltySlopes(NamedTuple):
    """r'(t) and r''(t) of a penalty, elementwise, with its kinks (t, r' below t, r' above t), ascending."""

    slope: Elementwise
    curvature: Elementwise
    kinks: Sequence[tuple[float, float, float]]


class SmoothPieces(NamedTuple):
    """Intervals (count, 2) of t, ascending, and y(t) at both ends of each, from inside the interval."""

    t: Array
    y: Array

    def chosen(self, which: Array) -> SmoothPieces:
        return SmoothPieces(self.t[which], self.y[which])

    @property
    def meeting(self) -> Array:
        """Whether each piece starts, in t and in y, where the piece before it ends, (count,); False for the first."""
        return np.append(False, (self.t[1:, 0] == self.t[:-1, 1]) & (self.y[1:, 0] == self.y[:-1, 1]))


def padded(function: Elementwise) -> Elementwise:
    """Return the same elementwise function, with arguments padded to 256, 1024, ... entries: JAX compiles per size."""

    def evaluate(t: np.ndarray) -> np.ndarray:
        flat, size = np.ravel(t), _LEAST_SIZE
        while size < flat.size:
            size *= 4
        given = np.concatenate([flat, np.full(size - flat.size, flat[-1] if flat.size else 0.0)])
        return np.asarray(function(given))[: flat.size].reshape(np.shape(t))

    return evaluate


def smooth_pieces(penalty: PenaltySlopes, stiffness: float, wanted: Array, positive: bool) -> SmoothPieces:
    """Return pieces on which t(p) is smooth, for all p in the ``wanted`` intervals (count, 2), ascending.

    With ``positive``, t is confined to t >= 0.
    """
    pieces = _between_kinks(penalty, stiffness, wanted, positive)
    done: list[SmoothPieces] = []
    for _ in range(_MOST_DIVISIONS):
        pieces = pieces.chosen(_wanted(pieces, wanted))
        known = sum(len(some.t) for some in done) + len(pieces.t)
        if not len(pieces.t) or known > _MOST_PIECES:
            break
        ends = np.concatenate([pieces.t, *(some.t for some in done)])
        fine = _smooth(penalty, stiffness, pieces) | _small(pieces, wanted, float(np.ptp(ends)))
        done.append(pieces.chosen(fine))
        pieces = _divided(penalty, stiffness, pieces.chosen(~fine))
    done.append(pieces)
    found = SmoothPieces(np.concatenate([some.t for some in done]), np.concatenate([some.y for some in done]))
    return _joined(penalty, stiffness, found.chosen(np.argsort(found.t[:, 0], kind="stable")))


def proximal_map(penalty: PenaltySlopes, stiffness: float, p: Array, pieces: SmoothPieces) -> Array:
    """Return t(p) for values p (n,), by Newton's method or bisection within ``pieces`` of :func:`smooth_pieces`.

    Where t(p) stays at a kink, the caller must set it.
    """
    if not len(pieces.t):  # every p belongs to a kink
        return np.zeros_like(p)
    own = np.clip(np.searchsorted(pieces.y[:, 0], p, side="right") - 1, 0, None)
    (low, high), (below, above) = pieces.t[own].T.copy(), pieces.y[own].T
    size = float(abs(pieces.t).max())
    enough = np.where(_negligible(pieces), _ROUGH * np.diff(pieces.t)[:, 0], 0.0)[own] + _ROUNDED * size
    high = np.where(p <= below, low, high)  # at kinks
    low = np.where(p >= above, high, low)

    def excess(t: Array, active: Array) -> tuple[Array, Array]:
        slope = penalty.slope(t)
        value = slope + stiffness * t - p[active]
        hidden = abs(value) <= np.spacing(abs(slope) + abs(p[active]))
        return np.where(hidden, 0.0, value), penalty.curvature(t) + stiffness

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = (p - below) / (above - below)
        share = np.where((share > 0) & (share < 1), share, 0.5)
        return increasing_root(excess, low, high, start=np.clip(low + share * (high - low), low, high), close=enough)


def _negligible(pieces: SmoothPieces) -> Array:
    """Return whether each piece was too small to matter in an average over t, and so was not divided further."""
    finite = pieces.y[np.isfinite(pieces.y)]
    (width,), (height,) = np.diff(pieces.t).T, np.diff(pieces.y).T
    return width * height <= _SMALLEST * float(np.ptp(pieces.t)) * float(np.ptp(finite) if len(finite) else 0.0)


def _between_kinks(penalty: PenaltySlopes, stiffness: float, wanted: Array, positive: bool) -> SmoothPieces:
    """Return the intervals of t between neighbouring kinks; the outermost contain t(p) for all ``wanted`` p."""
    at_zero = float(penalty.slope(np.zeros(1))[0])
    slopes = [slope for kink in penalty.kinks for slope in kink[1:] if np.isfinite(slope)]
    steepest = max(map(abs, [*slopes, at_zero]))
    farthest = max((abs(t) for t, *_ in penalty.kinks), default=0.0)
    reach = 2 * (float(np.max(abs(wanted))) + steepest) / stiffness + farthest
    kinks = [kink for kink in penalty.kinks if not (positive and kink[0] < 0)]
    outside = np.array([-reach, reach])
    lowest, highest = _pulls(penalty, stiffness, outside)
    ends = [(-reach, lowest, lowest)] if not positive else []
    ends += [(t, before + stiffness * t, after + stiffness * t) for t, before, after in kinks]
    ends += [(reach, highest, highest)]
    t, before, after = np.array(ends).T
    return SmoothPieces(np.stack([t[:-1], t[1:]], axis=1), np.stack([after[:-1], before[1:]], axis=1))


def _pulls(penalty: PenaltySlopes, stiffness: float, t: Array) -> Array:
    """Return y(t) = r'(t) + stiffness t, infinite where r'(t) overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        slope = penalty.slope(t)
    return np.where(np.isnan(slope), np.copysign(np.inf, t), slope) + stiffness * t


def _wanted(pieces: SmoothPieces, wanted: Array) -> Array:
    """Return whether each piece contains t(p) for a p in one of the ``wanted`` intervals."""
    first = np.searchsorted(wanted[:, 1], pieces.y[:, 0])  # the first interval that does not end below the piece
    starts = np.append(wanted[:, 0], np.inf)[first]
    return (starts < pieces.y[:, 1]) & (pieces.y[:, 0] < pieces.y[:, 1])


def _small(pieces: SmoothPieces, wanted: Array, length: float) -> Array:
    """Return whether each piece is too small to matter in an average over t; ``length`` is that of all pieces in t."""
    y = np.clip(pieces.y, wanted[0, 0], wanted[-1, 1])
    (width,), (height,) = np.diff(pieces.t).T, np.diff(y).T
    least = np.spacing(abs(pieces.t).max(axis=1))
    return (width * height <= _SMALLEST * length * float(wanted[-1, 1] - wanted[0, 0])) | (width <= 4 * least)


def _smooth(penalty: PenaltySlopes, stiffness: float, pieces: SmoothPieces) -> Array:
    """Return whether t(p) is smooth on each piece, by the limits _TAIL, _CHANGE and _HIDDEN."""
    points, weights, to_tail = _rule()
    middle, half = pieces.t.mean(axis=1)[:, None], 0.5 * np.diff(pieces.t)
    rise = np.diff(pieces.y)[:, 0]
    with np.errstate(all="ignore"):
        steepness = np.maximum(penalty.curvature(middle + half * points), 0.0) + stiffness
        logarithm = np.log(steepness)
        tail = abs(logarithm @ to_tail).max(axis=1)
        hidden = abs(half[:, 0] * (steepness @ weights) - rise)
        return (tail <= _TAIL) & (np.ptp(logarithm, axis=1) <= _CHANGE) & (hidden <= _HIDDEN * rise)


def _divided(penalty: PenaltySlopes, stiffness: float, pieces: SmoothPieces) -> SmoothPieces:
    """Return the pieces divided into four intervals of equal length in t each."""
    if not len(pieces.t):
        return pieces
    t = pieces.t[:, :1] + np.linspace(0, 1, _PARTS + 1) * np.diff(pieces.t)
    t[:, -1] = pieces.t[:, 1]
    inner = np.clip(_pulls(penalty, stiffness, t[:, 1:-1]), pieces.y[:, :1], pieces.y[:, 1:])
    y = np.concatenate([pieces.y[:, :1], inner, pieces.y[:, 1:]], axis=1)
    return SmoothPieces(*(np.stack([ends[:, :-1].ravel(), ends[:, 1:].ravel()], axis=1) for ends in (t, y)))


def _joined(penalty: PenaltySlopes, stiffness: float, pieces: SmoothPieces) -> SmoothPieces:
    """Return the pieces with neighbours joined if their union is smooth, because each boundary costs nodes."""
    kinks = np.array([t for t, *_ in penalty.kinks])
    idle = 0
    for count in range(_MOST_ROUNDS):
        right = np.flatnonzero(pieces.meeting & ~np.isin(pieces.t[:, 0], kinks))
        right = right[right % 2 == count % 2]
        if len(right):
            unions = SmoothPieces(
                np.stack([pieces.t[right - 1, 0], pieces.t[right, 1]], axis=1),
                np.stack([pieces.y[right - 1, 0], pieces.y[right, 1]], axis=1),
            )
            smooth = _smooth(penalty, stiffness, unions)
            right = right[smooth]
        idle = 0 if len(right) else idle + 1
        if idle == 2:
            break
        t, y = pieces.t.copy(), pieces.y.copy()
        t[right - 1, 1], y[right - 1, 1] = t[right, 1], y[right, 1]
        keep = np.ones(len(t), bool)
        keep[right] = False
        pieces = SmoothPieces(t[keep], y[keep])
    return pieces


@cache
def _rule() -> tuple[Array, Array, Array]:
    """Return points and weights of a Gauss rule on [-1, 1], and a map from values to 2 last Legendre coefficients."""
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    degrees = np.arange(_POINTS - 2, _POINTS)
    values = np.polynomial.legendre.legvander(points, _POINTS - 1)[:, degrees]
    return points, weights, weights[:, None] * values * (degrees + 0.5)
