"""Stored kernels of all pairs of paths: one pass over them gives K(U), another the slope of its log-determinant.

    K^{mu nu} = (s_0 / d) sum_{pi pi'} U^{pi pi'} C_{pi pi'}^{mu nu},  C_{pi pi'}^{mu nu} = xi^pi(mu) . xi^pi'(nu) / N0.

C_{pi pi'} and C_{pi' pi} enter as their sum, which is symmetric in the examples: a quarter of the d^2 P^2 numbers is
stored. Memory bandwidth limits a pass over them; computing K from the inputs takes d N0 P^2 products instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SMALL_BYTES, LARGE_BYTES = 64 * 2**20, 640 * 2**20
"""Largest stored table in bytes: in general, and if tokens have so many features that it saves most of the work."""


def table_bytes(examples: int, paths: int, features: int) -> int:
    """Return the memory of the table in bytes, or 0 where none is stored; ``features`` is N0, the size of a token."""
    needed = 2 * examples * (examples + 1) * paths * (paths + 1)
    return needed if needed <= (LARGE_BYTES if 2 * (paths + 1) <= features else SMALL_BYTES) else 0


class PathTable:
    """Sums (s_0 / d) (C_{pi pi'} + C_{pi' pi}) for pi < pi', and (s_0 / d) C_{pi pi}, for examples mu <= nu.

    Parameters
    ----------
    features
        Scaled inputs of the paths, (d, r, P).
    """

    def __init__(self, features: NDArray) -> None:
        self.paths, _, self.examples = features.shape
        self._pairs, pairs = np.triu_indices(self.paths), self.paths * (self.paths + 1) // 2
        rows, columns = np.triu_indices(self.examples)
        self._places = self.examples * rows + columns
        self.sums = np.empty((pairs, len(rows)), features.dtype)
        for place, (first, second) in enumerate(zip(*self._pairs, strict=True)):
            block = features[first].T @ features[second]
            self.sums[place] = (block if first == second else block + block.T).ravel()[self._places]
        # Each off-diagonal entry occurs twice in a symmetric matrix.
        self._count = np.where(rows == columns, 1.0, 2.0)

    def lower_kernel(self, U: NDArray) -> NDArray:
        """Return the lower triangle of K in Fortran order, as LAPACK reads it."""
        upper = np.zeros((self.examples, self.examples))
        upper.ravel()[self._places] = U[self._pairs] @ self.sums
        return upper.T

    def slope(self, lower: NDArray) -> NDArray:
        """Return D^{pi pi'} = (s_0 / d) sum_{mu nu} A^{mu nu} C_{pi pi'}^{mu nu}, (d, d).

        ``lower`` (P, P) is the lower triangle of A = (K + T I)^-1.
        """
        A = np.ascontiguousarray(lower.T).ravel()[self._places] * self._count
        half = np.zeros((self.paths, self.paths))
        half[self._pairs] = 0.5 * (self.sums @ A)
        return half + half.T
