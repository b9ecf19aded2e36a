"""A first estimate of what is not learned yet, conditional on what is.

Linearised around zero overlap, message passing for the directions that enter reads g = G (X w - g), with
G = Cov[z|y] - I the posterior of their indices. Solving the reaction term instead of iterating it leads to the matrix

    X^T T X / D,      T_mu = I - Cov[z|y_mu]^{-1},

whose top eigenvector is informative as soon as alpha E|G|_F^2 > 1, the weak-recovery threshold of Troiani et al.,
arXiv:2502.00901, Theorem 2.3, for one direction. (With G in the place of T it stays inside the bulk.)
Directions that enter together have an eigenspace of several dimensions: one for each that may change its sign on its
own, k^2 where k of them may be rotated into each other.

At finite size the eigenvalues of such a space part. Most of that comes with A = -(1/D) sum_mu tr G_mu, the reaction of
the samples on the weights, which fluctuates by 1/sqrt(D) and moves outliers and bulk alike: of sign(z_1 z_2) a surplus
of one sign lifts all eigenvalues along w_1 + w_2 and lowers those along w_1 - w_2, until the bulk of the former hides
the outlier of the latter. Therefore the matrix has A of the data less its limit added, which leaves eigenvalues where
they are in the limit of large D.

Equation si-spectral of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh

from ...numerics import interrupts
from ...numerics.linear_algebra import psd_sqrt
from .. import streams
from ..models.rank_one import array_namespace
from .placed_arrays import compiled_for_jax, placed
from .spectral_theory import SpectralTheory, linear_scores, preprocessing
from .tokens import Tokens

#: Lanczos ends when the residuals of the eigenvectors that are wanted, and that of the next, are below these shares of
#: the top eigenvalue, or after _KRYLOV products: what is not found by then is not detached from the bulk.
_RESIDUAL, _RESIDUAL_NEXT, _KRYLOV = 3e-3, 3e-2, 400
#: Products between two tests.
_TESTED_EVERY = 5
#: Most eigenvectors that are looked for together.
_MOST = 9
#: Random combinations of eigenvectors among which the best conditioned is taken, and the least acceptable condition.
_COMBINATIONS, _CONDITION = 64, 0.1
#: Eigenvalues closer than this share of the first are not parted.
_DEGENERATE = 0.01


class SpectralStart(NamedTuple):
    """Vectors (k, D) with a given Gram matrix, their eigenvalue, the next one, and their scores T X w (n, k, M).

    ``residual`` is the largest of the eigenvectors, as a share of the top eigenvalue.
    """

    vectors: Any
    eigenvalue: float
    runner_up: float
    scores: Any
    residual: float

    @property
    def converged(self) -> bool:
        """Whether Lanczos found the eigenvectors before its last product."""
        return self.residual < _RESIDUAL

    @property
    def gap(self) -> float:
        """Relative distance of the top eigenvalues from the next; below about 0.03 the estimate may be noise."""
        return (self.eigenvalue - self.runner_up) / abs(self.eigenvalue)


def spectral_start(
    tokens: Tokens, covariance: np.ndarray, seed: int, frame: np.ndarray, theory: SpectralTheory
) -> SpectralStart:
    """Top eigenvectors of X^T T X / D + A - E A by Lanczos, without building the matrix, combined into one estimate.

    Parameters
    ----------
    tokens : Tokens of one data set
        One pass through them per product.
    covariance : array (n, k, M, k, M)
        Posterior covariance of the entering indices at w = 0, V = I.
    frame : array (P, k)
        Orthonormal columns: the entering indices are frame^T Z. Of several parts of the data a column touches one.
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
    """v -> (X^T T X / D + A - E A) v on vectors (k D,), several at a time, in the coordinates of a frame."""

    def __init__(self, tokens: Tokens, covariance: np.ndarray, frame: np.ndarray, theory: SpectralTheory) -> None:
        t, vectors = preprocessing(covariance)
        self.T = np.einsum("nij,nj,nkj->nik", vectors, t, vectors).astype(np.float32)
        self.tokens, self.frame = tokens, frame.astype(np.float32)
        self.k, self.dim = frame.shape[1], tokens.shape[-1]
        self.mask = same_part(frame, tokens.groups)
        self.excess = np.zeros((self.k, self.k))
        if np.isfinite(theory.eigenvalue):  # otherwise there is no outlier to bring back
            A = -np.einsum("nimjm->ij", linear_scores(t, vectors, theory.reaction)) / self.dim * self.mask
            self.excess = 0.5 * (A + A.T) - theory.precision

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        def score(rows: slice, fields: Any) -> Any:
            return _preprocessed(self.T[rows], fields, self.frame)

        W = self._rows(vectors)
        P = len(self.frame)
        b = np.asarray(self.tokens.sweep(W, score), float).reshape(len(vectors), P, self.dim)
        moved = self.excess @ vectors.reshape(-1, self.k, self.dim)
        return (np.einsum("pk,bpd->bkd", self.frame, b) + moved).reshape(len(vectors), -1)

    def _rows(self, vectors: np.ndarray) -> Any:
        W = np.einsum("pk,bkd->bpd", self.frame, vectors.reshape(-1, self.k, self.dim))
        return placed(W).reshape(1, -1, self.dim)

    def scores(self, estimate: np.ndarray) -> np.ndarray:
        """T X w / sqrt(D) of an estimate w (k, D), as (n, k, M)."""
        fields = self.tokens.fields(self._rows(estimate[None]))
        n, M = fields.shape[1], fields.shape[3]
        along = np.einsum("pk,npm->nkm", self.frame, np.asarray(fields[0])).reshape(n, -1)
        return np.einsum("nab,nb->na", self.T, along).reshape(n, self.k, M)


def same_part(frame: np.ndarray, groups: Sequence[int] | np.ndarray | None) -> np.ndarray:
    """Ones (k, k) for columns of a frame (P, k) that act on the same part of the data."""
    if groups is None:
        return np.ones((frame.shape[1], frame.shape[1]))
    own = np.asarray(groups)[abs(frame).argmax(0)]
    return (own[:, None] == own).astype(float)


@compiled_for_jax
def _preprocessed(T: Any, fields: Any, frame: Any) -> Any:
    """Frame T frame^T times the fields (1, n, b P, M) of b sets of rows."""
    _, n, rows, M = fields.shape
    P, k = frame.shape
    xp, fields = array_namespace(fields), fields.reshape(n, rows // P, P, M)
    along = xp.einsum("pk,nbpm->nbkm", frame, fields).reshape(n, -1, k * M)
    g = xp.einsum("nab,ncb->nca", T, along).reshape(n, -1, k, M)
    return xp.einsum("pk,nbkm->nbpm", frame, g).reshape(1, n, rows, M)


def top_eigenpairs(
    product: Callable[[np.ndarray], np.ndarray], first: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """The b + 1 largest eigenvalues of a symmetric operator, unit eigenvectors (b, dim) of the b largest, and residual.

    Block Lanczos from ``first`` (b, dim) with full orthogonalisation and without restarts, because products are what
    costs. The last eigenvalue, which only says whether the others are detached, is found to about one percent.
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
            # Only the images of the last block leave the space.
            residuals = np.linalg.norm(vectors[len(basis) - len(new) :].T @ rest, axis=1) / abs(values[0])
            if ended or (residuals[:b].max() < _RESIDUAL and residuals[b] < _RESIDUAL_NEXT):
                return values, vectors[:, :b].T @ basis, float(residuals[:b].max())
    raise ValueError(f"{b} eigenvectors and the next eigenvalue need a space of {2 * b} dimensions, got {dim}")


def _orthonormal(block: np.ndarray, basis: np.ndarray, least: float) -> np.ndarray:
    """Orthonormal rows that span what the rows of a block have outside the basis; smaller parts are left out."""
    rows = []
    for row in block:
        known = np.concatenate([basis, np.array(rows).reshape(-1, basis.shape[1])])
        size = np.linalg.norm(row - known.T @ (known @ row))
        if size <= least:
            continue
        for _ in range(2):  # once is not enough for orthogonality to rounding
            row = row - known.T @ (known @ row)
            row = row / np.linalg.norm(row)
        rows.append(row)
    return np.array(rows).reshape(-1, basis.shape[1])


def _combined(
    values: np.ndarray, vectors: np.ndarray, mask: np.ndarray, theory: SpectralTheory, rng: np.random.Generator
) -> tuple[int, np.ndarray]:
    """How many eigenvectors (b, k, D) count as informative, and a combination of them with the Gram matrix of theory.

    As many as theory says, and more as long as no combination has k independent rows. (The largest gap between
    successive eigenvalues is no guide: at finite size it is as often one between those.) Which combination is
    arbitrary, as the symmetry of the model is: that of several whose Gram matrix is nearest to what it should be is
    taken, and its rows are then mixed to make it so. A single one is only scaled.
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
