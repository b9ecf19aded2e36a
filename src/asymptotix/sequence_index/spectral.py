"""A first estimate of an index that is not learned yet, conditional on those that are.

Linearised around zero overlap, message passing for row l reads g = G (X w - g), G = Cov[z_l|y] - I. Solving the
reaction term instead of iterating it leads to the matrix

    X^T T X / D,      T_mu = I - Cov[z_l|y_mu]^{-1},

whose top eigenvector is informative as soon as alpha E|G|_F^2 > 1. (With G in the place of T it stays inside the bulk.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import brentq

from .tokens import Tokens

#: Lowest eigenvalue kept of T. It is unbounded below where an output fixes z exactly, which slows Lanczos down.
_LOWEST = -8.0
#: Lanczos ends when the residual of the top eigenvector, and that of the next, are below these shares of the top
#: eigenvalue, or after _KRYLOV products: a vector that is not found by then is not detached from the bulk.
_RESIDUALS, _KRYLOV = np.array([3e-3, 3e-2]), 400
#: Products between two tests.
_TESTED_EVERY = 5


class SpectralStart(NamedTuple):
    """Unit vector (D,), its eigenvalue, the next eigenvalue, and the scores T X w (n, M) of w = vector."""

    vector: Any
    eigenvalue: float
    runner_up: float
    scores: Any

    @property
    def gap(self) -> float:
        """Relative distance of the top eigenvalue from the next; below about 0.03 the vector may be noise."""
        return (self.eigenvalue - self.runner_up) / abs(self.eigenvalue)


def spectral_start(tokens: Tokens, covariance: np.ndarray, seed: int) -> SpectralStart:
    """Top eigenvector of X^T T X / D by Lanczos, without building the matrix.

    Parameters
    ----------
    tokens : Tokens of one data set
        One pass through them per product.
    covariance : array (n, M, M)
        Posterior covariance of the row's indices at w = 0, V = 1.
    """
    dim, T = tokens.shape[-1], _preprocessing(np.asarray(covariance, float)).astype(np.float32)

    def product(vector: np.ndarray) -> np.ndarray:
        def score(rows: slice, fields: Any) -> Any:
            return _preprocessed(T[rows], fields)

        return np.asarray(tokens.sweep(_as_weights(vector), score), float).ravel()

    values, vector = top_eigenpair(product, np.random.default_rng([seed, dim]).normal(size=dim))
    scores = _preprocessed(T, tokens.fields(_as_weights(vector)))[0, :, 0] * np.float32(np.sqrt(dim))
    return SpectralStart(vector.astype(np.float32), float(values[0]), float(values[1]), np.asarray(scores))


def _as_weights(vector: np.ndarray) -> Any:
    return np.float32(vector).reshape(1, 1, -1)


def top_eigenpair(product: Callable[[np.ndarray], np.ndarray], first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two largest eigenvalues of a symmetric operator and the unit eigenvector of the largest.

    Lanczos with full orthogonalisation and without restarts, because products are what costs. The second eigenvalue,
    which only says whether the first is detached, is found to about one percent.
    """
    dim = len(first)
    most = min(_KRYLOV, dim)
    basis, diagonal, beside = np.empty((most, dim)), np.empty(most), np.empty(most)
    w, size = first, np.linalg.norm(first)
    for k in range(most):
        basis[k] = w / size
        w = product(basis[k])
        diagonal[k] = basis[k] @ w
        for _ in range(2):  # once is not enough for orthogonality to rounding
            w = w - basis[: k + 1].T @ (basis[: k + 1] @ w)
        size = beside[k] = np.linalg.norm(w)
        last = k == most - 1 or size < 1e-6 * np.abs(diagonal[: k + 1]).max()  # products are in single precision
        if k > 0 and (last or k % _TESTED_EVERY == 0):
            values, vectors = eigh_tridiagonal(diagonal[: k + 1], beside[:k], select="i", select_range=(k - 1, k))
            residuals = size * np.abs(vectors[-1, ::-1])
            if last or (residuals < _RESIDUALS * abs(values[1])).all():
                return values[::-1], vectors[:, 1] @ basis[: k + 1]
    raise AssertionError("unreachable")


def _preprocessing(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return np.einsum("nij,nj,nkj->nik", vectors, _transform(values), vectors)


def _transform(values: np.ndarray) -> np.ndarray:
    return (1 - 1 / values.clip(1e-9)).clip(_LOWEST)


@jax.jit
def _preprocessed(T: Any, fields: Any) -> Any:
    """T times the fields (1, n, 1, M)."""
    return jnp.einsum("nab,snpb->snpa", T, fields, precision="highest")


class SpectralTheory(NamedTuple):
    """The spectral start in the limit of large D.

    Attributes
    ----------
    overlap : float
        Squared cosine with the teacher; zero where the vector carries no information.
    eigenvalue : float
        Of the informative eigenvector.
    reaction : float
        C with which the scores T X w act back on the fields: omega = X w - C T X w.
    """

    overlap: float
    eigenvalue: float
    reaction: float


def spectral_theory(alpha: float, covariance: np.ndarray, z: np.ndarray, weights: np.ndarray) -> SpectralTheory:
    """What the top eigenvector of X^T T X / D is worth.

    An eigenvector is a fixed point of linear message passing: omega = X w - C g with g = T X w is g = G omega,
    G = T (I - C T)^{-1}, and X^T g / sqrt(D) + A w = w/C with A = -alpha E tr G. Its overlap with the teacher is
    kept by a step where C alpha E[z^T G z - tr G] = 1, which gives C; the eigenvalue is then 1/C - A, and the balance
    of signal and noise in b = w/C gives the squared cosine m:

        (1 - m)/C^2 = alpha (m E|G z|^2 + (1 - m) E|G|_F^2).

    Parameters
    ----------
    covariance, z, weights : arrays (n, M, M), (n, M), (n,)
        Posterior covariances of the row at zero overlap, the true indices and the weights of the nodes.
    """
    values, vectors = np.linalg.eigh(covariance)
    t = _transform(values)
    along = np.einsum("nij,ni->nj", vectors, z) ** 2
    mean = lambda x: float((weights * x.sum(1)).mean())  # noqa: E731

    def growth(C: float) -> float:
        return C * alpha * mean(t / (1 - C * t) * (along - 1))

    if growth(1.0) <= 1:
        return SpectralTheory(0.0, np.nan, 1.0)
    C = float(brentq(lambda c: growth(c) - 1, 1e-3, 1.0))  # type: ignore[arg-type]
    G = t / (1 - C * t)
    noise, signal = alpha * mean(G**2), alpha * mean(G**2 * along)
    excess = max(1 / C**2 - noise, 0.0)
    return SpectralTheory(excess / (excess + signal), 1 / C + alpha * mean(G), C)
