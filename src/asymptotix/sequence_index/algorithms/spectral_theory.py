"""Theory of the spectral start in the limit of large D: its overlap, its Gram matrix and its reaction term.

It is the state evolution of message passing (Troiani et al., arXiv:2502.00901, eq. (14)) with scores that are linear in
the fields, as they are around zero overlap.

Equation si-spectral of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Eigenvalues of T below this number are raised to it. If an output fixes z exactly they are unbounded below, which
#: would slow Lanczos down.
_LOWEST = -8.0
#: Largest number of shapes of the reaction matrix R that are tried; smallest size of R; tolerance of its size.
_MOST_SHAPES, _LEAST_REACTION, _PLACE = 20, 1e-30, 1e-12
#: Relative distances within which eigenvalues count as equal. The first distance is used at which the signal has
#: independent rows, that is singular values above the fraction _INDEPENDENT of the largest.
_TIED, _INDEPENDENT = (0.05, 0.2, 0.5), 0.1


class SpectralTheory(NamedTuple):
    """The spectral start of k directions in the limit of large D.

    Attributes
    ----------
    overlap : array (k, k)
        Q of the calibrated estimate; zero if the eigenvectors carry no information.
    eigenvalue : float
        Eigenvalue of the informative eigenvectors.
    gram : array (k, k)
        W W^T / D of the eigenvector W = M W* + noise, with the signal M (k, k) and the teacher W*.
    calibration : array (k, k)
        M^T gram^{-1}, which turns the eigenvector into the best estimate of the teacher.
    reaction : array (k, k)
        R with which the scores T X w of the eigenvector act back on its fields: omega = X w - R T X w.
    precision : array (k, k)
        A = -alpha E sum_m G_mm, with the scores g = G omega that follow from the reaction.
    multiplicity : int
        Number of informative eigenvectors; in the limit of large D they have the same eigenvalue.
    converged : bool
        Whether the iteration for the shape of R converged.
    """

    overlap: np.ndarray
    eigenvalue: float
    gram: np.ndarray
    calibration: np.ndarray
    reaction: np.ndarray
    precision: np.ndarray
    multiplicity: int
    converged: bool = True


def uninformative(overlap: float, k: int) -> SpectralTheory:
    """Return the theory of a random start of k directions, with ``overlap`` times the unit matrix as its overlap."""
    eye = np.eye(k)
    return SpectralTheory(overlap * eye, np.nan, eye, np.sqrt(overlap) * eye, eye, 0 * eye, k)


def preprocessing(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues (n, k M) and eigenvectors (n, k M, k M) of T = I - Cov[z|y]^{-1}, Cov (n, k, M, k, M)."""
    n, k, M = covariance.shape[:3]
    values, vectors = np.linalg.eigh(np.asarray(covariance, float).reshape(n, k * M, k * M))
    return (1 - 1 / values.clip(1e-9)).clip(_LOWEST), vectors


def linear_scores(t: np.ndarray, vectors: np.ndarray, R: np.ndarray) -> np.ndarray:
    """Return G = (T^{-1} - R)^{-1}, (n, k, M, k, M), for T with eigenvalues t (n, k M) and a reaction R (k, k).

    The columns of ``vectors`` (n, k M, k M) are the eigenvectors of T.
    """
    (n, size), k = t.shape, len(R)
    if k == 1:
        G = np.einsum("nij,nj,nkj->nik", vectors, t / (1 - R[0, 0] * t), vectors)
    else:
        T = np.einsum("nij,nj,nkj->nik", vectors, t, vectors)
        G = np.linalg.solve(np.eye(size) - T @ np.kron(R, np.eye(size // k)), T)
    return G.reshape(n, k, size // k, k, size // k)


def spectral_theory(
    alpha: float, covariance: np.ndarray, z: np.ndarray, weights: np.ndarray, mask: np.ndarray | float = 1.0
) -> SpectralTheory:
    """Compute the overlap, Gram matrix and reaction of the top eigenvectors of X^T T X / D.

    An eigenvector w (k, D) is a fixed point of linear message passing: with g = T X w and omega = X w - R g one has
    g = G omega, G = (T^{-1} - R)^{-1}, and b = X^T g / sqrt(D) + A w = R^{-1} w with A = -alpha E sum_m G_mm. Write
    w = M w* + noise, with the signal M and the noise covariance N; lambda is the eigenvalue. A step keeps the signal if

        alpha E[G (M z) z^T] = lambda M,       R = (lambda + A)^{-1},

    and the noise if N = alpha R E[G (M z z^T M^T + N (x) I) G] R. For k = 1 all of these are numbers.

    Parameters
    ----------
    covariance, z, weights : arrays (n, k, M, k, M), (n, k, M), (n,)
        Posterior covariances of the entering indices at zero overlap, the true indices, and the weights of the nodes.
    mask : array (k, k), optional
        Zero for indices that act on different parts of the data.
    """
    linear = _LinearPassing(alpha, covariance, z, weights, mask)
    shape = np.eye(z.shape[1])
    if linear.at(shape).growth <= 1:
        return uninformative(0.0, len(shape))
    found, converged = linear.steady(shape), len(shape) == 1
    for _ in range(0 if converged else _MOST_SHAPES):
        R = np.linalg.inv(found.eigenvalue * np.eye(len(shape)) + found.A)
        new = R * len(shape) / np.trace(R)
        # For equivalent directions R stays proportional to the unit matrix.
        if converged := bool(abs(new - shape).max() < 1e-3) or linear.at(new).growth <= 1:
            break
        shape = new
        found = linear.steady(shape)
    M, N = found.M, linear.noise(found)
    gram = M @ M.T + N
    calibration = M.T @ np.linalg.inv(gram)
    return SpectralTheory(
        calibration @ M, found.eigenvalue, gram, calibration, found.R, found.A, found.multiplicity, converged
    )


class _LinearStep(NamedTuple):
    """One step of linear message passing with a reaction R (k, k).

    G (n, k, M, k, M) gives the scores g = G omega, and A = -alpha E sum_m G_mm. M (k, k) is the fastest growing signal,
    with its multiplicity and eigenvalue; ``growth`` is the factor of M per step.
    """

    R: np.ndarray
    G: np.ndarray
    A: np.ndarray
    M: np.ndarray
    multiplicity: int
    eigenvalue: float
    growth: float


def _leading_signal(K: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the signal (k, k) that grows fastest under the symmetric map K (k, k, k, k), and its multiplicity.

    Of several fastest signals the one nearest to the unit matrix is returned. The noise of the nodes splits eigenvalues
    that are equal by symmetry. They count as equal within a distance at which each of the k directions that enter
    together has a signal. For sign(z_1 z_2), for example, the signals [[1, 1], [1, 1]] and [[1, -1], [-1, 1]] grow
    equally fast, and either alone is one direction only.
    """
    k = len(K)
    values, vectors = np.linalg.eigh(K.reshape(k * k, k * k))
    for share in _TIED:
        tied = vectors[:, values > values[-1] - share * abs(values[-1])]
        for signal in (tied @ (tied.T @ np.eye(k).ravel()), vectors[:, -1]):
            M = signal.reshape(k, k)
            sizes = np.linalg.svd(M, compute_uv=False)
            if sizes[-1] > max(_INDEPENDENT * sizes[0], 1e-3):
                return M * np.sqrt(k) / np.linalg.norm(M), tied.shape[1]
    return vectors[:, -1].reshape(k, k) * np.sqrt(k), 1


class _LinearPassing:
    """Averages of linear message passing over nodes; the arguments are those of :func:`spectral_theory`."""

    def __init__(
        self, alpha: float, covariance: np.ndarray, z: np.ndarray, weights: np.ndarray, mask: np.ndarray | float
    ) -> None:
        n, self.k, _ = z.shape
        self.alpha, self.z, self.weights, self.mask = alpha, z, weights / n, mask * np.ones((self.k, self.k))
        self.t, self.vectors = preprocessing(covariance)

    def at(self, R: np.ndarray) -> _LinearStep:
        G = linear_scores(self.t, self.vectors, R)
        A = -self.alpha * np.einsum("n,nimjm->ij", self.weights, G) * self.mask
        # K maps (jr), the signal of the estimate's row j along the teacher's row r, to (il).
        pairs = np.einsum("n,nimju,nru,nlm->iljr", self.weights, G, self.z, self.z, optimize=True)
        K = self.alpha * self.mask[:, :, None, None] * pairs * self.mask
        M, multiplicity = _leading_signal(K)
        moved = np.einsum("iljr,jr->il", K, M)
        square = (M * M).sum()
        growth = float(((R @ (moved + A @ M)) * M).sum() / square)
        return _LinearStep(R, G, A, M, multiplicity, float((moved * M).sum() / square), growth)

    def steady(self, shape: np.ndarray) -> _LinearStep:
        """Return the step with the reaction R = c ``shape``, shape (k, k), whose c keeps the signal constant."""
        least = 1e-3
        while self.at(least * shape).growth > 1:
            least /= 10
            if least < _LEAST_REACTION:
                raise FloatingPointError("no reaction keeps the signal of the spectral start steady")
        from scipy.optimize import brentq  # takes a quarter of a second to import

        place = brentq(lambda c: self.at(c * shape).growth - 1, least, 1.0, xtol=_PLACE)
        return self.at(float(place) * shape)  # pyright: ignore[reportArgumentType]

    def noise(self, found: _LinearStep) -> np.ndarray:
        """Return the noise covariance N (k, k) of the step ``found``, which solves a linear system."""
        k, G = self.k, found.G
        moved = np.einsum("nimju,jr,nru->nim", G, found.M, self.z, optimize=True)
        source = np.einsum("n,nim,nlm->il", self.weights, moved, moved)
        spread = np.einsum("n,nimju,nlmru->iljr", self.weights, G, G, optimize=True)
        R = found.R
        source = self.alpha * R @ (source * self.mask) @ R
        spread = self.alpha * np.einsum("ai,bl,iljr->abjr", R, R, self.mask[:, :, None, None] * spread * self.mask)
        N = np.linalg.solve(np.eye(k * k) - spread.reshape(k * k, k * k), source.ravel()).reshape(k, k)
        return 0.5 * (N + N.T)
