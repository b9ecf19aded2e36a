"""Averages of products of conditional means, from lists of draws that are sorted by their output; compiled with numba.

The weighted means of neighbours in a list are a table of E[c|y], with linear interpolation. Each of three independent
lists gives the nodes at which the tables a and b of the other two are evaluated:

    E[E[c|y] E[c|y]^T] = E[c b(y)^T] + E[a(y) c^T] - E[a(y) b(y)^T] + E[(a - E[c|y]) (b - E[c|y])^T].

The last term is left out: its noise has mean zero, and it is of second order in the smoothing of the tables.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def products(
    y: np.ndarray, order: np.ndarray, columns: np.ndarray, weights: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Return averages (C, C) of products of conditional means of the columns, summed over fields; not symmetrised.

    Parameters
    ----------
    y : array (fields, 3, N)
        Outputs.
    order : array (fields, 3, N)
        Indices that sort the outputs in ascending order.
    columns : array (fields, 3, N, C)
        Values c whose conditional means are multiplied.
    weights : array (fields, 3, N)
        Weights with mean one.
    edges : array (w + 1,)
        Positions in sorted order where the w windows of neighbours begin and end.
    """
    fields, lists, N, C = columns.shape
    windows, total = len(edges) - 1, np.zeros((C, C))
    outputs, mass, weighted = np.empty((lists, N)), np.empty((lists, N)), np.empty((lists, N, C))
    centres, means, at = np.empty((lists, windows)), np.empty((lists, windows, C)), np.empty((2, N, C))
    for f in range(fields):
        for one in range(lists):
            for k in range(N):
                place = order[f, one, k]
                outputs[one, k], mass[one, k] = y[f, one, place], weights[f, one, place]
                for p in range(C):
                    weighted[one, k, p] = mass[one, k] * columns[f, one, place, p]
            _tabulate(outputs[one], mass[one], weighted[one], edges, centres[one], means[one])
        for one in range(lists):
            for t in range(2):
                other = (one + 1 + t) % lists
                _interpolate(outputs[one], centres[other], means[other], at[t])
            for k in range(N):
                for p in range(C):
                    own, a = weighted[one, k, p], mass[one, k] * at[0, k, p]
                    for q in range(C):
                        total[p, q] += own * (at[0, k, q] + at[1, k, q]) - a * at[1, k, q]
    return total / (lists * N)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _tabulate(outputs, mass, weighted, edges, centres, means) -> None:
    """Write the mean output of every window to ``centres`` (w,) and the mean columns to ``means`` (w, C).

    ``outputs`` (N,) ascend, ``mass`` (N,) are weights, ``weighted`` (N, C) columns times weights.
    """
    C = weighted.shape[1]
    for window in range(len(centres)):
        total, output = 0.0, 0.0
        for p in range(C):
            means[window, p] = 0.0
        for k in range(edges[window], edges[window + 1]):
            total += mass[k]
            output += mass[k] * outputs[k]
            for p in range(C):
                means[window, p] += weighted[k, p]
        centres[window] = output / total
        for p in range(C):
            means[window, p] /= total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _interpolate(outputs, centres, means, result) -> None:
    """Write the table's values at ascending outputs (N,) to ``result`` (N, C).

    The table has ``means`` (w, C) at outputs ``centres`` (w,): linear between them, constant beyond.
    """
    place, last = 1, len(centres) - 1
    for k in range(len(outputs)):
        while place < last and centres[place] < outputs[k]:
            place += 1
        low, high = centres[place - 1], centres[place]
        share = (outputs[k] - low) / (high - low) if high > low else 0.5
        share = min(max(share, 0.0), 1.0)
        for p in range(means.shape[1]):
            result[k, p] = means[place - 1, p] + share * (means[place, p] - means[place - 1, p])
