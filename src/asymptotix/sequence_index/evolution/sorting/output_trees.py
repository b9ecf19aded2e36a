"""Cells of draws with similar outputs of several numbers: the leaves of binary trees; compiled with numba.

A tree cuts the draws of one list in two at every node, along one output. Draws of other lists are then sorted into its
leaves. Cuts are random, so that the smoothing errors of different trees have little in common.
"""

from __future__ import annotations

import numpy as np
from numba import njit

#: Smallest share of the draws of a node that lie below its cut, and width of the range of this random share.
_SHARE, _MORE = 0.35, 0.3


@njit(cache=True, nogil=True, error_model="numpy")
def leaves(y: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Return leaf numbers (fields, trees, lists, N): ``[f, a, b]`` are those of list b's draws in the tree of list a.

    Parameters
    ----------
    y : array (fields, lists, k, N)
        Outputs.
    cuts : array (fields, lists, nodes, 2)
        Uniform numbers that set along which output a node is cut, and where; ``nodes`` is a power of two less one.
    """
    fields, lists, _, N = y.shape
    nodes = cuts.shape[2]
    found = np.empty((fields, lists, lists, N), np.int16)
    axes, values = np.empty(nodes, np.int64), np.empty(nodes)
    for f in range(fields):
        for tree in range(lists):
            _divide(y[f, tree], cuts[f, tree], axes, values, found[f, tree, tree])
            for other in range(lists):
                if other != tree:
                    _lead(y[f, other], axes, values, found[f, tree, other])
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def _divide(y, cuts, axes, values, found) -> None:
    """Build a tree on draws y (k, N): write the output and value of every cut, and the leaf of every draw.

    They go to ``axes`` (nodes,), ``values`` (nodes,) and ``found`` (N,); ``cuts`` (nodes, 2) are uniform numbers.
    """
    k, N = y.shape
    nodes, places = len(cuts), np.arange(N)
    low, high = np.zeros(2 * nodes + 1, np.int64), np.zeros(2 * nodes + 1, np.int64)
    high[0] = N
    for node in range(nodes):
        a, b = low[node], high[node]
        axis = min(int(cuts[node, 0] * k), k - 1)
        middle = a + int((_SHARE + _MORE * cuts[node, 1]) * (b - a))
        _select(places, y[axis], a, b, middle)
        largest = y[axis, places[a]]
        for place in range(a, middle):
            largest = max(largest, y[axis, places[place]])
        axes[node], values[node] = axis, 0.5 * (largest + y[axis, places[middle]])
        low[2 * node + 1], high[2 * node + 1], low[2 * node + 2], high[2 * node + 2] = a, middle, middle, b
    for leaf in range(nodes + 1):
        for place in range(low[nodes + leaf], high[nodes + leaf]):
            found[places[place]] = leaf


@njit(cache=True, nogil=True, error_model="numpy")
def _select(places, values, low, high, middle) -> None:
    """Reorder ``places[low:high]`` so that no value before position ``middle`` exceeds any value from it on.

    The value of a place p is ``values[p]``.
    """
    high -= 1
    while low < high:
        pivot = values[places[(low + high) // 2]]
        i, j = low, high
        while i <= j:
            while values[places[i]] < pivot:
                i += 1
            while values[places[j]] > pivot:
                j -= 1
            if i <= j:
                places[i], places[j] = places[j], places[i]
                i, j = i + 1, j - 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@njit(cache=True, nogil=True, error_model="numpy")
def _lead(y, axes, values, found) -> None:
    """Write the leaves of draws y (k, N) of another list to ``found`` (N,), by a tree's ``axes`` and ``values``."""
    nodes = len(axes)
    for draw in range(len(found)):
        node = 0
        while node < nodes:
            node = 2 * node + (1 if y[axes[node], draw] < values[node] else 2)
        found[draw] = node - nodes
