"""Averages of products of conditional means, from lists of draws in cells of similar outputs; compiled with numba.

Every list gives a table of E[c|y]: in each cell a linear function of the k outputs y, fitted to the draws in the cell.
With k = 0 a cell is a discrete output, and its table is the mean. Each of three independent lists gives the nodes at
which the tables of the other two are evaluated; see :mod:`sorted_kernel` for the average.
"""

from __future__ import annotations

import numpy as np
from numba import njit

#: Relative increase of the variances of outputs in a cell. It keeps the fit regular where outputs hardly vary.
_RIDGE = 1e-3


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def products(y: np.ndarray, cells: np.ndarray, count: int, columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return averages (C, C) of products of conditional means of the columns, summed over fields; not symmetrised.

    Parameters
    ----------
    y : array (fields, 3, k, N)
        Outputs.
    cells : array (fields, 3, 3, N)
        Numbers of cells: ``cells[f, a, b]`` are the cells of list a in which the draws of list b lie.
    count : int
        Number of cells of a list.
    columns : array (fields, 3, N, C)
        Values c whose conditional means are multiplied.
    weights : array (fields, 3, N)
        Weights with mean one.
    """
    fields, lists, k, N = y.shape
    C = columns.shape[-1]
    total, at = np.zeros((C, C)), np.empty((2, N, C))
    boxes, tables = np.empty((lists, count, 3, k)), np.empty((lists, count, 1 + k, C))
    for f in range(fields):
        for one in range(lists):
            _fit(y[f, one], cells[f, one, one], columns[f, one], weights[f, one], boxes[one], tables[one])
        for one in range(lists):
            for t in range(2):
                other = (one + 1 + t) % lists
                _look_up(y[f, one], cells[f, other, one], boxes[other], tables[other], at[t])
            for draw in range(N):
                weight = weights[f, one, draw]
                for p in range(C):
                    own, a = weight * columns[f, one, draw, p], weight * at[0, draw, p]
                    for q in range(C):
                        total[p, q] += own * (at[0, draw, q] + at[1, draw, q]) - a * at[1, draw, q]
    return total / (lists * N)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _fit(y, cells, columns, weights, boxes, tables) -> None:
    """Fit every cell of one list: write output ranges to ``boxes`` and linear functions to ``tables``.

    ``boxes`` (count, 3, k): smallest, mean and largest outputs. ``tables`` (count, 1 + k, C): means of the columns
    (N, C), and their slopes in the outputs y (k, N). ``cells`` (N,) are the draws' cells.
    """
    count, _, k = boxes.shape
    C, mass, covariances = columns.shape[1], np.zeros(count), np.zeros((count, k, k))
    boxes[:, 0], boxes[:, 1], boxes[:, 2], tables[:] = np.inf, 0.0, -np.inf, 0.0
    for draw in range(len(cells)):
        cell, weight = cells[draw], weights[draw]
        mass[cell] += weight
        for i in range(k):
            boxes[cell, 0, i] = min(boxes[cell, 0, i], y[i, draw])
            boxes[cell, 2, i] = max(boxes[cell, 2, i], y[i, draw])
            boxes[cell, 1, i] += weight * y[i, draw]
        for p in range(C):
            tables[cell, 0, p] += weight * columns[draw, p]
    for cell in range(count):
        for i in range(k):
            boxes[cell, 1, i] /= mass[cell]
        for p in range(C):
            tables[cell, 0, p] /= max(mass[cell], 1e-300)  # zero for a label without draws
    for draw in range(len(cells)):
        cell = cells[draw]
        for i in range(k):
            away = weights[draw] * (y[i, draw] - boxes[cell, 1, i])
            for j in range(k):
                covariances[cell, i, j] += away * (y[j, draw] - boxes[cell, 1, j])
            for p in range(C):
                tables[cell, 1 + i, p] += away * columns[draw, p]
    for cell in range(count):
        for i in range(k):
            covariances[cell, i, i] = (1 + _RIDGE) * covariances[cell, i, i] + 1e-300
        _solve(covariances[cell], tables[cell, 1:])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _solve(matrix, right) -> None:
    """Replace ``right`` (k, C) by the solution x of matrix x = right; ``matrix`` (k, k) is overwritten."""
    k, C = right.shape
    for i in range(k):
        for j in range(i + 1, k):
            factor = matrix[j, i] / matrix[i, i]
            for m in range(i, k):
                matrix[j, m] -= factor * matrix[i, m]
            for p in range(C):
                right[j, p] -= factor * right[i, p]
    for i in range(k - 1, -1, -1):
        for p in range(C):
            for m in range(i + 1, k):
                right[i, p] -= matrix[i, m] * right[m, p]
            right[i, p] /= matrix[i, i]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _look_up(y, cells, boxes, tables, result) -> None:
    """Write the values of a table at outputs y (k, N) in ``cells`` (N,) to ``result`` (N, C).

    They are linear in a cell, and constant beyond its extreme outputs; ``boxes`` and ``tables`` come from ``_fit``.
    """
    k, C = len(y), result.shape[1]
    for draw in range(len(cells)):
        cell = cells[draw]
        for p in range(C):
            result[draw, p] = tables[cell, 0, p]
        for i in range(k):
            away = min(max(y[i, draw], boxes[cell, 0, i]), boxes[cell, 2, i]) - boxes[cell, 1, i]
            for p in range(C):
                result[draw, p] += away * tables[cell, 1 + i, p]
