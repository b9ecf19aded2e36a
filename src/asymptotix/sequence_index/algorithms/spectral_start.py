"""A first estimate of the directions that are not learned yet, conditional on the learned directions.

Linearised around zero overlap, message passing for the entering directions is g = G (X w - g), where
G = Cov[z|y] - I comes from the posterior of their indices. Solving for g instead of iterating leads to the matrix

    X^T T X / D,      T_mu = I - Cov[z|y_mu]^{-1},

whose top eigenvector is informative if alpha E|G|_F^2 > 1. For one direction this is the weak-recovery threshold of
Troiani et al., arXiv:2502.00901, Theorem 2.3. (With G in place of T the eigenvalue stays inside the bulk.)
Directions that enter together have an eigenspace of several dimensions: one for each direction that may change its sign
on its own, k^2 if k directions may be rotated into each other.

At finite size the eigenvalues of such a space split. The main cause is A = -(1/D) sum_mu tr G_mu, the reaction of the
samples on the weights. It fluctuates by 1/sqrt(D) and moves outliers and bulk together. For sign(z_1 z_2), for example,
a surplus of one sign raises the eigenvalues along w_1 + w_2 and lowers those along w_1 - w_2, until the bulk of the
former hides the outlier of the latter. Therefore A of the data minus its limit is added to the matrix. In the limit of
large D this does not change the eigenvalues.

Equation si-spectral of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from ...numerics import interrupts
from ...numerics.arrays import Array
from ...numerics.linear_algebra import psd_sqrt
from .. import streams
from ..models.rank_one import array_namespace
from .placed_arrays import compiled_for_jax, placed
from .spectral_theory import SpectralTheory, linear_scores, preprocessing
from .tokens import Tokens

#: Lanczos ends if the residuals of the wanted eigenvectors, and the residual of the next one, are below these fractions
#: of the top eigenvalue, or after _KRYLOV iterations: eigenvectors not found by then are not detached from the bulk.
_RESIDUAL, _RESIDUAL_NEXT, _KRYLOV = 3e-3, 3e-2, 400
#: Number of iterations of block Lanczos between two tests of the residuals.
_TESTED_EVERY = 5
#: Largest number of eigenvectors computed together.
_MOST = 9
#: Number of random combinations of eigenvectors of which the best conditioned is used, and its smallest acceptable
#: condition: the ratio of the smallest to the largest eigenvalue of its Gram matrix.
_COMBINATIONS, _CONDITION = 64, 0.1
#: Eigenvalues closer than this fraction of the first count as equal.
_DEGENERATE = 0.01


class SpectralStart(NamedTuple):
    """Estimate (k, D) with the Gram matrix of theory, combined from top eigenvectors, and its scores (n, k, M).

    ``eigenvalue`` is the smallest eigenvalue of the combined eigenvectors, ``runner_up`` the next one. ``scores`` are
    T X w / sqrt(D) of the estimate w. ``residual`` is the largest residual as a fraction of the top eigenvalue.
    """

    vectors: np.ndarray
    eigenvalue: float
    runner_up: float
    scores: np.ndarray
    residual: float

    @property
    def converged(self) -> bool:
        """Whether Lanczos found the eigenvectors to the required residual."""
        return self.residual < _RESIDUAL

    @property
    def gap(self) -> float:
        """Relative distance of ``eigenvalue`` from ``runner_up``; below about 0.03 the estimate may be noise."""
        return (self.eigenvalue - self.runner_up) / abs(self.eigenvalue)


def spectral_start(
    tokens: Tokens, covariance: np.ndarray, seed: int, frame: np.ndarray, theory: SpectralTheory
) -> SpectralStart:
    """Compute top eigenvectors of X^T T X / D + A - E A by Lanczos and combine them into one estimate (k, D).

    Here T = I - Cov^{-1} per sample, and A is the reaction of the samples on the weights. The matrix is never built.

    Parameters
    ----------
    tokens : Tokens of one data set
        Each product takes one pass through them.
    covariance : array (n, k, M, k, M)
        Posterior covariance of the entering indices at w = 0, V = I.
    frame : array (P, k)
        Orthonormal columns: the entering indices are frame^T Z. Each column acts on one part of the data.
    theory : SpectralTheory
        The limit of large D: W W^T / D of the eigenvectors, their reaction term and the mean of A.
    """
    k = covariance.shape[1]
    operator = _Operator(tokens, covariance, frame, theory)
    wanted = 1 if k == 1 else min(k * k, _MOST)
    rng = np.random.default_rng(streams.spectral_start_of_run(seed, tokens.shape[-1]))
    values, vectors, residual = top_eigenpairs(operator, rng.normal(size=(wanted, k * operator.dim)))
    count, estimate = _combined(values, vectors.reshape(wanted, k, -1), operator.mask, theory, rng)
    estimate = np.sqrt(operator.dim) * estimate
    found = operator.scores(estimate)
    vectors = estimate.astype(np.float32)
    return SpectralStart(vectors, float(values[count - 1]), float(values[count]), found, residual)


class _Operator:
    """The map v -> (X^T T X / D + A - E A) v on rows (b, k D); see :func:`spectral_start` for the arguments."""

    def __init__(self, tokens: Tokens, covariance: np.ndarray, frame: np.ndarray, theory: SpectralTheory) -> None:
        t, vectors = preprocessing(covariance)
        self.T = np.einsum("nij,nj,nkj->nik", vectors, t, vectors).astype(np.float32)
        self.tokens, self.frame = tokens, frame.astype(np.float32)
        self.k, self.dim = frame.shape[1], tokens.shape[-1]
        self.mask = same_part(frame, tokens.groups)
        self.excess = np.zeros((self.k, self.k))
        if np.isfinite(theory.eigenvalue):  # otherwise there is no outlier to correct
            A = -np.einsum("nimjm->ij", linear_scores(t, vectors, theory.reaction)) / self.dim * self.mask
            self.excess = 0.5 * (A + A.T) - theory.precision

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        def score(rows: slice, fields: Array) -> Array:
            return _preprocessed(self.T[rows], fields, self.frame)

        W = self._rows(vectors)
        P = len(self.frame)
        b = np.asarray(self.tokens.sweep(W, score), float).reshape(len(vectors), P, self.dim)
        moved = self.excess @ vectors.reshape(-1, self.k, self.dim)
        return (np.einsum("pk,bpd->bkd", self.frame, b) + moved).reshape(len(vectors), -1)

    def _rows(self, vectors: np.ndarray) -> Array:
        W = np.einsum("pk,bkd->bpd", self.frame, vectors.reshape(-1, self.k, self.dim))
        return placed(W).reshape(1, -1, self.dim)

    def scores(self, estimate: np.ndarray) -> np.ndarray:
        """Return T X w / sqrt(D), (n, k, M), for an ``estimate`` w (k, D)."""
        fields = self.tokens.fields(self._rows(estimate[None]))
        n, M = fields.shape[1], fields.shape[3]
        along = np.einsum("pk,npm->nkm", self.frame, np.asarray(fields[0])).reshape(n, -1)
        return np.einsum("nab,nb->na", self.T, along).reshape(n, self.k, M)


def same_part(frame: np.ndarray, groups: Sequence[int] | np.ndarray | None) -> np.ndarray:
    """Return a mask (k, k): one for two columns of ``frame`` (P, k) that act on the same block of the data.

    ``groups`` (P,) are the blocks of the rows; None: there is one block.
    """
    if groups is None:
        return np.ones((frame.shape[1], frame.shape[1]))
    own = np.asarray(groups)[abs(frame).argmax(0)]
    return (own[:, None] == own).astype(float)


@compiled_for_jax
def _preprocessed(T: Array, fields: Array, frame: Array) -> Array:
    """Return the fields (1, n, b P, M) of b sets of P rows, multiplied by F T F^T with T (n, k M, k M), F (P, k)."""
    _, n, rows, M = fields.shape
    P, k = frame.shape
    xp, fields = array_namespace(fields), fields.reshape(n, rows // P, P, M)
    along = xp.einsum("pk,nbpm->nbkm", frame, fields).reshape(n, -1, k * M)
    g = xp.einsum("nab,ncb->nca", T, along).reshape(n, -1, k, M)
    return xp.einsum("pk,nbkm->nbpm", frame, g).reshape(1, n, rows, M)


def top_eigenpairs(
    product: Callable[[np.ndarray], np.ndarray], first: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the b + 1 largest eigenvalues, descending, b unit eigenvectors (b, dim), and their largest residual.

    ``product`` multiplies rows (b, dim) by a symmetric matrix. The method is block Lanczos from ``first`` (b, dim) with
    full orthogonalisation and without restarts, because products dominate the cost. The residual is a fraction of the
    top eigenvalue. The last eigenvalue only shows whether the others are detached; it is accurate to about one percent.
    """
    b, dim = first.shape
    most = min(_KRYLOV, dim // b)
    basis, H = np.zeros((0, dim)), np.zeros((0, 0))
    rest = first
    for k in range(most):
        interrupts.check()
        new = _orthonormal(rest, basis, 1e-6 * np.abs(H).max(initial=0.0))  # products are in single precision
        basis = np.concatenate([basis, new])
        image = product(new) if len(new) else new
        H = np.pad(H, (0, len(new)))
        H[:, len(H) - len(new) :] = basis @ image.T
        rest = image - (image @ basis.T) @ basis
        ended = len(new) < b or k == most - 1
        if len(basis) > b and (ended or k % _TESTED_EVERY == 0):
            last = len(basis) - 1
            values, vectors = eigh(np.triu(H) + np.triu(H, 1).T, subset_by_index=[last - b, last])
            values, vectors = values[::-1], vectors[:, ::-1]
            # Only the images of the last block have a part outside the space.
            residuals = np.linalg.norm(vectors[len(basis) - len(new) :].T @ rest, axis=1) / abs(values[0])
            if ended or (residuals[:b].max() < _RESIDUAL and residuals[b] < _RESIDUAL_NEXT):
                return values, vectors[:, :b].T @ basis, float(residuals[:b].max())
    raise ValueError(f"{b} eigenvectors and the next eigenvalue need a space of {2 * b} dimensions, got {dim}")


def _orthonormal(block: np.ndarray, basis: np.ndarray, least: float) -> np.ndarray:
    """Return orthonormal rows that span the components of a block's rows orthogonal to ``basis`` (orthonormal rows).

    Components of norm up to ``least`` are dropped.
    """
    rows = []
    for row in block:
        known = np.concatenate([basis, np.array(rows).reshape(-1, basis.shape[1])])
        size = np.linalg.norm(row - known.T @ (known @ row))
        if size <= least:
            continue
        for _ in range(2):  # a single pass is not orthogonal to rounding
            row = row - known.T @ (known @ row)
            row = row / np.linalg.norm(row)
        rows.append(row)
    return np.array(rows).reshape(-1, basis.shape[1])


def _combined(
    values: np.ndarray, vectors: np.ndarray, mask: np.ndarray, theory: SpectralTheory, rng: np.random.Generator
) -> tuple[int, np.ndarray]:
    """Return how many of b eigenvectors count as informative, and their combination (k, D) with theory's Gram matrix.

    The eigenvectors are ``vectors`` (b, k, D); ``mask`` is that of :func:`same_part`. The number is the multiplicity of
    theory, increased as long as no combination has k independent rows. (The largest gap between successive eigenvalues
    is no guide: at finite size it is often between informative ones.) By the symmetry of the model all combinations are
    equivalent. Of several random ones the one with the best conditioned Gram matrix is used; its rows are then mixed so
    that the Gram matrix is exact. A single eigenvector is only scaled.
    """
    b, gram = len(vectors), theory.gram
    count = min(theory.multiplicity, b)
    root = psd_sqrt(gram)
    inverse = np.linalg.inv(root)
    while True:
        weights = rng.normal(size=(_COMBINATIONS if count > 1 else 1, count))
        grams = np.einsum("ca,cb,akd,bld->ckl", weights, weights, vectors[:count], vectors[:count], optimize=True)
        spectra = np.linalg.eigvalsh(inverse @ (grams * mask) @ inverse)
        condition = spectra[:, 0] / spectra[:, -1]
        best = int(condition.argmax())
        if condition[best] > _CONDITION or count == b:
            combination = np.einsum("a,akd->kd", weights[best], vectors[:count])
            if count == 1:
                return count, combination * np.sqrt(np.trace(gram) / np.trace(grams[best]))
            size, axes = np.linalg.eigh(inverse @ (grams[best] * mask) @ inverse)
            mixing = root @ (axes / np.sqrt(size.clip(1e-12 * size[-1]))) @ axes.T @ inverse
            return count, mixing @ combination
        count += 1
        while count < b and values[count - 1] - values[count] < _DEGENERATE * values[0]:
            count += 1
