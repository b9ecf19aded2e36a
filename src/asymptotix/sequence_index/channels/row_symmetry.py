"""Index rows that may be exchanged, or change their signs together, unseen.

Where the law of the output stays the same under a signed permutation h of the rows, E[g g^T] at the posterior variance
h V h^T is h E[g g^T] h^T: from nothing, overlaps keep all such symmetries. Nodes and draws break them a little, and
what is the same for three directions would be learned one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product

import numpy as np

from ...numerics.linear_algebra import symmetric_basis

#: Rows up to which all signed permutations are tried: 384 of four.
MOST_ROWS = 4
#: Index matrices at which all of them are, and those that pass once more; what a link does with the few that are large
#: is easily missed, so that half of them are.
_TRIED, _TRIED_AGAIN, _LARGE = 16, 2**12, 2.0
#: Largest relative change of an output that counts as rounding.
_ROUNDING = 1e-9
#: Largest relative change of an overlap up to which it has a symmetry: its directions come from iterations.
_SAME_OVERLAP = 1e-7

#: An output as a function of index matrices (n, P, M).
Output = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class RowSymmetry:
    """A group of signed permutations of the index rows, as matrices (g, P, P)."""

    elements: np.ndarray

    @classmethod
    def of_output(cls, output: Output, rows: int, tokens: int, seed: int) -> RowSymmetry:
        """Return the symmetries of the index rows that leave an output of order one unchanged, or reflect it."""
        every = _signed_permutations(rows) if rows <= MOST_ROWS else np.eye(rows)[None]
        return cls(_unseen(every, output, tokens, seed, or_reflected=True))

    def unseen_by(self, output: Output, tokens: int, seed: int) -> RowSymmetry:
        """Return the subgroup that leaves an output unchanged, and so every posterior at zero overlap."""
        return RowSymmetry(_unseen(self.elements, output, tokens, seed, or_reflected=False))

    @cached_property
    def trivial(self) -> bool:
        """Whether no overlap knows anything of it: there is the unit matrix alone, or with its negative."""
        return bool((abs(np.einsum("gpp->g", self.elements)) == self.elements.shape[1]).all())

    @cached_property
    def exchangeable(self) -> bool:
        """Whether every row may take the place of every other."""
        return bool(self.elements.any(0).all())

    def of(self, matrix: np.ndarray) -> RowSymmetry:
        """The part of it that a positive matrix (P, P) has too."""
        if self.trivial:
            return self
        away = abs(self.elements @ matrix @ np.swapaxes(self.elements, 1, 2) - matrix).max((1, 2))
        return RowSymmetry(self.elements[away <= _SAME_OVERLAP * abs(matrix).max()])

    def fixing(self, matrix: np.ndarray) -> RowSymmetry:
        """The part of it that leaves every vector in the range of a positive matrix (P, P) where it is."""
        away = abs(self.elements @ matrix - matrix).max((1, 2))
        return RowSymmetry(self.elements[away <= _SAME_OVERLAP * abs(matrix).max()])

    @property
    def fixed(self) -> np.ndarray:
        """Projector (P, P) on the vectors that all of it leaves where they are."""
        return self.elements.mean(0)

    def averaged(self, matrices: np.ndarray) -> np.ndarray:
        """Matrices (..., P, P), each made symmetric under all of it."""
        if self.trivial:
            return matrices
        h = self.elements
        return np.einsum("gpi,...ij,gqj->...pq", h, matrices, h, optimize=True) / len(h)

    def averaged_moments(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Moments (n, P, M) and (n, P, M, P, M) of index matrices, each averaged over all of it."""
        (n, P, M), h = first.shape, self.elements
        if len(h) == 1:
            return first, second
        pairs = np.einsum("gpi,gqj->pqij", h, h, optimize=True).reshape(P * P, P * P) / len(h)
        second = pairs @ np.swapaxes(second, 2, 3).reshape(n, P * P, M * M)
        return h.mean(0) @ first, np.swapaxes(second.reshape(n, P, P, M, M), 2, 3)

    def on_matrices(self, frame: np.ndarray) -> np.ndarray:
        """How it acts on the symmetric matrices on the span of ``frame`` (P, d), in their basis, (g, b, b).

        Elements that do not keep that span are left out.
        """
        turned = np.swapaxes(frame, 0, 1) @ self.elements @ frame
        kept = abs(turned @ np.swapaxes(turned, 1, 2) - np.eye(frame.shape[1])).max((1, 2), initial=0.0) < 1e-7
        turned, basis = turned[kept], symmetric_basis(frame.shape[1])
        return np.einsum("aij,gik,bkl,gjl->gab", basis, turned, basis, turned, optimize=True)


def probes(rows: int, tokens: int, seed: int, count: int = _TRIED_AGAIN) -> np.ndarray:
    """Index matrices (n, P, M) at which an output is tried for a symmetry, every second one of them large."""
    Z = np.random.default_rng(seed).standard_normal((count, rows, tokens))
    Z[1::2] *= _LARGE
    return Z


def same_outputs(there: np.ndarray, here: np.ndarray) -> bool:
    """Whether outputs (n, k) are equal up to rounding."""
    return bool(_alike(there, here).all())


def _alike(there: np.ndarray, here: np.ndarray) -> np.ndarray:
    return abs(there - here) <= _ROUNDING * (1 + abs(here))


def _reflected(there: np.ndarray, here: np.ndarray) -> bool:
    """Whether every output (n, k) is equal to the other or to its mirror image; the noise has both symmetries."""
    centre = there[0] + here[0]
    mirrored = _alike(centre - there, here).all(0)
    return bool((mirrored | _alike(there, here).all(0)).all())


def _unseen(elements: np.ndarray, output: Output, tokens: int, seed: int, or_reflected: bool) -> np.ndarray:
    """Those of a group's elements (g, P, P) that an output does not show; the unit matrix alone if they are no group.

    That is so where what breaks a symmetry is so rare that some of its elements were not caught.
    """
    rows, unchanged = elements.shape[1], _reflected if or_reflected else same_outputs
    for count in (_TRIED, _TRIED_AGAIN):
        Z = probes(rows, tokens, seed, count)
        own = np.asarray(output(Z), float)
        elements = elements[[unchanged(np.asarray(output(h @ Z), float), own) for h in elements]]
    return elements if _closed(elements) else np.eye(rows)[None]


def _closed(elements: np.ndarray) -> bool:
    """Whether all products of the elements are among them."""
    code = 3.0 ** np.arange(elements[0].size)  # entries are -1, 0 and 1
    products = np.einsum("gpq,hqr->ghpr", elements, elements, optimize=True).reshape(-1, len(code))
    return bool(np.isin(products @ code, elements.reshape(-1, len(code)) @ code).all())


def _signed_permutations(rows: int) -> np.ndarray:
    """All of them, as matrices (2^P P!, P, P)."""
    signs = np.array(list(product((1.0, -1.0), repeat=rows)))
    orders = np.eye(rows)[np.array(list(permutations(range(rows))))]
    return (signs[:, None, :, None] * orders).reshape(-1, rows, rows)
