"""A first estimate of an index that is not learned yet, conditional on those that are.

Linearised around zero overlap, message passing for row l reads g = G (X w - g), G = Cov[z_l|y] - I. Solving the
reaction term instead of iterating it leads to the matrix

    X^T T X / D,      T_mu = I - Cov[z_l|y_mu]^{-1},

whose top eigenvector is informative as soon as alpha E|G|_F^2 > 1. (With G in the place of T it stays inside the bulk.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq
from scipy.sparse.linalg import LinearOperator, eigsh

#: Lowest eigenvalue kept of T. It is unbounded below where an output fixes z exactly, which slows Lanczos down.
_LOWEST = -8.0
#: Vectors kept by Lanczos between its restarts.
_KRYLOV = 120


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


def spectral_start(X: Any, covariance: np.ndarray, seed: int) -> SpectralStart:
    """Top eigenvector of X^T T X / D by Lanczos, without building the matrix.

    Parameters
    ----------
    X : array (M, n, D)
        Tokens.
    covariance : array (n, M, M)
        Posterior covariance of the row's indices at w = 0, V = 1.
    """
    dim, T = X.shape[-1], _preprocessing(np.asarray(covariance, float)).astype(np.float32)

    def product(vector: np.ndarray) -> np.ndarray:
        return np.asarray(_apply(X, T, vector.ravel().astype(np.float32))[1], float)

    operator = LinearOperator((dim, dim), matvec=product, dtype=float)  # type: ignore[call-arg]
    first = np.random.default_rng([seed, dim]).normal(size=dim)
    size = min(_KRYLOV, dim - 1)
    values, vectors = eigsh(operator, k=2, which="LA", tol=1e-3, ncv=size, maxiter=400, v0=first)  # type: ignore[arg-type]
    top = int(values.argmax())
    vector = vectors[:, top].astype(np.float32)
    return SpectralStart(vector, float(values[top]), float(values[1 - top]), np.asarray(_apply(X, T, vector)[0]))


def _preprocessing(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return np.einsum("nij,nj,nkj->nik", vectors, _transform(values), vectors)


def _transform(values: np.ndarray) -> np.ndarray:
    return (1 - 1 / values.clip(1e-9)).clip(_LOWEST)


@jax.jit
def _apply(X: Any, T: Any, vector: Any) -> tuple[Any, Any]:
    """The scores T X w (n, M) and X^T T X w / D."""
    fields = jnp.einsum("mnd,d->nm", X, vector, precision="highest")
    scores = jnp.einsum("nab,nb->na", T, fields)
    return scores, jnp.einsum("mnd,nm->d", X, scores, precision="highest") / X.shape[-1]


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
