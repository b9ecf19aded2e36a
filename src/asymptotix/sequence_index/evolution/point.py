"""A point of the dynamics: the sample ratio alpha, the learned subspace, and the overlap on this subspace."""

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
        The learned subspace of the P indices.
    x : array (m,)
        Coordinates of the overlap on this subspace: of its matrix of logits log(q/(1-q)).
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
        """Return the point with zero overlap of all indices that are not held; it has no coordinates (m = 0).

        ``held``: index -> fixed overlap. ``diagonal``, ``symmetry``: those of overlaps, see :class:`Coordinates`.
        """
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
        """Return the point of an overlap Q (P, P) with posterior variance V = I - Q; range of Q: the learned subspace.

        Entries of Q of the indices in ``held`` (index -> fixed overlap) are ignored. ``diagonal``, ``symmetry``: those
        of overlaps, see :class:`Coordinates`.
        """
        return cls(alpha, *Coordinates.of_overlap(Q, V, diagonal, held, symmetry))

    @cached_property
    def _overlap(self) -> tuple[np.ndarray, np.ndarray]:
        return self.space.overlap(self.x)

    @property
    def Q(self) -> np.ndarray:
        """Overlap matrix (P, P) of all indices."""
        return self._overlap[0]

    @property
    def V(self) -> np.ndarray:
        """Posterior variance I - Q (P, P), to full relative accuracy."""
        return self._overlap[1]

    @property
    def tangent(self) -> np.ndarray:
        """Derivatives dQ/dx_a (m, P, P) of the overlap in its m coordinates."""
        return self.space.tangent(self.x)

    @cached_property
    def logits(self) -> np.ndarray:
        """log(q/(1-q)) of the principal overlaps q on the learned subspace (k,), ascending."""
        return self.space.logits(self.x)

    @property
    def largest_variance(self) -> float:
        """The largest 1-q of the principal overlaps q on the learned subspace."""
        return float(from_logit(self.logits)[1].max())

    @property
    def learned(self) -> int:
        """Number of learned directions plus number of known ones (overlap fixed at 1 - 1e-6)."""
        return self.space.learned

    def moved(self, x: np.ndarray) -> Point:
        """Return the point with coordinates x (m,) on the same subspace."""
        return replace(self, x=x)

    def at(self, alpha: float) -> Point:
        """Return the point with the same overlap at another alpha."""
        return replace(self, alpha=alpha)

    def enlarged(self, hat: np.ndarray) -> Point:
        """Return the point with new learned directions: the range of ``hat`` (P, P), their precision Q(I-Q)^{-1}."""
        return Point(self.alpha, *self.space.enlarged(self.x, hat))

    def without(self, below: float) -> Point:
        """Return the point without the principal directions whose logit log(q/(1-q)) is less than ``below``."""
        return Point(self.alpha, *self.space.without(self.x, below))

    def pinned(self) -> Point:
        """Return the point whose principal directions with 1-q = 1e-6 are known, that is, without coordinates."""
        return Point(self.alpha, *self.space.pinned(self.x))

    def turned(self, frame: np.ndarray) -> Point:
        """Return the point with its overlap rotated to the nearby span of the columns of ``frame`` (P, k)."""
        return Point(self.alpha, *self.space.turned(self.x, frame))

    def aimed(self, hat: np.ndarray) -> Point:
        """Return the point with known directions (1-q = 1e-6) turned to leading eigenvectors of the matrix ``hat``."""
        return Point(self.alpha, *self.space.aimed(self.x, hat))
