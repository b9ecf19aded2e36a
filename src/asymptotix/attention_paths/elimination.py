"""Entropy of the order parameters of all layers, and its exact minimum over those of the deeper layers.

Layer l = 1..L with H_l heads has an order parameter U^(l) of size d_l = H_l ... H_L, indexed by partial paths
(h_l, ..., h_L) with h_l slowest; the readout has U^(L+1) = u > 0. With prior variances s_1..s_L of the value matrices
and s_{L+1} of the readout, and PT the partial trace over h_l, the entropic part of the action is

    S_0 = u / s_{L+1} - ln u + sum_l [ tr(PT(U^(l)) (U^(l+1))^-1) / s_l - ln det U^(l) + H_l ln det U^(l+1) ].

Only U^(1) meets the data. The others are eliminated: dS_0/dU^(l+1) = 0 is the Riccati equation X A X + c X = B for
X = U^(l+1), where A = I (x) (U^(l+2))^-1 (A = 1 for the readout), c = s_{l+1} (H_l - 1), B = (s_{l+1} / s_l) PT(U^(l)).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar

Matrix = NDArray[np.float64]

SWEEP_TOLERANCE = 1e-13
"""Relative change of every deeper order parameter below which the sweeps over layers stop."""

MAX_SWEEPS = 10_000
"""Sweeps contract by about 1 - 10 / L^2 or better, so that this is not reached below some fifty layers."""


def partial_trace(U: Matrix, heads: int) -> Matrix:
    """Trace of U over its slow index h = 1..H: PT(U)_ab = sum_h U_(h a)(h b)."""
    size = U.shape[0] // heads
    return np.einsum("hahb->ab", U.reshape(heads, size, heads, size))


def riccati(A: Matrix, B: Matrix, c: float) -> Matrix:
    """Positive definite root X of X A X + c X = B for positive definite A.

    B is positive definite, or for c < 0 at least semi-definite:
    X = A^-1/2 g(A^1/2 B A^1/2) A^-1/2 with g(w) = (sqrt(c^2 + 4 w) - c) / 2.
    """
    values, vectors = np.linalg.eigh(A)
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse_root = (vectors / np.sqrt(values)) @ vectors.T
    inner = root @ B @ root
    w, q = np.linalg.eigh(0.5 * (inner + inner.T))
    half = inverse_root @ (q * np.sqrt(_positive_root(np.maximum(w, 0.0), c)))
    return half @ half.T


def eliminate(
    U: Matrix, heads: Sequence[int], variances: Sequence[float], start: Sequence[Matrix] | None = None
) -> list[Matrix]:
    """Minimise S_0 over U^(2), ..., U^(L+1) at fixed U^(1) = U.

    One layer is closed form, two are one scalar root; from three layers on, closed forms are swept over the layers
    until nothing changes. Each of them lowers S_0, and the last two order parameters always move together.

    Parameters
    ----------
    U
        Order parameter of the first layer, positive definite, of size prod(heads).
    heads, variances
        H_1..H_L, and s_1..s_{L+1} (one more).
    start
        Where the sweeps start (three layers or more), such as the answer at a nearby U.

    Returns
    -------
    list
        U^(2), ..., U^(L+1) as matrices; the last is 1 x 1.
    """
    depth = len(heads)
    if depth == 1:
        return [np.array([[_readout(float(np.trace(U)), heads, variances)]])]
    if depth == 2:
        return list(_last_pair(U, heads, variances, None))
    inner = [np.array(x) for x in start] if start is not None else _prior_start(heads, variances)
    for _ in range(MAX_SWEEPS):
        before, above = inner.copy(), U
        for layer in range(depth - 2):
            s, s_next = variances[layer], variances[layer + 1]
            A = extended_inverse(inner[layer + 1], heads[layer + 1])
            B = partial_trace(above, heads[layer]) * (s_next / s)
            above = inner[layer] = riccati(A, B, s_next * (heads[layer] - 1))
        inner[-2], inner[-1] = _last_pair(above, heads, variances, inner[-1].item())
        change = max(np.abs(x - y).max() / np.abs(x).max() for x, y in zip(inner, before, strict=True))
        if change < SWEEP_TOLERANCE:
            break
    return inner


def entropy(U: Matrix, inner: Sequence[Matrix], heads: Sequence[int], variances: Sequence[float]) -> float:
    """S_0 at U^(1) = U and U^(2..L+1) = inner."""
    u = inner[-1].item()
    total = u / variances[-1] - np.log(u)
    here, log_det_here = U, log_det(U)
    for H, s, after in zip(heads, variances[:-1], inner, strict=True):
        log_det_after = log_det(after)
        traced = np.linalg.solve(after, partial_trace(here, H))
        total += np.trace(traced) / s - log_det_here + H * log_det_after
        here, log_det_here = after, log_det_after
    return float(total)


def extended_inverse(X: Matrix, heads: int) -> Matrix:
    """I_H (x) X^-1: the inverse of the next layer's order parameter, repeated for each head of this layer."""
    inverse = np.linalg.inv(X)
    return np.asarray(np.kron(np.eye(heads), 0.5 * (inverse + inverse.T)), dtype=np.float64)


def log_det(X: Matrix) -> float:
    """Logarithm of the determinant of a positive definite matrix by Cholesky, which refuses any other."""
    return float(2.0 * np.log(np.diag(np.linalg.cholesky(X))).sum())


def _positive_root(w: Matrix, c: float) -> Matrix:
    """Root x > 0 of x^2 + c x = w without the cancellation of (sqrt(c^2 + 4 w) - c) / 2 at c > 0 and small w."""
    root = np.sqrt(c * c + 4.0 * w)
    if c < 0:
        return 0.5 * (root - c)
    with np.errstate(invalid="ignore"):
        return np.where(w > 0, 2.0 * w / (c + root), 0.0)


def _readout(trace: float, heads: Sequence[int], variances: Sequence[float]) -> float:
    """The readout's u from tr U^(L): u^2 + s_{L+1} (H_L - 1) u = (s_{L+1} / s_L) tr U^(L)."""
    s, s_a = variances[-2:]
    return float(_positive_root(np.array(trace * s_a / s), s_a * (heads[-1] - 1)))


def _last_pair(
    above: Matrix, heads: Sequence[int], variances: Sequence[float], guess: float | None
) -> tuple[Matrix, Matrix]:
    """U^(L) and u together, given U^(L-1).

    In the eigenbasis of B the Riccati equation at A = 1/u is x_i^2 / u + c x_i = b_i, and u follows from sum_i x_i. The
    difference of the logarithms of both sides of u's equation rises with ln u at a slope between 1/2 and 2, which
    brackets its root around any guess.
    """
    s, s_next, s_a = variances[-3:]
    c, c_a = s_next * (heads[-2] - 1), s_a * (heads[-1] - 1)
    b, vectors = np.linalg.eigh(partial_trace(above, heads[-2]) * (s_next / s))
    b = np.maximum(b, np.finfo(float).tiny)

    def eigenvalues(u: float) -> Matrix:
        return 2.0 * b / (c + np.sqrt(c * c + 4.0 * b / u))

    def mismatch(log_u: float) -> float:
        u = np.exp(log_u)
        return float(np.log(u * (u + c_a)) - np.log(eigenvalues(u).sum() * s_a / s_next))

    here = float(np.log(guess if guess is not None else s_a))
    value = mismatch(here)
    if abs(value) > 1e-15:
        # A hair wider than the bound, against rounding.
        reach = 2.0 * value + np.copysign(1e-12, value)
        here = root_scalar(mismatch, bracket=sorted((here, here - reach)), method="brentq", xtol=1e-15).root
    u = float(np.exp(here))
    return (vectors * eigenvalues(u)) @ vectors.T, np.array([[u]])


def _prior_start(heads: Sequence[int], variances: Sequence[float]) -> list[Matrix]:
    """U^(l) = s_l ... s_{L+1} I for l = 2..L+1: their values where no data are seen."""
    sizes = [int(np.prod(heads[layer:])) for layer in range(1, len(heads) + 1)]
    scales = [float(np.prod(variances[layer:])) for layer in range(1, len(heads) + 1)]
    return [scale * np.eye(size) for scale, size in zip(scales, sizes, strict=True)]
