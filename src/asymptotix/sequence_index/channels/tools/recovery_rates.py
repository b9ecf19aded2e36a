"""The directions that are recovered last, from state evolution close to full overlap.

With J the differential of a link, of rank r, and a small posterior variance V, an iteration of state evolution is

    V' = (alpha E[J^T (J V J^T)^+ J])^{-1},      tr(V V'^{-1}) = alpha r.

If the shape of V converges, V' = V P/(alpha r). If not, some directions fall behind all others: they shrink as if the
others were known, with their own number for P and the rank of J on them for r.
"""

from __future__ import annotations

import numpy as np

#: Most iterations, and the ratio of variances at which directions have fallen behind: beyond 1e8 rounding decides.
_ITERATIONS, _BEHIND = 200, 1e6
#: Least difference of rates that counts, relative and in standard errors.
_SLOWER, _SIGNIFICANT = 0.03, 5.0


def last_recovered(J: np.ndarray, rank: float) -> tuple[int, float]:
    """Return how many directions are recovered last, and the mean rank of differentials J (m, k, P, M) on them.

    ``rank`` is the mean rank of J on all P directions. Directions that fall behind by less than 3 % per
    iteration count as equally fast.
    """
    P = J.shape[2]
    V = np.eye(P)
    for _ in range(_ITERATIONS):
        size, axes = np.linalg.eigh(V)
        if size[-1] > _BEHIND * size[0]:
            break
        root, inverse = ((axes * size**power) @ axes.T for power in (0.5, -0.5))
        shares = _shares(np.einsum("akpm,pq->akqm", J, root), int(rank))
        V = np.linalg.inv(inverse @ shares @ inverse)
        V /= np.trace(V)
    rates = np.einsum("pi,pq,qi->i", axes, shares, axes)
    slow = rates < (1 + _SLOWER) * rates.min()
    there = np.einsum("akpm,pi->akim", J, axes[:, slow]).reshape(*J.shape[:2], -1)
    ranks, expected = np.linalg.matrix_rank(there, rtol=1e-7), rank * slow.sum() / P
    # Where ranks differ between points, the measured rates of equivalent directions scatter with the finite sample.
    certain = expected - ranks.mean() > _SIGNIFICANT * ranks.std() / np.sqrt(len(ranks)) + _SLOWER * expected
    return (int(slow.sum()), float(ranks.mean())) if certain else (P, rank)


def _shares(J: np.ndarray, rank: int) -> np.ndarray:
    """Return E[J^T (J J^T)^+ J] (P, P), summed over tokens; every term has rank ``rank``."""
    m, k, P, M = J.shape
    rows = np.linalg.svd(J.reshape(m, k, P * M), full_matrices=False)[2][:, :rank].reshape(m, rank, P, M)
    return np.einsum("arpm,arqm->pq", rows, rows) / m
