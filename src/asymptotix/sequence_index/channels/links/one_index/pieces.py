"""A link of one variable, cut into monotone and constant pieces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .....numerics.precision import double_precision
from .....numerics.programs.compiled import compiled
from ....models.observed_link import ObservedLink, flat_link

#: Largest |z| of the line that is cut into pieces; the second value is for links with too many pieces up to the first.
_REACHES = (40.0, 9.0)
_LARGEST_NUMBER_OF_PIECES = 512
#: Distance of grid points for |z| < 12. Larger: narrower pieces are missed. Smaller: more evaluations.
_STEP = 0.002
#: Numbers of places to which calls are padded, so that few programs are compiled.
_SIZES = (256, 2**14, 2**18)
#: Number of bisections from _STEP to neighbouring floats.
_BISECTIONS = 60

#: Distances from the end of a constant piece at which slopes are compared, the nearer half and the farther half.
#: Either half has several distances, because rounding makes single slopes zero.
_BESIDE = np.array([1.0, 1.5, 2.0, 3.0, 1e3, 1.5e3, 2e3, 3e3]) * 1e-11
#: Slope near the end, relative to the middle of the neighbour, above which the end is a kink; and growth of the slope
#: over three decades of distance above which the slope is a power of the distance.
_FADED, _POWER = 1e-9, 30.0
#: Largest difference between the change of an output y over a cell and the integral of its slope, over 1 + |y|.
_EXCESS = 1e-5
#: Number of parts into which a cell with a larger difference is cut, most repetitions, and most such cells.
_PARTS, _LEVELS, _MOST_CELLS = 16, 9, 2**14
#: Function of places (m,) that returns values (m, k) and slopes (m, k) of the link.
Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Pieces(NamedTuple):
    """Intervals that cover the line (up to |z| = 40, or to where the link overflows), K of them.

    Attributes
    ----------
    ends : array (K, 2)
    constant : array (K,) of bool
        Whether the link is constant; on the other pieces every output is strictly monotone or constant.
    saturated : array (K,) of bool
        Whether the link is constant by rounding only.
    component : array (K,) of int
        Number of an output that is strictly monotone there.
    direction : array (K, k)
        Sign of the slope of every output in the middle of the piece.
    value : array (K, k)
        The link in the middle of the piece.
    """

    ends: np.ndarray
    constant: np.ndarray
    saturated: np.ndarray
    component: np.ndarray
    direction: np.ndarray
    value: np.ndarray

    @property
    def flat(self) -> np.ndarray:
        """Mask (K,) of the pieces on which the link is constant, and not by rounding only."""
        return self.constant & ~self.saturated


@double_precision()
def pieces(model: ObservedLink) -> Pieces:
    """Return the pieces of a link between its extrema, kinks and jumps, found on a fine grid and by bisection."""
    link = partial(flat_link, model)
    slope = jax.vmap(jax.jacfwd(lambda z: link(z[None])))
    both = compiled(lambda z: (jax.vmap(lambda t: link(t[None]))(z), slope(z)))

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        padded = np.zeros(next((size for size in _SIZES if size >= len(z)), len(z)))
        padded[: len(z)] = z
        value, derivative = both(jnp.asarray(padded))
        return np.asarray(value)[: len(z)], np.asarray(derivative)[: len(z)]

    for reach in _REACHES:
        cuts = _cuts(model, reach, evaluate)
        if len(cuts) - 1 <= _LARGEST_NUMBER_OF_PIECES:
            return _classified(model, cuts, evaluate)
    raise NotImplementedError(
        f"link {model.link!r} has {len(cuts) - 1} monotone pieces, more than {_LARGEST_NUMBER_OF_PIECES}, too many "
        "to be summed without noise; choose noise > 0, for example noise=0.01"
    )


def _cuts(model: ObservedLink, reach: float, evaluate: Evaluate) -> np.ndarray:
    """Return the ends of the pieces, ascending, on the part of |z| < ``reach`` where the link is finite."""
    far = np.geomspace(12, 40, 240)
    # The grid avoids round numbers, at which links have kinks and jumps.
    grid = np.concatenate([-far[::-1], np.arange(-12, 12, _STEP), far]) + 0.00123456
    grid = np.unique(grid[abs(grid) <= reach])
    value, derivative = evaluate(grid)
    overflows = np.flatnonzero(~np.isfinite(np.concatenate([value, derivative], 1)).all(1))
    middle = len(grid) // 2
    left = int(overflows[overflows < middle].max(initial=-1)) + 1
    right = int(overflows[overflows >= middle].min(initial=len(grid)))
    grid, value, derivative = grid[left:right], value[left:right], derivative[left:right]
    grid, value, derivative, jumps = _refined(model, grid, value, derivative, evaluate)
    turns = _turns(grid, derivative, evaluate)
    cuts = np.unique(np.concatenate([grid[:1], turns, jumps, _kinks(model, grid), grid[-1:]]))
    return cuts[np.append(True, np.diff(cuts) > 1e-12)]


def _classified(model: ObservedLink, cuts: np.ndarray, evaluate: Evaluate) -> Pieces:
    ends = np.stack([cuts[:-1], cuts[1:]], 1)
    # A jump lies between two neighbouring floats: the ends keep a larger distance from it.
    width = np.diff(ends, axis=1)
    ends = ends + np.array([1.0, -1.0]) * np.minimum(1e-14 * (1 + np.abs(ends)), 0.1 * width)
    value, derivative = evaluate(ends.mean(1))
    constant = (derivative == 0).all(1)
    component = np.argmax(np.abs(derivative), axis=1)
    saturated = _saturated(model, ends, constant, evaluate)
    found = Pieces(ends, constant, saturated, component, np.sign(derivative), value)
    return _joined(found)


def _saturated(model: ObservedLink, ends: np.ndarray, constant: np.ndarray, evaluate: Evaluate) -> np.ndarray:
    """Return which constant pieces share their branches with a piece that is not constant.

    On indices with the same branches the link is one analytic function, which is constant everywhere or nowhere. If
    the branches of the program are unknown, the ends of the pieces decide.
    """
    if model.analytic:
        return constant
    branches = model.branches(ends.mean(1)[:, None])
    if branches is None:
        return constant & _fades(ends, constant, evaluate)
    moving = {row.tobytes() for row in branches[~constant]}
    return constant & np.array([row.tobytes() in moving for row in branches])


def _fades(ends: np.ndarray, constant: np.ndarray, evaluate: Evaluate) -> np.ndarray:
    """Return which pieces (K,) have an end at which the slope of a moving neighbour has decayed to its rounding.

    At a kink the slope near the end is finite, or grows like a power of the distance: a thousandfold over three decades
    of distance. Where the slope of an analytic function rounds to zero, it is equal at all these distances. The first
    and the last piece have one neighbour only.
    """
    fades = np.zeros(len(ends), bool)
    for k in np.flatnonzero(constant):
        for neighbour, end, sign in ((k - 1, ends[k, 0], -1.0), (k + 1, ends[k, 1], 1.0)):
            if not 0 <= neighbour < len(ends) or constant[neighbour]:
                continue
            middle = ends[neighbour].mean()
            slopes = abs(evaluate(np.array([*(end + sign * _BESIDE), middle]))[1]).max(1)
            near, far, largest = slopes[: len(_BESIDE) // 2].max(), slopes[len(_BESIDE) // 2 : -1].max(), slopes[-1]
            fades[k] |= bool(near < _FADED * largest and far < _POWER * max(near, np.finfo(float).tiny))
    return fades


def _joined(found: Pieces) -> Pieces:
    """Return pieces with constant neighbours of one value joined: a branch of the program without effect cut them."""
    alike = found.flat[1:] & found.flat[:-1] & (found.value[1:] == found.value[:-1]).all(1)
    first = np.append(True, ~alike)
    last = np.append(~alike, True)
    ends = np.stack([found.ends[first, 0], found.ends[last, 1]], 1)
    return Pieces(ends, *(column[first] for column in found[1:]))


def _turns(grid: np.ndarray, derivative: np.ndarray, evaluate: Evaluate) -> np.ndarray:
    """Return the places where an output changes between rising, falling and constant."""
    kind = np.sign(derivative)
    cells = np.flatnonzero((kind[1:] != kind[:-1]).any(1))
    left = kind[cells]
    return _bisected(grid[cells], grid[cells + 1], lambda z: (np.sign(evaluate(z)[1]) == left).all(1))


def _kinks(model: ObservedLink, grid: np.ndarray) -> np.ndarray:
    """Return the places where the branches of the link change."""
    taken = model.branches(grid[:, None])
    if taken is None:
        return np.zeros(0)
    cells = np.flatnonzero((taken[1:] != taken[:-1]).any(1))
    left = taken[cells]

    def same(z: np.ndarray) -> np.ndarray:
        there = model.branches(z[:, None])
        assert there is not None
        return (there == left).all(1)

    return _bisected(grid[cells], grid[cells + 1], same)


def _bisected(a: np.ndarray, b: np.ndarray, same: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return for each pair a < b the place where ``same``, true at a and false at b, becomes false, up to rounding."""
    for _ in range(_BISECTIONS if len(a) else 0):
        middle = 0.5 * (a + b)
        left = same(middle)
        a, b = np.where(left, middle, a), np.where(left, b, middle)
    return b


def _refined(
    model: ObservedLink, grid: np.ndarray, value: np.ndarray, derivative: np.ndarray, evaluate: Evaluate
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a finer grid (m,), values and slopes (m, k) of the link on it, and the places of its jumps.

    In every cell the integral of slopes is the change of values. A cell in which it is not has a jump, or else is cut
    into parts, because the link is steep in it or oscillates.
    """
    jumps = np.zeros(0)
    cells = np.arange(len(grid) - 1)
    for _ in range(_LEVELS):
        cells = cells[_unexplained(grid, value, derivative, cells)]
        places, jump = _jumps(grid, value, cells, evaluate)
        jumps, cells = np.append(jumps, places[jump]), cells[~jump]
        if not len(cells):
            return grid, value, derivative, jumps
        if len(cells) > _MOST_CELLS:
            raise NotImplementedError(
                f"the slopes of the link {model.link!r} do not explain its values: it changes too fast to be summed"
                " without noise, or uses jax.lax.stop_gradient; choose noise > 0, for example noise=0.01, or write the"
                " link without stop_gradient"
            )
        within = (grid[cells, None] + np.diff(grid)[cells, None] * np.arange(1, _PARTS) / _PARTS).ravel()
        more = evaluate(within)
        order = np.argsort(np.append(grid, within), kind="stable")
        grid, value, derivative = (
            np.concatenate(both)[order] for both in zip((grid, value, derivative), (within, *more), strict=True)
        )
        at = np.searchsorted(grid, within)
        cells = np.unique(np.append(at - 1, at))
    return grid, value, derivative, jumps  # steep between neighbouring floats


def _unexplained(grid: np.ndarray, value: np.ndarray, derivative: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Return for each of ``cells`` (numbers) whether the change of an output differs from the integral of its slope."""
    a, b = cells, cells + 1
    with np.errstate(invalid="ignore", over="ignore"):
        expected = 0.5 * (grid[b] - grid[a])[:, None] * (derivative[a] + derivative[b])
        excess = np.abs(value[b] - value[a] - expected)
    return np.atleast_1d(~(excess <= _EXCESS * (1 + np.abs(value[b]))).all(1))


def _jumps(grid: np.ndarray, value: np.ndarray, cells: np.ndarray, evaluate: Evaluate) -> tuple[np.ndarray, np.ndarray]:
    """Return per cell the place where an output changes most, and whether it jumps there, between two floats."""
    a, b, low, high = grid[cells], grid[cells + 1], value[cells], value[cells + 1]
    for _ in range(_BISECTIONS if len(cells) else 0):
        middle = 0.5 * (a + b)
        at = evaluate(middle)[0]
        left = np.abs(at - low).max(1) > np.abs(high - at).max(1)
        a, b = np.where(left, a, middle), np.where(left, middle, b)
        low, high = np.where(left[:, None], low, at), np.where(left[:, None], at, high)
    return b, np.atleast_1d((np.abs(high - low) > 1e-9 * (1 + np.abs(low))).any(1))
