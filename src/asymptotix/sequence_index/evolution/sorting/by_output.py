"""Draws of several fields brought together by their outputs, and averages of products of conditional means from them.

Where the output is one number its neighbours are those in its order. Several numbers are divided by trees, whose leaves
smooth more than windows of an order do. A discrete output has its equals, as far as any were drawn. What a quarter of
the draws makes smaller still tells by how much all of them do.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

#: Draws in a leaf, on average. With fewer the weighted means of them have a bias, with more tables are too smooth.
_IN_LEAF = 2**5
#: What leaves smooth falls like the number of draws to the power of this over the number of outputs, about: faster
#: where everything is smooth, more slowly where links are singular. What rare values lose falls like another.
_RATE, _RATE_OF_VALUES = 1.7, 1.8
#: Digits to which discrete outputs are equal.
_DIGITS = 9


class ByOutput(Protocol):
    """Draws of f fields, in three lists of N each, of which draws with like outputs are known."""

    def products(self, columns: np.ndarray) -> np.ndarray:
        """Averages of products (C, C) of the conditional means of columns (f, lists, N, C), added over the fields."""
        ...


class SortedDraws(ByOutput):
    """By one output y (f, lists, N), whose windows of neighbours begin and end at ``edges``."""

    def __init__(self, y: np.ndarray, weights: np.ndarray, edges: np.ndarray) -> None:
        self._y, self._order, self._weights, self._edges = y, np.argsort(y, axis=-1), weights, edges

    def products(self, columns: np.ndarray) -> np.ndarray:
        from .sorted_kernel import products  # numba takes a while to import

        return products(self._y, self._order, columns, self._weights, self._edges)


class DrawsInCells(ByOutput):
    """In cells (f, trees, lists, N) of like outputs y (f, lists, k, N), so many of them."""

    def __init__(self, y: np.ndarray, weights: np.ndarray, cells: np.ndarray, count: int) -> None:
        self._y, self._weights, self._cells, self._count = y, weights, cells, count

    def products(self, columns: np.ndarray) -> np.ndarray:
        from .cell_kernel import products

        return products(self._y, self._cells, self._count, columns, self._weights)


class CorrectedDraws(ByOutput):
    """All draws and a quarter of them, whose difference is added ``beyond`` times."""

    def __init__(self, all_draws: DrawsInCells, quarter: DrawsInCells, beyond: float) -> None:
        self._all, self._quarter, self._beyond = all_draws, quarter, beyond

    def products(self, columns: np.ndarray) -> np.ndarray:
        all_draws = self.uncorrected(columns)
        return all_draws + self._beyond * (all_draws - self._quarter.products(_quarter(columns, axis=2)))

    def uncorrected(self, columns: np.ndarray) -> np.ndarray:
        """The same from all draws alone."""
        return self._all.products(columns)


def divided_draws(y: np.ndarray, weights: np.ndarray, seed: tuple[int, ...]) -> CorrectedDraws:
    """By several outputs y (f, lists, k, N); ``seed`` says how they are divided."""

    def in_leaves(y: np.ndarray, weights: np.ndarray) -> DrawsInCells:
        from .output_trees import leaves

        count = y.shape[-1] // _IN_LEAF
        cuts = np.random.default_rng(seed).random((*y.shape[:2], count - 1, 2))
        return DrawsInCells(y, weights, leaves(y, cuts), count)

    beyond = 1 / (4 ** (_RATE / y.shape[2]) - 1)
    return CorrectedDraws(in_leaves(y, weights), in_leaves(_quarter(y), _quarter(weights)), beyond)


def labelled_draws(y: np.ndarray, weights: np.ndarray) -> CorrectedDraws:
    """By outputs y (f, lists, k, N) of few values."""
    # Equal outputs have equal sums, different ones in all likelihood not.
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
    """A quarter of the draws along an axis, as many from each half of them."""
    N = values.shape[axis]
    first, second = (np.take(values, range(start, start + N // 8), axis) for start in (0, N // 2))
    return np.concatenate([first, second], axis)
