"""Measurements on an estimate at finite size: overlaps with the teacher, estimation error, errors on fresh data.

In the limit of large D these are the order parameter Q and the errors of theory: Troiani et al., arXiv:2502.00901,
eq. (11) for the prediction error and the line after it for the estimation error.

Equation si-estimation of docs/theory/sequence_index.md.
"""

from __future__ import annotations

import numpy as np

from ...core.status import Status, of_movement
from ...numerics.arrays import Array
from ...numerics.linear_algebra import psd_sqrt
from ...numerics.quadrature import sobol_normals
from .. import streams
from ..channels.protocol import Channel

#: Number of last iterations in which no overlap may move in a converged run.
_LAST = 4
#: Number of last iterations in which a drift is searched, and the smallest number of overlaps that shows its noise.
_DRIFTING, _FEWEST = 8, 4
#: Number of standard errors that a drift must exceed. By chance one run in forty exceeds three.
_BEYOND_NOISE = 3.0


def settled(
    overlap: np.ndarray, tolerance: float, share: float = 1.0, *, ended_early: bool = False
) -> tuple[Status, str]:
    """Return the status of a run and its status text, from the finite overlaps (T, P, P) after T iterations.

    A run has converged if no diagonal overlap moved by ``tolerance`` in one of the last iterations, and none drifted by
    ``tolerance`` over a longer window and beyond its noise. Moves are divided by ``share``, the damping of the run
    (1 is undamped). ``ended_early``: the run used fewer iterations than allowed, because state evolution was steady.
    """
    if len(overlap) < 2:
        words = "not converged: one iteration cannot show whether the overlap still moves; increase iterations"
        return Status.NOT_CONVERGED, words
    q = np.einsum("tpp->tp", overlap)
    what_to_do = "increase dim; more iterations will not help" if ended_early else "increase iterations"
    period = f"per iteration after {len(overlap)} iterations"
    moving = float(abs(np.diff(q[-_LAST:], axis=0)).max()) / share
    status, words = of_movement("the overlap still moves by", moving, tolerance, period, what_to_do)
    if not status.converged:
        return status, words
    recent = q[-_DRIFTING:]
    drift, limit = _drift(recent) / share, tolerance / (len(recent) - 1)
    return of_movement("the overlap still drifts by", drift, limit, period, what_to_do)


def _drift(q: np.ndarray) -> float:
    """Return the largest drift per iteration of P overlaps (T, P), or 0 if none exceeds its noise until the end."""
    if len(q) < _FEWEST:
        return 0.0
    slope, error = _line(q)
    late, _ = _line(q[len(q) // 2 :])
    goes_on = (abs(slope) > _BEYOND_NOISE * error) & (slope * late > 0)
    return float(np.where(goes_on, np.minimum(abs(slope), abs(late)), 0.0).max())


def _line(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the slope (P,) of a line fitted to overlaps (T, P), and its standard error from the scatter about it."""
    t = np.arange(len(q)) - 0.5 * (len(q) - 1)
    slope = t @ q / (t @ t)
    scatter = q - q.mean(axis=0) - np.outer(t, slope)
    return slope, np.sqrt((scatter**2).sum(axis=0) / max(len(q) - 2, 1) / (t @ t))


def overlaps(W: Array, teacher: Array, channel: Channel) -> np.ndarray:
    """Return the overlap (S, P, P) of estimates W (S, P, D) with teachers (S, P, D), up to the model's symmetry.

    If every row may change its sign on its own, :func:`overlap_matrices` is used; otherwise :func:`projected_overlaps`.
    """
    W, teacher = (np.asarray(x, float) for x in (W, teacher))  # in single precision an overlap may exceed one
    cross, gram, square = (a @ b.swapaxes(1, 2) for a, b in ((W, teacher), (W, W), (teacher, teacher)))
    if channel.diagonal:
        return overlap_matrices(cross, np.einsum("spp->sp", gram), np.einsum("spp->sp", square))
    same = channel.same_part
    return projected_overlaps(cross * same, gram * same, square * same)


def overlap_matrices(cross: np.ndarray, size: np.ndarray, square: np.ndarray) -> np.ndarray:
    """Return overlap[i, j] = (w_i.w*_j)(w_i.w*_i)/(|w_i|^2 |w*_i||w*_j|), (..., P, P); zero where w_i is zero.

    ``cross`` is W W*^T (..., P, P), ``size`` the |w_i|^2 (..., P) of the estimate, ``square`` those of the teacher.
    """
    norm = np.sqrt(square)
    own = np.einsum("...pp->...p", cross)
    scale = np.where(size > 0, size, np.inf)[..., :, None] * norm[..., :, None] * norm[..., None, :]
    return cross * own[..., :, None] / scale


def projected_overlaps(cross: np.ndarray, gram: np.ndarray, square: np.ndarray) -> np.ndarray:
    """Return S^{-1/2} M^T G^+ M S^{-1/2}, (n, P, P), the part of the teacher W* in the span of the estimate W.

    ``cross`` is M = W W*^T, ``gram`` G = W W^T, ``square`` S = W* W*^T, each (n, P, P). An estimate O W with any
    invertible O has the same overlap, so that the symmetry of the model need not be known. In the limit of large D the
    overlap is Q. For one index it is the squared cosine. A random direction of the teacher has the overlap rank(W)/D.
    """
    found = []
    for M, G, S in zip(cross, gram, square, strict=True):
        whitening = np.linalg.inv(psd_sqrt(S))
        found.append(whitening @ M.T @ np.linalg.pinv(G, rcond=1e-9, hermitian=True) @ M @ whitening)
    return np.array(found)


def estimation_error(W: np.ndarray, teacher: np.ndarray, channel: Channel) -> float:
    """Return |W*^T W* - W^T W|_F^2 / D^2 for W (P, D), which tends to P - |Q|_F^2 (the paper prints 1, not P)."""
    pairs = ((teacher, teacher), (W, W), (W, teacher))
    grams = [a @ b.T / W.shape[1] * channel.same_part for a, b in pairs]
    return float((grams[0] ** 2).sum() + (grams[1] ** 2).sum() - 2 * (grams[2] ** 2).sum())


def fresh_fields(
    W: np.ndarray, teacher: np.ndarray, tokens: int, same: np.ndarray | float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the fields (n, P, M) of an estimate W (P, D) and of the teacher (P, D) on n fresh samples.

    Fresh Gaussian tokens enter only through the 2P projections on W and W*, whose joint law given the weights is
    exactly Gaussian. Drawing these projections is drawing new data, at a cost that does not grow with D. ``same``
    (P, P) is zero for rows that act on different parts of the data.
    """
    P = len(W)
    both = np.concatenate([W, teacher]) / np.sqrt(W.shape[1])
    root = np.linalg.cholesky(both @ both.T * np.tile(same * np.ones((P, P)), (2, 2)) + 1e-12 * np.eye(2 * P))
    nodes = sobol_normals(2**11, 2 * P * tokens, streams.FRESH_FIELDS).reshape(-1, 2 * P, tokens)
    projected = np.einsum("pq,nqm->npm", root, nodes)
    return projected[:, :P], projected[:, P:]


def errors(channel: Channel, W: np.ndarray, teacher: np.ndarray, V: np.ndarray) -> dict[str, float]:
    """Return error name -> value for an estimate W (P, D) of a teacher (P, D) with posterior covariance V (P, P)."""
    bayes, plugin = fresh_errors(channel, W, teacher, V)
    own = estimation_error(W, teacher, channel)
    return {"test_error": bayes, "plugin_error": plugin, "estimation_error": own}


def fresh_errors(channel: Channel, W: np.ndarray, teacher: np.ndarray, V: np.ndarray) -> tuple[float, float]:
    """Return the squared errors on fresh data of the posterior-mean output and of the output at W, in this order.

    W and teacher are (P, D); V (P, P) is the posterior covariance of the rows of W.
    """
    P, M = channel.indices, channel.tokens
    omega, Z = fresh_fields(W, teacher, M, channel.same_part)
    nodes = sobol_normals(2**4, P * M, streams.FRESH_POSTERIOR).reshape(-1, P, M)
    noise = np.einsum("pq,nqm->npm", np.linalg.cholesky(V), nodes)
    y, plain = np.asarray(channel.output(Z)), np.asarray(channel.output(omega))
    # The product of two independent estimates of the posterior mean has no bias from the finite number of draws.
    first, second = (
        y - np.mean([channel.output(omega + sign * n) for n in half for sign in (1, -1)], axis=0)
        for half in (noise[::2], noise[1::2])
    )
    return _mean_product(first, second), _mean_product(y - plain, y - plain)


def _mean_product(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).reshape(len(a), -1).sum(1).mean())
