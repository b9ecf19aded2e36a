"""Coordinates of a matrix overlap Q (P, P): the matrix of logits on the learned subspace.

Q = Qhat (I + Qhat)^{-1}, where Qhat is the precision that data and side information add to that of the prior. So
X = log Qhat is the matrix of logits: its eigenvectors are those of Q, its eigenvalues log(q/v) with v = 1 - q.
Directions that are not learned have Q = 0 and no coordinate. If Q is diagonal, the coordinates are the logits of its
diagonal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...numerics.linear_algebra import from_logit, symmetric_basis
from ..channels.row_symmetry import RowSymmetry

#: Smallest and largest precision q/(1-q) of a direction. At the largest, 1-q = 1e-6, a direction counts as known and
#: loses its coordinate, because its logit would grow without limit. The smallest only keeps the logarithm finite.
PRECISIONS = (1e-300, 1e6)
#: Smallest logit of a direction that counts as known: slightly less than the log of the largest precision, because
#: rounding reduces eigenvalues of a matrix of logits by some units in the last place.
KNOWN_LOGIT = np.log(PRECISIONS[1]) * (1 - 1e-12)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A learned subspace of R^P and a basis of the symmetric matrices on it.

    Parameters
    ----------
    frame : array (P, k)
        Orthonormal columns that span the learned subspace.
    diagonal : bool
        Whether the overlap stays diagonal; the columns of ``frame`` are then columns of the unit matrix.
    known : array (P, j), optional
        Orthonormal columns, orthogonal to ``frame``: known directions, with overlap 1 - 1e-6.
    held : mapping, optional
        Index -> fixed overlap of the held indices; their overlap with other indices is zero.
    symmetry : RowSymmetry, optional
        Permutations and sign changes of indices that leave the overlap unchanged; they reduce the number m.
    """

    frame: np.ndarray
    diagonal: bool
    known: np.ndarray | None = None
    held: Mapping[int, float] = field(default_factory=dict)
    symmetry: RowSymmetry | None = None

    @classmethod
    def of_rows(cls, rows: np.ndarray, diagonal: bool, held: Mapping[int, float] | None = None) -> Coordinates:
        """Return the subspace spanned by the indices in the mask ``rows`` (P,) that are not held.

        ``held`` maps an index to its fixed overlap. ``diagonal``: whether the overlap stays diagonal.
        """
        free = _not_held(len(rows), held) > 0
        return cls(np.eye(len(rows))[:, np.asarray(rows, bool) & free], diagonal, held=held or {})

    @classmethod
    def of_overlap(
        cls,
        Q: np.ndarray,
        V: np.ndarray,
        diagonal: bool,
        held: Mapping[int, float] | None = None,
        symmetry: RowSymmetry | None = None,
    ) -> tuple[Coordinates, np.ndarray]:
        """Return the range of the overlap Q (P, P) as the learned subspace, and the coordinates (m,) of Q on it.

        V is I - Q. ``diagonal``: only the diagonals are used. Entries of Q of the indices in ``held`` (index -> fixed
        overlap) are ignored. Unless ``diagonal``, the subspace gets the elements of ``symmetry`` that keep Q.
        """
        free = _not_held(len(Q), held)
        Q = free[:, None] * Q * free
        if diagonal:
            q, v = np.diag(Q), np.diag(V)
            return cls.of_rows(q > 0, True, held), (np.log(q[q > 0]) - np.log(v[q > 0]))
        values, vectors = np.linalg.eigh(Q)
        # 1 - q is taken from V, which is exact near full overlap.
        rest = np.einsum("pk,pq,qk->k", vectors, V, vectors)
        learned = values > 1e-12
        own = None if symmetry is None else symmetry.of(Q)
        space = cls(vectors[:, learned], False, held=held or {}, symmetry=own)
        return space, space._components(np.diag(np.log(values[learned]) - np.log(rest[learned])))

    @property
    def rank(self) -> int:
        """Dimension k of the learned subspace; known and held directions do not count."""
        return self.frame.shape[1]

    @property
    def certain(self) -> np.ndarray:
        """Orthonormal columns (P, j) of the known directions, whose overlap is fixed at 1 - 1e-6."""
        return self.frame[:, :0] if self.known is None else self.known

    @property
    def learned(self) -> int:
        """Number of learned directions plus number of known ones (overlap fixed at 1 - 1e-6)."""
        return self.rank + self.certain.shape[1]

    @cached_property
    def immobile(self) -> np.ndarray:
        """Orthonormal columns (P, .) of the directions with a fixed overlap: known directions, then held indices."""
        return np.concatenate([self.certain, np.eye(len(self.frame))[:, list(self.held)]], 1)

    @cached_property
    def complement(self) -> np.ndarray:
        """Orthonormal columns (P, .) of the directions that are neither learned nor known nor held."""
        both = np.concatenate([self.frame, self.immobile], 1)
        if self.diagonal:
            return np.eye(len(both))[:, ~both.any(1)]
        return np.linalg.svd(both)[0][:, both.shape[1] :] if both.shape[1] else np.eye(len(both))

    @cached_property
    def _basis(self) -> np.ndarray:
        if self.rank == 0:
            return np.zeros((0, 0, 0))
        basis = symmetric_basis(self.rank)
        if self.diagonal:
            return basis[np.einsum("akk->a", basis) > 0]
        if self.symmetry is None or self.symmetry.trivial:
            return basis
        values, vectors = np.linalg.eigh(self.symmetry.on_matrices(self.frame).mean(0))
        return np.einsum("ba,bij->aij", vectors[:, values > 0.5], basis)

    def _components(self, X: np.ndarray) -> np.ndarray:
        return np.einsum("aij,...ij->...a", self._basis, X)

    def _spectrum(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return eigenvalues (k,), ascending, and eigenvectors (P, k) of the matrix of logits with coordinates x."""
        if self.rank == 0:
            return np.zeros(0), self.frame
        logits, vectors = np.linalg.eigh(np.einsum("a,aij->ij", x, self._basis))
        return logits, self.frame @ vectors

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Return log(q/(1-q)) of the principal overlaps q (k,), ascending, for coordinates x (m,)."""
        return self._spectrum(x)[0]

    def overlap(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Q and V = I - Q (P, P) for coordinates x (m,), both to full relative accuracy of their eigenvalues."""
        logits, directions = self._spectrum(x)
        logits = np.concatenate([logits, np.full(self.certain.shape[1], np.log(PRECISIONS[1]))])
        directions = np.concatenate([directions, self.certain], 1)
        q, v = from_logit(logits)
        outside = self.complement @ self.complement.T
        Q, V = (directions * q) @ directions.T, (directions * v) @ directions.T + outside
        for index, overlap in self.held.items():
            v = max(1 - overlap, 1 / PRECISIONS[1])  # a channel divides by it
            Q[index, index], V[index, index] = min(overlap, 1 - v), v
        return Q, V

    def of_precision(self, hat: np.ndarray) -> np.ndarray:
        """Return coordinates (..., m) of log Qhat for precisions ``hat`` = Qhat (..., P, P) on the learned subspace."""
        inside = np.einsum("pi,...pq,qj->...ij", self.frame, hat, self.frame)
        if self.diagonal:
            return np.log(np.einsum("...ii->...i", inside).clip(*PRECISIONS))
        values, vectors = np.linalg.eigh(0.5 * (inside + np.swapaxes(inside, -1, -2)))
        logits = np.log(values.clip(*PRECISIONS))
        return self._components(np.einsum("...ik,...k,...jk->...ij", vectors, logits, vectors))

    def of_overlap_inside(self, Q: np.ndarray) -> np.ndarray | None:
        """Return coordinates (m,) of Q (P, P) on the learned subspace; None unless 0 < Q < 1 there."""
        inside = self.frame.T @ Q @ self.frame
        values = np.diag(inside) if self.diagonal else np.linalg.eigvalsh(inside)
        if not ((values > 0) & (values < 1)).all():
            return None
        hat = inside @ np.linalg.inv(np.eye(self.rank) - inside)
        return self.of_precision(self.frame @ hat @ self.frame.T)

    def tangent(self, x: np.ndarray) -> np.ndarray:
        """Return the derivatives dQ/dx_a (m, P, P) of the overlap at coordinates x (m,), from divided differences."""
        logits, directions = self._spectrum(x)
        q, v = from_logit(logits)
        gaps = logits[:, None] - logits[None, :]
        close = abs(gaps) < 1e-6
        slope = np.where(close, 0.5 * (q * v + (q * v)[:, None]), (q[:, None] - q) / np.where(close, 1.0, gaps))
        turn = self.frame.T @ directions
        inside = slope * np.einsum("ik,aij,jl->akl", turn, self._basis, turn)
        return np.einsum("pk,akl,ql->apq", directions, inside, directions)

    def enlarged(self, x: np.ndarray, hat: np.ndarray) -> tuple[Coordinates, np.ndarray]:
        """Return the learned subspace enlarged by the range of ``hat`` (P, P), and the coordinates on both together.

        ``hat`` is the precision Qhat of new directions orthogonal to the subspace; x (m,) are the old coordinates.
        """
        X = np.einsum("a,aij->ij", x, self._basis)
        values, vectors = np.linalg.eigh(hat)
        new = values > 1e-6 * values.max()
        if self.diagonal:
            entering = np.diag(hat) > 0
            rows = self.frame.any(1) | entering
            logits = np.zeros(len(rows))
            logits[self.frame.any(1)], logits[entering] = x, np.log(np.diag(hat)[entering])
            return replace(self, frame=np.eye(len(rows))[:, rows]), logits[rows]
        space = replace(self, frame=np.concatenate([self.frame, vectors[:, new]], 1))
        joint = np.diag(np.concatenate([np.zeros(self.rank), np.log(values[new])]))
        joint[: self.rank, : self.rank] = X
        return space, space._components(joint)

    def without(self, x: np.ndarray, below: float) -> tuple[Coordinates, np.ndarray]:
        """Return space and coordinates for x (m,) without the principal directions whose logit is below ``below``."""
        logits, directions = self._principal(x)
        return self._selected(logits, directions, logits >= below)

    def pinned(self, x: np.ndarray) -> tuple[Coordinates, np.ndarray]:
        """Return space and coordinates for x (m,) after principal directions with 1-q = 1e-6 became known (fixed)."""
        logits, directions = self._principal(x)
        rest = logits < KNOWN_LOGIT
        space, x = self._selected(logits, directions, rest)
        return replace(space, known=np.concatenate([self.certain, directions[:, ~rest]], 1)), x

    def _principal(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (x, self.frame) if self.diagonal else self._spectrum(x)

    def _selected(self, logits: np.ndarray, directions: np.ndarray, kept: np.ndarray) -> tuple[Coordinates, np.ndarray]:
        space = replace(self, frame=directions[:, kept])
        return space, logits[kept] if self.diagonal else space._components(np.diag(logits[kept]))

    def turned(self, x: np.ndarray, frame: np.ndarray) -> tuple[Coordinates, np.ndarray]:
        """Return the nearby span of the columns of ``frame`` (P, k), and coordinates of x (m,) rotated with it."""
        # The rotation of the columns is undone (polar factor), so that coordinates keep their meaning.
        left, _, right = np.linalg.svd(frame.T @ self.frame)
        space = replace(self, frame=frame @ left @ right)
        return space, space._components(np.einsum("a,aij->ij", x, self._basis))

    def aimed(self, x: np.ndarray, hat: np.ndarray) -> tuple[Coordinates, np.ndarray]:
        """Return space and coordinates for x (m,), with known directions turned to leading eigenvectors of ``hat``.

        ``hat`` (P, P) is the precision Qhat. The learned subspace stays orthogonal to the known directions.
        """
        free = np.eye(len(hat))[:, _not_held(len(hat), self.held) > 0]
        known = free @ np.linalg.eigh(free.T @ hat @ free)[1][:, free.shape[1] - self.certain.shape[1] :]
        frame = np.linalg.svd(self.frame - known @ (known.T @ self.frame), full_matrices=False)[0]
        space, x = self.turned(x, frame)
        return replace(space, known=known), x


def _not_held(P: int, held: Mapping[int, float] | None) -> np.ndarray:
    """Return an array (P,): zero for the indices in ``held``, which have a fixed overlap, and one for all others."""
    free = np.ones(P)
    free[list(held or ())] = 0.0
    return free
