"""Draws grouped by their outputs, and averages of products of conditional means E[c|y] of columns c.

If the output is one number, draws are sorted and grouped in windows. Draws with several outputs are divided by trees.
Discrete outputs are grouped by value. In the last two cases averages have a bias, which is estimated by a comparison of
all draws with a quarter of them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

#: Average number of draws in a leaf of a tree. With fewer their means have a bias, with more they are too smooth.
_IN_LEAF = 2**5
#: Exponents with which the bias falls with the number of draws: for leaves (divided by the number of outputs;
#: approximate, larger for smooth links, smaller for singular ones), and for rare discrete values.
_RATE, _RATE_OF_VALUES = 1.7, 1.8
#: Number of decimals up to which discrete outputs count as equal.
_DIGITS = 9


class ByOutput(Protocol):
    """Draws for each of f fields omega, in three independent lists of N draws, grouped by similar outputs."""

    def products(self, columns: np.ndarray) -> np.ndarray:
        """Return averages (C, C) of products of conditional means, given the output, summed over the f fields.

        ``columns`` (f, lists, N, C) are the C values of every draw whose conditional means are multiplied.
        """
        ...


class SortedDraws(ByOutput):
    """Draws with weights and one output y (f, lists, N), sorted by y and grouped in windows of neighbours.

    ``edges`` (w + 1,) are the positions in sorted order where the w windows begin and end.
    """

    def __init__(self, y: np.ndarray, weights: np.ndarray, edges: np.ndarray) -> None:
        self._y, self._order, self._weights, self._edges = y, np.argsort(y, axis=-1), weights, edges

    def products(self, columns: np.ndarray) -> np.ndarray:
        from .sorted_kernel import products  # numba takes a while to import

        return products(self._y, self._order, columns, self._weights, self._edges)


class DrawsInCells(ByOutput):
    """Draws with weights (f, lists, N) and k outputs y (f, lists, k, N), grouped in ``count`` cells of similar outputs.

    ``cells`` (f, trees, lists, N) are cell numbers in each of three divisions, one made from each list.
    """

    def __init__(self, y: np.ndarray, weights: np.ndarray, cells: np.ndarray, count: int) -> None:
        self._y, self._weights, self._cells, self._count = y, weights, cells, count

    def products(self, columns: np.ndarray) -> np.ndarray:
        from .cell_kernel import products

        return products(self._y, self._cells, self._count, columns, self._weights)


class CorrectedDraws(ByOutput):
    """Averages of all draws, extrapolated to more draws.

    To them ``beyond`` times their difference from the averages of a quarter of the draws is added.
    """

    def __init__(self, all_draws: DrawsInCells, quarter: DrawsInCells, beyond: float) -> None:
        self._all, self._quarter, self._beyond = all_draws, quarter, beyond

    def products(self, columns: np.ndarray) -> np.ndarray:
        all_draws = self.uncorrected(columns)
        return all_draws + self._beyond * (all_draws - self._quarter.products(_quarter(columns, axis=2)))

    def uncorrected(self, columns: np.ndarray) -> np.ndarray:
        """Return the averages of all draws, without the correction."""
        return self._all.products(columns)


def divided_draws(y: np.ndarray, weights: np.ndarray, seed: tuple[int, ...]) -> CorrectedDraws:
    """Return draws with weights (f, lists, N) grouped by k outputs y (f, lists, k, N), in leaves of random trees.

    ``seed`` sets the random cuts of the trees.
    """

    def in_leaves(y: np.ndarray, weights: np.ndarray) -> DrawsInCells:
        from .output_trees import leaves

        count = y.shape[-1] // _IN_LEAF
        cuts = np.random.default_rng(seed).random((*y.shape[:2], count - 1, 2))
        return DrawsInCells(y, weights, leaves(y, cuts), count)

    beyond = 1 / (4 ** (_RATE / y.shape[2]) - 1)
    return CorrectedDraws(in_leaves(y, weights), in_leaves(_quarter(y), _quarter(weights)), beyond)


def labelled_draws(y: np.ndarray, weights: np.ndarray) -> CorrectedDraws:
    """Return draws with weights (f, lists, N) grouped by the values of k discrete outputs y (f, lists, k, N)."""
    # The label is a sum with random weights: equal for equal outputs, almost surely different for others.
    rounded = np.round(y / (1 + abs(y)), _DIGITS)
    label = np.round((rounded * np.random.default_rng(0).uniform(1, 2, (y.shape[2], 1))).sum(2), _DIGITS)
    values, cells = np.unique(label, return_inverse=True)
    cells, none = cells.reshape(label.shape).astype(np.int16), y[:, :, :0]

    def labelled(cells: np.ndarray, none: np.ndarray, weights: np.ndarray) -> DrawsInCells:
        cells = np.broadcast_to(cells[:, None], (len(cells), 3, *cells.shape[1:]))
        return DrawsInCells(none, weights, cells, len(values))

    parts = (labelled(cells, none, weights), labelled(_quarter(cells), _quarter(none), _quarter(weights)))
    return CorrectedDraws(*parts, 1 / (4**_RATE_OF_VALUES - 1))


def _quarter(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return a quarter of the draws along an axis of ``values``, equally many from each half."""
    N = values.shape[axis]
    first, second = (np.take(values, range(start, start + N // 8), axis) for start in (0, N // 2))
    return np.concatenate([first, second], axis)
