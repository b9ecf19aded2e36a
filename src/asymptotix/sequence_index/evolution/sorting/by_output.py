"""Draws of several fields brought together by their outputs, and averages of products of conditional means from them.

Where the output is one number its neighbours are those in its order. Several numbers are divided by trees, whose leaves
smooth more than windows of an order do: what a quarter of the draws makes smaller still tells by how much all of them
do. A discrete output is its own neighbourhood.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

#: Draws in a leaf, on average. With fewer the weighted means of them have a bias, with more tables are too smooth.
_IN_LEAF = 2**5
#: What leaves smooth falls like the number of draws to the power of this over the number of outputs, about: faster
#: where everything is smooth, more slowly where links are singular.
_RATE = 1.7


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


class DividedDraws(ByOutput):
    """By several outputs y (f, lists, k, N); ``seed`` says how they are divided."""

    def __init__(self, y: np.ndarray, weights: np.ndarray, seed: tuple[int, ...]) -> None:
        self._all = _Leaves(y, weights, seed)
        self._quarter = _Leaves(_quarter(y), _quarter(weights), seed)
        self._beyond = 1 / (4 ** (_RATE / y.shape[2]) - 1)

    def products(self, columns: np.ndarray) -> np.ndarray:
        all_draws = self.uncorrected(columns)
        return all_draws + self._beyond * (all_draws - self._quarter.products(_quarter(columns, axis=2)))

    def uncorrected(self, columns: np.ndarray) -> np.ndarray:
        """The same from the leaves of all draws alone."""
        return self._all.products(columns)


class _Leaves(ByOutput):
    def __init__(self, y: np.ndarray, weights: np.ndarray, seed: tuple[int, ...]) -> None:
        from .output_trees import leaves

        self._y, self._weights, self._count = y, weights, y.shape[-1] // _IN_LEAF
        cuts = np.random.default_rng(seed).random((*y.shape[:2], self._count - 1, 2))
        self._cells = leaves(y, cuts)

    def products(self, columns: np.ndarray) -> np.ndarray:
        from .cell_kernel import products

        return products(self._y, self._cells, self._count, columns, self._weights)


class LabelledDraws(ByOutput):
    """By outputs y (f, lists, k, N) of few values."""

    def __init__(self, y: np.ndarray, weights: np.ndarray) -> None:
        # Equal outputs have equal sums, different ones in all likelihood not.
        label = (y * np.random.default_rng(0).uniform(1, 2, (y.shape[2], 1))).sum(2)
        values, cells = np.unique(label, return_inverse=True)
        cells = cells.reshape(label.shape).astype(np.int16)
        self._cells = np.broadcast_to(cells[:, None], (len(y), 3, *label.shape[1:]))
        self._none, self._weights, self._count = y[:, :, :0], weights, len(values)

    def products(self, columns: np.ndarray) -> np.ndarray:
        from .cell_kernel import products

        return products(self._none, self._cells, self._count, columns, self._weights)


def _quarter(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """A quarter of the draws along an axis, as many from each half of them."""
    N = values.shape[axis]
    first, second = (np.take(values, range(start, start + N // 8), axis) for start in (0, N // 2))
    return np.concatenate([first, second], axis)
