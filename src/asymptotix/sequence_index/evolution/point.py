"""A point of the dynamics: the sample ratio alpha, the learned subspace, and the overlap on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...numerics.linear_algebra import from_logit
from ..channels.row_symmetry import RowSymmetry
from .coordinates import Coordinates


@dataclass(frozen=True, eq=False)
class Point:
    """An overlap at one sample ratio, in coordinates on the learned subspace: the state of dynamics and searches.

    Attributes
    ----------
    alpha : float
        Samples per dimension, n = alpha D.
    space : Coordinates
        The learned subspace of index space.
    x : array (m,)
        Coordinates of the overlap on this subspace: the matrix of logits log(q/v).
    """

    alpha: float
    space: Coordinates
    x: np.ndarray

    @classmethod
    def nothing(
        cls,
        alpha: float,
        indices: int,
        diagonal: bool,
        held: Mapping[int, float] | None = None,
        symmetry: RowSymmetry | None = None,
    ) -> Point:
        """Return the point with zero overlap of all indices that are not held. It has no coordinates."""
        space = Coordinates.of_rows(np.zeros(indices, bool), diagonal, held)
        return cls(alpha, replace(space, symmetry=symmetry), np.zeros(0))

    @classmethod
    def of_overlap(
        cls,
        alpha: float,
        Q: np.ndarray,
        V: np.ndarray,
        diagonal: bool,
        held: Mapping[int, float] | None = None,
        symmetry: RowSymmetry | None = None,
    ) -> Point:
        """Return the point of an overlap Q (P, P) with posterior variance V = I - Q. Its range is the learned subspace.

        Entries of Q of the ``held`` indices are not used.
        """
        return cls(alpha, *Coordinates.of_overlap(Q, V, diagonal, held, symmetry))

    @cached_property
    def _overlap(self) -> tuple[np.ndarray, np.ndarray]:
        return self.space.overlap(self.x)

    @property
    def Q(self) -> np.ndarray:
        """Overlap (P, P)."""
        return self._overlap[0]

    @property
    def V(self) -> np.ndarray:
        """Posterior variance I - Q (P, P), to full relative accuracy."""
        return self._overlap[1]

    @property
    def tangent(self) -> np.ndarray:
        """dQ/dx as matrices (m, P, P)."""
        return self.space.tangent(self.x)

    @cached_property
    def logits(self) -> np.ndarray:
        """log(q/v) of the principal overlaps on the learned subspace, ascending."""
        return self.space.logits(self.x)

    @property
    def largest_variance(self) -> float:
        """The largest 1-q of these principal overlaps."""
        return float(from_logit(self.logits)[1].max())

    @property
    def learned(self) -> int:
        """Number of directions that are learned or known."""
        return self.space.learned

    def moved(self, x: np.ndarray) -> Point:
        """Return the point with other coordinates on the same subspace."""
        return replace(self, x=x)

    def at(self, alpha: float) -> Point:
        """Return the point with the same overlap at another alpha."""
        return replace(self, alpha=alpha)

    def enlarged(self, hat: np.ndarray) -> Point:
        """Return the point with new directions: the range of ``hat`` = Qhat (P, P), zero on the learned subspace."""
        return Point(self.alpha, *self.space.enlarged(self.x, hat))

    def without(self, below: float) -> Point:
        """Return the point without the principal directions whose logit is below a bound."""
        return Point(self.alpha, *self.space.without(self.x, below))

    def pinned(self) -> Point:
        """Return the point with the principal directions at the largest precision counted as known."""
        return Point(self.alpha, *self.space.pinned(self.x))

    def turned(self, frame: np.ndarray) -> Point:
        """Return the point moved to the nearby subspace that the columns of ``frame`` (P, k) span."""
        return Point(self.alpha, *self.space.turned(self.x, frame))

    def aimed(self, hat: np.ndarray) -> Point:
        """Return the point with known directions turned to the leading eigenvectors of ``hat`` = Qhat (P, P)."""
        return Point(self.alpha, *self.space.aimed(self.x, hat))
