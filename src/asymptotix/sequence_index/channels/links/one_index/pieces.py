"""A link of one variable, cut into monotone and constant pieces."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from .....numerics.compiled import compiled
from .....numerics.precision import double_precision
from ....models.link import LinkModel
from ..link_channel import flat_link

_REACH = 40.0
_LARGEST_NUMBER_OF_PIECES = 512


class Pieces(NamedTuple):
    """Intervals that cover the line (up to |z| = 40, or to where the link overflows), K of them.

    Attributes
    ----------
    ends : array (K, 2)
    constant : array (K,) of bool
        On the others every output is strictly monotone or constant.
    component : array (K,) of int
        An output that is strictly monotone there.
    value : array (K, k)
        The link in the middle of the piece.
    """

    ends: np.ndarray
    constant: np.ndarray
    component: np.ndarray
    value: np.ndarray


@double_precision()
def pieces(model: LinkModel) -> Pieces:
    """Cut the link of one variable at its extrema, kinks and jumps, found on a fine grid and by bisection."""
    link = partial(flat_link, model)
    slope = jax.vmap(jax.jacfwd(lambda z: link(z[None])))
    both = compiled(lambda z: (jax.vmap(lambda t: link(t[None]))(z), slope(z)))

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, derivative = both(z)
        return np.asarray(value), np.asarray(derivative)

    # Off the round numbers, where links have their kinks and jumps.
    grid = np.concatenate([-np.geomspace(_REACH, 12, 240), np.arange(-12, 12, 0.005), np.geomspace(12, _REACH, 240)])
    grid = np.unique(grid) + 0.00123456
    value, derivative = evaluate(grid)
    overflows = np.flatnonzero(~np.isfinite(np.concatenate([value, derivative], 1)).all(1))
    middle = len(grid) // 2
    left = int(overflows[overflows < middle].max(initial=-1)) + 1
    right = int(overflows[overflows >= middle].min(initial=len(grid)))
    grid, value, derivative = grid[left:right], value[left:right], derivative[left:right]
    turns = _turns(grid, derivative, evaluate)
    jumps = _jumps(grid, value, derivative, evaluate)
    cuts = np.unique(np.concatenate([grid[:1], turns, jumps, grid[-1:]]))
    cuts = cuts[np.append(True, np.diff(cuts) > 1e-12)]
    if len(cuts) - 1 > _LARGEST_NUMBER_OF_PIECES:
        raise NotImplementedError(
            f"link {model.link!r} has {len(cuts) - 1} monotone pieces, more than {_LARGEST_NUMBER_OF_PIECES}, too many "
            "to be summed without noise; choose noise > 0, for example noise=0.01"
        )
    return _classified(cuts, evaluate)


def _classified(cuts: np.ndarray, evaluate: Any) -> Pieces:
    ends = np.stack([cuts[:-1], cuts[1:]], 1)
    # A jump lies between two neighbouring floats: stay off it by more than its width.
    width = np.diff(ends, axis=1)
    ends = ends + np.array([1.0, -1.0]) * np.minimum(1e-14 * (1 + np.abs(ends)), 0.1 * width)
    value, derivative = evaluate(ends.mean(1))
    component = np.argmax(np.abs(derivative), axis=1)
    return Pieces(ends, (derivative == 0).all(1), component, value)


def _turns(grid: np.ndarray, derivative: np.ndarray, evaluate: Any) -> np.ndarray:
    """Where an output changes between rising, falling and constant."""
    kind = np.sign(derivative)
    cells = np.flatnonzero((kind[1:] != kind[:-1]).any(1))
    a, b, left = grid[cells], grid[cells + 1], kind[cells]
    for _ in range(60 if len(cells) else 0):
        middle = 0.5 * (a + b)
        same = (np.sign(evaluate(middle)[1]) == left).all(1)
        a, b = np.where(same, middle, a), np.where(same, b, middle)
    return b


def _jumps(grid: np.ndarray, value: np.ndarray, derivative: np.ndarray, evaluate: Any) -> np.ndarray:
    """Where an output jumps: the difference of its values is not what its derivative says, at any width."""
    expected = 0.5 * np.diff(grid)[:, None] * (derivative[1:] + derivative[:-1])
    excess = np.abs(np.diff(value, axis=0) - expected)
    cells = np.flatnonzero((excess > 1e-5 * (1 + np.abs(value[1:]))).any(1))
    if not len(cells):
        return np.zeros(0)
    a, b, low, high = grid[cells], grid[cells + 1], value[cells], value[cells + 1]
    for _ in range(60):
        middle = 0.5 * (a + b)
        at = evaluate(middle)[0]
        left = np.abs(at - low).max(1) > np.abs(high - at).max(1)
        a, b = np.where(left, a, middle), np.where(left, middle, b)
        low, high = np.where(left[:, None], low, at), np.where(left[:, None], at, high)
    return b[(np.abs(high - low) > 1e-9 * (1 + np.abs(low))).any(1)]
