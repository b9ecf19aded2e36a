"""The forward map of rank-one deep attention, in the token basis and in the rotated one.

With R the row-wise activation, u_l = B_{l-1} z_l and B_l = (c I + R(u_l u_l^T)) B_{l-1}, the output is R(u_L u_L^T):
Troiani et al., arXiv:2502.00901, eqs. (5) and (6), with the attention matrix on the other side of B: it is
row-stochastic and multiplies the tokens from the left. The module :mod:`attention_map` has all other deep attention.

All functions take NumPy or JAX arrays with leading batch axes, and return the same kind. NumPy is slow on axes as short
as that of the tokens. Therefore each entry (one token, all samples) stays contiguous in memory if it is given so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.arrays import OneKind
from ...numerics.precision import double_precision

#: Rotation of two tokens with the rows minus = (1,-1)/sqrt2 and plus = (1,1)/sqrt2: x_rotated = ROTATION @ x.
ROTATION = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2.0)
#: Up to this number of tokens NumPy's matrix products are slower than ours: five times for two tokens, twice for eight.
_FEW_TOKENS = 8


def array_namespace(x: object) -> ModuleType:
    """Return jax.numpy for JAX arrays, else numpy."""
    return jnp if isinstance(x, jax.Array) else np


def activate(logits: OneKind, activation: str | Callable[..., jax.Array]) -> Any:
    """Apply the activation to logits (..., M, M): row-wise softmax, the identity for "linear", or a JAX function."""
    if activation == "linear":
        return logits
    xp = array_namespace(logits)
    if callable(activation):
        if xp is jnp:
            return activation(logits)
        with double_precision():
            return np.asarray(activation(jnp.asarray(logits)))
    weights = xp.exp(logits - _along_rows(xp.maximum, logits))
    return weights / _along_rows(xp.add, weights)


def _along_rows(combined: Callable[[OneKind, OneKind], OneKind], entries: OneKind) -> OneKind:
    """Reduce the last axis of ``entries`` (..., M) to (..., 1), token by token: NumPy is slow on short axes."""
    return reduce(combined, [entries[..., k : k + 1] for k in range(entries.shape[-1])])


def last_preactivation(Z: OneKind, skip: float, activation: str) -> Any:
    """Return u_L = B_{L-1} z_L, (..., M), for index rows Z (..., L, M), in the token basis."""
    B, u, skipped = None, Z[..., 0, :], skip * array_namespace(Z).eye(Z.shape[-1], dtype=Z.dtype)
    for layer in range(1, Z.shape[-2]):
        mixing = skipped + attention(u, activation)
        B = mixing if B is None else _product(mixing, B)
        u = _product(B, Z[..., layer, :, None])[..., 0]
    return u


def _product(A: OneKind, B: OneKind) -> OneKind:
    """Return A @ B; for a small number of tokens in NumPy, sum over one token after the other."""
    if array_namespace(A) is jnp or A.shape[-1] > _FEW_TOKENS:
        return A @ B
    return reduce(np.add, [A[..., k : k + 1] * B[..., k : k + 1, :] for k in range(A.shape[-1])])


def output(Z: OneKind, skip: float, activation: str) -> OneKind:
    """Return the observed attention matrix y (..., M, M) of index rows Z (..., L, M)."""
    return attention(last_preactivation(Z, skip, activation), activation)


def attention(u: OneKind, activation: str) -> OneKind:
    """Return the attention matrix R(u u^T), (..., M, M), for pre-activations u (..., M)."""
    return activate(u[..., :, None] * u[..., None, :], activation)


def rotated_preactivation(Z: OneKind, skip: float, activation: str) -> OneKind:
    """Return u_2 (..., 2) for index rows Z (..., 2, 2) of two layers, both in the rotated basis (minus, plus).

    For softmax, with (m, p) = z_1, c the skip strength and b = cosh(m^2) + cosh(m p): tau = sinh(m^2)/b,
    kappa = sinh(m p)/b, u_- = (c+tau) z_2-,  u_+ = (c+1) z_2+ + kappa z_2-.
    """
    xp = array_namespace(Z)
    m, p = Z[..., 0, 0], Z[..., 0, 1]
    zm, zp = Z[..., 1, 0], Z[..., 1, 1]
    if activation == "linear":
        along = m * zm + p * zp
        return _entries(skip * zm + m * along, skip * zp + p * along)
    both = m * p
    e, f = xp.exp(-m * m), xp.exp(-abs(both))
    bottom = (e + f) * (1 + e * f)
    tau, kappa = (1 - e * e) * (f / bottom), xp.copysign((1 - f * f) * (e / bottom), both)
    return _entries((skip + tau) * zm, (skip + 1) * zp + kappa * zm)


def rotated_attention(u: OneKind, activation: str) -> OneKind:
    """Return the attention matrix R(u u^T), (..., 2, 2) in the token basis, for rotated pre-activations u (..., 2).

    The rounding error of its entries is absolute (relative to one), so that small entries lose relative accuracy.
    """
    if activation == "linear":
        return attention(unrotated(u), activation)
    xp = array_namespace(u)
    m, p = u[..., 0], u[..., 1]
    with np.errstate(over="ignore"):  # then the entry is zero
        first, second = 1 / (1 + xp.exp(m * (m + p))), 1 / (1 + xp.exp(m * (m - p)))
    return xp.moveaxis(xp.stack([xp.stack([1 - first, first]), xp.stack([second, 1 - second])]), (0, 1), (-2, -1))


def _entries(*columns: OneKind) -> OneKind:
    """Return vectors (..., M) from M arrays (...), one per entry; each entry stays contiguous in memory."""
    xp = array_namespace(columns[0])
    return xp.moveaxis(xp.stack(columns), 0, -1)


def unrotated(u: OneKind) -> OneKind:
    """Transform vectors (..., 2) from the rotated basis to the token basis."""
    minus, plus = u[..., 0], u[..., 1]
    return _entries(0.5**0.5 * (plus + minus), 0.5**0.5 * (plus - minus))


def canonical_sign(u: OneKind) -> OneKind:
    """Return u or -u, which give the same output: the one whose first entry is not negative."""
    return array_namespace(u).where(u[..., :1] < 0, -u, u)


def log_output_volume(u: OneKind, activation: str) -> OneKind:
    """Return log |dy/du| (...) at rotated pre-activations u (..., 2) of two tokens.

    y is (y12, y21) for softmax, (y11, y12) or (y22, y12) for linear activation. Softmax: Troiani et al.,
    arXiv:2502.00901, eq. (174); their (173) has an extra factor 1/2. log Z_out as a density of y is log Z_out as a
    density of u (both signs) minus this volume, which does not depend on the overlap. For linear activation the average
    over the two choices of y is returned, which keeps the symmetry of the tokens.
    """
    xp = array_namespace(u)
    if activation == "linear":
        tokens = unrotated(u)
        return xp.log(2 * abs(tokens[..., 0] * tokens[..., 1]))
    l1 = u[..., 0] ** 2 + u[..., 0] * u[..., 1]
    l2 = u[..., 0] ** 2 - u[..., 0] * u[..., 1]
    saturation = -(abs(l1) + abs(l2)) - 2 * (xp.log1p(xp.exp(-abs(l1))) + xp.log1p(xp.exp(-abs(l2))))
    return xp.log(4 * u[..., 0] ** 2) + saturation
