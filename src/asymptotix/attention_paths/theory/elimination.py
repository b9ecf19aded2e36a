"""Entropy of all layers' order parameters, and its exact minimum over U^(2), ..., U^(L+1) at fixed U^(1).

Layer l = 1..L with H_l heads has an order parameter U^(l) of size d_l C, d_l = H_l ... H_L, indexed by partial paths
(h_l, ..., h_L) and the output c = 1..C, with h_l slowest and c fastest; the readout has U^(L+1) = u of size C. With
prior variances s_1..s_L of the value matrices and s_{L+1} of the readout, widths r_1 N..r_{L+1} N that these weights
read from, and PT the partial trace over h_l, the entropic part of the action is

    S_0 = r_{L+1} [ tr u / s_{L+1} - ln det u ]
        + sum_l r_l [ tr(PT(U^(l)) (U^(l+1))^-1) / s_l - ln det U^(l) + H_l ln det U^(l+1) ].

Only U^(1) enters the likelihood, so the others are eliminated: dS_0/dU^(l+1) = 0 is the Riccati equation
X A X + c X = B for X = U^(l+1), where A = I (x) (U^(l+2))^-1 (A = I for the readout), c = s_{l+1} (H_l r_l / r_{l+1}
- 1) of either sign, and B = (s_{l+1} r_l) / (s_l r_{l+1}) PT(U^(l)).

S_0 is convex along the geodesics of the positive definite cone: Kronecker products and inverses of geodesics are
geodesics, traces are convex on them and ln det is linear. So the eliminated order parameters are unique.

Tiberi et al., arXiv:2405.15926, eqs. (32) and (33), whose S_0 = -L(u) - sum_l L(U^(l) (I (x) U^(l+1))^-1), at equal
widths, heads and variances. The elimination in closed form is ours: the paper minimises over all layers by gradients.

Equations ap-entropy, ap-riccati of docs/theory/attention_paths.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import root_scalar

from ...numerics.anderson import Anderson
from .log_coordinates import Matrix, from_log, to_log

SWEEP_TOLERANCE = 1e-13
"""Relative change of every deeper order parameter below which the sweeps over layers stop."""

STALL = (1e-8, 5)
"""Change and number of sweeps: sweeps also stop if a change below the first has not fallen for the second."""

PLAIN_SWEEPS = 25
"""Sweeps before acceleration begins. At equal widths they are enough; unequal ones can tie layers to one another."""

MEMORY, MAX_MOVE = 8, 3.0
"""Past sweeps that the acceleration combines, and the largest change of a logarithm that it may make."""

MAX_SWEEPS = 1_000
"""Most accelerated sweeps. A few dozen are typical, with widths that differ by factors of a hundred too."""


class Layers(NamedTuple):
    """Parameters of the entropy: heads, prior variances and relative widths of the layers.

    Attributes
    ----------
    heads
        H_1..H_L.
    variances
        s_1..s_{L+1}: value matrices, readout.
    ratios
        r_1..r_{L+1}: widths that these weights read from, as multiples of N.
    """

    heads: tuple[int, ...]
    variances: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def paths(self) -> int:
        """Number of paths, d = H_1 ... H_L."""
        return math.prod(self.heads)

    def coefficients(self, layer: int) -> tuple[float, float]:
        """Return c and the factor of PT(U^(l)) in B of the Riccati equation for U^(l+1); `layer` is l - 1."""
        s, s_next = self.variances[layer : layer + 2]
        relative = self.ratios[layer] / self.ratios[layer + 1]
        return s_next * (self.heads[layer] * relative - 1.0), relative * s_next / s

    def prior(self, layer: int, outputs: int) -> Matrix:
        """Return U^(l) = s_l ... s_{L+1} I, the minimiser without data; `layer` is l - 1, from zero."""
        return math.prod(self.variances[layer:]) * np.eye(math.prod(self.heads[layer:]) * outputs)


def partial_trace(U: Matrix, heads: int) -> Matrix:
    """Return the trace of U over its slow index h = 1..H: PT(U)_ab = sum_h U_(h a)(h b)."""
    size = U.shape[0] // heads
    return np.einsum("hahb->ab", U.reshape(heads, size, heads, size))


def riccati(A: Matrix, B: Matrix, c: float) -> Matrix:
    """Return the positive definite root X of X A X + c X = B for positive definite A.

    B must be positive definite, or for c < 0 at least semi-definite. Then
    X = A^-1/2 g(A^1/2 B A^1/2) A^-1/2 with g(w) = (sqrt(c^2 + 4 w) - c) / 2.
    """
    values, vectors = np.linalg.eigh(A)
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse_root = (vectors / np.sqrt(values)) @ vectors.T
    inner = root @ B @ root
    w, q = np.linalg.eigh(0.5 * (inner + inner.T))
    half = inverse_root @ (q * np.sqrt(_positive_root(np.maximum(w, 0.0), c)))
    return half @ half.T


def eliminate(U: Matrix, layers: Layers, start: Sequence[Matrix] | None = None) -> list[Matrix]:
    """Minimise S_0 over U^(2), ..., U^(L+1) at fixed U^(1) = U.

    One layer has a closed form; two layers with a single output need one scalar root. Otherwise each layer's closed
    form is applied in turn, in sweeps over the layers, until nothing changes. Each update lowers S_0. With a single
    output, the last two order parameters are always updated together.

    Parameters
    ----------
    U
        Order parameter of the first layer, positive definite, of size d C.
    layers
        Heads, variances and ratios of widths.
    start
        Order parameters at which the sweeps start, such as the answer at a nearby U; by default the prior's values.

    Returns
    -------
    list
        U^(2), ..., U^(L+1) as matrices; the last is C x C.
    """
    depth, outputs = len(layers.heads), U.shape[0] // layers.paths
    if depth == 1:
        return [_stationary(U, None, layers, 0)]
    if depth == 2 and outputs == 1:
        return list(_last_pair(U, layers, None))
    inner = list(start) if start is not None else [layers.prior(layer, outputs) for layer in range(1, depth + 1)]
    for _ in range(PLAIN_SWEEPS):
        before, inner = inner, _sweep(U, inner, layers)
        change = max(np.abs(x - y).max() / np.abs(x).max() for x, y in zip(inner, before, strict=True))
        if change < SWEEP_TOLERANCE:
            return inner
    return _accelerated(U, inner, layers)


def entropy(U: Matrix, inner: Sequence[Matrix], layers: Layers) -> float:
    """Return the entropy S_0 at U^(1) = U and (U^(2), ..., U^(L+1)) = inner."""
    u = inner[-1]
    total = layers.ratios[-1] * (np.trace(u) / layers.variances[-1] - log_det(u))
    here, log_det_here = U, log_det(U)
    for H, s, r, after in zip(layers.heads, layers.variances[:-1], layers.ratios[:-1], inner, strict=True):
        log_det_after = log_det(after)
        traced = np.linalg.solve(after, partial_trace(here, H))
        total += r * (np.trace(traced) / s - log_det_here + H * log_det_after)
        here, log_det_here = after, log_det_after
    return float(total)


def extended_inverse(X: Matrix, heads: int) -> Matrix:
    """Return I_H (x) X^-1: the inverse of the next layer's order parameter, repeated for each head of this layer."""
    inverse = np.linalg.inv(X)
    return np.asarray(np.kron(np.eye(heads), 0.5 * (inverse + inverse.T)), dtype=np.float64)


def log_det(X: Matrix) -> float:
    """Return ln det of a positive definite matrix by Cholesky, which raises LinAlgError for any other matrix."""
    return float(2.0 * np.log(np.diag(np.linalg.cholesky(X))).sum())


def _positive_root(w: Matrix, c: float) -> Matrix:
    """Return the root x > 0 of x^2 + c x = w; (sqrt(c^2 + 4 w) - c) / 2 would cancel at c > 0 and small w."""
    root = np.sqrt(c * c + 4.0 * w)
    if c < 0:
        return 0.5 * (root - c)
    with np.errstate(invalid="ignore"):
        return np.where(w > 0, 2.0 * w / (c + root), 0.0)


def _accelerated(U: Matrix, inner: list[Matrix], layers: Layers) -> list[Matrix]:
    """Return U^(2), ..., U^(L+1) by sweeps from `inner`, with Anderson acceleration on their logarithms.

    A plain sweep replaces an accelerated one that fails.
    """
    sizes, point = [len(X) for X in inner], to_log(inner)
    anderson = Anderson(len(point), MEMORY, MAX_MOVE)
    least, stalled, change = np.inf, 0, np.inf
    for _ in range(MAX_SWEEPS):
        swept = _sweep(U, inner, layers)
        move = to_log(swept) - point
        change = float(np.abs(move).max())
        stalled = stalled + 1 if least <= change < STALL[0] else 0
        least = min(least, change)
        if change < SWEEP_TOLERANCE or stalled >= STALL[1]:
            return swept
        point = anderson.advance(point, move) if anderson.accepts(move) else anderson.retreat()
        inner = from_log(point, sizes)
    raise FloatingPointError(
        f"the order parameters of the deeper layers still move by {change:.1e} after {MAX_SWEEPS} sweeps"
    )


def _sweep(U: Matrix, before: Sequence[Matrix], layers: Layers) -> list[Matrix]:
    """Return U^(2), ..., U^(L+1) after each in turn is moved from `before` to its minimum given its neighbours."""
    depth, above, inner = len(layers.heads), U, list(before)
    paired = inner[-1].size == 1
    for layer in range(depth - 2 if paired else depth):
        below = inner[layer + 1] if layer + 1 < depth else None
        above = inner[layer] = _stationary(above, below, layers, layer)
    if paired:
        inner[-2], inner[-1] = _last_pair(above, layers, inner[-1].item())
    return inner


def _stationary(above: Matrix, below: Matrix | None, layers: Layers, layer: int) -> Matrix:
    """Return the stationary U^(l+1); `above` = U^(l), `below` = U^(l+2) (None for the readout), `layer` = l - 1."""
    c, share = layers.coefficients(layer)
    B = share * partial_trace(above, layers.heads[layer])
    A = np.eye(len(B)) if below is None else extended_inverse(below, layers.heads[layer + 1])
    return riccati(A, B, c)


def _last_pair(above: Matrix, layers: Layers, guess: float | None) -> tuple[Matrix, Matrix]:
    """Return the stationary U^(L) and scalar u together, given `above` = U^(L-1) and a first `guess` of u.

    In the eigenbasis of B the Riccati equation at A = 1/u is x_i^2 / u + c x_i = b_i. With y_i = x_i / u, which falls
    with u, the readout's equation is u + c_a = k sum_i y_i, with its `coefficients` c_a and k. A negative c_a is moved
    to the right side; then the difference of the logarithms of both sides rises with ln u from negative to positive
    values.
    """
    depth = len(layers.heads)
    (c, share), (c_a, k) = layers.coefficients(depth - 2), layers.coefficients(depth - 1)
    b, vectors = np.linalg.eigh(share * partial_trace(above, layers.heads[-2]))
    b = np.maximum(b, np.finfo(float).tiny)

    def eigenvalues(u: float) -> Matrix:
        return u * _positive_root(b / u, c)

    def mismatch(log_u: float) -> float:
        u = np.exp(log_u)
        return float(np.log(u + max(c_a, 0.0)) - np.log(k * eigenvalues(u).sum() / u + max(-c_a, 0.0)))

    here = float(np.log(guess if guess is not None else layers.variances[-1]))
    value = mismatch(here)
    if abs(value) > 1e-15:
        # The slope is at least 1/2 unless c < 0 < c_a, so the root is within 2 |value|; 1e-12 allows for rounding.
        reach = 2.0 * value + np.copysign(1e-12, value)
        while mismatch(here - reach) * value > 0:
            reach *= 2.0
        if not np.isfinite(mismatch(here - reach)):
            raise FloatingPointError("the order parameter of the readout is out of the range of double precision")
        found = root_scalar(mismatch, bracket=sorted((here, here - reach)), method="brentq", xtol=1e-15)
        if not found.converged:
            raise FloatingPointError(f"the order parameter of the readout is not found near {np.exp(found.root):.3g}")
        here = found.root
    u = float(np.exp(here))
    return (vectors * eigenvalues(u)) @ vectors.T, np.array([[u]])
