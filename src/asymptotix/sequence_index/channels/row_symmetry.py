"""Symmetries of an output: signed permutations of the index rows that leave its law unchanged.

Where the law of the output is invariant under a signed permutation h of the rows, E[g g^T] at the posterior variance
h V h^T is h E[g g^T] h^T: an overlap that starts from zero keeps all such symmetries. Finite nodes and draws break them
slightly, and equivalent directions would then be learned one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product

import numpy as np

from ...numerics.linear_algebra import symmetric_basis

#: Largest number of rows for which all signed permutations are tested: 384 for four rows.
MOST_ROWS = 4
#: Number of index matrices in the first test, and in the second test of the permutations that pass; factor by which
#: every second matrix is enlarged. With a factor of one, a change that shows only at large indices is missed.
_TRIED, _TRIED_AGAIN, _LARGE = 16, 2**12, 2.0
#: Largest relative change of an output that counts as rounding.
_ROUNDING = 1e-9
#: Largest relative change of an overlap that counts as invariant: overlaps come from iterations.
_SAME_OVERLAP = 1e-7

#: An output as a function of index matrices (n, P, M).
Output = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class RowSymmetry:
    """A group of signed permutations of the index rows, as matrices (g, P, P)."""

    elements: np.ndarray

    @classmethod
    def of_output(cls, output: Output, rows: int, tokens: int, seed: int) -> RowSymmetry:
        """Return the signed permutations of P = ``rows`` index rows that leave an output unchanged, or mirror it.

        ``output`` maps index matrices (n, P, M) to values (n, k) of order one. For P > ``MOST_ROWS`` only the unit
        matrix is returned.
        """
        every = _signed_permutations(rows) if rows <= MOST_ROWS else np.eye(rows)[None]
        return cls(_unseen(every, output, tokens, seed, or_reflected=True))

    def unseen_by(self, output: Output, tokens: int, seed: int) -> RowSymmetry:
        """Return the subgroup that leaves ``output``, a function of index matrices (n, P, M), exactly unchanged."""
        if len(self.elements) == 1:
            return self
        return RowSymmetry(_unseen(self.elements, output, tokens, seed, or_reflected=False))

    @cached_property
    def trivial(self) -> bool:
        """Whether the group is the unit matrix alone, or with its negative: every overlap is then invariant."""
        return bool((abs(np.einsum("gpp->g", self.elements)) == self.elements.shape[1]).all())

    @cached_property
    def exchangeable(self) -> bool:
        """Whether every row can be moved to the position of every other row by an element of the group."""
        return bool(self.elements.any(0).all())

    def of(self, matrix: np.ndarray) -> RowSymmetry:
        """Return the subgroup under which a positive matrix (P, P) is invariant."""
        if self.trivial:
            return self
        away = abs(self.elements @ matrix @ np.swapaxes(self.elements, 1, 2) - matrix).max((1, 2))
        return RowSymmetry(self.elements[away <= _SAME_OVERLAP * abs(matrix).max()])

    def fixing(self, matrix: np.ndarray) -> RowSymmetry:
        """Return the subgroup that leaves every vector in the range of a positive matrix (P, P) unchanged."""
        away = abs(self.elements @ matrix - matrix).max((1, 2))
        return RowSymmetry(self.elements[away <= _SAME_OVERLAP * abs(matrix).max()])

    @property
    def fixed(self) -> np.ndarray:
        """Projector (P, P) on the vectors that every element leaves unchanged."""
        return self.elements.mean(0)

    def averaged(self, matrices: np.ndarray) -> np.ndarray:
        """Return, for every matrix A of ``matrices`` (..., P, P), the mean of h A h^T over the elements h."""
        if self.trivial:
            return matrices
        h = self.elements
        return np.einsum("gpi,...ij,gqj->...pq", h, matrices, h, optimize=True) / len(h)

    def averaged_moments(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return first (n, P, M) and second (n, P, M, P, M) moments of index matrices, each averaged over the group."""
        (n, P, M), h = first.shape, self.elements
        if len(h) == 1:
            return first, second
        pairs = np.einsum("gpi,gqj->pqij", h, h, optimize=True).reshape(P * P, P * P) / len(h)
        second = pairs @ np.swapaxes(second, 2, 3).reshape(n, P * P, M * M)
        return h.mean(0) @ first, np.swapaxes(second.reshape(n, P, P, M, M), 2, 3)

    def on_matrices(self, frame: np.ndarray) -> np.ndarray:
        """Return matrices (g, b, b) by which elements h act on symmetric matrices X (d, d): X -> H X H^T, H = F^T h F.

        F is ``frame`` (P, d), with orthonormal columns. X is expressed in the b = d (d + 1)/2 matrices of
        :func:`symmetric_basis`. Elements that do not map the span of F to itself are left out.
        """
        turned = np.swapaxes(frame, 0, 1) @ self.elements @ frame
        kept = abs(turned @ np.swapaxes(turned, 1, 2) - np.eye(frame.shape[1])).max((1, 2), initial=0.0) < 1e-7
        turned, basis = turned[kept], symmetric_basis(frame.shape[1])
        return np.einsum("aij,gik,bkl,gjl->gab", basis, turned, basis, turned, optimize=True)


def probes(rows: int, tokens: int, seed: int, count: int = _TRIED_AGAIN) -> np.ndarray:
    """Return index matrices (count, P, M) at which symmetries are tested; every second one is twice as large."""
    Z = np.random.default_rng(seed).standard_normal((count, rows, tokens))
    Z[1::2] *= _LARGE
    return Z


def same_outputs(there: np.ndarray, here: np.ndarray) -> bool:
    """Return whether two arrays of outputs (n, k) are equal up to rounding."""
    return bool(_alike(there, here).all())


def _alike(there: np.ndarray, here: np.ndarray) -> np.ndarray:
    return abs(there - here) <= _ROUNDING * (1 + abs(here))


def _reflected(there: np.ndarray, here: np.ndarray) -> bool:
    """Return whether each of k outputs ``there`` (n, k) equals that of ``here`` (n, k) or is a constant minus it."""
    centre = there[0] + here[0]
    mirrored = _alike(centre - there, here).all(0)
    return bool((mirrored | _alike(there, here).all(0)).all())


def _unseen(elements: np.ndarray, output: Output, tokens: int, seed: int, or_reflected: bool) -> np.ndarray:
    """Return the elements of a group (g, P, P) that leave an output unchanged or, if allowed, mirror it.

    If the tests caught only some elements of a broken symmetry, the remaining elements are no group; then the unit
    matrix alone is returned.
    """
    rows, unchanged = elements.shape[1], _reflected if or_reflected else same_outputs
    for count in (_TRIED, _TRIED_AGAIN):
        Z = probes(rows, tokens, seed, count)
        own = np.asarray(output(Z), float)
        elements = elements[[unchanged(np.asarray(output(h @ Z), float), own) for h in elements]]
    return elements if _closed(elements) else np.eye(rows)[None]


def _closed(elements: np.ndarray) -> bool:
    """Return whether all products of the elements are among them."""
    code = 3.0 ** np.arange(elements[0].size)  # entries are -1, 0 and 1
    products = np.einsum("gpq,hqr->ghpr", elements, elements, optimize=True).reshape(-1, len(code))
    return bool(np.isin(products @ code, elements.reshape(-1, len(code)) @ code).all())


def _signed_permutations(rows: int) -> np.ndarray:
    """Return all signed permutations of P rows, as matrices (2^P P!, P, P)."""
    signs = np.array(list(product((1.0, -1.0), repeat=rows)))
    orders = np.eye(rows)[np.array(list(permutations(range(rows))))]
    return (signs[:, None, :, None] * orders).reshape(-1, rows, rows)
