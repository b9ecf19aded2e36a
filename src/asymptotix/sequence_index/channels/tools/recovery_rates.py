"""Close to full overlap: which directions are recovered last.

With J the differential of a link, of rank r, and a small posterior variance V, an iteration of state evolution is

    V' = (alpha E[J^T (J V J^T)^+ J])^{-1},      tr(V V'^{-1}) = alpha r.

Where V settles up to its size, V' = V P/(alpha r). Where it does not, some directions fall behind all others: they
shrink as if these were known, by their own number over the rank of J on them.
"""

from __future__ import annotations

import numpy as np

#: Iterations at most, and the ratio of variances at which directions have fallen behind: beyond 1e8 rounding decides.
_ITERATIONS, _BEHIND = 200, 1e6
#: Relative difference of rates that counts, and in standard errors.
_SLOWER, _SIGNIFICANT = 0.03, 5.0


def last_recovered(J: np.ndarray, rank: float) -> tuple[int, float]:
    """How many directions are recovered last, and the rank of differentials J (m, k, P, M) on them.

    Those that fall behind by less than a few percent an iteration are taken for as fast as the others.
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
    # Where ranks differ from point to point so do the rates of equal directions, by as much as points are few.
    certain = expected - ranks.mean() > _SIGNIFICANT * ranks.std() / np.sqrt(len(ranks)) + _SLOWER * expected
    return (int(slow.sum()), float(ranks.mean())) if certain else (P, rank)


def _shares(J: np.ndarray, rank: int) -> np.ndarray:
    """E[J^T (J J^T)^+ J] (P, P), summed over tokens, of rank ``rank`` each."""
    m, k, P, M = J.shape
    rows = np.linalg.svd(J.reshape(m, k, P * M), full_matrices=False)[2][:, :rank].reshape(m, rank, P, M)
    return np.einsum("arpm,arqm->pq", rows, rows) / m
