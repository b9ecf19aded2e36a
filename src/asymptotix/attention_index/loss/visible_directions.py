"""Coordinates in which a row softmax of a symmetric matrix has no flat direction.

A symmetric T x T pre-activation is written h_ab = sqrt(1 + delta_ab) z_ab with z = (z_ab), a <= b, row by row: L =
T(T+1)/2 numbers of equal variance. The softmax of its rows does not change under h -> h + c, which moves z along v_ab =
1/sqrt(1 + delta_ab). No other direction is invisible, so r = E^T z with an orthonormal basis E of the N = L - 1
dimensions orthogonal to v holds all that the softmax sees.

Boncoraglio et al., arXiv:2509.24914, Appendix C, eqs. (60)-(63); in eq. (61) logarithms of the outputs are missing.

Equation ai-loss of docs/theory/attention_index.md.
"""

from __future__ import annotations

import math

import numpy as np


def pair_weights(tokens: int) -> np.ndarray:
    """Return the factors sqrt(1 + delta_ab) from z_ab to h_ab, for the L pairs a <= b (L,)."""
    first, second = np.triu_indices(tokens)
    return np.sqrt(1.0 + (first == second))


def entry_places(tokens: int) -> np.ndarray:
    """Return an array (T, T) with the position of every (a, b) among the L pairs a <= b."""
    place = np.zeros((tokens, tokens), dtype=int)
    first, second = np.triu_indices(tokens)
    place[first, second] = place[second, first] = np.arange(len(first))
    return place


def symmetric(tokens: int, entries: np.ndarray) -> np.ndarray:
    """Return an array (T*T, k) with a row for every (a, b), from ``entries`` (L, k) with one for every a <= b."""
    return entries[entry_places(tokens).ravel()]


def visible_basis(tokens: int) -> np.ndarray:
    """Return E (L, N), whose orthonormal columns are orthogonal to v_ab = 1/sqrt(1 + delta_ab), invisible to a softmax.

    For two tokens the columns are (1, 0, -1)/sqrt2 and (1/2, -1/sqrt2, 1/2), odd and even under exchange of the tokens.
    For more tokens a reflection maps v to an axis, and E contains its columns for all other axes.
    """
    if tokens == 2:
        root = math.sqrt(0.5)
        return np.array([[root, 0.5], [0.0, -root], [-root, 0.5]])
    invisible = 1 / pair_weights(tokens)
    mirror = invisible / np.linalg.norm(invisible)
    mirror[0] += 1.0
    reflection = np.eye(len(mirror)) - 2 * np.outer(mirror, mirror) / (mirror @ mirror)
    return np.ascontiguousarray(reflection[:, 1:])


def logit_matrix(tokens: int) -> np.ndarray:
    """Return B (T*T, N), which maps visible coordinates r to pre-activations h = B r, row by row."""
    return np.ascontiguousarray(symmetric(tokens, pair_weights(tokens)[:, None] * visible_basis(tokens)))
