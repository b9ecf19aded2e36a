"""A link of one variable, cut into monotone and constant pieces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .....numerics.compiled import compiled
from .....numerics.precision import double_precision
from ....models.observed_link import ObservedLink, flat_link

#: Largest |z| of the line that is cut into pieces; the second value is for links with too many pieces up to the first.
_REACHES = (40.0, 9.0)
_LARGEST_NUMBER_OF_PIECES = 512
#: Distance of grid points for |z| < 12. Larger: narrower pieces are missed. Smaller: more evaluations.
_STEP = 0.002
#: Number of bisections from _STEP to neighbouring floats.
_BISECTIONS = 60

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
        An output that is strictly monotone there.
    value : array (K, k)
        The link in the middle of the piece.
    """

    ends: np.ndarray
    constant: np.ndarray
    saturated: np.ndarray
    component: np.ndarray
    value: np.ndarray

    @property
    def flat(self) -> np.ndarray:
        """Whether each piece (K,) is constant, and not by rounding only."""
        return self.constant & ~self.saturated


@double_precision()
def pieces(model: ObservedLink) -> Pieces:
    """Cut the link of one variable at its extrema, kinks and jumps, found on a fine grid and by bisection."""
    link = partial(flat_link, model)
    slope = jax.vmap(jax.jacfwd(lambda z: link(z[None])))
    both = compiled(lambda z: (jax.vmap(lambda t: link(t[None]))(z), slope(z)))

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        padded = np.zeros(max(256, 1 << (len(z) - 1).bit_length()))
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
    """Return the ends of the pieces, ascending, on the part of the line where the link is finite."""
    far = np.geomspace(12, 40, 240)
    # Off the round numbers, where links have their kinks and jumps.
    grid = np.concatenate([-far[::-1], np.arange(-12, 12, _STEP), far]) + 0.00123456
    grid = np.unique(grid[abs(grid) <= reach])
    value, derivative = evaluate(grid)
    overflows = np.flatnonzero(~np.isfinite(np.concatenate([value, derivative], 1)).all(1))
    middle = len(grid) // 2
    left = int(overflows[overflows < middle].max(initial=-1)) + 1
    right = int(overflows[overflows >= middle].min(initial=len(grid)))
    grid, value, derivative = grid[left:right], value[left:right], derivative[left:right]
    turns = _turns(grid, derivative, evaluate)
    jumps = _jumps(grid, value, derivative, evaluate)
    cuts = np.unique(np.concatenate([grid[:1], turns, jumps, _kinks(model, grid), grid[-1:]]))
    return cuts[np.append(True, np.diff(cuts) > 1e-12)]


def _classified(model: ObservedLink, cuts: np.ndarray, evaluate: Evaluate) -> Pieces:
    ends = np.stack([cuts[:-1], cuts[1:]], 1)
    # A jump lies between two neighbouring floats: stay off it by more than its width.
    width = np.diff(ends, axis=1)
    ends = ends + np.array([1.0, -1.0]) * np.minimum(1e-14 * (1 + np.abs(ends)), 0.1 * width)
    value, derivative = evaluate(ends.mean(1))
    constant = (derivative == 0).all(1)
    component = np.argmax(np.abs(derivative), axis=1)
    found = Pieces(ends, constant, _saturated(model, ends, constant), component, value)
    return _joined(found)


def _saturated(model: ObservedLink, ends: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """Return which constant pieces share their branches with a piece that is not constant.

    On indices with the same branches the link is one analytic function, which is constant everywhere or nowhere.
    """
    if model.analytic:
        return constant
    branches = model.branches(ends.mean(1)[:, None])
    if branches is None:
        return np.zeros(len(ends), bool)
    moving = {row.tobytes() for row in branches[~constant]}
    return constant & np.array([row.tobytes() in moving for row in branches])


def _joined(found: Pieces) -> Pieces:
    """Join neighbouring constant pieces of one value, which a branch without effect has separated."""
    alike = found.flat[1:] & found.flat[:-1] & (found.value[1:] == found.value[:-1]).all(1)
    first = np.append(True, ~alike)
    last = np.append(~alike, True)
    ends = np.stack([found.ends[first, 0], found.ends[last, 1]], 1)
    return Pieces(ends, *(column[first] for column in found[1:]))


def _turns(grid: np.ndarray, derivative: np.ndarray, evaluate: Evaluate) -> np.ndarray:
    """Where an output changes between rising, falling and constant."""
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
    """Return the first places between a and b that are not the ``same`` as a, up to rounding."""
    for _ in range(_BISECTIONS if len(a) else 0):
        middle = 0.5 * (a + b)
        left = same(middle)
        a, b = np.where(left, middle, a), np.where(left, b, middle)
    return b


def _jumps(grid: np.ndarray, value: np.ndarray, derivative: np.ndarray, evaluate: Evaluate) -> np.ndarray:
    """Where an output jumps: the difference of its values is not what its derivative says, at any width."""
    expected = 0.5 * np.diff(grid)[:, None] * (derivative[1:] + derivative[:-1])
    excess = np.abs(np.diff(value, axis=0) - expected)
    cells = np.flatnonzero((excess > 1e-5 * (1 + np.abs(value[1:]))).any(1))
    if not len(cells):
        return np.zeros(0)
    a, b, low, high = grid[cells], grid[cells + 1], value[cells], value[cells + 1]
    for _ in range(_BISECTIONS):
        middle = 0.5 * (a + b)
        at = evaluate(middle)[0]
        left = np.abs(at - low).max(1) > np.abs(high - at).max(1)
        a, b = np.where(left, a, middle), np.where(left, middle, b)
        low, high = np.where(left[:, None], low, at), np.where(left[:, None], at, high)
    return b[(np.abs(high - low) > 1e-9 * (1 + np.abs(low))).any(1)]
